"""What the processes of a run say to each other; where there is only one, nothing.

Everything goes through the key-value store of JAX's coordinator, which any process may write to and read at any time;
it is the one thing taken here that JAX does not document. Once connected, nothing goes over the mesh: on several
devices of a CPU a collective of the host's could overlap one of a compiled program, and collectives without an order
wait for ever.
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
"""Whose versions have a say in what a run computes and stores."""

_WORDS_SECONDS = 30
_FILE_SECONDS = 10.0
_PATIENCE = 1000 * 24 * 3600  # ms, since others may compile; a process that dies meanwhile is noticed otherwise
_TICK = 0.2  # s
_Result = TypeVar("_Result")
_meetings, _comparisons, _exchanges = itertools.count(), itertools.count(), itertools.count()


def runtime() -> Any:
    """What JAX knows of its processes, without starting a backend: `process_id`, `num_processes`, `client`."""
    from jax._src import distributed

    return distributed.global_state


def board() -> Any:
    """The notice board: the key-value store of JAX's coordinator; None in a run of one process."""
    return runtime().client


def by_process(entries: Iterable[tuple[str, str]]) -> dict[int, str]:
    """What the notice board has in a directory, by the process that each key ends with."""
    return {int(key.rpartition("/")[2]): value for key, value in entries}


def is_first() -> bool:
    """Whether this process writes and prints: process 0. Asking does not start JAX, which would wait for the others."""
    return runtime().process_id == 0


def of_first(number: int) -> int:
    """The number that process 0 has; every process calls this, and waits for the others."""
    if runtime().num_processes == 1:
        return number
    return json.loads(_exchange(json.dumps(number))[0])


def agree(signum: int | None, saves: bool) -> tuple[int | None, bool]:
    """What all do after a generation: the signal that any process received, and whether process 0 wants to save."""
    if runtime().num_processes == 1:
        return signum, saves
    told = [json.loads(one) for one in _exchange(json.dumps([signum or 0, bool(saves)]))]
    return max(signum for signum, _ in told) or None, told[0][1]


def _exchange(message: str) -> list[str]:
    """The messages of all processes, which call this in the same order, from one thread each."""
    store, count, own, number = board(), runtime().num_processes, runtime().process_id, next(_exchanges)
    store.key_value_set(f"rookery/exchange/{number}/{own}", message)

    def read() -> list[str]:
        return [store.blocking_key_value_get(f"rookery/exchange/{number}/{i}", _PATIENCE) for i in range(count)]

    messages = _while_hearing_signals(read)
    if number:  # whoever sent its message of this exchange has read all of the one before
        store.key_value_delete(f"rookery/exchange/{number - 1}/{own}")
    return messages


def _while_hearing_signals(wait: Callable[[], _Result]) -> _Result:
    """The result of a function that blocks below Python, where no signal would be heard."""
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


def sees_what_first_sees(path: Path, seconds: float = _FILE_SECONDS) -> bool:
    """Whether a file holds the same here as for process 0; every process calls this, and waits for process 0.

    Args:
      path: of a file that tells one run from another.
      seconds: how long a network's file system may take to show it.
    """
    told, until = of_first(_checksum(path)), time.monotonic() + seconds
    while _checksum(path) != told:
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def _checksum(path: Path) -> int:
    """Of a file's bytes, in 31 bits; -1 without the file."""
    try:
        return zlib.crc32(path.read_bytes()) & 0x7FFFFFFF
    except OSError:
        return -1


def meet(place: str | None = None) -> None:
    """Wait until every process has come this far, however long the others compile: a collective waits seconds only.

    Args:
      place: a name that no other meeting has; by default they are counted.
    """
    if runtime().num_processes == 1:
        return
    name = f"rookery/meeting/{next(_meetings) if place is None else place}"
    _while_hearing_signals(lambda: board().wait_at_barrier(name, _PATIENCE))


def connect(over: mesh.Mesh) -> None:
    """Let all devices of a mesh meet once, before anything is timed; without the lines that Gloo prints on a CPU.

    Raises:
      ValueError: the processes have different devices.
    """
    check_alike({"devices": over.devices.size, "devices of a process": jax.local_device_count()})
    if runtime().num_processes > 1:
        with _hushed():
            multihost_utils.process_allgather(np.zeros(1))  # this waits for one device only, and so comes first
            mesh.shake_hands(over)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Standard output of libraries below Python goes nowhere."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what the libraries still hold back
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def check_alike(record: Mapping[str, Any]) -> None:
    """Refuse processes that were told different things, or are of different versions; before any collective.

    What differs may be the number of devices, which a collective over them would wait for; so a hash of it goes over
    the notice board.

    Args:
      record: JSON values; whatever decides the run.

    Raises:
      ValueError: in every process; names the first that differs from process 0, and in what.
    """
    if runtime().num_processes == 1:
        return
    text = json.dumps(flatten_mapping({**record, "version": versions(PACKAGES)}), sort_keys=True)
    place, own = f"rookery/hash/{next(_comparisons)}", runtime().process_id
    board().key_value_set(f"{place}/{own}", hashlib.sha256(text.encode()).hexdigest())
    meet(place)
    hashes = by_process(board().key_value_dir_get(place))
    different = [process for process in sorted(hashes) if hashes[process] != hashes[0]]
    if not different:
        return
    other = different[0]
    board().key_value_set(f"rookery/told/{own}", text, allow_overwrite=True)
    here, there = (
        json.loads(board().blocking_key_value_get(f"rookery/told/{process}", 1000 * _WORDS_SECONDS))
        for process in (0, other)
    )
    differences = [
        f"{name} is {there.get(name)!r} there and {here.get(name)!r} in process 0"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]
    raise ValueError(
        f"process {other} is told something else than process 0: {'; '.join(differences[:3])}; start every process "
        "with the same command, the same versions and as many devices."
    )
