"""Default losses of IPPO: advantages, minibatches of whole rollouts, and the clipped objective.

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
    """Clipped objective (Schulman 2017, arXiv:1707.06347, Eq. 7), with advantages normalised for each agent.

    Args:
      log_prob: `[B, T, I]`, of the current policy.
      drawn: `[B, T, I]`, of the policy that collected the rollout.
      advantage: `[B, T, I]`.
      clip_epsilon: `[]`.

    Returns:
      The objective `[]`, and each agent's divergence from the policy that collected the rollout, `[I]`, in nats.
    """
    centred = advantage - advantage.mean(axis=(0, 1), keepdims=True)
    advantage = centred / (centred.std(axis=(0, 1), keepdims=True) + 1e-8)
    log_ratio = log_prob - drawn
    objective = clipped_objective(log_ratio, advantage, clip_epsilon).mean()
    return objective, divergence(log_ratio).mean(axis=(0, 1))


def whole_rollouts(key: Key, rows: tuple[Array, ...], size: int) -> tuple[Array, ...]:
    """Shuffle rollouts `[E, T, ...]` into minibatches `[E / size, size, T, ...]`; the key is consumed."""
    order = minibatch.shuffle(rows[0].shape[0], key).reshape(-1, size)
    return tuple(leaf[order] for leaf in rows)


def advantages(step: Callable[..., tuple], rollouts: Rollouts, discount: Scalar, lambda_: Scalar) -> Array:
    """Advantages `[E, T, I]` by a user-defined recursion backwards in time.

    Args:
      step: (next advantage, (reward, value, next_value, terminated, discount, lambda)), `[E, I]` each -> the advantage,
        twice; `terminated` is 0 or 1, and lambda is 0 where an episode was truncated, so that no reward of the next
        episode enters.
      rollouts: rollouts without advantages.
      discount: `[]` in [0, 1].
      lambda_: `[]` in [0, 1].
    """
    terminated, discount, lambda_ = _weights(rollouts, discount, lambda_)
    given = (rollouts.reward, rollouts.value, rollouts.next_value, terminated, discount, lambda_)
    return _backwards(step, jnp.zeros_like(rollouts.value[:, 0]), given)


def lambda_returns(step: Callable[..., tuple], rollouts: Rollouts, discount: Scalar, lambda_: Scalar) -> Array:
    """Returns `[E, T, I]` by a user-defined recursion backwards in time.

    Args:
      step: (next return, (reward, discount, next_value, lambda)), `[E, I]` each -> the return, twice; the discount is 0
        at a termination.
      rollouts: rollouts without advantages.
      discount: `[]` in [0, 1].
      lambda_: `[]` in [0, 1].
    """
    terminated, discount, lambda_ = _weights(rollouts, discount, lambda_)
    given = (rollouts.reward, discount * (1.0 - terminated), rollouts.next_value, lambda_)
    return _backwards(step, rollouts.next_value[:, -1], given)


def _weights(rollouts: Rollouts, discount: Scalar, lambda_: Scalar) -> list[Array]:
    """Termination flag (0 or 1), discount and lambda of every step and agent; lambda is 0 at a truncation."""
    lambda_t = jnp.where(rollouts.truncated, 0.0, lambda_)
    weights = rollouts.terminated.astype(jnp.float32), jnp.full_like(lambda_t, discount), lambda_t
    return [jnp.broadcast_to(weight[..., None], rollouts.reward.shape) for weight in weights]


def _backwards(step: Callable[..., tuple], start: Array, columns: tuple[Array, ...]) -> Array:
    time_first = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), columns)
    return jnp.swapaxes(jax.lax.scan(step, start, time_first, reverse=True)[1], 0, 1)


def advantage_step(advantage: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
    """Step of `advantages` for generalised advantage estimation (Schulman 2016, Eq. 16)."""
    reward, value, next_value, terminated, discount, lambda_ = step
    residual = returns.td_target(reward, terminated > 0, discount, next_value) - value
    advantage = residual + discount * lambda_ * (1.0 - terminated) * advantage
    return advantage, advantage


def return_step(value: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
    """Step of `lambda_returns`: the mean of the next state's value and the next return, weighted by lambda."""
    reward, discount, next_value, lambda_ = step
    value = reward + discount * ((1.0 - lambda_) * next_value + lambda_ * value)
    return value, value
