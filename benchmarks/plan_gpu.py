"""Plan a run on GPUs that this machine does not have: memory, kernels, collectives and compile time.

    python -m benchmarks.plan_gpu h200 pbt-sac --env point_maze --population 8 --devices 2

The words after the GPU are those of `rookery train`. `described_gpu` explains the method.
"""

import sys
import time
from unittest import mock

import jax

from benchmarks import described_gpu, kernels
from rookery import running
from rookery.agents import backend
from rookery.cli import app, islands, listings
from rookery.distributed import device_memory
from rookery.distributed.device_memory import size
from rookery.distributed.programs import Stages
from rookery.experiments import build, warm_start
from rookery.populations.stages import staged_step
from rookery.training import loop
from rookery.training.memory_plan import remedy
from rookery.training.terminal import terminal


def main(name: str, *words: str) -> None:
    """Compile a run for described GPUs, and print what is known of it.

    Args:
      name: a kind of GPU, see `described_gpu.GPUS`.
      *words: a kind of run and its flags.
    """
    jax.config.update("jax_platforms", "cpu")  # a GPU of this machine is left alone
    gpu, console = described_gpu.find(name), terminal()
    spec, schedule = running.complete(app.parse(["train", *words]).spec)
    spec = islands.planned(spec)
    over = described_gpu.mesh(spec.environment.devices or 1, gpu)
    started = time.monotonic()
    with backend.tracing_for("gpu"), mock.patch.object(device_memory, "device_limit", return_value=gpu.available):
        built = build.build(spec, schedule, over)
        built = built._replace(program=warm_start.start_from(spec, built))
        planned, stages = loop.compile_plan(built.program, spec.run, over)
    seconds = time.monotonic() - started
    console.print(listings.plan_table(planned))
    launched, unknown, collectives = _count(stages, staged_step(built.program.step).iterations)
    left = f"; {unknown} loops of unknown length count once" if unknown else ""
    share = f"{size(planned.peak)} of the {size(planned.available or 0)} that JAX may use of {size(gpu.memory)}"
    console.print_line(
        f"memory        {'fits' if planned.peak <= (planned.available or 0) else 'does not fit'}: {share}"
    )
    console.print_line(f"kernels       {launched:,} for each generation after the warm-up{left}")
    console.print_line(f"collectives   {collectives} in each generation")
    console.print_line(f"compilation   {seconds:.1f} s")
    if message := remedy(planned):
        sys.exit(f"error: {message}")


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


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ValueError as error:
        sys.exit(f"error: {error}")
