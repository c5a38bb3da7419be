"""A batch of environments for user-defined training loops: it resets automatically, and its state contains the keys.

Rookery's learners do not use it: they pass keys and new start states to the environment.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.records import Record, check, split_key, typed_key
from rookery.envs import base, registry
from rookery.envs.wrappers.auto_reset import auto_reset, start_bank
from rookery.types import Array, Key, PyTree


class DescribedState(NamedTuple):
    """State of an environment with its descriptor."""

    inner: base.EnvState
    descriptor: Array
    """`[D]`."""


class BatchState(Record):
    """States of environments `[E, ...]`, or of a single environment without a leading axis.

    `info` contains `truncation` and `final_obs` (the true successor, also at the end of an episode), and for tasks with
    a descriptor `state_descriptor` and `final_state_descriptor`.
    """

    pipeline_state: DescribedState
    obs: Array
    """`[E, O]`, observation for the next action."""
    reward: Array
    """`[E]`."""
    done: Array
    """`[E]`, 1 where an episode ended in the last step, by termination or truncation."""
    metrics: dict[str, Array]
    info: dict[str, Any]


class EvalMetrics(NamedTuple):
    """Sums that `eval_metrics` keeps in `info["completed_eval_metrics"]`, `[E]` each."""

    current_episode_metrics: dict[str, Array]
    completed_episodes_metrics: dict[str, Array]
    completed_episodes: Array
    completed_episodes_steps: Array
    steps: Array
    """Steps of the current episode."""


class Options(NamedTuple):
    """Options of a batch of environments."""

    auto_reset: bool = True
    """Start the next episode in the step that ends the current one."""
    eval_metrics: bool = False
    """Count completed episodes and sum their returns."""
    fixed_init_state: bool = False
    """Start every episode in the same state."""


class Batch:
    """A batch of environments of one task, with actions in [-1, 1].

    After the end of an episode, the next one starts in any of the start states that the batch was reset to.

    Args:
      environment: an environment for one agent with continuous actions.
      batch_size: E, at least 1; None for a single environment without a leading axis.
      options: see `Options`.

    Raises:
      ValueError: the environment has discrete actions or several agents, or `batch_size` is below 1.
    """

    def __init__(self, environment: base.Environment, batch_size: int | None, options: Options) -> None:
        spec = environment.spec
        fits = not spec.discrete and spec.team is None
        check(fits, f"{spec.name} has discrete actions or a team; use a task with one agent and continuous actions.")
        check(batch_size is None or batch_size >= 1, f"batch_size must be at least 1, or None, got {batch_size}.")
        self.environment = environment._replace(reset=partial(_reset, environment), step=partial(_step, environment))
        self.batch_size, self.options, self.name = batch_size, options, spec.name
        self.observation_size, self.action_size = spec.observation_size, spec.action_size
        self.episode_length = spec.episode_length
        if spec.descriptor:  # as in QDax, other environments lack these attributes
            self.descriptor_length = self.state_descriptor_length = spec.descriptor.size
            self.descriptor_limits = (list(spec.descriptor.lower), list(spec.descriptor.upper))

    def start_states(self, key: Key, size: int) -> tuple[DescribedState, base.Step]:
        """Draw start states and their first steps, `[size, ...]`; the key is consumed."""
        if self.options.fixed_init_state:
            return jax.vmap(lambda _: self.environment.reset(jax.random.key(0)))(jnp.arange(size))
        return start_bank(self.environment, key, size)

    def reset(self, rng: Key) -> BatchState:
        """Start an episode in each environment; the key, raw or typed, is consumed."""
        start_key, carried_key = jax.random.split(typed_key(rng))
        count = self.batch_size or 1
        env_state, step = self.start_states(start_key, count)
        zeros, next_key = jnp.zeros(count), jax.random.key_data(jax.random.split(carried_key, count))
        info = {"rng": next_key, "first": {"state": env_state, "obs": step.observation}, **_info(env_state, step)}
        if self.options.eval_metrics:
            info["completed_eval_metrics"] = EvalMetrics({"reward": zeros}, {"reward": zeros}, zeros, zeros, zeros)
        state = BatchState(env_state, step.observation, step.reward, zeros, {}, info)
        return state if self.batch_size else trees.take(state, 0)

    def step(self, state: BatchState, action: Array) -> BatchState:
        """Step the environments.

        Args:
          state: `[E, ...]` with any E, or a single state.
          action: `[E, A]`, or `[A]` for a single state.

        Raises:
          ValueError: the shape of `action` does not match the states.
        """
        fitting = (*state.reward.shape, self.action_size)
        check(action.shape == fitting, f"actions of {self.name} must be {fitting} here, got {action.shape}.")
        check(len(fitting) <= 2, f"states {state.reward.shape} have more than one batch axis; map step with jax.vmap.")
        if len(fitting) == 1:
            return trees.take(self.step(jax.tree.map(lambda leaf: leaf[None], state), action[None]), 0)
        next_key, keys = jax.vmap(split_key)(state.info["rng"])
        first, environment = state.info["first"], self.environment
        if self.options.auto_reset:
            environment = auto_reset(environment, _with_first_steps(first["state"], first["obs"]))
        env_state, step = jax.vmap(environment.step)(state.pipeline_state, action, keys)
        done = step.ended.astype(jnp.float32)
        info = {**state.info, "rng": next_key, **_info(env_state, step)}
        if self.options.eval_metrics:
            info["completed_eval_metrics"] = _update_eval_metrics(info["completed_eval_metrics"], step.reward, done)
        return BatchState(env_state, step.observation, step.reward, done, {}, info)


def make(
    env_name: str,
    *,
    batch_size: int | None = None,
    episode_length: int = 1000,
    auto_reset: bool = True,
    eval_metrics: bool = False,
    fixed_init_state: bool = False,
    backend: str = "spring",
    **overrides: Any,
) -> Batch:
    """Create a batch of environments of one task, e.g. `walker2d_uni`; not inside a traced function.

    Args:
      env_name: a task listed by `rookery envs`, with continuous actions and one agent.
      batch_size: E, at least 1; None for a single environment without a leading axis.
      episode_length: steps until truncation, at least 1.
      auto_reset: start the next episode in the step that ends the current one.
      eval_metrics: count completed episodes and sum their returns, see `EvalMetrics`.
      fixed_init_state: start every episode in the same state.
      backend: physics backend of Brax; ignored by other tasks.
      **overrides: further options of the task.

    Raises:
      ImportError: the task's suite is not installed.
      ValueError: the task does not exist, or a value is out of its range.
    """
    physics = {"backend": backend} if "backend" in registry.find(env_name).overrides else {}
    environment = registry.make(env_name, episode_length=episode_length, **physics, **overrides)
    return Batch(environment, batch_size, Options(auto_reset, eval_metrics, fixed_init_state))


def unroll(play: Callable[..., tuple], state: BatchState, agent: PyTree, length: int) -> tuple[BatchState, PyTree, Any]:
    """Make T = `length` steps with `play(state, agent) -> state, agent, output`.

    Returns:
      Environment states and agent after the steps, and the outputs `[T, ...]`.
    """

    def step(carry: tuple, _: None) -> tuple[tuple, Any]:
        state, agent, output = play(*carry)
        return (state, agent), output

    (state, agent), output = jax.lax.scan(step, (state, agent), length=length)
    return state, agent, output


def first_episodes(reward_t: Array, done_t: Array, action_t: Array) -> tuple[Array, Array]:
    """Compute the returns of the first episodes in `[T, E, ...]`.

    Returns:
      Returns `[E]`, NaN where an action of the episode was not finite; and a mask `[T, E]` bool of the steps after the
      end of the first episode.
    """
    ended = (done_t > 0.5).astype(jnp.int32)
    after = jnp.cumsum(ended, axis=0) > ended
    is_finite = (jnp.isfinite(action_t).all(axis=-1) | after).all(axis=0)
    return jnp.where(is_finite, jnp.sum(jnp.where(after, 0.0, reward_t), axis=0), jnp.nan), after


def start_states_of(state: BatchState) -> tuple[DescribedState, base.Step]:
    """Convert states `[E, ...]` to start states of an evaluation."""
    return _with_first_steps(state.pipeline_state, state.obs)


def replace_env_state(state: BatchState, env_state: DescribedState, obs: Array) -> BatchState:
    """Replace the environment states and observations of `state`, e.g. after a learner stepped the environments.

    Reward and done are 0, as no step preceded.
    """
    zeros = jnp.zeros_like(state.reward)
    info = {**state.info, "truncation": zeros, "final_obs": obs}
    if "state_descriptor" in info:
        info |= dict.fromkeys(("state_descriptor", "final_state_descriptor"), env_state.descriptor)
    return state.replace(pipeline_state=env_state, obs=obs, reward=zeros, done=zeros, info=info)


def restart(state: BatchState, needed: Array) -> BatchState:
    """Reset the states `[P, E, ...]` of the members where `needed` `[P]` to the start states of their batch."""
    first = state.info["first"]
    return trees.where(needed, replace_env_state(state, first["state"], first["obs"]), state)


def _reset(environment: base.Environment, key: Key) -> tuple[DescribedState, base.Step]:
    inner, step = environment.reset(key)
    return DescribedState(inner, step.descriptor), step


def _step(
    environment: base.Environment, env_state: DescribedState, action: Array, key: Key
) -> tuple[DescribedState, base.Step]:
    inner, step = environment.step(env_state.inner, action, key)
    return DescribedState(inner, step.descriptor), step


def _with_first_steps(env_state: DescribedState, obs: Array) -> tuple[DescribedState, base.Step]:
    return env_state, jax.vmap(base.first_step)(obs, env_state.descriptor)


def _info(env_state: DescribedState, step: base.Step) -> dict[str, Array]:
    output = {"truncation": step.truncated.astype(jnp.float32), "final_obs": step.final_observation}
    if not step.descriptor.shape[-1]:
        return output
    return {**output, "state_descriptor": env_state.descriptor, "final_state_descriptor": step.descriptor}


def _update_eval_metrics(before: EvalMetrics, reward: Array, done: Array) -> EvalMetrics:
    total, steps = before.current_episode_metrics["reward"] + reward, before.steps + 1.0
    return EvalMetrics(
        {"reward": (1.0 - done) * total},
        {"reward": before.completed_episodes_metrics["reward"] + done * total},
        before.completed_episodes + done,
        before.completed_episodes_steps + done * steps,
        (1.0 - done) * steps,
    )
