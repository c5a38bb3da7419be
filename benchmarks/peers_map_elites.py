"""MAP-Elites of two other libraries: QDax on the device, pyribs on the host.

    python -m benchmarks.peers_map_elites [--quick] [--problem arm sphere] [--generations 100]

There are three problems with a cheap evaluation: the planar arm, and sphere and Rastrigin as pyribs defines them. The
work is equal for all contenders: the operator (iso+line with the same sigmas and pairs of parents drawn uniformly from
the occupied cells), the cells (an even grid), the initial population, and the batch size. The initial population is
evaluated before the first generation, so N generations are N + 1 batches of evaluations. Both libraries use single
precision.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import harness

INSTALL = "QDax or pyribs is not installed; create an environment with them: benchmarks/peers.sh"
SPHERE_BOUND = 5.12
SPHERE_OPTIMUM = 0.4 * SPHERE_BOUND


class Problem(NamedTuple):
    """A problem with genotypes `[B, n]`."""

    name: str
    size: int  # n
    score: Callable[[Any, Any], tuple[Any, Any]]
    """(numpy or jax.numpy, genotypes) -> fitness `[B]` and descriptor `[B, 2]`."""
    bounds: tuple[float, float] | None  # genotypes are clipped to them
    limits: tuple[float, float]  # of both descriptor dimensions
    offset: float  # the fitness that contributes 0 to the QD score
    iso_sigma: float  # default of iso+line
    line_sigma: float


class Settings(NamedTuple):
    """Settings of all contenders."""

    iso_sigma: float  # standard deviation of the noise on every gene
    line_sigma: float  # standard deviation of the step along the line to the other parent, one per child
    side: int = 100  # cells along each of the two axes
    batch_size: int = 1024


class Contender(NamedTuple):
    """An implementation of MAP-Elites for a fixed number of generations, with its type of state."""

    begin: Callable[[int], Any]
    """Seed -> the state after the initial population."""
    advance: Callable[[Any], Any]
    """State -> the state some generations later; it may modify its argument, and the result may be awaited."""
    fitness: Callable[[Any], np.ndarray]
    """State -> fitness of every cell `[C]`, -inf where a cell is empty."""
    compile_seconds: float = 0.0


def arm(numeric: Any, genotypes: Any) -> tuple[Any, Any]:
    """Planar arm that should reach every point with equal angles (Vassiliades 2018, arXiv:1804.03906).

    Args:
      numeric: numpy or jax.numpy.
      genotypes: `[B, n]` in [0, 1]; x turns a joint by (2 x - 1) pi relative to the previous link.

    Returns:
      Fitness `[B]`, minus the standard deviation of the genes; and the end position of the arm, scaled to [0, 1]^2,
      `[B, 2]`.
    """
    angles = numeric.cumsum((2.0 * genotypes - 1.0) * math.pi, axis=-1)
    end = numeric.stack([numeric.cos(angles).mean(axis=-1), numeric.sin(angles).mean(axis=-1)], axis=-1)
    return -genotypes.std(axis=-1), 0.5 * (end + 1.0)


def sphere(numeric: Any, genotypes: Any) -> tuple[Any, Any]:
    """The sphere of pyribs with its optimum at 40 % of the bound, linearly projected (Fontaine 2020, arXiv:1912.02400).

    Args:
      numeric: numpy or jax.numpy.
      genotypes: `[B, n]`, not bounded.

    Returns:
      Fitness `[B]`, at most 100, and 0 if every gene is at the farthest bound; and the sums over both halves of the
      genes `[B, 2]`, to which a gene x beyond the bound 5.12 contributes 5.12 / x.
    """
    half = genotypes.shape[-1] // 2
    worst = genotypes.shape[-1] * (SPHERE_BOUND + SPHERE_OPTIMUM) ** 2
    fitness = 100.0 * (1.0 - ((genotypes - SPHERE_OPTIMUM) ** 2).sum(axis=-1) / worst)
    beyond = numeric.abs(genotypes) > SPHERE_BOUND
    folded = numeric.where(beyond, SPHERE_BOUND / numeric.where(beyond, genotypes, 1.0), genotypes)
    return fitness, numeric.stack([folded[:, :half].sum(axis=-1), folded[:, half:].sum(axis=-1)], axis=-1)


def rastrigin(numeric: Any, genotypes: Any) -> tuple[Any, Any]:
    """The Rastrigin function with the optimum, the scale and the descriptor of `sphere`.

    Args:
      numeric: numpy or jax.numpy.
      genotypes: `[B, n]`, not bounded.

    Returns:
      As `sphere`.
    """
    distance = genotypes - SPHERE_OPTIMUM
    worst = genotypes.shape[-1] * _rastrigin_height(np, np.float64(SPHERE_BOUND + SPHERE_OPTIMUM))
    fitness = 100.0 * (1.0 - _rastrigin_height(numeric, distance).sum(axis=-1) / float(worst))
    return fitness, sphere(numeric, genotypes)[1]


def _rastrigin_height(numeric: Any, distance: Any) -> Any:
    return distance**2 + 10.0 * (1.0 - numeric.cos(2.0 * math.pi * distance))


def arm_problem(joints: int = 8) -> Problem:
    """The offset is -1/2, because the standard deviation of numbers in [0, 1] is at most 1/2."""
    return Problem("arm", joints, arm, (0.0, 1.0), (0.0, 1.0), -0.5, 0.01, 0.2)


def sphere_problem(size: int = 20) -> Problem:
    reach = 0.5 * size * SPHERE_BOUND
    return Problem("sphere", size, sphere, None, (-reach, reach), 0.0, 0.1, 0.2)


def rastrigin_problem(size: int = 20) -> Problem:
    return sphere_problem(size)._replace(name="rastrigin", score=rastrigin)


PROBLEMS = {"arm": arm_problem, "sphere": sphere_problem, "rastrigin": rastrigin_problem}


def defaults(problem: Problem) -> Settings:
    return Settings(problem.iso_sigma, problem.line_sigma)


def first_population(problem: Problem, settings: Settings, seed: int) -> np.ndarray:
    """Initial population of all contenders, `[B, n]`: uniform within the bounds, or normal around 0 without bounds."""
    generator = np.random.default_rng(seed)
    shape = settings.batch_size, problem.size
    if problem.bounds is None:
        return generator.normal(scale=settings.iso_sigma, size=shape).astype(np.float32)
    return generator.uniform(*problem.bounds, size=shape).astype(np.float32)


def scores(fitness: np.ndarray, offset: float) -> dict[str, float]:
    """Scores of a repertoire.

    Args:
      fitness: fitness of every cell `[C]`, -inf where it is empty.
      offset: the fitness that contributes 0 to the QD score.
    """
    occupied = np.isfinite(fitness)
    return {
        "coverage_percent": 100.0 * float(occupied.mean()),
        "qd_score": float((fitness[occupied].astype(np.float64) - offset).sum()),
        "max_fitness": float(fitness.max()),
    }


def run(contender: Contender, problem: Problem, seed: int) -> dict[str, float]:
    """Scores after the initial population and the contender's generations."""
    return scores(contender.fitness(contender.advance(contender.begin(seed))), problem.offset)


