"""Ask and tell: time of a call, and scores for equal evaluations, of Rookery, pyribs and QDax.

    python -m benchmarks.ask_tell [--quick] [--calls 300] [--evaluations 54000] [--seeds 5]

A solution of 20 numbers is evaluated by NumPy, outside of all contenders; the time is that of `ask` and `tell` alone,
from NumPy arrays to NumPy arrays, by the median over rounds in which the contenders alternate. QDax's functions are
compiled as its documentation shows, and give and take arrays of JAX. The operators, cells and initial populations are
those of `benchmarks.map_elites` (36 solutions a batch), the distributions those of `benchmarks.cma_mae` (15 of 36
samples; for the times one of 36, or 8 of 128). QDax has no CMA-MAE.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import cma_mae, harness, peers_map_elites
from benchmarks.peers_map_elites import PROBLEMS, Problem, Settings
from rookery.distributed import mesh

SIZE = 20
RATE = 0.01  # of the thresholds of CMA-MAE


class Asked:
    """A search by ask and tell, with the time of its calls."""

    def __init__(self, problem: Problem, ask: Callable, tell: Callable, fitness: Callable[[], np.ndarray]):
        self._problem, self._ask, self._tell, self.fitness = problem, ask, tell, fitness

    def __call__(self) -> tuple[float, float]:
        """One batch; returns the seconds, and the processor seconds, of `ask` and `tell`."""
        clocks = [(time.perf_counter(), time.process_time())]
        solutions = self._ask()
        clocks.append((time.perf_counter(), time.process_time()))
        results = self._problem.score(np, solutions)
        clocks.append((time.perf_counter(), time.process_time()))
        self._tell(*results)
        clocks.append((time.perf_counter(), time.process_time()))
        first, asked, scored, last = map(np.array, clocks)
        return tuple(asked - first + last - scored)


def ours(problem: Problem, settings: Settings, emitters: int, seed: int) -> Asked:
    """`Search`; `emitters` is the number of distributions, 0 for iso+line."""
    (low, high), side = problem.limits, settings.side
    limits = (low, low), (high, high)
    init = partial(cma_mae._init, problem) if emitters else partial(_first, problem, settings)
    scoring = rookery.qd.host_scoring(None, init, *limits, problem.offset, problem.bounds)
    cells = rookery.qd.grid((side, side), *limits)
    if emitters:
        config = rookery.qd.CmaMaeConfig(emitters=emitters)
        archive, emitter = rookery.qd.annealed(cells, RATE), rookery.qd.cma_mae(scoring, settings.batch_size, config)
    else:
        variation = rookery.qd.VariationConfig(settings.iso_sigma, settings.line_sigma)
        archive, emitter = cells, rookery.qd.iso_line(scoring, settings.batch_size, variation)
    search = rookery.qd.Search.of(scoring, archive, emitter, seed=seed)
    return Asked(problem, search.ask, search.tell, lambda: np.asarray(search.elites().fitnesses))


def _first(problem: Problem, settings: Settings, key: Any) -> Any:
    if problem.bounds is None:
        return settings.iso_sigma * jax.random.normal(key, (problem.size,))
    return jax.random.uniform(key, (problem.size,))


def pyribs(problem: Problem, settings: Settings, emitters: int, seed: int) -> Asked:
    """Pyribs' `Scheduler`."""
    if emitters:
        samples = settings.batch_size // emitters
        scheduler = cma_mae.pyribs(problem, settings, RATE, 1, emitters, samples).begin(seed)
        archive = scheduler.result_archive
    else:
        scheduler = peers_map_elites.pyribs(problem, settings, 1).begin(seed)
        archive = scheduler.archive
    return Asked(problem, scheduler.ask, scheduler.tell, lambda: archive.data("objective"))


def qdax(problem: Problem, settings: Settings, emitters: int, seed: int) -> Asked:
    """QDax's `MAPElites.ask` and `tell`."""
    del emitters
    algorithm, centroids = peers_map_elites.qdax_algorithm(problem, settings)
    first = jnp.asarray(peers_map_elites.first_population(problem, settings, seed))
    begin = jax.jit(algorithm.init_ask_tell)
    held, keys = Held(), jax.random.key(seed)
    held.repertoire, held.state, _ = begin(first, *problem.score(jnp, first), centroids, keys)
    ask, tell = jax.jit(algorithm.ask), jax.jit(algorithm.tell)
    held.key = keys

    def ask_numpy() -> np.ndarray:
        held.key, key = jax.random.split(held.key)
        held.asked, held.more = ask(held.repertoire, held.state, key)
        return np.asarray(held.asked)

    def tell_numpy(fitness: np.ndarray, descriptors: np.ndarray) -> None:
        fitness, descriptors = fitness.astype(np.float32), descriptors.astype(np.float32)
        found = tell(held.asked, fitness, descriptors, held.repertoire, held.state, {}, held.more)
        held.repertoire, held.state, _ = jax.block_until_ready(found)

    return Asked(problem, ask_numpy, tell_numpy, lambda: _finite(np.asarray(held.repertoire.fitnesses)))


