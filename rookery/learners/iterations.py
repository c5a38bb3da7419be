"""Training of a generation in iterations, so that a generation can be split into several compiled calls.

A compiled call cannot be interrupted. A run therefore compiles `Training.advance` once for any number of iterations and
calls it repeatedly: between calls it reports progress, and it responds to a signal within a bounded time. The split
does not change any bit of the results, since the same compiled loop runs the same iterations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery.agents import backend
from rookery.learners.base import Bank, Member, StepFn
from rookery.settings import METRIC_NAMES, TRAIN_RETURN, check_names
from rookery.types import Array, Key, Metrics, PyTree


class IterateFn(Protocol):
    """Run one iteration of a member's training; the key is consumed.

    Args:
      member: the member to train.
      bank: start states of the generation.
      key: consumed.
      count: `[]` int32, number of iterations before this one since the start of the run; never batched.

    Returns:
      The member, and the values that the iteration logs, leaves of any shape.
    """

    def __call__(self, member: Member, bank: Bank, key: Key, count: Array) -> tuple[Member, PyTree]: ...


class AdvanceFn(Protocol):
    """Run some iterations of a generation.

    Args:
      member: the member to train.
      log: the values logged so far in this generation, leaves `[T, ...]`.
      bank: start states of the generation.
      key: key of the whole generation, from which each iteration derives its key.
      generation: `[]` int32, never batched.
      first: `[]` int32 or int, index of the first iteration to run, counted from 0 in the generation; never batched.
      last: likewise, the index after the last iteration to run.

    Returns:
      The member and the log.
    """

    def __call__(
        self,
        member: Member,
        log: PyTree,
        bank: Bank,
        key: Key,
        generation: Array,
        first: Array | int,
        last: Array | int,
    ) -> tuple[Member, PyTree]: ...


@dataclass(frozen=True, eq=False)
class Training:
    """A `StepFn` that can be interrupted and continued between any two iterations."""

    start: Callable[[Member, Bank], PyTree]
    """Create the log of a generation before its first iteration, leaves `[T, ...]`."""
    advance: AdvanceFn
    summarize: Callable[[PyTree], Metrics]
    """Compute the metrics `[]` of a generation from its complete log."""
    iterations: int
    """T, number of iterations per generation, at least 1."""

    def __call__(self, member: Member, bank: Bank, key: Key, generation: Array) -> tuple[Member, Metrics]:
        """Run the whole generation: the `StepFn`."""
        member, log = self.advance(member, self.start(member, bank), bank, key, generation, 0, self.iterations)
        return member, self.summarize(log)


class Phases(NamedTuple):
    """The same iterations without a conditional, in two loops, for `backend.prefers_few_kernels`."""

    pack: Callable[[Member], Member]
    """Rearranges a member for the loops."""
    unpack: Callable[[Member], Member]
    """The inverse of `pack`."""
    warmup: IterateFn
    """An iteration at the start of the run."""
    warmup_iterations: int
    """Number of these iterations."""
    main: IterateFn
    """Any later iteration."""


def training(
    iterate: IterateFn, summarize: Callable[[PyTree], Metrics], iterations: int, phases: Phases | None = None
) -> Training:
    """Build a generation of `iterations` calls of `iterate`, or of those in `phases`; see `Training`."""
    # With jit, `iterate` is traced once for both the shapes of the log and the loop.
    loop = _Loop(jax.jit(iterate), iterations, phases)
    return Training(partial(_start, loop), partial(_advance, loop), summarize, iterations)


class _Loop(NamedTuple):
    iterate: IterateFn
    iterations: int
    phases: Phases | None


def _start(loop: _Loop, member: Member, bank: Bank) -> PyTree:
    # The arguments have the types that they have in the loop, devices included, so that `iterate` is traced once.
    index = jnp.zeros((), jnp.int32)
    key = jax.eval_shape(jax.random.fold_in, jax.random.key(0), index)
    row = jax.eval_shape(loop.iterate, member, bank, key, index)[1]
    return jax.tree.map(lambda leaf: jnp.zeros((loop.iterations, *leaf.shape), leaf.dtype), row)


def _advance(
    loop: _Loop,
    member: Member,
    log: PyTree,
    bank: Bank,
    key: Key,
    generation: Array,
    first: Array | int,
    last: Array | int,
) -> tuple[Member, PyTree]:
    def run_iteration(iterate: IterateFn, index: Array, carry: tuple[Member, PyTree]) -> tuple[Member, PyTree]:
        member, log = carry
        count = generation * loop.iterations + index
        member, row = iterate(member, bank, jax.random.fold_in(key, index), count)
        return member, jax.tree.map(
            lambda rows, new: jax.lax.dynamic_update_index_in_dim(rows, new, index, 0), log, row
        )

    phases = loop.phases
    if phases is None or not backend.prefers_few_kernels():
        return jax.lax.fori_loop(first, last, partial(run_iteration, loop.iterate), (member, log))
    carry = phases.pack(member), log
    if phases.warmup_iterations:
        end = jnp.clip(phases.warmup_iterations - generation * loop.iterations, first, last)
        carry = jax.lax.fori_loop(first, end, partial(run_iteration, phases.warmup), carry)
        first = end
    member, log = jax.lax.fori_loop(first, last, partial(run_iteration, phases.main), carry)
    return phases.unpack(member), log


def divisible(step: StepFn) -> Training:
    """Return a `StepFn` as a `Training`; one that is not a `Training` becomes a single iteration."""
    if isinstance(step, Training):
        return step
    return Training(partial(_start_whole, step), partial(_advance_whole, step), _last_row, 1)


def _start_whole(step: StepFn, member: Member, bank: Bank) -> PyTree:
    metrics = jax.eval_shape(step, member, bank, jax.random.key(0), jnp.zeros((), jnp.int32))[1]
    check_names("metric of the learner", metrics, [name for name in METRIC_NAMES if name not in _OF_LEARNERS])
    return jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), metrics)


_OF_LEARNERS = ("reward", "broken_", TRAIN_RETURN, f"{TRAIN_RETURN}/", "train_episodes", "train_episode_length")
"""Metrics that a learner computes itself."""


def _advance_whole(
    step: StepFn, member: Member, log: PyTree, bank: Bank, key: Key, generation: Array, *_: Array | int
) -> tuple[Member, PyTree]:
    member, metrics = step(member, bank, key, generation)
    return member, jax.tree.map(lambda rows, new: rows.at[0].set(new), log, metrics)


def _last_row(log: PyTree) -> Metrics:
    return jax.tree.map(lambda rows: rows[-1], log)
