"""Statistics of few runs: aggregates over tasks, with bootstrap confidence intervals.

Source: Agarwal 2021 (arXiv:2108.13264). Scores are a mapping, task -> `[..., runs]`; tasks may have different numbers
of runs. Leading axes are kept, so one call handles a whole learning curve, or all resamples of a bootstrap. All scores
must be finite: the caller decides the score of a diverged run.
"""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Scores = Mapping[str, npt.ArrayLike]
"""Task -> scores `[..., runs]`, higher is better."""
ValueT = TypeVar("ValueT", float, np.ndarray)


class Estimate(NamedTuple, Generic[ValueT]):
    """A statistic and its interval; arrays of the scores' leading shape, or floats.

    `low` and `high` are NaN where no interval exists: the spread between runs is unknown for a single run.
    """

    value: ValueT
    low: ValueT
    high: ValueT

    def item(self) -> "Estimate[float]":
        """The estimate of a single statistic, `[]`, as floats."""
        return Estimate(float(self.value), float(self.low), float(self.high))

    @property
    def has_interval(self) -> bool:
        """Whether there were enough runs for an interval."""
        return bool(np.isfinite(self.low).all())


def interquartile_mean(scores: Scores) -> np.ndarray:
    """Mean of the middle half of all runs of all tasks; `[...]`, in units of the score.

    A quarter of the runs, rounded down, is discarded at either end; with fewer than four runs it is the mean of all.
    Where tasks have different numbers of runs, each run has the same weight.

    Raises:
      ValueError: no task, a task without runs, or a score that is not finite. All statistics of this module raise it.

    Source: Agarwal 2021, section 4.3.
    """
    pooled = np.sort(np.concatenate(list(_arrays(scores).values()), axis=-1), axis=-1)
    cut = pooled.shape[-1] // 4
    return pooled[..., cut : pooled.shape[-1] - cut].mean(axis=-1)


def mean(scores: Scores) -> np.ndarray:
    """Mean over tasks of the mean over runs; `[...]`, in units of the score."""
    return _task_means(_arrays(scores)).mean(axis=-1)


def median_run(scores: Scores) -> np.ndarray:
    """Median over all runs of all tasks; `[...]`, in units of the score."""
    return np.median(np.concatenate(list(_arrays(scores).values()), axis=-1), axis=-1)


def optimality_gap(scores: Scores, gamma: float = 1.0) -> np.ndarray:
    """Mean amount by which runs fall short of `gamma`, with scores clipped to at most `gamma`; `[...]`, >= 0.

    Args:
      scores: task -> `[..., runs]`.
      gamma: the target score, in units of the score.

    Source: Agarwal 2021, section 4.3.
    Deviation: with different numbers of runs, the mean over tasks of the mean over runs.
    """
    capped = {task: np.minimum(values, gamma) for task, values in _arrays(scores).items()}
    return gamma - _task_means(capped).mean(axis=-1)


def probability_of_improvement(first: Scores, second: Scores) -> np.ndarray:
    """P(X > Y) for a run X of `first` and a run Y of `second`, averaged over tasks; `[...]` in [0, 1].

    Both are runs on the same task, and ties count half. The probability does not depend on the size of an improvement.

    Raises:
      ValueError: as `interquartile_mean`, or the two are not scored on the same tasks.

    Source: Agarwal 2021, section 4.3: the Mann-Whitney U statistic over the number of pairs.
    """
    x, y = _arrays(first), _arrays(second)
    if set(x) != set(y):
        raise ValueError(
            f"scores on {', '.join(x)} and scores on {', '.join(y)} cannot be compared; score both on the same tasks."
        )
    wins = []
    for task in x:
        difference = x[task][..., :, None] - y[task][..., None, :]
        wins.append((0.5 + 0.5 * np.sign(difference)).mean(axis=(-2, -1)))
    return np.stack(wins, axis=-1).mean(axis=-1)


def estimate(
    statistic: Callable[..., np.ndarray],
    *samples: Scores,
    resamples: int = 5000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Estimate[np.ndarray]:
    """A statistic with its stratified bootstrap percentile interval.

    Runs are resampled with replacement within each task, and independently in each sample. Tasks are not resampled, so
    the interval covers other seeds on the same tasks.

    Args:
      statistic: a statistic of this module, with its options bound; takes as many scores as there are samples.
      samples: task -> `[..., runs]`.
      resamples: number of resamples, at least 1.
      seed: seed of the resampling; the same seed gives the same interval.
      confidence: level of the interval, in (0, 1).

    Returns:
      The statistic of the given scores with its interval, which is NaN if some task has a single run.

    Raises:
      ValueError: `resamples` is below 1, or the statistic raises it.

    Source: Agarwal 2021, section 4.1.
    """
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}.")
    arrays = [_arrays(sample) for sample in samples]
    value = statistic(*arrays)
    if any(values.shape[-1] < 2 for sample in arrays for values in sample.values()):
        missing = np.full_like(value, np.nan)[()]
        return Estimate(value, missing, missing)
    rng = np.random.default_rng(seed)
    drawn = [{task: _resample(rng, values, resamples) for task, values in sample.items()} for sample in arrays]
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(statistic(*drawn), [tail, 1.0 - tail], axis=-1)
    return Estimate(value, low, high)


def over_runs(scores: npt.ArrayLike, floor: float | None = None, resamples: int = 5000) -> Estimate[np.ndarray]:
    """Interquartile mean over the runs of one configuration with its 95 % interval.

    Args:
      scores: `[..., runs]`.
      floor: replaces scores that are not finite; by default the lowest finite score.
      resamples: number of bootstrap resamples, at least 1.

    Raises:
      ValueError: no score is finite and no floor is given, there is no run, or `resamples` is below 1.
    """
    scores = np.asarray(scores, np.float64)
    finite = np.isfinite(scores)
    if floor is None:
        if not finite.any():
            raise ValueError("no score is finite; give a floor, the score of diverged runs.")
        floor = float(scores[finite].min())
    return estimate(interquartile_mean, {"": np.where(finite, scores, floor)}, resamples=resamples)


def _resample(rng: np.random.Generator, values: np.ndarray, resamples: int) -> np.ndarray:
    """Resample runs with replacement: `[..., runs]` to `[..., resamples, runs]`."""
    runs = values.shape[-1]
    return values[..., rng.integers(runs, size=(resamples, runs))]


def _arrays(scores: Scores) -> dict[str, np.ndarray]:
    arrays = {task: np.asarray(values, dtype=np.float64) for task, values in scores.items()}
    if not arrays:
        raise ValueError("there are no scores; give those of at least one task.")
    for task, values in arrays.items():
        if values.ndim < 1 or not values.shape[-1]:
            raise ValueError(f"there is no run on {task}; give at least one score, or leave the task out.")
        if not np.isfinite(values).all():
            raise ValueError(f"a score on {task} is not finite; replace it by the score of diverged runs.")
    return arrays


def _task_means(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """`[..., tasks]`."""
    return np.stack([values.mean(axis=-1) for values in arrays.values()], axis=-1)
