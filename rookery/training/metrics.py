"""Summarises a generation in one row of `metrics.csv`: statistics of the population, and wall times."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from rookery.populations.base import Program
from rookery.populations.stages import staged_step
from rookery.settings import BEST, MEASURE, RETURN


class WallTimes(NamedTuple):
    """Wall times in seconds; their sum over a run is its training time, except for work after the last generation.

    The time of the user's callbacks is in none of them.
    """

    generation: float
    """The generation itself."""
    tables: float = 0.0
    """Work after the previous generation apart from checkpoints: tables, event files, progress display."""
    checkpoint: float = 0.0
    """Checkpoint after the previous generation: starting it, and waiting for the one before it."""
    evaluation: float = 0.0
    """The part of the generation after the training: evaluation and selection."""


def summarize(
    program: Program, generation: int, metrics: Mapping[str, np.ndarray], times: WallTimes
) -> dict[str, float]:
    """A generation's row of `metrics.csv`.

    Args:
      program: the program, for its environment steps per generation.
      generation: counted from 0.
      metrics: of the generation, each `[]` or `[P]`, including `fitness`.
      times: wall times; those after the previous generation are 0 in the first row after a start or a resume.

    Returns:
      Environment steps; best, median, worst and mean fitness over the finite members (NaN without any); the number of
      diverged members and, if members have parents, of replaced ones; `best_rating`, if members are rated; the sums
      of `train_episodes` and of each `broken_*` count over all members; the mean of every other metric over the finite
      members, without its numbers that are not finite; `best/return` and `best/measure/...`, those of the member with
      the highest fitness (NaN if no member is finite); wall times and speed. For independent members these are
      statistics over all of them; the fitness of each is in `lineage.csv`.
    """
    fitness = metrics["fitness"]
    is_finite = np.isfinite(fitness)
    finite = fitness[is_finite] if is_finite.any() else np.asarray([np.nan])
    row = {
        "env_steps": (generation + 1) * program.steps_per_generation,
        "best_fitness": finite.max(),
        "median_fitness": _without_overflow(np.median, finite),
        "worst_fitness": finite.min(),
        "mean_fitness": _without_overflow(np.mean, finite),
        "diverged": np.sum(metrics.get("diverged", ~is_finite)),
    }
    if "parent" in metrics:
        row["replaced"] = np.sum(metrics["parent"] != np.arange(len(fitness)))
    for name, values in metrics.items():
        if name.startswith(_COUNTED) or name == "train_episodes":
            row[name] = np.sum(values)
        elif name in _RELATIVE:
            row[f"best_{name}"] = np.max(values[np.isfinite(values)], initial=-np.inf)
        elif name not in ("fitness", "parent", "diverged") and not name.startswith("hyper/"):
            row[name] = mean_over_members(values, fitness)
            if np.shape(values) == fitness.shape and (name == RETURN or name.startswith(MEASURE)):
                best = np.argmax(np.where(is_finite, fitness, -np.inf))
                row[BEST + name] = values[best] if is_finite[best] else np.nan
    row |= {"seconds": times.generation, "steps_per_second": program.steps_per_generation / times.generation}
    row |= {"seconds_tables": times.tables, "seconds_checkpoint": times.checkpoint}
    if staged_step(program.step).iterations:  # otherwise a generation is nothing but an evaluation
        row[EVALUATION] = times.evaluation
    return {name: float(value) for name, value in row.items()}


def mean_over_members(values: np.ndarray, fitness: np.ndarray) -> float:
    """The mean of the finite numbers of a metric `[P]` of the members with a finite fitness, of those of all members if
    there is none, or of a metric of another shape; NaN without any. A metric `[]` is the mean of itself."""
    values, counts = np.asarray(values), np.isfinite(fitness)
    if values.shape == ():
        return float(values)
    if values.shape != fitness.shape or not counts.any():
        counts = np.ones(values.shape, bool)
    included = values[counts & np.isfinite(values)]
    return _without_overflow(np.mean, included) if np.size(included) else np.nan


def _without_overflow(statistic: Callable[[np.ndarray], np.floating], values: np.ndarray) -> float:
    """A statistic of float32 numbers; in float64 where their sum overflows."""
    with np.errstate(over="ignore"):
        found = float(statistic(values))
    return found if math.isfinite(found) else float(statistic(values.astype(np.float64)))


EVALUATION = "seconds_evaluation"
"""Column with the part of `seconds` after the training of members."""
_COUNTED = "broken_"
"""Prefix of the metrics that are counts per member; they are summed over all members, diverged ones included."""
_RELATIVE = ("rating", "smoothed_rating")
"""Metrics of members relative to their population, whose mean is always 0."""
