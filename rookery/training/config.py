"""The settings of a run that the training loop reads: its seed, length, run directory and checkpoints."""

import math
from dataclasses import dataclass
from typing import Annotated

from rookery.settings import Within, check_counts, check_fields, expand_paths

_LARGEST_SEED = 2**32 - 1


def check_seed(seed: int) -> int:
    """A seed in its range, 0 to 2^32 - 1: larger ones would repeat the numbers of others.

    Raises:
      ValueError: the seed is negative or above 2^32 - 1.
      TypeError: the seed is no whole number.
    """
    check_counts(0, _LARGEST_SEED, seed=seed)
    return seed


@dataclass(frozen=True)
class RunConfig:
    """Seed, length, run directory and checkpoints of a run.

    Raises:
      ValueError: a count is below 1, or the seed is outside its range.
      TypeError: a number is not whole.
    """

    seed: Annotated[int, Within(0, _LARGEST_SEED)] = 0
    """Seed; the same seed, versions and devices give bit-identical results."""
    generations: Annotated[int, Within(1)] = 50
    """Number of generations to train."""
    run_dir: str | None = None
    """Run directory; by default runs/<kind>-<env>-<seed>."""
    checkpoint_every: Annotated[int, Within(1)] = 5
    """Generations between two checkpoints; the last generation is always saved."""
    checkpoint_seconds: Annotated[float, Within(0, math.inf)] = 120.0
    """Seconds after which a checkpoint is saved even earlier (0: never), unless saving takes more than 5 % of the
    time."""
    keep: Annotated[int, Within(1)] = 3
    """Number of most recent checkpoints to keep; older ones are deleted."""
    best_by: str | None = None
    """Column of metrics.csv to maximise: whenever it reaches a new maximum, that generation is saved as the best
    checkpoint and kept in addition to the most recent ones."""
    patience: Annotated[int, Within(1)] = 100
    """Generations for which a repertoire may be empty."""
    overwrite: bool = False
    """Replace a run that is already in the run directory; its files are deleted."""
    quiet: bool = False
    """Print nothing but errors."""
    live: bool = False
    """Rewrite report.html in the run directory with every checkpoint."""

    def __post_init__(self) -> None:
        """Check the counts."""
        check_fields(self)
        expand_paths(self, "run_dir")
