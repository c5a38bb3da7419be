"""The repertoire: the elite, the best genotype, of each cell of the descriptor space.

Source: Mouret 2015, "Illuminating search spaces by mapping elites" (arXiv:1504.04909). All leaves of an elite come from
one individual; a genotype whose fitness or descriptor is not finite is never added and does not affect others.
"""

from collections.abc import Mapping
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rookery import trees
from rookery.populations.sharding import HERE, Rows
from rookery.qd import centroids as cells
from rookery.types import Array, GenotypeT, Key, Metrics, PyTree


class Repertoire(NamedTuple, Generic[GenotypeT]):
    """C cells, each with the best genotype that was found for it."""

    genotypes: GenotypeT
    """Leaves `[C, ...]`; zeros where a cell is empty."""
    fitnesses: Array
    """`[C]`; -inf where a cell is empty."""
    descriptors: Array
    """`[C, D]`, the evaluated descriptors of the elites; zeros where a cell is empty."""
    centroids: Array
    """`[C, D]`."""
    thresholds: PyTree = ()
    """`[C]`, the fitness that a genotype must exceed to be accepted in a cell, see `archives.annealed`; () if it is the
    elite's fitness."""
    extras: Mapping[str, Array] = {}
    """Name -> `[C, ...]`, what the evaluation of each elite reported to be stored (`Evaluation.extras`); zeros
    where a cell is empty. Never mutated."""

    @property
    def occupied(self) -> Array:
        """Whether each cell contains an elite, `[C]` bool."""
        return self.fitnesses > -jnp.inf


class Added(NamedTuple):
    """The result of adding each of B genotypes."""

    cell: Array
    """`[B]` int32, the cell of its descriptor."""
    status: Array
    """`[B]` int32: 0 not added, 1 replaced the elite of its cell, 2 filled an empty cell."""
    rejected: Array
    """`[B]` bool: its fitness or descriptor is not finite."""
    outside: Array
    """`[B]` bool: its descriptor is outside of the limits, and it competed for the nearest cell."""
    improvement: Array
    """`[B]`, fitness minus that of the elite of its cell before the batch: inf where the cell was empty, -inf where the
    genotype is rejected."""


class Elite(NamedTuple, Generic[GenotypeT]):
    """The elite of one cell."""

    cell: int
    genotype: GenotypeT
    fitness: Array
    """`[]`."""
    descriptor: Array
    """`[D]`."""
    extras: Mapping[str, Array] = {}
    """See `Repertoire`."""


def empty(genotype: GenotypeT, centroids: Array) -> Repertoire[GenotypeT]:
    """Create a repertoire without elites.

    Args:
      genotype: arrays or `jax.ShapeDtypeStruct`: one genotype's shapes and types.
      centroids: `[C, D]`, from `centroids.cvt` or `centroids.grid`.
    """
    count = centroids.shape[0]
    genotypes = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), genotype)
    copied = jnp.array(centroids)  # donating the repertoire must not delete the caller's array
    return Repertoire(genotypes, jnp.full((count,), -jnp.inf), jnp.zeros_like(copied), copied)


