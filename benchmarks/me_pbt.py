"""A generation of ME-PBT beside QDax's: exploit, train, vary, evaluate, add to the repertoire.

    python -m benchmarks.me_pbt [--quick]

The reference setting with small nets: walker2d_uni, 10 members with 25 environments, 10 steps of them and as many
updates as steps, 30 variations, one episode per evaluation, 128 cells, nets (64, 64), batches of 64. Both do the same
work with one difference: our evaluation ends when its last episode does, QDax's always goes on for 1,000 steps.
"""

import itertools
import json
from typing import Any

import jax

from benchmarks import harness
from benchmarks.learning import walker
from benchmarks.qdax_me_pbt import QUICK, Settings
from rookery import devices


def ours(settings: Settings) -> tuple[harness.Compiled, harness.Loop]:
    """The compiled generation, and a call that makes one after the other."""
    program = walker.program(settings, settings.eval_episodes)
    state = jax.jit(program.init)(jax.random.key(0))
    step = harness.compile_program(program.step, state, jax.random.key(0), donate=(0,))
    keys = itertools.count()

    def generation(state: Any) -> tuple[Any, Any]:
        return step.call(state, jax.random.key(next(keys)))

    return step, harness.Loop(generation, harness.Held(state))


def theirs(settings: Settings) -> tuple[harness.Compiled, harness.Loop]:
    """QDax's."""
    from benchmarks import peers_me_pbt

    return peers_me_pbt.timed(settings)


CONTENDERS = {"rookery": ours, "qdax": theirs}


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--memory-of", choices=list(CONTENDERS), help="tell this contender's peak, and no more")
    options = harness.parse(made)
    settings = QUICK if options.quick else Settings()
    if options.memory_of:
        print(json.dumps(peak_memory(settings, options.memory_of)))
        return
    devices.use_cores(1)
    started = harness.load()
    both = {name: make(settings) for name, make in CONTENDERS.items()}
    times = harness.interleave({name: loop for name, (_, loop) in both.items()}, options.rounds)
    flags = ["--quick"] if options.quick else []
    rows = []
    for name, (compiled, _) in both.items():
        row: dict[str, Any] = {"contender": name, "seconds": times[name].median, "best_seconds": times[name].best}
        row |= harness.speedup(times[name], times["qdax"])
        row |= {"trace_s": compiled.trace_seconds, "compile_s": compiled.compile_seconds}
        row |= {"temporary_gb": compiled.temporary_gb}
        rows.append(row | {"peak_gb": harness.in_process("benchmarks.me_pbt", *flags, "--memory-of", name)})
    rows[0]["memory_ratio"] = rows[0]["peak_gb"] / rows[1]["peak_gb"]
    harness.report("me_pbt", options, rows, started)


def peak_memory(settings: Settings, name: str) -> float:
    """GB that this process, which does nothing else, has needed at most, compiling and two generations included."""
    devices.use_cores(1)
    _, loop = CONTENDERS[name](settings)
    for _ in range(2):
        loop()
    return harness.peak_memory()


if __name__ == "__main__":
    main()
