"""Importance of hyper-parameters: rank correlation of each with the fitness in random search.

    python -m benchmarks.learning.matters --runs runs/learning

Reads the runs of `benchmarks.learning.population`. A member's fitness is its mean over the last 5 generations, minus
the median of its run's members. P-values are not corrected for multiple tests: of 20 hyper-parameters without effect,
one is expected below 0.05.
"""

from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks import harness
from benchmarks.learning.population import BUDGETS
from rookery.storage.lineage import lineage

LAST = 5


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--runs", default="runs/learning")
    options = harness.parse(made)
    rows = [row for agent in ("sac", "td3") for env in BUDGETS for row in correlations(Path(options.runs), agent, env)]
    harness.report("learning_matters", options, rows, harness.load())


def correlations(runs: Path, agent: str, env: str) -> list[dict[str, Any]]:
    """One row per sampled hyper-parameter."""
    families = [lineage(path) for path in sorted(runs.glob(f"random-search-{agent}-{env}-*"))]
    if not families:
        return []
    means = [family.fitness[-LAST:].mean(axis=0) for family in families]
    fitness = np.concatenate([mean - np.median(mean) for mean in means])
    rows = []
    for name in families[0].hyper:
        values = np.concatenate([family.hyper[name][-1] for family in families])
        if len(np.unique(values)) > 1:
            rank, chance = spearmanr(values, fitness)
            row = {"agent": agent, "env": env, "hyper_parameter": name, "members": len(values)}
            rows.append(row | {"correlation": float(rank), "p": float(chance)})
    return rows


if __name__ == "__main__":
    main()
