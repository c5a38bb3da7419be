"""Compile this library's programs for a GPU that this machine does not have: see `rookery.distributed.described_gpu`.

`benchmarks/gpu.sh` creates the environment.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # without it the plugin requires a driver

import jax

from benchmarks import harness
from rookery.agents import backend
from rookery.cli import app
from rookery.distributed import described_gpu, programs
from rookery.distributed.mesh import Mesh
from rookery.experiments import build

GPU = described_gpu.GPUS["h200"]


def missing() -> str | None:
    """Why this machine cannot compile for a described GPU; None if it can."""
    return described_gpu.missing() and f"{described_gpu.missing()}, or create an environment with it: benchmarks/gpu.sh"


def mesh(devices: int = 1) -> Mesh:
    """A mesh of described H200s."""
    return described_gpu.mesh(GPU, devices)


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
