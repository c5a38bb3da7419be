"""Running statistics equal NumPy's over all rows, for every division into batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import normalize
from rookery.normalize import RunningStatistics

update, normalized = jax.jit(normalize.update), jax.jit(normalize.normalize)


def seen(*batches: np.ndarray) -> RunningStatistics:
    statistics = normalize.init(batches[0].shape[1])
    for batch in batches:
        statistics = update(statistics, jnp.asarray(batch, jnp.float32))
    return statistics


def assert_statistics(statistics: RunningStatistics, rows: np.ndarray, rtol: float = 1e-5) -> None:
    assert float(statistics.count) == len(rows)
    np.testing.assert_allclose(statistics.mean, rows.mean(axis=0), rtol=rtol, atol=1e-5)
    np.testing.assert_allclose(statistics.squares / len(rows), rows.var(axis=0), rtol=rtol, atol=1e-6)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal([3.0, -50.0, 0.0], [2.0, 10.0, 0.1], (60, 3))


def test_statistics_equal_numpy_whatever_the_batches(rows: np.ndarray) -> None:
    assert_statistics(seen(rows), rows)
    assert_statistics(seen(rows[:1], rows[1:7], rows[7:8], rows[8:50], rows[50:]), rows)


def test_the_variance_stays_right_when_the_count_has_reached_its_limit(rows: np.ndarray) -> None:
    many = update(RunningStatistics(jnp.float32(2.0**24), jnp.zeros(1), jnp.ones(1) * 2.0**24), jnp.ones((1, 1)))
    assert float(many.count) == 2.0**20  # of one row in each update
    for _ in range(3):
        many = update(many, jnp.ones((1, 1)))
    assert float(many.count) == 2.0**20
    np.testing.assert_allclose(many.squares / many.count, 1.0, rtol=1e-6)
    ten = RunningStatistics(jnp.float32(2.0**22), jnp.zeros(3), jnp.ones(3) * 2.0**22)
    assert float(update(ten, jnp.asarray(rows[:10], jnp.float32)).count) == 2.0**22 + 10


@pytest.mark.parametrize("variance", [0.6, 1.2])
def test_a_long_run_follows_a_new_variance(variance: float) -> None:
    def follow(_, statistics: RunningStatistics) -> RunningStatistics:
        return update(statistics, jnp.asarray([[1.0], [-1.0]]) * variance**0.5)

    begun = RunningStatistics(jnp.float32(2.0**24), jnp.zeros(1), jnp.ones(1) * 2.0**24)
    followed = jax.jit(lambda start: jax.lax.fori_loop(0, 3_000_000, follow, start))(begun)
    np.testing.assert_allclose(followed.squares / followed.count, variance, rtol=0.12)


def absurd_rows(value: float, batches: int, size: int, where: slice, share: float = 0.0) -> RunningStatistics:
    """Statistics of normal rows, of which one, or a share, is absurd in some batches."""
    rows = np.random.default_rng(2).normal([0.0, 50.0], [1.0, 3.0], (batches, size, 2)).astype(np.float32)
    rows[where, : max(1, int(share * size))] = value
    updated = jax.jit(lambda start, rows: jax.lax.scan(lambda s, r: (update(s, r), None), start, rows)[0])
    return updated(normalize.init(2), jnp.asarray(rows))


@pytest.mark.parametrize("value", [1e20, -3e38, 1e9])
@pytest.mark.parametrize(
    ("batches", "size", "where", "share"),
    [
        (100, 64, slice(50, 51), 0.0),
        (100, 64, slice(0, 1), 0.0),  # nothing was seen before
        (2_000, 1, slice(0, 1), 0.0),
        (2_000, 1, slice(0, 3), 0.0),
        (2_000, 1, slice(1, 2), 0.0),
        (2_000, 1, slice(1_000, 1_001), 0.0),
        (20, 2_048, slice(0, 1), 1.0),
        (20, 2_048, slice(1, 2), 1.0),
        (400, 64, slice(50, 55), 0.0),
        (100, 1_000, slice(50, 51), 0.1),
        (4_000, 64, slice(50, None, 20), 0.0),  # again and again
    ],
)
def test_absurd_numbers_do_not_hide_a_feature(
    value: float, batches: int, size: int, where: slice, share: float
) -> None:
    statistics = absurd_rows(value, batches, size, where, share)
    low, high = (normalized(statistics, jnp.asarray(row)) for row in ([-1.0, 47.0], [1.0, 53.0]))
    assert (high - low > 0.1).all(), "two standard deviations apart"
    assert float(jnp.abs(low + high).max()) < 2.0
    assert float(statistics.count) == batches * size


def test_absurd_numbers_in_every_row_keep_the_statistics_finite() -> None:
    statistics = RunningStatistics(jnp.float32(2.0**31), jnp.zeros(1), jnp.zeros(1))
    for value in (3e38, -3e38) * 20:
        statistics = update(statistics, jnp.full((2_048, 1), value))
    assert np.isfinite([*statistics.mean, *statistics.squares]).all()


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1e-3), (0.0, 50.0), (900.0, 1.0), (5e3, 1.0), (-1e6, 1e3)])
def test_features_of_any_scale_are_counted_as_they_are(mean: float, deviation: float) -> None:
    rows = np.random.default_rng(3).normal(mean, deviation, (400, 1))
    statistics = seen(*np.split(rows, 50))
    np.testing.assert_allclose(statistics.mean, rows.astype(np.float32).mean(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(statistics.squares / 400, rows.astype(np.float32).var(), rtol=2e-3)


def test_a_constant_feature_can_change_and_a_new_scale_is_followed() -> None:
    zeros = [np.zeros((64, 1))] * 200
    rare = np.zeros((64, 1))
    rare[3] = 7.0
    assert_statistics(seen(*zeros, rare), np.concatenate([*zeros, rare]))
    followed = seen(*zeros, *[np.random.default_rng(k).normal(4e4, 10.0, (64, 1)) for k in range(2_000)])
    np.testing.assert_allclose(followed.mean, 4e4, rtol=0.1)


def test_a_large_offset_costs_no_accuracy_of_the_variance() -> None:
    rows = np.random.default_rng(1).normal(1000.0, 1.0, (400, 1))
    # Sum of squares minus squared sum would be off by about 6 %: 1e6 has a spacing of 0.06 in float32.
    assert_statistics(seen(*np.split(rows, 100)), np.asarray(rows, np.float32).astype(np.float64), rtol=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_left_out(rows: np.ndarray, bad: float) -> None:
    dirty = rows.copy()
    dirty[[0, 17, 59], [0, 1, 2]] = bad
    clean = np.delete(rows, [0, 17, 59], axis=0)
    assert_statistics(seen(dirty[:1], dirty[1:20], dirty[20:]), clean)


def test_before_the_second_row_an_observation_passes_unchanged() -> None:
    observation = jnp.asarray([100.0, -7.0])
    for statistics in (normalize.init(2), seen(np.asarray([[1.0, 2.0]]))):
        assert normalized(statistics, observation).tolist() == [100.0, -7.0]


def test_normalising_by_hand_and_the_clip() -> None:
    # Rows 1 and 5: mean 3, standard deviation 2. (4 - 3) / 2 = 0.5; (103 - 3) / 2 = 50, cut to 5.
    statistics = seen(np.asarray([[1.0], [5.0]]))
    np.testing.assert_allclose(normalized(statistics, jnp.asarray([4.0])), [0.5], rtol=1e-6)
    assert normalized(statistics, jnp.asarray([103.0])).tolist() == [10.0]
    assert normalized(statistics, jnp.asarray([-103.0])).tolist() == [-10.0]
    assert normalized(statistics, jnp.asarray([103.0]), limit=2.0).tolist() == [2.0]
    constant = seen(np.full((10, 2), 4.0))  # becomes 0 and stays finite
    assert normalized(constant, jnp.asarray([4.0, 1e9])).tolist() == [0.0, 10.0]


def test_leading_axes_are_normalised_row_by_row(rows: np.ndarray) -> None:
    statistics = seen(rows)
    observation = jnp.asarray(rows[:6], jnp.float32).reshape(2, 3, 3)
    expected = ((rows[:6] - rows.mean(axis=0)) / rows.std(axis=0)).reshape(2, 3, 3)
    np.testing.assert_allclose(normalized(statistics, observation), expected, rtol=1e-4, atol=1e-4)


def test_members_have_separate_statistics(rows: np.ndarray) -> None:
    one, two = rows[:30], rows[30:]
    start = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), normalize.init(3))
    both = jax.jit(jax.vmap(normalize.update))(start, jnp.asarray(np.stack([one, two]), jnp.float32))
    for index, part in enumerate((one, two)):
        assert_statistics(RunningStatistics(*(leaf[index] for leaf in both)), part)


def test_masked_rows_are_left_out(rows: np.ndarray) -> None:
    counts = np.arange(60) % 3 != 0
    filled = np.where(counts[:, None], rows, 1e6)
    statistics = update(normalize.init(3), jnp.asarray(filled, jnp.float32), jnp.asarray(counts))
    assert_statistics(statistics, rows[counts])
    filled[0] = np.nan
    again = update(normalize.init(3), jnp.asarray(filled, jnp.float32), jnp.asarray(counts))
    assert_statistics(again, rows[counts])


def test_a_batch_of_rows_that_are_masked_or_not_finite_changes_nothing(rows: np.ndarray) -> None:
    before = seen(rows)
    for batch in ((jnp.ones((4, 3)), jnp.zeros(4, bool)), (jnp.full((4, 3), jnp.nan),)):
        for old, new in zip(before, update(before, *batch), strict=True):
            np.testing.assert_array_equal(old, new)
