"""The rule of exchange, beside a plain Python reference."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.distributed.mesh import make_mesh
from rookery.islands.exchange import sampled, sources
from rookery.islands.migration import migration
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import pbt
from tests import tiny

NAN, INF = math.nan, math.inf
CASES = [
    # members, migrants, fraction
    ([1.0, 2.0, 3.0, 4.0], [5.0, 0.0, 2.5], 0.25),
    ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0], 0.5),
    ([1.0, 1.0, 1.0, 1.0], [1.0, 1.0], 1.0),
    ([NAN, 2.0, INF, 1.0], [NAN, 1.5, 3.0], 0.5),
    ([NAN, NAN], [NAN, 0.0], 0.5),
    ([NAN, NAN, NAN], [NAN], 1.0),
    ([4.0, 3.0, 2.0, 1.0, 0.0, -1.0, -2.0, -3.0], [10.0, -10.0], 0.25),
    ([1.0, 2.0], [3.0, 3.0, 3.0], 0.0),
    ([2.0], [3.0, 1.0], 1.0),
    ([2.0], [3.0], 0.25),
    ([0.0, -0.0, 0.0], [0.0, 1e-6], 0.34),
]


def reference(members: list[float], migrants: list[float], fraction: float, key: jax.Array) -> list[int]:
    """The rule, one member after the other."""
    value = [fitness if math.isfinite(fitness) else -INF for fitness in [*members, *migrants]]
    size, result = len(members), []
    order = sorted(range(len(value)), key=lambda i: (-value[i], i))
    best = order[: max(1, math.floor(fraction * len(value) + 0.5))]
    worst = sorted(range(size), key=lambda i: (-value[i], i))[size - max(1, math.floor(fraction * size + 0.5)) :]
    for member in range(size):
        better = [i for i in best if value[i] > value[member]]
        drawn = int(jax.random.bits(jax.random.fold_in(key, member))) % max(len(better), 1)
        chosen = better[drawn] if better else member
        result.append(chosen - size if member in worst and chosen >= size and fraction > 0 else -1)
    return result


@pytest.mark.parametrize(("members", "migrants", "fraction"), CASES)
def test_the_rule_is_that_of_the_reference(members, migrants, fraction):
    rule = jax.jit(sources, static_argnums=2)
    for seed in range(8):
        key = jax.random.key(seed)
        found = rule(jnp.asarray(members), jnp.asarray(migrants), fraction, key)
        assert found.dtype == jnp.int32
        assert found.tolist() == reference(members, migrants, fraction, key)
        assert all(chosen < 0 or math.isfinite(migrants[chosen]) for chosen in found.tolist())


def test_members_draw_differently():
    rule = jax.jit(lambda key: sources(jnp.zeros(6), jnp.arange(1.0, 7.0), 1.0, key))
    draws = {tuple(rule(jax.random.key(seed)).tolist()) for seed in range(10)}
    assert len(draws) == 10
    assert max(len(set(draw)) for draw in draws) > 3


def test_a_random_share_of_the_occupied_cells():
    occupied = np.array([True, False, True, True, False, True, True, True])
    found = sampled(occupied, 0.5, np.random.default_rng(0))
    assert found.dtype == np.int64
    assert len(found) == 3
    assert list(found) == sorted(set(found))
    assert occupied[found].all()
    assert set().union(*(sampled(occupied, 0.2, np.random.default_rng(s)) for s in range(50))) == {0, 2, 3, 5, 6, 7}
    assert sampled(occupied, 1.0, np.random.default_rng(0)).tolist() == [0, 2, 3, 5, 6, 7]
    assert len(sampled(occupied, 1e-9, np.random.default_rng(0))) == 1
    assert len(sampled(occupied, 0.0, np.random.default_rng(0))) == 0
    assert len(sampled(np.zeros(4, bool), 0.5, np.random.default_rng(0))) == 0


def test_an_imported_member_has_the_width_of_its_hyper_parameters_and_no_transitions_of_another():
    """Where a child has the transitions of its parent."""
    learner = tiny.learner()
    space = rookery.choose(learner.space, hidden_size=(2, 8))
    config = PbtConfig(resample_probability=1.0, inherit_buffer=True)
    program = pbt(learner, space, 4, config)
    exchanged = migration(program, make_mesh(1), 0.5, config)
    state = jax.jit(program.init)(jax.random.key(0))
    full = state.members.buffer._replace(size=jnp.full(4, 7, jnp.int32))
    shared = state.shared._replace(recent=jnp.arange(4.0)[:, None])
    state = state._replace(members=state.members._replace(buffer=full), shared=shared)
    published = exchanged.publish(state, jax.random.key(1))
    assert published is not None
    loaded = exchanged.load(state, {0: published, 1: published}, jax.random.key(2)).members
    kernels = loaded.state.policy.params["params"]["Dense_0"]["kernel"]
    np.testing.assert_array_equal((kernels != 0).any(axis=1).sum(axis=1), loaded.hyper.hidden_size)
    assert loaded.buffer.size.tolist() == [0, 0, 7, 7]
