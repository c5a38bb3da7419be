"""QDax's documented parts of user-defined training loops: `warmstart_buffer` and `do_iteration_fn`."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from rookery.compat.qdax.environments import BatchState
from rookery.compat.qdax.records import ReplayBuffer, Transition
from rookery.compat.records import check, check_equal
from rookery.settings import check_counts
from rookery.types import Array, Metrics

__all__ = ["do_iteration_fn", "warmstart_buffer"]

AgentT = TypeVar("AgentT")
RowT = TypeVar("RowT", bound=Transition)

PlayFn = Callable[[BatchState, AgentT], tuple[BatchState, AgentT, RowT]]
"""(environment states, training state) -> both after a step, and the transitions."""


def unroll(
    play: PlayFn[AgentT, RowT], state: BatchState, agent: AgentT, length: int
) -> tuple[BatchState, AgentT, RowT]:
    """Make T = `length` steps; returns environment states and agent after them, and the transitions `[T, ...]`."""

    def step(carry: tuple[BatchState, AgentT], _: None) -> tuple[tuple[BatchState, AgentT], RowT]:
        state, agent, row = play(*carry)
        return (state, agent), row

    (state, agent), rows = jax.lax.scan(step, (state, agent), length=length)
    return state, agent, rows


def first_episodes(reward_t: Array, done_t: Array, action_t: Array) -> tuple[Array, Array]:
    """Compute the returns of the first episodes in `[T, E, ...]`.

    Returns:
      Returns `[E]`, NaN where an action or a reward of the episode was not finite; and a mask `[T, E]` bool of the
      steps after the end of the first episode, and of those with a reward that is not finite.
    """
    ended = (done_t > 0.5).astype(jnp.int32)
    after = jnp.cumsum(ended, axis=0) > ended
    is_finite = (jnp.isfinite(action_t).all(axis=-1) | after).all(axis=0)
    returns = jnp.sum(jnp.where(after, 0.0, reward_t), axis=0)
    return jnp.where(is_finite, returns, jnp.nan), after | ~jnp.isfinite(reward_t)


def updates_of(updates_per_step: float, num_envs: int) -> int:
    """Number of updates after a step of all environments: the product, rounded down; a ValueError if it is below 1."""
    product = f"updates per step x environments = {updates_per_step} x {num_envs}"
    check(updates_per_step * num_envs >= 1, f"{product} is less than one update in each iteration; raise one of them.")
    return int(updates_per_step * num_envs)


def warmstart_buffer(
    replay_buffer: ReplayBuffer,
    training_state: AgentT,
    env_state: BatchState,
    play_step_fn: PlayFn[AgentT, Transition],
    num_warmstart_steps: int,
    env_batch_size: int,
) -> tuple[ReplayBuffer, BatchState, AgentT]:
    """Fill a buffer with at least `num_warmstart_steps` transitions of E = `env_batch_size` environments.

    The number is rounded up to whole steps of all environments, whose states are `[E, ...]`.
    """
    check_counts(env_batch_size=env_batch_size)
    check_counts(0, num_warmstart_steps=num_warmstart_steps)
    rounds = -(-num_warmstart_steps // env_batch_size)
    env_state, training_state, transitions = unroll(play_step_fn, env_state, training_state, rounds)
    _check_count(env_batch_size, transitions)
    return replay_buffer.insert(transitions), env_state, training_state


def do_iteration_fn(
    training_state: AgentT,
    env_state: BatchState,
    replay_buffer: ReplayBuffer,
    env_batch_size: int,
    grad_updates_per_step: float,
    play_step_fn: PlayFn[AgentT, Transition],
    update_fn: Callable[[AgentT, ReplayBuffer], tuple[AgentT, ReplayBuffer, Metrics]],
) -> tuple[AgentT, BatchState, ReplayBuffer, Metrics]:
    """Step E = `env_batch_size` environments, then make `int(grad_updates_per_step * E)` updates, which may be 0.

    `update_fn` returns training state and buffer after an update, and metrics, which are stacked to `[updates, ...]`.

    Raises:
      ValueError: the number of updates is above 0, but less than 1 per iteration.
    """
    updates = updates_of(grad_updates_per_step, env_batch_size) if grad_updates_per_step else 0
    env_state, training_state, transitions = play_step_fn(env_state, training_state)
    _check_count(env_batch_size, transitions)

    def update(carry: tuple[AgentT, ReplayBuffer], _: None) -> tuple[tuple[AgentT, ReplayBuffer], Metrics]:
        training_state, replay_buffer, metrics = update_fn(*carry)
        return (training_state, replay_buffer), metrics

    initial = (training_state, replay_buffer.insert(transitions))
    (training_state, replay_buffer), metrics = jax.lax.scan(update, initial, length=updates)
    return training_state, env_state, replay_buffer, metrics


def _check_count(env_batch_size: int, transitions: Transition) -> None:
    check_equal("env_batch_size", env_batch_size, transitions.rewards.shape[-1:], "{} environments were stepped")
