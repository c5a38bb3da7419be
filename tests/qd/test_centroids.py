"""Cells: centroids computed by hand, the nearest centroid against brute force, and equal volumes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.qd import centroids
from rookery.qd.centroids import cvt, grid, nearest

NAN, INF = float("nan"), float("inf")
VARIANTS = (nearest, jax.jit(centroids._nearest_in_turn), jax.jit(centroids._nearest_at_once))


def distances(descriptors, cells) -> np.ndarray:
    """`[B, C]` Euclidean distances in double precision."""
    difference = np.asarray(descriptors, np.float64)[:, None] - np.asarray(cells, np.float64)[None]
    return np.sqrt(np.sum(difference**2, axis=-1))


class TestGrid:
    def test_centres_with_the_last_dimension_varying_fastest(self):
        cells = grid((2, 3), (0.0, -3.0), (1.0, 3.0))
        assert cells.dtype == jnp.float32
        assert cells.tolist() == [[0.25, -2.0], [0.25, 0.0], [0.25, 2.0], [0.75, -2.0], [0.75, 0.0], [0.75, 2.0]]
        assert grid((4,), (0.0,), (8.0,)).tolist() == [[1.0], [3.0], [5.0], [7.0]]
        assert grid((1, 1, 1), (0.0, 2.0, -4.0), (1.0, 4.0, 4.0)).tolist() == [[0.5, 3.0, 0.0]]

    def test_every_point_of_a_cell_is_nearest_to_its_centre(self):
        shape, lower, upper = (5, 8), np.array([-1.0, 10.0]), np.array([1.0, 14.0])
        points = np.random.default_rng(0).uniform(lower, upper, (2_000, 2))
        width = (upper - lower) / shape  # 0.4 and 0.5: the nearest centre is the cell's own
        place = np.floor((points - lower) / width).astype(int)
        index = nearest(jnp.asarray(points, jnp.float32), grid(shape, tuple(lower), tuple(upper)))
        assert index.tolist() == (place[:, 0] * 8 + place[:, 1]).tolist()

    @pytest.mark.parametrize(
        ("shape", "lower", "upper"),
        [((2, 64), (0.0, -1e6 - 1), (1.0, -1e6)), ((2,), (1e9,), (1e9 + 1,))],
    )
    def test_cells_narrower_than_float32_resolves_are_errors(self, shape, lower, upper):
        message = r"of a width of .* between -?1.* and -?1.* are narrower than float32 resolves there \(.*\); use"
        with pytest.raises(ValueError, match=message):
            grid(shape, lower, upper)
        with pytest.raises(ValueError, match=message):
            cvt(jax.random.key(0), 64 ** len(shape), lower, upper, 5_000, 2)
        for count in (3, 12, 15):  # the narrowest that differ
            assert len(np.unique(grid((count,), (1e6,), (1e6 + 1,)))) == count

    @pytest.mark.parametrize(
        ("shape", "lower", "upper", "sentence"),
        [
            ((2,), (0.0, 0.0), (1.0, 1.0), r"^a grid of 2 dimensions needs as many sizes, got \(2,\)\.$"),
            ((2, 0), (0.0, 0.0), (1.0, 1.0), r"^a grid needs at least 1 cell along each dimension, got \(2, 0\)\.$"),
            ((2, 2), (0.0, 1.0), (1.0, 1.0), r"finite limits, lower < upper in every dimension, got \[0.0, 1.0\]"),
            ((2,), (0.0,), (NAN,), r"finite limits"),
            ((2,), (0.0,), (1e39,), r"finite limits"),  # of float32
            ((2,), (0.0,), (1.0, 2.0), r"^a descriptor needs limits of one equal size >= 1, got"),
            ((), (), (), r"of one equal size >= 1"),
        ],
    )
    def test_invalid_grids_are_errors(self, shape, lower, upper, sentence):
        with pytest.raises(ValueError, match=sentence):
            grid(shape, lower, upper)


@pytest.mark.parametrize("variant", VARIANTS)
class TestNearest:
    @pytest.mark.parametrize(("count", "cells", "size"), [(1_000, 13, 1), (500, 1_021, 2), (300, 77, 4)])
    def test_brute_force_agrees(self, variant, count, cells, size):
        random = np.random.default_rng(count)
        descriptors = random.normal(size=(count, size)).astype(np.float32)
        places = random.normal(size=(cells, size)).astype(np.float32)
        index = variant(jnp.asarray(descriptors), jnp.asarray(places))
        assert index.shape == (count,)
        assert index.dtype == jnp.int32
        expected = distances(descriptors, places)
        np.testing.assert_allclose(expected[np.arange(count), index], expected.min(axis=1), rtol=1e-5)
        assert (np.asarray(index) == expected.argmin(axis=1)).mean() > 0.99  # except for ties due to rounding

    @pytest.mark.parametrize(
        ("places", "points", "expected"),
        [
            # (9, 9): 25 + 81 to the second, 81 + 49 to the third
            ([[0, 0], [4, 0], [0, 2]], [[1.9, 0], [2.1, 0], [0, 1.1], [9, 9], [-5, -5]], [0, 1, 2, 1, 0]),
            ([[1, 1], [-1, 1], [1, -1], [-1, -1], [1, 1]], [[0, 0], [-3, 0], [0, -2], [1, 1]], [0, 1, 2, 0]),  # ties
            ([[0, 0], [100, 1]], [[45, 1], [55, 0]], [0, 1]),  # no dimension is rescaled
            ([[3]], [[5], [-7]], [0, 0]),
            (np.zeros((3, 2)), np.zeros((0, 2)), []),
        ],
    )
    def test_by_hand(self, variant, places, points, expected):
        assert variant(jnp.asarray(points, jnp.float32), jnp.asarray(places, jnp.float32)).tolist() == expected

    def test_non_finite_rows_get_a_valid_cell_and_do_not_affect_others(self, variant):
        places = jnp.asarray([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
        points = jnp.asarray([[NAN, 0.0], [1.1, 1.0], [INF, -INF], [1.9, 2.0], [NAN, NAN], [-INF, 0.0]])
        index = variant(points, places).tolist()
        assert (index[1], index[3]) == (1, 2)
        assert set(index) <= {0, 1, 2}


class TestCvt:
    def test_centroids_are_the_means_of_their_nearest_points_with_equal_shares(self):
        cells, size = 32, 4
        lower, upper = (-2.0,) * size, (4.0,) * size
        places = np.asarray(cvt(jax.random.key(0), cells, lower, upper))
        assert places.shape == (cells, size)
        points = np.random.default_rng(0).uniform(lower, upper, (200_000, size)).astype(np.float32)
        index = np.asarray(nearest(jnp.asarray(points), jnp.asarray(places)))
        share = np.bincount(index, minlength=cells) * cells / len(points)
        means = np.stack([points[index == cell].mean(axis=0) for cell in range(cells)])
        width = 6.0 / cells ** (1 / size)
        assert np.abs(means - places).max() < 0.15 * width
        assert share.min() > 0.6
        assert share.max() < 1.6

    def test_one_cell_is_the_mean_and_two_halve_an_interval(self):
        place = cvt(jax.random.key(3), 1, (10.0,), (20.0,))
        assert place[0, 0] == pytest.approx(15.0, abs=0.06)  # 10 / sqrt(12 x 50,000) = 0.013
        places = np.sort(np.asarray(cvt(jax.random.key(1), 2, (0.0,), (1.0,)))[:, 0])
        np.testing.assert_allclose(places, [0.25, 0.75], atol=0.01)

    def test_centroids_depend_on_the_key(self):
        first, again, other = (cvt(jax.random.key(seed), 64, (0.0, 0.0), (1.0, 1.0), 2_000) for seed in (1, 1, 2))
        assert (first == again).all()
        assert not (first == other).any(axis=1).all()

    def test_it_stops_when_centroids_do_not_change(self):
        settled, longer = (cvt(jax.random.key(0), 5, (0.0, 0.0), (1.0, 1.0), 200, count) for count in (1_000, 2_000))
        assert (settled == longer).all()
        fewer = cvt(jax.random.key(0), 5, (0.0, 0.0), (1.0, 1.0), 200, 1)
        assert not (fewer == settled).all()

    def test_limits_of_a_coarse_float_are_kept_and_as_many_draws_as_cells_are_the_centroids(self):
        lower, upper = (16_777_200.0, -9.0), (16_777_216.0, 9.0)  # neighbours below 2^24 are 1 apart
        places = cvt(jax.random.key(0), 3, lower, upper, iterations=0)
        assert bool(jnp.all(places >= jnp.asarray([lower])))
        assert bool(jnp.all(places <= jnp.asarray([upper])))
        places = np.asarray(cvt(jax.random.key(0), 5, (0.0, 5.0), (1.0, 6.0), num_samples=5))
        assert len(np.unique(places, axis=0)) == 5

    def test_dimensions_differ_in_width(self):
        places = np.asarray(cvt(jax.random.key(0), 64, (0.0, 0.0), (64.0, 1.0)))
        along = np.sort(places[:, 0])  # distances are not rescaled, so the cells are in one row
        np.testing.assert_allclose(places[:, 1], 0.5, atol=0.1)
        assert np.diff(along).min() > 0.5
        assert np.diff(along).max() < 1.6

    def test_many_draws_overflow_no_sum(self):
        places = cvt(jax.random.key(0), 2, (0.0,), (1.0,), num_samples=1_100_000, iterations=30)
        np.testing.assert_allclose(np.sort(np.asarray(places)[:, 0]), [0.25, 0.75], atol=0.005)

    @pytest.mark.parametrize(
        ("cells", "options", "sentence"),
        [
            (0, {}, r"^cells must be at least 1, got 0\.$"),
            (9, {"num_samples": 8}, r"^9 cells need at least as many draws, got num_samples = 8\.$"),
            (2, {"iterations": -1}, r"^iterations must be at least 0, got -1\.$"),
            (2, {"upper": (0.0,)}, r"finite limits, lower < upper"),
        ],
    )
    def test_invalid_tessellations_are_errors(self, cells, options, sentence):
        with pytest.raises(ValueError, match=sentence):
            cvt(jax.random.key(0), cells, **{"lower": (0.0,), "upper": (1.0,), **options})


@pytest.mark.parametrize(("shape", "lower", "upper"), [((5, 9), (-1, 0), (1, 3)), ((2, 1, 3), (0,) * 3, (1,) * 3)])
def test_a_grid_is_searched_by_arithmetic_with_the_same_cells(shape, lower, upper):
    cells = centroids.grid(shape, lower, upper)
    find = centroids.finder(cells)
    assert find is not centroids.nearest
    points = np.random.default_rng(0).uniform(-2, 4, (500, len(shape))).astype(np.float32)
    points = np.concatenate([points, np.asarray(cells)])
    assert np.array_equal(find(jnp.asarray(points), cells), centroids.nearest(jnp.asarray(points), cells))
    assert 0 <= int(find(jnp.full((1, len(shape)), jnp.nan), cells)[0]) < cells.shape[0]


def test_half_way_between_two_cells_belongs_to_the_lower_and_other_centroids_are_searched_by_distance():
    cells = centroids.grid((4,), (0.0,), (4.0,))
    assert centroids.finder(cells)(jnp.asarray([[1.0], [2.0], [3.0]]), cells).tolist() == [0, 1, 2]
    shuffled = centroids.grid((3, 3), (0, 0), (1, 1))[::-1]
    assert centroids.finder(shuffled) is centroids.nearest
    assert centroids.finder(centroids.cvt(jax.random.key(0), 9, (0, 0), (1, 1), 500)) is centroids.nearest


def test_one_cell_needs_no_resolution():
    assert grid((1, 2), (1e6, 0.0), (1e6 + 0.03, 1.0)).shape == (2, 2)
