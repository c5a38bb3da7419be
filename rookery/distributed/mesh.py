"""Construction of device meshes. A single device is a mesh of size 1, without a special case."""

import contextlib
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.agents import backend

AXIS = "population"


def make_mesh(count: int | None = None) -> Mesh:
    """A one-dimensional mesh with the axis `AXIS`.

    Args:
      count: the number of devices, all devices by default; every process contributes the same number.

    Raises:
      ValueError: there are fewer devices, or the processes cannot contribute equally many.
    """
    check_platform()
    devices, processes = jax.devices(), jax.process_count()
    count = len(devices) if count is None else count
    if not 1 <= count <= len(devices):
        raise ValueError(f"{count} devices were requested, but there are {len(devices)}: {devices}.")
    by_process = [[device for device in devices if device.process_index == process] for process in range(processes)]
    share = count // processes
    if count % processes or min(len(local) for local in by_process) < share:
        raise ValueError(
            f"{count} devices were requested, but each of {processes} processes must contribute equally many, and they "
            f"have {[len(local) for local in by_process]}; use a multiple of {processes}."
        )
    return Mesh(np.asarray([device for local in by_process for device in local[:share]]), (AXIS,))


def check_platform() -> None:
    """Initialise JAX; a ValueError if this machine lacks the platform that it is configured for."""
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # which one depends on the platform
        name, reason = backend.switch("jax_platforms") or "of its own choice", str(error).partition(" (set ")[0]
        found = f"JAX finds no device of the platform {name!r}{': ' * bool(reason)}{reason.rstrip('.')}"
        raise ValueError(f"{found}; unset JAX_PLATFORMS, or install JAX for this platform.") from error


def here() -> Mesh:
    """A mesh of one device of this process, for reading a stored run regardless of the devices that produced it."""
    check_platform()
    return Mesh(np.asarray(jax.local_devices()[:1]), (AXIS,))


def use_cores(population_size: int | None) -> int:
    """Configure JAX to expose the CPU cores of this process as devices, the largest number that divides the population.

    Members then train in parallel. A single CPU device leaves cores idle between small matrix products: two cores as
    two devices were 1.7 times as fast with networks of width 64, and 1.1 times with width 256. The call has no effect
    if JAX has started already, if the user has set the number (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`), or on GPUs and
    TPUs.

    Args:
      population_size: number of members; None for all cores, in a run over several processes, which connect before
        the population is known.

    Returns:
      The number of devices requested, 0 if the setting was not changed.
    """
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if by_flag or "JAX_NUM_CPU_DEVICES" in os.environ:
        return 0
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if population_size is not None:
        count = max(divisor for divisor in range(1, count + 1) if max(population_size, 1) % divisor == 0)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has started
        return 0
    return count


def mesh_for(population_size: int, count: int | None = None) -> Mesh:
    """A mesh for a population.

    Args:
      population_size: members of all processes together.
      count: the number of devices; by default the largest number available that divides the population.

    Raises:
      ValueError: there are fewer devices than `count`, or `count` does not divide the population.
    """
    check_platform()
    processes = jax.process_count()
    if count is None:
        indices = [device.process_index for device in jax.devices()]
        share = math.gcd(min(map(indices.count, range(processes))), max(population_size // processes, 1))
        count = processes * share
    chosen = make_mesh(count)
    check_population(population_size, chosen)
    return chosen


def describe(over: Mesh) -> str:
    """A mesh as text: `4 cpu devices of 2 processes`, or `1 of 2 cpu devices` where this machine has more."""
    count, processes = over.devices.size, len({device.process_index for device in over.devices.flat})
    platform = over.devices.flat[0].platform
    total = count
    with contextlib.suppress(RuntimeError):  # a described GPU, which this machine does not have
        total = len(jax.devices(platform))
    of_many = f" of {processes} processes" if processes > 1 else ""
    share = f"{count} of {total}" if count < total else str(count)
    return f"{share} {platform} device{'s' if total > 1 else ''}{of_many}"


def connect_devices(over: Mesh) -> None:
    """Run one collective over a mesh and wait for it, which connects all devices."""
    count, divided = over.devices.size, NamedSharding(over, PartitionSpec(AXIS))
    ones = jax.make_array_from_callback((count,), divided, lambda index: np.ones(count)[index])
    jax.block_until_ready(jax.jit(jnp.sum, out_shardings=NamedSharding(over, PartitionSpec()))(ones))


def check_population(population_size: int, over: Mesh, what: str = "population") -> None:
    """Raise a ValueError if the devices do not divide a population (or a batch, or the cells of a repertoire)."""
    count = over.devices.size
    if population_size % count:
        lower = population_size // count * count
        raise ValueError(
            f"a {what} of {population_size} cannot be divided evenly over {count} devices; "
            f"use {f'{lower} or ' if lower else ''}{lower + count}, or fewer devices."
        )
