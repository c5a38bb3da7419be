"""Runs over several processes: connection to JAX's distributed runtime, and an orderly end.

Every process is started with the same command. Process 0 writes and prints; all processes train their share of the
population and take part in every checkpoint.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import jax

from rookery.distributed import sync
from rookery.distributed.heartbeat import Watch
from rookery.distributed.mesh import use_cores
from rookery.distributed.signals import SIGNALS, Interrupted
from rookery.settings import SettingError, Within, check_fields

NOT_CONNECTED = 74  # the exit code of a process that could not connect to the others in time
_LONGEST = 1e6  # seconds, 12 days: the system's waits and those of JAX's runtime have limits


@dataclass(frozen=True)
class ProcessesConfig:
    """How this process connects to the other processes of a run.

    Raises:
      ValueError: the settings are incomplete, or a value is outside its range.
    """

    distributed: bool = False
    """Connect the processes of a cluster that JAX detects: Slurm, Open MPI, Kubernetes, TPU."""
    coordinator: str | None = None
    """HOST:PORT at which process 0 can be reached, if no cluster is detected; the same for every process."""
    num_processes: Annotated[int | None, Within(1)] = None
    """Number of processes; needs coordinator."""
    process_id: Annotated[int | None, Within(0)] = None
    """Index of this process, counted from 0; needs coordinator."""
    connect_timeout: Annotated[float, Within(0, _LONGEST, (0,))] = 300.0
    """Seconds to wait until all processes are connected."""
    lost_after: Annotated[float, Within(1, _LONGEST)] = 30.0
    """Seconds without a heartbeat after which a process counts as lost and the others stop."""
    ray_address: str | None = None
    """Run islands on Ray: auto or HOST:PORT for a cluster, local to start one here (extra `ray`)."""

    def __post_init__(self) -> None:
        """Check the values."""
        check_fields(self)
        address = ("coordinator", "num_processes", "process_id")
        given = [name for name in address if getattr(self, name) is not None]
        missing = [f"{{{name}}}" for name in address if name not in given]
        if given and missing:
            raise SettingError(given[0], None, f"needs {' and '.join(missing)}", "give all three, or none")
        if self.num_processes is not None and self.process_id is not None and self.process_id >= self.num_processes:
            raise SettingError("process_id", self.process_id, f"must be below {{num_processes}} ({self.num_processes})")

    @property
    def wanted(self) -> bool:
        """Whether the run has several processes."""
        return self.distributed or self.coordinator is not None


class ProcessGroup:
    """The membership of this process in a run over several processes; `join` creates it.

    In a run of a single process every method does nothing.
    """

    def __init__(self, watch: Watch | None = None):
        self._watch = watch
        self._before: dict[int, Any] = {}  # signal -> the handler to restore

    def __str__(self) -> str:
        """A prefix for the messages of this process; empty in a run of one process."""
        return "" if self._watch is None else f"{self._watch}: "

    @property
    def alone(self) -> bool:
        """Whether the run has a single process."""
        return self._watch is None

    def set_run_dir(self, run_dir: str | os.PathLike[str]) -> None:
        """Set the run directory, so that messages about a lost process can name the command that continues the run."""
        if self._watch is not None:
            self._watch.run_dir = str(run_dir)

    def leave(self) -> None:
        """Disconnect in order, together with all other processes: waits for them."""
        if self._watch is not None:
            self.finish()
            self._watch.leave()
            self._watch = None
            with contextlib.suppress(Exception):  # all processes are done; a failure has no effect any more
                jax.distributed.shutdown()
            for signum, handler in self._before.items():
                signal.signal(signum, handler)

    def finish(self) -> None:
        """Ignore the signals that stop a run: it is complete and saved, and only `leave` is left to do."""
        if not self.alone and not self._before and threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, signal.SIG_IGN) for signum in SIGNALS}

    def await_lost_process(self, error: BaseException) -> None:
        """After a failure of the runtime, give the heartbeats time to detect a lost process.

        If a process is lost, the watch ends this process and names the lost one. A collective may fail before the
        heartbeats detect the loss, also within a checkpoint. Other errors, such as a lack of memory, return at once.
        """
        if self._watch is not None and _of_runtime(error):
            self._watch.wait()

    def fail(self, error: BaseException) -> None:
        """Print the traceback of an unexpected exception, and end this process and the others."""
        self.await_lost_process(error)
        if not self.alone:
            traceback.print_exception(error)
            self.abandon(1, f"{type(error).__name__}: {error}")

    def abandon(self, code: int, reason: str) -> None:
        """End this process and all others with the exit code and, as their message, the reason; nothing in a run of one
        process.

        An exception alone would block: the interpreter's exit waits for the others, which wait for this process.
        """
        if self._watch is not None:
            self._watch.leave(reason, code)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def join(config: ProcessesConfig) -> ProcessGroup:
    """Connect to the other processes; to be called before any call that starts a JAX backend.

    Raises:
      ValueError: no cluster is detected, process 0 does not answer in time, processes are missing, two processes have
        the same id, or JAX has started already.
    """
    if not config.wanted:
        return ProcessGroup()
    # The training loop handles signals, and agrees on them in each generation; JAX's service would intercept them.
    jax.config.update("jax_enable_preemption_service", False)
    options: dict[str, Any] = {
        "initialization_timeout": int(config.connect_timeout) + 60,  # `_at_most` expires first, with a message
        "heartbeat_timeout_seconds": max(60, int(3 * config.lost_after)),
    }
    if config.coordinator is not None:
        host, port = host_and_port(config.coordinator)
        if config.process_id == 0:
            _check_port(port)
        options |= {
            "coordinator_address": config.coordinator,
            "num_processes": config.num_processes,
            "process_id": config.process_id,
            "cluster_detection_method": "deactivate",
        }
        if host in ("localhost", "127.0.0.1"):
            options["coordinator_bind_address"] = config.coordinator  # instead of all network interfaces
    use_cores(None)  # before the first call that starts a backend
    with _at_most(config.connect_timeout, config.coordinator):
        try:
            jax.distributed.initialize(**options)
        except (ValueError, RuntimeError) as error:
            raise ValueError(_why_not(error)) from error
        name = f"pid {os.getpid()} on {socket.gethostname()}"
        number = jax.process_index(), jax.process_count()
    return ProcessGroup(Watch(sync.key_value_store(), *number, name, config.lost_after))


def host_and_port(address: str) -> tuple[str, int]:
    """Split `HOST:PORT`; an IPv6 address is written in brackets, `[::1]:1234`, and returned without them. A ValueError
    if it has another form, or the port is not in 1 to 65535."""
    host, _, digits = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    plain = host[1:-1] if bracketed else host
    valid = plain != "" and not set(plain) & set("/@[] \t\n" if bracketed else ":/@[] \t\n")
    if not (valid and digits.isascii() and digits.isdigit() and len(digits) <= 5 and 1 <= int(digits) <= 65535):
        raise ValueError(
            f"the coordinator {address!r} is not HOST:PORT: give a name or an IP address and a port from 1 to 65535, "
            "such as node1:1234, 10.0.0.1:1234 or [::1]:1234."
        )
    return plain, int(digits)


def _check_port(port: int) -> None:
    """Check that process 0 can open the coordinator's port: JAX ends in a segmentation fault if it cannot."""
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ValueError(
            f"port {port} of {socket.gethostname()} cannot be opened ({(error.strerror or str(error)).lower()}); "
            "choose another port for all processes, or end the run or the program that uses it."
        ) from error