def add(
    repertoire: Repertoire[GenotypeT],
    genotypes: GenotypeT,
    fitnesses: Array,
    descriptors: Array,
    limits: tuple[Array, Array] | None = None,
    rows: Rows = HERE,
    find: cells.FindFn = cells.nearest,
) -> tuple[Repertoire[GenotypeT], Added]:
    """Add B genotypes: each cell keeps the best of them and of its elite (Mouret 2015, figure 2).

    Ties go to the elite, then to the lower index.

    Args:
      repertoire: the repertoire to add to.
      genotypes: `[B, ...]`.
      fitnesses: `[B]`, higher is better.
      descriptors: `[B, D]`.
      limits: lower and upper `[D]`; descriptors are clipped to them to find their cell, but stored unclipped.
      rows: writes the genotypes of the repertoire.
      find: finds the cell of a descriptor; `centroids.finder` returns a faster function for grids.

    Returns:
      The repertoire, and the result for each genotype.
    """
    finite = jnp.isfinite(descriptors).all(axis=1)
    placed = jnp.where(finite[:, None], descriptors, 0.0)
    outside = jnp.zeros_like(finite)
    if limits is not None:
        inside = jnp.clip(placed, limits[0][None], limits[1][None])
        placed, outside = inside, finite & (inside != placed).any(axis=1)
    cell = find(placed, repertoire.centroids)
    is_finite = finite & jnp.isfinite(fitnesses)
    incumbent, count = repertoire.fitnesses[cell], repertoire.fitnesses.shape[0]
    value = jnp.where(is_finite, fitnesses, -jnp.inf)
    wins = best_of_cell(cell, value, count) & is_finite & (fitnesses > incumbent)
    target = jnp.where(wins, cell, count + jnp.arange(cell.shape[0]))  # beyond C: unique indices that are not written
    better = trees.scatter(
        (repertoire.fitnesses, repertoire.descriptors),
        target,
        (fitnesses.astype(jnp.float32), descriptors.astype(jnp.float32)),
    )
    status = jnp.where(wins, jnp.where(jnp.isneginf(incumbent), 2, 1), 0).astype(jnp.int32)
    kept = repertoire._replace(
        genotypes=rows.put(repertoire.genotypes, target, genotypes), fitnesses=better[0], descriptors=better[1]
    )
    improvement = jnp.where(is_finite, value - jnp.where(is_finite, incumbent, 0.0), -jnp.inf)
    return kept, Added(cell, status, ~is_finite, outside & is_finite, improvement)


def store_extras(repertoire: Repertoire[GenotypeT], added: Added, extras: Mapping[str, Array]) -> Repertoire[GenotypeT]:
    """Store what the evaluations of new elites reported; values that the repertoire does not have are left out.

    Args:
      repertoire: after the genotypes were added to it.
      added: the result for each of the B genotypes.
      extras: name -> `[B, ...]`; each name of the repertoire.

    Raises:
      ValueError: a name is missing.
    """
    if missing := sorted(set(repertoire.extras) - set(extras)):
        raise ValueError(f"the elites lack {' and '.join(missing)}, which this repertoire stores with each of them.")
    count, batch = repertoire.fitnesses.shape[0], added.status.shape[0]
    target = jnp.where(added.status > 0, added.cell, count + jnp.arange(batch))  # beyond C: not written
    written = {name: extras[name] for name in repertoire.extras}
    return repertoire._replace(extras=trees.scatter(dict(repertoire.extras), target, written))


def best_of_cell(cell: Array, fitness: Array, count: int) -> Array:
    """Whether each genotype is the best of those in its cell, ties to the lower index; `[B]` bool."""
    place = jnp.arange(cell.shape[0], dtype=jnp.int32)
    best = jnp.full(count, -jnp.inf, fitness.dtype).at[cell].max(fitness)
    first = jnp.full(count, cell.shape[0], jnp.int32).at[cell].min(jnp.where(fitness == best[cell], place, place.size))
    return first[cell] == place


def sample(repertoire: Repertoire, key: Key, count: int) -> Array:
    """Sample `count` occupied cells, uniformly and independently, `[count]` int32; the key is consumed.

    Raises:
      ValueError: the repertoire is empty. A traced function cannot detect this, and gets meaningless cells.
    """
    if not isinstance(repertoire.fitnesses, Tracer) and not repertoire.occupied.any():
        raise ValueError("the repertoire is empty; add genotypes before drawing from it.")
    return draw(repertoire, key, count)


def draw(repertoire: Repertoire, key: Key, count: int) -> Array:
    """Sample as `sample` does, but return cell 0 for an empty repertoire, for callers that then discard the result."""
    elites = jnp.cumsum(repertoire.occupied, dtype=jnp.int32)  # up to each cell
    drawn = trees.indices(key, (count,), jnp.maximum(elites[-1], 1))
    cell = jnp.searchsorted(elites, drawn, side="right").astype(jnp.int32)
    return jnp.where(elites[-1] > 0, cell, 0)


