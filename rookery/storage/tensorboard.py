"""The TensorBoard events of a run."""

import contextlib
import importlib
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rookery.storage.run_dir import OutputWarning


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
        self._events = importlib.import_module("tensorboardX.proto.event_pb2")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads files in the order of their names, whose seconds may go back or be the same.
            count = len(list(folder.glob("events*")))
            self._writer = EventsWriter(str(folder / (f"events{count:04}" if count else "events")))
        except OSError as error:
            self._give_up(error)
        if first > 0:
            log = self._events.SessionLog
            self._write(self._events.Event(step=first, file_version="brain.Event:2"))
            self._write(self._events.Event(step=first, session_log=log(status=log.START)))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step that are finite."""
        from tensorboardX.summary import scalar

        event = self._events.Event(step=step)
        for name, value in scalars.items():
            if np.isfinite(value):  # TensorBoard draws no others
                event.summary.value.extend(scalar(name, value).value)
        self._write(event)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self._give_up(error)
        self._writer = None

    def _write(self, event: Any) -> None:
        if self._writer is None:
            return
        event.wall_time = time.time()
        try:
            self._writer.write_event(event)
            self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
        self._writer = None
        text = f"no more TensorBoard events are written to {self._folder}: {error.strerror or error}; the run continues"
        warnings.warn(text, OutputWarning, stacklevel=3)
