"""Predators and prey in a square: `pursuit_discrete`, with four directions to go, and `pursuit_continuous`, with all.

Geometry: points in the unit square [0, 1]^2, x to the right, y upwards. In a step, which lasts 0.01 s, everybody goes
its own speed straight on along the heading that it chose; the border stops the motion across it, not the motion along
it. A prey is caught when a step ends with a predator at most the capture radius away. Episodes begin with everybody at
a random place and heading, prey at least the capture radius and 0.1 away from predators (where the predators leave
no such place, as far as 64 draws came).

Rewards: a prey gets 1 for each step that it survives and -100 for the one in which it is caught. Each predator gets 100
for every prey that anybody caught in this step, and -1 for a step without a catch; so one against one is a zero-sum
game. A prey that was caught is terminated and gone: it moves no more, gets nothing and hides from the others. Predators
are terminated with the last prey. Who is left when the time is over is truncated.

There are two regimes. With prey three times as fast as predators, as by default, one prey can survive: it slips past
the predator while there is room, and the best return of an episode is its length. Running straight away ends in a
corner, from where it is too late. With predators faster than prey it is caught however it runs, and what it can learn
is to be caught late.

An agent observes the share of the time that is over, then 4 numbers of each agent: first itself, then those of its own
kind, then the others. Of itself they are x and y, scaled to [-1, 1], and the cosine and sine of its heading; of others
how far away along x and y, in [-1, 1], and the same of their heading. All four are 0 for a prey that was caught.
"""

import math
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, Step, Team
from rookery.envs.rendering.scene import Picture, Scene, Scenery
from rookery.envs.wrappers import time_limit
from rookery.types import Array, Key

EPISODE_LENGTH = 200
STEP_SECONDS = 0.01
PREDATOR_SPEED, PREY_SPEED = 1.0, 3.0  # per second
CAPTURE_RADIUS = 0.2
START_MARGIN = 0.1  # beyond the capture radius
CAPTURE_REWARD, STEP_REWARD = 100.0, 1.0
DIRECTIONS = 4
BODY_RADIUS = 0.025  # of what is drawn; all of them are points
_DRAWS = 64  # places of which the first that is far enough from the predators becomes a prey's


class Chase(NamedTuple):
    """Where everybody is; predators first."""

    position: Array  # [I, 2] in [0, 1]
    heading: Array  # [I] rad, counter-clockwise from the x axis, in [-pi, pi]
    caught: Array  # [prey] int32, the step in which it was caught, counted from 1; 0 as long as it is free
    time: Array  # [] int32, steps since the reset


class HeadingFn(Protocol):
    """Where agents turn: headings and actions of all, `[I]` and `[I, ...]` -> headings `[I]` in rad."""

    def __call__(self, heading: Array, action: Array) -> Array: ...


class _Rules(NamedTuple):
    """What does not change in a world."""

    predators: int
    prey: int
    strides: tuple[float, ...]  # [I] way of a step
    capture_radius: float
    episode_length: int
    turn: HeadingFn


def pursuit_discrete(
    episode_length: int = EPISODE_LENGTH,
    predators: int = 1,
    prey: int = 1,
    predator_speed: float = PREDATOR_SPEED,
    prey_speed: float = PREY_SPEED,
    capture_radius: float = CAPTURE_RADIUS,
) -> Environment:
    """Everybody goes right, up, left or down: actions `[I]` int32 in 0..3.

    Observations `[I, 1 + 4 I]` in [-1, 1]; rewards `[I]` of 1, -1, 100 times the prey caught, or -100 per step. Agents
    are called `predator` and `prey`, numbered from 0 where there are several of a kind.

    Args:
      episode_length: steps until truncation, at least 1; a hundred are a second.
      predators: how many, at least 1.
      prey: how many, at least 1.
      predator_speed: sides of the square per second, at least 0.
      prey_speed: likewise.
      capture_radius: in sides of the square, in (0, 1).

    Raises:
      ValueError: an argument lies outside of its range.
    """
    rules = _rules(episode_length, predators, prey, (predator_speed, prey_speed), capture_radius, _one_of_four)
    return _environment("pursuit_discrete", rules, DIRECTIONS)


