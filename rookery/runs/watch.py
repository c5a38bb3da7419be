"""Who watches the other processes of a run, so that none waits for ever for one that is gone."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Collection
from typing import Any

from rookery.runs.last_words import LastWords, way_on

LOST = 75
"""The exit code of a process that stops because another one did: try again (EX_TEMPFAIL)."""
_ALIVE, _WORDS, _WHO, _DONE = "rookery/alive", "rookery/words", "rookery/who", "done"


class Watch:
    """A thread that gives signs of life, and ends this process when another one is gone.

    Process 0 watches everybody and the others watch process 0, so that what is read grows with the number of processes
    and not with its square. Whoever finds a process lost, or leaves by itself, posts a word, which all read. Python can
    run while the main thread waits in a collective; what JAX notices first it aborts by itself, and `LastWords` speaks.

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
        self._lost_after, self._last_words = lost_after, last_words
        self._interval = min(1.0, lost_after / 8)
        self._leaving = threading.Event()
        self._beat = 0
        self._seen: dict[int, tuple[str, float]] = {}
        self.run_dir: str | None = None
        board.key_value_set(f"{_WHO}/{process}", who, allow_overwrite=True)
        self._thread = threading.Thread(target=self._watch, name="rookery-watch", daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return f"process {self._process} of {self._processes}"

    def wait(self) -> None:
        """As long as it takes until a lost process is found, which ends this one."""
        time.sleep(self._lost_after + 4 * self._interval)

    def leave(self, word: str | None = None) -> None:
        """Stop watching, and say why this process goes: in order by default. Process 0 stays until all have read it."""
        self._leaving.set()
        self._thread.join(2 * self._interval)
        self._post(str(self._process), _DONE if word is None else word)
        if word is not None and self._process == 0:
            time.sleep(3 * self._interval)

    def _watch(self) -> None:
        started = time.monotonic()
        while not self._leaving.wait(self._interval):
            try:
                word = self._look(started)
            except Exception:  # the coordinator does not answer; if it stays so, process 0 is lost
                word = self._judge({}, started)
            if word is not None and not self._leaving.is_set():
                self._stop(word)

    def _look(self, started: float) -> str | None:
        """Give a sign of life, and read what there is; the sentence about who is gone, if somebody is."""
        self._beat += 1
        self._board.key_value_set(f"{_ALIVE}/{self._process}", str(self._beat), allow_overwrite=True)
        words = {key.rpartition("/")[2]: word for key, word in self._board.key_value_dir_get(_WORDS)}
        for name, word in words.items():
            if word != _DONE:
                return word if name == "lost" else f"{self._name(int(name))} stopped: {word}"
        if self._process == 0:
            signs = {int(key.rpartition("/")[2]): sign for key, sign in self._board.key_value_dir_get(_ALIVE)}
        else:
            signs = {0: self._board.key_value_try_get(f"{_ALIVE}/0")}
        return self._judge(signs, started, {int(name) for name in words})

    def _judge(self, signs: dict[int, str], started: float, done: Collection[int] = ()) -> str | None:
        """Who gave no sign of life for too long."""
        now = time.monotonic()
        for process in range(1, self._processes) if self._process == 0 else (0,):
            sign, since = self._seen.get(process, ("", started))
            if signs.get(process, sign) != sign:
                self._seen[process] = (signs[process], now)
            elif now - since > self._lost_after and process not in done:
                return f"{self._name(process)} is lost: it gave no sign of life for {self._lost_after:g} s"
        return None

    def _name(self, process: int) -> str:
        try:
            return f"process {process} ({self._board.key_value_try_get(f'{_WHO}/{process}')})"
        except Exception:
            return f"process {process}"

    def _stop(self, word: str) -> None:
        if " is lost: " in word:
            self._post("lost", word)
        sentences = [f"{self} stops: {word}"]
        if self.run_dir is not None:
            sentences.append(way_on(self.run_dir))
        sys.stderr.write("".join(f"rookery: {sentence}\n" for sentence in sentences))
        sys.stderr.flush()
        if self._process == 0:  # it holds the notice board, which the others have yet to read
            time.sleep(3 * self._interval)
        self._last_words.goodbye()
        os._exit(LOST)  # the main thread may wait in a collective for ever

    def _post(self, name: str, word: str) -> None:
        with contextlib.suppress(Exception):  # where the coordinator is gone, nobody can be told
            self._board.key_value_set(f"{_WORDS}/{name}", word, allow_overwrite=True)
