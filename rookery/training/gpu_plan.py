"""Plans a run on described GPUs: memory, kernels, collectives and compile time, without a GPU."""

import time
from typing import NamedTuple

import jax

from rookery.distributed import kernels
from rookery.distributed.mesh import Mesh
from rookery.distributed.programs import Stages
from rookery.experiments.config import RunConfig
from rookery.populations.base import Program
from rookery.populations.stages import staged_step
from rookery.training import loop
from rookery.training.memory_plan import Plan


class GpuPlan(NamedTuple):
    """A run's programs, compiled for described GPUs."""

    memory: Plan
    """Planned memory of each GPU."""
    kernels: int
    """Kernels that each GPU launches in a generation whose training has no warm-up."""
    unknown: int
    """Loops of unknown length in them, such as a solver's, which count as one repetition."""
    collectives: int
    """Collective operations of a generation."""
    seconds: float
    """Seconds for tracing and compiling."""


def plan(program: Program, config: RunConfig, over: Mesh) -> GpuPlan:
    """Compile a run for described GPUs; within `agents.backend.tracing_for("gpu")`.

    Args:
      program: the program, built for the mesh.
      config: of the run.
      over: described GPUs, from `distributed.described_gpu.mesh`.

    Raises:
      ValueError: the devices cannot divide the program evenly, `best_by` names no metric, or XLA cannot compile it.
    """
    started = time.monotonic()
    try:
        memory, stages = loop.compile_plan(program, config, over)
    except jax.errors.JaxRuntimeError as error:  # without a GPU, XLA cannot try other kernels
        cause = (str(error).strip().splitlines() or ["no message"])[0][:200]
        raise ValueError(f"XLA cannot compile this run for a GPU that this machine does not have: {cause}.") from error
    seconds = time.monotonic() - started
    launched, unknown, collectives = _count(stages, staged_step(program.step).iterations)
    return GpuPlan(memory, launched, unknown, collectives, seconds)


def _count(stages: Stages, iterations: int) -> tuple[int, int, int]:
    """Kernels, loops of unknown length and collectives of a generation with a number of training iterations."""
    names = ("start_states", "begin", *(["advance"] if iterations else []), "finish")
    counts = {name: kernels.count_kernels(getattr(stages, name).as_text()) for name in names}
    launched = sum(count.total for count in counts.values())
    unknown = sum(len(count.unknown) for count in counts.values())
    if "advance" in counts:  # its loops over iterations: one in the warm-up, if there is one, and the other after it
        loops = sorted(counts["advance"].unknown, key=lambda loop: -loop.kernels)
        if loops:
            launched += (iterations - 1) * loops[0].kernels
            unknown -= 1
    return launched, unknown, sum(map(kernels.collectives, counts.values()))
