"""A user-defined environment whose reward weights evolve: Population Based Training selects by success alone.

    python examples/own_parameters.py

The command line finds the factory too:

    rookery train pbt-ppo --env examples/own_parameters.py:make --space.env.approach-weight evolve --objective success
"""

import argparse
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

import rookery
from rookery.envs import EnvSpec, Step, first_step, limit_episode, next_step
from rookery.hyperparams import Field, Uniform, declared

MEASURES = {"success": "1 in the step that reaches the right end"}


class Weights(NamedTuple):
    """Weights of the reward; the defaults are those of the task, whose reward is sparse."""

    approach_weight: Annotated[jax.Array | float, Field("reward per unit of motion", Uniform(0.0, 2.0))] = 0.0
    force_weight: Annotated[jax.Array | float, Field("cost of the squared force", Uniform(0.0, 0.1))] = 0.0


SPEC = EnvSpec("line", 1, 1, episode_length=50, parameters=declared(Weights), measures=MEASURES)


def make() -> rookery.Environment:
    """The task: a point starts at the left end of a line, and reaches the right end."""
    return limit_episode(weighted(Weights()), SPEC.episode_length)


def weighted(weights: Weights) -> rookery.Environment:
    """The environment with these weights: numbers, or in training the values of a member."""
    return rookery.Environment(reset, partial(step, weights), SPEC, parameterize=weighted)


def reset(key: jax.Array) -> tuple[jax.Array, Step]:
    """Begin near -1."""
    position = jax.random.uniform(key, (1,), minval=-1.0, maxval=-0.9)
    return position, first_step(position, jnp.zeros(0), measures={"success": jnp.zeros(())})


def step(weights: Weights, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
    """Move by at most 0.05."""
    del key  # the motion is deterministic
    moved = jnp.clip(state + 0.05 * action, -1.0, 1.0)
    success = (moved[0] >= 1.0).astype(jnp.float32)
    reward = success + weights.approach_weight * (moved[0] - state[0]) - weights.force_weight * action[0] ** 2
    return moved, next_step(moved, reward, success > 0.0, jnp.zeros(0), measures={"success": success})


def main() -> None:
    """Train a population, and print the weights of its best member."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="two short generations")
    parser.add_argument("--run-dir", default="runs/own_parameters")
    arguments = parser.parse_args()

    env = make()
    rookery.check_environment(env)
    small: dict[str, Any] = {"num_envs": 2, "rollout_length": 16, "evaluate_every": 1} if arguments.small else {}
    config = rookery.learners.OnPolicyConfig(**small, objective="success", eval_episodes=4)
    network = rookery.agents.PpoConfig(hidden_sizes=(8,) if arguments.small else (64, 64), minibatches=2)
    learner = rookery.on_policy(rookery.ppo(env.spec, network), env, config)
    space = rookery.choose(learner.space, env_approach_weight="evolve", env_force_weight=(0.0, 0.01))
    program = rookery.pbt(learner, space, population_size=2 if arguments.small else 8)
    rookery.run(program, run_dir=arguments.run_dir, generations=2 if arguments.small else 20, overwrite=True)
    lineage = rookery.experiments.lineage(arguments.run_dir)
    best = int(lineage.fitness[-1].argmax())
    weights = {name: round(float(values[-1, best]), 3) for name, values in lineage.hyper.items() if "weight" in name}
    print(f"success of member {best}: {lineage.fitness[-1, best]:.2f}, with {weights}")


if __name__ == "__main__":
    main()
