"""Shared by tests of on-policy learning: rollouts of random numbers, and a team's environment with known steps.

In `errand` a walker's task ends with its second step and a sitter's never does; the clock ends both after four. Each is
shown the time and its own last action, and is paid what it did in its first dimension, the sitter ten times that.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.agents.actor_critic import Memory
from rookery.agents.base import RolloutExtras
from rookery.envs import base as envs
from rookery.envs.base import ActionWithCarry, Environment, EnvSpec, Step, Team
from rookery.envs.wrappers import time_limit
from rookery.types import Observation, Transition

STEPS, ENVS = 6, 4
SPEC = EnvSpec("test", observation_size=3, action_size=2, episode_length=10)
CHOOSING = SPEC._replace(discrete=True, action_size=3)
MASKED = CHOOSING._replace(masked=True)
PARTIAL = SPEC._replace(masked=True)


def rollout(key: jax.Array, spec: EnvSpec, memory_size: int = 0, agents: tuple[int, ...] = ()) -> Transition:
    """Random numbers of `[T, E, ...]`: a termination, a truncation, one step that does not count, and masks.

    Log densities are close to those of an initial policy.
    """
    keys = jax.random.split(key, 8)
    each = (STEPS, ENVS, *agents)
    observation, next_observation = (_observation(key, spec, memory_size, each) for key in keys[:2])
    if spec.discrete:
        action = 2 * jax.random.randint(keys[2], each, 0, 2) if spec.masked else jax.random.randint(keys[2], each, 0, 3)
    else:
        action = jax.random.normal(keys[2], (*each, spec.action_size))
    time = jnp.arange(STEPS).reshape(-1, *[1] * (len(each) - 1))
    place = jnp.arange(ENVS).reshape(1, -1, *[1] * len(agents))
    terminated = jnp.broadcast_to((time == 2) & (place == 1), each)
    truncated = jnp.broadcast_to((time == 3) & (place == 2), each)
    exists = jnp.ones(()) if observation.action_mask is None else observation.action_mask.astype(jnp.float32)
    likely = -jnp.log(2.0 if spec.masked else 3.0)
    if not spec.discrete:
        likely = jnp.sum((-0.5 * action**2 - 0.5 * math.log(2 * math.pi)) * exists, axis=-1)
    extras = RolloutExtras(
        log_prob=likely + 0.3 * jax.random.normal(keys[3], each),
        ended=terminated | truncated,
        counts=jnp.broadcast_to((time != 5) | (place != 0), each),
        accumulated=3.0 * jax.random.normal(keys[4], each),
        broken=jnp.zeros(each, bool),
    )
    given: Any = ActionWithCarry(action, observation.carry) if memory_size else action
    reward = jax.random.normal(keys[5], each)
    return Transition(observation, given, reward, next_observation, terminated, extras)


def _observation(key: jax.Array, spec: EnvSpec, memory_size: int, each: tuple[int, ...]) -> Observation:
    """Random features and memory; the second action is unavailable if the spec is masked."""
    numbers = jax.random.normal(key, (*each, spec.observation_size + 2 * memory_size))
    features, policy, critic = jnp.split(numbers, (spec.observation_size, spec.observation_size + memory_size), axis=-1)
    mask = jnp.broadcast_to(jnp.arange(spec.action_size) != 1, (*each, spec.action_size))
    return Observation(
        features, action_mask=mask if spec.masked else None, carry=Memory(policy, critic) if memory_size else None
    )


# --- a team's environment: features (time, own last action [A]), wrong after the walker's end, and a mask [A]

WALKER_STEPS, LENGTH = 2, 4
PAY = (1.0, 10.0)
ELSEWHERE = 50.0  # the walker's observation after the end of its task
TEAM = Team(("walker", "sitter"), observation_sizes=(3, 2), action_sizes=(2, 1))
ERRAND = EnvSpec("errand", 3, 2, LENGTH, team=TEAM, masked=True)
EXISTS = ((True, True), (True, False))


class Errand(NamedTuple):
    time: jax.Array  # []
    last: jax.Array  # [I, A]


def errand() -> Environment:
    return time_limit.limit_episode(Environment(_reset, _step, ERRAND), LENGTH)


def _reset(key: jax.Array) -> tuple[Errand, Step]:
    del key
    state = Errand(jnp.zeros(()), jnp.zeros((2, 2)))
    return state, envs.first_step(_features(state), jnp.zeros((0,)), jnp.asarray(EXISTS))


def _step(state: Errand, action: jax.Array, key: jax.Array) -> tuple[Errand, Step]:
    del key
    ended = state.time >= WALKER_STEPS
    state = Errand(state.time + 1.0, action)
    reward = jnp.asarray(PAY) * action[:, 0]
    terminated = jnp.stack([state.time >= WALKER_STEPS, jnp.asarray(False)])
    reward = jnp.where(jnp.stack([ended, jnp.asarray(False)]), 0.0, reward)
    return state, envs.next_step(_features(state), reward, terminated, jnp.zeros((0,)), jnp.asarray(EXISTS))


def _features(state: Errand) -> jax.Array:
    times = jnp.full((2, 1), state.time)
    features = jnp.concatenate([times, jnp.where(jnp.asarray(EXISTS), state.last, 0.0)], axis=1)
    elsewhere = jnp.stack([state.time > WALKER_STEPS, jnp.asarray(False)])
    return jnp.where(elsewhere[:, None], ELSEWHERE, features)