def pursuit_continuous(
    episode_length: int = EPISODE_LENGTH,
    predators: int = 1,
    prey: int = 1,
    predator_speed: float = PREDATOR_SPEED,
    prey_speed: float = PREY_SPEED,
    capture_radius: float = CAPTURE_RADIUS,
) -> Environment:
    """Everybody turns before it goes: actions `[I, 1]`, clipped to [-1, 1], times pi, counter-clockwise.

    So any heading is one step away, and 0 goes straight on. An action that were the heading itself would jump from -1
    to 1 where an agent goes left. The rest, with arguments and errors, is that of `pursuit_discrete`.
    """
    rules = _rules(episode_length, predators, prey, (predator_speed, prey_speed), capture_radius, _turned)
    return _environment("pursuit_continuous", rules, 1)


def _rules(
    episode_length: int,
    predators: int,
    prey: int,
    speeds: tuple[float, float],
    capture_radius: float,
    turn: HeadingFn,
) -> _Rules:
    for what, count in (("predators", predators), ("prey", prey)):
        if count < 1:
            raise ValueError(f"{what} must be at least 1, got {count}.")
    for what, speed in zip(("predator_speed", "prey_speed"), speeds, strict=True):
        if not (math.isfinite(speed) and speed >= 0.0):
            raise ValueError(f"{what} must be finite and at least 0 (0 stands still), got {speed}.")
    if not 0.0 < capture_radius < 1.0:
        raise ValueError(f"capture_radius must lie between 0 and 1, the side of the square, got {capture_radius}.")
    strides = (speeds[0] * STEP_SECONDS,) * predators + (speeds[1] * STEP_SECONDS,) * prey
    return _Rules(predators, prey, strides, capture_radius, episode_length, turn)


def _environment(name: str, rules: _Rules, action_size: int) -> Environment:
    names = (*_names("predator", rules.predators), *_names("prey", rules.prey))
    size = 1 + 4 * len(names)
    spec = EnvSpec(
        name,
        observation_size=size,
        action_size=action_size,
        episode_length=rules.episode_length,
        discrete=action_size > 1,
        team=Team(names, (size,) * len(names), (action_size,) * len(names), rivals=True),
    )
    picture = Picture(partial(_scene, rules), _scenery(rules))
    environment = Environment(partial(_reset, rules), partial(_step, rules), spec, picture=picture)
    return time_limit.limit_episode(time_limit.guard_physics(environment), rules.episode_length)


def _names(kind: str, count: int) -> tuple[str, ...]:
    return (kind,) if count == 1 else tuple(f"{kind}_{index}" for index in range(count))


def _one_of_four(heading: Array, action: Array) -> Array:
    del heading
    return _wrapped(action.astype(jnp.float32) * (math.pi / 2))


def _turned(heading: Array, action: Array) -> Array:
    return _wrapped(heading + math.pi * jnp.clip(action[:, 0], -1.0, 1.0))


def _wrapped(angle: Array) -> Array:
    return jnp.mod(angle + math.pi, 2 * math.pi) - math.pi


def _reset(rules: _Rules, key: Key) -> tuple[Chase, Step]:
    predator_key, prey_key, heading_key = jax.random.split(key, 3)
    predators = jax.random.uniform(predator_key, (rules.predators, 2))
    places = jax.random.uniform(prey_key, (_DRAWS, rules.prey, 2))
    nearest = jnp.min(_distances(predators, places), axis=-1)
    enough = jnp.minimum(nearest, rules.capture_radius + START_MARGIN)
    first = jnp.argmax(enough, axis=0)
    heading = jax.random.uniform(heading_key, (rules.predators + rules.prey,), minval=-math.pi, maxval=math.pi)
    chase = Chase(
        position=jnp.concatenate([predators, places[first, jnp.arange(rules.prey)]]),
        heading=heading,
        caught=jnp.zeros((rules.prey,), jnp.int32),
        time=jnp.zeros((), jnp.int32),
    )
    return chase, base.first_step(_observe(rules, chase), jnp.zeros((0,)))


