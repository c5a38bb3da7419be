"""Many processes, one run: JAX's distributed runtime, joined and left in order.

Every process is started with the same command. Process 0 writes and prints; all train their share of the population and
take part in every checkpoint. Nothing here moves data: that is what meshes and collectives do.
"""

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from rookery.distributed import door, sync
from rookery.distributed.heartbeat import Watch
from rookery.distributed.last_words import LastWords
from rookery.signals import Interrupted

ALONE = 74
"""The exit code of a process whose run never came together."""


@dataclass(frozen=True)
class ProcessesConfig:
    """How this process finds the others.

    Raises:
      ValueError: half of what finding them needs, or a value outside its range.
    """

    distributed: bool = False
    """Join the processes of a cluster that JAX detects: Slurm, Open MPI, Kubernetes, TPU."""
    coordinator: str | None = None
    """HOST:PORT at which process 0 can be reached, where no cluster is detected; the same for every process."""
    num_processes: int | None = None
    """How many processes there are (at least 1); with coordinator."""
    process_id: int | None = None
    """Which one this is, counted from 0; with coordinator."""
    connect_timeout: float = 300.0
    """Seconds to wait until all processes are there (above 0)."""
    lost_after: float = 30.0
    """Seconds without a sign of life after which a process is lost, and the others stop (at least 1)."""

    def __post_init__(self) -> None:
        """Check what can be checked without the others."""
        told = {
            "--coordinator": self.coordinator,
            "--num-processes": self.num_processes,
            "--process-id": self.process_id,
        }
        missing = [name for name, value in told.items() if value is None]
        if 0 < len(missing) < len(told):
            raise ValueError(
                f"coordinator, num_processes and process_id belong together; give {', '.join(missing)} too."
            )
        if not 0 < self.connect_timeout < math.inf:
            raise ValueError(f"connect_timeout must be above 0 and finite, got {self.connect_timeout:g}.")
        if not 1 <= self.lost_after < math.inf:
            raise ValueError(f"lost_after must be at least 1 and finite, got {self.lost_after:g}.")
        if self.num_processes is not None and self.process_id is not None:
            if self.num_processes < 1:
                raise ValueError(f"num_processes must be at least 1, got {self.num_processes}.")
            if not 0 <= self.process_id < self.num_processes:
                raise ValueError(f"process_id must lie in 0..{self.num_processes - 1}, got {self.process_id}.")

    @property
    def wanted(self) -> bool:
        """Whether there are other processes at all."""
        return self.distributed or self.coordinator is not None


