"""Ctrl-C and SIGTERM: stop soon, save, then leave."""

import os
import signal
import threading
from types import FrameType, TracebackType


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop, and has saved what it had done.

    Attributes:
      signum: the signal, so that a command exits with 128 + signum.
    """

    def __init__(self, signum: int, message: str):
        super().__init__(message)
        self.signum = signum


class Requests:
    """Remembers the first SIGINT or SIGTERM while the block runs; a second SIGINT interrupts at once.

    Outside the main thread, where Python allows no handlers, nothing is caught.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Requests":
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._remember) for signum in _SIGNALS}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # pyright: ignore[reportArgumentType]

    def _remember(self, signum: int, _: FrameType | None) -> None:
        if self.signum is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.signum = signum
        os.write(2, b"\nstopping within seconds, saving first; Ctrl-C stops at once\n")  # print is not safe here


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
