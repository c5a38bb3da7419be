"""The journal of a run: what happened to it, a line of JSON for each event, from every start to every end."""

import contextlib
import datetime
import json
import os
import platform
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from rookery.distributed import device_memory, mesh, sync
from rookery.distributed.device_memory import MemoryWarning, Usage
from rookery.distributed.mesh import Mesh
from rookery.storage.checkpoint import CheckpointWarning
from rookery.storage.exit_reasons import why
from rookery.storage.run_dir import RunFolder
from rookery.versions import versions

_HEARD = (CheckpointWarning, MemoryWarning)
_PLACE = re.compile(r"(?<![\w./:~])/[^\s:;,'\"]*/([^\s:;,'\"/]*)")  # an absolute path, and the name that it ends with
_PROCESSOR = Path("/proc/cpuinfo")


class Journal:
    """Appends what happens to a run to `journal.jsonl`, each event flushed; no line is ever cut, whoever resumes.

    As a context manager it listens for the warnings that concern the run, and in the end writes how that came. Nothing
    is written before `begin`; a run that is killed has no end there.

    Args:
      folder: the caller holds its lock; without one nothing is written.

    Attributes:
      reached: generations that are finished.
    """

    def __init__(self, folder: RunFolder | None = None):
        self.reached = 0
        self._folder = folder
        self._file: IO[str] | None = None
        self._usage: Callable[[], Usage] | None = None
        self._early: list[str] = []  # warnings from before the beginning
        self._show = warnings.showwarning

    def begin(self, first: int, over: Mesh, usage: Callable[[], Usage], command: Sequence[str] | None = None) -> None:
        """Write that the run begins or goes on, by what, and on what.

        Args:
          first: the generation that comes next, counted from 0.
          over: the devices.
          usage: tells in the end what memory was used.
          command: the words of the command line, where one started the run.
        """
        self.reached, self._usage = first, usage
        if self._folder is None:
            return
        self._file = _open(self._folder.journal_file)
        started = {"command": list(command)} if command is not None else {}
        details = {"versions": versions(sync.PACKAGES), "hardware": hardware(over)}
        self._write("began", at=_now(), generation=first, **started, **details)
        for message in self._early:
            self._write("warned", message=message)

    def compiled(self, seconds: float) -> None:
        """Write how long compiling took."""
        self._write("compiled", seconds=seconds)

    def __enter__(self) -> "Journal":
        if self._folder is not None:
            self._show, warnings.showwarning = warnings.showwarning, self._hear
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._folder is not None:
            warnings.showwarning = self._show
        try:
            self._end(error)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"The journal has no end: {failure}.")  # what ended the run matters more

    def _end(self, error: BaseException | None) -> None:
        if self._file is None or self._usage is None:
            return
        with self._file:
            reason = self._without_places(why(error))
            self._write("ended", at=_now(), generation=self.reached, why=reason, memory=_told(self._usage()))

    def _hear(self, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, _HEARD):
            told = self._without_places(str(message))
            if self._file is None:
                self._early.append(told)
            self._write("warned", message=told)
        self._show(message, category, *where, **more)

    def _write(self, event: str, **values: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"event": event, **values}) + "\n")
            self._file.flush()

    def _without_places(self, text: str) -> str:
        """Where a folder lies on this machine, and in whose home, concerns no reader of the run."""
        assert self._folder is not None
        return _PLACE.sub(r"\1", text.replace(str(self._folder.path), self._folder.path.name))


def read_journal(folder: RunFolder) -> list[dict[str, Any]]:
    """The events of a run, oldest first; empty where there is no journal. A line that a kill cut short is left out.

    Each is a dict with `event`:

    - `began`: `at` (ISO time with zone), `generation` (the next, counted from 0), `command` (a list of words; only if
      the command line started it), `versions` (package -> version), `hardware` (see `hardware`).
    - `compiled`: `seconds`.
    - `warned`: `message`.
    - `ended`: `at`, `generation` (how many are finished), `why` ("finished", "interrupted by SIGTERM", "diverged" or
      "failed: ValueError: ..."), `memory`: bytes on a device, `planned` for the state, `peak` with what a generation
      and a save need beside it, and `used`, None where nobody tells, with its `meaning`.

    Raises:
      OSError: the file cannot be read.
    """
    events = []
    if folder.journal_file.exists():
        for line in folder.journal_file.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict) and "event" in event]


def command_line() -> list[str]:
    """The words that started this process; the program by its name alone."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def hardware(over: Mesh) -> dict[str, Any]:
    """What a run is on: `devices` in words, the `kind` of one, and of the first process's machine the `cpu`, the
    `cores` and the bytes of `memory` that it may use, the `system`; and the number of `processes`."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "devices": mesh.describe(over),
        "kind": over.devices.flat[0].device_kind,
        "cpu": _processor(),
        "cores": affinity,
        "memory": device_memory.machine(),
        "processes": sync.runtime().num_processes,
        "system": platform.platform(),
    }


def _processor() -> str:
    """The model of the CPU; its architecture where the system names no model."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)$", _PROCESSOR.read_text(), re.MULTILINE):
            return found[1].strip()
    return platform.machine()


def _open(path: Path) -> IO[str]:
    """For appending, on a line of its own."""
    half = path.exists() and not path.read_bytes().endswith(b"\n")
    file = open(path, "a", encoding="utf-8", newline="")  # noqa: SIM115 - closed by the journal's end
    file.write("\n" if half else "")
    return file


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _told(usage: Usage) -> dict[str, Any]:
    used = {"used": usage.used.count, "meaning": usage.used.meaning} if usage.used else {"used": None, "meaning": None}
    return {"planned": usage.held, "peak": usage.peak, **used}
