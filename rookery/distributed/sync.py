"""Host-side synchronisation of the processes of a run; every function is trivial in a run of one process.

Messages go through the key-value store of JAX's coordinator, which any process may read and write at any time. After
`connect`, this module runs no collectives on the mesh: on several CPU devices a collective of the host could overlap
one of a compiled program, and collectives that run in different orders deadlock. Collectives also time out after
seconds, while a process may wait much longer for another one that compiles.
"""

import contextlib
import ctypes
import hashlib
import itertools
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from rookery.distributed import mesh
from rookery.trees import flatten_mapping
from rookery.versions import versions

PACKAGES = ("rookery", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
"""The packages whose versions affect the results or the files of a run."""

_RECORD_SECONDS = 30
_FILE_SECONDS = 10.0
_TIMEOUT = 1000 * 24 * 3600  # ms; long because others may compile: the heartbeats detect a process that ends
_TICK = 0.2  # s
_Result = TypeVar("_Result")
_barriers, _comparisons, _exchanges = itertools.count(), itertools.count(), itertools.count()


def process_count() -> int:
    """The number of processes of the run. In a run of one process the call does not start a JAX backend."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def key_value_store() -> Any:
    """The client of the coordinator's key-value store; a ValueError if the run has a single process.

    JAX has no public name for it; Orbax, which synchronises its saves through it, has one.
    """
    from orbax.checkpoint import multihost  # takes a second to import, which a run of one process does not need

    return multihost.get_jax_distributed_client()


def by_process(entries: Iterable[tuple[str, str]]) -> dict[int, str]:
    """Entries of a directory of the key-value store, by the process index at the end of each key."""
    return {int(key.rpartition("/")[2]): value for key, value in entries}


def is_first() -> bool:
    """Whether this is process 0, which writes and prints. In a run of one process the call does not start a backend."""
    return process_count() == 1 or jax.process_index() == 0


def of_first(number: int) -> int:
    """The value of `number` in process 0; every process calls this and waits for the others."""
    if process_count() == 1:
        return number
    return json.loads(_exchange(json.dumps(number))[0])


def agree(signum: int | None, saves: bool) -> tuple[int | None, bool]:
    """Agree on the action after a generation; every process calls this and waits for the others.

    The arguments are the signal that this process received, or None, and whether a checkpoint is due according to it.
    Returns the largest signal number that any process received, or None; and `saves` of process 0.
    """
    if process_count() == 1:
        return signum, saves
    messages = [json.loads(message) for message in _exchange(json.dumps([signum or 0, bool(saves)]))]
    return max(signum for signum, _ in messages) or None, messages[0][1]


def _exchange(message: str) -> list[str]:
    """The messages of all processes, by index; every process makes these calls in the same order, from one thread."""
    store, count, process, number = key_value_store(), process_count(), jax.process_index(), next(_exchanges)
    store.key_value_set(f"rookery/exchange/{number}/{process}", message)

    def read() -> list[str]:
        return [store.blocking_key_value_get(f"rookery/exchange/{number}/{i}", _TIMEOUT) for i in range(count)]

    messages = _run_interruptibly(read)
    if number:  # a process that sent its message of this exchange has read all messages of the previous one
        store.key_value_delete(f"rookery/exchange/{number - 1}/{process}")
    return messages


def _run_interruptibly(wait: Callable[[], _Result]) -> _Result:
    """Run a function that blocks in C++ in a thread, so that this thread still handles signals."""
    results: list[_Result] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            results.append(wait())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="rookery-wait", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_TICK)
    if failures:
        raise failures[0]
    return results[0]


def file_matches_process_zero(path: Path, seconds: float = _FILE_SECONDS) -> bool:
    """Whether a file has the same content here as in process 0; every process calls this and waits for process 0.

    The content differs between runs; a network file system is allowed some `seconds` to show the file.
    """
    expected, deadline = of_first(_checksum(path)), time.monotonic() + seconds
    while _checksum(path) != expected:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _checksum(path: Path) -> int:
    """The CRC-32 of a file in 31 bits; -1 if the file cannot be read."""
    try:
        return zlib.crc32(path.read_bytes()) & 0x7FFFFFFF
    except OSError:
        return -1


def barrier(name: str | None = None) -> None:
    """Wait for all processes, however long the others compile; a collective would time out after seconds.

    `name` has to be unique; by default barriers are counted.
    """
    if process_count() == 1:
        return
    key = f"rookery/meeting/{next(_barriers) if name is None else name}"
    _run_interruptibly(lambda: key_value_store().wait_at_barrier(key, _TIMEOUT))


def connect(over: mesh.Mesh) -> None:
    """Connect all devices of a mesh by a collective, before anything is timed; a ValueError if processes have different
    numbers of them. Hides what Gloo prints on a CPU."""
    check_alike({"devices": over.devices.size, "devices of a process": jax.local_device_count()})
    if process_count() > 1:
        with _silenced_stdout():
            multihost_utils.process_allgather(np.zeros(1))  # first, since it waits for one device per process only
            mesh.connect_devices(over)


@contextlib.contextmanager
def _silenced_stdout() -> Iterator[None]:
    """Discard what C and C++ libraries print to standard output."""
    sys.stdout.flush()
    stdout, devnull = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # output that the libraries still buffer
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(devnull)


def check_alike(record: Mapping[str, Any]) -> None:
    """Check that all processes have the same configuration and package versions; to be called before any collective.

    The processes compare hashes through the key-value store, because a collective would block if the numbers of
    devices differ.

    Raises:
      ValueError: in every process; names the first process that differs from process 0, and the differences.
    """
    if process_count() == 1:
        return
    text = json.dumps(flatten_mapping({**record, "version": versions(PACKAGES)}), sort_keys=True)
    store, directory, process_index = key_value_store(), f"rookery/hash/{next(_comparisons)}", jax.process_index()
    store.key_value_set(f"{directory}/{process_index}", hashlib.sha256(text.encode()).hexdigest())
    barrier(directory)
    hashes = by_process(store.key_value_dir_get(directory))
    different = [process for process in sorted(hashes) if hashes[process] != hashes[0]]
    if not different:
        return
    other = different[0]
    store.key_value_set(f"rookery/settings/{process_index}", text, allow_overwrite=True)
    here, there = (
        json.loads(store.blocking_key_value_get(f"rookery/settings/{process}", 1000 * _RECORD_SECONDS))
        for process in (0, other)
    )
    differences = [
        f"{name} is {there.get(name)!r} there and {here.get(name)!r} in process 0"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]
    raise ValueError(
        f"process {other} is configured differently from process 0: {'; '.join(differences[:3])}; start every process "
        "with the same command, the same versions and the same number of devices."
    )
