"""Which checkpoint of a run is the best, by a column of its metrics."""

import difflib
import math
from collections.abc import Iterable, Mapping

from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import RunFolder


class Best:
    """The best generation yet; nothing is stored twice, since `metrics.csv` has every generation's value.

    Attributes:
      column: of `metrics.csv`; None where nobody asked, and then no generation is better than another.
      generation: whose checkpoint is the best, counted from 1; None before there is one.
    """

    def __init__(self, column: str | None):
        self.column = column
        self.generation: int | None = None
        self._value = -math.inf

    def recall(self, folder: RunFolder, checkpoints: Checkpointer) -> None:
        """Take up where a run stopped: the best of those generations that have a checkpoint."""
        if self.column is not None and folder.metrics_file.exists():
            metrics = read_csv(folder.metrics_file)
            values = dict(zip(metrics["generation"] + 1, metrics[self.column], strict=True))
            for generation in checkpoints.whole_generations():
                self.improves(generation, {self.column: float(values.get(generation, math.nan))})

    def improves(self, generation: int, row: Mapping[str, float]) -> bool:
        """Whether a generation is better than all before; a value that is not finite never is."""
        if self.column is None or not self._value < row[self.column] < math.inf:
            return False
        self.generation, self._value = generation, row[self.column]
        return True

    def check(self, columns: Iterable[str]) -> None:
        """Refuse a column that the run will not have.

        Raises:
          ValueError: names the nearest.
        """
        columns = sorted(columns)
        if self.column is not None and self.column not in columns:
            near = difflib.get_close_matches(self.column, columns, n=3, cutoff=0.4)
            remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(columns)}."
            raise ValueError(f"best_by names no metric of this run: {self.column!r}; {remedy}")


def find(folder: RunFolder, checkpoints: Checkpointer, checkpoint: str, best_by: str | None) -> int | None:
    """The generation of the checkpoint that a user means; None is the newest whole one.

    Args:
      checkpoint: "last", "best", or a generation.
      best_by: the column that the run was told.

    Raises:
      ValueError: it is none of the three, or the run was not told what is best, or has no whole checkpoint yet.
    """
    if checkpoint == "last":
        return None
    if checkpoint.isdecimal():
        return int(checkpoint)
    if checkpoint != "best":
        raise ValueError(f"checkpoint must be best, last or the number of a generation, got {checkpoint!r}.")
    if best_by is None:
        raise ValueError(f"{folder.path} was not told what is best; train with --best-by, or take --checkpoint last.")
    best = Best(best_by)
    best.recall(folder, checkpoints)
    if best.generation is None:
        raise ValueError(f"{folder.path} has no whole checkpoint with a finite {best_by} yet; let it run on.")
    return best.generation
