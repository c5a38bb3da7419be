"""Passes over a rollout in shuffled minibatches."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import gradients, trees
from rookery.gradients import Learned
from rookery.types import Array, Key, Metrics, PyTree, Scalar

EPSILON = 1e-5  # Adam's, as the code of Schulman 2017 has it


def shuffle(count: int, key: Key) -> Array:
    """A permutation of `count` rows, `[count]`; the key is consumed.

    Random numbers are sorted once, in half the time of `jax.random.permutation`, which sorts again for the sake of ties
    that a rollout's few rows hardly ever have.
    """
    return jnp.argsort(jax.random.bits(key, (count,)))


class Improvement(NamedTuple):
    """How one of the networks learns."""

    loss: Callable[..., tuple[Array, Metrics]]  # parameters, rows -> loss, metrics
    learning_rate: Scalar
    max_grad_norm: Scalar


def epoch(how: Improvement, rows: PyTree, learned: Learned, shuffled: Array) -> tuple[Learned, Metrics]:
    """One pass over all rows, `[L, N, ...]`; `shuffled` `[M, N / M]` has those of each minibatch. Metrics are means."""
    batches = jax.tree.map(lambda leaf: jnp.swapaxes(leaf[:, shuffled], 0, 1), rows)
    learned, metrics = jax.lax.scan(partial(_improve, how), learned, batches)
    return learned, jax.tree.map(jnp.mean, metrics)


def _improve(how: Improvement, learned: Learned, rows: PyTree) -> tuple[Learned, Metrics]:
    gradient, metrics = jax.grad(how.loss, has_aux=True)(learned.params, rows=rows)
    gradient = gradients.clip_norm(gradient, how.max_grad_norm)
    return gradients.adam(learned, gradient, how.learning_rate, EPSILON), metrics


def guarded_epoch(
    how: Improvement, rows: PyTree, kl_threshold: Scalar, carry: tuple[Learned, Array], shuffled: Array
) -> tuple[tuple[Learned, Array], tuple[Array, Metrics]]:
    """A pass over all rows that changes nothing once the policy has moved too far from the one that acted.

    Args:
      kl_threshold: `[]`, of the mean of the metric `kl` over a pass; the pass that is above it is the last.
      carry: what is learned, and whether it has stopped, `[]` bool.

    Returns:
      The carry after it; whether the pass was made, and its metrics.
    """
    before, stopped = carry
    after, metrics = epoch(how, rows, before, shuffled)
    far = metrics["kl"] > kl_threshold
    return (trees.where(stopped, before, after), stopped | far), (~stopped, metrics)
