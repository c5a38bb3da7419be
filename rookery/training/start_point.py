"""The point at which a run starts: a new state, or one that is restored from a checkpoint."""

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from rookery.distributed import sync
from rookery.populations.base import ProgramState
from rookery.populations.stages import Work
from rookery.storage.checkpoint import Checkpointer, CheckpointError
from rookery.storage.events import read_journal
from rookery.storage.run_dir import RunFolder

DONE = "iterations"
"""Key of the number of finished iterations in the metadata of an interrupted generation's checkpoint."""


class StartPoint(NamedTuple):
    """The point at which a run starts or resumes."""

    state: ProgramState | None
    """State of the program; None if the run is new and its state is not yet initialised."""
    generation: int
    """Number of finished generations."""
    work: Work | None = None
    """Intermediate state of an interrupted generation; None at the boundary of two generations."""
    done: int = 0
    """Iterations of the interrupted generation that are done."""
    host: Mapping[str, np.ndarray] | None = None
    """Running episodes of environments on the host, if they were saved."""


def restore(
    folder: RunFolder, checkpoints: Checkpointer, template: ProgramState, work: Callable[[], Work]
) -> StartPoint:
    """Restore the newest complete checkpoint of a run, or that of an interrupted generation, if it is newer.

    A run that was killed before its first checkpoint starts from the beginning; only its computing time is lost. A run
    whose checkpoints are missing does not, since its tables would be replaced.

    Args:
      folder: the run directory.
      checkpoints: of the finished generations.
      template: shapes, dtypes and shardings of the program's state.
      work: returns the template of the intermediate state of a generation.

    Warns:
      CheckpointWarning: a damaged checkpoint was skipped.

    Raises:
      CheckpointError: there are checkpoints, but none is complete, or it does not match the template; or the journal
        says that some were saved, and there are none.
    """
    newest = -1 if sync.of_first(checkpoints.empty) else 0
    interrupted = Checkpointer(folder.interrupted, read_only=True)
    reached = sync.of_first(_latest(interrupted))
    if newest == 0 and reached >= 0:
        newest = sync.of_first(_latest(checkpoints))
    if reached > newest or reached == newest >= 0:
        (state, unfinished), metadata, generation = interrupted.restore((template, work()))
        return StartPoint(state, generation, unfinished, metadata[DONE], interrupted.host_arrays(generation))
    if newest < 0:
        saved = sync.of_first(_saved(folder) if sync.is_first() else 0)
        if saved:
            raise CheckpointError(
                f"the journal of {folder.path} says that generation {saved} was saved, but there is no checkpoint, and "
                "a new beginning would replace the run's tables; put a copy of its folder `checkpoints` back, or start "
                "the run again with `--overwrite`."
            )
        return StartPoint(None, 0)
    state, _, generation = checkpoints.restore(template)
    return StartPoint(state, generation, host=checkpoints.host_arrays(generation))


def _saved(folder: RunFolder) -> int:
    """The largest number of finished generations that the journal says were saved."""
    saved = 0
    for event in read_journal(folder):
        ended = event["event"] == "ended" and str(event.get("why", "")).startswith(("finished", "interrupted"))
        if event["event"] == "began" or ended:
            saved = max(saved, int(event.get("generation", 0)))
    return saved


def _latest(checkpoints: Checkpointer) -> int:
    """The generation of the newest complete checkpoint on process 0; -1 without one, and on all other processes."""
    latest = checkpoints.latest() if sync.is_first() else None
    return -1 if latest is None else latest


def has_checkpoint(run_dir: str | os.PathLike[str]) -> bool:
    """Whether a run can be resumed from a complete checkpoint, or from that of an interrupted generation."""
    folder = RunFolder(run_dir)
    found = (path for path in (folder.checkpoints, folder.interrupted) if path.is_dir())
    return not all(Checkpointer(path, read_only=True).empty for path in found)