def _distances(predators: Array, prey: Array) -> Array:
    """Of prey `[..., 2]` to each of the predators `[P, 2]`, `[..., P]`."""
    apart = prey[..., None, :] - predators.reshape((1,) * (prey.ndim - 1) + predators.shape)
    return jnp.linalg.norm(apart, axis=-1)


def _step(rules: _Rules, state: Chase, action: Array, key: Key) -> tuple[Chase, Step]:
    del key  # what happens is decided by the agents alone
    was_free = state.caught == 0
    acts = _everybody(rules, was_free.any(), was_free)
    heading = jnp.where(acts, rules.turn(state.heading, action), state.heading)
    stride = jnp.where(acts, jnp.asarray(rules.strides, jnp.float32), 0.0)
    position = jnp.clip(state.position + stride[:, None] * _direction(heading), 0.0, 1.0)
    nearest = jnp.min(_distances(position[: rules.predators], position[rules.predators :]), axis=-1)
    caught_now = was_free & (nearest <= rules.capture_radius)
    time = state.time + 1
    chase = Chase(position, heading, jnp.where(caught_now, time, state.caught), time)
    free = chase.caught == 0
    catches = jnp.sum(caught_now).astype(jnp.float32)
    predator_reward = jnp.where(catches > 0, CAPTURE_REWARD * catches, -STEP_REWARD)
    prey_reward = jnp.where(caught_now, -CAPTURE_REWARD, STEP_REWARD)
    reward = jnp.where(acts, _everybody(rules, predator_reward, prey_reward), 0.0)
    terminated = ~_everybody(rules, free.any(), free)
    return chase, base.next_step(_observe(rules, chase), reward, terminated, jnp.zeros((0,)))


def _everybody(rules: _Rules, predator: Array, prey: Array) -> Array:
    """`[I]` from what holds for every predator, `[]`, and for each prey, `[prey]`."""
    return jnp.concatenate([jnp.broadcast_to(predator, (rules.predators,)), prey])


def _direction(heading: Array) -> Array:
    return jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)


def _observe(rules: _Rules, chase: Chase) -> Array:
    """What everybody sees, `[I, 1 + 4 I]`."""
    count = rules.predators + rules.prey
    away = chase.position[None] - chase.position[:, None]  # [who sees, who is seen, 2]
    itself = jnp.eye(count, dtype=bool)[..., None]
    place = jnp.where(itself, 2.0 * chase.position[None] - 1.0, away)
    facing = jnp.broadcast_to(_direction(chase.heading)[None], place.shape)
    seen = _everybody(rules, jnp.asarray(True), chase.caught == 0).astype(jnp.float32)
    told = jnp.concatenate([place, facing], axis=-1) * seen[None, :, None]
    told = jnp.take_along_axis(told, jnp.asarray(_order(rules))[..., None], axis=1)
    elapsed = chase.time.astype(jnp.float32) / rules.episode_length
    return jnp.concatenate([jnp.broadcast_to(elapsed, (count, 1)), told.reshape(count, 4 * count)], axis=-1)


def _order(rules: _Rules) -> np.ndarray:
    """In which order everybody sees everybody, `[I, I]`: itself, the others of its kind in turn, the other kind."""
    predators, prey = np.arange(rules.predators), rules.predators + np.arange(rules.prey)
    rows = [np.concatenate([np.roll(predators, -index), prey]) for index in range(rules.predators)]
    rows += [np.concatenate([np.roll(prey, -index), predators]) for index in range(rules.prey)]
    return np.stack(rows)


def _scene(rules: _Rules, state: Chase) -> Scene:
    return Scene(state.position, state.heading, _everybody(rules, jnp.asarray(True), state.caught == 0))


def _scenery(rules: _Rules) -> Scenery:
    """A predator's reach is the capture radius: prey whose middle it covers is caught."""
    return Scenery(
        lower=(0.0, 0.0),
        upper=(1.0, 1.0),
        bodies=("predator",) * rules.predators + ("prey",) * rules.prey,
        radii=(BODY_RADIUS,) * (rules.predators + rules.prey),
        reaches=(rules.capture_radius,) * rules.predators + (0.0,) * rules.prey,
    )
