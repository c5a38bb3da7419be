"""Seconds of a generation of runs that differ in some flags, in turns.

    python -m benchmarks.generations "pbt-ppo --env Pendulum-v1 --population 32" "" "--exploit-interval auto"

The first argument is what follows `rookery train`, and each further one is added to it. All programs are compiled
before the first is timed, as for a run on one device. `ratio` and `cpu_ratio`, of the processor time, are those of the
medians of the first program to this one.
"""

import shlex
from functools import partial

import jax
import numpy as np

from benchmarks import harness, population
from rookery.cli import app
from rookery.distributed import programs
from rookery.distributed.mesh import here
from rookery.experiments import build


def main() -> None:
    made = harness.parser(__doc__, rounds=21)
    made.add_argument("run", help="flags of all runs, the kind first")
    made.add_argument("flags", nargs="+", help="further flags of one run")
    made.add_argument("--untimed", type=int, default=3, help="generations of each run before (%(default)s)")
    options = harness.parse(made)
    load, calls = harness.load(), {}
    for flags in options.flags:
        built = build.build(app.parse(["train", *shlex.split(options.run), *shlex.split(flags)]).spec, over=here())
        compiled = programs.compile_program(built.program, built.mesh)
        held = harness.Held(compiled.init(jax.random.key(0)))
        calls[flags] = partial(population.advance, compiled.step, held)
    times = harness.interleave(calls, options.rounds, warmup=options.untimed)
    first = times[options.flags[0]]
    rows = [
        {
            "flags": flags,
            "generation_s": found.median,
            **harness.speedup(found, first),
            "cpu_ratio": float(np.median(first.cpu_seconds) / np.median(found.cpu_seconds)),
            "seconds": list(found.seconds),
        }
        for flags, found in times.items()
    ]
    harness.report("generations", options, rows, load)


if __name__ == "__main__":
    main()
