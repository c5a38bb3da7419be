"""Device memory: the limit of each device, and the measured peak usage."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from rookery.distributed.mesh import Mesh

_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def available(over: Mesh) -> int | None:
    """Bytes that each device of this process may use; None where the platform does not report a limit.

    A GPU or TPU reports its own limit. CPU devices divide the machine's memory, or the cgroup's limit if it is lower.
    """
    limit = device_limit(over)
    if limit is not None or over.local_devices[0].platform != "cpu":
        return limit
    memory = machine()
    return None if memory is None else memory // len(over.local_devices)


def device_limit(over: Mesh) -> int | None:
    """The smallest memory limit in bytes of this process's devices; None for devices without dedicated memory (CPU)."""
    return min(_counters(over, "bytes_limit"), default=None)


def machine() -> int | None:
    """Physical memory in bytes, or the cgroup's limit if it is lower; None where the system reports neither."""
    limits = []
    with contextlib.suppress(AttributeError, ValueError, OSError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in _CGROUPS:
        with contextlib.suppress(ValueError, OSError):  # absent, or "max"
            limits.append(int(file.read_text()))
    return min(limits, default=None)


class Used(NamedTuple):
    """A measured peak memory usage."""

    size: int
    """Bytes."""
    meaning: str
    """The measured quantity, as a phrase for the report."""


class Gauge:
    """Measures peak memory: the devices' counters where they exist (GPU, TPU), else the growth of the process."""

    def __init__(self, over: Mesh):
        self._over = over
        self._before = resident("VmRSS")
        self._held = 0
        self._meaning = "by this process, compilation included"

    def watch(self, held: int) -> None:
        """Exclude the memory that compilation used, where the system allows a reset of the process's peak (`VmHWM`).

        `held` are the bytes of this process's arrays that exist already and count as used.
        """
        with contextlib.suppress(OSError):
            _RESET.write_text("5")
            if (now := resident("VmRSS")) is not None:
                self._before, self._held = now - held, held
                self._meaning = "by this process"

    def read(self) -> Used | None:
        """The peak usage; None where neither the devices nor the system report it."""
        if in_use := _counters(self._over, "peak_bytes_in_use"):
            return Used(max(in_use), "on one device")
        peak = resident("VmHWM")
        if peak is None or self._before is None:
            return None
        # The system updates its counters late, so the peak may be below an earlier size.
        return Used(max(peak - self._before, self._held), self._meaning)


def _counters(over: Mesh, name: str) -> list[int]:
    """One memory counter of every device of this process; empty if any device lacks it."""
    counters = [(_statistics(device) or {}).get(name) for device in over.local_devices]
    known = [count for count in counters if count is not None]
    return known if len(known) == len(counters) else []


def _statistics(device: Any) -> dict[str, int] | None:
    """The counters of a device; None where it has none, or is not in this machine."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        return device.memory_stats()
    return None


def resident(name: str) -> int | None:
    """The process's resident memory in bytes, `VmRSS` (current) or `VmHWM` (peak); None where the system lacks it."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text()):
            return 1024 * int(found[1])
    return None


def size(count: int) -> str:
    """A number of bytes as text with three digits and decimal units: `1.2 GB` is 1.2e9 bytes."""
    value, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}" if value < 999.5 else f"{value:,.0f} {units[0]}"


@contextlib.contextmanager
def named_errors() -> Iterator[None]:
    """Raise a MemoryError of one sentence in place of XLA's error that a device has too little memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).partition("RESOURCE_EXHAUSTED: ")[2].splitlines()[0][:200].rstrip(".")
        raise MemoryError(
            f"the device has too little memory for this run ({reason}); `--plan` prints what it needs; most "
            "often a smaller buffer_size or population helps."
        ) from error


class Usage(NamedTuple):
    """Planned and measured memory of a run."""

    held: int
    """Planned bytes per device between generations."""
    peak: int
    """Planned peak bytes per device, while a checkpoint is saved."""
    used: Used | None
    """The measured peak; None where the platform does not report it."""

    def __str__(self) -> str:
        planned = f"{size(self.held)} on each device, {size(self.peak)} while a checkpoint is saved"
        if self.used is None:
            return f"{planned}; this platform measures no usage"
        return f"{planned}; at most {size(self.used.size)} in use {self.used.meaning}"
