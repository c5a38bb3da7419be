"""Writes the files of a run (tables, checkpoints, journal), and calls the user's function after each checkpoint."""

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery.factories import RAISED, place_of
from rookery.populations.base import ProgramState, TableFn
from rookery.settings import CALLBACK, MEASURE, RETURN, ROUND
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import RunLog, write_table
from rookery.storage.events import Journal
from rookery.storage.run_dir import RunFolder, output_to
from rookery.types import PyTree


class AfterSaveWarning(UserWarning):
    """The function to call after a checkpoint failed."""


class AfterSave:
    """Calls a function whose failure must not end a run: its first exception becomes a warning, later ones are ignored.

    Args:
      function: called with the run directory.

    Warns:
      AfterSaveWarning: `function` raised its first exception.
    """

    def __init__(self, function: Callable[[Path], None]):
        self._function = function
        self._warned = False

    def __call__(self, run_dir: Path) -> None:
        try:
            self._function(run_dir)
        except RAISED as error:
            if not self._warned:
                self._warned = True
                message = (
                    f"the function to call after a checkpoint failed with {type(error).__name__}: "
                    f"{str(error).rstrip('.')}{place_of(error)}; the run "
                    "continues, calls it again after the next checkpoint, and does not repeat this warning."
                )
                warnings.warn(message, AfterSaveWarning, stacklevel=2)


class RunWriters(NamedTuple):
    """The writers of a run's files; all but the journal are None in a run without a run directory."""

    journal: Journal
    """Records starts, warnings and ends of the run."""
    checkpoints: Checkpointer | None = None
    """Writes the checkpoints."""
    log: RunLog | None = None
    """Writes the tables and event files; None except on process 0."""
    folder: RunFolder | None = None
    """The run directory."""
    after_save: AfterSave | None = None
    """The user's function to call after each checkpoint."""

    @property
    def run_dir(self) -> Path | None:
        """The path of the run directory."""
        return self.folder.path if self.folder else None

    def write(self, generation: int, row: Mapping[str, float], metrics: Mapping[str, np.ndarray]) -> None:
        """Log a generation.

        Args:
          generation: counted from 0.
          row: of `metrics.csv`.
          metrics: of the program, on the host; those of the members go to `lineage.csv`.
        """
        self.journal.reached = generation + 1
        if self.log is not None:  # process 0 writes
            members = {name.removeprefix("hyper/"): metrics[name] for name in metrics if name.startswith("hyper/")}
            if "parent" in metrics:
                shape = np.shape(metrics["parent"])
                scores = {
                    name: values
                    for name, values in metrics.items()
                    if name in ("fitness", "rating", RETURN, ROUND) or name.startswith(MEASURE)
                    if np.shape(values) == shape
                }
                members = {"parent": metrics["parent"], **scores, **members}
            self.log.write(generation, row, members)

    def add(self, generation: int, row: Mapping[str, float], members: Mapping[str, np.ndarray]) -> None:
        """Add what the callbacks returned to the rows of the generation that `write` has logged.

        Args:
          generation: counted from 0.
          row: name -> number.
          members: name -> `[P]`; used if the program has members with parents.
        """
        if self.log is not None and row:
            self.log.add(generation, row, {f"{CALLBACK}{name}": values for name, values in members.items()})

    def save(
        self,
        generation: int,
        state: ProgramState,
        table: TableFn | None,
        spared: int | None = None,
        host: Mapping[str, np.ndarray] | None = None,
        planned: bool = True,
        score: Mapping[str, float] = MappingProxyType({}),
    ) -> float:
        """Start saving the state in the background, write the table of its repertoire, and call `after_save`.

        Args:
          generation: number of finished generations.
          state: of the program after them.
          table: gives the columns of `repertoire.csv`; None without a repertoire.
          spared: generation whose checkpoint is kept in addition to the newest ones.
          host: running episodes of environments on the host.
          planned: whether a run that nothing interrupts saves here too; only then are there rows in `cells.csv`.
          score: metadata of the checkpoint, see `Best.score`.

        Returns:
          Seconds that the checkpoint took: waiting for the previous one, and starting this one.
        """
        if self.checkpoints is None:
            return 0.0
        if table is not None:
            with jax.debug_nans(False):  # an empty cell has no descriptor
                columns = jax.device_get(table(state))  # a collective computation: every process has to run it
            if self.log is not None and self.folder is not None:
                # Written before the checkpoint, since a run resumed from a complete checkpoint relies on these rows.
                if planned:
                    self.log.write_cells(generation - 1, columns["fitness"])
                with output_to(self.folder.repertoire_file):
                    write_table(self.folder.repertoire_file, {"cell": np.arange(len(columns["fitness"])), **columns})
        if self.log is not None:
            self.log.sync()
        self._restore_config()
        started = time.monotonic()
        self.checkpoints.save(generation, state, score, spared, host)
        seconds = time.monotonic() - started
        if self.after_save is not None and self.log is not None and self.folder is not None:
            self.after_save(self.folder.path)
        return seconds

    def save_interrupted(
        self,
        generation: int,
        unfinished: PyTree,
        metadata: Mapping[str, Any],
        host: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Save the intermediate state of a generation that a signal stopped, and wait until it is complete.

        Args:
          generation: number of finished generations.
          unfinished: state of the program and intermediate state of the generation.
          metadata: JSON values stored with the checkpoint.
          host: running episodes of environments on the host.
        """
        if self.folder is not None:
            self.wait()  # an ordinary checkpoint deletes this folder when it is complete
            self._restore_config()
            with Checkpointer(self.folder.interrupted) as checkpoints:
                checkpoints.save(generation, unfinished, metadata, host=host)

    def _restore_config(self) -> None:
        """Write `config.json` again if it was removed, since no checkpoint can be resumed without it."""
        if self.log is not None and self.folder is not None and not self.folder.config_file.is_file():
            with output_to(self.folder.config_file):
                self.folder.reconfigure(self.folder.config)

    def wait(self) -> None:
        """Wait until all checkpoints are complete."""
        if self.checkpoints is not None:
            self.checkpoints.wait()
