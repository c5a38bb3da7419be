"""Selection of a run's best checkpoint by a column of its metrics."""

import contextlib
import math
from collections.abc import Iterable, Mapping

from rookery.settings import SettingError, suggestion, unknown_name, verbatim
from rookery.storage import manifest
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import read_table
from rookery.storage.run_dir import RunFolder


class Best:
    """Tracks the best generation so far. After a restart the values are read from `metrics.csv`, those
    of lost rows from the metadata of the checkpoints.

    Attributes:
      column: the column of `metrics.csv` to maximise; None disables the selection.
      generation: the generation of the best checkpoint, counted from 1; None before the first one.
    """

    def __init__(self, column: str | None):
        self.column = column
        self.generation: int | None = None
        self._value = -math.inf

    def recall(self, folder: RunFolder, checkpoints: Checkpointer) -> None:
        """Restore the state of a stopped run: the best among the generations that have a checkpoint."""
        if self.column is None:
            return
        table = read_table(folder.metrics_file)
        known: dict[int, float] = {}
        if {self.column, "generation"} <= set(table):
            pairs = zip((table["generation"] + 1).tolist(), map(float, table[self.column]), strict=True)
            known = {number: value for number, value in pairs if math.isfinite(value)}
        kept = checkpoints.generations()
        for number in set(kept) - set(known):  # its row is lost
            with contextlib.suppress(manifest.Damaged, KeyError):
                known[number] = manifest.read(checkpoints.directory, number)["metadata"][self.column]
        kept = [number for number in kept if number in known]
        best_first = sorted(kept, key=lambda generation: -known[generation])  # the earliest of equal ones first
        found = next(filter(checkpoints.is_complete, best_first), None)
        if found is not None:
            self.improves(found, {self.column: known[found]})

    def score(self, row: Mapping[str, float]) -> dict[str, float]:
        """What the metadata of a checkpoint hold of its generation's `row` of metrics, for `recall`."""
        name = self.column
        return {name: row[name]} if name is not None and math.isfinite(row[name]) else {}

    def improves(self, generation: int, row: Mapping[str, float]) -> bool:
        """Whether a generation, counted from 1, is better than all earlier ones, in which case it becomes the best.

        A value in its `row` of metrics that is not finite is never an improvement.
        """
        if self.column is None or not self._value < row[self.column] < math.inf:
            return False
        self.generation, self._value = generation, row[self.column]
        return True

    def check(self, columns: Iterable[str]) -> None:
        """Raise a ValueError, which names the most similar ones, if the run's metrics `columns` lack the column."""
        columns = sorted(columns)
        if self.column is not None and self.column not in columns:
            remedy = suggestion(self.column, columns, f"the metrics are {', '.join(columns)}.")
            raise unknown_name("best_by", self.column, "metric of this run named", columns, remedy)


def find(folder: RunFolder, checkpoints: Checkpointer, checkpoint: str | int, best_by: str | None) -> int | None:
    """The generation of the checkpoint that a user selected; None for the newest complete one.

    Args:
      checkpoint: "last", "best", or the number of a generation.
      best_by: the metric that the run was configured with, or None.

    Raises:
      ValueError: `checkpoint` is none of the three, or it is "best" and the run has no `best_by` or no complete
        checkpoint yet.
    """
    if checkpoint == "last":
        return None
    if str(checkpoint).isdecimal():
        return int(checkpoint)
    if checkpoint != "best":
        raise SettingError("checkpoint", checkpoint, "must be best, last or the number of a generation")
    if best_by is None:
        problem = f"needs {{best_by}}, without which {verbatim(folder.path)} was trained"
        raise SettingError("checkpoint", "best", problem, "use last")
    best = Best(best_by)
    best.recall(folder, checkpoints)
    if best.generation is None:
        raise ValueError(f"{folder.path} has no complete checkpoint with a finite {best_by} yet; continue the run.")
    return best.generation
