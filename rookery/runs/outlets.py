"""Where a run writes: its tables, its checkpoints."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from rookery.populations.api import ProgramState, TableFn
from rookery.runs.checkpoint import Checkpointer
from rookery.runs.folder import RunFolder
from rookery.runs.log import RunLog, write_table


class Outlets(NamedTuple):
    """Where a run writes, if it writes at all."""

    checkpoints: Checkpointer | None = None
    log: RunLog | None = None
    folder: RunFolder | None = None

    @property
    def run_dir(self) -> Path | None:
        """The run's folder."""
        return self.folder.path if self.folder else None

    def write(self, generation: int, row: Mapping[str, float], metrics: Mapping[str, np.ndarray]) -> None:
        """Log a generation, counted from 0."""
        if self.log is not None:  # process 0 writes
            members = {name.removeprefix("hyper/"): metrics[name] for name in metrics if name.startswith("hyper/")}
            if "parent" in metrics:
                members = {"parent": metrics["parent"], "fitness": metrics["fitness"], **members}
            self.log.write(generation, row, members)

    def save(self, generation: int, state: ProgramState, table: TableFn | None, spared: int | None = None) -> float:
        """Save the state after `generation` generations, in the background, and what its repertoire holds.

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
        return time.monotonic() - started

    def wait(self) -> None:
        """Until what was saved is whole."""
        if self.checkpoints is not None:
            self.checkpoints.wait()
