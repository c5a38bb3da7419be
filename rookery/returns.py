"""Targets of value learning: arrays to arrays, one transition; the caller maps."""

import chex
import jax
import jax.numpy as jnp

from rookery.types import Array, Scalar


def td_target(reward_t: Array, terminated_t: Array, discount: Scalar, value_tp1: Array) -> Array:
    """One-step target `r_t + discount * (1 - terminated_t) * v_tp1`, all `[...]`.

    A truncated step bootstraps like any other: pass the value of its true successor.
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
    """Generalised advantage estimates (Schulman 2016, arXiv:1506.02438, Eq. 16), time first; all `[T, ...]`.

    Args:
      reward_t: of each step.
      terminated_t: bool; nothing follows, so nothing is bootstrapped.
      ended_t: bool, at a termination and at a truncation; what follows is another episode, of which nothing leaks.
      value_t: of the states acted in.
      value_tp1: of the true successors, also where the episode ended there and at the last of the steps.
      discount: `[]` in [0, 1].
      lambda_: `[]` in [0, 1]: 0 gives one-step residuals, 1 whole returns.

    Returns:
      `[T, ...]`, in units of reward.
    """
    chex.assert_equal_shape([reward_t, terminated_t, ended_t, value_t, value_tp1])
    residual_t = td_target(reward_t, terminated_t, discount, value_tp1) - value_t

    def back(advantage_tp1: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        residual, ended = step
        advantage = residual + discount * lambda_ * jnp.where(ended, 0.0, advantage_tp1)
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros_like(value_t[0]), (residual_t, ended_t), reverse=True)[1]


def soft_value(twin_value: Array, log_prob: Array, alpha: Array) -> Array:
    """Value of a state under maximum entropy (Haarnoja 2018, arXiv:1812.05905, Eq. 3), with the smaller twin.

    Args:
      twin_value: `[..., 2]`, the critics' values of an action drawn from the policy.
      log_prob: `[...]`, that action's log density.
      alpha: `[]`, temperature.

    Returns:
      `[...]`.
    """
    chex.assert_shape(twin_value, (*log_prob.shape, 2))
    return jnp.min(twin_value, axis=-1) - alpha * log_prob
