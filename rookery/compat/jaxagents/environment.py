"""Adapter from user-defined gymnax-style environments with one shared observation to Rookery's interface.

`reset_env(key, params)` returns an observation of any shape and a state. `step_env(key, state, actions, params)`
returns the next observation and state, a reward for each agent, the termination flag of all agents, and an info
dictionary.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.records import Record, check_counts, per_agent
from rookery.envs import base as envs
from rookery.envs.suites.third_party import firm
from rookery.types import Array, Key, PyTree


class LimitedState(Record):
    """State of an environment with its step count."""

    envstate: PyTree
    step: Array
    """`[]` int32, steps since the reset."""


class TimeLimit:
    """Wrapper that truncates episodes after `max_steps`.

    `info` contains the flags `terminated` and `truncated`; a step that terminates is not truncated.
    `team_environment` requires the attribute `env.n_actors`, the number of actors.
    """

    def __init__(self, env: Any, max_steps: int = 500):
        check_counts(max_steps=max_steps)
        self._env, self.max_steps = env, max_steps

    @property
    def name(self) -> str:
        """Name of the environment's class."""
        return type(self._env).__name__

    @property
    def count(self) -> int:
        """I, the number of actors."""
        return self._env.n_actors

    def reset(self, rng: Key, params: Any) -> tuple[Array, LimitedState]:
        """Return the first observation and state of an episode."""
        obs, envstate = self._env.reset_env(rng, params)
        return obs, LimitedState(firm(envstate), jnp.zeros((), jnp.int32))

    reset_env = reset

    def step_env(self, rng: Key, envstate: LimitedState, action: Array, params: Any) -> tuple:
        """Step without reset: observation, state, reward, done, info with `terminated` and `truncated`."""
        obs, inner, reward, terminated, info = self._env.step_env(rng, envstate.envstate, action, params)
        time, terminated = envstate.step + 1, jnp.asarray(terminated, bool).reshape(())
        truncated = (time >= self.max_steps) & ~terminated
        info = {**info, "terminated": terminated, "truncated": truncated}
        return obs, LimitedState(firm(inner), time), reward, terminated | truncated, info

    def step(self, rng: Key, envstate: LimitedState, action: Array, params: Any) -> tuple:
        """Step with automatic reset at the end of an episode."""
        step_rng, reset_rng = jax.random.split(rng)
        obs, envstate, reward, done, info = self.step_env(step_rng, envstate, action, params)
        fresh = self.reset(reset_rng, params)
        obs, envstate = jax.tree.map(partial(jnp.where, done), fresh, (obs, envstate))
        return obs, envstate, reward, done, info


class EnvironmentBindings(NamedTuple):
    """Bound arguments of a multi-agent environment's functions."""

    environment: TimeLimit
    params: Any
    """Parameters of the user-defined environment."""
    action: Any
    """Shape and dtype of the joint action."""


def team_environment(environment: TimeLimit, params: Any, action: jax.ShapeDtypeStruct) -> envs.Environment:
    """Build a multi-agent environment in which every agent observes the whole observation as one vector.

    Agents are named "0", "1", ...; continuous actions are unbounded.

    Args:
      environment: the user-defined environment with its time limit.
      params: parameters passed to the environment.
      action: shape and dtype of the joint action, `[I, ...]`, or `[]` for a single agent.

    Raises:
      ValueError: the reward is not one number per agent; raised when a step is traced.
    """
    count, size = environment.count, observation_shape(environment, params).size
    actions = (action.size // count,) * count
    spec = envs.EnvSpec(
        name=environment.name,
        observation_size=size,
        action_size=actions[0],
        episode_length=environment.max_steps,
        discrete=not jnp.issubdtype(action.dtype, jnp.inexact),
        team=envs.Team(tuple(map(str, range(count))), (size,) * count, actions),
        unbounded=True,
    )
    bindings = EnvironmentBindings(environment, params, action)
    return envs.Environment(jax.jit(partial(_reset, bindings)), jax.jit(partial(_step, bindings)), spec)


def observation_shape(environment: TimeLimit, params: Any) -> Any:
    """Shape and dtype of an observation."""
    return jax.eval_shape(lambda key: environment.reset(key, params)[0], jax.random.key(0))


def shared_observation(count: int, obs: Array) -> Array:
    """Copy the flattened observation to every agent, `[I, O]`."""
    return jnp.broadcast_to(jnp.ravel(obs), (count, obs.size))


def _reset(bindings: EnvironmentBindings, key: Key) -> tuple[LimitedState, envs.Step]:
    obs, envstate = bindings.environment.reset(key, bindings.params)
    return envstate, envs.first_step(shared_observation(bindings.environment.count, obs), jnp.zeros((0,)))


def _step(
    bindings: EnvironmentBindings, envstate: LimitedState, action: Array, key: Key
) -> tuple[LimitedState, envs.Step]:
    actions = action.reshape(bindings.action.shape)
    obs, envstate, reward, _, info = bindings.environment.step_env(key, envstate, actions, bindings.params)
    reward = per_agent("the reward of step_env", bindings.environment.count, reward)
    terminated, truncated = (jnp.broadcast_to(info[name], reward.shape) for name in ("terminated", "truncated"))
    step = envs.next_step(shared_observation(bindings.environment.count, obs), reward, terminated, jnp.zeros((0,)))
    return envstate, step._replace(truncated=truncated)
