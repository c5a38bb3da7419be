"""What a repertoire keeps: dominated novelty and rising thresholds, by hand and against references in plain numpy."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import trees
from rookery.qd import archives
from rookery.qd import novelty as novelties
from rookery.qd.archives import Archive
from rookery.qd.centroids import grid
from rookery.qd.emitters import iso_line
from rookery.qd.initial import begin_with
from rookery.qd.map_elites import map_elites, repertoire_of
from rookery.qd.novelty import dominated_novelty
from rookery.qd.scoring import function_scoring
from rookery.qd.variation import VariationConfig

NAN, INF = math.nan, math.inf
LIMITS = (jnp.zeros(2), jnp.asarray([1.0, 2.0]))
LINE = grid((4,), (0.0,), (4.0,))  # centres 0.5, 1.5, 2.5, 3.5
ON_LINE = (jnp.zeros(1), jnp.full((1,), 4.0))
CELLS = grid((3, 2), *np.asarray(LIMITS).tolist())
RULE = archives.dominated_novelty(CELLS)
ON_TWO = archives.dominated_novelty(LINE[:2], neighbours=1)
add, add_on_line = jax.jit(RULE.add), jax.jit(ON_TWO.add)


def genotypes(numbers) -> dict[str, jax.Array]:
    """Every leaf contains the individual's number."""
    numbers = np.asarray(numbers)
    return {"number": jnp.asarray(numbers, jnp.int32), "half": jnp.asarray(np.tile(numbers[:, None], 3), jnp.float16)}


def empty(archive: Archive = RULE):
    return archives.empty(archive, trees.take(genotypes([0]), 0), -1.0)


def novelty(fitnesses, places, neighbours: int) -> np.ndarray:
    """Dominated novelty `[N]` in plain loops over pairs, in double precision."""
    found = []
    for i, fitness in enumerate(fitnesses):
        if not np.isfinite(fitness):
            found.append(-INF)
            continue
        fitter = [
            np.sqrt(np.sum(np.square(places[i] - places[j])))
            for j, other in enumerate(fitnesses)
            if np.isfinite(other) and (other > fitness or (other == fitness and j < i))
        ]
        found.append(np.mean(sorted(fitter)[:neighbours]) if fitter else INF)
    return np.asarray(found)


class TestDominatedNovelty:
    def test_by_hand(self):
        # Fitter than the second: the first; than the third: both; than the last: all of them, the nearest two count.
        fitness, places = jnp.asarray([4.0, 3.0, 2.0, 1.0, NAN]), jnp.asarray([[0.0], [1.0], [4.0], [2.0], [2.0]])
        found = dominated_novelty(fitness, places, 2)
        assert found.tolist() == [INF, 1.0, (3.0 + 4.0) / 2, (1.0 + 2.0) / 2, -INF]
        assert found.dtype == jnp.float32
        # Of equal fitnesses the first is the fitter one.
        assert dominated_novelty(jnp.ones(3), jnp.asarray([[0.0], [0.0], [3.0]]), 3).tolist() == [INF, 0.0, 3.0]

    def test_both_ways_to_find_the_nearest_agree_with_a_plain_loop(self):
        rng, neighbours = np.random.default_rng(0), 3
        fitness = rng.integers(0, 5, 40).astype(np.float32)
        fitness[rng.random(40) < 0.2] = -INF
        points = rng.random((40, 2)).astype(np.float32)
        found = dominated_novelty(jnp.asarray(fitness), jnp.asarray(points), neighbours)
        np.testing.assert_allclose(found, novelty(fitness, points, neighbours), rtol=1e-5)
        valid = jnp.asarray(fitness > -INF)
        both = [
            jax.jit(search, static_argnums=0)(neighbours, jnp.asarray(points), valid)
            for search in (novelties._distances_in_turn, novelties._distances_at_once)
        ]
        np.testing.assert_allclose(*both, rtol=1e-6)


