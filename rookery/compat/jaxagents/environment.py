"""Worlds of one's own in gymnax's style, whose agents all see the same; and such a world as a team's.

`reset_env(key, params)` gives an observation of any shape, and a state; `step_env(key, state, actions, params)` gives
the next two, a reward for each agent, whether the task ended for all of them, and a dictionary of what else is told.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.records import Record, by_agent, check_counts
from rookery.envs import base as envs
from rookery.envs.suites.third_party import firm
from rookery.types import Array, Key, PyTree


class LimitedState(Record):
    """A world's state beside its clock."""

    envstate: PyTree
    step: Array  # [] int32, steps since the reset


class TimeLimit:
    """Ends episodes after `max_steps`; `info` says which end it was. A step that also terminates is not truncated.

    What makes a team's world of it asks for `env.n_actors`, how many act.
    """

    def __init__(self, env: Any, max_steps: int = 500):
        check_counts(max_steps=max_steps)
        self._env, self.max_steps = env, max_steps

    @property
    def name(self) -> str:
        """Of the world's class."""
        return type(self._env).__name__

    @property
    def count(self) -> int:
        """I, how many act in it."""
        return self._env.n_actors

    def reset(self, rng: Key, params: Any) -> tuple[Array, LimitedState]:
        """The first observation and state of an episode."""
        obs, envstate = self._env.reset_env(rng, params)
        return obs, LimitedState(firm(envstate), jnp.zeros((), jnp.int32))

    reset_env = reset

    def step_env(self, rng: Key, envstate: LimitedState, action: Array, params: Any) -> tuple:
        """One step without a reset: observation, state, reward, done, info with `terminated` and `truncated`."""
        obs, inner, reward, terminated, info = self._env.step_env(rng, envstate.envstate, action, params)
        time, terminated = envstate.step + 1, jnp.asarray(terminated, bool).reshape(())
        truncated = (time >= self.max_steps) & ~terminated
        info = {**info, "terminated": terminated, "truncated": truncated}
        return obs, LimitedState(firm(inner), time), reward, terminated | truncated, info

    def step(self, rng: Key, envstate: LimitedState, action: Array, params: Any) -> tuple:
        """One step, and the beginning of the next episode if this one ended with it."""
        step_rng, reset_rng = jax.random.split(rng)
        obs, envstate, reward, done, info = self.step_env(step_rng, envstate, action, params)
        fresh = self.reset(reset_rng, params)
        obs, envstate = jax.tree.map(partial(jnp.where, done), fresh, (obs, envstate))
        return obs, envstate, reward, done, info


class EnvironmentBindings(NamedTuple):
    """What a team's world is bound to."""

    world: TimeLimit
    params: Any  # the world's own
    action: Any  # shape and type of what all agents do


def team(world: TimeLimit, params: Any, action: jax.ShapeDtypeStruct) -> envs.Environment:
    """The world of a team that is shown, each of its agents, the whole observation as one vector.

    Agents are called "0", "1", ...; actions of numbers are unbounded.

    Args:
      world: within its time limit.
      params: handed on to it.
      action: of all of them, `[I, ...]`, or `[]` for one alone.

    Raises:
      ValueError: the reward is not one number for each, which is seen when a step is traced.
    """
    count, size = world.count, shape(world, params).size
    actions = (action.size // count,) * count
    spec = envs.EnvSpec(
        name=world.name,
        observation_size=size,
        action_size=actions[0],
        episode_length=world.max_steps,
        discrete=not jnp.issubdtype(action.dtype, jnp.inexact),
        team=envs.Team(tuple(map(str, range(count))), (size,) * count, actions),
        unbounded=True,
    )
    bindings = EnvironmentBindings(world, params, action)
    return envs.Environment(jax.jit(partial(_reset, bindings)), jax.jit(partial(_step, bindings)), spec)


def shape(world: TimeLimit, params: Any) -> Any:
    """Shape and type of an observation."""
    return jax.eval_shape(lambda key: world.reset(key, params)[0], jax.random.key(0))


def shown(count: int, obs: Array) -> Array:
    """An observation as everybody is shown it, `[I, O]`."""
    return jnp.broadcast_to(jnp.ravel(obs), (count, obs.size))


def _reset(bindings: EnvironmentBindings, key: Key) -> tuple[LimitedState, envs.Step]:
    obs, envstate = bindings.world.reset(key, bindings.params)
    return envstate, envs.first_step(shown(bindings.world.count, obs), jnp.zeros((0,)))


def _step(
    bindings: EnvironmentBindings, envstate: LimitedState, action: Array, key: Key
) -> tuple[LimitedState, envs.Step]:
    actions = action.reshape(bindings.action.shape)
    obs, envstate, reward, _, info = bindings.world.step_env(key, envstate, actions, bindings.params)
    reward = by_agent("the reward of step_env", bindings.world.count, reward)
    terminated, truncated = (jnp.broadcast_to(info[name], reward.shape) for name in ("terminated", "truncated"))
    step = envs.next_step(shown(bindings.world.count, obs), reward, terminated, jnp.zeros((0,)))
    return envstate, step._replace(truncated=truncated)
