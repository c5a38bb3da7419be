"""Targets of value learning: arrays to arrays, one transition; the caller maps."""

import chex
import jax.numpy as jnp

from rookery.types import Array, Scalar


def td_target(reward_t: Array, terminated_t: Array, discount: Scalar, value_tp1: Array) -> Array:
    """One-step target `r_t + discount * (1 - terminated_t) * v_tp1`, all `[...]`.

    A truncated step bootstraps like any other: pass the value of its true successor.
    """
    chex.assert_equal_shape([reward_t, terminated_t, value_tp1])
    return reward_t + discount * jnp.where(terminated_t, 0.0, value_tp1)


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
