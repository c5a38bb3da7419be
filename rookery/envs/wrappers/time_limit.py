"""The time limit of an episode, and the end of an episode in which the physics broke."""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp

from rookery import trees
from rookery.envs.base import Environment, EnvState, Step
from rookery.envs.rendering import scene
from rookery.types import Array, Key


class Timed(NamedTuple):
    """An environment's state beside its clock."""

    inner: EnvState
    time: Array  # [] int32, steps since the reset


def limit_episode(environment: Environment, length: int) -> Environment:
    """Truncate episodes after `length` steps; a step that also terminates is terminated, not truncated.

    Raises:
      ValueError: `length` is below 1, or the environment has skills, which look for their state outside of a clock.
    """
    if length < 1:
        raise ValueError(f"episode_length must be at least 1 step, got {length}.")
    if environment.assignment is not None:
        raise ValueError(f"limit the episodes of {environment.spec.name} first, then give it skills.")
    return environment._replace(
        reset=partial(_timed_reset, environment),
        step=partial(_timed_step, environment, length),
        spec=environment.spec._replace(episode_length=length),
        picture=scene.inside(environment.picture, "inner"),
    )


def _timed_reset(environment: Environment, key: Key) -> tuple[Timed, Step]:
    state, step = environment.reset(key)
    return Timed(state, jnp.zeros((), jnp.int32)), step


def _timed_step(environment: Environment, length: int, state: Timed, action: Array, key: Key) -> tuple[Timed, Step]:
    inner, step = environment.step(state.inner, action, key)
    time = state.time + 1
    return Timed(inner, time), step._replace(truncated=(time >= length) & ~step.terminated)


def guard_physics(environment: Environment) -> Environment:
    """End an episode whose physics broke: terminated with reward 0, numbers that are not finite set to 0, and told.

    The broken state itself stays in the environment's state until the reset that must follow.
    """
    return environment._replace(step=partial(_guarded_step, environment))


def _guarded_step(environment: Environment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    state, step = environment.step(state, action, key)
    broken = ~trees.all_finite((step.reward, step.final_observation, step.descriptor))
    clean = partial(jnp.nan_to_num, nan=0.0, posinf=0.0, neginf=0.0)
    return state, step._replace(
        observation=clean(step.observation),
        reward=jnp.where(broken, 0.0, step.reward),
        terminated=step.terminated | broken,
        final_observation=clean(step.final_observation),
        descriptor=clean(step.descriptor),
        broken=broken,
    )
