"""Handling of SIGINT (Ctrl-C), SIGTERM and SIGHUP (a closed session): the run saves its state, then stops."""

import contextlib
import os
import signal
import sys
import threading
from types import FrameType, TracebackType


class Interrupted(KeyboardInterrupt):
    """A run stopped on a signal, after saving its state.

    Attributes:
      signum: the signal's number, so that a command can exit with status 128 + signum.
    """

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


class Requests:
    """Context manager that records the first of these signals; a second SIGINT raises KeyboardInterrupt.

    SIGHUP stays ignored below `nohup`; SIGINT does not, though shells let processes in the background ignore it.
    Outside the main thread, where Python allows no signal handlers, it records nothing.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous_handlers: dict[int, object] = {}

    def __enter__(self) -> "Requests":
        if threading.current_thread() is threading.main_thread():
            ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
            caught = (signum for signum in SIGNALS if signum not in ignored)
            self._previous_handlers = {signum: signal.signal(signum, self._record) for signum in caught}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)  # pyright: ignore[reportArgumentType]

    def _record(self, signum: int, _: FrameType | None) -> None:
        if self.signum is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
        if sys.__stderr__ is None:  # it was closed at the start, so that another file may have its number
            return
        with contextlib.suppress(OSError):  # after SIGHUP the terminal is gone
            os.write(
                2, b"\nstopping: the run is saved first; press Ctrl-C again to stop at once, without saving\n"
            )  # print is not safe in a signal handler


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the signals that stop a run after it has saved its state
