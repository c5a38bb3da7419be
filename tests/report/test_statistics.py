"""Statistics of few runs: known values, agreement with rliable, and intervals against all possible resamples."""

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from rliable import metrics as rliable

from rookery.report import statistics
from rookery.report.statistics import estimate

NAN = float("nan")


def gap_to(gamma: float, scores: np.ndarray) -> float:
    return float(rliable.aggregate_optimality_gap(scores, gamma))  # pyright: ignore[reportArgumentType]


def random_scores(seed: int, runs: int, ties: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, runs).astype(np.float64) if ties else rng.normal(0.5, 0.5, runs)


def test_known_values():
    iqm, improvement = statistics.interquartile_mean, statistics.probability_of_improvement
    assert iqm(np.array([100.0, 1.0, -50.0, 3.0])) == 2.0, "it discards a quarter at either end"
    assert iqm(np.array([0.0, 2.0, 4.0, 6.0, 88.0])) == 4.0, "rounded down"
    assert iqm(np.array([0.0, 1.0, 8.0])) == 3.0
    assert statistics.median_run(np.array([0.0, 1.0, 50.0])) == 1.0
    assert statistics.optimality_gap(np.array([0.5, 7.0])) == 0.25, "it clips scores above gamma"
    assert statistics.optimality_gap(np.array([0.5, 7.0]), gamma=8.0) == 4.25
    assert improvement(np.array([1.0, 2.0]), np.array([1.0, 3.0])) == 0.375, "a tie is half an improvement"
    curve = np.asarray([[0.0, 1.0, 2.0, 9.0], [4.0, 4.0, 6.0, 6.0]])  # leading axes are kept
    assert iqm(curve).tolist() == [1.5, 5.0]
    assert statistics.mean(curve).tolist() == [3.0, 5.0]
    assert improvement(curve, curve[:, :1]).tolist() == [0.875, 0.75]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("runs", [2, 3, 5, 10, 11])
class TestAgainstRliable:
    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (statistics.interquartile_mean, rliable.aggregate_iqm),
            (statistics.mean, rliable.aggregate_mean),
            (statistics.optimality_gap, rliable.aggregate_optimality_gap),
            (partial(statistics.optimality_gap, gamma=0.3), partial(gap_to, 0.3)),
        ],
    )
    def test_aggregates(self, ours, theirs, runs, ties):
        for seed in range(5):
            scores = random_scores(seed, runs, ties)
            np.testing.assert_allclose(ours(scores), theirs(scores[:, None]), rtol=1e-12, atol=1e-12)

    def test_probability_of_improvement(self, runs, ties):
        for seed in range(5):
            first, second = random_scores(seed, runs, ties), random_scores(seed + 100, runs + 2, ties)
            theirs = rliable.probability_of_improvement(first[:, None], second[:, None])
            ours = statistics.probability_of_improvement(first, second)
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def every_resample(scores: np.ndarray):
    """All equally likely draws of runs with replacement, `[runs, 1]` each."""
    for rows in itertools.product(range(len(scores)), repeat=len(scores)):
        yield scores[list(rows), None]


def assert_interval(values, result, confidence=0.95, slack=0.004):
    """The bounds are the percentiles of the exact distribution, to the noise of sampling it."""
    values, tail = np.asarray(values), (1.0 - confidence) / 2.0
    for bound, share in ((result.low, tail), (result.high, 1.0 - tail)):
        assert np.mean(values < bound - 1e-9) <= share + slack
        assert np.mean(values <= bound + 1e-9) >= share - slack


class TestIntervals:
    @pytest.mark.parametrize(
        ("ours", "theirs"),
        [
            (statistics.interquartile_mean, rliable.aggregate_iqm),
            (partial(statistics.optimality_gap, gamma=0.6), partial(gap_to, 0.6)),
        ],
    )
    def test_bounds_are_percentiles_of_all_resamples(self, ours, theirs):
        scores = random_scores(1, 4, ties=False)
        result = estimate(ours, scores, resamples=40_000)
        assert_interval([theirs(resample) for resample in every_resample(scores)], result)
        assert result.value == pytest.approx(theirs(scores[:, None]))

    def test_both_sides_of_an_improvement_are_resampled_independently(self):
        first, second = random_scores(2, 3, ties=False), random_scores(3, 3, ties=False)
        pairs = itertools.product(every_resample(first), every_resample(second))
        exact = [rliable.probability_of_improvement(x, y) for x, y in pairs]
        result = estimate(statistics.probability_of_improvement, first, second, resamples=40_000)
        assert 0.0 < result.value < 1.0
        assert_interval(exact, result)

    def test_the_confidence_is_an_argument(self):
        scores = random_scores(4, 4, ties=False)
        result = estimate(statistics.mean, scores, resamples=40_000, confidence=0.5)
        assert_interval([rliable.aggregate_mean(resample) for resample in every_resample(scores)], result, 0.5)

    def test_the_interval_depends_on_the_seed_only(self):
        scores = random_scores(5, 8, ties=False)
        first, again, other = (estimate(statistics.mean, scores, resamples=200, seed=seed) for seed in (0, 0, 1))
        assert first == again
        assert first != other

    def test_a_curve_is_estimated_point_by_point(self):
        curve = np.stack([random_scores(seed, 5, ties=False) for seed in range(6, 12)])
        result = estimate(statistics.interquartile_mean, curve)
        points = [estimate(statistics.interquartile_mean, point) for point in curve]
        np.testing.assert_allclose(np.stack(result), np.asarray(points).T)

    def test_one_run_has_no_interval_and_equal_runs_one_of_width_zero(self):
        result = estimate(statistics.mean, [3.0])
        assert (result.value, result.has_interval) == (3.0, False)
        assert np.isnan([result.low, result.high]).all()
        result = estimate(statistics.probability_of_improvement, [1.0, 3.0], [2.0])
        assert (result.value, result.has_interval) == (0.5, False)
        assert estimate(statistics.interquartile_mean, [2.0, 2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_errors():
    for scores, message in (
        ([], "there is no run"),
        ([1.0, NAN], "a score is not finite"),
        (np.ma.masked_array([1.0, 2.0], [False, True]), "a score is not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            estimate(statistics.interquartile_mean, scores)
    given: Any
    for given, message in ((0, r"lie in \[1, 1000000\], got 0"), ("x", "be a whole number, got 'x'")):
        with pytest.raises(ValueError, match=rf"^resamples must {message}\.$"):
            estimate(statistics.mean, [1.0, 2.0], resamples=given)
    with pytest.raises(ValueError, match=r"^confidence must be in \(0, 1\), got 95\.$"):
        estimate(statistics.mean, [1.0, 2.0], confidence=95)
    masked = np.ma.masked_array([1.0, 1.0, 99.0], [False, False, True])
    assert statistics.over_runs(masked) == (1.0, 1.0, 1.0)
