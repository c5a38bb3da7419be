"""The cells of a repertoire: their number, and their centroids, which are cached on disk."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rookery.distributed.device_memory import machine, size
from rookery.envs.base import DescriptorSpec
from rookery.qd import archives, centroids
from rookery.qd.archives import Archive
from rookery.settings import FRACTION, SettingError, Within, check_counts, check_fields
from rookery.storage import array_files
from rookery.training.config import check_seed
from rookery.types import Array

_METHOD = 1  # version of the CVT method; incremented whenever the same arguments would give different centroids
ANNEALED_RATE = 0.01  # archive learning rate of CMA-MAE by default
_COORDINATE = 24
"""Bytes that each coordinate of a centroid, or of a sample, takes while the centroids are computed, at least."""


@dataclass(frozen=True)
class CellsConfig:
    """The cells of a repertoire.

    Raises:
      ValueError: a count is below 1, or `cvt_samples` is below `cells`.
    """

    cells: Annotated[int, Within(1)] = 1024
    """Number of cells in the repertoire: a centroidal Voronoi tessellation (CVT) of the descriptor space into cells of
    about equal volume."""
    grid: Annotated[tuple[int, ...] | None, Within(1)] = None
    """Use a regular grid in place of the CVT: cells along each descriptor dimension."""
    cvt_samples: Annotated[int, Within(1)] = 50_000
    """Uniform samples of the descriptor space from which the CVT centroids are computed (at least cells)."""
    shard_repertoire: bool = False
    """Store each genotype of the repertoire on one device only, 1/devices of them each; the number of devices must
    divide the number of cells. By default every device stores all genotypes."""
    survival: Literal["best-of-cell", "dominated-novelty"] = "best-of-cell"
    """best-of-cell: each cell keeps its best genotype; dominated-novelty: there are no cells, and of all genotypes as
    many as there would be cells survive, those farthest from all fitter ones (Dominated Novelty Search,
    arXiv:2502.00593)."""
    novelty_neighbours: Annotated[int, Within(1)] = 3
    """k, the number of nearest fitter genotypes whose distances dominated-novelty averages."""
    archive_learning_rate: Annotated[float, FRACTION] = 1.0
    """Rate at which the threshold of a cell, by which CMA-MAE ranks its proposals, moves towards the fitness of
    accepted ones; 1: the threshold is the fitness of the cell's elite (CMA-ME)."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.grid == ():
            raise SettingError("grid", (), "needs the number of cells along each dimension")
        check_counts(cells=self.count)
        if self.grid is None and self.cvt_samples < self.cells:
            raise SettingError("cvt_samples", self.cvt_samples, f"must be at least {{cells}} ({self.cells})")

    @property
    def count(self) -> int:
        """The number of cells C, whether of the CVT or of the grid."""
        return self.cells if self.grid is None else math.prod(self.grid)


def find_cells(config: CellsConfig, descriptor: DescriptorSpec, ranked: bool = False) -> Archive:
    """A config's cells within a descriptor's limits, and the rule by which they keep genotypes.

    CMA-MAE is `ranked`: its emitter ranks genotypes by their improvement over a cell's threshold.

    Raises:
      ValueError: the grid does not have one size per descriptor dimension, or a setting has no effect.
      MemoryError: the centroids exceed the memory.
    """
    novelty = config.survival == "dominated-novelty"
    if config.novelty_neighbours != CellsConfig.novelty_neighbours and not novelty:
        needed = "has an effect only with {survival} dominated-novelty"
        raise SettingError("novelty_neighbours", None, needed, "leave it out")
    if config.archive_learning_rate != CellsConfig.archive_learning_rate and not ranked:
        needed = "has an effect only on cma-mae, which ranks genotypes by it"
        raise SettingError("archive_learning_rate", None, needed, "leave it out")
    if novelty and config.archive_learning_rate not in (CellsConfig.archive_learning_rate, ANNEALED_RATE):
        problem = "has no effect with {survival} dominated-novelty"
        raise SettingError("archive_learning_rate", None, problem, "leave it out")
    points = config.count if config.grid is not None else max(config.cells, config.cvt_samples)
    needed, memory = _COORDINATE * len(descriptor.lower) * points, machine()
    if memory is not None and needed > memory:
        raise MemoryError(
            f"the centroids of {config.count} cells need {size(needed)}, but {size(memory)} are available; reduce "
            "cells, grid or cvt_samples."
        )
    if config.grid is not None:
        found = centroids.grid(config.grid, descriptor.lower, descriptor.upper)
    else:
        found = cvt(config.cells, descriptor.lower, descriptor.upper, config.cvt_samples)
    if novelty:
        return archives.dominated_novelty(found, config.novelty_neighbours)
    return archives.annealed(found, config.archive_learning_rate)


def cvt(cells: int, lower: Sequence[float], upper: Sequence[float], num_samples: int = 50_000, seed: int = 0) -> Array:
    """Centroids of a centroidal Voronoi tessellation (CVT), cached on disk by its arguments (see `centroids.cvt`).

    The cache files are in `$XDG_CACHE_HOME/rookery` (`~/.cache/rookery`) and may be deleted at any time.

    Args:
      cells: the number of cells C, at least 1.
      lower: lower limits of the descriptor, `[D]`.
      upper: upper limits of the descriptor, `[D]`.
      num_samples: uniform samples from which the centroids are computed, at least C.
      seed: of the samples; the same arguments and seed give the same cells.

    Returns:
      The centroids, `[C, D]` float32.

    Raises:
      ValueError: `cells` is below 1, `num_samples` is below `cells`, or a lower limit is not below its upper limit.

    Example:
      >>> rookery.experiments.cvt(16, lower=(0.0, 0.0), upper=(1.0, 1.0), num_samples=200).shape
      (16, 2)
    """
    check_counts(cells=cells, num_samples=num_samples)
    cells, num_samples, seed = int(cells), int(num_samples), int(check_seed(seed))
    arguments = [_METHOD, cells, list(map(float, lower)), list(map(float, upper)), num_samples, seed]
    digest = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:16]
    name = f"cvt-{digest}"
    cached = array_files.read_cached(name, (cells, len(lower)))
    if cached is not None:
        return jnp.asarray(cached)
    found = centroids.cvt(jax.random.key(seed), cells, lower, upper, num_samples)
    array_files.write_cached(name, np.asarray(found))
    return found
