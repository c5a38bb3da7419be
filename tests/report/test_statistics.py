"""Statistics of few runs: known values, agreement with rliable, and intervals against all possible resamples."""

import itertools
from functools import partial

import numpy as np
import pytest
from rliable import metrics as rliable

from rookery.report import statistics
from rookery.report.statistics import estimate

NAN = float("nan")


def gap_to(gamma: float, scores: np.ndarray) -> float:
    return float(rliable.aggregate_optimality_gap(scores, gamma))  # pyright: ignore[reportArgumentType]


def random_scores(seed: int, runs: int, tasks: int, ties: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = (runs, tasks)
    return rng.integers(0, 4, shape).astype(np.float64) if ties else rng.normal(0.5, 0.5, shape)


def by_task(scores: np.ndarray) -> dict[str, np.ndarray]:
    return {f"task {index}": scores[:, index] for index in range(scores.shape[1])}


def test_known_values():
    iqm, improvement = statistics.interquartile_mean, statistics.probability_of_improvement
    assert iqm({"a": [100.0, 1.0, -50.0, 3.0]}) == 2.0, "it discards a quarter at either end"
    assert iqm({"a": [0.0, 2.0, 4.0, 6.0, 88.0]}) == 4.0, "rounded down"
    assert iqm({"a": [0.0, 1.0, 8.0]}) == 3.0
    assert iqm({"a": [0.0, 1.0, 9.0], "b": [3.0]}) == 2.0, "it pools the runs of all tasks"
    assert statistics.mean({"a": [0.0, 2.0], "b": [5.0], "c": [9.0, 9.0, 12.0]}) == pytest.approx(16.0 / 3.0)
    assert statistics.median_run({"a": [0.0, 1.0, 50.0]}) == 1.0
    assert statistics.optimality_gap({"a": [0.5, 7.0]}) == 0.25, "it clips scores above gamma"
    assert statistics.optimality_gap({"a": [0.5, 7.0]}, gamma=8.0) == 4.25
    assert improvement({"a": [1.0, 2.0]}, {"a": [1.0, 3.0]}) == 0.375, "a tie is half an improvement"
    assert improvement({"a": [1.0, 2.0, 3.0], "b": [0.0]}, {"b": [1.0, 2.0], "a": [0.0]}) == 0.5, "the mean over tasks"
    curve = np.asarray([[0.0, 1.0, 2.0, 9.0], [4.0, 4.0, 6.0, 6.0]])  # leading axes are kept
    assert iqm({"a": curve}).tolist() == [1.5, 5.0]
    assert statistics.mean({"a": curve, "b": curve + 2.0}).tolist() == [4.0, 6.0]
    assert improvement({"a": curve}, {"a": curve[:, :1]}).tolist() == [0.875, 0.75]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("runs", "tasks"), [(2, 1), (3, 2), (5, 3), (10, 4), (11, 7)])
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
    def test_aggregates(self, ours, theirs, runs, tasks, ties):
        for seed in range(5):
            scores = random_scores(seed, runs, tasks, ties)
            np.testing.assert_allclose(ours(by_task(scores)), theirs(scores), rtol=1e-12, atol=1e-12)

    def test_probability_of_improvement(self, runs, tasks, ties):
        for seed in range(5):
            first, second = random_scores(seed, runs, tasks, ties), random_scores(seed + 100, runs + 2, tasks, ties)
            ours = statistics.probability_of_improvement(by_task(first), by_task(second))
            np.testing.assert_allclose(ours, rliable.probability_of_improvement(first, second), rtol=1e-12, atol=1e-12)

    def test_a_sample_compared_with_itself_gives_one_half(self, runs, tasks, ties):
        scores = random_scores(0, runs, tasks, ties)
        assert statistics.probability_of_improvement(by_task(scores), by_task(scores)) == 0.5
        assert rliable.probability_of_improvement(scores, scores) == 0.5


def every_resample(scores: np.ndarray):
    """All equally likely draws of runs with replacement, separately for each task: `[runs, tasks]` each."""
    runs, tasks = scores.shape
    draws = list(itertools.product(range(runs), repeat=runs))
    for choice in itertools.product(draws, repeat=tasks):
        yield np.stack([scores[list(rows), task] for task, rows in enumerate(choice)], axis=1)


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
    @pytest.mark.parametrize(("runs", "tasks"), [(4, 1), (3, 2)])
    def test_bounds_are_percentiles_of_all_stratified_resamples(self, ours, theirs, runs, tasks):
        scores = random_scores(1, runs, tasks, ties=False) + 10.0 * np.arange(tasks)
        result = estimate(ours, by_task(scores), resamples=40_000)
        assert_interval([theirs(resample) for resample in every_resample(scores)], result)
        assert result.value == pytest.approx(theirs(scores))

    def test_both_sides_of_an_improvement_are_resampled_independently(self):
        first, second = random_scores(2, 3, 1, ties=False), random_scores(3, 3, 1, ties=False)
        pairs = itertools.product(every_resample(first), every_resample(second))
        exact = [rliable.probability_of_improvement(x, y) for x, y in pairs]
        result = estimate(statistics.probability_of_improvement, by_task(first), by_task(second), resamples=40_000)
        assert 0.0 < result.value < 1.0
        assert_interval(exact, result)

    def test_the_confidence_is_an_argument(self):
        scores = random_scores(4, 4, 1, ties=False)
        result = estimate(statistics.mean, by_task(scores), resamples=40_000, confidence=0.5)
        assert_interval([rliable.aggregate_mean(resample) for resample in every_resample(scores)], result, 0.5)

    def test_the_interval_depends_on_the_seed_only(self):
        scores = by_task(random_scores(5, 8, 2, ties=False))
        first, again, other = (estimate(statistics.mean, scores, resamples=200, seed=seed) for seed in (0, 0, 1))
        assert first == again
        assert first != other

    def test_a_curve_is_estimated_point_by_point(self):
        curve = random_scores(6, 5, 6, ties=False).T
        result = estimate(statistics.interquartile_mean, {"a": curve})
        points = [estimate(statistics.interquartile_mean, {"a": point}) for point in curve]
        np.testing.assert_allclose(np.stack(result), np.asarray(points).T)

    def test_one_run_has_no_interval_and_equal_runs_one_of_width_zero(self):
        result = estimate(statistics.mean, {"a": [3.0], "b": [4.0, 6.0]})
        assert (result.value, result.has_interval) == (4.0, False)
        assert np.isnan([result.low, result.high]).all()
        result = estimate(statistics.probability_of_improvement, {"a": [1.0, 3.0]}, {"a": [2.0]})
        assert (result.value, result.has_interval) == (0.5, False)
        assert estimate(statistics.interquartile_mean, {"a": [2.0, 2.0, 2.0]}) == (2.0, 2.0, 2.0)


def test_errors():
    for scores, message in (
        ({}, "there are no scores"),
        ({"hopper": []}, "there is no run on hopper"),
        ({"hopper": 1.0}, "there is no run on hopper"),
        ({"hopper": [1.0, NAN]}, "a score on hopper is not finite"),
        ({"hopper": [1.0, -np.inf]}, "a score on hopper is not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            statistics.interquartile_mean(scores)
    with pytest.raises(ValueError, match="scores on a and scores on b cannot be compared"):
        statistics.probability_of_improvement({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(ValueError, match="resamples must be at least 1, got 0"):
        estimate(statistics.mean, {"a": [1.0, 2.0]}, resamples=0)
