"""The cells of a repertoire: even grids, centroidal Voronoi tessellations, and nearest-centroid search.

Distances are Euclidean in the unit of the descriptor: no dimension is rescaled.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.settings import check_counts
from rookery.types import Array, Key

_UNROLLED = 4  # centroids per iteration of the loop; a larger number is slower to compile and no faster to run
_ROWS = 1024  # descriptors per batch in `_nearest_at_once`, whose distances to all centroids are in memory together
_CANDIDATES = 10  # candidates for each initial centroid


def grid(shape: tuple[int, ...], lower: Sequence[float], upper: Sequence[float]) -> Array:
    """The centres of the cells of an even grid (Mouret 2015, arXiv:1504.04909).

    Args:
      shape: number of cells along each of the D dimensions.
      lower: `[D]`, the lower limits of the descriptor.
      upper: `[D]`, the upper limits of the descriptor.

    Returns:
      `[C, D]` float32, C the product of `shape`; the last dimension varies fastest.

    Raises:
      ValueError: `shape` does not have D entries, or has one below 1, or the limits do not increase, or the cells are
        narrower than float32 resolves at the size of the limits.

    Example:
      >>> rookery.qd.grid((2, 2), lower=(0.0, 0.0), upper=(1.0, 1.0)).shape
      (4, 2)
    """
    low, high = _limits(lower, upper)
    shape = tuple(np.atleast_1d(shape).tolist())
    if len(shape) != len(low):
        raise ValueError(f"a grid of {len(low)} dimensions needs as many sizes, got {shape}.")
    if min(shape) < 1:
        raise ValueError(f"a grid needs at least 1 cell along each dimension, got {shape}.")
    check_counts(cells=math.prod(shape))
    _check_widths(low, high, np.where(np.asarray(shape) > 1, (high - low) / shape, np.inf), math.prod(shape))
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
    """The centroids of a centroidal Voronoi tessellation (CVT): cells of about equal size.

    Source: Vassiliades 2018, arXiv:1610.05729, Algorithm 1. Lloyd's k-means over uniform samples, initialised with
    samples that are far apart. A cell without samples keeps its centroid. Sums are computed over integers, so that the
    result does not depend on the order of addition or the device.

    Args:
      key: consumed; the same key gives the same centroids.
      cells: C, at least 1.
      lower: `[D]`, the lower limits of the descriptor.
      upper: `[D]`, the upper limits of the descriptor.
      num_samples: number of samples, at least C; memory is linear in it.
      iterations: maximum number of iterations; it stops earlier when no centroid moves.

    Returns:
      `[C, D]` float32, inside the limits.
    Deviation: the paper initialises with random samples; samples that are far apart halve the spread of cell sizes.

    Raises:
      ValueError: `cells` is below 1, there are fewer samples than cells, `iterations` is below 0, the limits do not
        increase, or the cells are narrower than float32 resolves at the size of the limits.
    """
    low, high = _limits(lower, upper)
    check_counts(cells=cells, num_samples=num_samples)
    if num_samples < cells:
        raise ValueError(f"{cells} cells need at least as many draws, got num_samples = {num_samples}.")
    if iterations < 0:
        raise ValueError(f"iterations must be at least 0, got {iterations}.")
    side = (np.prod(high - low) / cells) ** (1 / len(low))  # of a cube of the volume of a cell
    _check_widths(low, high, np.minimum(high - low, side) if cells > 1 else np.full(len(low), np.inf), cells)
    span = jnp.asarray(high - low, jnp.float32)
    centroids = _lloyd(key, span, iterations, cells=cells, num_samples=num_samples)
    start, end = jnp.asarray(low[None], jnp.float32), jnp.asarray(high[None], jnp.float32)
    return jnp.clip(start + centroids, start, end)  # rounding of the sum can exceed the upper limit


@jax.jit
def nearest(descriptors: Array, centroids: Array) -> Array:
    """Find the nearest centroid of each descriptor by Euclidean distance, ties to the lower index.

    Args:
      descriptors: `[B, D]` float32; a row that is not finite gets an arbitrary valid index.
      centroids: `[C, D]` float32.

    Returns:
      `[B]` int32 in 0..C - 1.
    """
    chex.assert_rank([descriptors, centroids], 2)
    chex.assert_equal_shape_suffix([descriptors, centroids], 1)
    return jax.lax.platform_dependent(descriptors, centroids, cpu=_nearest_in_turn, default=_nearest_at_once)


def _nearest_in_turn(descriptors: Array, centroids: Array) -> Array:
    """Compare all descriptors with one centroid after the other.

    On a CPU this is vectorised over the descriptors and about thirty times faster than XLA's argmin, a scalar loop.
    """
    columns = tuple(descriptors.T)

    def compare(best: tuple[Array, Array], entry: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        minimum, index = best
        centroid, centroid_index = entry
        distance = _squared(columns, tuple(centroid))
        closer = distance < minimum  # False for NaN, so that the index stays valid
        return (jnp.where(closer, distance, minimum), jnp.where(closer, centroid_index, index)), None

    count = descriptors.shape[0]
    initial = (jnp.full(count, jnp.inf, descriptors.dtype), jnp.zeros(count, jnp.int32))
    entries = (centroids, jnp.arange(centroids.shape[0], dtype=jnp.int32))
    (_, index), _ = jax.lax.scan(compare, initial, entries, unroll=_UNROLLED)
    return index


def _nearest_at_once(descriptors: Array, centroids: Array) -> Array:
    """Compare batches of descriptors with all centroids, for accelerators, on which a loop over centroids is slow."""
    rows = tuple(centroids.T)

    def one(descriptor: Array) -> Array:
        return jnp.argmin(_squared(rows, tuple(descriptor))).astype(jnp.int32)

    return jax.lax.map(one, descriptors, batch_size=min(_ROWS, descriptors.shape[0]))


class FindFn(Protocol):
    """Find the cell `[B]` int32 of each descriptor `[B, D]`, given the centroids `[C, D]`."""

    def __call__(self, descriptors: Array, centroids: Array) -> Array: ...


def finder(centroids: Array) -> FindFn:
    """Choose the fastest `FindFn` for given centroids: a search per dimension if they form a grid, else `nearest`.

    Args:
      centroids: `[C, D]`, concrete values, not traced ones.
    """
    concrete = np.asarray(centroids)
    sides = [np.unique(column) for column in concrete.T]
    shape = tuple(len(side) for side in sides)
    if math.prod(shape) != len(concrete):
        return nearest
    even = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(concrete.shape)
    return partial(_nearest_on_grid, shape) if np.array_equal(even, concrete) else nearest


def _nearest_on_grid(shape: tuple[int, ...], descriptors: Array, centroids: Array) -> Array:
    """Search each dimension separately; the midpoint between two centroids belongs to the lower one."""
    size = len(shape)
    sides = centroids.reshape(*shape, size)
    cell = jnp.zeros(descriptors.shape[0], jnp.int32)
    for axis, count in enumerate(shape):
        side = jnp.moveaxis(sides[..., axis], axis, 0).reshape(count, -1)[:, 0]
        place = jnp.searchsorted(0.5 * (side[1:] + side[:-1]), descriptors[:, axis])
        cell = cell * count + place.astype(jnp.int32)
    return cell


def _squared(columns: Sequence[Array], point: Sequence[Array]) -> Array:
    """Squared distances of one point `D x []` to many, `D x [N]`, as sums of squared differences without expansion."""
    parts = [jnp.square(column - value) for column, value in zip(columns, point, strict=True)]
    return sum(parts[1:], start=parts[0])


@partial(jax.jit, static_argnames=("cells", "num_samples"))
def _lloyd(key: Key, span: Array, iterations: Array, cells: int, num_samples: int) -> Array:
    """k-means over samples in `[0, span)`; returns the centroids `[C, D]`."""
    # A sample is an integer in two halves, so short that sums of either half over all samples fit into 32 bits.
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
    """Choose `count` points that are far apart: each is the candidate farthest from the points already chosen.

    Source: best-candidate sampling of Mitchell 1991, "Spectrally optimal sampling for distribution ray tracing".
    """

    def place(index: Array, placed: Array) -> Array:
        candidates = points[(index * _CANDIDATES + jnp.arange(_CANDIDATES)) % points.shape[0]]
        gaps = jnp.min(jax.vmap(partial(_squared, tuple(placed.T)))(tuple(candidates.T)), axis=1)
        return placed.at[index].set(candidates[jnp.argmax(gaps)])

    return jax.lax.fori_loop(0, count, place, jnp.full((count, points.shape[1]), jnp.inf, points.dtype))


def _limits(lower: Sequence[float], upper: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.atleast_1d(np.asarray(lower, np.float64)), np.atleast_1d(np.asarray(upper, np.float64))
    got = f"got {low.tolist()} and {high.tolist()}."
    if low.ndim != 1 or low.shape != high.shape or not low.size:
        raise ValueError(f"a descriptor needs limits of one equal size >= 1, {got}")
    if not trees.are_finite_in_float32([*low, *high]) or not (low < high).all():
        raise ValueError(f"a descriptor needs finite limits, lower < upper in every dimension, {got}")
    return low, high


def _check_widths(low: np.ndarray, high: np.ndarray, widths: np.ndarray, cells: int) -> None:
    """Check that the centroids of cells of these widths `[D]` differ in float32."""
    resolution = np.spacing(np.maximum(np.abs(low), np.abs(high)).astype(np.float32))
    narrow = np.flatnonzero(widths <= resolution)
    if len(narrow):
        axis = narrow[0]
        raise ValueError(
            f"{cells} cells of a width of {widths[axis]:.2g} between {low[axis]:.9g} and {high[axis]:.9g} are narrower "
            f"than float32 resolves there ({resolution[axis]:.2g}); use fewer cells, or a descriptor that is measured "
            "from its lower limit."
        )
