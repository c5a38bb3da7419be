"""A user-defined environment, a mass on a line that a force brings to the origin, and Population Based Training on it.

    python examples/own_environment.py

The command line finds the factory too, with its parameters as options:

    rookery train pbt-sac --env examples/own_environment.py:make --option mass=2
"""

import argparse
from typing import NamedTuple

import jax
import jax.numpy as jnp

import rookery
from rookery.envs import EnvSpec, descriptor_spec, first_step, limit_episode, next_step
from rookery.envs.rendering import Picture, Scene, Scenery

LIMIT = 3.0  # metres from the origin at which an episode terminates
SECONDS = 0.1  # simulated time of a step


class State(NamedTuple):
    """State of the environment, in metres and seconds."""

    position: jax.Array  # []
    velocity: jax.Array  # []


def make(mass: float = 1.0, episode_length: int = 100) -> rookery.Environment:
    """The environment; `mass` is in kilograms, the force at most 1 newton."""
    spec = EnvSpec(
        name="mass",
        observation_size=2,
        action_size=1,
        episode_length=episode_length,
        descriptor=descriptor_spec("final position", "final", (-LIMIT,), (LIMIT,)),
    )

    def reset(key: jax.Array) -> tuple[State, rookery.envs.Step]:
        state = State(jax.random.uniform(key, minval=-2.0, maxval=2.0), jnp.zeros(()))
        return state, first_step(jnp.stack(state), state.position[None])

    def step(state: State, action: jax.Array, key: jax.Array) -> tuple[State, rookery.envs.Step]:
        del key  # the motion is deterministic
        velocity = state.velocity + SECONDS * action[0] / mass
        state = State(state.position + SECONDS * velocity, velocity)
        reward = -jnp.square(state.position) - 0.1 * jnp.square(action[0])
        outside = jnp.abs(state.position) > LIMIT
        return state, next_step(jnp.stack(state), reward, outside, state.position[None])

    environment = rookery.Environment(reset, step, spec, picture=picture())
    return limit_episode(environment, episode_length)


def picture() -> Picture:
    """A disc on the line, for `rookery render` and the report."""
    scenery = Scenery(
        lower=(-LIMIT, -1.0), upper=(LIMIT, 1.0), bodies=("mass",), radii=(0.1,), goals=((0.0, 0.0, 0.15),)
    )
    return Picture(scene=draw, scenery=scenery, seconds=SECONDS)


def draw(state: State) -> Scene:
    place = jnp.stack([state.position, jnp.zeros(())])
    return Scene(position=place[None], heading=jnp.full((1,), jnp.nan), visible=jnp.ones(1, bool))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--run-dir", default="runs/own_environment")
    made.add_argument("--small", action="store_true")
    options = made.parse_args()

    env = make(mass=2.0)
    rookery.check_environment(env)  # each mistake is one sentence
    agent = rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=(8,) if options.small else (32, 32)))
    config = rookery.learners.OffPolicyConfig(
        num_envs=4,
        steps_per_generation=40 if options.small else 1_000,
        batch_size=8 if options.small else 64,
        buffer_size=20_000,
        warmup_steps=20 if options.small else 500,
    )
    program = rookery.pbt(rookery.off_policy(agent, env, config), population_size=4)
    result = rookery.run(program, generations=2 if options.small else 15, run_dir=options.run_dir, overwrite=True)
    print(f"best return: {max(float(row['fitness'].max()) for row in result.history):.1f}")


if __name__ == "__main__":
    main()
