"""The event journal of a run: one line of JSON per event, such as starts, warnings and ends."""

import contextlib
import datetime
import json
import os
import platform
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rookery.distributed import device_memory, mesh, sync
from rookery.distributed.device_memory import Usage
from rookery.distributed.mesh import Mesh
from rookery.distributed.signals import Interrupted
from rookery.storage.checkpoint import CheckpointWarning
from rookery.storage.csv_log import TableWarning
from rookery.storage.island_files import IslandWarning
from rookery.storage.run_dir import OutputWarning, RunFolder, append_line, output_to
from rookery.storage.sources import SourceWarning
from rookery.versions import versions

_RECORDED_WARNINGS = (CheckpointWarning, IslandWarning, OutputWarning, SourceWarning, TableWarning)
_ABSOLUTE_PATH = re.compile(r"(?<![\w./:~])/[^\s:;,'\"]*/([^\s:;,'\"/]*)")  # the group is the last component
_PROCESSOR = Path("/proc/cpuinfo")


class Diverged(ArithmeticError):  # noqa: N818 - an outcome of the run
    """No member and no elite is finite any more; the message names the generation and the last good checkpoint."""


_RUNNING: dict[int, "Journal"] = {}  # thread -> the journal of the run in it, if there is one


class Journal:
    """Appends the events of a run to `journal.jsonl`, each at once; a resumed run never removes lines.

    As a context manager it records warnings about checkpoints and memory, but those of the runs of other threads, and
    at exit the reason for the end. Nothing is written before `started`; a killed run has no `ended` event.

    Args:
      folder: the run directory, whose lock the caller holds; None writes nothing.

    Attributes:
      reached: the number of finished generations.
    """

    def __init__(self, folder: RunFolder | None = None):
        self.reached = 0
        self._folder = folder
        self._begun = False
        self._usage: Callable[[], Usage] | None = None
        self._early: list[str] = []  # warnings before `begin`
        self._show, self._records = warnings.showwarning, False

    @property
    def run_dir(self) -> Path | None:
        """The path of the run directory; None if nothing is written."""
        return self._folder.path if self._folder else None

    def started(
        self,
        first: int,
        over: Mesh,
        usage: Callable[[], Usage],
        command: Sequence[str] | None = None,
        warned: Sequence[str] = (),
    ) -> None:
        """Record that the run starts or continues after `first` generations, with its command, versions and hardware.

        `usage` returns the planned and measured memory at the end of the run; `warned` are the warnings that were shown
        before the journal was opened.
        """
        self.reached, self._usage, self._begun = first, usage, True
        if self._folder is None:
            return
        started = {"command": list(command)} if command is not None else {}
        details = {"versions": versions(sync.PACKAGES), "hardware": hardware(over)}
        self._write("began", at=_now(), generation=first, **started, **details)
        for message in dict.fromkeys([*warned, *self._early]):
            self._write("warned", message=message)

    def compiled(self, seconds: float) -> None:
        """Record the compile time in seconds."""
        self._write("compiled", seconds=seconds)

    def noted(self, message: str) -> None:
        """Record a note on the run that its user was shown."""
        self._write("noted", message=message)

    def __enter__(self) -> "Journal":
        if self._folder is not None:
            self._show, warnings.showwarning, self._records = warnings.showwarning, self._record_warning, True
            _RUNNING[threading.get_ident()] = self
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._records = False
        _RUNNING.pop(threading.get_ident(), None)
        if warnings.showwarning == self._record_warning:  # else another thread's run passes its warnings on to this one
            warnings.showwarning = self._show
        try:
            if self._folder is not None and self._usage is not None:
                usage, reason = self._usage(), self._without_paths(exit_reason(error))
                used = (usage.used.size, usage.used.meaning) if usage.used else (None, None)
                memory = {"planned": usage.held, "peak": usage.peak, "used": used[0], "meaning": used[1]}
                self._write("ended", at=_now(), generation=self.reached, why=reason, memory=memory)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"The journal has no end: {failure}.")  # the error that ended the run takes precedence

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Record no warnings within the block, in which other runs of this process continue."""
        recording, warnings.showwarning = warnings.showwarning, self._show
        try:
            yield
        finally:
            self._show, warnings.showwarning = warnings.showwarning, recording
            _RUNNING[threading.get_ident()] = self

    def _record_warning(self, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        is_own = _RUNNING.get(threading.get_ident(), self) is self
        if self._records and is_own and issubclass(category, _RECORDED_WARNINGS):
            text = self._without_paths(str(message))
            if self._begun:
                self._write("warned", message=text)
            else:
                self._early.append(text)
        self._show(message, category, *where, **more)

    def _write(self, event: str, **values: object) -> None:
        if self._folder is not None:
            with output_to(self._folder.journal_file):
                append_line(self._folder.journal_file, {"event": event, **values})

    def _without_paths(self, text: str) -> str:
        assert self._folder is not None
        return _without_paths(text, self._folder)


def append_failure(folder: RunFolder, generation: int, message: str) -> None:
    """Append the event that a run failed after so many finished generations, once the process that trained it has ended
    or released the folder. Raises OSError if the journal cannot be written."""
    event = {"event": "failed", "at": _now(), "generation": generation, "message": _without_paths(message, folder)}
    append_line(folder.journal_file, event)


def read_journal(folder: RunFolder) -> list[dict[str, Any]]:
    """Read the events of a run.

    Returns:
      The events, oldest first; empty if the run has no journal. Incomplete and damaged lines are ignored. Each event
      is a dict with the key `event`:

      - `began`: `at` (ISO time with time zone), `generation` (the next one, counted from 0), `command` (a list of
        strings; only if the command line started the run), `versions` (package -> version), `hardware` (see
        `hardware`).
      - `compiled`: `seconds`.
      - `warned`, `noted`: `message`.
      - `ended`: `at`, `generation` (the number of finished ones), `why` ("finished", "interrupted by SIGTERM" after its
        state was saved, "stopped by SIGINT without saving", "diverged" or "failed: ValueError: ..."), and `memory` in
        bytes per device: `planned` for the state, `peak` including a generation's and a save's additional memory, and
        `used`, None if the platform does not report it, with its `meaning`.
      - `failed`: `at`, `generation` and `message`; only of an island that ended before its run did.

    Raises:
      OSError: the file cannot be read.
    """
    events = []
    if folder.journal_file.is_file():
        for line in folder.journal_file.read_text(encoding="utf-8-sig", errors="replace").splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict) and _is_event(event)]


def _is_event(event: dict[str, Any]) -> bool:
    kinds = {"event": str, "generation": int, "seconds": int | float, "message": str, "command": list}
    needed = {"event"} | ({"message"} if event.get("event") in ("warned", "noted") else set())
    return needed <= set(event) and all(isinstance(event[name], kinds[name]) for name in kinds if name in event)


_TYPED: list[list[str]] = []


@contextlib.contextmanager
def hidden_words() -> Iterator[list[str]]:
    """Hide the words of a command, which it gives, from a user's files that parse those of their own."""
    typed = sys.argv
    _TYPED.append(typed)
    sys.argv = typed[:1]
    try:
        yield typed[1:]
    finally:
        sys.argv = _TYPED.pop()


