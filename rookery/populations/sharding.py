"""Where members and repertoires lie, and how what lies apart is reached. On one device everything is simply here.

`rookery.distributed.placement` gives that of a mesh; programs are written against this file and know no devices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.populations.base import PopulationMap, vmap
from rookery.types import Array, PyTree


class TakeFn(Protocol):
    """Rows `indices` `[N]` of every leaf, wherever they lie; everybody gets them."""

    def __call__(self, tree: PyTree, indices: Array) -> PyTree: ...


class PutFn(Protocol):
    """Write rows `[N, ...]` at `indices` `[N]`, unique; an index beyond the leading axis writes nothing."""

    def __call__(self, tree: PyTree, indices: Array, rows: PyTree) -> PyTree: ...


class Rows(NamedTuple):
    """How rows are read and written where they lie; either moves the rows named and nothing else."""

    take: TakeFn
    put: PutFn


HERE = Rows(trees.take, trees.scatter)
"""On one device."""


class Shares(NamedTuple):
    """How a function that is given a share `[N, ...]` of a population reaches the whole of it."""

    rows: Rows  # by number in the whole
    gather: Callable[[PyTree], PyTree]  # everybody's shares, one after the other
    own: Callable[[PyTree], PyTree]  # this share of the whole


class MoveFn(Protocol):
    """A tree `[P, ...]` whose row i is row `sources[i]` of the given one; see `moved`."""

    def __call__(self, tree: PyTree, sources: Array, in_place: bool = False) -> PyTree: ...


def moved(tree: PyTree, sources: Array, rows: Rows, in_place: bool = False) -> PyTree:
    """A tree `[P, ...]` whose row i is row `sources[i]` of the given one.

    Only rows that come from elsewhere are moved, a few at a time: what crosses between devices, and what a device holds
    of it at once, grows with the rows that move and not with the population.

    Args:
      tree: leaves `[P, ...]`; or a device's share of them, if `rows` reaches the others.
      sources: `[P]` int32.
      rows: how rows are reached, each by its number in the population.
      in_place: write into the given tree, for sources that form a forest, as parents do.
    """
    if not jax.tree.leaves(tree):  # as of buffers, where data is forgotten
        return tree
    size, depth = sources.shape[0], _depth(sources)
    # A row must be read before it changes, so the deepest move first. Around a circle all are equally deep.
    deepest_first, count = jnp.argsort(-depth), jnp.sum(depth > 0)
    at_once = rows_at_once(tree, size)

    def move(index: Array, result: PyTree) -> PyTree:
        places = index * at_once + jnp.arange(at_once)
        slots = deepest_first[jnp.minimum(places, size - 1)]
        arriving = rows.take(result if in_place else tree, sources[slots])
        return rows.put(result, jnp.where(places < count, slots, size + places), arriving)

    return jax.lax.fori_loop(0, -(-count // at_once), move, tree)


def _depth(parents: Array) -> Array:
    """How many steps each member stands below a survivor, `[P]`; a parent may be a child itself, of a better one.

    Around a circle all have the same, P at least. By doubling: the logarithm of P in steps.
    """
    members = jnp.arange(parents.shape[0])

    def leap(_: int, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        ancestor, depth = carry
        return ancestor[ancestor], depth + depth[ancestor]

    rounds = max(parents.shape[0] - 1, 1).bit_length()
    return jax.lax.fori_loop(0, rounds, leap, (parents, (parents != members).astype(jnp.int32)))[1]


def rows_at_once(tree: PyTree, size: int) -> int:
    """How many rows of a population of `size` `moved` moves at a time: an eighth, and no more than 64 MB."""
    leaves = jax.tree.leaves(tree)
    row_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // max(leaves[0].shape[0], 1)
    return max(1, min(size // 8, _MOST_BYTES // max(row_bytes, 1)))


_MOST_BYTES = 64 * 2**20


def move_here(tree: PyTree, sources: Array, in_place: bool = False) -> PyTree:
    """`moved` on one device."""
    return moved(tree, sources, HERE, in_place)


def unchanged(tree: PyTree) -> PyTree:
    """The tree itself."""
    return tree


WHOLE = Shares(HERE, unchanged, unchanged)
"""A share that is all there is."""


def call(function: Callable, *arguments: Any) -> Any:
    """`function(*arguments)`: on one device everywhere is here."""
    return function(*arguments)


class Placement(NamedTuple):
    """Where things lie: how members are mapped and moved, and how rows of a repertoire are reached."""

    map: PopulationMap = vmap
    # Calls a function with the whole of its arguments on every device: a decision that all make alike, without a word.
    everywhere: Callable[..., Any] = call
    move: MoveFn = move_here
    cells: Rows = HERE
    divides_cells: bool = False  # each device keeps its share of the cells; `cells` must know


ONE_DEVICE = Placement()
"""Everything in one place; `rookery.distributed.placement` gives that of a mesh."""
