"""CMA-MAE on three functions: scores and speed of Rookery and pyribs for equal evaluations.

    python -m benchmarks.cma_mae [--quick] [--problem arm sphere rastrigin] [--generations 1000] [--seeds 5]

Both use the settings of the paper and of pyribs' examples: 15 distributions of 36 samples, the better half as parents,
restarts only after convergence, an archive of 100 x 100 cells with the learning rate 0.01, and thresholds that begin at
the fitness that counts as 0. A distribution begins at a uniformly drawn genotype, with the default standard deviation
of `rookery.qd.cma_mae`. Scores are those of the best genotype ever found for each cell. What differs: samples beyond
the bounds of the arm are clipped here and drawn again in pyribs. `--learning-rate 1` compares CMA-ME.
"""

from functools import partial
from typing import Any

import jax
import numpy as np

import rookery
from benchmarks import harness, peers_map_elites
from benchmarks.map_elites import _scan, _score
from benchmarks.peers_map_elites import INSTALL, PROBLEMS, SPHERE_BOUND, Contender, Problem, Settings
from rookery.distributed import mesh

EMITTERS, SAMPLES = 15, 36


def ours(problem: Problem, settings: Settings, learning_rate: float, generations: int) -> Contender:
    """Rookery's CMA-MAE, with many generations in one program."""
    (low, high), side = problem.limits, settings.side
    scoring = rookery.qd.function_scoring(
        partial(_score, problem), partial(_init, problem), (low, low), (high, high), problem.offset, problem.bounds
    )
    cells = rookery.qd.grid((side, side), (low, low), (high, high))
    archive = rookery.qd.annealed(cells, learning_rate)
    program = rookery.map_elites(scoring, archive, rookery.qd.cma_mae(scoring, EMITTERS * SAMPLES))
    init = jax.jit(program.init)

    def begin(seed: int) -> Any:
        init_key, key = jax.random.split(jax.random.key(seed))
        return init(init_key), key

    compiled = harness.compile_program(partial(_scan, program, generations), begin(0), donate=(0,))
    return Contender(begin, compiled.call, lambda carry: np.asarray(carry[0].shared.fitnesses), compiled.seconds)


def _bounds(problem: Problem) -> tuple[float, float]:
    """Limits within which the means of the distributions begin."""
    return problem.bounds or (-SPHERE_BOUND, SPHERE_BOUND)


def _init(problem: Problem, key: Any) -> Any:
    low, high = _bounds(problem)
    return jax.random.uniform(key, (problem.size,), minval=low, maxval=high)


def pyribs(
    problem: Problem,
    settings: Settings,
    learning_rate: float,
    generations: int,
    emitters: int = EMITTERS,
    samples: int = SAMPLES,
) -> Contender:
    """Pyribs' `Scheduler` with an annealed archive, an archive of results, and `EvolutionStrategyEmitter`s.

    Raises:
      SystemExit: pyribs is not installed.
    """
    try:
        from ribs.archives import GridArchive
        from ribs.emitters import EvolutionStrategyEmitter
        from ribs.schedulers import Scheduler
    except ImportError as error:
        raise SystemExit(f"{INSTALL} ({error})") from error
    sigma = (problem.bounds[1] - problem.bounds[0]) / 5 if problem.bounds else 0.5

    def begin(seed: int) -> Any:
        seeds = np.random.SeedSequence(seed).generate_state(emitters + 2).tolist()
        generator = np.random.default_rng(seed)
        place: Any = {
            "solution_dim": problem.size,
            "dims": (settings.side, settings.side),
            "ranges": [problem.limits, problem.limits],
            "qd_score_offset": problem.offset,
        }
        archive = GridArchive(**place, learning_rate=learning_rate, threshold_min=problem.offset, seed=seeds[0])
        made = [
            EvolutionStrategyEmitter(
                archive,
                x0=generator.uniform(*_bounds(problem), size=problem.size),
                sigma0=sigma,
                ranker="imp",
                selection_rule="mu",
                restart_rule="basic",
                batch_size=samples,
                bounds=problem.bounds and [problem.bounds] * problem.size,
                seed=emitter_seed,
            )
            for emitter_seed in seeds[2:]
        ]
        return Scheduler(archive, made, result_archive=GridArchive(**place, seed=seeds[1]))

    advance = partial(peers_map_elites._pyribs_generations, problem, generations)
    return Contender(begin, advance, lambda scheduler: _result(scheduler.result_archive))


def _result(archive: Any) -> np.ndarray:
    fitness = np.full(archive.cells, -np.inf)
    fitness[archive.data("index")] = archive.data("objective")
    return fitness


CONTENDERS = {"rookery": ours, "pyribs": pyribs}


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--problem", choices=PROBLEMS, nargs="+", default=list(PROBLEMS))
    made.add_argument("--generations", type=int, default=1_000, help="generations of a run (%(default)s)")
    made.add_argument("--timed", type=int, default=100, help="generations of a timed call (%(default)s)")
    made.add_argument("--learning-rate", type=float, default=0.01, help="of the thresholds (%(default)s)")
    made.add_argument("--seeds", type=int, default=5)
    options = harness.parse(made)
    if options.quick:
        options.generations, options.timed, options.seeds = 20, 10, 2
    started = harness.load()
    mesh.use_cores(1)
    rows = [row for name in options.problem for row in measure(PROBLEMS[name](), options)]
    harness.report("cma_mae", options, rows, started)


def measure(problem: Problem, options: Any) -> list[dict[str, Any]]:
    """One row per contender: mean and range of the scores over the seeds, and evaluations per second."""
    settings = peers_map_elites.defaults(problem)
    timed = {name: make(problem, settings, options.learning_rate, options.timed) for name, make in CONTENDERS.items()}
    calls = {name: peers_map_elites.timed(contender) for name, contender in timed.items()}
    times = harness.interleave(calls, options.rounds)
    rows = []
    for name, make in CONTENDERS.items():
        contender = make(problem, settings, options.learning_rate, options.generations)
        runs = [peers_map_elites.run(contender, problem, seed) for seed in range(options.seeds)]
        batch = EMITTERS * SAMPLES
        row: dict[str, Any] = {"problem": problem.name, "contender": name, "evaluations": batch * options.generations}
        for score in runs[0]:
            values = [run[score] for run in runs]
            row |= {score: float(np.mean(values)), f"{score} range": f"{min(values):.6g} to {max(values):.6g}"}
        row |= harness.rates(times[name], batch * options.timed)
        row |= harness.speedup(times["rookery"], times[name]) if name != "rookery" else {}
        rows.append(row | {"compile_s": timed[name].compile_seconds, "runs": runs})
    return rows


if __name__ == "__main__":
    main()
