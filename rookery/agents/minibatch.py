"""Passes over a rollout in shuffled minibatches, whatever is learned from them and by whatever optimiser."""

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from rookery import gradients, trees
from rookery.agents.base import HasParams
from rookery.gradients import Learned
from rookery.types import Array, Key, Metrics, PyTree, Scalar

TrainStateT = TypeVar("TrainStateT", bound=HasParams)

EPSILON = 1e-5  # Adam's, as the code of Schulman 2017 has it


def shuffle(count: int, key: Key) -> Array:
    """A permutation of `count` rows, `[count]`; the key is consumed.

    Random numbers are sorted once, in half the time of `jax.random.permutation`, which sorts again for the sake of ties
    that a rollout's few rows hardly ever have.
    """
    return jnp.argsort(jax.random.bits(key, (count,)))


class UpdateSpec(NamedTuple, Generic[TrainStateT]):
    """How one of the networks learns."""

    loss: Callable[..., tuple[Array, Metrics]]  # parameters, rows -> loss, metrics
    move: Callable[[TrainStateT, PyTree], TrainStateT]  # what is done with a gradient
    cut: Callable[[PyTree], PyTree]  # what an epoch draws -> its minibatches, [M, ...]


def cut_rows(rows: PyTree, shuffled: Array) -> PyTree:
    """Minibatches `[M, L, N / M, ...]` of rows `[L, N, ...]`; `shuffled` `[M, N / M]` says who is in which."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf[:, shuffled], 0, 1), rows)


def clipped_adam(learning_rate: Scalar, max_grad_norm: Scalar, learned: Learned, gradient: PyTree) -> Learned:
    """A step of Adam along a gradient whose global norm is `max_grad_norm` at most."""
    gradient = gradients.clip_norm(gradient, max_grad_norm)
    return gradients.adam(learned, gradient, learning_rate, EPSILON)


def epoch(how: UpdateSpec[TrainStateT], learned: TrainStateT, drawn: PyTree) -> tuple[TrainStateT, Metrics]:
    """One pass over all rows; metrics `[]` are means over the minibatches."""
    learned, metrics = jax.lax.scan(partial(_improve, how), learned, how.cut(drawn))
    return learned, jax.tree.map(jnp.mean, metrics)


def _improve(how: UpdateSpec[TrainStateT], learned: TrainStateT, rows: PyTree) -> tuple[TrainStateT, Metrics]:
    gradient, metrics = jax.grad(how.loss, has_aux=True)(learned.params, rows=rows)
    return how.move(learned, gradient), metrics


def guarded_epoch(
    how: UpdateSpec[TrainStateT], kl_threshold: Scalar, carry: tuple[TrainStateT, Array], drawn: PyTree
) -> tuple[tuple[TrainStateT, Array], tuple[Array, Metrics]]:
    """A pass over all rows that changes nothing once the policy has moved too far from the one that acted.

    Args:
      kl_threshold: `[]`, of the mean of the metric `kl` over a pass; the pass that is above it is the last.
      carry: what is learned, and whether it has stopped, `[]` bool.
      drawn: what the minibatches are cut by.

    Returns:
      The carry after it; whether the pass was made, and its metrics.
    """
    before, stopped = carry
    after, metrics = epoch(how, before, drawn)
    far = metrics["kl"] > kl_threshold
    return (trees.where(stopped, before, after), stopped | far), (~stopped, metrics)
