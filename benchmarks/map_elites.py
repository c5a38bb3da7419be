"""MAP-Elites on the arm and the sphere: scores and speed of Rookery, QDax and pyribs for equal evaluations.

    python -m benchmarks.map_elites [--quick] [--problem arm sphere] [--generations 200] [--seeds 5]

All contenders use the same operator, cells, initial population of each seed and batch size (see `peers_map_elites`).
Scores are those after the last generation, over seeds; a timed call runs `--generations` generations, for QDax and
Rookery in one compiled program.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness, peers_map_elites
from benchmarks.peers_map_elites import PROBLEMS, Contender, Problem, Settings
from rookery.distributed import mesh
from rookery.qd import repertoire as repertoires
from rookery.qd.map_elites import with_repertoire


def ours(problem: Problem, settings: Settings, generations: int) -> Contender:
    """Rookery's MAP-Elites, with many generations in one program like QDax's, and the functions of `PROBLEMS`."""
    (low, high), side = problem.limits, settings.side
    scoring = rookery.qd.function_scoring(
        partial(_score, problem), partial(_init, problem), (low, low), (high, high), problem.offset, problem.bounds
    )
    cells = rookery.qd.grid((side, side), (low, low), (high, high))
    variation = rookery.qd.VariationConfig(settings.iso_sigma, settings.line_sigma)
    program = rookery.map_elites(scoring, cells, rookery.qd.iso_line(scoring, settings.batch_size, variation))

    def begin(seed: int) -> Any:
        first = jnp.asarray(peers_map_elites.first_population(problem, settings, seed))
        state = program.init(jax.random.key(seed))
        fitness, descriptor = problem.score(jnp, first)
        repertoire, _ = repertoires.add(rookery.qd.repertoire_of(state), first, fitness, descriptor)
        return with_repertoire(state, repertoire), jax.random.key(seed)

    compiled = harness.compile_program(partial(_scan, program, generations), begin(0), donate=(0,))
    return Contender(begin, compiled.call, lambda carry: np.asarray(carry[0].shared.fitnesses), compiled.seconds)


def _score(problem: Problem, genotype: Any, key: Any) -> tuple[Any, Any]:
    del key
    fitness, descriptor = problem.score(jnp, genotype[None])
    return fitness[0], descriptor[0]


def _init(problem: Problem, key: Any) -> Any:
    return jax.random.uniform(key, (problem.size,))


def _scan(program: rookery.Program, generations: int, carry: Any) -> Any:
    return jax.lax.scan(partial(_generation, program), carry, length=generations)[0]


def _generation(program: rookery.Program, carry: Any, _: None) -> tuple[Any, None]:
    state, key = carry
    key, step_key = jax.random.split(key)
    return (program.step(state, step_key)[0], key), None


CONTENDERS = {"rookery": ours, **peers_map_elites.CONTENDERS}


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--problem", choices=PROBLEMS, nargs="+", default=list(PROBLEMS))
    made.add_argument(
        "--generations", type=int, default=200, help="generations of a run and of a timed call (%(default)s)"
    )
    made.add_argument("--batch-size", type=int, default=1024, help="children per generation (%(default)s)")
    made.add_argument("--seeds", type=int, default=5)
    options = harness.parse(made)
    if options.quick:
        options.generations, options.seeds = 10, 2
    started = harness.load()
    mesh.use_cores(1)
    rows = []
    for name in options.problem:
        problem = PROBLEMS[name]()
        settings = peers_map_elites.defaults(problem)._replace(batch_size=options.batch_size)
        rows += measure(problem, settings, options)
    harness.report("map_elites", options, rows, started)


def measure(problem: Problem, settings: Settings, options: Any) -> list[dict[str, Any]]:
    """One row per contender: mean and range of the scores over the seeds, evaluations per second, and ratio."""
    made = {name: make(problem, settings, options.generations) for name, make in CONTENDERS.items()}
    calls = {name: peers_map_elites.timed(contender) for name, contender in made.items()}
    times = harness.interleave(calls, options.rounds)
    rows = []
    for name, contender in made.items():
        runs = [peers_map_elites.run(contender, problem, seed) for seed in range(options.seeds)]
        row: dict[str, Any] = {"problem": problem.name, "contender": name, "evaluations": _evaluations(options)}
        for score in runs[0]:
            values = [run[score] for run in runs]
            row |= {score: float(np.mean(values)), f"{score} range": f"{min(values):.6g} to {max(values):.6g}"}
        row |= harness.rates(times[name], options.batch_size * options.generations)
        row |= harness.speedup(times["rookery"], times[name]) if name != "rookery" else {}
        rows.append(row | {"compile_s": contender.compile_seconds, "runs": runs})
    return rows


def _evaluations(options: Any) -> int:
    return options.batch_size * (options.generations + 1)


if __name__ == "__main__":
    main()
