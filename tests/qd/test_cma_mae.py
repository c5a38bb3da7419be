"""CMA-ES by hand and beside the package `cmaes`; CMA-MAE's ranking, restarts and errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import trees
from rookery.qd import archives
from rookery.qd import repertoire as repertoires
from rookery.qd.centroids import grid
from rookery.qd.cma import distribution as cma_es
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.cma.emitter import cma_mae
from rookery.qd.map_elites import map_elites
from rookery.qd.scoring import function_scoring, learner_scoring, named_scoring
from rookery.types import Evaluation
from tests import walks
from tests.tiny import compiled

NAN, INF = math.nan, math.inf
update = jax.jit(cma_es.update)


class TestCmaEs:
    def test_an_update_by_hand(self):
        """Two dimensions, four samples of which two are parents, from the identity."""
        state = cma_es.start(jnp.asarray([1.0, 0.0]), 0.5)
        samples = jnp.asarray([[2.0, 0.0], [1.0, 1.0], [9.0, 9.0], [-9.0, 9.0]])
        after = update(state, samples, jnp.asarray(2))
        raw = np.log(2.5) - np.log([1.0, 2.0])
        first, second = weights = raw / raw.sum()
        effective = 1.0 / np.sum(weights**2)
        np.testing.assert_allclose(after.mean, [1.0 + first, second], rtol=1e-6)
        step = np.array([2 * first, 2 * second])  # in units of sigma
        rate = (effective + 2) / (2 + effective + 5)
        sigma_path = np.sqrt(rate * (2 - rate) * effective) * step
        np.testing.assert_allclose(after.sigma_path, sigma_path, rtol=1e-5)
        expected = np.sqrt(2.0) * (1 - 1 / 8 + 1 / 84)
        damping = 1 + 2 * max(0.0, np.sqrt((effective - 1) / 3) - 1) + rate
        sigma = 0.5 * np.exp(rate / damping * (np.linalg.norm(sigma_path) / expected - 1))
        np.testing.assert_allclose(after.sigma, sigma, rtol=1e-5)
        rate = (4 + effective / 2) / (6 + effective)
        path = np.sqrt(rate * (2 - rate) * effective) * step
        one = 2 / (3.3**2 + effective)
        mu = min(1 - one, 2 * (effective - 2 + 1 / effective) / (16 + effective))
        covariance = (1 - one - mu) * np.eye(2) + one * np.outer(path, path) + mu * np.diag([4 * first, 4 * second])
        np.testing.assert_allclose(after.covariance, covariance, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(after.root @ after.root, covariance, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(after.root @ after.inverse_root, np.eye(2), atol=1e-5)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, update(state, samples, jnp.asarray(0)), state))

    def test_full_covariance_beside_another_implementation(self):
        cmaes = pytest.importorskip("cmaes")
        size, count = 6, 12
        other = cmaes.CMA(mean=np.full(size, 1.5), sigma=0.7, seed=1, population_size=count)
        other._weights = np.maximum(other._weights, 0.0)  # it also has negative weights
        state = cma_es.start(jnp.full((size,), 1.5), 0.7)
        for _ in range(25):
            samples = np.stack([other.ask() for _ in range(count)])
            heights = np.sum(np.logspace(0, 2, size) * samples**2, axis=1)
            other.tell(list(zip(samples, heights, strict=True)))
            state = update(state, jnp.asarray(samples[np.argsort(heights)], jnp.float32), jnp.asarray(count // 2))
            np.testing.assert_allclose(state.mean, other._mean, atol=1e-5)
            np.testing.assert_allclose(state.sigma, other._sigma, rtol=1e-5)
            np.testing.assert_allclose(state.covariance, other._C, atol=1e-5 * abs(other._C).max())

    @pytest.mark.parametrize("diagonal", [False, True])
    def test_it_finds_the_minimum_of_a_long_valley(self, diagonal):
        scale = jnp.logspace(0.0, 3.0, 5)

        def generation(state, key):
            samples = cma_es.sample(state, key, 12)
            heights = jnp.sum(scale[None] * jnp.square(samples - 1.0), axis=1)
            return cma_es.update(state, samples[jnp.argsort(heights)], jnp.asarray(6)), jnp.min(heights)

        keys = jax.random.split(jax.random.key(0), 150)
        state, heights = jax.jit(lambda state: jax.lax.scan(generation, state, keys))(
            cma_es.start(jnp.zeros(5), 0.5, diagonal)
        )
        assert float(heights[-1]) < 1e-6
        assert float(heights[0]) > 1e-2
        spread = state.covariance if diagonal else jnp.diagonal(state.covariance)
        assert float(spread[0] / spread[-1]) > 100

    def test_the_root_of_an_ill_conditioned_matrix(self):
        basis = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]
        matrix = (basis * np.logspace(-2, 3, 8)) @ basis.T
        root, inverse = jax.jit(cma_es.roots)(jnp.asarray(matrix, jnp.float32))
        np.testing.assert_allclose(root @ root, matrix, atol=2e-5 * abs(matrix).max())
        np.testing.assert_allclose(root @ inverse, np.eye(8), atol=2e-2)

    @pytest.mark.parametrize(
        ("changes", "best", "worst", "expected"),
        [
            ({}, 1.0, 0.0, False),
            ({}, 1.0, -INF, False),
            ({}, 1.0, 1.0, True),
            ({}, -INF, -INF, True),
            ({}, 1e-20, 0.0, False),  # whatever the units of fitnesses and genotypes are
            ({"sigma": jnp.asarray(1e-13)}, 1.0, 0.0, True),
            ({"sigma": jnp.asarray(1e-13), "began": 1e-13}, 1.0, 0.0, False),
            ({"sigma": jnp.asarray(NAN)}, 1.0, 0.0, True),
            ({"inverse_root": jnp.full((2, 2), 1e5)}, 1.0, 0.0, True),
        ],
    )
    def test_convergence(self, changes, best, worst, expected):
        changes = {"began": 0.5, **changes}
        began = changes.pop("began")
        state = cma_es.start(jnp.zeros(2), began)._replace(**changes)
        assert bool(cma_es.has_converged(state, jnp.asarray(best), jnp.asarray(worst), began)) is expected


def slope(x, key):
    del key
    return jnp.sum(x), x[:1]


SLOPE = function_scoring(slope, lambda key: jax.random.uniform(key, (2,)), (0.0,), (1.0,), -5.0, (0.0, 1.0))
LINE = grid((4,), (0.0,), (1.0,))


def evaluation(improvement) -> tuple[Evaluation, repertoires.Added]:
    improvement = jnp.asarray(improvement)
    fitness = jnp.where(jnp.isneginf(improvement), NAN, 1.0)
    none = jnp.zeros_like(improvement, jnp.int32)
    added = repertoires.Added(none, none, none == 1, none == 1, improvement)
    return Evaluation(fitness, improvement[:, None], fitness[:, None], none[:, None], none), added


class TestEmitter:
    def test_each_distribution_follows_its_samples_of_the_greatest_improvement(self):
        emitter = compiled(cma_mae(SLOPE, 8, CmaMaeConfig(emitters=2, initial_sigma=0.1)))
        state = emitter.init(jax.random.key(0), ())
        assert len(np.unique(state.shared.distributions.mean, axis=0)) == 2
        asked, proposals, _ = emitter.ask(state, repertoires.empty(jnp.zeros(2), LINE), (), jax.random.key(1))
        assert ((proposals >= 0) & (proposals <= 1)).all()
        assert jnp.array_equal(asked.shared.samples, proposals)
        after, metrics = emitter.tell(asked, *evaluation([1.0, 2.0, -INF, -1.0, -INF, INF, 3.0, 4.0]))
        ranked = [proposals[jnp.asarray(rows)] for rows in ([1, 0, 3, 2], [5, 7, 6, 4])]  # an empty cell: 1 + 5
        for number, samples in enumerate(ranked):
            expected = update(trees.take(state.shared.distributions, number), samples, jnp.asarray(2))
            found = trees.take(after.shared.distributions, number)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, expected)
        assert after.shared.restarts.tolist() == [False, False]
        assert float(metrics["restarts"]) == 0

    def test_parents_and_restarts(self):
        config = CmaMaeConfig(emitters=2, initial_sigma=0.1, parents="accepted", restart="no-improvement")
        emitter = compiled(cma_mae(SLOPE, 8, config))
        elites = repertoires.empty(jnp.zeros(2), LINE)
        asked, _, _ = emitter.ask(emitter.init(jax.random.key(0), ()), elites, (), jax.random.key(1))
        after, _ = emitter.tell(asked, *evaluation([0.0, -1.0, -2.0, -1.0, 1.0, -3.0, -INF, 0.0]))
        assert after.shared.restarts.tolist() == [True, False]
        assert after.shared.distributions.updates.tolist() == [0, 1], "no parent, no update"
        for seed in (2, 3):  # there is no elite
            anew, _, _ = emitter.ask(after, elites, (), jax.random.key(seed))
            moved = anew.shared.distributions.mean != after.shared.distributions.mean
            assert moved.tolist() == [[True, True], [False, False]]
            assert anew.shared.distributions.sigma.tolist() == after.shared.distributions.sigma.at[0].set(0.1).tolist()
        again, _, _ = emitter.ask(after, elites, (), jax.random.key(2))
        assert not jnp.array_equal(again.shared.distributions.mean, anew.shared.distributions.mean)
        one = elites._replace(genotypes=elites.genotypes.at[3].set(0.7), fitnesses=elites.fitnesses.at[3].set(1.0))
        begun, _, _ = emitter.ask(after, one, (), jax.random.key(2))
        np.testing.assert_allclose(begun.shared.distributions.mean[0], 0.7)
        assert jnp.array_equal(begun.shared.distributions.mean[1], after.shared.distributions.mean[1])
        assert (int(begun.shared.number), begun.shared.restarts.tolist()) == (1, [False, False])

    def test_it_fills_the_arm_better_than_its_first_generation(self):
        arm = named_scoring(rookery.envs.function("arm", 4))
        cells = grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
        emitter = cma_mae(arm, 32, CmaMaeConfig(emitters=4))
        result = rookery.run(map_elites(arm, archives.annealed(cells, 0.01), emitter), generations=30, quiet=True)
        first, last = result.history[0], result.history[-1]
        assert last["coverage"] > 2 * first["coverage"]
        assert last["qd_score"] > 2 * first["qd_score"]
        assert last["rejected"] == 0

    @pytest.mark.parametrize(
        ("batch_size", "options", "message"),
        [
            (100, {}, r"a multiple of the number of emitters \(15\), at least 30, got 100; use 90 or 105"),
            (15, {}, r"at least 30, got 15; use 30"),
        ],
    )
    def test_invalid_settings(self, batch_size, options, message):
        with pytest.raises(ValueError, match=message):
            cma_mae(SLOPE, batch_size, CmaMaeConfig(**options))

    def test_genotypes_that_it_cannot_evolve(self):
        long = function_scoring(slope, lambda key: jax.random.normal(key, (1_001,)), (0.0,), (1.0,))
        with pytest.raises(
            ValueError,
            match="covariance must be diagonal for genotypes of more than 1000 numbers, such as these of 1001",
        ):
            cma_mae(long, 30, CmaMaeConfig(covariance="full"))
        assert cma_mae(long, 30).settings["cma_mae"]["covariance"] == "diagonal"
        with pytest.raises(ValueError, match="cma_mae needs genotypes of float32 parameters alone"):
            cma_mae(learner_scoring(walks.learner(descriptor=True)), 30)
