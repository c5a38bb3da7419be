"""The loop over the steps of full episodes, in which members whose episodes have ended take no more time.

On a CPU a step takes as long as its lanes are many, and most policies of a repertoire fall long before the best one. So
there `jax.vmap` of the loop does not step all members together until the last episode ends: it steps small groups of
members, and after every few steps forms the groups again of those members that still have an active episode. On a GPU,
where a step of one group takes as long as a step of all, there is one group. What an episode computes does not depend
on the groups, except for rounding; with `exact` placement members are computed one by one, and there are none.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from rookery import trees
from rookery.agents import backend
from rookery.types import Array, Key, PyTree

LANES = 32
"""Episodes that are stepped together on a CPU: with fewer its vector units are not filled."""
ROUND = 32
"""Steps between two formations of the groups, which copies the members' parameters."""


class AdvanceFn(Protocol):
    """Step the episodes of a member once.

    The running state has a field `active`, `[N]` or `[N, I]` bool: which episodes, or agents in them, have not ended;
    a step must not change the results of those that have. The second result is a row of the record.
    """

    def __call__(self, genotype: PyTree, key: Key, run: PyTree, time: Array) -> tuple[PyTree, PyTree]: ...


class EpisodeLoop(NamedTuple):
    """The static arguments of the loop."""

    advance: AdvanceFn
    episodes: int
    """N, of a member."""
    length: int
    """T, the steps after which the loop ends in any case."""
    together: bool = False
    """Whether all members are always stepped together, as an environment on the host needs it."""


def run_episodes(
    loop: EpisodeLoop, genotype: PyTree, key: Key, start: PyTree, record: PyTree = ()
) -> tuple[PyTree, PyTree]:
    """Step the episodes of a member, or with `jax.vmap` those of many, until the last one ends.

    Args:
      loop: what to do.
      genotype: passed to each step.
      key: passed to each step.
      start: the state before the first step.
      record: `[T, N, ...]`, zeros, for what the steps record; () if they record nothing.

    Returns:
      The state after the last step, and the record.
    """
    run = custom_vmap(partial(_run_one, loop))
    run.def_vmap(partial(_run_members, loop))
    return run(genotype, key, start, record)


def _run_one(loop: EpisodeLoop, genotype: PyTree, key: Key, start: PyTree, record: PyTree) -> tuple[PyTree, PyTree]:
    return _steps(partial(loop.advance, genotype, key), start, record, 0, loop.length)


def _steps(
    step: Callable[..., tuple[PyTree, PyTree]], run: PyTree, record: PyTree, first: Array | int, last: Array | int
) -> tuple[PyTree, PyTree]:
    """Run the steps from `first` to `last` while any episode is active; `record` has a row for each."""

    def some(carry: tuple[PyTree, PyTree, Array]) -> Array:
        run, _, time = carry
        return run.active.any() & (time < last)

    def step_once(carry: tuple[PyTree, PyTree, Array]) -> tuple[PyTree, PyTree, Array]:
        run, record, time = carry
        run, row = step(run, time)
        return run, jax.tree.map(lambda rows, row: rows.at[time - first].set(row), record, row), time + 1

    return jax.lax.while_loop(some, step_once, (run, record, jnp.asarray(first, jnp.int32)))[:2]


def _run_members(
    loop: EpisodeLoop, size: int, in_batched: list[PyTree], genotype: PyTree, key: Key, start: PyTree, record: PyTree
) -> tuple[tuple[PyTree, PyTree], PyTree]:
    """The loop for `size` members at once."""
    given, mapped = (genotype, key), jax.tree.map(bool, in_batched[:2])
    carry = jax.tree.map(partial(_for_each, size), (start, record), tuple(in_batched[2:]))
    groups = 1 if loop.together or backend.platform() != "cpu" else min(-(-size * loop.episodes // LANES), size)
    members = -(-size // groups)  # of a group

    def step(arguments: tuple[PyTree, Key], run: PyTree, time: Array) -> tuple[PyTree, PyTree]:
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(mapped))
        return jax.vmap(loop.advance, in_axes=(*axes, 0, None))(*arguments, run, time)

    def run_group(first: Array, order: Array, group: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        run, record = carry
        places, last = group * members + jnp.arange(members), jnp.minimum(first + ROUND, loop.length)
        read = order[jnp.minimum(places, size - 1)]
        slots = jnp.where(places < size, read, places)  # unique; the last group may have empty places
        arguments = jax.tree.map(lambda leaf, batched: leaf[read] if batched else leaf, given, tuple(mapped))
        rows = jax.tree.map(lambda leaf: jnp.zeros((ROUND, members, *leaf.shape[2:]), leaf.dtype), record)
        part, rows = _steps(partial(step, arguments), trees.take(run, read), rows, first, last)
        times = first + jnp.arange(ROUND)
        record = jax.tree.map(lambda kept, new: kept.at[slots[None], times[:, None]].set(new), record, rows)
        return trees.scatter(run, slots, part), record

    def run_round(carry: tuple[tuple[PyTree, PyTree], Array]) -> tuple[tuple[PyTree, PyTree], Array]:
        so_far, first = carry
        active = so_far[0].active.reshape(size, -1).any(axis=1)
        count, order = -(-jnp.sum(active) // members), jnp.argsort(~active, stable=True)
        return jax.lax.fori_loop(0, count, partial(run_group, first, order), so_far), first + ROUND

    def some(carry: tuple[tuple[PyTree, PyTree], Array]) -> Array:
        so_far, first = carry
        return so_far[0].active.any() & (first < loop.length)

    if groups == 1 and not jax.tree.leaves(record):
        outputs = _steps(partial(step, given), carry[0], carry[1], 0, loop.length)
    else:
        outputs, _ = jax.lax.while_loop(some, run_round, (carry, jnp.zeros((), jnp.int32)))
    return outputs, jax.tree.map(lambda _: True, outputs)


def _for_each(size: int, leaf: Array, batched: bool) -> Array:
    return leaf if batched else jnp.broadcast_to(leaf, (size, *leaf.shape))
