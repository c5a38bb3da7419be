"""The TensorBoard events of a run."""

import contextlib
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np


class EventsWarning(UserWarning):
    """TensorBoard events cannot be written any more."""


class Events:
    """Writes scalars; each call is on the disk when it returns.

    When the disk is full or cannot be written the events end with a warning, since the run does not need them. (An
    error in `tensorboardX.SummaryWriter` ends its writing thread alone, for which the run would then wait forever.)

    Args:
      folder: of the event files, which is created; a new file is begun.
      first: the first step to be written; if above 0, TensorBoard discards that step and later ones of earlier files.
    """

    def __init__(self, folder: Path, first: int = 0):
        from tensorboardX.event_file_writer import EventsWriter

        self._folder, self._writer = folder, None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # The suffix is needed since names contain the time in seconds, and a file of the same name is overwritten.
            self._writer = EventsWriter(str(folder / "events"), f".{time.time_ns()}")
        except OSError as error:
            self._give_up(error)
        if first > 0:
            from tensorboardX.proto.event_pb2 import SessionLog  # pyright: ignore[reportAttributeAccessIssue]

            self._write(step=first, file_version="brain.Event:2")
            self._write(step=first, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step that are finite."""
        from tensorboardX.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.summary import scalar

        summary = Summary()
        for name, value in scalars.items():
            if np.isfinite(value):  # TensorBoard draws no others
                summary.value.extend(scalar(name, value).value)
        self._write(step=step, summary=summary)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)
        self._writer = None

    def _write(self, **parts: object) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

        if self._writer is None:
            return
        try:
            self._writer.write_event(Event(wall_time=time.time(), **parts))
            self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
        self._writer = None
        text = f"no more TensorBoard events are written to {self._folder}: {error.strerror or error}; the run continues"
        warnings.warn(text, EventsWarning, stacklevel=3)
