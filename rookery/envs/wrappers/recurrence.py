"""Recurrence: a wrapper that stores the memory that an agent outputs and appends it to the next observation.

With it, the action of a recurrent agent remains a function of parameters and observation, so the code that runs,
evaluates and resets episodes supports recurrent agents without changes.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from rookery.envs.base import ActionWithCarry, Environment, EnvState, Step
from rookery.envs.rendering import scene
from rookery.types import Array, Key


class MemoryState(NamedTuple):
    """State of the wrapped environment, and the memory."""

    inner: EnvState
    """State of the wrapped environment."""
    memory: Array
    """`[H]`, or `[I, H]` for a team."""


def remembering(environment: Environment, memory_size: int) -> Environment:
    """Wrap an environment so that its actions are `ActionWithCarry` and its observations `[O + H]` end with the memory.

    The memory is 0 in the first step of an episode.

    Args:
      environment: without skills and without memory; in a team each agent has a separate memory.
      memory_size: H; with 0 the environment is returned unchanged.

    Raises:
      ValueError: the environment has a memory already, or has skills, or `memory_size` is negative.
    """
    spec = environment.spec
    if memory_size < 0:
        raise ValueError(f"memory_size must not be negative, got {memory_size}.")
    if spec.memory_size or environment.assignment is not None:
        present = "a memory" if spec.memory_size else "skills"
        raise ValueError(f"{spec.name} has {present} already; pass an environment without {present}.")
    if not memory_size:
        return environment
    return environment._replace(
        reset=partial(_reset, environment, memory_size),
        step=partial(_step, environment),
        spec=spec._replace(observation_size=spec.observation_size + memory_size, memory_size=memory_size),
        picture=scene.inside(environment.picture, "inner"),
    )


def _reset(environment: Environment, memory_size: int, key: Key) -> tuple[MemoryState, Step]:
    state, step = environment.reset(key)
    memory = jnp.zeros((*step.reward.shape, memory_size))
    return MemoryState(state, memory), _append_memory(step, memory)


def _step(environment: Environment, state: MemoryState, action: ActionWithCarry, key: Key) -> tuple[MemoryState, Step]:
    inner, step = environment.step(state.inner, action.action, key)
    return MemoryState(inner, action.memory), _append_memory(step, action.memory)


def _append_memory(step: Step, memory: Array) -> Step:
    return step._replace(
        observation=jnp.concatenate([step.observation, memory], axis=-1),
        final_observation=jnp.concatenate([step.final_observation, memory], axis=-1),
    )
