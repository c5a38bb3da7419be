"""Agents that learn nothing: `idle`, and an on-policy one that records its inputs; and a member of a learner.

The exploring action of that one is three times its parameter, which is outside the environment's bounds; it is
evaluated with the parameter itself.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams
from rookery.agents.base import OnPolicyAgent, RolloutExtras
from rookery.envs.base import EnvSpec
from rookery.learners.base import Bank, Learner, Member
from rookery.learners.on_policy import OnPolicyConfig
from rookery.types import Metrics, Observation, Transition


def idle(agent: Any) -> Any:
    """The agent with updates that change nothing, which compile fast."""
    return agent._replace(update=lambda state, hyper, batch, key, step: (state, {}))  # noqa: ARG005


def started(learner: Learner, **chosen: Any) -> tuple[Member, Bank]:
    """A member with default or chosen hyper-parameters, and the start states."""
    hyper = hyperparams.defaults(hyperparams.choose(learner.space, **chosen))
    bank = jax.jit(learner.start_states)(jax.random.key(0))
    return jax.jit(learner.init)(jax.random.key(1), hyper, bank), bank


def trained(learner: Learner, **chosen: Any) -> tuple[Member, Metrics]:
    """The member of `started` after a generation, and the metrics."""
    member, bank = started(learner, **chosen)
    return jax.jit(learner.step)(member, bank, jax.random.key(2), jnp.int32(0))


ENVS, STEPS = 2, 3
CONFIG = OnPolicyConfig(
    ENVS, STEPS, 1, normalize_observations=True, stagger_episodes=False, eval_episodes=2, start_states=2
)
LOG_PROB = -7.0


class SpyHyper(NamedTuple):
    discount: jax.Array | float = 0.5
    weight: jax.Array | float = 1.0


SPACE = hyperparams.space(SpyHyper(), {"weight": hyperparams.LogUniform(0.1, 10.0)})


class Recorded(NamedTuple):
    """A spy's state."""

    params: jax.Array  # [] a third of what it does
    step: jax.Array  # [] int32, of the last update
    batch: Transition  # of the last update


def spy(spec: EnvSpec, first: float | None = None) -> OnPolicyAgent:
    """Initial members have the parameter `first`, or one drawn from [-1, 1]."""
    start, act = partial(_start, spec), partial(_act, spec)
    return OnPolicyAgent(partial(_init, first), start, partial(_explore, spec), act, _update, SPACE, minibatches=1)


def _init(first: float | None, key: jax.Array) -> jax.Array:
    return jnp.float32(first) if first is not None else jax.random.uniform(key, minval=-1.0, maxval=1.0)


def _start(spec: EnvSpec, params: jax.Array) -> Recorded:
    each = (STEPS, ENVS)
    action = jnp.zeros((*each, spec.action_size))
    mask = jnp.zeros(action.shape, bool) if spec.masked else None
    observed = Observation(jnp.zeros((*each, spec.observation_size)), action_mask=mask)
    none, never = jnp.zeros(each), jnp.zeros(each, bool)
    extras = RolloutExtras(none, never, never, none, never)
    return Recorded(params, jnp.int32(-1), Transition(observed, action, none, observed, never, extras))


def _act(spec: EnvSpec, params: jax.Array, observation: Observation) -> jax.Array:
    return jnp.full((spec.action_size,), 1.0) * params


def _explore(spec: EnvSpec, state: Recorded, hyper: SpyHyper, observation: Observation, key: jax.Array) -> tuple:
    return jnp.full((spec.action_size,), 3.0) * state.params, jnp.float32(LOG_PROB)


def _update(
    state: Recorded, hyper: SpyHyper, batch: Transition, key: jax.Array, step: jax.Array
) -> tuple[Recorded, dict]:
    return state._replace(batch=batch, step=step), {"index": step.astype(jnp.float32)}
