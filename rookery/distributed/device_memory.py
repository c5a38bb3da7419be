"""The memory of this machine: what each device may use, and what was used of it."""

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from rookery.distributed.mesh import Mesh

_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def available(over: Mesh) -> int | None:
    """Bytes that each device of this process may use, None where nobody tells.

    A GPU or TPU says so itself; the devices of a CPU share the machine's memory, or what a cgroup grants of it.
    """
    limit = own(over)
    if limit is not None or over.local_devices[0].platform != "cpu":
        return limit
    memory = machine()
    return None if memory is None else memory // len(over.local_devices)


def own(over: Mesh) -> int | None:
    """Bytes that the poorest device of this process has for itself; None where devices have no memory of their own."""
    return min(_told(over, "bytes_limit"), default=None)


def machine() -> int | None:
    """Physical memory in bytes, or less if a cgroup grants less; None where the system does not tell."""
    granted = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        granted.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in _CGROUPS:
        with contextlib.suppress(ValueError, OSError):  # absent, or "max"
            granted.append(int(file.read_text()))
    return min(granted, default=None)


class Used(NamedTuple):
    """What was used."""

    count: int  # bytes
    meaning: str  # what was measured


class Gauge:
    """Measures what is used: by each device that counts, else by the growth of the process.

    Args:
      over: the devices.
    """

    def __init__(self, over: Mesh):
        self._over = over
        self._before = _resident("VmRSS")
        self._meaning = "by how much {} grew at most, compiling included"

    def begin(self, held: int) -> None:
        """Leave out what the compiler took and kept, where the system lets us set back the process's own `VmHWM`.

        Args:
          held: bytes of arrays that count all the same, those of this process.
        """
        with contextlib.suppress(OSError):
            _RESET.write_text("5")
            if (now := _resident("VmRSS")) is not None:
                self._before = now - held
                self._meaning = "the state, and by how much {} grew at most beside it"

    def read(self) -> Used | None:
        """The most that was used at once; None where nobody tells."""
        if in_use := _told(self._over, "peak_bytes_in_use"):
            return Used(max(in_use), "the most in use at once on one device")
        peak = _resident("VmHWM")
        if peak is None or self._before is None:
            return None
        count = len(self._over.local_devices)
        whom = f"the process with its {count} devices" if count > 1 else "the process"
        return Used(max(peak - self._before, 0), self._meaning.format(whom))


def _told(over: Mesh, name: str) -> list[int]:
    """A counter of every device of this process; empty where one has none."""
    told = [(device.memory_stats() or {}).get(name) for device in over.local_devices]
    known = [count for count in told if count is not None]
    return known if len(known) == len(told) else []


def _resident(name: str) -> int | None:
    """The process's resident memory in bytes: `VmRSS` now, `VmHWM` at most; None where the system does not tell."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text()):
            return 1024 * int(found[1])
    return None


def size(count: int) -> str:
    """Bytes in words, three digits: `1.2 GB`, of 10^9."""
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}" if value < 999.5 else f"{value:,.0f} {units[0]}"


class MemoryWarning(UserWarning):
    """A run's state alone is larger than the memory that there is."""


class Usage(NamedTuple):
    """What was planned beside what was used."""

    held: int
    """Bytes that each device was planned to hold between generations."""
    peak: int
    """Bytes that it was planned to hold at most, while a checkpoint is saved."""
    used: Used | None
    """What was measured; None where nothing measures it."""

    def __str__(self) -> str:
        """One clause."""
        planned = f"planned {size(self.held)} a device ({size(self.peak)} at its peak while saving)"
        if self.used is None:
            return f"{planned}; what was used is not told here"
        return f"{planned}, used {size(self.used.count)}: {self.used.meaning}"
