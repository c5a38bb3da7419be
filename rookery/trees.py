"""Operations on pytrees whose leaves share a leading axis."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rookery.settings import type_of
from rookery.types import Array, Key, PyTree


def unmasked(values: ArrayLike, kind: DTypeLike) -> np.ndarray:
    """Numbers from outside as an array of a floating-point type: NaN where they are masked (`numpy.ma`); a
    ValueError if they are none, such as dates, complex numbers or a generator."""
    try:
        given = np.ma.asarray(values)
        if given.dtype.kind in "cmM" or given.dtype.names:  # of which NumPy would take a part
            raise TypeError(f"the type of the array is {given.dtype}")
        return np.ma.filled(np.ma.asarray(given, kind), np.nan)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"an array or a list of numbers is needed, got {type_of(values)}: {error}") from error


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Stack trees of equal structure along a new leading axis.

    Raises:
      ValueError: `trees` is empty.
    """
    if not trees:
        raise ValueError("stack needs at least one tree; got an empty sequence.")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def take(tree: PyTree, indices: Array | int) -> PyTree:
    """Take rows of every leaf: an integer drops the leading axis, an array `[N]` gives leaves `[N, ...]`.

    The integers of an array are at least 0.
    """

    def rows(leaf: Array) -> Array:
        if isinstance(leaf, jax.Array) and isinstance(indices, jax.Array):  # a third of the operations of leaf[indices]
            return leaf.at[indices].get(wrap_negative_indices=False)
        return leaf[indices]

    return jax.tree.map(rows, tree)


def indices(key: Key, shape: tuple[int, ...], size: Array | int) -> Array:
    """Sample indices of rows for `take`: int32 of `shape` in [0, size), from one draw.

    Their probabilities differ by at most the share `size` / 2^32, 0.02 % for a million rows. `jax.random.randint` draws
    twice, with two keys, which makes that difference smaller.

    Args:
      key: consumed.
      shape: of the result.
      size: number of rows, at least 1, `[]`.
    """
    return (jax.random.bits(key, shape) % jnp.asarray(size, jnp.uint32)).astype(jnp.int32)


def where(condition: Array, if_true: PyTree, if_false: PyTree) -> PyTree:
    """Select whole rows: `condition` is `[]` or `[N]` bool and is broadcast over each leaf's trailing axes."""

    def select(a: Array, b: Array) -> Array:
        a, b = jnp.asarray(a), jnp.asarray(b)
        rank = max(a.ndim, b.ndim)
        return jnp.where(condition.reshape(condition.shape + (1,) * (rank - condition.ndim)), a, b)

    return jax.tree.map(select, if_true, if_false)


def scatter(tree: PyTree, indices: Array, rows: PyTree) -> PyTree:
    """Write `rows` `[N, ...]` at `indices` `[N]` of every leaf.

    The indices are unique and at least 0; those beyond the axis are ignored.
    """
    options = {"mode": "drop", "unique_indices": True, "wrap_negative_indices": False}
    return jax.tree.map(lambda leaf, row: leaf.at[indices].set(row, **options), tree, rows)


def all_finite(tree: PyTree) -> Array:
    """Return whether all floating-point numbers of the tree are finite: `[]` bool, True for a tree without any."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    finite = [jnp.isfinite(leaf).all() for leaf in leaves]
    return jnp.stack(finite).all() if finite else jnp.asarray(True)


def size_in_bytes(tree: PyTree) -> int:
    """Return the size of all arrays of a tree, which may be shapes only."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def same_numbers(one: PyTree, other: PyTree) -> bool:
    """Whether all numbers of two trees of one structure are equal, typed keys by their data; NaN equals NaN."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(_numbers(a), _numbers(b), equal_nan=True) for a, b in pairs)


def _numbers(leaf: Array) -> np.ndarray:
    keys = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    values = np.asarray(jax.random.key_data(leaf) if keys else leaf)
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def are_finite_in_float32(numbers: object) -> bool:
    """Whether all numbers are finite when they are rounded to float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.asarray(numbers, np.float64).astype(np.float32)).all())


def has_finite_range(lower: ArrayLike, upper: ArrayLike) -> bool:
    """Whether numbers and the differences between them are finite in float32."""
    low, high = (np.asarray(side, np.float64) for side in (lower, upper))
    with np.errstate(over="ignore", invalid="ignore"):
        return all(are_finite_in_float32(numbers) for numbers in (low, high, high - low))


def flatten_mapping(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one, with keys such as `run.generations`; empty mappings are dropped."""
    rows: dict[str, Any] = {}
    for name, value in tree.items():
        rows |= flatten_mapping(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return rows
