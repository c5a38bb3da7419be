"""Where a run writes: its tables, its checkpoints, its journal; and whom it calls then."""

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery.populations.base import ProgramState, TableFn
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import RunLog, write_table
from rookery.storage.events import Journal
from rookery.storage.run_dir import RunFolder
from rookery.types import PyTree


class AfterSaveWarning(UserWarning):
    """What was to be done after a save failed."""


class AfterSave:
    """Calls what must not end a run: an exception of it becomes a warning, the first time, and is passed over later.

    Args:
      act: is given the run's folder.

    Warns:
      AfterSaveWarning: `act` raised an exception.
    """

    def __init__(self, act: Callable[[Path], None]):
        self._act = act
        self._warned = False

    def __call__(self, run_dir: Path) -> None:
        try:
            self._act(run_dir)
        except Exception as error:
            if not self._warned:
                self._warned = True
                message = (
                    f"what was to be done after a save failed with {type(error).__name__}: {error}; the run goes on, "
                    "tries again after the next one, and does not repeat this."
                )
                warnings.warn(message, AfterSaveWarning, stacklevel=2)


class Outlets(NamedTuple):
    """Where a run writes, if it writes at all."""

    journal: Journal
    checkpoints: Checkpointer | None = None
    log: RunLog | None = None
    folder: RunFolder | None = None
    after_save: AfterSave | None = None

    @property
    def run_dir(self) -> Path | None:
        """The run's folder."""
        return self.folder.path if self.folder else None

    def write(self, generation: int, row: Mapping[str, float], metrics: Mapping[str, np.ndarray]) -> None:
        """Log a generation, counted from 0."""
        self.journal.reached = generation + 1
        if self.log is not None:  # process 0 writes
            members = {name.removeprefix("hyper/"): metrics[name] for name in metrics if name.startswith("hyper/")}
            if "parent" in metrics:
                members = {"parent": metrics["parent"], "fitness": metrics["fitness"], **members}
            self.log.write(generation, row, members)

    def save(self, generation: int, state: ProgramState, table: TableFn | None, spared: int | None = None) -> float:
        """Save the state after `generation` generations, in the background, and what its repertoire holds; then call
        `after_save`.

        Returns:
          Seconds that the checkpoint took: waiting for the one before, and starting this one.
        """
        if self.checkpoints is None:
            return 0.0
        if table is not None:
            columns = jax.device_get(table(state))  # by every process, whoever writes it
            if self.log is not None and self.folder is not None:
                # Before the checkpoint: once that is whole, whoever resumes relies on these rows.
                self.log.write_cells(generation - 1, columns["fitness"])
                write_table(self.folder.repertoire_file, {"cell": np.arange(len(columns["fitness"])), **columns})
        started = time.monotonic()
        self.checkpoints.save(generation, state, {}, spared)
        seconds = time.monotonic() - started
        if self.after_save is not None and self.log is not None and self.folder is not None:
            self.after_save(self.folder.path)
        return seconds

    def save_interrupted(self, generation: int, unfinished: PyTree, metadata: Mapping[str, Any]) -> None:
        """Save what there is of a generation that a signal stopped, after `generation` finished ones; waits for it."""
        if self.folder is not None:
            self.wait()  # an ordinary checkpoint, once it is whole, deletes this folder
            with Checkpointer(self.folder.interrupted) as checkpoints:
                checkpoints.save(generation, unfinished, metadata)

    def wait(self) -> None:
        """Until what was saved is whole."""
        if self.checkpoints is not None:
            self.checkpoints.wait()
