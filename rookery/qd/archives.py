"""Archives: which of the genotypes that were found a repertoire keeps.

By default each cell keeps its best genotype (`repertoire.add`). With `annealed` a cell also has a threshold, which
rises slowly and by which emitters rank their proposals; with `dominated_novelty` there are no cells, and individuals
that are far from all fitter ones are kept. Every method that takes centroids takes an archive instead.
"""

from functools import partial
from typing import NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rookery import trees
from rookery.populations.sharding import HERE, Rows
from rookery.qd import novelty, thresholds
from rookery.qd import repertoire as repertoires
from rookery.qd.centroids import FindFn, finder
from rookery.qd.repertoire import Added, Repertoire
from rookery.settings import FRACTION, SettingError, check_counts
from rookery.types import NO_SETTINGS, Array, PyTree, Settings


class ArchiveAddFn(Protocol):
    """Add B genotypes to a repertoire; the arguments and results are those of `repertoire.add`."""

    def __call__(
        self,
        repertoire: Repertoire,
        genotypes: PyTree,
        fitnesses: Array,
        descriptors: Array,
        limits: tuple[Array, Array],
        rows: Rows = HERE,
    ) -> tuple[Repertoire, Added]: ...


class Archive(NamedTuple):
    """Cells, and the rule by which a repertoire keeps genotypes."""

    centroids: Array
    """`[C, D]`. Coverage and QD score count the cells of these centroids, under every rule."""
    add: ArchiveAddFn
    find: FindFn
    """Finds the cell of a descriptor."""
    has_cells: bool = True
    """Whether a place of the repertoire is a cell; False if it is the slot of any individual."""
    has_thresholds: bool = False
    """Whether each cell has a threshold apart from its elite's fitness."""
    settings: Settings = NO_SETTINGS
    """Name and settings of the rule, recorded in the run directory."""


def archive_of(centroids: Array | Archive) -> Archive:
    """An archive in which each cell keeps its best genotype; unchanged if it is an archive already."""
    if isinstance(centroids, Archive):
        return centroids
    cells = _finite(centroids)
    find = finder(cells)
    return Archive(cells, partial(_add_to_cells, find), find)


def _finite(centroids: ArrayLike) -> Array:
    """Centroids from outside in float32; a ValueError if one is masked or not finite."""
    with np.errstate(over="ignore"):
        cells = trees.unmasked(centroids, np.float32)
    if not np.isfinite(cells).all():
        raise ValueError("centroids must be finite; rookery.qd.grid and cvt give such ones.")
    return jnp.asarray(cells)


def _add_to_cells(
    find: FindFn,
    repertoire: Repertoire,
    genotypes: PyTree,
    fitnesses: Array,
    descriptors: Array,
    limits: tuple[Array, Array],
    rows: Rows = HERE,
) -> tuple[Repertoire, Added]:
    return repertoires.add(repertoire, genotypes, fitnesses, descriptors, limits, rows, find)


def annealed(centroids: Array, learning_rate: float = 0.01) -> Archive:
    """An archive whose cells have thresholds that rise slowly towards the fitness of accepted genotypes.

    Source: Fontaine 2023, "Covariance Matrix Adaptation MAP-Annealing" (arXiv:2205.10752), Algorithm 1, and its batch
    form, appendix K. A genotype is accepted where its fitness exceeds the threshold of its cell before the batch;
    `Added.improvement` is the difference. A cell that accepted n genotypes of mean fitness f moves its threshold t to
    `(1 - a)^n t + (1 - (1 - a)^n) f`. Thresholds begin at the fitness that counts as 0 in the QD score, the
    scoring's `qd_offset`: where all fitnesses are below it none is accepted, and the search does not spread.
    Deviation: each cell keeps the best genotype that was found for it, not the one accepted last: the paper's separate
    result archive. With the learning rate 1 the threshold is the fitness of that elite.

    Args:
      centroids: `[C, D]`.
      learning_rate: a, in [0, 1]; 0 never raises a threshold, 1 is the archive of MAP-Elites.

    Raises:
      ValueError: `learning_rate` is outside of [0, 1], or a centroid is masked or not finite.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> program = rookery.map_elites(arm, rookery.qd.annealed(cells, learning_rate=0.01))
    """
    if not 0.0 <= learning_rate <= 1.0:
        raise SettingError("archive_learning_rate", learning_rate, f"must lie {FRACTION}")
    cells = archive_of(centroids)
    if learning_rate == 1.0:
        return cells
    settings = {"archive_learning_rate": learning_rate}
    add = partial(thresholds.add, cells.find, learning_rate)
    return cells._replace(add=add, has_thresholds=True, settings=settings)


def dominated_novelty(centroids: Array, neighbours: int = 3) -> Archive:
    """An archive without cells, which keeps the C individuals of the greatest dominated novelty.

    Source: Bahlous-Boldi 2025, "Dominated Novelty Search" (arXiv:2502.00593). See `novelty.add`.

    Args:
      centroids: `[C, D]`; their number is the capacity. Coverage and QD score are those of the survivors when each is
        added to the cell of its descriptor, so that they can be compared with those of MAP-Elites.
      neighbours: k, the number of fitter individuals whose distances are averaged, at least 1.

    Raises:
      ValueError: `neighbours` is below 1, or a centroid is masked or not finite.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> program = rookery.map_elites(arm, rookery.qd.dominated_novelty(cells))
    """
    check_counts(novelty_neighbours=neighbours)
    settings = {"survival": "dominated-novelty", "novelty_neighbours": neighbours}
    cells = _finite(centroids)
    return Archive(cells, partial(novelty.add, neighbours), finder(cells), has_cells=False, settings=settings)


def empty(archive: Archive, genotype: PyTree, minimum: float) -> Repertoire:
    """An empty repertoire; `minimum` is the initial threshold of each cell, if the archive has thresholds."""
    whole = repertoires.empty(genotype, archive.centroids)
    return whole._replace(thresholds=jnp.full_like(whole.fitnesses, minimum)) if archive.has_thresholds else whole


def in_cells(archive: Archive, repertoire: Repertoire, limits: tuple[Array, Array]) -> Repertoire:
    """The elites by the cells of their descriptors, without genotypes where they are not already: for metrics."""
    if archive.has_cells:
        return repertoire
    return placed(archive, repertoire.fitnesses, repertoire.descriptors, limits)


def placed(archive: Archive, fitnesses: Array, descriptors: Array, limits: tuple[Array, Array]) -> Repertoire:
    """Add individuals `[C]` to the cells of an empty repertoire without genotypes; values that are not finite are left
    out."""
    cells = repertoires.empty((), archive.centroids)
    return repertoires.add(cells, (), fitnesses, descriptors, limits, find=archive.find)[0]
