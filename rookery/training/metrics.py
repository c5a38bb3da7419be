"""A generation in one row of `metrics.csv`: what the population did, and where the time went."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rookery.populations.base import Program


class Spent(NamedTuple):
    """Wall time in seconds; a run's rows add up to that of its training, but for what follows the last generation."""

    generation: float  # the compiled generation: train, judge and breed are one program, and are not told apart
    tables: float = 0.0  # after the generation before: tables, events, the progress, and what else is no checkpoint
    checkpoint: float = 0.0  # after the generation before: starting a save, and waiting for the one before that


def summarize(program: Program, generation: int, metrics: Mapping[str, np.ndarray], spent: Spent) -> dict[str, float]:
    """A generation's row of `metrics.csv`.

    Args:
      program: counts the environment steps.
      generation: counted from 0.
      metrics: `[]` or `[P]`, `fitness` among them.
      spent: on the generation, and after the one before; 0 there in the first row after a start.

    Returns:
      Best, median, worst and mean fitness over the finite members (NaN without any), how many members diverged and,
      where members have parents, how many came from elsewhere, how often the physics broke for anybody, the mean of
      every other metric over the finite members, times and speed. Of independent members these describe all of them
      together; what each is worth by itself stands in `lineage.csv`.
    """
    fitness = metrics["fitness"]
    is_finite = np.isfinite(fitness)
    finite = fitness[is_finite] if is_finite.any() else np.asarray([np.nan])
    row = {
        "env_steps": (generation + 1) * program.steps_per_generation,
        "best_fitness": finite.max(),
        "median_fitness": np.median(finite),
        "worst_fitness": finite.min(),
        "mean_fitness": finite.mean(),
        "diverged": np.sum(metrics.get("diverged", ~is_finite)),
    }
    if "parent" in metrics:
        row["replaced"] = np.sum(metrics["parent"] != np.arange(len(fitness)))
    for name, values in metrics.items():
        if name.startswith(_COUNTED):
            row[name] = np.sum(values)
        elif name not in ("fitness", "parent", "diverged") and not name.startswith("hyper/"):
            own = np.shape(values) == fitness.shape and is_finite.any()
            known = values[is_finite] if own else np.asarray(values)[np.isfinite(values)]
            row[name] = np.mean(known) if np.size(known) else np.nan
    row |= {"seconds": spent.generation, "steps_per_second": program.steps_per_generation / spent.generation}
    row |= {"seconds_tables": spent.tables, "seconds_checkpoint": spent.checkpoint}
    return {name: float(value) for name, value in row.items()}


_COUNTED = "broken_"  # counts of each member: of who diverged as well
