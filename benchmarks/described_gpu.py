"""Compile programs for GPUs that are not in this machine, from a description of each kind.

XLA compiles for a GPU from a description of it. The result is the program that the GPU would run: its kernels, its
temporary memory and its collectives, and the errors of what does not compile. It has no times, and autotuning, which
runs on the device, is off, so a device may split or fuse a few matrix products differently. It needs JAX's CUDA
libraries (the extras `cuda12` and `cuda13`), but no driver; `benchmarks/gpu.sh` creates an environment.
"""

import contextlib
import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # without it the plugin requires a driver

import jax
import numpy as np
from jax.experimental import topologies

from benchmarks import harness
from rookery.agents import backend
from rookery.cli import app
from rookery.distributed import programs
from rookery.distributed.mesh import AXIS, Mesh
from rookery.experiments import build
from rookery.settings import suggestion

INSTALL = 'pip install "rookery[cuda13]"'
_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
_FRACTION = 0.75  # JAX's default


class Gpu(NamedTuple):
    """A kind of NVIDIA GPU. Its numbers are those of XLA's descriptions (`xla/backends/gpu/target_config/specs`)."""

    name: str
    """The name that its driver reports."""
    capability: tuple[int, int]
    """CUDA compute capability, major and minor."""
    cores: int
    """Streaming multiprocessors."""
    units: int
    """Units for float32 in each multiprocessor."""
    clock: float
    """GHz."""
    memory: int
    """Bytes."""
    bandwidth: float
    """Of the memory, bytes per second."""
    cache: int
    """Second-level cache, bytes."""
    shared: int
    """Shared memory of a multiprocessor, bytes; a block may use 1 KiB less."""
    threads: int = 2048
    """Largest number of threads on a multiprocessor."""

    @property
    def available(self) -> int:
        """Bytes that JAX may allocate: three quarters of the memory, or the fraction that the environment sets."""
        fraction = next((os.environ[name] for name in _FRACTIONS if os.environ.get(name)), _FRACTION)
        return int(self.memory * float(fraction))

    @property
    def description(self) -> str:
        """The `GpuTargetConfig` of XLA, in text format."""
        return f"""gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
            shared_memory_per_core: {self.shared} shared_memory_per_block_optin: {self.shared - 1024}
            threads_per_core_limit: {self.threads} core_count: {self.cores} fpus_per_core: {self.units}
            block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
            memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.cache} clock_rate_ghz: {self.clock}
            device_memory_size: {self.memory} registers_per_core_limit: 65536 registers_per_block_limit: 65536
            cuda_compute_capability {{ major: {self.capability[0]} minor: {self.capability[1]} }} }}
            platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "{self.name}" """


_AMPERE = {"capability": (8, 0), "cores": 108, "units": 64, "clock": 1.41, "cache": 40 * 2**20, "shared": 167_936}
_HOPPER = {"capability": (9, 0), "cores": 132, "units": 128, "clock": 1.98, "cache": 50 * 2**20, "shared": 233_472}
GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", memory=85_100_068_864, bandwidth=2.03904e12, **_AMPERE),
    "a100-40gb": Gpu("NVIDIA A100-SXM4-40GB", memory=42_331_013_120, bandwidth=1.5552e12, **_AMPERE),
    "a6000": Gpu("NVIDIA RTX A6000", (8, 6), 84, 128, 1.8, 51_041_271_808, 7.68096e11, 6 * 2**20, 102_400, 1536),
    "b200": Gpu("NVIDIA B200", (10, 0), 148, 128, 1.965, 191_514_411_008, 7.67232e12, 132_644_864, 233_472),
    "h100": Gpu("NVIDIA H100 80GB HBM3", memory=84_942_979_072, bandwidth=3.35232e12, **_HOPPER),
    "h100-pcie": Gpu(
        "NVIDIA H100 PCIe",
        memory=84_942_979_072,
        bandwidth=2.03904e12,
        **{**_HOPPER, "cores": 114, "clock": 1.755},
    ),
    "h200": Gpu("NVIDIA H200", memory=151_397_597_184, bandwidth=4.8e12, **_HOPPER),
}
"""Name -> kind of GPU."""


def find(name: str) -> Gpu:
    """The GPU of a name in `GPUS`, in upper or lower case.

    Raises:
      ValueError: there is no such name; the message lists similar ones, or all.
    """
    word = name.lower().replace("_", "-")
    if word not in GPUS:
        raise ValueError(f"there is no description of a GPU {name!r}; {suggestion(word, GPUS)}")
    return GPUS[word]


def missing() -> str | None:
    """Why this machine cannot compile for a described GPU, as a sentence with the remedy; None if it can."""
    with contextlib.suppress(ModuleNotFoundError):
        if any(importlib.util.find_spec(name) for name in _PLUGINS):
            return None
    return f"compiling for a GPU needs JAX's CUDA libraries, but no driver and no GPU; {INSTALL}, or benchmarks/gpu.sh"


def mesh(devices: int = 1, gpu: Gpu = GPUS["h200"]) -> Mesh:
    """A mesh of described GPUs of one machine, as `rookery.distributed.mesh` makes one of real devices.

    Args:
      devices: their number (at least 1).
      gpu: their kind.

    Raises:
      ImportError: JAX's CUDA libraries are not installed.
    """
    if reason := missing():
        raise ImportError(reason)
    shape = f"1x1x{devices}"  # one host with one process
    options = {"platform": "cuda", "target_config": gpu.description, "topology": shape}
    try:
        topology = topologies.get_topology_desc(shape, **options)
    except NotImplementedError:  # JAX started before, and could not load the plugin without a driver
        name = next(name for name in _PLUGINS if importlib.util.find_spec(name))
        importlib.import_module(name).initialize()
        topology = topologies.get_topology_desc(shape, **options)
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
    gpu = GPUS["h200"]
    device = jax.sharding.AbstractDevice(gpu.name, gpu.cores, "cuda")  # Pallas of JAX 0.11 reads the name
    named = jax.sharding.AbstractMesh((1,), (AXIS,), (jax.sharding.AxisType.Auto,), abstract_device=device)

    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    with backend.tracing_for(platform), jax.sharding.use_abstract_mesh(named):
        return harness.compile_program(function, *jax.tree.map(place, arguments), donate=donate)


def compile_generation(words: Sequence[str], devices: int = 1) -> harness.Compiled:
    """Compile a whole generation of a run for described GPUs: training, evaluation and selection.

    Args:
      words: kind of run and flags, as after `rookery train`.
      devices: number of described H200s that the population is divided over.
    """
    over = mesh(devices)
    command = app.parse(["train", *words])
    with backend.tracing_for("gpu"):
        program = build.build(command.spec, over=over).program
        step: Any = programs.compile_program(program, over).step
        arguments = programs.template(program, over), jax.eval_shape(lambda: jax.random.key(0))
        started = time.perf_counter()
        lowered = step.lower(*arguments)
        traced = time.perf_counter()
        compiled = lowered.compile()
    return harness.Compiled(compiled, traced - started, time.perf_counter() - traced)