def nearest(repertoire: Repertoire[GenotypeT], descriptor: Array) -> Elite[GenotypeT]:
    """The elite whose evaluated descriptor is nearest to `descriptor` `[D]` (Euclidean, ties to the lower cell).

    Raises:
      ValueError: the repertoire is empty, or the descriptor is not `[D]` or not finite.

    Example:
      >>> repertoire = rookery.experiments.repertoire("runs/me-pbt-sac")
      >>> elite = rookery.nearest(repertoire, (0.2, 0.8))
      >>> elite.descriptor.shape
      (2,)
    """
    wanted = jnp.asarray(descriptor, jnp.float32)
    size = repertoire.centroids.shape[1]
    if wanted.shape != (size,):
        raise ValueError(f"the descriptor must be [{size}], got the shape {wanted.shape}.")
    if not jnp.isfinite(wanted).all():
        raise ValueError(f"the descriptor must be finite, got {wanted.tolist()}.")
    if not repertoire.occupied.any():
        raise ValueError("the repertoire is empty and has no nearest elite; add genotypes first.")
    difference = jnp.clip(repertoire.descriptors - wanted[None], -1e18, 1e18)  # so that no square overflows
    distance = jnp.sum(jnp.square(difference), axis=1)
    return elite(repertoire, int(jnp.argmin(jnp.where(repertoire.occupied, distance, jnp.inf))))


def best(repertoire: Repertoire[GenotypeT]) -> Elite[GenotypeT]:
    """The elite with the highest fitness.

    Raises:
      ValueError: the repertoire is empty.

    Example:
      >>> repertoire = rookery.experiments.repertoire("runs/me-pbt-sac")
      >>> elite = rookery.qd.best(repertoire)
      >>> elite.descriptor.shape
      (2,)
    """
    if not repertoire.occupied.any():
        raise ValueError("the repertoire is empty and has no best elite; add genotypes first.")
    return elite(repertoire, int(jnp.argmax(repertoire.fitnesses)))


def elite(repertoire: Repertoire[GenotypeT], cell: int) -> Elite[GenotypeT]:
    """The elite of a cell.

    Raises:
      ValueError: there is no such cell, or it is empty.

    Example:
      >>> repertoire = rookery.experiments.repertoire("runs/me-pbt-sac")
      >>> elite = rookery.qd.elite(repertoire, cell=int(jnp.argmax(repertoire.fitnesses)))
    """
    count = repertoire.fitnesses.shape[0]
    if not 0 <= cell < count or not repertoire.occupied[cell]:
        raise ValueError(f"cell {cell} of 0..{count - 1} holds no elite; `nearest` finds one that does.")
    row = trees.take(repertoire, cell)
    return Elite(cell, row.genotypes, row.fitnesses, row.descriptors, row.extras)


def metrics(repertoire: Repertoire, qd_offset: float = 0.0) -> Metrics:
    """Coverage and QD score of a repertoire.

    Args:
      repertoire: the repertoire.
      qd_offset: the fitness that counts as 0 in the QD score; an elite with a lower fitness counts as 0 too.

    Returns:
      `[]` each: `coverage`, the occupied cells in percent; `qd_score`, the sum over occupied cells of fitness minus
      offset; `normalized_qd_score`, `qd_score` divided by the number of cells; `max_fitness`, -inf while the repertoire
      is empty; `below_offset`, the number of elites with a fitness below the offset.
    """
    occupied, fitnesses = repertoire.occupied, repertoire.fitnesses
    value = jnp.where(occupied, jnp.maximum(fitnesses - qd_offset, 0.0), 0.0)
    score = jnp.sum(value)
    count = fitnesses.shape[0]
    return {
        "coverage": 100.0 * jnp.sum(occupied).astype(jnp.float32) / count,
        "qd_score": score,
        "normalized_qd_score": score / count,
        "max_fitness": jnp.max(fitnesses),
        "below_offset": jnp.sum(occupied & (fitnesses < qd_offset)),
    }
