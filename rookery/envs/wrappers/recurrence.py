"""A world that keeps what an agent notes, and shows it in the next step: an agent with a memory needs nothing else.

Acting stays a function of parameters and observation, so whatever acts, judges or resets serves recurrent agents too.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from rookery.envs.base import ActionWithCarry, Environment, EnvState, Step
from rookery.envs.rendering import scene
from rookery.types import Array, Key


class Remembered(NamedTuple):
    """An environment's state beside the memory."""

    inner: EnvState
    memory: Array  # [H], or [I, H]


def remembering(environment: Environment, memory_size: int) -> Environment:
    """The environment with actions `ActionWithCarry` and observations `[O + H]` that end in the memory.

    The memory is 0 in the first step of an episode.

    Args:
      environment: any; of a team, each agent has a memory of its own.
      memory_size: H; with 0 the environment stays as it is.

    Raises:
      ValueError: the environment keeps a memory already, or has skills, or `memory_size` is negative.
    """
    spec = environment.spec
    if memory_size < 0:
        raise ValueError(f"memory_size must not be negative, got {memory_size}.")
    if spec.memory_size or environment.assignment is not None:
        raise ValueError(f"{spec.name} has {'a memory' if spec.memory_size else 'skills'} already and takes no memory.")
    if not memory_size:
        return environment
    return environment._replace(
        reset=partial(_reset, environment, memory_size),
        step=partial(_step, environment),
        spec=spec._replace(observation_size=spec.observation_size + memory_size, memory_size=memory_size),
        picture=scene.inside(environment.picture, "inner"),
    )


def _reset(environment: Environment, memory_size: int, key: Key) -> tuple[Remembered, Step]:
    state, step = environment.reset(key)
    memory = jnp.zeros((*step.reward.shape, memory_size))
    return Remembered(state, memory), _shown(step, memory)


def _step(environment: Environment, state: Remembered, action: ActionWithCarry, key: Key) -> tuple[Remembered, Step]:
    inner, step = environment.step(state.inner, action.action, key)
    return Remembered(inner, action.memory), _shown(step, action.memory)


def _shown(step: Step, memory: Array) -> Step:
    return step._replace(
        observation=jnp.concatenate([step.observation, memory], axis=-1),
        final_observation=jnp.concatenate([step.final_observation, memory], axis=-1),
    )