class TestSurvival:
    def test_random_batches_agree_with_a_plain_reference(self):
        rng, repertoire, first = np.random.default_rng(1), empty(), 1
        kept: list[Any] = [None] * 6
        limits = np.asarray(LIMITS[1])
        for _ in range(12):
            fitness = rng.integers(-2, 3, 8).astype(np.float32)
            described = (rng.integers(-2, 19, (8, 2)) / 8).astype(np.float32)
            for bad in (NAN, INF, -INF):
                fitness[rng.random(8) < 0.1] = bad
                described[rng.random((8, 2)) < 0.05] = bad
            numbers = np.arange(first, first + 8)
            repertoire, added = add(
                repertoire, genotypes(numbers), jnp.asarray(fitness), jnp.asarray(described), LIMITS
            )
            first += 8

            valid = np.isfinite(fitness) & np.isfinite(described).all(axis=1)
            rows = [row or (0, -INF, np.zeros(2, np.float32)) for row in kept]
            rows += [
                (n, f if ok else -INF, np.nan_to_num(d))
                for n, f, d, ok in zip(numbers, fitness, described, valid, strict=True)
            ]
            score = novelty([row[1] for row in rows], np.stack([row[2] for row in rows]) / limits, 3)
            order = sorted(range(len(rows)), key=lambda i: (-score[i], i))[:6]
            survivors = {i for i in order if np.isfinite(rows[i][1])}
            free = [slot for slot in range(6) if slot not in survivors]
            cells = np.full(8, -1)
            for i in sorted(survivors):
                if i >= 6:
                    cells[i - 6] = free.pop(0)
                    kept[cells[i - 6]] = rows[i]
            assert added.cell.tolist() == cells.tolist()
            assert added.rejected.tolist() == (~valid).tolist()
            assert [row[0] if row else 0 for row in kept] == repertoire.genotypes["number"].tolist()
            assert [row[1] if row else -INF for row in kept] == repertoire.fitnesses.tolist()
            for slot, row in enumerate(kept):
                expected = CELLS[slot] if row is None else row[2]
                assert np.array_equal(repertoire.centroids[slot], expected)
        assert all(kept)
        numbers = np.asarray(repertoire.genotypes["number"])
        assert np.array_equal(repertoire.genotypes["half"], np.tile(numbers[:, None], 3)), "leaves of one individual"
        assert jnp.array_equal(repertoire.descriptors, repertoire.centroids)

    def test_a_descriptor_whose_square_overflows_is_far_from_all_others(self):
        descriptors, fitnesses = jnp.asarray([[1e30], [1.0], [1.5], [1.5]]), jnp.asarray([3.0, 2.0, 1.0, NAN])
        _, added = add_on_line(empty(ON_TWO), genotypes([1, 2, 3, 4]), fitnesses, descriptors, ON_LINE)
        assert added.status.tolist() == [2, 2, 0, 0]

    def test_results_for_each_individual(self):
        add, fitnesses = add_on_line, jnp.asarray([3.0, 2.0, 1.0, NAN])
        descriptors = jnp.asarray([[0.0], [1.0], [4.4], [2]])
        repertoire, added = add(empty(ON_TWO), genotypes([1, 2, 3, 4]), fitnesses, descriptors, ON_LINE)
        assert added.cell.tolist() == [0, -1, 1, -1]
        assert added.status.tolist() == [2, 0, 2, 0]
        assert added.rejected.tolist() == [False, False, False, True]
        assert added.outside.tolist() == [False, False, True, False]
        np.testing.assert_allclose(added.improvement[1:], [0.0, 0.85 - 0.25, -INF], rtol=1e-5)
        assert added.improvement[0] == np.finfo(np.float32).max, "inf would stand for an empty cell"
        _, added = add(repertoire, genotypes([5]), jnp.asarray([2.5]), jnp.asarray([[2.0]]), ON_LINE)
        assert (added.cell.tolist(), added.status.tolist()) == ([-1], [0]), "0.5 from the first, 0.6 of the other"
        _, added = add(repertoire, genotypes([6]), jnp.asarray([4.0]), jnp.asarray([[2.5]]), ON_LINE)
        assert (added.cell.tolist(), added.status.tolist()) == ([1], [1]), "0.475 from it is less than 0.625"


