"""Where the cells of a repertoire lie: even grids, centroidal Voronoi tessellations, and the nearest centroid.

Distances are Euclidean in the descriptor's own unit: no dimension is rescaled.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Array, Key

_UNROLLED = 4  # centroids per trip of the loop: more cost time to compile and win nothing
_ROWS = 1024  # descriptors whose distances to all centroids stand in memory at once, where they do
_CANDIDATES = 10  # for each first centroid


def grid(shape: tuple[int, ...], lower: Sequence[float], upper: Sequence[float]) -> Array:
    """The centres of an even grid (Mouret 2015, arXiv:1504.04909).

    Args:
      shape: cells along each of the D dimensions.
      lower: `[D]`, where the first cells begin.
      upper: `[D]`, where the last cells end.

    Returns:
      `[C, D]` float32, C the product of `shape`; the last dimension varies fastest.

    Raises:
      ValueError: `shape` has not D entries or one below 1, or the limits do not increase.
    """
    low, high = _limits(lower, upper)
    if len(shape) != len(low):
        raise ValueError(f"a grid of {len(low)} dimensions needs as many sizes, got {tuple(shape)}.")
    if min(shape) < 1:
        raise ValueError(f"a grid needs at least 1 cell along each dimension, got {tuple(shape)}.")
    sides = [
        start + (end - start) * (np.arange(size) + 0.5) / size
        for size, start, end in zip(shape, low, high, strict=True)
    ]
    return jnp.asarray(np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(low)), jnp.float32)


def cvt(
    key: Key,
    cells: int,
    lower: Sequence[float],
    upper: Sequence[float],
    num_samples: int = 50_000,
    iterations: int = 200,
) -> Array:
    """The centroids of a centroidal Voronoi tessellation: cells of about equal size (Vassiliades 2018,
    arXiv:1610.05729, Algorithm 1).

    Lloyd's k-means over uniform draws, begun at some that lie far apart. A cell without draws keeps its centroid. Sums
    are taken over integers, so that no order of addition, on any device, changes a bit.

    Args:
      key: consumed; the same key gives the same centroids.
      cells: C, at least 1.
      lower: `[D]`.
      upper: `[D]`.
      num_samples: draws, at least C; memory is linear in it.
      iterations: after this many it ends, or before when no centroid moves any more.

    Returns:
      `[C, D]` float32, inside the limits.
    Deviation: the paper begins at random draws; far ones halve the spread of the cells' sizes.

    Raises:
      ValueError: there is no cell, there are fewer draws than cells, `iterations` is below 0, or the limits do not
        increase.
    """
    low, high = _limits(lower, upper)
    if cells < 1:
        raise ValueError(f"a tessellation needs at least 1 cell, got {cells}.")
    if num_samples < cells:
        raise ValueError(f"{cells} cells need at least as many draws, got num_samples = {num_samples}.")
    if iterations < 0:
        raise ValueError(f"iterations must be at least 0, got {iterations}.")
    span = jnp.asarray(high - low, jnp.float32)
    centroids = _lloyd(key, span, iterations, cells=cells, num_samples=num_samples)
    start, end = jnp.asarray(low[None], jnp.float32), jnp.asarray(high[None], jnp.float32)
    return jnp.clip(start + centroids, start, end)  # the sum is rounded, perhaps past the end


@jax.jit
def nearest(descriptors: Array, centroids: Array) -> Array:
    """The nearest centroid of each descriptor by Euclidean distance, ties to the lower index.

    Args:
      descriptors: `[B, D]` float32; a row that is not finite gets some valid index.
      centroids: `[C, D]` float32.

    Returns:
      `[B]` int32 in 0..C - 1.
    """
    chex.assert_rank([descriptors, centroids], 2)
    chex.assert_equal_shape_suffix([descriptors, centroids], 1)
    return jax.lax.platform_dependent(descriptors, centroids, cpu=_nearest_in_turn, default=_nearest_at_once)


def _nearest_in_turn(descriptors: Array, centroids: Array) -> Array:
    """One centroid after the other against all descriptors. On a CPU this is vectorised over the descriptors, and some
    thirty times faster than XLA's argmin, which is a scalar loop."""
    columns = tuple(descriptors.T)

    def compare(best: tuple[Array, Array], entry: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        least, index = best
        centroid, its_index = entry
        distance = _squared(columns, tuple(centroid))
        closer = distance < least  # False for what is no number, so that the index stays valid
        return (jnp.where(closer, distance, least), jnp.where(closer, its_index, index)), None

    count = descriptors.shape[0]
    nothing = (jnp.full(count, jnp.inf, descriptors.dtype), jnp.zeros(count, jnp.int32))
    entries = (centroids, jnp.arange(centroids.shape[0], dtype=jnp.int32))
    (_, index), _ = jax.lax.scan(compare, nothing, entries, unroll=_UNROLLED)
    return index


def _nearest_at_once(descriptors: Array, centroids: Array) -> Array:
    """All centroids for some descriptors at a time, for devices where a loop over centroids would wait at each."""
    rows = tuple(centroids.T)

    def one(descriptor: Array) -> Array:
        return jnp.argmin(_squared(rows, tuple(descriptor))).astype(jnp.int32)

    return jax.lax.map(one, descriptors, batch_size=min(_ROWS, descriptors.shape[0]))


class FindFn(Protocol):
    """The cell `[B]` int32 that each descriptor `[B, D]` belongs to, among the centroids `[C, D]`."""

    def __call__(self, descriptors: Array, centroids: Array) -> Array: ...


def finder(centroids: Array) -> FindFn:
    """The quickest function that finds cells among such centroids: by arithmetic if they are a grid, else `nearest`.

    Args:
      centroids: `[C, D]`, known now and not only when a program runs.
    """
    known = np.asarray(centroids)
    sides = [np.unique(column) for column in known.T]
    shape = tuple(len(side) for side in sides)
    if math.prod(shape) != len(known):
        return nearest
    even = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(known.shape)
    return partial(_nearest_on_grid, shape) if np.array_equal(even, known) else nearest


def _nearest_on_grid(shape: tuple[int, ...], descriptors: Array, centroids: Array) -> Array:
    """Along each side on its own; half way between two centroids counts to the lower one."""
    size = len(shape)
    sides = centroids.reshape(*shape, size)
    cell = jnp.zeros(descriptors.shape[0], jnp.int32)
    for axis, count in enumerate(shape):
        side = jnp.moveaxis(sides[..., axis], axis, 0).reshape(count, -1)[:, 0]
        place = jnp.searchsorted(0.5 * (side[1:] + side[:-1]), descriptors[:, axis])
        cell = cell * count + place.astype(jnp.int32)
    return cell


def _squared(columns: Sequence[Array], point: Sequence[Array]) -> Array:
    """Squared distances of one point `D x []` to many, `D x [N]`; exact differences, no expanded product."""
    parts = [jnp.square(column - value) for column, value in zip(columns, point, strict=True)]
    return sum(parts[1:], start=parts[0])


@partial(jax.jit, static_argnames=("cells", "num_samples"))
def _lloyd(key: Key, span: Array, iterations: Array, cells: int, num_samples: int) -> Array:
    """k-means over draws in `[0, span)`; centroids `[C, D]`."""
    # A draw is an integer of two halves, so short that sums of either half over all draws fit 32 bits.
    half = min(12, 31 - num_samples.bit_length())
    drawn = jax.random.bits(key, (num_samples, span.shape[0]), jnp.uint32) >> (32 - 2 * half)
    whole = drawn.astype(jnp.int32)
    unit = span / 2 ** (2 * half)
    points = whole.astype(jnp.float32) * unit[None]
    ones = jnp.ones((num_samples, 1), jnp.int32)
    halves = jnp.concatenate([whole >> half, whole & (2**half - 1), ones], axis=1)  # [num_samples, 2 D + 1]

    def move(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        centroids, _, iteration = state
        sums = jax.ops.segment_sum(halves, nearest(points, centroids), cells).astype(jnp.float32)
        high, low, count = jnp.split(sums, [span.shape[0], 2 * span.shape[0]], axis=1)
        mean = (high * 2**half + low) / jnp.maximum(count, 1.0)
        means = jnp.where(count > 0, mean * unit[None], centroids)
        return means, jnp.any(means != centroids), iteration + 1

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        _, moving, iteration = state
        return moving & (iteration < iterations)

    begin = (_spread(points, cells), jnp.asarray(True), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, move, begin)[0]


def _spread(points: Array, count: int) -> Array:
    """`count` of the points, none near another: each is the farthest of some from those before it (Mitchell 1991,
    "Spectrally optimal sampling for distribution ray tracing", best candidates)."""

    def place(index: Array, placed: Array) -> Array:
        candidates = points[(index * _CANDIDATES + jnp.arange(_CANDIDATES)) % points.shape[0]]
        gaps = jnp.min(jax.vmap(partial(_squared, tuple(placed.T)))(tuple(candidates.T)), axis=1)
        return placed.at[index].set(candidates[jnp.argmax(gaps)])

    return jax.lax.fori_loop(0, count, place, jnp.full((count, points.shape[1]), jnp.inf, points.dtype))


def _limits(lower: Sequence[float], upper: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.atleast_1d(np.asarray(lower, np.float64)), np.atleast_1d(np.asarray(upper, np.float64))
    told = f"got {low.tolist()} and {high.tolist()}."
    if low.ndim != 1 or low.shape != high.shape or not low.size:
        raise ValueError(f"a descriptor needs limits of one equal size >= 1, {told}")
    if not all(math.isfinite(bound) for bound in (*low, *high)) or not (low < high).all():
        raise ValueError(f"a descriptor needs finite limits, lower < upper in every dimension, {told}")
    return low, high