class Held:
    """The state of QDax's functions."""

    repertoire: Any
    state: Any
    key: Any
    asked: Any
    more: Any


def _finite(fitness: np.ndarray) -> np.ndarray:
    return fitness[np.isfinite(fitness)]


METHODS = {
    "map-elites": {"rookery": ours, "pyribs": pyribs, "qdax": qdax},
    "cma-mae": {"rookery": ours, "pyribs": pyribs},
}


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument(
        "--calls", type=int, default=300, help="batches of 36 in a timed round; of 1,024 a tenth (%(default)s)"
    )
    made.add_argument("--evaluations", type=int, default=54_000, help="of a search (%(default)s)")
    made.add_argument("--seeds", type=int, default=5)
    options = harness.parse(made)
    if options.quick:
        options.calls, options.evaluations, options.seeds = 5, 1_080, 2
    started = harness.load()
    mesh.use_cores(1)
    rows = [
        row
        for method in METHODS
        for batch, emitters in ((36, 1), (1024, 8))
        for row in times(method, batch, emitters, options)
    ]
    rows += [row for method in METHODS for name in ("sphere", "arm") for row in scores(method, name, options)]
    harness.report("ask_tell", options, rows, started)


def times(method: str, batch: int, emitters: int, options: Any) -> list[dict[str, Any]]:
    """One row per contender: milliseconds of an `ask` with its `tell`."""
    problem = PROBLEMS["sphere"](SIZE)
    settings = peers_map_elites.defaults(problem)._replace(batch_size=batch)
    distributions = emitters if method == "cma-mae" else 0
    made = {name: make(problem, settings, distributions, 0) for name, make in METHODS[method].items()}
    found: dict[str, list[np.ndarray]] = {name: [] for name in made}
    for turn in range(-1, options.rounds):  # the first round warms up
        for name in [*made][turn % len(made) :] + [*made][: turn % len(made)]:
            calls = np.array([made[name]() for _ in range(options.calls if batch < 1000 else -(-options.calls // 10))])
            if turn >= 0:
                found[name].append(calls)
    rows = []
    for name, rounds in found.items():
        milliseconds = 1000.0 * np.array([np.median(calls, axis=0) for calls in rounds])
        row = {"method": method, "contender": name, "solutions": batch, "ms": float(np.median(milliseconds[:, 0]))}
        least = {"best_ms": float(milliseconds[:, 0].min())}
        cpu = 1000.0 * float(np.mean([calls[:, 1].mean() for calls in rounds]))
        rows.append(row | least | {"cpu_ms": cpu, "rounds_ms": milliseconds[:, 0].tolist()})
    for row in rows[1:]:
        row |= {"ratio": row["ms"] / rows[0]["ms"], "cpu_ratio": row["cpu_ms"] / rows[0]["cpu_ms"]}
    return rows


def scores(method: str, name: str, options: Any) -> list[dict[str, Any]]:
    """One row per contender: mean and range of coverage and QD score over the seeds."""
    problem = PROBLEMS[name](SIZE)
    batch, emitters = (36, 0) if method == "map-elites" else (cma_mae.EMITTERS * cma_mae.SAMPLES, cma_mae.EMITTERS)
    settings = peers_map_elites.defaults(problem)._replace(batch_size=batch)
    rows = []
    for contender, make in METHODS[method].items():
        runs = []
        for seed in range(options.seeds):
            search = make(problem, settings, emitters, seed)
            is_begun = contender != "rookery" and not emitters  # it has evaluated the initial population
            for _ in range(options.evaluations // batch - is_begun):
                search()
            fitness = search.fitness()
            value = float((fitness.astype(np.float64) - problem.offset).sum())
            runs.append({"coverage_percent": 100.0 * len(fitness) / settings.side**2, "qd_score": value})
        row: dict[str, Any] = {"method": method, "contender": contender, "problem": name}
        row |= {"evaluations": options.evaluations // batch * batch}
        for score in runs[0]:
            values = [run[score] for run in runs]
            row |= {score: float(np.mean(values)), f"{score} range": f"{min(values):.6g} to {max(values):.6g}"}
        rows.append(row | {"runs": runs})
    return rows


if __name__ == "__main__":
    main()