class TestThresholds:
    def test_by_hand(self):
        rule = archives.annealed(LINE, 0.1)
        add = jax.jit(rule.add)
        places = jnp.asarray([[0.2], [0.4], [1.4], [0.3], [9.0], [1.5]])
        fitness = jnp.asarray([1.0, 2.0, -2.0, NAN, 5.0, -1.0])
        repertoire, added = add(empty(rule), genotypes(range(6)), fitness, places, ON_LINE)
        np.testing.assert_allclose(added.improvement, [2.0, 3.0, -1.0, -INF, 6.0, 0.0])
        moved = [0.81 * -1 + 0.19 * 1.5, -1.0, -1.0, 0.9 * -1 + 0.1 * 5]
        np.testing.assert_allclose(repertoire.thresholds, moved, rtol=1e-6)
        assert repertoire.genotypes["number"].tolist() == [1, 5, 0, 4], "each cell keeps the best, accepted or not"
        again, added = add(repertoire, genotypes([7]), jnp.asarray([0.0]), jnp.asarray([[0.1]]), ON_LINE)
        np.testing.assert_allclose(added.improvement, -moved[0], rtol=1e-5)
        np.testing.assert_allclose(again.thresholds[0], 0.9 * moved[0], rtol=1e-5)
        assert again.genotypes["number"].tolist() == [1, 5, 0, 4], "accepted, but the elite is better"
        assert added.status.tolist() == [0]
        huge, _ = add(again, genotypes(range(6)), jnp.full(6, 3e38), jnp.full((6, 1), 0.1), ON_LINE)
        np.testing.assert_allclose(huge.thresholds[0], (1.0 - 0.9**6) * 3e38, rtol=1e-5)  # not inf, which nothing beats

    def test_without_a_threshold_the_elite_is_the_measure(self):
        rule = archives.annealed(LINE, 1.0)
        add = jax.jit(rule.add)
        repertoire, added = add(empty(rule), genotypes([1, 2]), jnp.asarray([1.0, NAN]), LINE[:2], ON_LINE)
        assert added.improvement.tolist() == [INF, -INF]
        assert repertoire.thresholds == ()
        _, added = add(repertoire, genotypes([3]), jnp.asarray([0.5]), LINE[:1], ON_LINE)
        assert added.improvement.tolist() == [-0.5]

    def test_settings_out_of_range(self):
        for rate in (-0.1, 1.1, NAN):
            with pytest.raises(ValueError, match=r"archive_learning_rate must lie in \[0, 1\], got"):
                archives.annealed(LINE, rate)
        with pytest.raises(ValueError, match="novelty_neighbours must be at least 1, got 0"):
            archives.dominated_novelty(CELLS, 0)


def bowl(x, key):
    del key
    return jnp.where(x[0] > 0.9, NAN, -jnp.sum(jnp.square(x))), x[:2]


BOWL = function_scoring(
    bowl,
    lambda key: jax.random.uniform(key, (3,), minval=-0.9, maxval=0.9),
    (-1.0, -1.0),
    (1.0, 1.0),
    -3.0,
    (-1.0, 1.0),
)
GRID = grid((6, 6), (-1.0, -1.0), (1.0, 1.0))


def test_a_run_is_measured_by_cells_and_begun_from():
    rule = archives.dominated_novelty(GRID)
    program = map_elites(BOWL, rule, iso_line(BOWL, 24, VariationConfig(0.3, 0.5)))
    init_key, run_key = jax.random.split(jax.random.key(0))
    state, step, first, last = jax.jit(program.init)(init_key), jax.jit(program.step), {}, {}
    for generation in range(8):
        state, metrics = step(state, jax.random.fold_in(run_key, generation))
        last = jax.device_get(metrics)
        first = first or last
    repertoire = repertoire_of(state)
    limits = -jnp.ones(2), jnp.ones(2)
    cells = np.asarray(archives.placed(rule, repertoire.fitnesses, repertoire.descriptors, limits).fitnesses)
    assert last["coverage"] == pytest.approx(100 * np.mean(cells > -INF))
    assert last["coverage"] > 1.2 * first["coverage"]
    assert last["qd_score"] == pytest.approx(np.sum(np.maximum(cells[cells > -INF] + 3.0, 0.0)), rel=1e-5)
    evaluated = jax.jit(program.evaluate)(state, jax.random.key(5))
    for kind in ("stored", "corrected"):
        assert evaluated[f"{kind}/qd_score"] == pytest.approx(last["qd_score"], rel=1e-5)
    begun = begin_with(program, repertoire)
    begun_state = jax.jit(begun.init)(jax.random.key(0))
    assert sorted(repertoire_of(begun_state).fitnesses.tolist()) == sorted(repertoire.fitnesses.tolist())
