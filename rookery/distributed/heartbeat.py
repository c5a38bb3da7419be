"""Who watches the other processes of a run, so that none waits for ever for one that is gone."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rookery.distributed.last_words import LastWords, way_on
from rookery.distributed.sync import by_process

LOST = 75
"""The exit code of a process that stops because another one is lost: try again (EX_TEMPFAIL)."""
_ALIVE, _WORDS, _WHO, _LEAVING = "rookery/alive", "rookery/words", "rookery/who", "rookery/leaving"
_LEAVE_SECONDS = 24 * 3600  # for the others to come; who dies meanwhile is noticed otherwise
_DISK_SECONDS = 4.0  # after that nothing is said of checkpoints, as where a network's file system hangs


class Watch:
    """Two threads: one gives and reads signs of life, the other ends this process when another one is gone.

    Process 0 watches everybody and the others watch process 0, so that what is read grows with the number of processes
    and not with its square. Whoever finds a process lost, or leaves by itself, posts a word, which all read. Python can
    run while the main thread waits in a collective; what JAX notices first it aborts by itself, and `LastWords` speaks.

    A call to a coordinator that was stopped, or cut off, does not return; so who judges never calls it. Time is counted
    in steps of the judge's own: a process that was stopped itself, together with all others, finds nobody lost.

    Args:
      board: the key-value store of JAX's coordinator.
      process: which one this is.
      processes: of how many.
      who: this process in words, as `pid 7 on host`.
      lost_after: seconds without a sign of life, above 0.
      last_words: speaks if this process ends without a chance to.
    """

    def __init__(self, board: Any, process: int, processes: int, who: str, lost_after: float, last_words: LastWords):
        self._board, self._process, self._processes = board, process, processes
        self._who, self._lost_after, self._last_words = who, lost_after, last_words
        self._interval = min(1.0, lost_after / 8)
        self._leaving = threading.Event()
        self._beat = self._now = 0
        self._words: list[str] = []
        self._signs: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._seen: dict[int, tuple[str | None, int]] = {}
        self.run_dir: str | None = None
        board.key_value_set(f"{_WHO}/{process}", who, allow_overwrite=True)
        self._threads = [
            threading.Thread(target=self._repeat, args=(act,), name="rookery-watch", daemon=True)
            for act in (self._exchange, self._judge)
        ]
        for thread in self._threads:
            thread.start()

    def __str__(self) -> str:
        return f"process {self._process} of {self._processes}"

    def tell_run(self, run_dir: str) -> None:
        """Say which run this is, so that whoever speaks of its end can say how to go on."""
        self.run_dir = run_dir
        self._last_words.run(run_dir)

    def wait(self) -> None:
        """As long as it takes until a lost process is found, which ends this one."""
        until = self._now + self._lost_after / self._interval + 4
        while self._now < until and not self._leaving.is_set():
            time.sleep(self._interval)

    def leave(self, word: str | None = None, code: int = 1) -> None:
        """Stop watching: without a word together with all others, who are waited for; with one alone and at once.

        The word says why this process goes, and the others go with its exit code: a mistake is no loss that could be
        tried again. Process 0, which holds the board, stays until all have read it.
        """
        if word is None:
            self._board.wait_at_barrier(_LEAVING, 1000 * _LEAVE_SECONDS)
        self._leaving.set()
        for thread in self._threads:
            thread.join(2 * self._interval)
        if word is not None:
            self._post(code, f"process {self._process} ({self._who}) stopped: {word}")
            self._linger()
        self._last_words.goodbye()

    def _repeat(self, act: Callable[[], None]) -> None:
        while not self._leaving.wait(self._interval):
            with contextlib.suppress(Exception):  # no answer is no sign of life
                act()

    def _exchange(self) -> None:
        """Give a sign of life, and read what there is."""
        self._beat += 1
        self._board.key_value_set(f"{_ALIVE}/{self._process}", str(self._beat), allow_overwrite=True)
        self._words = [word for _, word in self._board.key_value_dir_get(_WORDS)]
        if self._process > 0:
            self._signs = {0: self._board.key_value_try_get(f"{_ALIVE}/0")}
            self._names = self._names or {0: self._board.key_value_try_get(f"{_WHO}/0")}
            return
        self._signs = by_process(self._board.key_value_dir_get(_ALIVE))
        if len(self._names) < self._processes:
            self._names = by_process(self._board.key_value_dir_get(_WHO))

    def _judge(self) -> None:
        """Stop if somebody left a word, or gave no sign of life for too long."""
        self._now += 1
        for told in self._words:
            code, _, word = told.partition(" ")
            self._stop(int(code), word)
        for process in range(1, self._processes) if self._process == 0 else (0,):
            seen, since = self._seen.get(process, (None, 0))
            sign = self._signs.get(process)
            if sign != seen:
                self._seen[process] = sign, self._now
            elif (self._now - since) * self._interval > self._lost_after:
                name = f"process {process}" + (f" ({self._names[process]})" if process in self._names else "")
                word = f"{name} is lost: it gave no sign of life for {self._lost_after:g} s"
                if not self._leaving.is_set():
                    self._post(LOST, word)
                self._stop(LOST, word)

    def _stop(self, code: int, word: str) -> None:
        if self._leaving.is_set():
            return
        if word.startswith(f"process {self._process} "):
            word = f"it was taken for lost; if it was only busy, give a larger --lost-after than {self._lost_after:g}"
        try:
            self._say(f"{self} stops: {word}")
            if (run := self.run_dir) is not None:
                _within(_DISK_SECONDS, lambda: self._say(way_on(run)))
            self._linger()
            self._last_words.goodbye()
        finally:  # even where nobody reads what is said
            os._exit(code)  # the main thread may wait in a collective for ever

    def _say(self, sentence: str) -> None:
        sys.stderr.write(f"rookery: {sentence}\n")
        sys.stderr.flush()

    def _post(self, code: int, word: str) -> None:
        """Tell the others, if the coordinator answers."""
        name, told = f"{_WORDS}/{self._process}", f"{code} {word}"
        _within(2 * self._interval, lambda: self._board.key_value_set(name, told, allow_overwrite=True))

    def _linger(self) -> None:
        if self._process == 0:  # it holds the notice board, which the others have yet to read
            time.sleep(3 * self._interval)


def _within(seconds: float, act: Callable[[], None]) -> None:
    """Do what may fail or hang, and wait for it so long at most."""

    def attempt() -> None:
        with contextlib.suppress(Exception):
            act()

    thread = threading.Thread(target=attempt, name="rookery-attempt", daemon=True)
    thread.start()
    thread.join(seconds)