def timed(contender: Contender, seed: int = 0) -> harness.Loop:
    """A call for `harness.interleave` that runs the contender's generations, continuing from the previous call."""
    return harness.Loop(lambda state: (contender.advance(state), None), harness.Held(contender.begin(seed)))


def qdax(problem: Problem, settings: Settings, generations: int) -> Contender:
    """QDax's `MAPElites.scan_update` in one program; its mixing emitter only uses iso+line.

    Raises:
      SystemExit: QDax is not installed.
    """
    algorithm, centroids = qdax_algorithm(problem, settings)
    init = jax.jit(partial(_qdax_init, algorithm, centroids))

    def begin(seed: int) -> Any:
        return init(first_population(problem, settings, seed), jax.random.key(seed))

    program = harness.compile_program(partial(_qdax_scan, algorithm, generations), begin(0))
    return Contender(begin, program.call, lambda state: np.asarray(state[0].fitnesses).ravel(), program.seconds)


def qdax_algorithm(problem: Problem, settings: Settings) -> tuple[Any, Any]:
    """QDax's `MAPElites`, and the centroids of an even grid.

    Raises:
      SystemExit: QDax is not installed.
    """
    try:
        from qdax.core.containers.mapelites_repertoire import compute_euclidean_centroids
        from qdax.core.emitters.mutation_operators import isoline_variation
        from qdax.core.emitters.standard_emitters import MixingEmitter
        from qdax.core.map_elites import MAPElites
        from qdax.utils.metrics import default_qd_metrics
    except ImportError as error:
        raise SystemExit(f"{INSTALL} ({error})") from error
    low, high = problem.bounds or (None, None)
    sigmas = {"iso_sigma": settings.iso_sigma, "line_sigma": settings.line_sigma}
    vary: Any = partial(isoline_variation, **sigmas, minval=low, maxval=high)
    nothing: Any = None  # every child is made by the variation
    emitter = MixingEmitter(nothing, vary, variation_percentage=1.0, batch_size=settings.batch_size)
    metrics = partial(default_qd_metrics, qd_offset=-problem.offset)  # QDax adds its offset
    algorithm = MAPElites(partial(_qdax_score, problem), emitter, metrics)
    return algorithm, compute_euclidean_centroids((settings.side, settings.side), *problem.limits)


