"""Critics that learn from the transitions of all evaluations, and the actor that is trained with them."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import buffers, trees
from rookery.agents.base import OffPolicyAgent
from rookery.learners.base import Member
from rookery.learners.off_policy import learn
from rookery.settings import SettingError
from rookery.types import Array, Key, Metrics

_LONGEST_BLOCK = 25  # updates of an iteration, between two of which a generation can be interrupted


class Critics(NamedTuple):
    """The static arguments of the critics' training."""

    agent: OffPolicyAgent
    buffer: buffers.Buffer
    steps: int
    """Updates in a generation."""
    batch_size: int

    @property
    def block(self) -> int:
        """Updates in an iteration, a divisor of `steps`."""
        return max(size for size in range(1, min(self.steps, _LONGEST_BLOCK) + 1) if self.steps % size == 0)

    @property
    def iterations(self) -> int:
        """Iterations in a generation."""
        return self.steps // self.block


class Training(NamedTuple):
    """The state of the critics between two generations."""

    member: Member
    """TD3's state, and the replay buffer; no environments."""
    updates: Array
    """`[]` int32, all updates so far."""


def empty_log(critics: Critics, training: Training) -> Metrics:
    """The metrics of no updates."""
    shapes = jax.eval_shape(partial(_block, critics), training, jax.random.key(0))[1]
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def restarted(critics: Critics, training: Training, key: Key) -> Training:
    """New critics and an empty buffer, if a number of the critics is not finite, which no update would change."""
    member, diverged = training.member, ~trees.all_finite(training.member.state)
    fresh = critics.agent.start(critics.agent.init(key))
    state, buffer = trees.where(diverged, fresh, member.state), buffers.clear(member.buffer, diverged)
    return training._replace(member=member._replace(state=state, buffer=buffer))


def train(
    critics: Critics, training: Training, log: Metrics, key: Key, first: Array, last: Array
) -> tuple[Training, Metrics]:
    """Run the iterations `first` to `last - 1` of a generation, or none while the buffer is empty.

    The key is folded by the iteration, so that the place of a cut changes no bit.

    Returns:
      The state, and the log with the metrics of the iterations added.
    """

    def iterate(iteration: Array, carry: tuple[Training, Metrics]) -> tuple[Training, Metrics]:
        state, sums = carry
        state, metrics = _block(critics, state, jax.random.fold_in(key, iteration))
        return state, jax.tree.map(jnp.add, sums, metrics)

    last = jnp.where(training.member.buffer.size > 0, last, first)
    return jax.lax.fori_loop(first, last, iterate, (training, log))


def _block(critics: Critics, training: Training, key: Key) -> tuple[Training, Metrics]:
    """A block of updates, and its mean metrics divided by the number of blocks."""
    updates = critics.block
    state, metrics = learn(
        critics.agent, critics.buffer, training.member, key, training.updates, updates, critics.batch_size
    )
    metrics = jax.tree.map(lambda value: value / critics.iterations, dict(metrics))
    return Training(training.member._replace(state=state), training.updates + updates), metrics


def check_capacity(capacity: int, batch_size: int, episodes: int, length: int) -> None:
    """Check that the buffer can store the transitions of a generation.

    Raises:
      ValueError: the capacity of the buffer is too small.
    """
    needed = math.prod((batch_size, episodes, length))
    if capacity < needed:
        problem = (
            f"must be at least {needed}, the transitions of a generation ({batch_size} policies x {episodes} episodes "
        )
        remedy = "enlarge it, or evaluate fewer or shorter episodes"
        raise SettingError("buffer_size", capacity, f"{problem}x {length} steps)", remedy)
