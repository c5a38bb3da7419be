"""The thresholds of cells, which rise slowly towards the fitness of accepted genotypes; see `archives.annealed`.

Source: Fontaine 2023, "Covariance Matrix Adaptation MAP-Annealing" (arXiv:2205.10752).
"""

import jax.numpy as jnp

from rookery.populations.sharding import HERE, Rows
from rookery.qd import repertoire as repertoires
from rookery.qd.centroids import FindFn
from rookery.qd.repertoire import Added, Repertoire
from rookery.types import Array, PyTree


def add(
    find: FindFn,
    learning_rate: float,
    repertoire: Repertoire,
    genotypes: PyTree,
    fitnesses: Array,
    descriptors: Array,
    limits: tuple[Array, Array],
    rows: Rows = HERE,
) -> tuple[Repertoire, Added]:
    """Add genotypes as `repertoire.add` does, and raise the thresholds of the cells that accept them."""
    kept, added = repertoires.add(repertoire, genotypes, fitnesses, descriptors, limits, rows, find)
    thresholds, cell = repertoire.thresholds, added.cell
    improvement = jnp.where(added.rejected, -jnp.inf, fitnesses - thresholds[cell])
    accepted = improvement > 0
    raised = raised_thresholds(thresholds[cell], jnp.where(accepted, fitnesses, 0.0), accepted, cell, learning_rate)
    count, places = thresholds.shape[0], jnp.arange(cell.shape[0])
    first = repertoires.best_of_cell(cell, jnp.where(accepted, fitnesses, -jnp.inf), count) & accepted
    target = jnp.where(first, cell, count + places)  # beyond C: unique indices that are not written
    thresholds = thresholds.at[target].set(raised, mode="drop", unique_indices=True)
    return kept._replace(thresholds=thresholds), added._replace(improvement=improvement)


def raised_thresholds(thresholds: Array, fitnesses: Array, accepted: Array, cell: Array, learning_rate: float) -> Array:
    """The new threshold of each genotype's cell, `[B]`; see `archives.annealed`.

    Args:
      thresholds: `[B]`, of the genotypes' cells.
      fitnesses: `[B]`, 0 where not accepted.
      accepted: `[B]` bool.
      cell: `[B]` int32.
      learning_rate: in [0, 1].
    """
    same = (cell[:, None] == cell[None]) & accepted[None]  # sums by rows, since a scattered sum has no fixed order
    number = jnp.sum(same, axis=1).astype(jnp.float32)
    part = 2.0 ** -cell.shape[0].bit_length()  # an exact factor, by which no sum overflows
    mean = jnp.sum(jnp.where(same, fitnesses[None] * part, 0.0), axis=1) / jnp.maximum(number, 1.0) / part
    kept = (1.0 - learning_rate) ** number
    return kept * thresholds + (1.0 - kept) * mean
