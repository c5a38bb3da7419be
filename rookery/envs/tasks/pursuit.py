"""Predator-prey pursuit in a square: `pursuit_discrete` with four headings, `pursuit_continuous` with arbitrary ones.

Geometry: agents are points in the unit square [0, 1]^2, x to the right, y upwards. A step lasts 0.01 s; in it each
agent moves straight along its chosen heading at its constant speed. The border blocks the motion across it, not the
motion along it. A prey is caught if a predator is within the capture radius at the end of a step. Episodes begin with
random positions and headings; each prey starts at least the capture radius + 0.1 away from all predators, or, if none
of 64 draws satisfies this, at the farthest of the drawn positions.

Rewards: a prey gets 1 for each step that it survives and -100 for the step in which it is caught. Each predator gets
100 for every prey that any predator catches in a step, and -1 for a step without a catch, so that one against one is a
zero-sum game. A caught prey is terminated: it stops moving, gets reward 0 and is hidden from the other agents.
Predators are terminated together with the last prey. The remaining agents are truncated at the time limit.

There are two regimes. With prey three times as fast as predators, the default, a single prey can survive: it passes the
predator while there is space, and the best return of an episode is its length. Fleeing straight away from the predator
ends in a corner from which it cannot escape. If predators are faster than prey, every prey is caught, and it can only
learn to delay the capture.

An agent observes the elapsed fraction of the episode, then 4 numbers for each agent: first itself, then the other
agents of its kind, then the agents of the other kind. For itself they are x and y, scaled to [-1, 1], and the cosine
and sine of its heading. For another agent they are its relative position along x and y, in [-1, 1], and the cosine and
sine of its heading. All four are 0 for a caught prey.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams
from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, Step, Team
from rookery.envs.rendering.scene import Picture, Scene, Scenery
from rookery.envs.wrappers import time_limit
from rookery.hyperparams import Field, Uniform
from rookery.settings import Within, check_counts, check_numbers
from rookery.types import Array, Key, Scalar

EPISODE_LENGTH = 200
STEP_SECONDS = 0.01
PREDATOR_SPEED, PREY_SPEED = 1.0, 3.0  # per second
CAPTURE_RADIUS = 0.2
START_MARGIN = 0.1  # added to the capture radius for the initial distance
CAPTURE_REWARD, STEP_REWARD = 100.0, 1.0
DIRECTIONS = 4
BODY_RADIUS = 0.025  # of the discs in pictures; agents are points
_MOST = 1_000  # agents of a kind; two thousand observe 16 million numbers
_DRAWS = 64  # candidate positions per prey; the first that is far enough from the predators is used


class PursuitState(NamedTuple):
    """State of all agents, predators first."""

    position: Array  # `[I, 2]` in [0, 1]
    heading: Array  # angles in rad, counter-clockwise from the x axis, in [-pi, pi], `[I]`
    caught: Array  # step in which each prey was caught, counted from 1; 0 while it is free; `[prey]` int32
    time: Array  # steps since the reset, `[]` int32


class PursuitParameters(NamedTuple):
    """What a population can evolve; neither observations nor start states depend on these values."""

    predator_speed: Annotated[Scalar, Field("sides of the square per second", Uniform(0.5, 4.0))] = PREDATOR_SPEED
    prey_speed: Annotated[Scalar, Field("sides of the square per second", Uniform(0.5, 4.0))] = PREY_SPEED
    capture_radius: Annotated[Scalar, Field("in sides of the square", Uniform(0.05, 0.4), high=1.0)] = CAPTURE_RADIUS


PARAMETERS = hyperparams.declared(PursuitParameters)
MEASURES = {
    "survival": "steps that a prey survives, of all prey",
    "captures": "number of prey that are caught",
}


class _Rules(NamedTuple):
    """Constants of an environment."""

    predators: int
    prey: int
    strides: tuple[Scalar, ...]  # [I] distance per step
    capture_radius: Scalar
    episode_length: int
    turn: Callable[[Array, Array], Array]
    """Headings `[I]` in rad and actions `[I, ...]` of all agents -> new headings `[I]` in rad."""


def pursuit_discrete(
    episode_length: int = EPISODE_LENGTH,
    predators: int = 1,
    prey: int = 1,
    predator_speed: float = PREDATOR_SPEED,
    prey_speed: float = PREY_SPEED,
    capture_radius: float = CAPTURE_RADIUS,
) -> Environment:
    """Pursuit with actions `[I]` int32 in 0..3, which set the heading to right, up, left or down.

    Observations are `[I, 1 + 4 I]` in [-1, 1]. Rewards per step, `[I]`: 1 or -100 for prey, -1 or 100 times the number
    of caught prey for predators, 0 for a terminated agent. Agents are named `predator` and `prey`, with an index
    counted from 0 (`prey_0`) if there are several of a kind.

    Args:
      episode_length: steps until truncation, at least 1; 100 steps are 1 s.
      predators: number of predators, 1 to 1,000.
      prey: number of prey, 1 to 1,000.
      predator_speed: sides of the square per second, at least 0.
      prey_speed: sides of the square per second, at least 0.
      capture_radius: in sides of the square, in (0, 1).

    Raises:
      ValueError: an argument is outside of its range.
    """
    rules = _Rules(predators, prey, (), 0.0, episode_length, _absolute_heading)
    parameters = PursuitParameters(predator_speed, prey_speed, capture_radius)
    return _environment("pursuit_discrete", rules, parameters, DIRECTIONS)


def pursuit_continuous(
    episode_length: int = EPISODE_LENGTH,
    predators: int = 1,
    prey: int = 1,
    predator_speed: float = PREDATOR_SPEED,
    prey_speed: float = PREY_SPEED,
    capture_radius: float = CAPTURE_RADIUS,
) -> Environment:
    """Pursuit with actions `[I, 1]`, clipped to [-1, 1], which turn the heading counter-clockwise by action * pi.

    An agent can reach any heading in one step, and action 0 keeps the heading. Actions are relative because an action
    that sets the absolute heading would be discontinuous, between -1 and 1, for an agent that moves left. Observations,
    rewards, arguments and errors are those of `pursuit_discrete`.
    """
    rules = _Rules(predators, prey, (), 0.0, episode_length, _relative_heading)
    parameters = PursuitParameters(predator_speed, prey_speed, capture_radius)
    return _environment("pursuit_continuous", rules, parameters, 1)


def _check(rules: _Rules, parameters: PursuitParameters) -> None:
    check_counts(most=_MOST, predators=rules.predators, prey=rules.prey)
    check_numbers(Within(0), predator_speed=parameters.predator_speed, prey_speed=parameters.prey_speed)
    check_numbers(Within(0, 1, excluded=(0, 1)), capture_radius=parameters.capture_radius)


def _with_parameters(rules: _Rules, parameters: PursuitParameters) -> _Rules:
    """The constants with the values of the parameters."""
    predator_stride = parameters.predator_speed * STEP_SECONDS
    prey_stride = parameters.prey_speed * STEP_SECONDS
    strides = (predator_stride,) * rules.predators + (prey_stride,) * rules.prey
    return rules._replace(strides=strides, capture_radius=parameters.capture_radius)


def _environment(name: str, rules: _Rules, parameters: PursuitParameters, action_size: int) -> Environment:
    _check(rules, parameters)
    rules = _with_parameters(rules, parameters)
    names = (*_names("predator", rules.predators), *_names("prey", rules.prey))
    size = 1 + 4 * len(names)
    spec = EnvSpec(
        name,
        observation_size=size,
        action_size=action_size,
        episode_length=rules.episode_length,
        discrete=action_size > 1,
        team=Team(names, (size,) * len(names), (action_size,) * len(names), competitive=True),
        parameters=PARAMETERS._replace(defaults=parameters),
        measures=MEASURES,
    )
    picture = Picture(partial(_scene, rules), _scenery(rules))
    environment = Environment(partial(_reset, rules), partial(_step, rules), spec, picture=picture)
    environment = environment._replace(
        parameterize=lambda values: environment._replace(step=partial(_step, _with_parameters(rules, values)))
    )
    return time_limit.limit_episode(time_limit.guard_physics(environment), rules.episode_length)


def _names(kind: str, count: int) -> tuple[str, ...]:
    return (kind,) if count == 1 else tuple(f"{kind}_{index}" for index in range(count))


def _absolute_heading(heading: Array, action: Array) -> Array:
    del heading
    return _wrap_angle(action.astype(jnp.float32) * (math.pi / 2))


def _relative_heading(heading: Array, action: Array) -> Array:
    return _wrap_angle(heading + math.pi * jnp.clip(action[:, 0], -1.0, 1.0))


def _wrap_angle(angle: Array) -> Array:
    return jnp.mod(angle + math.pi, 2 * math.pi) - math.pi


def _reset(rules: _Rules, key: Key) -> tuple[PursuitState, Step]:
    predator_key, prey_key, heading_key = jax.random.split(key, 3)
    predators = jax.random.uniform(predator_key, (rules.predators, 2))
    candidates = jax.random.uniform(prey_key, (_DRAWS, rules.prey, 2))
    nearest = jnp.min(_distances(predators, candidates), axis=-1)
    capped = jnp.minimum(nearest, rules.capture_radius + START_MARGIN)
    first = jnp.argmax(capped, axis=0)  # the first candidate with the largest capped distance
    heading = jax.random.uniform(heading_key, (rules.predators + rules.prey,), minval=-math.pi, maxval=math.pi)
    state = PursuitState(
        position=jnp.concatenate([predators, candidates[first, jnp.arange(rules.prey)]]),
        heading=heading,
        caught=jnp.zeros((rules.prey,), jnp.int32),
        time=jnp.zeros((), jnp.int32),
    )
    measures = dict.fromkeys(MEASURES, jnp.zeros(()))
    return state, base.first_step(_observe(rules, state), jnp.zeros((0,)), measures=measures)


def _distances(predators: Array, prey: Array) -> Array:
    """Distances `[..., P]` from prey `[..., 2]` to predators `[P, 2]`."""
    offset = prey[..., None, :] - predators.reshape((1,) * (prey.ndim - 1) + predators.shape)
    return jnp.linalg.norm(offset, axis=-1)


def _step(rules: _Rules, state: PursuitState, action: Array, key: Key) -> tuple[PursuitState, Step]:
    del key  # the dynamics are deterministic
    was_free = state.caught == 0
    active = _per_agent(rules, was_free.any(), was_free)
    heading = jnp.where(active, rules.turn(state.heading, action), state.heading)
    stride = jnp.where(active, jnp.asarray(rules.strides, jnp.float32), 0.0)
    position = jnp.clip(state.position + stride[:, None] * _direction(heading), 0.0, 1.0)
    nearest = jnp.min(_distances(position[: rules.predators], position[rules.predators :]), axis=-1)
    caught_now = was_free & (nearest <= rules.capture_radius)
    time = state.time + 1
    new_state = PursuitState(position, heading, jnp.where(caught_now, time, state.caught), time)
    free = new_state.caught == 0
    catches = jnp.sum(caught_now).astype(jnp.float32)
    predator_reward = jnp.where(catches > 0, CAPTURE_REWARD * catches, -STEP_REWARD)
    prey_reward = jnp.where(caught_now, -CAPTURE_REWARD, STEP_REWARD)
    reward = jnp.where(active, _per_agent(rules, predator_reward, prey_reward), 0.0)
    terminated = ~_per_agent(rules, free.any(), free)
    features, none = _observe(rules, new_state), jnp.zeros((0,))
    measures = {"survival": jnp.sum(free).astype(jnp.float32), "captures": catches}
    return new_state, base.next_step(features, reward, terminated, none, measures=measures)


def _per_agent(rules: _Rules, predator: Array, prey: Array) -> Array:
    """Join a value `[]` shared by all predators and values `[prey]` of each prey to `[I]`."""
    return jnp.concatenate([jnp.broadcast_to(predator, (rules.predators,)), prey])


def _direction(heading: Array) -> Array:
    return jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)


def _observe(rules: _Rules, state: PursuitState) -> Array:
    """Observations of all agents, `[I, 1 + 4 I]`."""
    count = rules.predators + rules.prey
    relative = state.position[None] - state.position[:, None]  # [observing agent, observed agent, 2]
    is_self = jnp.eye(count, dtype=bool)[..., None]
    position = jnp.where(is_self, 2.0 * state.position[None] - 1.0, relative)
    direction = jnp.broadcast_to(_direction(state.heading)[None], position.shape)
    visible = _per_agent(rules, jnp.asarray(True), state.caught == 0).astype(jnp.float32)
    features = jnp.concatenate([position, direction], axis=-1) * visible[None, :, None]
    features = jnp.take_along_axis(features, jnp.asarray(_observed_order(rules))[..., None], axis=1)
    elapsed = state.time.astype(jnp.float32) / rules.episode_length
    return jnp.concatenate([jnp.broadcast_to(elapsed, (count, 1)), features.reshape(count, 4 * count)], axis=-1)


def _observed_order(rules: _Rules) -> np.ndarray:
    """Order in which each agent observes all agents, `[I, I]` indices: itself, its kind cyclically, the other kind."""
    predators, prey = np.arange(rules.predators), rules.predators + np.arange(rules.prey)
    rows = [np.concatenate([np.roll(predators, -index), prey]) for index in range(rules.predators)]
    rows += [np.concatenate([np.roll(prey, -index), predators]) for index in range(rules.prey)]
    return np.stack(rows)


def _scene(rules: _Rules, state: PursuitState) -> Scene:
    return Scene(state.position, state.heading, _per_agent(rules, jnp.asarray(True), state.caught == 0))


def _scenery(rules: _Rules) -> Scenery:
    """Scenery of the square; a predator's reach is the capture radius, within which prey is caught."""
    return Scenery(
        lower=(0.0, 0.0),
        upper=(1.0, 1.0),
        bodies=("predator",) * rules.predators + ("prey",) * rules.prey,
        radii=(BODY_RADIUS,) * (rules.predators + rules.prey),
        reaches=(float(rules.capture_radius),) * rules.predators + (0.0,) * rules.prey,
    )
