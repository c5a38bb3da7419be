"""A task with known parameters and measures, of a single agent or of a team of two."""

from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams
from rookery.envs import base
from rookery.envs.base import Assignment, Environment, EnvSpec, Step, Team
from rookery.envs.wrappers.time_limit import guard_physics, limit_episode
from rookery.hyperparams import Field, LogUniform, Uniform
from rookery.types import Array, Key, Scalar

LENGTH = 4


class Prices(NamedTuple):
    """The reward is `bonus + pace * time`, where time counts the steps from 1."""

    bonus: Annotated[Scalar, Field("reward of each step", Uniform(0.0, 4.0))] = 0.0
    pace: Annotated[Scalar, Field("growth of the reward", LogUniform, low=0.0, zero=True)] = 1.0


MEASURES = {"steps": "number of steps", "each": "3 for the first agent in each step, 5 for the second"}
TEAM = Team(("left", "right"), (2, 2), (1, 1), competitive=True)


def priced(team: bool = False, prices: Prices = Prices()) -> Environment:  # noqa: B008
    """With the time limit."""
    return limit_episode(guard_physics(unlimited(team, prices)), LENGTH)


def unlimited(team: bool = False, prices: Prices = Prices()) -> Environment:  # noqa: B008
    """Without a time limit."""
    measures = MEASURES if team else {"steps": MEASURES["steps"]}
    declared = hyperparams.declared(Prices)
    spec = EnvSpec("priced", 2, 1, LENGTH, team=TEAM if team else None, parameters=declared, measures=measures)
    reset, step = (partial(function, spec.agents) for function in (_reset, _step))
    return Environment(reset, partial(step, prices), spec, parameterize=partial(unlimited, team))


def _measures(agents: tuple[int, ...], step: float) -> dict[str, Array]:
    each = {"each": step * jnp.asarray([3.0, 5.0])} if agents else {}
    return {"steps": jnp.float32(step), **each}


def _reset(agents: tuple[int, ...], key: Key) -> tuple[Array, Step]:
    state = jnp.stack([jax.random.uniform(key), jnp.zeros(())])
    features = jnp.broadcast_to(state, (*agents, 2))
    return state, base.first_step(features, jnp.zeros((0,)), measures=_measures(agents, 0.0))


def _step(agents: tuple[int, ...], prices: Prices, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    del action, key
    state = state + jnp.asarray([0.0, 1.0])
    features = jnp.broadcast_to(state, (*agents, 2))
    reward = jnp.broadcast_to(prices.bonus + prices.pace * state[1], agents)
    ended, measures = jnp.zeros(agents, bool), _measures(agents, 1.0)
    return state, base.next_step(features, reward, ended, jnp.zeros((0,)), measures=measures)


def levelled(level: Scalar = 7.0) -> Environment:
    """A curriculum: in training an episode begins at the time `level`, counted on with the episodes of its slot."""
    return priced()._replace(
        assignment=Assignment(partial(_first, level), partial(_next, level)),
        parameterize=lambda prices: levelled(prices.bonus),
    )


def _first(level: Scalar, start: tuple, slot: Array, key: Key | None) -> tuple:
    del slot, key
    state, step = start
    features = jnp.stack([state.inner[0], jnp.asarray(level, jnp.float32)])
    observation = step.observation._replace(features=features)
    return state._replace(inner=features), step._replace(observation=observation, final_observation=observation)


def _next(level: Scalar, start: tuple, last: tuple, key: Key) -> tuple:
    return _first(level + last[0][1], start, jnp.zeros((), jnp.int32), key)
