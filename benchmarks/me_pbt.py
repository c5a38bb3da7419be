"""A generation of ME-PBT, Rookery against QDax: exploit, train, vary, evaluate, add to the repertoire.

    python -m benchmarks.me_pbt [--quick]

The reference setting with small networks: walker2d_uni, 10 members with 25 environments, 10 steps of each environment,
one update per environment step, 30 variations, one episode per evaluation, 128 cells, networks (64, 64), batch size 64.
The work is equal with one exception: Rookery's evaluation ends with its last episode, QDax's always runs 1,000 steps.
Rookery's members are divided over two cores as two devices, as on the command line; QDax uses both cores within one
device.
"""

import itertools
import json
import time
from typing import Any

import jax

from benchmarks import harness
from benchmarks.learning import walker
from benchmarks.qdax_me_pbt import QUICK, Settings
from rookery.distributed import layout, programs
from rookery.distributed.mesh import make_mesh, use_cores


def ours(settings: Settings) -> tuple[harness.Compiled, harness.Loop]:
    """Rookery's compiled generation, and a call that runs the next one, with the members divided over all devices."""
    mesh = make_mesh()
    placement = layout.placement(mesh, cells=settings.cells)
    compiled = programs.compile_program(walker.program(settings, settings.eval_episodes, placement), mesh)
    state, keys = compiled.init(jax.random.key(0)), itertools.count()
    started = time.perf_counter()
    lowered = compiled.step.lower(state, jax.random.key(0))
    traced = time.perf_counter()
    step = lowered.compile()

    def generation(state: Any) -> tuple[Any, Any]:
        return step(state, jax.random.key(next(keys)))

    took = harness.Compiled(step, traced - started, time.perf_counter() - traced)
    return took, harness.Loop(generation, harness.Held(state))


def theirs(settings: Settings) -> tuple[harness.Compiled, harness.Loop]:
    """QDax's compiled generation, and a call that runs the next one."""
    from benchmarks import peers_me_pbt

    return peers_me_pbt.timed(settings)


CONTENDERS = {"rookery": ours, "qdax": theirs}


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--memory-of", choices=list(CONTENDERS), help="only print the peak memory of this contender")
    made.add_argument(
        "--devices", type=int, default=2, help="devices that Rookery's members are divided over (%(default)s)"
    )
    made.add_argument("--speed-only", action="store_true", help="measure no memory")
    options = harness.parse(made)
    use_cores(options.devices)
    settings = QUICK if options.quick else Settings()
    if options.memory_of:
        print(json.dumps(peak_memory(settings, options.memory_of)))
        return
    started = harness.load()
    both = {name: make(settings) for name, make in CONTENDERS.items()}
    times = harness.interleave({name: loop for name, (_, loop) in both.items()}, options.rounds)
    flags = ["--devices", str(options.devices), *(["--quick"] if options.quick else [])]
    rows = []
    for name, (compiled, _) in both.items():
        row: dict[str, Any] = {"contender": name, "seconds": times[name].median, "best_seconds": times[name].best}
        row |= harness.speedup(times[name], times["qdax"])
        row |= {"trace_s": compiled.trace_seconds, "compile_s": compiled.compile_seconds}
        row |= {"temporary_gb": compiled.temporary_gb}
        if not options.speed_only:
            row["peak_gb"] = harness.in_process("benchmarks.me_pbt", *flags, "--memory-of", name)
        rows.append(row)
    if not options.speed_only:
        rows[0]["memory_ratio"] = rows[0]["peak_gb"] / rows[1]["peak_gb"]
    harness.report("me_pbt", options, rows, started)


def peak_memory(settings: Settings, name: str) -> float:
    """Peak memory in GB of this process after compilation and two generations; it must do nothing else."""
    _, loop = CONTENDERS[name](settings)
    for _ in range(2):
        loop()
    return harness.peak_memory()


if __name__ == "__main__":
    main()
