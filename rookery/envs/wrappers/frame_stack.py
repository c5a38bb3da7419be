"""Frame stacking: a wrapper that shows an agent the features of the latest steps at once (Mnih 2015)."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.envs.base import Environment, EnvSpec, EnvState, Step, announce_inside, parameterize_inside
from rookery.envs.check import LARGEST
from rookery.envs.rendering import scene
from rookery.features import Shape, flatten_features, is_shape, unflatten_features
from rookery.settings import check_counts
from rookery.types import Array, Key


class FrameStackState(NamedTuple):
    """State of the wrapped environment, and the features of the latest steps."""

    inner: EnvState  # state of the wrapped environment
    frames: Array  # `[F, O]`, or `[F, I, O]` for a team; the latest one is last


def stack_frames(environment: Environment, count: int) -> Environment:
    """Wrap an environment so that its features are those of the latest `count` steps, the latest one last.

    Features are joined along their last axis: images of (10, 10, 4) become (10, 10, 4 count), vectors `[O]` become
    `[count O]`. In the first step of an episode all are those of the reset.

    Args:
      environment: without skills and without a carry, which are added after this wrapper.
      count: number of steps (at least 1); 1 returns the environment unchanged.

    Raises:
      ValueError: `count` is below 1, or the environment has skills, a carry or the agents' indices already.

    Example:
      >>> rookery.envs.stack_frames(rookery.make("point_room"), 4).spec.observation_size
      8
    """
    spec = environment.spec
    check_counts(1, max(1, LARGEST // spec.observation_size), frame_stack=count)
    if count == 1:
        return environment
    if environment.assignment is not None or spec.recurrent or spec.identified:
        raise ValueError(f"{spec.name} has skills, a carry or an agent index; apply stack_frames before adding them.")
    return environment._replace(
        reset=partial(_reset, environment, count),
        step=partial(_step, environment),
        spec=_stacked_spec(spec, count),
        picture=scene.inside(environment.picture, "inner"),
        announce=announce_inside(environment, "inner"),
        parameterize=parameterize_inside(environment, partial(stack_frames, count=count)),
        settings=environment.recorded(frame_stack=count),
    )


def _stacked_spec(spec: EnvSpec, count: int) -> EnvSpec:
    shape = spec.observation_shape
    if shape is not None:
        shape = jax.tree.map(lambda leaf: (*leaf[:-1], count * leaf[-1]) if leaf else (count,), shape, is_leaf=is_shape)
    padded = (count - 1) * spec.observation_size  # only the last step's padding is at the end
    team = spec.team and spec.team._replace(
        observation_sizes=tuple(padded + size for size in spec.team.observation_sizes)
    )
    descriptor = spec.descriptor and spec.descriptor._replace(observed=False)  # the first features are of older frames
    size = count * spec.observation_size
    return spec._replace(given=None, observation_size=size, observation_shape=shape, team=team, descriptor=descriptor)


def _reset(environment: Environment, count: int, key: Key) -> tuple[FrameStackState, Step]:
    state, step = environment.reset(key)
    features = step.observation.features
    frames = jnp.broadcast_to(features, (count, *features.shape))
    return FrameStackState(state, frames), step.observing(features=_join(environment.spec.observation_shape, frames))


def _step(environment: Environment, state: FrameStackState, action: Array, key: Key) -> tuple[FrameStackState, Step]:
    inner, step = environment.step(state.inner, action, key)
    frames = jnp.concatenate([state.frames[1:], step.observation.features[None]])
    return FrameStackState(inner, frames), step.observing(features=_join(environment.spec.observation_shape, frames))


def _join(shape: Shape | None, frames: Array) -> Array:
    """Join frames `[F, ..., O]` along the last axis of each array of their shape, `[..., F O]`."""
    if shape is None:
        return _join_leaf(frames, scalar=False)
    arrays = unflatten_features(shape, frames)
    leading = frames.ndim - 2
    joined = [_join_leaf(leaf, scalar=leaf.ndim == frames.ndim - 1) for leaf in jax.tree.leaves(arrays)]
    return flatten_features(joined, leading)


def _join_leaf(leaf: Array, scalar: bool) -> Array:
    last = jnp.moveaxis(leaf, 0, -1 if scalar else -2)
    return last if scalar else last.reshape(*last.shape[:-2], -1)
