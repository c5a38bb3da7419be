"""The cells of a repertoire: how many and where, and a cache of those that take long to find."""

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.base import DescriptorSpec
from rookery.qd import centroids
from rookery.types import Array

_METHOD = 1
"""Raised whenever the same arguments give other centroids than before."""
_DIGEST_SIZE = hashlib.sha256().digest_size


@dataclass(frozen=True)
class CellsConfig:
    """The cells of a repertoire.

    Raises:
      ValueError: a count below 1, or fewer draws than cells.
    """

    cells: int = 1024
    """Cells of the repertoire, of about equal share of the descriptor's limits (CVT; at least 1)."""
    grid: tuple[int, ...] | None = None
    """An even grid instead: cells along each dimension of the descriptor (each at least 1)."""
    cvt_samples: int = 50_000
    """Uniform draws from which the cells are found (at least as many as cells)."""
    shard_repertoire: bool = False
    """Let each device keep its share of the repertoire's genotypes, not all; the devices must divide the cells."""

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("cells", "cvt_samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.grid is not None and min(self.grid, default=0) < 1:
            raise ValueError(f"grid needs at least 1 cell along each dimension, got {self.grid}.")
        if self.grid is None and self.cvt_samples < self.cells:
            raise ValueError(f"cvt_samples must be at least cells ({self.cells}), got {self.cvt_samples}.")

    @property
    def count(self) -> int:
        """C."""
        return self.cells if self.grid is None else math.prod(self.grid)


def find_cells(config: CellsConfig, descriptor: DescriptorSpec) -> Array:
    """The centroids `[C, D]` of a config's cells within a descriptor's limits.

    Raises:
      ValueError: a grid that does not fit the descriptor.
    """
    if config.grid is not None:
        return centroids.grid(config.grid, descriptor.lower, descriptor.upper)
    return cvt(config.cells, descriptor.lower, descriptor.upper, config.cvt_samples)


def cvt(cells: int, lower: Sequence[float], upper: Sequence[float], num_samples: int = 50_000, seed: int = 0) -> Array:
    """Centroidal Voronoi tessellation, found once and kept on disk under its arguments (see `centroids.cvt`).

    The files lie in `$XDG_CACHE_HOME/rookery` (`~/.cache/rookery`); they may be deleted at any time.

    Args:
      cells: C, at least 1.
      lower: of the descriptor, `[D]`.
      upper: likewise.
      num_samples: uniform draws to divide, at least C.
      seed: of the draws; runs that share it share their cells.

    Returns:
      `[C, D]` float32.

    Raises:
      ValueError: no cell, fewer draws than cells, or limits that do not increase.
    """
    arguments = [_METHOD, cells, list(map(float, lower)), list(map(float, upper)), num_samples, seed]
    digest = hashlib.sha256(json.dumps(arguments).encode()).hexdigest()[:16]
    path = cache_folder() / f"cvt-{digest}"
    shape = (cells, len(lower))
    kept = _read(path, shape)
    if kept is not None:
        return jnp.asarray(kept)
    found = centroids.cvt(jax.random.key(seed), cells, lower, upper, num_samples)
    _write(path, np.asarray(found))
    return found


def cache_folder() -> Path:
    """Where what can be computed again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rookery"


def _read(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """What is kept; None if there is nothing, or it is not whole: the file begins with the digest of the rest."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, body = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    if hashlib.sha256(body).digest() != digest or len(body) != 4 * math.prod(shape):
        return None
    return np.frombuffer(body, "<f4").reshape(shape)


def _write(path: Path, found: np.ndarray) -> None:
    """Keep it, if the disk lets us: a cache that cannot be written is no error."""
    body = found.astype("<f4").tobytes()
    half = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(hashlib.sha256(body).digest() + body)
        half.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            half.unlink()
