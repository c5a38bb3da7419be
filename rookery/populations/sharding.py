"""The placement of members and repertoires on devices, and access to rows that are on other devices.

This module implements the placement on one device; `rookery.distributed.placement` creates the placement on a mesh.
Programs use only this interface and contain no code that is specific to devices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.populations.base import PopulationMap, vmap
from rookery.types import Array, PyTree


class TakeFn(Protocol):
    """Read rows `indices` `[N]` of every leaf, from whichever device; the result is replicated."""

    def __call__(self, tree: PyTree, indices: Array) -> PyTree: ...


class PutFn(Protocol):
    """Write rows `[N, ...]` at `indices` `[N]`, unique; an index beyond the leading axis writes nothing."""

    def __call__(self, tree: PyTree, indices: Array, rows: PyTree) -> PyTree: ...


class Rows(NamedTuple):
    """Reads and writes rows of arrays that may be sharded; both transfer only the named rows."""

    take: TakeFn
    put: PutFn


HERE = Rows(trees.take, trees.scatter)
"""`Rows` on one device."""


class Shares(NamedTuple):
    """Access to a whole population from a function that runs on one shard `[N, ...]` of it."""

    rows: Rows
    """Reads and writes rows by their index in the whole population."""
    gather: Callable[[PyTree], PyTree]
    """Concatenates the shards of all devices."""
    local: Callable[[PyTree], PyTree]
    """Selects this device's shard of a tree that covers the whole population."""
    arrange: Callable[[PyTree, Array], PyTree]
    """The shard of a tree whose row i is row `sources[i]` of the given one, for sources `[P]`; transfers all rows."""


def unchanged(tree: PyTree) -> PyTree:
    """The identity function."""
    return tree


WHOLE = Shares(HERE, unchanged, unchanged, trees.take)
"""`Shares` on one device, whose shard is the whole population."""


class MoveFn(Protocol):
    """Returns a tree `[P, ...]` whose row i is row `sources[i]` of the given one; see `moved`."""

    def __call__(self, tree: PyTree, sources: Array, in_place: bool = False) -> PyTree: ...


def moved(tree: PyTree, sources: Array, shares: Shares, in_place: bool = False) -> PyTree:
    """Return a tree `[P, ...]` whose row i is row `sources[i]` of the given one.

    Only rows with another source are moved, a few at a time: the transfer between devices is proportional to the number
    of moved rows and not to the population, and the temporary memory is bounded by `rows_at_once`. A tree of at most
    16 MB is gathered on every device instead, which compiles in less time than the loop.

    Args:
      tree: leaves `[P, ...]`, or one device's shard of them.
      sources: `[P]` int32.
      shares: access to the other devices' shards; `WHOLE` if there are none.
      in_place: write into the given tree; requires sources that form a forest, as parents do.

    Returns:
      The tree with the moved rows.
    """
    if not jax.tree.leaves(tree):  # e.g. the buffers of an on-policy learner
        return tree
    size, rows = sources.shape[0], shares.rows
    if trees.size_in_bytes(tree) * (size // len(jax.tree.leaves(tree)[0])) <= _GATHERED_BYTES:
        return shares.arrange(tree, sources)
    depth = _depth(sources)
    # A row must be read before it is overwritten, so the deepest rows move first. In a cycle all depths are equal.
    deepest_first, count = jnp.argsort(-depth), jnp.sum(depth > 0)
    at_once = rows_at_once(tree, size)

    def move(index: Array, result: PyTree) -> PyTree:
        places = index * at_once + jnp.arange(at_once)
        slots = deepest_first[jnp.minimum(places, size - 1)]
        arriving = rows.take(result if in_place else tree, sources[slots])
        return rows.put(result, jnp.where(places < count, slots, size + places), arriving)

    return jax.lax.fori_loop(0, -(-count // at_once), move, tree)


def _depth(parents: Array) -> Array:
    """The number of steps from each member to its surviving ancestor, `[P]`.

    The depth is above 1 if the parent is itself replaced. All members of a cycle have the same depth, at least P.
    Computed by pointer doubling in O(log P) rounds.
    """
    members = jnp.arange(parents.shape[0])

    def double(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        ancestor, depth = carry
        return ancestor[ancestor], depth + depth[ancestor]

    rounds = max(parents.shape[0] - 1, 1).bit_length()
    return jax.lax.fori_loop(0, rounds, double, (parents, (parents != members).astype(jnp.int32)))[1]


def rows_at_once(tree: PyTree, size: int) -> int:
    """The number of rows that `moved` moves at a time: an eighth of `size`, at most 64 MB, at least one row."""
    row_bytes = trees.size_in_bytes(tree) // max(jax.tree.leaves(tree)[0].shape[0], 1)
    return max(1, min(size // 8, _MOST_BYTES // max(row_bytes, 1)))


_MOST_BYTES = 64 * 2**20
_GATHERED_BYTES = 16 * 2**20


def move_here(tree: PyTree, sources: Array, in_place: bool = False) -> PyTree:
    """`moved` on one device."""
    return moved(tree, sources, WHOLE, in_place)


def call(function: Callable, *arguments: PyTree) -> PyTree:
    """Call `function(*arguments)`: the `Placement.everywhere` of one device."""
    return function(*arguments)


class Placement(NamedTuple):
    """Maps and moves members, and accesses the cells of a repertoire, on one device or on a mesh."""

    map: PopulationMap = vmap
    """Maps a function over the members."""
    everywhere: Callable[..., PyTree] = call
    """Calls a function on every device with replicated arguments, so that all devices compute the same decision."""
    move: MoveFn = move_here
    """Moves members between slots."""
    take: TakeFn = trees.take
    """Reads members by their slots, onto every device."""
    cells: Rows = HERE
    """Reads and writes the genotypes of a repertoire."""
    divides_cells: bool = False
    """Whether each device stores a shard of the cells; `cells` must then support it."""
    mesh: Any = None
    """The devices, a `jax.sharding.Mesh`; None for one device, whichever it is."""
    exact: bool = False
    """Whether `map` computes the members of a device one by one."""


ONE_DEVICE = Placement()
"""The placement on one device; `rookery.distributed.placement` creates the placement on a mesh."""
