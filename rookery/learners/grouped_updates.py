"""The updates of a block in few kernels, for `backend.prefers_few_kernels`: several in each repetition of a loop.

Each update is traced with its place in the group, so that the agent decides at trace time what it consists of. Where
the agent's period does not divide the updates of a block, the block begins within a period; how far depends on the
block. Updates that complete this period, and those after the last whole group, run in loops of zero or one repetition:
they skip an update without a copy of the state, as XLA makes for every array that leaves a conditional.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.agents.base import UpdateLayout
from rookery.types import Array, Metrics, PyTree

UpdateFn = Callable[[PyTree, PyTree], tuple[PyTree, Metrics]]


class Schedule(NamedTuple):
    """The updates of a block whose first update has a given place in the period."""

    before: range
    """Places of the updates that complete the period, as far as the block has updates."""
    groups: int
    """Whole groups after them."""
    after: range
    """Places of the updates after the groups."""


def schedule(updates: int, layout: UpdateLayout, place: int) -> Schedule:
    """Divide a block of U updates, the first of which has `place` in the period, into groups and single updates."""
    before = min(-place % layout.period, updates)
    groups, after = divmod(updates - before, layout.group)
    return Schedule(range(place, place + before), groups, range(after))


def run(
    update: UpdateFn, layout: UpdateLayout, state: PyTree, inputs: tuple[Array, PyTree], first: Array
) -> tuple[PyTree, Metrics]:
    """Run the updates of a block.

    Args:
      update: computes the next state and metrics `[]` from a state and a triple: a row of each of the `inputs`, and the
        update's number, which is its place in the group unless the group is 1.
      layout: the agent's period and group.
      state: before the updates.
      inputs: indices and noise, leaves `[U, ...]`.
      first: `[]` int32, number of updates before these, a multiple of U; never batched.

    Returns:
      The state, and the metrics averaged over the updates.
    """
    updates = inputs[0].shape[0]
    row = jax.eval_shape(update, state, (*trees.take(inputs, 0), first))[1]
    leaves, structure = jax.tree.flatten(row)
    carry = state, jnp.zeros(len(leaves))
    if layout.group == 1:
        carry, _ = jax.lax.scan(partial(_run_numbered, update), carry, (inputs, first + jnp.arange(updates)))
    else:
        carry = _run_groups(update, layout, carry, inputs, first)
    state, sums = carry
    return state, jax.tree.unflatten(structure, list(sums / updates))


def _run_groups(
    update: UpdateFn, layout: UpdateLayout, carry: tuple[PyTree, Array], inputs: PyTree, first: Array
) -> tuple[PyTree, Array]:
    updates, period = inputs[0].shape[0], layout.period
    stride = math.gcd(updates, period)  # the first update of every block has a multiple of it as its place
    schedules = [schedule(updates, layout, place) for place in range(0, period, stride)]
    block = first % period // stride
    begin = _of_block([len(one.before) for one in schedules], block)

    for place in range(1, period):
        index = _of_block([max(place - one.before.start, 0) for one in schedules], block)
        count = _of_block([int(place in one.before) for one in schedules], block)
        carry = _repeat(count, partial(_run_group, update, inputs, index, range(place, place + 1)), carry)
    groups = _of_block([one.groups for one in schedules], block)
    carry = _repeat(groups, partial(_run_group, update, inputs, begin, range(layout.group)), carry)
    for place in range(layout.group - 1):
        index = begin + groups * layout.group + place
        count = _of_block([int(place in one.after) for one in schedules], block)
        carry = _repeat(count, partial(_run_group, update, inputs, index, range(place, place + 1)), carry)
    return carry


def _of_block(values: Sequence[int], block: Array) -> Array | int:
    """The value of the block; an int if all blocks have the same."""
    return values[0] if len(set(values)) == 1 else jnp.asarray(values, jnp.int32)[block]


def _repeat(
    count: Array | int, run_once: Callable[[Array | int, PyTree], PyTree], carry: tuple[PyTree, Array]
) -> tuple[PyTree, Array]:
    """Call `run_once` with 0, 1, ... `count` - 1; without a loop if it is known that this is at most one call."""
    if isinstance(count, int) and count <= 1:
        return run_once(0, carry) if count else carry
    return jax.lax.fori_loop(0, count, run_once, carry)


def _run_group(
    update: UpdateFn,
    inputs: PyTree,
    begin: Array | int,
    places: range,
    repetition: Array | int,
    carry: tuple[PyTree, Array],
) -> tuple[PyTree, Array]:
    """Run updates with consecutive places; the inputs of the first repetition begin at the row `begin`."""
    for offset, place in enumerate(places):
        row = trees.take(inputs, begin + repetition * len(places) + offset)
        carry = _run_numbered(update, carry, (row, place))[0]
    return carry


def _run_numbered(
    update: UpdateFn, carry: tuple[PyTree, Array], inputs: tuple[PyTree, Array | int]
) -> tuple[tuple[PyTree, Array], None]:
    state, sums = carry
    row, number = inputs
    state, metrics = update(state, (*row, number))
    return (state, sums + jnp.stack(jax.tree.leaves(metrics))), None
