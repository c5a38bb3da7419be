"""Repertoires of functions at equal evaluations: MAP-Elites, dominated novelty, CMA-ME and CMA-MAE.

    python -m benchmarks.learning.qd_functions [--quick] [--generations 100] [--seeds 5]

Batches of 540, 32 x 32 cells; iso+line with its default deviations, and 15 normal distributions of 36 samples.
Dominated novelty keeps as many individuals as there are cells; its scores are those of the survivors when each is
placed in the cell of its descriptor. Interquartile means over the seeds, with 95 % bootstrap intervals.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

import rookery
from benchmarks import harness
from benchmarks.map_elites import _scan
from rookery.qd import Archive, Emitter, Scoring, annealed, cma_mae, dominated_novelty, iso_line
from rookery.report import statistics
from rookery.types import Array

BATCH, SIDE = 540, 32
FUNCTIONS = {"arm": 8, "sphere": 20, "rastrigin": 20}
"""Name -> numbers of a genotype."""
METHODS: Mapping[str, Callable[[Scoring, Array], tuple[Array | Archive, Emitter]]] = {
    "MAP-Elites": lambda scoring, cells: (cells, iso_line(scoring, BATCH)),
    "dominated novelty": lambda scoring, cells: (dominated_novelty(cells), iso_line(scoring, BATCH)),
    "CMA-ME": lambda scoring, cells: (annealed(cells, 1.0), cma_mae(scoring, BATCH)),
    "CMA-MAE": lambda scoring, cells: (annealed(cells, 0.01), cma_mae(scoring, BATCH)),
}


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--generations", type=int, default=100, help="(%(default)s)")
    made.add_argument("--seeds", type=int, default=5, help="(%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.generations, options.seeds = 3, 2
    load = harness.load()
    rows = [line(name, method, options) for name in FUNCTIONS for method in METHODS]
    harness.report("qd_functions", options, rows, load)


def line(name: str, method: str, options: Any) -> dict[str, Any]:
    """The scores of a method on a function, over the seeds."""
    scoring = rookery.qd.named_scoring(rookery.envs.function(name, FUNCTIONS[name]))
    cells = rookery.qd.grid((SIDE, SIDE), scoring.descriptor.lower, scoring.descriptor.upper)
    program = rookery.map_elites(scoring, *METHODS[method](scoring, cells))
    scores = jax.jit(partial(train, program, options.generations))
    runs = [scores(jax.random.key(seed)) for seed in range(options.seeds)]
    row: dict[str, Any] = {"function": name, "method": method, "evaluations": BATCH * options.generations}
    for score in ("coverage", "qd_score"):
        values = [float(run[score]) for run in runs]
        middle = statistics.over_runs(values)
        row |= {score: float(middle.value), f"{score} low": float(middle.low), f"{score} high": float(middle.high)}
        row[f"{score} of seeds"] = values
    return row


def train(program: rookery.Program, generations: int, key: Array) -> Mapping[str, Array]:
    """The metrics of the last generation."""
    init_key, key = jax.random.split(key)
    state, key = _scan(program, generations - 1, (program.init(init_key), key))
    return program.step(state, jax.random.split(key)[1])[1]


if __name__ == "__main__":
    main()