def _qdax_score(problem: Problem, genotypes: Any, key: Any) -> tuple[Any, Any, dict]:
    del key
    return *problem.score(jax.numpy, genotypes), {}


def _qdax_init(algorithm: Any, centroids: Any, genotypes: Any, key: Any) -> Any:
    init_key, key = jax.random.split(key)
    repertoire, emitter_state, _ = algorithm.init(genotypes, centroids, init_key)
    return repertoire, emitter_state, key


def _qdax_scan(algorithm: Any, generations: int, carry: Any) -> Any:
    return jax.lax.scan(algorithm.scan_update, carry, None, length=generations)[0]


def pyribs(problem: Problem, settings: Settings, generations: int) -> Contender:
    """Pyribs' `Scheduler` with a `GridArchive` and one `IsoLineEmitter`; numpy scores a whole batch at once.

    Raises:
      SystemExit: pyribs is not installed.
    """
    try:
        from ribs.archives import GridArchive
        from ribs.emitters import IsoLineEmitter
        from ribs.schedulers import Scheduler
    except ImportError as error:
        raise SystemExit(f"{INSTALL} ({error})") from error

    def begin(seed: int) -> Any:
        archive_seed, emitter_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
        archive = GridArchive(
            solution_dim=problem.size,
            dims=(settings.side, settings.side),
            ranges=[problem.limits, problem.limits],
            qd_score_offset=problem.offset,
            seed=archive_seed,
            dtype=np.float32,
        )
        emitter = IsoLineEmitter(
            archive,
            iso_sigma=settings.iso_sigma,
            line_sigma=settings.line_sigma,
            initial_solutions=first_population(problem, settings, seed),
            bounds=problem.bounds and [problem.bounds] * problem.size,
            batch_size=settings.batch_size,
            seed=emitter_seed,
        )
        return _pyribs_generations(problem, 1, Scheduler(archive, [emitter]))

    return Contender(begin, partial(_pyribs_generations, problem, generations), _pyribs_fitness)


def _pyribs_generations(problem: Problem, count: int, scheduler: Any) -> Any:
    for _ in range(count):
        scheduler.tell(*problem.score(np, scheduler.ask()))
    return scheduler


def _pyribs_fitness(scheduler: Any) -> np.ndarray:
    archive = scheduler.archive
    fitness = np.full(archive.cells, -np.inf)
    fitness[archive.data("index")] = archive.data("objective")
    return fitness


CONTENDERS = {"qdax": qdax, "pyribs": pyribs}


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--problem", choices=PROBLEMS, nargs="+", default=list(PROBLEMS))
    made.add_argument("--size", type=int, help="number of genes; by default 8 for the arm and 20 for the sphere")
    made.add_argument(
        "--generations", type=int, default=100, help="generations of a run and of a timed call (%(default)s)"
    )
    made.add_argument("--batch-size", type=int, default=1024, help="children per generation (%(default)s)")
    made.add_argument(
        "--iso-sigma", type=float, help="standard deviation of the noise on every gene; by default the problem's"
    )
    made.add_argument(
        "--line-sigma", type=float, help="standard deviation along the line between parents; by default the problem's"
    )
    made.add_argument("--seeds", type=int, default=1)
    options = harness.parse(made)
    if options.quick:
        options.generations = 10
    for name in options.problem:
        problem = PROBLEMS[name](options.size) if options.size else PROBLEMS[name]()
        settings = defaults(problem)._replace(batch_size=options.batch_size)
        chosen = {key: getattr(options, key) for key in ("iso_sigma", "line_sigma")}
        settings = settings._replace(**{key: value for key, value in chosen.items() if value is not None})
        harness.show(measure(problem, settings, options.generations, options.seeds, options.rounds))


def measure(problem: Problem, settings: Settings, generations: int, seeds: int, rounds: int) -> list[dict[str, Any]]:
    """One row per contender: mean scores over the seeds, and evaluations per second."""
    made = {name: make(problem, settings, generations) for name, make in CONTENDERS.items()}
    times = harness.interleave({name: timed(contender) for name, contender in made.items()}, rounds)
    rows = []
    for name, contender in made.items():
        runs = [run(contender, problem, seed) for seed in range(seeds)]
        means = {key: float(np.mean([scored[key] for scored in runs])) for key in runs[0]}
        speed = harness.rates(times[name], settings.batch_size * generations)
        row = {"problem": problem.name, "contender": name, "generations": generations, **means, **speed}
        rows.append(row | {"compile_s": contender.compile_seconds, "runs": runs})
    return rows


if __name__ == "__main__":
    main()
