"""Replay buffer of one member: a ring buffer of pytrees.

An insert costs O(inserted rows), never O(capacity), and copies nothing when the state is donated. Rows that are not
finite are rejected, so that a diverged member leaves no invalid data to the member that replaces it in the slot.
"""

from functools import partial
from typing import NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from rookery import trees
from rookery.settings import check_counts
from rookery.types import Array, Key, PyTree


class BufferState(NamedTuple):
    """Contents of a ring buffer. Rows at and beyond `size` were never written and are never sampled."""

    rows: PyTree
    """Leaves `[C, ...]`."""
    position: Array
    """`[]` int32, index at which the next row is written."""
    size: Array
    """`[]` int32, number of stored rows."""


class InitFn(Protocol):
    """Create an empty buffer for rows like `row` (one row, no leading axis)."""

    def __call__(self, row: PyTree) -> BufferState: ...


class AddFn(Protocol):
    """Overwrite the oldest rows with `rows` (leaves `[B, ...]`); rows that are not finite, or False in `valid` (`[B]`
    bool), are left out."""

    def __call__(self, state: BufferState, rows: PyTree, valid: Array | None = None) -> BufferState: ...


class DrawFn(Protocol):
    """Sample indices of the given shape, uniformly over the stored rows with replacement; the key is consumed."""

    def __call__(self, state: BufferState, key: Key, shape: tuple[int, ...]) -> Array: ...


class TakeFn(Protocol):
    """Return the rows at `indices`: leaves `[*indices.shape, ...]`."""

    def __call__(self, state: BufferState, indices: Array) -> PyTree: ...


class Buffer(NamedTuple):
    """A transition store. Sampling has two steps, so that a block of updates draws all its indices in one call."""

    init: InitFn
    add: AddFn
    draw: DrawFn
    take: TakeFn


def ring(capacity: int) -> Buffer:
    """Build a ring buffer with a capacity of `capacity` rows.

    Raises:
      ValueError: `capacity` is below 1, or above the largest int32.
    """
    check_counts(**{"the capacity of a buffer": capacity})
    return Buffer(partial(init, capacity), add, draw, take)


def init(capacity: int, row: PyTree) -> BufferState:
    """Return an empty buffer of zeros for `capacity` rows like `row`."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros((capacity, *jnp.shape(leaf)), jnp.result_type(leaf)), row)
    return BufferState(zeros, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def add(state: BufferState, rows: PyTree, valid: Array | None = None) -> BufferState:
    """Overwrite the oldest rows with `rows` (leaves `[B, ...]`, B at most the capacity); see `AddFn`.

    Raises:
      ValueError: B is above the capacity.
    """
    chex.assert_trees_all_equal_structs(state.rows, rows)
    chex.assert_equal_shape_prefix(jax.tree.leaves(rows), 1)
    capacity = _capacity(state)
    finite = jax.vmap(trees.all_finite)(rows)
    valid = finite if valid is None else finite & valid
    if valid.shape[0] > capacity:
        raise ValueError(f"{valid.shape[0]} rows at once do not fit a buffer of {capacity}; enlarge the buffer.")
    offset = jnp.cumsum(valid.astype(jnp.int32)) - 1
    indices = jnp.where(valid, (state.position + offset) % capacity, capacity + jnp.arange(valid.shape[0]))
    added = offset[-1] + 1
    return BufferState(
        rows=trees.scatter(state.rows, indices, rows),
        position=(state.position + added) % capacity,
        size=jnp.minimum(state.size + added, capacity),
    )


def draw(state: BufferState, key: Key, shape: tuple[int, ...]) -> Array:
    """Sample indices of `shape`, int32 in [0, size); all 0 while the buffer is empty."""
    return trees.indices(key, shape, jnp.maximum(state.size, 1))


def newest(state: BufferState, count: int) -> tuple[Array, Array]:
    """Indices `[count]` of the newest rows, and `[count]` bool, whether as many were written; at most the capacity."""
    age = jnp.arange(min(count, _capacity(state)))
    return (state.position - 1 - age) % _capacity(state), age < state.size


def take(state: BufferState, indices: Array) -> PyTree:
    """Return the rows at `indices`."""
    return trees.take(state.rows, indices)


def clear(state: BufferState, needed: Array | bool = True) -> BufferState:
    """Empty the buffer where `needed` (`[]` bool) in O(1); buffers with leaves `[P, ...]` take `needed` `[P]`."""
    position, size = (jnp.where(needed, jnp.zeros_like(count), count) for count in (state.position, state.size))
    return state._replace(position=position, size=size)


def _capacity(state: BufferState) -> int:
    return jax.tree.leaves(state.rows)[0].shape[0]
