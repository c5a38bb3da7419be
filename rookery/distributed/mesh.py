"""Meshes and shardings; the only file that names devices. One device is a mesh of 1, not a case of its own."""

import math
import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "population"


def make_mesh(count: int | None = None) -> Mesh:
    """A mesh of `count` devices, all of them by default; as many of each process, where there are several.

    Raises:
      ValueError: there are fewer devices, or the processes cannot give equally many.
    """
    devices, processes = jax.devices(), jax.process_count()
    count = len(devices) if count is None else count
    if not 1 <= count <= len(devices):
        raise ValueError(f"asked for {count} devices, but there are {len(devices)}: {devices}.")
    of_each = [[device for device in devices if device.process_index == process] for process in range(processes)]
    share = count // processes
    if count % processes or min(len(own) for own in of_each) < share:
        raise ValueError(
            f"asked for {count} devices, but each of {processes} processes must give as many of its own, and they have "
            f"{[len(own) for own in of_each]}; use a multiple of {processes}."
        )
    return Mesh(np.asarray([device for own in of_each for device in own[:share]]), (AXIS,))


def here() -> Mesh:
    """A mesh of one device of this process, to read what a run has left, whatever it was made on."""
    return Mesh(np.asarray(jax.local_devices()[:1]), (AXIS,))


def use_cores(population_size: int, processes: int = 1) -> int:
    """Make cores of the CPU into devices, as many as divide the population, so that members train side by side.

    One device leaves cores idle between small matrix products: two cores as two devices were 1.7 times as fast with
    64-wide nets, 1.1 times with 256-wide ones. Without effect where JAX has started already, or where the user has
    chosen a number (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`); a machine whose devices are others does not notice.

    Args:
      population_size: what is divided, of all processes.
      processes: how many share it; each takes cores that it may run on.

    Returns:
      How many devices were asked for, 0 if none.
    """
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if by_flag or "JAX_NUM_CPU_DEVICES" in os.environ:
        return 0
    cores = os.cpu_count() or 1
    if processes > 1 and hasattr(os, "sched_getaffinity"):  # what a cluster has left to this process of the machine
        cores = len(os.sched_getaffinity(0))
    share = max(population_size // processes, 1)
    count = max(divisor for divisor in range(1, cores + 1) if share % divisor == 0)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has started
        return 0
    return count


def mesh_for(population_size: int, count: int | None = None) -> Mesh:
    """A mesh for a population: `count` devices, or as many of all devices as divide it.

    Raises:
      ValueError: there are fewer devices than `count`, or `count` does not divide the population.
    """
    processes = jax.process_count()
    if count is None:
        owners = [device.process_index for device in jax.devices()]
        share = math.gcd(min(map(owners.count, range(processes))), max(population_size // processes, 1))
        count = processes * share
    chosen = make_mesh(count)
    check_population(population_size, chosen)
    return chosen


def describe(over: Mesh) -> str:
    """A mesh in words: `4 cpu devices of 2 processes`."""
    count, processes = over.devices.size, len({device.process_index for device in over.devices.flat})
    of_many = f" of {processes} processes" if processes > 1 else ""
    return f"{count} {over.devices.flat[0].platform} device{'s' if count > 1 else ''}{of_many}"


def shake_hands(over: Mesh) -> None:
    """One collective over a mesh, and wait for it: then all devices are connected."""
    count, divided = over.devices.size, NamedSharding(over, PartitionSpec(AXIS))
    ones = jax.make_array_from_callback((count,), divided, lambda index: np.ones(count)[index])
    jax.block_until_ready(jax.jit(jnp.sum, out_shardings=NamedSharding(over, PartitionSpec()))(ones))


def check_population(population_size: int, over: Mesh, what: str = "population") -> None:
    """Refuse a population (or a batch, or cells) that its devices cannot share evenly.

    Raises:
      ValueError: the number of devices does not divide `population_size`.
    """
    count = over.devices.size
    if population_size % count:
        lower = population_size // count * count
        raise ValueError(
            f"a {what} of {population_size} cannot be divided evenly over {count} devices; "
            f"use {f'{lower} or ' if lower else ''}{lower + count}, or fewer devices."
        )
