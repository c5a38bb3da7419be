"""Epochs of shuffled minibatches over a rollout, for any loss and optimiser."""

from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from rookery import gradients, normalize, trees
from rookery.gradients import Learned
from rookery.types import Array, HasParams, Hyper, Key, Metrics, PyTree, Scalar

TrainStateT = TypeVar("TrainStateT", bound=HasParams)
CriticStateT = TypeVar("CriticStateT", bound=HasParams)

EPSILON = 1e-5  # Adam's epsilon in the code of Schulman 2017
PACKED_ROWS = 2048
"""The largest number of rows whose indices are the low bits of their random numbers. With the other 21 bits, one pair
of 2,048 rows ties on average, and keeps its order."""


def shuffle(count: int, key: Key) -> Array:
    """Return a permutation of `count` rows, `[count]`; the key is consumed.

    Random numbers are sorted once, which takes half the time of `jax.random.permutation`; that function sorts again to
    break ties, which almost never occur among the few rows of a rollout. Up to `PACKED_ROWS` rows, each number contains
    its row's index: on a CPU, XLA sorts single numbers five times as fast as pairs.
    """
    numbers = jax.random.bits(key, (count,))
    if count > PACKED_ROWS:
        return jnp.argsort(numbers)
    mask = (1 << max(count - 1, 1).bit_length()) - 1
    packed = (numbers & ~jnp.uint32(mask)) | jnp.arange(count, dtype=numbers.dtype)
    return (jnp.sort(packed) & mask).astype(jnp.int32)


class UpdateSpec(NamedTuple, Generic[TrainStateT]):
    """How to train one of the networks."""

    loss: Callable[..., tuple[Array, Metrics]]
    """Parameters, rows -> loss, metrics."""
    apply_gradient: Callable[[TrainStateT, PyTree], TrainStateT]
    """State, gradient -> updated state."""
    make_minibatches: Callable[[PyTree], PyTree]
    """Shuffled indices of an epoch -> its minibatches, `[M, ...]`."""


def cut_rows(rows: PyTree, shuffled: Array) -> PyTree:
    """Return minibatches `[M, L, N / M, ...]` of rows `[L, N, ...]`; `shuffled` `[M, N / M]` holds each one's row
    indices."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf[:, shuffled], 0, 1), rows)


def annealed(step: Array, updates: int | None) -> Array | float:
    """The factor of a learning rate that falls linearly to 0 over `updates`, after `step` `[]` of them; 1 without."""
    return jnp.maximum(0.0, 1.0 - step / updates) if updates else 1.0


def clipped_adam(
    learning_rate: Scalar, max_grad_norm: Scalar, hyper: Hyper, learned: Learned, gradient: PyTree
) -> Learned:
    """Apply one Adam step with the gradient clipped to a global norm of `max_grad_norm`; see `gradients.adam`."""
    gradient = gradients.clip_norm(gradient, max_grad_norm)
    return gradients.adam(learned, gradient, learning_rate, EPSILON, hyper)


def epoch(spec: UpdateSpec[TrainStateT], state: TrainStateT, shuffled: PyTree) -> tuple[TrainStateT, Metrics]:
    """Train on all rows once; metrics `[]` are means over the minibatches."""
    state, metrics = jax.lax.scan(partial(_update, spec), state, spec.make_minibatches(shuffled))
    return state, jax.tree.map(jnp.mean, metrics)


def _update(spec: UpdateSpec[TrainStateT], state: TrainStateT, rows: PyTree) -> tuple[TrainStateT, Metrics]:
    gradient, metrics = jax.grad(spec.loss, has_aux=True)(state.params, rows=rows)
    return spec.apply_gradient(state, gradient), metrics


def guarded_epoch(
    spec: UpdateSpec[TrainStateT], kl_threshold: Scalar, carry: tuple[TrainStateT, Array], shuffled: PyTree
) -> tuple[tuple[TrainStateT, Array], tuple[Array, Metrics]]:
    """Train on all rows once, unless an earlier epoch exceeded the KL threshold.

    Args:
      spec: how to train the network.
      kl_threshold: `[]`, threshold for the mean of the metric `kl` over an epoch; the epoch that exceeds it is the
        last.
      carry: the training state, and whether training has stopped, `[]` bool.
      shuffled: indices that the minibatches are made from.

    Returns:
      The carry after the epoch; whether the epoch was applied, and its metrics.
    """
    before, stopped = carry
    after, metrics = epoch(spec, before, shuffled)
    exceeded = metrics["kl"] > kl_threshold
    return (trees.where(stopped, before, after), stopped | exceeded), (~stopped, metrics)


def train_both(
    specs: tuple[UpdateSpec[TrainStateT], UpdateSpec[CriticStateT]],
    kl_threshold: Scalar,
    states: tuple[TrainStateT, CriticStateT],
    shuffled: tuple[PyTree, PyTree],
    epochs: Array | None = None,
) -> tuple[tuple[TrainStateT, CriticStateT], Metrics]:
    """Run all epochs of the policy, until one exceeds the KL threshold, then all epochs of the critic.

    Args:
      specs: how to train the policy, whose loss reports the metric `kl`, and the critic.
      kl_threshold: see `guarded_epoch`.
      states: training states of policy and critic.
      shuffled: indices that the minibatches are made from, with a leading axis of epochs, for policy and critic.
      epochs: `[]` int32, the number of epochs that count, if not all; the others are computed all the same.

    Returns:
      The training states, and metrics `[]`: those of the losses, averaged over the minibatches (for the policy, over
      the epochs before it stopped), and actor_epochs, the number of epochs that trained the policy.
    """
    policy_epoch, begun = partial(guarded_epoch, specs[0], kl_threshold), (states[0], jnp.asarray(False))
    (policy, _), (applied, of_policy) = _run_epochs(policy_epoch, begun, shuffled[0], epochs)
    critic, of_critic = _run_epochs(partial(epoch, specs[1]), states[1], shuffled[1], epochs)
    mean = jnp.mean
    if epochs is not None:
        applied &= jnp.arange(len(applied)) < epochs
        mean = partial(normalize.mean_of, jnp.arange(len(jax.tree.leaves(of_critic)[0])) < epochs)
    metrics = {**jax.tree.map(partial(normalize.mean_of, applied), of_policy), **jax.tree.map(mean, of_critic)}
    return (policy, critic), {**metrics, "actor_epochs": jnp.sum(applied.astype(jnp.float32))}


def _run_epochs(
    run: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], before: PyTree, shuffled: PyTree, epochs: Array | None
) -> tuple[PyTree, PyTree]:
    """Run an epoch for each row of the indices; those that do not count change nothing, but have results too."""
    if epochs is None:
        return jax.lax.scan(run, before, shuffled)

    def counted(state: PyTree, numbered: tuple[Array, PyTree]) -> tuple[PyTree, PyTree]:
        number, indices = numbered
        after, result = run(state, indices)
        return trees.where(number < epochs, after, state), result

    return jax.lax.scan(counted, before, (jnp.arange(len(jax.tree.leaves(shuffled)[0])), shuffled))
