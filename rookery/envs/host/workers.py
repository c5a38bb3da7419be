"""Workers, each a thread with a `Runner`; the runner's environments are in this process or in another one."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rookery.envs.host.base import Runner, StepRows, first_line
from rookery.factories import place_of

_START_SECONDS = 120.0  # time limit for a process to start: it imports this package and its dependencies


class Worker:
    """A daemon thread that calls the methods of a runner in the order in which they are submitted.

    `call` calls a method in the calling thread instead, while the daemon does nothing.

    A daemon, so that an environment that never returns does not keep the interpreter from exiting.

    Args:
      start: creates the runner, in the thread.
      name: of the thread.
    """

    def __init__(self, start: Callable[[], Runner], name: str):
        self._tasks: queue.SimpleQueue[tuple[Future, str, tuple] | None] = queue.SimpleQueue()
        self._start = start
        self._runner: Runner | None = None
        self._attempted = threading.Event()
        self._busy = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, method: str, *arguments: object) -> Future:
        """Call a method of the runner; the future has its result, or its exception."""
        future: Future = Future()
        self._tasks.put((future, method, arguments))
        return future

    def call(self, method: str, *arguments: object) -> Future:
        """Like `submit`, but in the calling thread: the future is done. Tasks that wait may follow later."""
        future: Future = Future()
        self._run(future, method, arguments)
        return future

    def close(self, seconds: float = 5.0) -> None:
        """Close the runner and end the thread, unless a call does not return within `seconds`."""
        with contextlib.suppress(Exception):
            self.submit("close").result(seconds)
        self.abandon()

    def abandon(self) -> None:
        """End a worker that hangs or was lost: kill its process, or let its thread end when its call returns."""
        kill = getattr(self._runner, "kill", None)
        if kill is not None:
            kill()
        self._tasks.put(None)

    def await_start(self) -> None:
        """Wait until the runner was created, or an attempt to create it failed; a process takes seconds."""
        self._attempted.wait()

    def progress(self) -> tuple[int, int] | None:
        """Number of environment calls so far and the slot of the current one; None for a runner in a process."""
        return getattr(self._runner, "progress", None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._run(*task)

    def _run(self, future: Future, method: str, arguments: tuple) -> None:
        try:
            with self._busy:
                if self._runner is None:
                    self._create()
                future.set_result(getattr(self._runner, method)(*arguments))
        except Exception as error:  # the waiting thread raises it
            future.set_exception(error)
        except BaseException as error:  # such as SystemExit, which would end the run in the waiting thread
            future.set_exception(RunnerError(f"{type(error).__name__}: {first_line(error)}{place_of(error)}"))

    def _create(self) -> None:
        try:
            self._runner = self._start()
        finally:
            self._attempted.set()


class WorkerLost(RuntimeError):  # noqa: N818 - a state of the process, which the pool turns into an error
    """The process of a worker has ended."""


class RunnerError(RuntimeError):
    """The runner raised an exception, whose type and message are the text: one in a process, or no `Exception`."""


class ProcessRunner:
    """A `Runner` whose environments are in a process of its own, for those that do not release Python's lock.

    Args:
      start: a function that creates the runner in the process, pickled by cloudpickle.

    Raises:
      WorkerLost: in every method, if the process has ended.
      RunnerError: the runner raised an exception.
    """

    def __init__(self, start: bytes):
        own, other = socket.socketpair()
        # Not `multiprocessing.Process`, which imports the user's main module again.
        command = [sys.executable, "-c", _MAIN, str(other.fileno()), *sys.path]
        self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
        other.close()
        self._connection = Connection(own.detach())
        self._connection.send(start)
        self._receive(_START_SECONDS)

    def reset(self, seeds: Sequence[int]) -> StepRows:
        """See `Runner.reset`."""
        return self._call("reset", seeds)

    def step(self, slots: Sequence[int], seeds: Sequence[int], actions: np.ndarray) -> StepRows:
        """See `Runner.step`."""
        return self._call("step", slots, seeds, actions)

    def free(self, slots: Sequence[int]) -> None:
        """See `Runner.free`."""
        return self._call("free", slots)

    def save(self, slots: Sequence[int]) -> Mapping[str, np.ndarray] | None:
        """See `Runner.save`."""
        return self._call("save", slots)

    def load(self, slots: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
        """See `Runner.load`."""
        return self._call("load", slots, arrays)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(WorkerLost, subprocess.TimeoutExpired):
            self._call("close")
            self._process.wait(5.0)
        self.kill()
        self._connection.close()

    def kill(self) -> None:
        """End the process at once; a call that waits for it in another thread raises `WorkerLost`."""
        self._process.kill()
        self._process.wait()

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            self._connection.send((method, arguments))
        except OSError as error:
            raise WorkerLost(self._ended()) from error
        return self._receive()

    def _receive(self, seconds: float | None = None) -> Any:
        try:
            if not self._connection.poll(seconds):
                raise WorkerLost(f"its process did not start within {seconds:.0f} s")
            result, error = self._connection.recv()
        except (EOFError, OSError) as lost:
            raise WorkerLost(self._ended()) from lost
        if error is not None:
            raise RunnerError(error)
        return result

    def _ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        return f"its process ended by signal {-code}" if code and code < 0 else f"its process ended with status {code}"


# With the paths of this process, so that the modules of the user are found.
_MAIN = (
    "import sys; (number, *sys.path[:]), sys.argv[1:] = sys.argv[1:], []; "
    "from rookery.envs.host.workers import serve; serve(int(number))"
)


def serve(descriptor: int) -> None:
    """The main function of a worker's process: create the runner, then answer calls until `close`.

    `descriptor` is that of the socket to the main process, the only one that can send to it.
    """
    import cloudpickle

    for signum in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C reaches this process too; the main process handles it
        signal.signal(signum, signal.SIG_IGN)
    # Likewise SIGTERM of a cluster; an environment may end by it what it starts, which would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))
    connection, runner, method = Connection(descriptor), None, ""
    with contextlib.suppress(EOFError, OSError):  # the main process has ended
        while method != "close":
            message = connection.recv()
            try:
                if runner is None:
                    runner, result = cloudpickle.loads(message)(), None
                else:
                    method, arguments = message
                    result = getattr(runner, method)(*arguments)
                connection.send((result, None))
            except BaseException as error:  # also SystemExit, which is no reason to lose the other environments
                connection.send((None, f"{type(error).__name__}: {first_line(error)}{place_of(error)}"))
