"""Adapter from user-defined gymnax-style environments with one shared observation to Rookery's interface."""

from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.records import Record, per_agent
from rookery.envs import base as envs
from rookery.envs.suites.third_party import strongly_typed
from rookery.envs.wrappers.time_limit import count_step, guard_physics
from rookery.settings import check_counts
from rookery.types import Array, Key, Observation, PyTree


class GymnaxEnvironment(Protocol):
    """A gymnax-style environment of `n_actors` actors."""

    n_actors: int

    def reset_env(self, key: Key, params: PyTree, /) -> tuple[Array, PyTree]:
        """Return an observation of any shape and a state."""
        ...

    def step_env(self, key: Key, state: PyTree, actions: Array, params: PyTree, /) -> tuple:
        """Return the next observation and state, a reward for each actor, the termination flag of all actors, and an
        info dictionary."""
        ...


class TruncationEnvState(Record):
    """State of an environment with its step count."""

    envstate: PyTree
    step: Array
    """`[]` int32, steps since the reset."""


class TruncationWrapper:
    """Wrapper that truncates episodes after `max_steps`.

    `info` contains the flags `terminated` and `truncated`; a step that terminates is not truncated.
    """

    def __init__(self, env: GymnaxEnvironment, max_steps: int = 500):
        check_counts(max_steps=max_steps)
        self.env, self.max_steps = env, max_steps
        self._env = env  # the name that published subclasses use

    def reset(self, rng: Key, params: PyTree) -> tuple[Array, TruncationEnvState]:
        """Return the first observation and state of an episode."""
        obs, envstate = self.env.reset_env(rng, params)
        return obs, TruncationEnvState(strongly_typed(envstate), jnp.zeros((), jnp.int32))

    reset_env = reset

    def step_env(self, rng: Key, envstate: TruncationEnvState, action: Array, params: PyTree) -> tuple:
        """Step without reset: observation, state, reward, done, info with `terminated` and `truncated`."""
        obs, inner, reward, terminated, info = self.env.step_env(rng, envstate.envstate, action, params)
        terminated = jnp.asarray(terminated, bool).reshape(())
        time, truncated = count_step(envstate.step, terminated, self.max_steps)
        info = {**info, "terminated": terminated, "truncated": truncated}
        return obs, TruncationEnvState(strongly_typed(inner), time), reward, terminated | truncated, info

    def step(self, rng: Key, envstate: TruncationEnvState, action: Array, params: PyTree) -> tuple:
        """Step with automatic reset at the end of an episode."""
        step_rng, reset_rng = jax.random.split(rng)
        obs, envstate, reward, done, info = self.step_env(step_rng, envstate, action, params)
        return *trees.where(done, self.reset(reset_rng, params), (obs, envstate)), reward, done, info


class Played(Protocol):
    """An agent's environment: its documented methods without automatic reset, and what they are built for."""

    name: str
    n_actors: int

    def env_reset(self, rng: Key) -> tuple[Key, Array, PyTree]: ...
    def env_step(self, rng: Key, envstate: PyTree, actions: Array) -> tuple: ...


def team_environment(
    played: Played, episode_length: int, observation: jax.ShapeDtypeStruct, action: jax.ShapeDtypeStruct
) -> envs.Environment:
    """Build a multi-agent environment in which every agent observes the whole observation as one vector.

    Agents are named "0", "1", ...; continuous actions are unbounded.

    Args:
      played: resets and steps the user-defined environment.
      episode_length: steps until truncation.
      observation: shape and dtype of the observation.
      action: shape and dtype of the joint action, `[I, ...]`, or `[]` for a single agent.

    Raises:
      ValueError: the reward is not one number per agent; raised when a step is traced.
    """
    count, actions = played.n_actors, (action.size // played.n_actors,) * played.n_actors
    spec = envs.EnvSpec(
        name=played.name,
        observation_size=observation.size,
        action_size=actions[0],
        episode_length=episode_length,
        discrete=not jnp.issubdtype(action.dtype, jnp.inexact),
        team=envs.Team(tuple(map(str, range(count))), (observation.size,) * count, actions),
        unbounded=True,
    )
    reset, step = partial(_reset, played), partial(_step, played, action.shape)
    return guard_physics(envs.Environment(jax.jit(reset), jax.jit(step), spec))


def shared_features(count: int, obs: Array) -> Array:
    """Copy the flattened observation to every agent, `[I, O]`."""
    return jnp.broadcast_to(jnp.ravel(obs), (count, obs.size))


def joint_observation(shape: tuple[int, ...], observation: Observation) -> Array:
    """The user-defined environment's observation of this shape, `[..., *]`, from those of all agents, `[..., I, O]`."""
    features = observation.features
    return features[..., 0, :].reshape(*features.shape[:-2], *shape)


def _reset(played: Played, key: Key) -> tuple[PyTree, envs.Step]:
    _, obs, envstate = played.env_reset(key)
    return envstate, envs.first_step(shared_features(played.n_actors, obs), jnp.zeros((0,)))


def _step(
    played: Played, shape: tuple[int, ...], envstate: PyTree, action: Array, key: Key
) -> tuple[PyTree, envs.Step]:
    _, obs, envstate, reward, _, info = played.env_step(key, envstate, action.reshape(shape))
    reward = per_agent("the reward of step_env", played.n_actors, reward)
    terminated, truncated = (jnp.broadcast_to(info[name], reward.shape) for name in ("terminated", "truncated"))
    step = envs.next_step(shared_features(played.n_actors, obs), reward, terminated, jnp.zeros((0,)))
    return envstate, step._replace(truncated=truncated)
