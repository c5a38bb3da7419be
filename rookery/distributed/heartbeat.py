"""Heartbeats between the processes of a run, so that no process waits forever for one that has ended."""

import contextlib
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rookery.distributed.sync import by_process

LOST = 75  # the exit code of a process that stops because another one is lost (EX_TEMPFAIL: a retry may succeed)
_HEARTBEATS, _MESSAGES, _NAMES, _LEAVING = "rookery/heartbeats", "rookery/messages", "rookery/names", "rookery/leaving"
_LEAVE_SECONDS = 24 * 3600  # at the final barrier; the heartbeats detect a process that ends meanwhile
_DISK_SECONDS = 4.0  # for the look at the checkpoints, since a network file system may hang
_MANIFEST = re.compile(r"generation_(\d+)\.json")


class Watch:
    """Two threads: one sends and reads heartbeats, the other ends this process when another process is lost.

    Process 0 watches all others, and the others watch process 0, so that the number of reads grows with the number of
    processes instead of its square. A process that detects a loss, or that fails, posts a message that all others
    read. The threads run while the main thread waits in a collective. JAX's heartbeat has a longer time limit, since
    it aborts a process with a C++ stack trace; JAX also aborts the other processes as soon as process 0 ends.

    A call to a coordinator that was stopped or disconnected does not return, so the checking thread never calls it.
    Time is counted in iterations of the checking thread: if all processes were suspended together, none counts as
    lost afterwards.

    Args:
      store: the client of the coordinator's key-value store.
      process: the index of this process.
      processes: the number of processes.
      name: this process as text, such as `pid 7 on host`.
      lost_after: seconds without a heartbeat after which a process counts as lost, above 0.

    Attributes:
      run_dir: the run directory, so that messages can name the command that continues the run.
    """

    def __init__(self, store: Any, process: int, processes: int, name: str, lost_after: float):
        self._store, self._process, self._processes = store, process, processes
        self._name, self._lost_after = name, lost_after
        self._interval = min(1.0, lost_after / 8)
        self._leaving = threading.Event()
        self._sent = self._now = 0
        self._messages: list[str] = []
        self._heartbeats: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._latest: dict[int, tuple[str | None, int]] = {}  # process -> its last heartbeat, and the step it came in
        self.run_dir: str | None = None
        store.key_value_set(f"{_NAMES}/{process}", name, allow_overwrite=True)
        self._threads = [
            threading.Thread(target=self._repeat, args=(action,), name="rookery-watch", daemon=True)
            for action in (self._exchange, self._check)
        ]
        for thread in self._threads:
            thread.start()

    def __str__(self) -> str:
        return f"process {self._process} of {self._processes}"

    def wait(self) -> None:
        """Block until a lost process would have been detected, which ends this process."""
        until = self._now + self._lost_after / self._interval + 4
        while self._now < until and not self._leaving.is_set():
            time.sleep(self._interval)

    def leave(self, reason: str | None = None, code: int = 1) -> None:
        """Stop the heartbeats, either together with all other processes (without a reason) or alone, because of a
        failure.

        The reason is posted, and the others stop with `code` as their exit code, since a retry would not help.
        """
        if reason is None:
            self._store.wait_at_barrier(_LEAVING, 1000 * _LEAVE_SECONDS)
        self._leaving.set()
        for thread in self._threads:
            thread.join(2 * self._interval)
        if reason is not None:
            self._post(code, f"process {self._process} ({self._name}) stopped: {reason}")
            self._await_readers()

    def _repeat(self, action: Callable[[], None]) -> None:
        while not self._leaving.wait(self._interval):
            with contextlib.suppress(Exception):  # a store that does not answer counts as a missing heartbeat
                action()

    def _exchange(self) -> None:
        """Send a heartbeat, and read the heartbeats and messages of the others."""
        self._sent += 1
        self._store.key_value_set(f"{_HEARTBEATS}/{self._process}", str(self._sent), allow_overwrite=True)
        self._messages = [message for _, message in self._store.key_value_dir_get(_MESSAGES)]
        if self._process > 0:
            self._heartbeats = {0: self._store.key_value_try_get(f"{_HEARTBEATS}/0")}
            self._names = self._names or {0: self._store.key_value_try_get(f"{_NAMES}/0")}
            return
        self._heartbeats = by_process(self._store.key_value_dir_get(_HEARTBEATS))
        if len(self._names) < self._processes:
            self._names = by_process(self._store.key_value_dir_get(_NAMES))

    def _check(self) -> None:
        """Stop this process if another one posted a message, or sent no heartbeat for too long."""
        self._now += 1
        for message in self._messages:
            code, _, reason = message.partition(" ")
            self._stop(int(code), reason)
        for process in range(1, self._processes) if self._process == 0 else (0,):
            last, since = self._latest.get(process, (None, 0))
            heartbeat = self._heartbeats.get(process)
            if heartbeat != last:
                self._latest[process] = heartbeat, self._now
            elif (self._now - since) * self._interval > self._lost_after:
                name = f"process {process}" + (f" ({self._names[process]})" if process in self._names else "")
                reason = f"{name} is lost: it sent no heartbeat for {self._lost_after:g} s"
                if not self._leaving.is_set():
                    self._post(LOST, reason)
                self._stop(LOST, reason)

    def _stop(self, code: int, reason: str) -> None:
        if self._leaving.is_set():
            return
        if reason.startswith(f"process {self._process} "):
            reason = f"the others count it as lost; if it was only busy, set --lost-after above {self._lost_after:g}"
        try:
            self._print(f"{self} stops: {reason}")
            if (run := self.run_dir) is not None:
                _run_with_timeout(_DISK_SECONDS, lambda: self._print(newest_checkpoint(run)))
            self._await_readers()
        finally:  # even if stderr is closed
            os._exit(code)  # the main thread may wait in a collective forever

    def _print(self, message: str) -> None:
        sys.stderr.write(f"rookery: {message}\n")
        sys.stderr.flush()

    def _post(self, code: int, reason: str) -> None:
        """Post a message for the other processes, if the coordinator answers."""
        key, message = f"{_MESSAGES}/{self._process}", f"{code} {reason}"
        _run_with_timeout(2 * self._interval, lambda: self._store.key_value_set(key, message, allow_overwrite=True))

    def _await_readers(self) -> None:
        if self._process == 0:  # its end closes the key-value store, which the others have yet to read
            time.sleep(3 * self._interval)


def _run_with_timeout(seconds: float, action: Callable[[], None]) -> None:
    """Run an action that may fail or hang in a thread, and wait at most `seconds` for it."""

    def attempt() -> None:
        with contextlib.suppress(Exception):
            action()

    thread = threading.Thread(target=attempt, name="rookery-attempt", daemon=True)
    thread.start()
    thread.join(seconds)


def newest_checkpoint(run: str) -> str:
    """A sentence that names the newest checkpoint of a run and the command that continues it."""
    try:
        names = os.listdir(os.path.join(run, "checkpoints"))
    except FileNotFoundError:
        names = []
    except OSError as error:
        return f"the checkpoints in {run} cannot be read ({(error.strerror or str(error)).lower()})"
    saved = [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]
    if not saved:
        return f"no checkpoint was saved yet in {run}"
    return f"the newest checkpoint is of generation {max(saved)}; continue with: rookery resume {shlex.quote(run)}"