class ProcessGroup:
    """This process among those of its run; `join` makes it. Without others it does nothing."""

    def __init__(self, watch: Watch | None = None):
        self._watch = watch
        self._before: dict[int, Any] = {}  # signal -> who heard it

    def __str__(self) -> str:
        """Who speaks, before what it says."""
        return "" if self._watch is None else f"{self._watch}: "

    @property
    def alone(self) -> bool:
        """Whether there is nobody else."""
        return self._watch is None

    def tell_run(self, run_dir: str | os.PathLike[str]) -> None:
        """Say which run this is, so that whoever speaks of its end can say how to go on."""
        if self._watch is not None:
            self._watch.tell_run(str(run_dir))

    def leave(self) -> None:
        """Leave in order, together with all others: waits for them."""
        if self._watch is not None:
            self.finish()
            self._watch.leave()
            self._watch = None
            with contextlib.suppress(Exception):  # all have left; what fails now changes nothing
                jax.distributed.shutdown()
            for signum, handler in self._before.items():
                signal.signal(signum, handler)

    def finish(self) -> None:
        """The run is over and saved: who asks to stop before all have left, as a cluster asks each, is not heard."""
        if not self.alone and not self._before and threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)}

    def hear(self, error: BaseException) -> None:
        """Where the runtime failed, give the watch time to find out who is lost: it ends this process, and says so.

        A collective may fail before anybody is missed, also within a checkpoint; who lacks memory has only itself to
        blame.
        """
        if self._watch is not None and _of_runtime(error):
            self._watch.wait()

    def fail(self, error: BaseException) -> None:
        """Abandon the others for an exception that nobody expected, which is told with its traceback."""
        self.hear(error)
        if not self.alone:
            traceback.print_exception(error)
            self.abandon(1, f"{type(error).__name__}: {error}")

    def abandon(self, code: int, word: str) -> None:
        """Leave alone, at once: the others are told why, and stop. Ends this process; does nothing where it is alone.

        An exception that reached the interpreter's end would wait there for the others, and they for this process.
        """
        if self._watch is not None:
            self._watch.leave(word, code)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def join(config: ProcessesConfig) -> ProcessGroup:
    """Find the other processes; before anything that starts JAX.

    Raises:
      ValueError: no cluster is detected, nobody answers in time, processes are missing, an id came twice; or JAX has
        started.
    """
    if not config.wanted:
        return ProcessGroup()
    # Signals are the run loop's, which asks everybody in each generation; JAX's own service would swallow them.
    jax.config.update("jax_enable_preemption_service", False)
    options: dict[str, Any] = {
        "initialization_timeout": int(config.connect_timeout) + 60,  # ours comes first, and speaks
        "heartbeat_timeout_seconds": max(60, int(3 * config.lost_after)),
    }
    if config.coordinator is not None:
        assert config.num_processes is not None
        assert config.process_id is not None
        door.meet(config.coordinator, config.num_processes, config.process_id, config.connect_timeout)
        options |= {
            "coordinator_address": config.coordinator,
            "num_processes": config.num_processes,
            "process_id": config.process_id,
            "cluster_detection_method": "deactivate",
        }
        if door.host_and_port(config.coordinator)[0] in ("localhost", "127.0.0.1"):
            options["coordinator_bind_address"] = config.coordinator  # and not every network that there is
    with _at_most(config.connect_timeout):
        try:
            jax.distributed.initialize(**options)
        except (ValueError, RuntimeError) as error:
            raise ValueError(_why_not(error)) from error
    runtime = sync.runtime()
    last_words = LastWords(runtime.process_id, runtime.num_processes, runtime.coordinator_address)
    who = f"pid {os.getpid()} on {socket.gethostname()}"
    number = runtime.process_id, runtime.num_processes
    return ProcessGroup(Watch(runtime.client, *number, who, config.lost_after, last_words))


@contextlib.contextmanager
def process_group(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None, **options: float
) -> Iterator[ProcessGroup]:
    """Join the other processes for a block, and leave in order; an exception in one process stops all.

    with rookery.distributed.process_group("host:1234", num_processes=2, process_id=0):
        over = rookery.distributed.make_mesh()  # of all processes
        program = rookery.pbt(learner, population_size=8, placement=rookery.distributed.placement(over))
        rookery.run(program, over=over, generations=20, run_dir="runs/mine")

    Args:
      coordinator: HOST:PORT of process 0; without it a cluster is detected.
      num_processes: how many.
      process_id: which one this is.
      options: `connect_timeout` and `lost_after`, see `ProcessesConfig`.

    Raises:
      ValueError: see `join`.
      Interrupted: a run in the block was asked to stop, in all processes; they have left in order.
    """
    group = join(ProcessesConfig(True, coordinator, num_processes, process_id, **options))
    try:
        yield group
    except Interrupted:  # in every process, after the same generation
        group.leave()
        raise
    except BaseException as error:
        group.fail(error)
        raise
    group.leave()


def _of_runtime(error: BaseException | None) -> bool:
    """Whether JAX's runtime failed, or what it calls: Gloo's failures are a ValueError."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error):
            return "RESOURCE_EXHAUSTED" not in str(error)
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """End the process if the block lasts longer: JAX would abort it without a word that one can use."""

    def give_up() -> None:
        address = sync.runtime().coordinator_address
        where = f" at {address}" if address else ""
        sys.stderr.write(
            f"error: the processes of the run did not come together{where} within {seconds:g} s; see whether all of "
            "them were started and can reach it, or give more time by --connect-timeout.\n"
        )
        sys.stderr.flush()
        os._exit(ALONE)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _why_not(error: Exception) -> str:
    if "should be defined" in str(error) or "must be defined" in str(error):
        return (
            "no cluster was detected; give --coordinator HOST:PORT --num-processes N --process-id I, or start the "
            "processes by srun, mpirun, a Kubernetes job or on a TPU slice."
        )
    return f"the processes could not be joined: {str(error).splitlines()[0]}"
