"""Weights of the parts of Brax's rewards, which a population can evolve, and the distance that a robot travels.

Brax's walking robots report the parts of their reward in `State.metrics`. A weight w adds (w - 1) times its part to the
reward, so that 1 leaves it unchanged.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, NamedTuple

import jax.numpy as jnp

from rookery import hyperparams
from rookery.envs.base import Environment, EnvState, Step
from rookery.hyperparams import Field, LogUniform, Space
from rookery.types import Array, Key, Scalar

MEASURES = {"distance": "metres travelled along x"}
_DOMAIN = LogUniform(0.1, 10.0)


class RewardWeights(NamedTuple):
    """Factors of the parts of the reward; with the defaults it is Brax's."""

    forward_weight: Annotated[Scalar, Field("factor of the reward for velocity along x", _DOMAIN, zero=True)] = 1.0
    control_weight: Annotated[Scalar, Field("factor of the cost of actions", _DOMAIN, zero=True)] = 1.0
    healthy_weight: Annotated[Scalar, Field("factor of the reward for not having fallen", _DOMAIN, zero=True)] = 1.0


_PARTS = {
    "hopper": {"forward": "reward_forward", "control": "reward_ctrl", "healthy": "reward_healthy"},
    "walker2d": {"forward": "reward_forward", "control": "reward_ctrl", "healthy": "reward_healthy"},
    "halfcheetah": {"forward": "reward_run", "control": "reward_ctrl"},
    "ant": {"forward": "reward_forward", "control": "reward_ctrl", "healthy": "reward_survive"},
    "humanoid": {"forward": "reward_linvel", "control": "reward_quadctrl", "healthy": "reward_alive"},
}
"""Robot -> part of the reward -> its name in Brax's metrics."""

ALL = ("forward", "control", "healthy")  # the parts of the reward of an unmodified environment


def parts_of(robot: str, included: tuple[str, ...] = ALL) -> Mapping[str, str]:
    """Weight -> name in Brax's metrics of each `included` part of a robot's reward; {} for a robot without parts."""
    parts = _PARTS.get(robot, {})
    return {f"{part}_weight": metric for part, metric in parts.items() if part in included}


def parameters_of(robot: str, included: tuple[str, ...] = ALL) -> Space | None:
    """The weights of the parts of a robot's reward; None if there are none."""
    parts, space = parts_of(robot, included), hyperparams.declared(RewardWeights)
    for name in RewardWeights._fields:
        space = space if name in parts else hyperparams.without(space, name)
    return space if parts else None


def measures_of(robot: str) -> Mapping[str, str]:
    """The measures of a robot: the distance, for the walking ones."""
    return MEASURES if robot in _PARTS else {}


class Measured(NamedTuple):
    """A step, and the parts of its reward."""

    state: EnvState
    step: Step
    parts: Mapping[str, Array]  # weight -> part of the reward, `[]`


MeasuredStepFn = Callable[[EnvState, Array, Key], Measured]


def distance(before: EnvState, after: EnvState) -> Array:
    """Metres along x between two of Brax's pipeline states, `[]`: the first joint coordinate of a walking robot."""
    return jnp.asarray(after.q[0] - before.q[0], jnp.float32)


def with_weights(environment: Environment, advance: MeasuredStepFn) -> Environment:
    """The environment, whose step is `unweighted_step`, with the weights that its spec declares as parameters."""
    if environment.spec.parameters is None:
        return environment
    return environment._replace(
        parameterize=lambda weights: environment._replace(step=partial(_weighted_step, advance, weights))
    )


def unweighted_step(advance: MeasuredStepFn, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    """The step of Brax's reward."""
    return advance(state, action, key)[:2]


def _weighted_step(
    advance: MeasuredStepFn, weights: RewardWeights, state: EnvState, action: Array, key: Key
) -> tuple[EnvState, Step]:
    after, step, parts = advance(state, action, key)
    change = sum((getattr(weights, weight) - 1.0) * part for weight, part in parts.items())
    return after, step._replace(reward=step.reward + change)