def command_line() -> list[str]:
    """The arguments that started this process; the program without its path."""
    typed = _TYPED[-1] if _TYPED else sys.argv
    program = Path(typed[0]).name
    return [*(("python", "-m", "rookery") if program == "__main__.py" else (program,)), *typed[1:]]


def hardware(over: Mesh) -> dict[str, object]:
    """A description of the hardware and the system.

    `devices` as text, the `kind` of the first device, the number of `processes`, and for the machine of this process
    the model of the `cpu`, the number of usable `cores`, the usable `memory` in bytes, and the `system`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "devices": mesh.describe(over),
        "kind": over.devices.flat[0].device_kind,
        "cpu": _processor(),
        "cores": cores,
        "memory": device_memory.machine(),
        "processes": sync.process_count(),
        "system": platform.platform(),
    }


def _processor() -> str:
    """The model of the CPU; its architecture if the system does not name the model."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)$", _PROCESSOR.read_text(), re.MULTILINE):
            return found[1].strip()
    return platform.machine()


def _without_paths(text: str, folder: RunFolder) -> str:
    """Shorten absolute paths to their last component, since they may contain user names."""
    return _ABSOLUTE_PATH.sub(r"\1", text.replace(str(folder.path), folder.path.name))


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def exit_reason(error: BaseException | None) -> str:
    """The reason for the end of a run as one line of at most 200 characters; `finished` without an error."""
    if error is None:
        return "finished"
    if isinstance(error, Interrupted):
        return f"interrupted by {signal.Signals(error.signum).name}"
    if isinstance(error, KeyboardInterrupt):
        return "stopped by SIGINT without saving"
    if isinstance(error, Diverged):
        return "diverged"
    return " ".join(f"failed: {type(error).__name__}: {error}".split())[:200].removesuffix(":")
