"""Probe environments: minimal environments with a known optimal value, each of which tests one part of an agent.

Observations have size 1, actions one dimension in [-1, 1] (clipped). `discount` is the agent's; the values are those of
plain returns, without the entropy bonus of maximum-entropy agents. An `episode_length` below 1 is a `ValueError`.

| task | tested part of the agent | optimal value |
|---|---|---|
| `probe_value` | value regression; no bootstrapping after a termination | 1 |
| `probe_discount` | discounting of a delayed reward | `discount` at observation 0, 1 at observation 1 |
| `probe_observation` | a value that depends on the observation | the observation, -1 or 1 |
| `probe_action` | policy improvement by the critic | 0, at action 0.5 |
| `probe_both` | a policy that depends on the observation | 0, at action 0.5 * observation |
| `probe_truncation` | bootstrapping after a truncation | 1 / (1 - `discount`) |
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.wrappers import time_limit
from rookery.types import Array, Key

BEST_ACTION = 0.5
TRUNCATION_LENGTH = 5


_Outcome = tuple[Array | float, Array, Array | bool]
"""Reward `[]`, next observation `[1]`, and whether the episode is terminated, `[]`."""
_RuleFn = Callable[[Array, Array], _Outcome]  # observation `[1]` and clipped action `[1]` -> the outcome of the step
_StartFn = Callable[[Key], Array]  # key -> the first observation `[1]`


def probe_value(episode_length: int = 1) -> Environment:
    """One step, reward 1, terminated; the observation is always 0. V(0) = Q(0, a) = 1 for every action and discount."""
    return _probe("probe_value", _start_at_zero, lambda observation, _: (1.0, observation, True), episode_length)


def probe_discount(episode_length: int = 2) -> Environment:
    """Two steps, observations 0 and 1, rewards 0 and 1, terminated after the second step. V(0) = discount, V(1) = 1."""

    def rule(observation: Array, action: Array) -> _Outcome:
        del action
        last = observation[0] > 0.5
        return last.astype(jnp.float32), jnp.ones_like(observation), last

    return _probe("probe_discount", _start_at_zero, rule, episode_length)


def probe_observation(episode_length: int = 1) -> Environment:
    """One step, the reward is the observation, -1 or 1 with equal probability. V(o) = Q(o, a) = o for every action."""
    return _probe(
        "probe_observation",
        _start_at_random_sign,
        lambda observation, _: (observation[0], observation, True),
        episode_length,
    )


def probe_action(episode_length: int = 1) -> Environment:
    """One step, reward -(a - 0.5)^2; the observation is always 0. Q(0, a) is the reward; V(0) = 0 at a = 0.5."""

    def rule(observation: Array, action: Array) -> _Outcome:
        return -jnp.square(action[0] - BEST_ACTION), observation, True

    return _probe("probe_action", _start_at_zero, rule, episode_length)


def probe_both(episode_length: int = 1) -> Environment:
    """One step, observation o = -1 or 1 with equal probability, reward -(a - 0.5 o)^2. V(o) = 0 at a = 0.5 o."""

    def rule(observation: Array, action: Array) -> _Outcome:
        return -jnp.square(action[0] - BEST_ACTION * observation[0]), observation, True

    return _probe("probe_both", _start_at_random_sign, rule, episode_length)


def probe_truncation(episode_length: int = TRUNCATION_LENGTH) -> Environment:
    """Reward 1 in every step, never terminated, truncated after 5. The observation is always 0.

    V(0) = Q(0, a) = 1 / (1 - discount), since an agent bootstraps after a truncation. An agent that treats truncation
    as termination estimates at most (1 - discount^5) / (1 - discount).
    """
    return _probe("probe_truncation", _start_at_zero, lambda observation, _: (1.0, observation, False), episode_length)


def _probe(name: str, start: _StartFn, rule: _RuleFn, episode_length: int) -> Environment:
    spec = EnvSpec(name, observation_size=1, action_size=1, episode_length=episode_length)
    return time_limit.limit_episode(Environment(partial(_reset, start), partial(_step, rule), spec), episode_length)


def _reset(start: _StartFn, key: Key) -> tuple[Array, Step]:
    observation = start(key)
    return observation, base.first_step(observation, _no_descriptor())


def _step(rule: _RuleFn, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    del key  # only the start is random
    reward, observation, terminated = rule(state, jnp.clip(action, -1.0, 1.0))
    step = base.next_step(observation, jnp.float32(reward), jnp.asarray(terminated), _no_descriptor())
    return observation, step


def _no_descriptor() -> Array:
    return jnp.zeros((0,), jnp.float32)


def _start_at_zero(key: Key) -> Array:
    del key  # the start is constant
    return jnp.zeros((1,), jnp.float32)


def _start_at_random_sign(key: Key) -> Array:
    return jax.random.rademacher(key, (1,), jnp.float32)
