"""Scoring functions, worked out by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.tasks.functions import Function, function, names


def score(name: str, *genotype: float) -> tuple[float, list[float]]:
    fitness, descriptor = function(name, len(genotype)).score(jnp.asarray(genotype, jnp.float32))
    return float(fitness), descriptor.tolist()


@pytest.mark.parametrize("name", names())
class TestEveryFunction:
    def test_genotypes_and_scores_are_as_declared_and_one_is_scored_like_many(self, name):
        made = function(name)
        assert isinstance(made, Function)
        assert (made.name, made.size) == (name, {"arm": 8, "sphere": 20, "rastrigin": 20}[name])
        assert (made.descriptor.kind, made.descriptor.size, function(name, 6).size) == ("final", 2, 6)
        genotypes = jax.jit(jax.vmap(made.init))(jax.random.split(jax.random.key(0), 500))
        fitness, descriptors = jax.jit(jax.vmap(made.score))(genotypes)
        alone = jax.jit(made.score)(genotypes[7])
        np.testing.assert_allclose(fitness[7], alone[0], rtol=1e-5)
        np.testing.assert_allclose(descriptors[7], alone[1], rtol=1e-5, atol=1e-6)
        assert (genotypes.shape, genotypes.dtype) == ((500, made.size), jnp.float32)
        assert len(np.unique(genotypes)) > 9_000 * made.size // 20
        assert (fitness.shape, fitness.dtype) == ((500,), jnp.float32)
        assert (descriptors.shape, descriptors.dtype) == ((500, 2), jnp.float32)
        assert (descriptors >= jnp.asarray([made.descriptor.lower])).all()
        assert (descriptors <= jnp.asarray([made.descriptor.upper])).all()
        assert (fitness >= made.worst_fitness).all()
        if made.bounds:
            assert (genotypes >= made.bounds[0]).all()
            assert (genotypes <= made.bounds[1]).all()


class TestArm:
    @pytest.mark.parametrize(
        ("genotype", "end"),
        [
            ((0.5,) * 5, (1.0, 0.5)),  # straight ahead
            ((0.0, 0.5, 0.5), (0.0, 0.5)),  # turned round at its base
            ((0.75, 0.5), (0.5, 1.0)),  # straight up
            ((0.75, 0.25), (0.75, 0.75)),  # half a length up, then half a length ahead
            ((0.5, 1.0), (0.5, 0.5)),  # folded back to the base
            ((0.75,) * 4, (0.5, 0.5)),  # a square
            ((2 / 3,), (0.75, 0.5 + math.sqrt(3) / 4)),  # 60 degrees
        ],
    )
    def test_where_it_ends(self, genotype, end):
        assert score("arm", *genotype)[1] == pytest.approx(end, abs=1e-6)

    def test_fitness_is_minus_the_spread(self):
        assert score("arm", 0.3, 0.3, 0.3)[0] == pytest.approx(0.0, abs=1e-7)
        assert score("arm", 0.2, 0.4)[0] == pytest.approx(-0.1)
        assert score("arm", 0.0, 1.0, 0.0, 1.0)[0] == pytest.approx(-0.5)
        made = function("arm")
        assert (made.worst_fitness, made.bounds) == (-0.5, (0.0, 1.0))
        assert (made.descriptor.lower, made.descriptor.upper) == ((0.0, 0.0), (1.0, 1.0))


@pytest.mark.parametrize("name", ["sphere", "rastrigin"])
class TestProjected:
    def test_the_optimum_is_worth_100(self, name):
        fitness, descriptor = score(name, *[2.048] * 6)
        assert fitness == pytest.approx(100.0, abs=1e-4)
        assert descriptor == pytest.approx([6.144, 6.144], rel=1e-6)

    def test_the_corner_is_worth_nothing(self, name):
        fitness, descriptor = score(name, *[-5.12] * 4)
        assert fitness == pytest.approx(0.0, abs=1e-4)
        assert descriptor == pytest.approx([-10.24, -10.24])
        made = function(name)
        assert (made.worst_fitness, made.bounds) == (0.0, None)
        assert (made.descriptor.lower, made.descriptor.upper) == (
            pytest.approx((-51.2,) * 2),
            pytest.approx((51.2,) * 2),
        )
        assert function(name, 4).descriptor.upper == pytest.approx((10.24, 10.24))
        fitness, descriptor = score(name, 0.0, 0.0)  # nothing spoils an entry of zero
        assert math.isfinite(fitness)
        assert descriptor == [0.0, 0.0]

    def test_joints_beyond_the_edge_count_their_reciprocal(self, name):
        _, descriptor = score(name, 10.24, 1.0, -51.2, 5.12)
        assert descriptor == pytest.approx([0.5 + 1.0, -0.1 + 5.12])


def test_the_sphere_between():
    # Distances to 2.048 are 1 and 3; the worst is 2 x 7.168^2.
    assert score("sphere", 3.048, -0.952)[0] == pytest.approx(100 * (1 - 10 / (2 * 7.168**2)))


def test_rastrigin_between():
    # At a distance of 1/2 the cosine is -1: 0.25 + 20; at 1 it is 1: 1 + 0.
    worst = 7.168**2 + 10 - 10 * math.cos(2 * math.pi * 7.168)
    assert score("rastrigin", 2.548, 3.048)[0] == pytest.approx(100 * (1 - (20.25 + 1.0) / (2 * worst)), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "size", "sentence"),
    [
        ("arm", 0, r"^the size of 'arm' must be at least 1, got 0\.$"),
        ("sphere", 3, r"^the size of 'sphere' must be even and at least 2, got 3\.$"),
        ("spehre", None, r"^there is no scoring function 'spehre'; did you mean sphere\?$"),
    ],
)
def test_what_does_not_exist_is_refused(name, size, sentence):
    with pytest.raises(ValueError, match=sentence):
        function(name, size)
