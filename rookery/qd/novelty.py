"""Dominated Novelty Search: the individuals that are far from all fitter ones survive; there are no cells.

Source: Bahlous-Boldi 2025, "Dominated Novelty Search: Rethinking Local Competition in Quality-Diversity"
(arXiv:2502.00593).
"""

from functools import partial

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.populations.sharding import HERE, Rows
from rookery.qd.repertoire import Added, Repertoire
from rookery.types import Array, PyTree

_ROWS = 256  # individuals per batch in `_distances_at_once`, whose distances to all others are in memory together

_FARTHEST = 1e18  # in units of the limits; the sum of a few squares of such distances is a float32


def dominated_novelty(fitnesses: Array, descriptors: Array, neighbours: int) -> Array:
    """The mean distance of each individual to its nearest fitter individuals (Bahlous-Boldi 2025, section 4).

    Deviation: of two individuals with the same fitness the one with the lower index counts as fitter, so that copies of
    an individual do not survive for want of a fitter one.

    Args:
      fitnesses: `[N]`; an individual whose fitness is not finite is left out.
      descriptors: `[N, D]`, finite.
      neighbours: k, at least 1; the mean is over fewer where fewer are fitter.

    Returns:
      `[N]`: inf for the fittest individual, -inf for those that are left out.
    """
    valid = jnp.isfinite(fitnesses)
    order = jnp.argsort(jnp.where(valid, -fitnesses, jnp.inf), stable=True)  # the fittest first
    points, is_valid = descriptors[order], valid[order]
    distances = jax.lax.platform_dependent(
        points,
        is_valid,
        cpu=partial(_distances_in_turn, neighbours),
        default=partial(_distances_at_once, neighbours),
    )
    number = jnp.minimum(jnp.arange(fitnesses.shape[0]), neighbours).astype(jnp.float32)
    total = jnp.sum(jnp.where(jnp.isfinite(distances), distances, 0.0), axis=0)
    mean = jnp.where(number > 0, total / jnp.maximum(number, 1.0), jnp.inf)
    return jnp.zeros_like(mean).at[order].set(jnp.where(is_valid, mean, -jnp.inf), unique_indices=True)


def _distances_in_turn(neighbours: int, points: Array, valid: Array) -> Array:
    """The smallest distances `[k, N]` to earlier rows, comparing all rows with one after the other; inf: no row.

    On a CPU a loop over rows is vectorised; selecting the smallest of all distances at once is a scalar loop.
    """
    places, columns = jnp.arange(points.shape[0]), tuple(points.T)

    def compare(smallest: tuple[Array, ...], entry: tuple[Array, Array, Array]) -> tuple[tuple[Array, ...], None]:
        point, is_valid, place = entry
        distance = jnp.where((places > place) & is_valid, _distance(columns, tuple(point)), jnp.inf)
        kept = []
        for least in smallest:
            kept.append(jnp.minimum(least, distance))
            distance = jnp.maximum(least, distance)
        return tuple(kept), None

    initial = tuple(jnp.full_like(columns[0], jnp.inf) for _ in range(neighbours))
    return jnp.stack(jax.lax.scan(compare, initial, (points, valid, places))[0])


def _distances_at_once(neighbours: int, points: Array, valid: Array) -> Array:
    """As `_distances_in_turn`, for accelerators, on which a loop over rows is slow."""
    places, columns = jnp.arange(points.shape[0]), tuple(points.T)
    padding = jnp.full((neighbours,), jnp.inf, points.dtype)  # for fewer than k rows

    def smallest(entry: tuple[Array, Array]) -> Array:
        point, place = entry
        distance = jnp.where((places < place) & valid, _distance(columns, tuple(point)), jnp.inf)
        return -jax.lax.top_k(-jnp.concatenate([distance, padding]), neighbours)[0]

    return jax.lax.map(smallest, (points, places), batch_size=min(_ROWS, points.shape[0])).T


def _distance(columns: tuple[Array, ...], point: tuple[Array, ...]) -> Array:
    parts = [jnp.square(column - value) for column, value in zip(columns, point, strict=True)]
    return jnp.sqrt(sum(parts[1:], start=parts[0]))


def add(
    neighbours: int,
    repertoire: Repertoire,
    genotypes: PyTree,
    fitnesses: Array,
    descriptors: Array,
    limits: tuple[Array, Array],
    rows: Rows = HERE,
) -> tuple[Repertoire, Added]:
    """Add B genotypes: of them and the C individuals, those of the greatest dominated novelty survive.

    A survivor keeps its slot, and new ones take the free slots in their order. Ties go to the lower index, individuals
    of the repertoire first. The centroid of a slot is the descriptor of its individual.

    Args:
      neighbours: k, the number of fitter individuals whose distances are averaged.
      repertoire: the repertoire to add to, of C slots.
      genotypes: `[B, ...]`.
      fitnesses: `[B]`, higher is better.
      descriptors: `[B, D]`.
      limits: lower and upper `[D]`; distances are measured in units of their difference. Descriptors may exceed them.
      rows: writes the genotypes of the repertoire.

    Returns:
      The repertoire, and the result for each genotype: `cell` is the slot of a survivor, else -1; `improvement` is the
      difference to the greatest dominated novelty of an individual that did not survive, for the fittest individual
      the largest finite number.
    """
    count, batch = repertoire.fitnesses.shape[0], fitnesses.shape[0]
    finite = jnp.isfinite(descriptors).all(axis=1)
    is_finite = finite & jnp.isfinite(fitnesses)
    described = jnp.where(finite[:, None], descriptors, 0.0).astype(jnp.float32)
    value = jnp.concatenate([repertoire.fitnesses, jnp.where(is_finite, fitnesses, -jnp.inf).astype(jnp.float32)])
    places = jnp.concatenate([repertoire.descriptors, described]) / (limits[1] - limits[0])[None]
    places = jnp.clip(places, -_FARTHEST, _FARTHEST)
    novelty = dominated_novelty(value, places, neighbours)

    order = jnp.argsort(-novelty, stable=True)
    survives = jnp.zeros_like(order, bool).at[order[:count]].set(True, unique_indices=True) & (novelty > -jnp.inf)
    entering, free = survives[count:], jnp.argsort(survives[:count], stable=True)  # free slots first, in order
    slot = free[jnp.maximum(jnp.cumsum(entering) - 1, 0)].astype(jnp.int32)
    target = jnp.where(entering, slot, count + jnp.arange(batch))  # beyond C: unique indices that are not written
    written = (fitnesses.astype(jnp.float32), described, described)
    stored = repertoire.fitnesses, repertoire.descriptors, repertoire.centroids
    fitness, reached, points = trees.scatter(stored, target, written)
    kept = repertoire._replace(fitnesses=fitness, descriptors=reached, centroids=points)
    kept = kept._replace(genotypes=rows.put(repertoire.genotypes, target, genotypes))

    filled = jnp.isneginf(repertoire.fitnesses[slot])
    status = jnp.where(entering, jnp.where(filled, 2, 1), 0).astype(jnp.int32)
    bound = jnp.maximum(jnp.max(jnp.where(survives, -jnp.inf, novelty)), 0.0)
    outside = is_finite & ((described < limits[0][None]) | (described > limits[1][None])).any(axis=1)
    improvement = jnp.minimum(novelty[count:] - bound, jnp.finfo(jnp.float32).max)
    improvement = jnp.where(is_finite, improvement, -jnp.inf)
    return kept, Added(jnp.where(entering, slot, -1), status, ~is_finite, outside, improvement)
