"""Compile for a GPU that this machine does not have, and count the kernels that a program would launch.

XLA compiles for a GPU from a description of it. The result is the program that the GPU would run: its kernels, its
temporary memory, its collectives, its calls of libraries, and the errors of what does not compile. It has no times,
and autotuning, which runs on the device, is off, so a device may split or fuse a few matrix products differently. It
needs JAX's CUDA plugin, but no driver: `benchmarks/gpu.sh` creates the environment.
"""

import collections
import importlib.util
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # without it the plugin requires a driver

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from benchmarks import harness
from rookery.agents import backend
from rookery.cli import app
from rookery.distributed import programs
from rookery.distributed.mesh import AXIS
from rookery.experiments import build

PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")
H200 = """gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 memory_bandwidth: 4800000000000
l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
cuda_compute_capability { major: 9 minor: 0 } registers_per_core_limit: 65536 registers_per_block_limit: 65536 }
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 } device_description_str: "NVIDIA H200" """
"""The description of an NVIDIA H200, a `GpuTargetConfig` of XLA in text format."""


def missing() -> str | None:
    """Why this machine cannot compile for a described GPU; None if it can."""
    if any(importlib.util.find_spec(name) for name in PLUGINS):
        return None
    return "JAX's CUDA plugin is not installed; create an environment with it: benchmarks/gpu.sh"


def mesh(devices: int = 1) -> Mesh:
    """A mesh of described H200s, as `rookery.distributed.mesh` makes one of real devices."""
    shape = f"1x1x{devices}"  # one host with one process
    topology = topologies.get_topology_desc(shape, platform="cuda", target_config=H200, topology=shape)
    return Mesh(np.asarray(topology.devices), (AXIS,))


def compile_for_gpu(
    function: Callable, *arguments: Any, donate: tuple[int, ...] = (), platform: str = "gpu"
) -> harness.Compiled:
    """Trace, lower and compile a function for one described H200; see `harness.compile_program`.

    Args:
      function: pure, of `arguments`.
      arguments: pytrees of arrays or of `jax.ShapeDtypeStruct`; only their shapes are used.
      donate: indices of donated arguments.
      platform: the platform whose arrangement of the program is compiled, see `rookery.agents.backend`.
    """
    sharding = jax.sharding.SingleDeviceSharding(mesh().devices.item())

    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    with backend.tracing_for(platform):
        return harness.compile_program(function, *jax.tree.map(place, arguments), donate=donate)


class Loop(NamedTuple):
    """A loop of a program."""

    body: str
    """Name of the computation that it repeats."""
    trips: int | None
    """Number of repetitions; None if the program does not state it."""
    kernels: int
    """Kernels of one repetition."""


class Count(NamedTuple):
    """The kernels of one call of a program."""

    kinds: collections.Counter[str]
    """Kind of operation -> kernels, with loops multiplied out."""
    loops: tuple[Loop, ...]
    """Every loop once, those with the most kernels first."""

    @property
    def total(self) -> int:
        """Kernels of a call. A loop of unknown length counts once, see `unknown`."""
        return sum(self.kinds.values())

    @property
    def unknown(self) -> tuple[Loop, ...]:
        """The loops whose number of repetitions is unknown."""
        return tuple(loop for loop in self.loops if loop.trips is None)


# Operations that launch nothing: they name or describe memory, or wait for an operation that was counted at its start.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"}
FREE |= {"partition-id", "replica-id", "get-dimension-size", "domain"}
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast")

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{")
_OPERATION = re.compile(r"^(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def count_kernels(text: str) -> Count:
    """Count the kernels of a compiled program from its text (optimised HLO).

    A fusion, a call of a library, a copy, a collective and any other operation that is not in `FREE` counts as one
    kernel. A loop counts as its body times its repetitions; a conditional as its longest branch and one more, the copy
    of its predicate to the host; a call as the computation that it calls.
    """
    computations, entry = _computations(text)
    loops: dict[str, Loop] = {}
    counted: dict[str, collections.Counter[str]] = {}

    def count(name: str) -> collections.Counter[str]:
        if name not in counted:
            counted[name] = sum((count_line(line) for line in computations.get(name, ())), collections.Counter())
        return counted[name]

    def count_line(line: str) -> collections.Counter[str]:
        found = _OPERATION.match(line)
        kind = found.group(1) if found else "?"
        if kind in FREE or kind.endswith("-done"):
            return collections.Counter()
        if kind == "while":
            body, trips = _called(line, "body")[0], _TRIPS.search(line)
            once = count(body)
            loops[body] = Loop(body, int(trips.group(1)) if trips else None, once.total())
            return _times(once, int(trips.group(1)) if trips else 1)
        if kind == "conditional":
            branches = _called(line, "branch_computations|true_computation|false_computation")
            return max(map(count, branches), key=collections.Counter.total) + collections.Counter({"conditional": 1})
        if kind in ("call", "async-start"):
            return sum(map(count, _called(line, "to_apply|calls")), collections.Counter())
        return collections.Counter({kind: 1})

    kinds = count(entry)
    return Count(kinds, tuple(sorted(loops.values(), key=lambda loop: -(loop.trips or 1) * loop.kernels)))


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The instructions of each computation, and the name of the entry computation."""
    computations: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = head.group(2)
            computations[current] = []
            entry = current if head.group(1) else entry
        elif line.startswith("}"):
            current = None
        elif current and " = " in line:
            computations[current].append(line.strip())
    return computations, entry


def _called(line: str, attributes: str) -> list[str]:
    """The names of the computations in some attributes of an instruction."""
    found = re.findall(rf"(?:{attributes})=(?:\{{([^}}]*)\}}|(%?[\w.\-]+))", line)
    return [name.strip().lstrip("%") for several, one in found for name in (several or one).split(",")]


def _times(counter: collections.Counter[str], factor: int) -> collections.Counter[str]:
    return collections.Counter({kind: number * factor for kind, number in counter.items()})


def collectives(count: Count) -> int:
    """Number of collective operations of a call."""
    return sum(number for kind, number in count.kinds.items() if kind.removesuffix("-start") in COLLECTIVES)


def heaviest(count: Count) -> Loop:
    """The loop with the most kernels in all its repetitions."""
    return count.loops[0]


def custom_calls(text: str) -> list[str]:
    """The targets of a program's custom calls: libraries, and callbacks of the host."""
    return sorted(set(re.findall(r'custom_call_target="([^"]+)"', text)))


def compile_generation(words: Sequence[str], devices: int = 1) -> harness.Compiled:
    """Compile a whole generation of a run for described GPUs: training, evaluation and selection.

    Args:
      words: kind of run and flags, as after `rookery train`.
      devices: number of described H200s that the population is divided over.
    """
    over = mesh(devices)
    command = app.parse(["train", *words])
    with backend.tracing_for("gpu"):
        program = build.build(command.config, over=over).program
        step: Any = programs.compile_program(program, over).step
        arguments = programs.template(program, over), jax.eval_shape(lambda: jax.random.key(0))
        started = time.perf_counter()
        lowered = step.lower(*arguments)
        traced = time.perf_counter()
        compiled = lowered.compile()
    return harness.Compiled(compiled, traced - started, time.perf_counter() - traced)
