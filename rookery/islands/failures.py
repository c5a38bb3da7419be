"""How islands end: the outcome of each, and the sentence and the remedy for one that failed."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rookery.envs.host.base import HostError
from rookery.storage import events
from rookery.storage.checkpoint import CheckpointError, NoneComplete
from rookery.storage.events import Diverged
from rookery.storage.island_files import island_dir, reached
from rookery.storage.run_dir import RunFolder, RunFolderError, resume_command

ENDS_ONE = (Diverged, CheckpointError, HostError)  # the errors that end one island of a run


class Outcome(NamedTuple):
    """How an island ended."""

    island: int
    error: str | None = None
    """Why it did not finish, with the remedy; None if it did, or if a signal stopped it."""
    stopped: bool = False
    """Whether a signal stopped it."""


class IslandError(RuntimeError):
    """Islands of a run failed; all others have finished. What each of them has saved is complete.

    The message has a line for each island that failed.

    Attributes:
      outcomes: how each island ended.
    """

    def __init__(self, outcomes: Sequence[Outcome]):
        self.outcomes = tuple(outcomes)

    def __str__(self) -> str:
        return "\n".join(sentences(self.outcomes))


def sentences(outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence for each island that failed."""
    return [f"island {outcome.island} failed: {outcome.error}" for outcome in outcomes if outcome.error is not None]


def failed(number: int, error: Exception, run_dir: str | Path) -> Outcome:
    """The outcome of an island that an error ended, with a remedy that leaves the other islands as they are."""
    run, island = RunFolder(run_dir), RunFolder(island_dir(run_dir, number))
    text = " ".join(str(error).split())
    again = f"continue with: {resume_command(run.path)}"
    if isinstance(error, NoneComplete):
        return Outcome(
            number,
            f"no checkpoint in {island.checkpoints} is complete; put a copy of this folder back, or delete it, so that "
            f"the island repeats its generations and its recorded imports, and {again}",
        )
    if isinstance(error, HostError):
        return Outcome(number, text.replace(resume_command(island.path), resume_command(run.path)))
    if isinstance(error, Diverged):
        return Outcome(number, text)
    if isinstance(error, RunFolderError):  # whose remedies concern whole runs
        text = text.partition("; ")[0]
    elif not isinstance(error, CheckpointError):
        text = f"{type(error).__name__}: {text}"
    return Outcome(number, f"{text.rstrip('.')}; once that is mended, {again}")


def record(outcomes: Sequence[Outcome], run_dir: str | Path) -> None:
    """Append an event to the journal of each island that failed, if it can be written."""
    for outcome in outcomes:
        folder = RunFolder(island_dir(run_dir, outcome.island))
        if outcome.error is not None and folder.path.is_dir():
            with contextlib.suppress(OSError):
                events.append_failure(folder, reached(folder.path)[0], outcome.error)
