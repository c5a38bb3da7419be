"""Replay: a ring of pytrees for one member.

An insert costs O(rows inserted), never O(capacity), and copies nothing when the state is donated. Rows that are not
finite are refused, so that a member that diverged leaves nothing behind for the healthy one that takes its place.
"""

from functools import partial
from typing import NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from rookery import trees
from rookery.types import Array, Key, PyTree


class BufferState(NamedTuple):
    """What a ring holds. A row beyond `size` has never been written and is never sampled."""

    rows: PyTree  # leaves [C, ...]
    position: Array  # [] int32, where the next row goes
    size: Array  # [] int32, rows held


class InitFn(Protocol):
    """An empty ring for rows like `row` (one row, no leading axis)."""

    def __call__(self, row: PyTree) -> BufferState: ...


class AddFn(Protocol):
    """Write `rows` (leaves `[B, ...]`) over the oldest; rows that are not finite are left out."""

    def __call__(self, state: BufferState, rows: PyTree) -> BufferState: ...


class DrawFn(Protocol):
    """Indices of the given shape, uniform over the rows held, with replacement; the key is consumed."""

    def __call__(self, state: BufferState, key: Key, shape: tuple[int, ...]) -> Array: ...


class TakeFn(Protocol):
    """The rows at `indices`: leaves `[*indices.shape, ...]`."""

    def __call__(self, state: BufferState, indices: Array) -> PyTree: ...


class Buffer(NamedTuple):
    """A store of transitions. Sampling is two steps, so that a block of updates draws all its indices at once."""

    init: InitFn
    add: AddFn
    draw: DrawFn
    take: TakeFn


def ring(capacity: int) -> Buffer:
    """A ring of `capacity` rows.

    Raises:
      ValueError: `capacity` is below 1.
    """
    if capacity < 1:
        raise ValueError(f"a buffer needs a capacity of at least 1 row, got {capacity}.")
    return Buffer(partial(init, capacity), add, draw, take)


def init(capacity: int, row: PyTree) -> BufferState:
    """Zeros for `capacity` rows like `row`."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros((capacity, *jnp.shape(leaf)), jnp.result_type(leaf)), row)
    return BufferState(zeros, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def add(state: BufferState, rows: PyTree) -> BufferState:
    """Write `rows` (leaves `[B, ...]`, B at most the capacity) over the oldest.

    Raises:
      ValueError: more rows than the ring can hold.
    """
    chex.assert_trees_all_equal_structs(state.rows, rows)
    chex.assert_equal_shape_prefix(jax.tree.leaves(rows), 1)
    capacity = _capacity(state)
    valid = jax.vmap(trees.all_finite)(rows)
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
    """Indices of `shape`, int32 in [0, size); all 0 while the ring is empty."""
    return jax.random.randint(key, shape, 0, jnp.maximum(state.size, 1))


def take(state: BufferState, indices: Array) -> PyTree:
    """The rows at `indices`."""
    return trees.take(state.rows, indices)


def clear(state: BufferState, needed: Array | bool = True) -> BufferState:
    """Forget all rows where `needed`, `[]` bool, in O(1); of rings `[P, ...]` each by its own `[P]`."""
    position, size = (jnp.where(needed, jnp.zeros_like(count), count) for count in (state.position, state.size))
    return state._replace(position=position, size=size)


def _capacity(state: BufferState) -> int:
    return jax.tree.leaves(state.rows)[0].shape[0]
