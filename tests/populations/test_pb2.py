"""PB2's bandit: its Gaussian process against an independent one in float64, and the properties of its proposals."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams, trees
from rookery.cli import planning
from rookery.hyperparams import Choice, Field, LogUniform, OneMinusLog, Uniform, Whole
from rookery.populations import pb2
from rookery.populations.pb2 import Data, Points, Process
from tests.commandline import POINT, printed

NAN, INF, SIZE = jnp.nan, jnp.inf, 8


class Rates(NamedTuple):
    rate: Any = 1e-2
    fixed: Any = 5.0
    discount: Any = 0.99


LINE = hyperparams.space(Rates(), {"rate": LogUniform(1e-4, 1.0)})
PLANE = hyperparams.space(Rates(), {"rate": Uniform(-1.0, 3.0), "discount": OneMinusLog(0.9, 0.999)})
FIXED = hyperparams.space(Rates(), {})


def proposer(space):
    return jax.jit(lambda history, *rest: pb2.propose(history, space, *rest))


propose_line, propose_plane = proposer(LINE), proposer(PLANE)
record_line = jax.jit(lambda history, *rest: pb2.record(history, LINE, *rest))


def line(fractions):
    """A population with one hyper-parameter, given the positions of its rates in the unit interval."""
    rate = LINE.domains["rate"].at(jnp.asarray(fractions, jnp.float32))
    return Rates(rate, jnp.full(rate.shape, 5.0), jnp.full(rate.shape, 0.99))


def fractions_of(hyper):
    return np.asarray(pb2.coordinates(LINE, hyper)[:, 0])


def row(*values):
    return jnp.asarray(values, jnp.float32)


def history_of(points, gain, space=LINE, **columns):
    """A history of 64 rows, of which the first are given (and valid, unless said) and the others are empty."""
    count, blank = len(gain), pb2.empty(space, SIZE, rows=64)
    given = {"point": np.reshape(points, (count, -1)), "gain": gain, "valid": np.full(count, True), **columns}
    fill = {name: jnp.asarray(values, getattr(blank, name).dtype) for name, values in given.items()}
    return blank._replace(**{name: getattr(blank, name).at[:count].set(values) for name, values in fill.items()})


def points_of(time, place, present=None):
    place = jnp.asarray(place, jnp.float32)
    present = jnp.ones(len(place), bool) if present is None else jnp.asarray(present)
    return Points(jnp.asarray(time, jnp.float32), place, present)


def covariance(points, variance=1.0, length_scale=1.0, epsilon=0.0):
    kernel: Any = pb2.time_varying()(*row(variance, length_scale, epsilon))
    return kernel(points, points)


@jax.jit
def predict(process, data, points):
    """Mean and variance `[N]` at `points`."""
    return tuple(jax.vmap(function)(points) for function in pb2.posterior(process, data))


fit = jax.jit(pb2.fit)


class Reference:
    """A Gaussian process by the textbook (Rasmussen 2006, Eqs. 2.25, 2.26 and 2.30), in float64."""

    def __init__(self, process, time, place, gain):
        self.process = [float(value) for value in process]
        self.time, self.place, self.gain = (np.asarray(values, np.float64) for values in (time, place, gain))
        self.covariance = self.kernel(self.time, self.place) + self.process[3] * np.eye(len(self.time))

    def kernel(self, time, place):
        variance, length_scale, epsilon, _ = self.process
        distance = ((self.place[:, None, :] - np.asarray(place, np.float64)[None, :, :]) ** 2).sum(axis=2)
        gap = np.abs(self.time[:, None] - np.asarray(time, np.float64)[None, :])
        return variance * np.exp(-distance / (2 * length_scale**2)) * (1 - epsilon) ** (gap / 2)

    def predict(self, time, place):
        cross = self.kernel(time, place)
        solved = np.linalg.solve(self.covariance, cross)
        return solved.T @ self.gain, self.process[0] - (cross * solved).sum(axis=0)

    def log_likelihood(self):
        _, log_determinant = np.linalg.slogdet(self.covariance)
        fit = self.gain @ np.linalg.solve(self.covariance, self.gain)
        return -0.5 * (fit + log_determinant + len(self.gain) * np.log(2 * np.pi))


def small_data(seed=0, count=12, dimensions=3):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 5, count), rng.random((count, dimensions)), rng.standard_normal(count)


PROCESS = Process(*row(1.7, 0.4, 0.2, 0.05))
LEAST_NOISE = pb2.RANGES.noise.low


class TestKernel:
    def test_value_by_hand(self):
        # |x - x'|^2 = 0.09 + 0.16 = 0.25 and l = 0.5: exp(-0.5); two generations apart: 1 - 0.19 = 0.81.
        points = points_of([3.0, 5.0], [[0.1, 0.2], [0.4, 0.6]])
        expected = 2.0 * np.array([[1.0, 0.81 * 0.60653066], [0.81 * 0.60653066, 1.0]])
        np.testing.assert_allclose(covariance(points, 2.0, 0.5, 0.19), expected, rtol=1e-6)
        points = points_of([0.0, 0.0], [[0.5], [0.5]], present=[True, False])
        np.testing.assert_array_equal(covariance(points, 2.0), [[2.0, 0.0], [0.0, 0.0]])


class TestPosterior:
    def test_mean_variance_and_likelihood_agree_with_the_textbook(self):
        time, place, gain = small_data()
        reference = Reference(PROCESS, time, place, gain)
        later, elsewhere, _ = small_data(seed=1, count=20)
        expected_mean, expected_variance = reference.predict(later, elsewhere)
        known = Data(points_of(time, place), row(*gain))
        mean, variance = predict(PROCESS, known, points_of(later, elsewhere))
        np.testing.assert_allclose(mean, expected_mean, atol=1e-4)
        np.testing.assert_allclose(variance, expected_variance, atol=1e-4)
        found = pb2.gaussian_process(PROCESS, known.points).log_probability(known.gain)
        np.testing.assert_allclose(found, reference.log_likelihood(), rtol=1e-5)

    def test_rows_that_are_not_present_have_no_influence(self):
        time, place, gain = small_data()
        alone = Data(points_of(time, place), row(*gain))
        more = np.concatenate([place, place + 0.01])
        present = np.arange(24) < 12
        padded = Data(points_of(np.tile(time, 2), more, present), row(*gain, *np.zeros(12)))
        asked = points_of([2.0, 4.0], [[0.2, 0.5, 0.7], [0.9, 0.1, 0.4]])
        for one, other in zip(predict(PROCESS, alone, asked), predict(PROCESS, padded, asked), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
        for one, other in zip(fit(alone), fit(padded), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3)

    @pytest.mark.parametrize("spread", [0.0, 1e-4])
    def test_repeated_points_keep_the_factor_finite(self, spread):
        place = 0.5 + spread * np.random.default_rng(0).random((512, 2))
        # Signs alternate: a sum of 256 equal terms before the others would be off by its own rounding.
        data = Data(points_of(np.zeros(512), place), jnp.where(jnp.arange(512) % 2 == 0, 1.0, -1.0))
        # Rounding in the solution of equations with the condition number 512 x variance / noise.
        atol = np.finfo(np.float32).eps * 512 * pb2.RANGES.variance.high / LEAST_NOISE
        for epsilon in (0.0, 0.5):
            process = Process(pb2.RANGES.variance.high, pb2.RANGES.length_scale.high, epsilon, LEAST_NOISE)
            mean, variance = predict(Process(*row(*process)), data, points_of([0.0], [[0.5, 0.5]]))
            np.testing.assert_allclose(mean, 0.0, atol=atol)
            np.testing.assert_allclose(variance, 0.0, atol=atol)


class TestFit:
    def test_it_is_likelier_than_every_start_and_than_the_truth(self):
        truth = Process(1.0, 0.3, 0.1, 0.05)
        rng = np.random.default_rng(0)
        time, place = np.repeat(np.arange(6), 10), rng.random((60, 2))
        factor = np.linalg.cholesky(Reference(truth, time, place, np.zeros(60)).covariance)
        gain = factor @ rng.standard_normal(60)
        fitted = fit(Data(points_of(time, place), row(*gain)))
        found = Reference(fitted, time, place, gain).log_likelihood()
        for start in pb2.STARTS:
            process = [domain.at(jnp.float32(at)) for domain, at in zip(pb2.RANGES, start, strict=True)]
            assert found > Reference(process, time, place, gain).log_likelihood()
        assert found > Reference(truth, time, place, gain).log_likelihood()
        assert 0.15 < fitted.length_scale < 0.6

    def test_it_detects_a_changing_optimum(self):
        time = np.repeat(np.arange(8), 6)
        place = np.tile(np.linspace(0.0, 1.0, 6), 8)[:, None]
        still = np.sin(5 * place[:, 0])
        turning = still * np.where(time % 4 < 2, 1.0, -1.0)
        epsilon = [fit(Data(points_of(time, place), row(*gain))).epsilon for gain in (still, turning)]
        assert epsilon[0] < 0.02
        assert epsilon[1] > 0.2

    def test_it_stays_in_its_ranges(self):
        time, place, gain = small_data()
        for values in (gain, np.zeros(12), np.where(np.arange(12) == 3, 2.0, -0.2)):
            fitted = fit(Data(points_of(time, place), row(*values)))
            for value, domain in zip(fitted, pb2.RANGES, strict=True):
                assert domain.low * 0.9999 <= value <= domain.high * 1.0001


class TestRecord:
    def test_the_oldest_generation_is_overwritten(self):
        history = pb2.empty(LINE, 2, rows=4)
        for generation in range(3):
            hyper = line([0.1 * generation, 0.1 * generation + 0.5])
            before = row(generation, 10.0 * generation)
            history = pb2.record(history, LINE, jnp.int32(generation), hyper, before, before + generation + 1)
        np.testing.assert_array_equal(history.time, [2, 2, 1, 1])
        np.testing.assert_array_equal(history.before, [2, 20, 1, 10])
        np.testing.assert_array_equal(history.gain, [3, 3, 2, 2])
        np.testing.assert_allclose(history.point[:, 0], [0.2, 0.7, 0.1, 0.6], atol=1e-6)
        assert history.valid.all()

    def test_failures_are_recorded_and_rows_without_an_initial_fitness_are_not_valid(self):
        history = pb2.empty(LINE, 5, rows=5)
        before, after = row(1.0, NAN, 2.0, INF, 3e38), row(4.0, 1.0, NAN, INF, -3e38)
        history = pb2.record(history, LINE, jnp.int32(2), line([0.3] * 5), row(*[0] * 5), row(*[1] * 5))
        history = pb2.record(history, LINE, jnp.int32(3), line([0.5] * 5), before, after)  # in place of the old rows
        assert history.valid.tolist() == [True, False, True, False, False]
        np.testing.assert_array_equal(history.time, [3, 0, 3, 0, 0])
        np.testing.assert_array_equal(history.before, [1, 0, 2, 0, 0])
        np.testing.assert_array_equal(history.gain, [3, 0, NAN, 0, 0])
        np.testing.assert_allclose(history.point[:, 0], [0.5, 0, 0.5, 0, 0], atol=1e-6)

    def test_it_holds_whole_generations(self):
        for size, rows in ((1, 256), (3, 258), (64, 256), (300, 300)):
            history = pb2.empty(PLANE, size)
            assert history.point.shape == (rows, 2)
            assert history.time.shape == history.before.shape == history.gain.shape == history.valid.shape == (rows,)
            assert not history.valid.any()


class TestObservations:
    def test_gains_are_standardised_and_clipped(self):
        data = pb2.observations(history_of(np.full(10, 0.5), [0.0] * 9 + [10.0]))  # mean 1, deviation 3
        np.testing.assert_allclose(data.gain[:10], [-1 / 3] * 9 + [2.0], rtol=1e-5)
        np.testing.assert_array_equal(data.gain[10:], 0.0)

    def test_a_constant_gain_becomes_zero(self):
        for gain in (0.0, 0.1, -7e5, 1e37):
            data = pb2.observations(history_of(np.full(7, 0.5), np.full(7, gain)))
            np.testing.assert_allclose(data.gain, 0.0, atol=0.2)

    def test_a_failure_is_imputed_with_the_lowest_gain(self):
        data = pb2.observations(history_of(np.full(6, 0.5), [1.0, 2.0, NAN, 3.0, NAN, 9.0], valid=[True] * 5 + [False]))
        np.testing.assert_allclose(
            data.gain[:6], np.sqrt(1.5) * np.asarray([-1, 0, -1, 1, -1, 0]), rtol=1e-5, atol=1e-6
        )
        assert data.points.present[:6].tolist() == [True] * 5 + [False]
        nothing_known = pb2.observations(history_of([0.2, 0.8], [NAN, NAN]))
        np.testing.assert_array_equal(nothing_known.gain, 0.0)

    def test_the_context_is_a_fraction_of_the_recorded_range(self):
        history = history_of(np.full(3, 0.5), [0, 1, 2], before=[10, 20, 30])
        np.testing.assert_allclose(pb2.observations(history).points.place[:3, 0], [0.0, 0.5, 1.0])
        np.testing.assert_allclose(pb2.context(history, row(12, 50, -3, NAN)), [0.1, 1.0, 0.0, 0.0], rtol=1e-6)
        single = history_of([0.5], [1.0], before=[4.0])
        np.testing.assert_array_equal(pb2.context(single, row(4.0, 3.0)), [0.0, 0.0])


def test_optimism_by_hand():
    found = [float(pb2.optimism(jnp.int32(count))) for count in (0, 1, 2, 3, 250)]
    np.testing.assert_allclose(found, [0.0, 0.0, 0.0, 0.19096, 0.95972], rtol=1e-4)  # sqrt(0.2 log(0.4 n))


def propose_generations(gain_of, generations, children=3):
    """Propose for every child of a generation, for several generations; all proposals `[G, children]`."""
    key = jax.random.key(0)
    hyper, history = line(jax.random.uniform(key, (SIZE,))), pb2.empty(LINE, SIZE, rows=64)
    fitness, proposals = jnp.zeros(SIZE), []
    for generation in range(generations):
        after = fitness + jnp.asarray([gain_of(x, generation) for x in fractions_of(hyper)], jnp.float32)
        history = record_line(history, jnp.int32(generation), hyper, fitness, after)
        is_child = (jnp.arange(SIZE) - children * generation) % SIZE < children
        rest = (jnp.int32(generation + 1), hyper, after, is_child, jax.random.fold_in(key, generation))
        fitness, hyper = after, propose_line(history, *rest)
        proposals.append(fractions_of(hyper)[is_child])
    return np.stack(proposals)


class TestSearch:
    def test_it_finds_the_optimum(self):
        proposals = propose_generations(lambda x, _: -((x - 0.7) ** 2), 8)
        assert np.abs(proposals[4:] - 0.7).mean() < 0.1  # a uniform draw is 0.29 away
        assert np.abs(np.median(proposals[4:]) - 0.7) < 0.05

    def test_it_follows_an_optimum_that_moves(self):
        proposals = propose_generations(lambda x, time: -((x - 0.1 - 0.05 * time) ** 2), 16)
        last = np.arange(10, 16)[:, None]  # proposals for the generation after
        assert np.abs(proposals[10:] - 0.1 - 0.05 * (last + 1)).mean() < 0.15  # the initial optimum is 0.67 away

    def test_the_fitness_that_a_child_starts_from_decides(self):
        rng = np.random.default_rng(0)
        before, place = np.tile([0.0, 100.0], 16), rng.random(32)
        gain = -((place - np.where(before > 50, 0.8, 0.2)) ** 2)
        history = history_of(place, gain, before=before)
        is_child = jnp.arange(SIZE) < 4
        now = row(0, 100, 0, 100, 0, 0, 0, 0)
        hyper = propose_line(history, jnp.int32(1), line([0.5] * SIZE), now, is_child, jax.random.key(0))
        np.testing.assert_allclose(fractions_of(hyper)[:4], [0.2, 0.8, 0.2, 0.8], atol=0.12)


def test_proposals_of_many_members_differ_where_there_is_no_room(monkeypatch):
    """One hyper-parameter, more members than points that are apart, and more children than searches."""
    size, children = 40, 39
    bounded = {"MOST_PENDING": 8, "MOST_STEPS": 3, "MOST_ROWS": 16, "MIN_DISTANCE": 0.04, "FIT_STEPS": 2}
    for name, value in {**bounded, "CANDIDATES": 64}.items():
        monkeypatch.setattr(pb2, name, value)
    hyper = line(jax.random.uniform(jax.random.key(0), (size,)))
    x, fitness = fractions_of(hyper), jnp.zeros(size)
    history = pb2.record(pb2.empty(LINE, size, 16), LINE, jnp.int32(0), hyper, fitness, -jnp.square(x - 0.7))
    is_child = jnp.arange(size) < children
    rest = (jnp.int32(1), hyper, fitness, is_child, jax.random.key(1))
    proposed = fractions_of(proposer(LINE)(history, *rest))
    assert jnp.array_equal(proposed[children:], x[children:])
    assert ((proposed >= 0) & (proposed <= 1)).all()
    distance = np.abs(proposed[:, None] - proposed[None]) + np.eye(size)
    assert distance[:children].min() > 1e-4, "no two members have the same value"
    assert len(np.unique(np.floor(10 * proposed[:children]))) >= 6, "what is left is spread"


def test_the_cost_is_bounded_and_said(monkeypatch):
    said = {size: pb2.bounds(size) for size in (8, 64, 256, 1_024)}
    assert "at most 8 searches in a generation, each on 256 observations and 8 points" in said[8]
    assert "at most 64 searches in a generation, each on 256 observations and 128 points" in said[256]
    assert said[256] == said[1_024]
    monkeypatch.setattr(planning.loop, "plan", lambda *_: None)  # only the memory needs compiled programs
    monkeypatch.setattr(planning.listings, "plan_table", lambda _: "")
    monkeypatch.setattr(planning, "remedy", lambda _: "")
    for words, is_said in ((["--perturb", "pb2"], True), ([], False)):
        assert (pb2.bounds(4) in " ".join(printed("train", "pbt-sac", *POINT, *words, "--plan").split())) == is_said


def test_it_avoids_values_at_which_members_diverge():
    # The gain rises with x, and above 0.6 no fitness is finite. Two members are replaced in each generation, and
    # those that diverged, each from the best.
    key = jax.random.key(0)
    hyper, history = line(jax.random.uniform(key, (SIZE,))), pb2.empty(LINE, SIZE, rows=64)
    fitness, proposals = jnp.zeros(SIZE), []
    for generation in range(12):
        x = fractions_of(hyper)
        after = jnp.where(jnp.asarray(x > 0.6), NAN, fitness + x)
        history = record_line(history, jnp.int32(generation), hyper, fitness, after)
        is_child = ~jnp.isfinite(after) | ((jnp.arange(SIZE) - 2 * generation) % SIZE < 2)
        fitness = jnp.where(is_child, jnp.nanmax(after), after)
        rest = (jnp.int32(generation + 1), hyper, fitness, is_child, jax.random.fold_in(key, generation))
        hyper = propose_line(history, *rest)
        proposals += fractions_of(hyper)[is_child].tolist()
    assert np.mean(np.asarray(proposals) > 0.6) < 0.5


def propose_with(history, hyper=None, is_child=None, seed=0, before=0.0):
    hyper = line([0.5] * SIZE) if hyper is None else hyper
    is_child = jnp.arange(SIZE) > 0 if is_child is None else jnp.asarray(is_child)
    return propose_line(history, jnp.int32(4), hyper, jnp.full(SIZE, before), is_child, jax.random.key(seed))


RISING = history_of(np.linspace(0, 1, 20), np.linspace(-1, 1, 20))
NOTHING = pb2.empty(LINE, SIZE, rows=64)
DEGENERATE = (
    (np.full(32, 0.5), np.zeros(32)),
    (np.full(32, 0.5), np.arange(32.0)),  # contradictions
    (np.full(32, 1.0), np.where(np.arange(32) == 0, -1e30, 1.0)),  # an outlier
    (np.repeat([0.2, 0.9], 16), np.full(32, 1e37)),
    (np.repeat([0.2, 0.9], 16), np.repeat([-1e-30, 1e-30], 16)),
)


class TestProposals:
    def test_children_of_one_parent_differ_even_if_the_optimum_is_a_bound(self):
        for seed in range(3):
            proposed = np.sort(fractions_of(propose_with(RISING, line([1.0] * SIZE), seed=seed)))
            assert np.diff(proposed).min() > 0.9 * pb2.MIN_DISTANCE  # the parent itself is among them

    def test_of_equal_expectations_the_less_certain_is_proposed(self):
        known = history_of(np.linspace(0.0, 0.2, 20), np.ones(20))
        proposed = propose_with(known, line([0.1] * SIZE), np.arange(SIZE) == 0)
        assert fractions_of(proposed)[0] > 0.5

    def test_survivors_and_fixed_hyper_parameters_are_unchanged_and_proposals_depend_on_the_key(self):
        hyper = line(np.linspace(0.05, 0.95, SIZE))
        is_child = np.arange(SIZE) % 3 == 1
        proposed = propose_with(RISING, hyper, is_child)
        np.testing.assert_array_equal(proposed.rate[~is_child], hyper.rate[~is_child])
        assert (proposed.rate[is_child] != hyper.rate[is_child]).all()
        np.testing.assert_array_equal(proposed.fixed, hyper.fixed)
        np.testing.assert_array_equal(proposed.discount, hyper.discount)
        np.testing.assert_array_equal(propose_with(RISING, hyper, [False] * SIZE).rate, hyper.rate)
        again, other = (propose_with(RISING, hyper, is_child, seed) for seed in (0, 1))
        np.testing.assert_array_equal(proposed.rate, again.rate)
        assert (proposed.rate != other.rate)[is_child].any()

    @pytest.mark.parametrize("history", [NOTHING, history_of([0.3], [2.0])], ids=["no row", "one row"])
    def test_without_a_valid_row_proposals_are_uniform_samples(self, history):
        drawn = np.concatenate([fractions_of(propose_with(history, seed=seed))[1:] for seed in range(12)])
        assert np.unique(drawn).size == drawn.size == 84
        counts, _ = np.histogram(drawn, bins=4, range=(0, 1))  # 21 in each, with a deviation of 4
        assert counts.min() > 6
        assert counts.max() < 36

    def test_rows_that_are_not_valid_have_no_influence(self):
        count = 24
        valid = np.arange(count) % 2 == 0
        place, gain = np.linspace(0, 1, count), np.cos(np.linspace(0, 9, count))
        garbage: Any = {"time": np.where(valid, 1, 77), "before": np.where(valid, np.arange(count), -1e6)}
        dirty = history_of(place, np.where(valid, gain, 1e9), valid=valid, **garbage)
        clean = trees.where(dirty.valid, dirty, jax.tree.map(jnp.zeros_like, dirty))
        np.testing.assert_array_equal(propose_with(dirty).rate, propose_with(clean).rate)

    def test_degenerate_histories_give_finite_proposals_in_the_bounds(self):
        for (points, gain), before in zip((*DEGENERATE, *DEGENERATE[-2:]), (*[0.0] * 5, NAN, INF), strict=True):
            rate = propose_with(history_of(points, gain), before=before).rate
            assert ((rate >= 1e-4) & (rate <= 1.0)).all()

    def test_bounds_hold_on_every_scale(self):
        points = np.random.default_rng(0).random((32, 2))
        hyper = Rates(jnp.full(SIZE, 3.0), jnp.full(SIZE, 5.0), jnp.full(SIZE, 0.999))
        for sign in (-1, 1):  # towards either corner
            history = history_of(points, sign * points.sum(axis=1), PLANE)
            rest = (jnp.int32(1), hyper, jnp.zeros(SIZE), jnp.arange(SIZE) > 1, jax.random.key(0))
            proposed = propose_plane(history, *rest)
            for name, domain in PLANE.domains.items():
                values = getattr(proposed, name)
                assert values.dtype == jnp.float32
                assert ((values >= np.float32(domain.low)) & (values <= np.float32(domain.high))).all()
            corner = pb2.coordinates(PLANE, proposed)[2:].mean(axis=0)
            np.testing.assert_allclose(corner, [0.5 + 0.5 * sign] * 2, atol=0.3)

    def test_names_and_whole_numbers(self):
        """One name of three is right, and of seven whole numbers the middle one: most proposals have both."""
        domains = {"rate": Choice("a", "b", "c"), "fixed": Whole(1, 7)}
        space = hyperparams.space(Rates(rate=0.0), domains, {name: Field("", one) for name, one in domains.items()})
        place, number = (grid.ravel() for grid in np.meshgrid(np.arange(3.0), np.arange(1.0, 8.0)))
        point = pb2.coordinates(space, Rates(row(*place), row(*number), 0 * row(*place)))
        history = history_of(point, 1.0 * (place == 1) - 0.3 * np.abs(number - 4), space)
        hyper = Rates(jnp.zeros(SIZE), jnp.ones(SIZE), jnp.ones(SIZE))
        hyper = proposer(space)(history, jnp.int32(1), hyper, jnp.zeros(SIZE), jnp.ones(SIZE, bool), jax.random.key(0))
        assert set(np.asarray(hyper.rate)) <= {0.0, 1.0, 2.0}
        assert set(np.asarray(hyper.fixed)) <= set(range(1, 8))
        assert np.mean(np.asarray(hyper.rate) == 1.0) > 0.6
        assert np.mean(np.abs(np.asarray(hyper.fixed) - 4) <= 1) > 0.6

    def test_a_space_without_evolving_fields_changes_nothing(self):
        hyper, ones, first = line([0.1] * SIZE), jnp.ones(SIZE), jnp.int32(0)
        history = pb2.record(pb2.empty(FIXED, SIZE), FIXED, first, hyper, 0 * ones, ones)
        assert history.point.shape == (256, 0)
        assert history.valid[:SIZE].all()
        assert pb2.propose(history, FIXED, first + 1, hyper, ones, ones > 0, jax.random.key(0)) is hyper