@contextlib.contextmanager
def process_group(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None, **options: float
) -> Iterator[ProcessGroup]:
    """Connect the processes of a run for a `with` block; an exception in one process stops all of them.

    with rookery.distributed.process_group("host:1234", num_processes=2, process_id=0):
        over = rookery.distributed.make_mesh()  # of all processes
        program = rookery.pbt(learner, population_size=8, placement=rookery.distributed.placement(over))
        rookery.run(program, over=over, generations=20, run_dir="runs/mine")

    Args:
      coordinator: HOST:PORT of process 0; by default JAX detects a cluster.
      num_processes: the number of processes.
      process_id: the index of this process, counted from 0.
      options: `connect_timeout` and `lost_after`, see `ProcessesConfig`.

    Raises:
      ValueError: the settings are incomplete or outside of their ranges, or no cluster can be joined; see `join`.
      Interrupted: a signal stopped a run in the block, in all processes; they have disconnected in order.
    """
    more: dict[str, Any] = dict(options)
    group = join(ProcessesConfig(True, coordinator, num_processes, process_id, **more))
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
    """Whether an error comes from JAX's runtime; failures of Gloo, its CPU collectives, are raised as ValueError."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error):
            return "RESOURCE_EXHAUSTED" not in str(error)
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def _at_most(seconds: float, coordinator: str | None) -> Iterator[None]:
    """End the process with a message if the block lasts longer; JAX would abort it without a useful one."""

    def give_up() -> None:
        where = f" at {coordinator}" if coordinator else ""
        sys.stderr.write(
            f"error: the processes of the run did not all connect{where} within {seconds:g} s; check that all of them "
            "were started and can reach it, or set a larger --connect-timeout.\n"
        )
        sys.stderr.flush()
        os._exit(NOT_CONNECTED)

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
            "processes with srun, mpirun, a Kubernetes job or on a TPU slice."
        )
    return f"the processes could not be connected: {str(error).splitlines()[0]}"
