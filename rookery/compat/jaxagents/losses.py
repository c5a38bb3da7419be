"""What a joint agent usually learns from: advantages, minibatches of whole rollouts, the clipped objective.

Sources: Schulman 2017 (arXiv:1707.06347), Schulman 2016 (arXiv:1506.02438).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rookery import returns
from rookery.agents import minibatch
from rookery.agents.ppo import clipped_objective, divergence
from rookery.compat.jaxagents.agent import Rollouts
from rookery.types import Array, Key, Scalar


def surrogate(log_prob: Array, drawn: Array, advantage: Array, clip_epsilon: Scalar) -> tuple[Array, Array]:
    """The clipped objective `[]` (Schulman 2017, arXiv:1707.06347, Eq. 7) of rows `[B, T, I]` whose advantages are
    normalised, each agent's apart, and each one's divergence from who acted, `[I]`, in nats."""
    centred = advantage - advantage.mean(axis=(0, 1), keepdims=True)
    advantage = centred / (centred.std(axis=(0, 1), keepdims=True) + 1e-8)
    log_ratio = log_prob - drawn
    objective = clipped_objective(log_ratio, advantage, clip_epsilon).mean()
    return objective, divergence(log_ratio).mean(axis=(0, 1))


def whole_rollouts(key: Key, rows: tuple[Array, ...], size: int) -> tuple[Array, ...]:
    """Minibatches `[E / size, size, T, ...]` of rows `[E, T, ...]`, in a new order; the key is consumed."""
    order = minibatch.shuffle(rows[0].shape[0], key).reshape(-1, size)
    return tuple(leaf[order] for leaf in rows)


def advantages(step: Callable[..., tuple], rollouts: Rollouts, discount: Scalar, lambda_: Scalar) -> Array:
    """Advantages `[E, T, I]` by a step back in time of one's own.

    Args:
      step: (advantage after it, (reward, value, next_value, terminated, discount, lambda)), `[E, I]` each -> the
        advantage, twice; `terminated` is 0 or 1, and lambda 0 where an episode was truncated, so that nothing leaks
        from the next.
      rollouts: without advantages.
      discount: `[]` in [0, 1].
      lambda_: `[]` in [0, 1].
    """
    terminated, discount, lambda_ = _weights(rollouts, discount, lambda_)
    given = (rollouts.reward, rollouts.value, rollouts.next_value, terminated, discount, lambda_)
    return _backwards(step, jnp.zeros_like(rollouts.value[:, 0]), given)


def lambda_returns(step: Callable[..., tuple], rollouts: Rollouts, discount: Scalar, lambda_: Scalar) -> Array:
    """Returns `[E, T, I]` likewise; `step`: (return after it, (reward, discount, next_value, lambda)), where the
    discount is 0 at a termination."""
    terminated, discount, lambda_ = _weights(rollouts, discount, lambda_)
    given = (rollouts.reward, discount * (1.0 - terminated), rollouts.next_value, lambda_)
    return _backwards(step, rollouts.next_value[:, -1], given)


def _weights(rollouts: Rollouts, discount: Scalar, lambda_: Scalar) -> list[Array]:
    """Whether it terminated, 0 or 1, discount and lambda of every step and agent; lambda is 0 at a truncation."""
    lambda_t = jnp.where(rollouts.truncated, 0.0, lambda_)
    weights = rollouts.terminated.astype(jnp.float32), jnp.full_like(lambda_t, discount), lambda_t
    return [jnp.broadcast_to(weight[..., None], rollouts.reward.shape) for weight in weights]


def _backwards(step: Callable[..., tuple], start: Array, columns: tuple[Array, ...]) -> Array:
    time_first = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), columns)
    return jnp.swapaxes(jax.lax.scan(step, start, time_first, reverse=True)[1], 0, 1)


def advantage_step(advantage: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
    """For `advantages`: generalised advantage estimates (Schulman 2016, Eq. 16)."""
    reward, value, next_value, terminated, discount, lambda_ = step
    residual = returns.td_target(reward, terminated > 0, discount, next_value) - value
    advantage = residual + discount * lambda_ * (1.0 - terminated) * advantage
    return advantage, advantage


def return_step(value: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
    """For `lambda_returns`: a mean of the next state's value and of the return from there on, weighted by lambda."""
    reward, discount, next_value, lambda_ = step
    value = reward + discount * ((1.0 - lambda_) * next_value + lambda_ * value)
    return value, value
