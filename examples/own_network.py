"""A user-defined network in front of any agent: an encoder that reads a set of objects in any order.

    python examples/own_network.py

Observations are pytrees here: the positions of several goals, and that of the agent. The encoder treats all goals alike
and pools over them (Zaheer 2017, "Deep Sets", arXiv:1703.06114); `rookery.sac`, `rookery.td3` and `rookery.ppo` take
it, and each network gets separate parameters of it.
"""

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp

import rookery
from rookery import networks
from rookery.envs import EnvSpec, feature_size, first_step, flatten_features, limit_episode, next_step
from rookery.types import Array, Key, PyTree

GOALS = 3
SHAPE = {"goals": (GOALS, 2), "position": (2,)}


class State(NamedTuple):
    """Positions in a square of side 2."""

    goals: Array  # [GOALS, 2]
    position: Array  # [2]


def make(episode_length: int = 30) -> rookery.Environment:
    """Move to the nearest of several goals."""
    spec = EnvSpec("goals", feature_size(SHAPE), 2, episode_length, observation_shape=SHAPE)

    def reset(key: Key) -> tuple[State, rookery.envs.Step]:
        goals = jax.random.uniform(key, (GOALS, 2), minval=-1.0, maxval=1.0)
        state = State(goals, jnp.zeros(2))
        return state, first_step(flatten_features(state._asdict()), jnp.zeros(0))

    def step(state: State, action: Array, key: Key) -> tuple[State, rookery.envs.Step]:
        del key  # the motion is deterministic
        state = state._replace(position=jnp.clip(state.position + 0.1 * action, -1.0, 1.0))
        distance = jnp.min(jnp.linalg.norm(state.goals - state.position[None], axis=-1))
        return state, next_step(flatten_features(state._asdict()), -distance, jnp.asarray(False), jnp.zeros(0))

    return limit_episode(rookery.Environment(reset, step, spec), episode_length)


def deep_set(size: int) -> rookery.agents.Encoder:
    """The greatest activation over the goals, seen from the agent; leading axes are those of batches."""
    each = networks.mlp((2,), (size,), size)

    def apply(params: PyTree, features: dict[str, Array]) -> Array:
        directions = features["goals"] - features["position"][..., None, :]
        pooled = jnp.max(each.apply(params, directions), axis=-2)
        return jnp.concatenate([pooled, features["position"]], axis=-1)

    return rookery.agents.Encoder(each.init, apply)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", default="runs/own_network")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()

    env = make()
    rookery.check_environment(env)
    agent = rookery.td3(
        env.spec,
        rookery.agents.Td3Config(hidden_sizes=(8,) if options.small else (64, 64)),
        encoder=deep_set(4 if options.small else 32),
    )
    rookery.check_agent(agent, env.spec)
    config = rookery.learners.OffPolicyConfig(
        num_envs=4,
        steps_per_generation=40 if options.small else 1_000,
        batch_size=8 if options.small else 64,
        buffer_size=20_000,
        warmup_steps=20 if options.small else 500,
    )
    program = rookery.seeds(rookery.off_policy(agent, env, config), population_size=2)
    result = rookery.run(program, generations=2 if options.small else 15, run_dir=options.run_dir, overwrite=True)
    first, last = (float(result.history[place]["fitness"].mean()) for place in (0, -1))
    print(f"mean return: {first:.1f} in the first generation, {last:.1f} in the last")


if __name__ == "__main__":
    main()
