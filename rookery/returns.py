"""Targets for value learning. Functions take the arrays of one transition or trajectory; callers map them."""

from functools import partial

import chex
import jax
import jax.numpy as jnp

from rookery.types import Array, Scalar


def td_target(reward_t: Array, terminated_t: Array, discount: Scalar, value_tp1: Array) -> Array:
    """Return the one-step target `r_t + discount * (1 - terminated_t) * v_tp1`, all `[...]`.

    A truncated step bootstraps like any other step: pass the value of its true successor.
    """
    chex.assert_equal_shape([reward_t, terminated_t, value_tp1])
    return reward_t + discount * jnp.where(terminated_t, 0.0, value_tp1)


def gae(
    reward_t: Array,
    terminated_t: Array,
    ended_t: Array,
    value_t: Array,
    value_tp1: Array,
    discount: Scalar,
    lambda_: Scalar,
) -> Array:
    """Generalised advantage estimates (Schulman 2016, arXiv:1506.02438, Eq. 16); all arrays `[T, ...]`.

    Args:
      reward_t: reward of each step.
      terminated_t: bool; the task ended, so the successor's value is not bootstrapped.
      ended_t: bool, True at a termination and at a truncation; no advantage propagates accumulate across the end.
      value_t: value of the state that was acted in.
      value_tp1: value of the true successor, also at the end of an episode and at the last step.
      discount: `[]` in [0, 1].
      lambda_: `[]` in [0, 1]: 0 gives one-step residuals, 1 gives full returns minus the values.

    Returns:
      `[T, ...]`, in units of reward.
    """
    chex.assert_equal_shape([reward_t, terminated_t, ended_t, value_t, value_tp1])
    residual_t = td_target(reward_t, terminated_t, discount, value_tp1) - value_t
    step = partial(accumulate, discount, lambda_)
    return jax.lax.scan(step, jnp.zeros_like(value_t[0]), (residual_t, ended_t), reverse=True)[1]


def accumulate(
    discount: Scalar, lambda_: Scalar, advantage_tp1: Array, step: tuple[Array, Array]
) -> tuple[Array, Array]:
    """One step of `gae`, backwards in time: from the next advantage, and (one-step residual, ended), to the advantage,
    returned twice."""
    residual, ended = step
    advantage = residual + discount * lambda_ * jnp.where(ended, 0.0, advantage_tp1)
    return advantage, advantage


def lambda_return(
    reward_t: Array, terminated_t: Array, ended_t: Array, value_tp1: Array, discount: Scalar, lambda_: Scalar
) -> Array:
    """Return the lambda-returns (Sutton 2018, Eq. 12.18; with the greatest action values Q(lambda) of Peng 1996).

    `R_t = r_t + discount (1 - terminated_t) ((1 - lambda) v_tp1 + lambda R_tp1)`, with `v_tp1` in place of `R_tp1` at
    the end of an episode or of the trajectory. All arrays `[T, ...]`; the arguments are those of `gae`, whose sum with
    the values it equals if `value_tp1` is the next `value_t` within an episode.
    """
    chex.assert_equal_shape([reward_t, terminated_t, ended_t, value_tp1])

    def step(return_tp1: Array, now: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        reward, terminated, ended, value = now
        following = jnp.where(ended, value, value + lambda_ * (return_tp1 - value))
        found = td_target(reward, terminated, discount, following)
        return found, found

    steps = reward_t, terminated_t, ended_t, value_tp1
    return jax.lax.scan(step, value_tp1[-1], steps, reverse=True)[1]


def worst_value(reward_t: Array, terminated_t: Array, counts_t: Array, discount: Scalar) -> Array:
    """A value that no policy is below, as far as rewards have shown: `-max |r|`, each as often as it can be received.

    A step that breaks the physics has no reward. An agent must neither seek such steps nor depend on what its critic
    expects there, so it learns them as terminations with this reward. A reward of 0 would be sought where rewards are
    negative. Without these steps the critic is right about no state before them, and they are sought where it expects
    too much (`benchmarks/notes/design.md` has the measurements).

    Args:
      reward_t: `[T, ...]`.
      terminated_t: bool, of the same shape: an episode receives such a reward once, and others up to
        `1 / (1 - discount)` times, at most 1,000.
      counts_t: bool, of the same shape; rewards to leave out are False.
      discount: `[]` or `[...]`, in [0, 1].

    Returns:
      `[...]`, at most 0.
    """
    discount = jnp.broadcast_to(discount, reward_t.shape[1:])
    times = jnp.where(terminated_t, 1.0, (1.0 / jnp.maximum(1.0 - discount, 1e-3))[None])
    return -jnp.max(jnp.where(counts_t, jnp.abs(reward_t) * times, 0.0), axis=0)


def soft_value(twin_value: Array, log_prob: Array, alpha: Array) -> Array:
    """Soft value of a state (Haarnoja 2018, arXiv:1812.05905, Eq. 3), using the smallest of the critics.

    Args:
      twin_value: `[..., N]`, the critics' values of an action drawn from the policy.
      log_prob: `[...]`, log density of that action.
      alpha: `[]`, temperature.

    Returns:
      `[...]`.
    """
    chex.assert_shape(twin_value, (*log_prob.shape, None))
    return jnp.min(twin_value, axis=-1) - alpha * log_prob


def of_random_pair(value: Array, numbers: Array | None) -> Array:
    """The values `[B, 2]` of two critics of N, the same two for all rows (Chen 2021, "REDQ", arXiv:2101.05982,
    Algorithm 1, with M = 2).

    Args:
      value: `[B, N]`, the critics' values.
      numbers: `[B, N]`, independent noise; the two critics with the greatest numbers in the first row are chosen. None
        if there are two critics: the values are returned unchanged.
    """
    return value if numbers is None else jnp.take(value, jax.lax.top_k(numbers[0], 2)[1], axis=-1)
