"""Statistics of few runs of one task, with bootstrap confidence intervals.

Source: Agarwal 2021 (arXiv:2108.13264). Scores are `[..., runs]`, higher is better; leading axes are kept, so one call
handles a whole learning curve, or all resamples of a bootstrap. All scores must be finite: the caller decides the score
of a diverged run.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rookery import trees
from rookery.settings import check_counts

MOST_RESAMPLES = 1_000_000  # of a bootstrap: all are in memory together

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


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half of the runs; `[...]`, in units of the score.

    A quarter of the runs, rounded down, is discarded at either end; with fewer than four runs it is the mean of all.

    Source: Agarwal 2021, section 4.3.
    """
    cut = scores.shape[-1] // 4
    return np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(axis=-1)


def mean(scores: np.ndarray) -> np.ndarray:
    """Mean over runs; `[...]`, in units of the score."""
    return scores.mean(axis=-1)


def median_run(scores: np.ndarray) -> np.ndarray:
    """Median over runs; `[...]`, in units of the score."""
    return np.median(scores, axis=-1)


def optimality_gap(scores: np.ndarray, gamma: float = 1.0) -> np.ndarray:
    """Mean amount by which runs fall short of the target score `gamma`, clipped to at most `gamma`; `[...]`, >= 0.

    Source: Agarwal 2021, section 4.3.
    """
    return gamma - np.minimum(scores, gamma).mean(axis=-1)


def probability_of_improvement(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """P(X > Y) for a run X of `first` and a run Y of `second`; `[...]` in [0, 1].

    Ties count half. The probability does not depend on the size of an improvement.

    Source: Agarwal 2021, section 4.3: the Mann-Whitney U statistic over the number of pairs.
    """
    difference = first[..., :, None] - second[..., None, :]
    return (0.5 + 0.5 * np.sign(difference)).mean(axis=(-2, -1))


def estimate(
    statistic: Callable[..., np.ndarray],
    *samples: npt.ArrayLike,
    resamples: int = 5000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Estimate[np.ndarray]:
    """A statistic with its bootstrap percentile interval; runs are resampled independently in each sample.

    Args:
      statistic: a statistic of this module, with its options bound; takes as many scores as there are samples.
      samples: `[..., runs]`.
      resamples: number of resamples, at least 1.
      seed: seed of the resampling; the same seed gives the same interval.
      confidence: level of the interval, in (0, 1).

    Returns:
      The statistic of the given scores with its interval, which is NaN if a sample has a single run.

    Raises:
      ValueError: `resamples` is below 1 or above a million, `confidence` is out of its range, a sample has no run, or a
        score is masked or not finite.

    Source: Agarwal 2021, section 4.1.
    """
    check_counts(1, MOST_RESAMPLES, resamples=resamples)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}.")
    arrays = [trees.unmasked(sample, np.float64) for sample in samples]
    if not all(values.ndim and values.shape[-1] for values in arrays):
        raise ValueError("there is no run; give at least one score.")
    if not all(np.isfinite(values).all() for values in arrays):
        raise ValueError("a score is not finite; replace it by the score of diverged runs.")
    value = statistic(*arrays)
    if any(values.shape[-1] < 2 for values in arrays):
        missing = np.full_like(value, np.nan)[()]
        return Estimate(value, missing, missing)
    rng = np.random.default_rng(seed)
    drawn = [values[..., rng.integers(values.shape[-1], size=(resamples, values.shape[-1]))] for values in arrays]
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(statistic(*drawn), [tail, 1.0 - tail], axis=-1)
    return Estimate(value, low, high)


def over_runs(scores: npt.ArrayLike, floor: float | None = None, resamples: int = 5000) -> Estimate[np.ndarray]:
    """Interquartile mean over the runs of one configuration with its 95 % interval.

    Args:
      scores: `[..., runs]`.
      floor: replaces scores that are masked or not finite; by default the lowest finite score.
      resamples: number of bootstrap resamples, at least 1.

    Raises:
      ValueError: no score is finite and no floor is given, there is no run, or `resamples` is below 1.
    """
    scores = trees.unmasked(scores, np.float64)
    finite = np.isfinite(scores)
    if floor is None:
        if not finite.any():
            raise ValueError("no score is finite; give a floor, the score of diverged runs.")
        floor = float(scores[finite].min())
    return estimate(interquartile_mean, np.where(finite, scores, floor), resamples=resamples)
