"""The iso+line operator: the noise shared by the whole tree, the noise of each number, and whole numbers."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.populations.base import member_keys
from rookery.qd import variation
from rookery.qd.variation import VariationConfig, child, iso_line
from rookery.types import Genotype
from tests import tiny

KEY = jax.random.key(3)


class Hyper(NamedTuple):
    rate: jax.Array


def parent(seed: int) -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "kernel": jax.random.normal(keys[0], (40, 50)),
        "bias": 100.0 * jax.random.normal(keys[1], (50,)),
        "scalar": jax.random.normal(keys[2], ()),
        "half": jnp.asarray([seed, 2 * seed], jnp.float16),
        "steps": jnp.asarray(seed, jnp.int32),
        "flag": jnp.asarray([seed == 1, seed == 2]),
    }


FIRST, SECOND = parent(1), parent(2)
FLOATING = ("kernel", "bias", "scalar")


def test_one_step_along_the_line_for_the_whole_tree():
    tiny.assert_equal(iso_line(FIRST, SECOND, KEY, VariationConfig(0.0, 0.0)), FIRST)
    varied = iso_line(FIRST, SECOND, KEY, VariationConfig(0.0, 0.5))
    steps = [(varied[name] - FIRST[name]) / (SECOND[name] - FIRST[name]) for name in FLOATING]
    step = float(steps[2])
    assert abs(step) > 1e-3, "no step shows nothing"
    for solved in steps:
        np.testing.assert_allclose(np.median(solved), step, rtol=1e-4)
    np.testing.assert_allclose(varied["half"] - FIRST["half"], np.asarray([1, 2]) * step, atol=0.01)


def test_the_step_is_normal_with_its_deviation():
    config = VariationConfig(0.0, 0.25)
    first, second = jnp.zeros(()), jnp.ones(())
    steps = jax.vmap(lambda key: iso_line(first, second, key, config))(member_keys(KEY, 20_000))
    assert abs(float(jnp.mean(steps))) < 5 * 0.25 / 20_000**0.5
    assert abs(float(jnp.std(steps)) / 0.25 - 1.0) < 5 / (2 * 20_000) ** 0.5
    assert 0.2 < float(jnp.mean(steps < -0.1)) < 0.5, "it may lead away from the second parent"


def test_a_child_of_equal_parents_differs_by_the_isotropic_noise_alone():
    varied = iso_line(FIRST, FIRST, KEY, VariationConfig(0.02, 9.0))
    noise = np.asarray(varied["kernel"] - FIRST["kernel"])
    assert abs(noise.std() / 0.02 - 1.0) < 5 / (2 * noise.size) ** 0.5
    assert abs(noise.mean()) < 5 * 0.02 / noise.size**0.5
    assert len(np.unique(noise)) > 1_900, "every entry has a draw of its own"
    twins = {"a": jnp.zeros((7,)), "b": jnp.zeros((7,))}  # leaves of equal shape have different noise
    varied = iso_line(twins, twins, KEY, VariationConfig(1.0, 0.0))
    assert not (varied["a"] == varied["b"]).any()


def test_the_two_noises_add():
    iso, line = (iso_line(FIRST, SECOND, KEY, VariationConfig(*sigmas)) for sigmas in ((0.1, 0.0), (0.0, 0.5)))
    both = iso_line(FIRST, SECOND, KEY, VariationConfig(0.1, 0.5))
    for name in FLOATING:
        np.testing.assert_allclose(both[name], iso[name] + line[name] - FIRST[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["int8", "uint32", "bool"])
def test_whole_numbers_vary_and_stay_whole_and_are_right_in_the_mean(kind):
    first, second = jnp.asarray([1, 0, 1], kind), jnp.asarray([1, 1, 0], kind)
    many = jax.vmap(lambda key: iso_line(first, second, key, VariationConfig(0.3, 0.3)))(member_keys(KEY, 20_000))
    assert many.dtype == first.dtype
    assert (np.asarray(many) != np.asarray(first)).any(axis=0).all()
    if kind.startswith("int"):
        np.testing.assert_allclose(np.mean(many, axis=0), first, atol=5 * 0.7 / 20_000**0.5)


def test_whole_numbers_stay_in_the_range_of_their_type_and_keep_their_digits():
    ends = {kind: jnp.asarray([jnp.iinfo(kind).min, 0, jnp.iinfo(kind).max], kind) for kind in ("uint8", "int32")}
    config = VariationConfig(3.0, 0.0)
    many = jax.vmap(lambda key: iso_line(ends, ends, key, config))(member_keys(KEY, 500))
    for kind, leaf in many.items():
        distance = np.abs(np.asarray(leaf, np.float64) - np.asarray(ends[kind], np.float64))
        assert distance[:, 1].max() >= 2
        assert distance.max() < 30, "no number wraps to the other end"
    large = jnp.full((8,), 2**30 + 1, jnp.int32)
    varied = np.asarray(iso_line(large, large, KEY, VariationConfig(50.0, 0.0)))
    assert (abs(varied - 2**30 - 1) > 0).any()
    assert (abs(varied - 2**30 - 1) < 300).all()
    assert (varied % 64 > 0).any(), "rounded to float32 all would be multiples"


def test_each_leaf_keeps_its_type_and_one_that_cannot_vary_is_an_error():
    varied = iso_line(FIRST, SECOND, KEY, VariationConfig(10.0, 10.0))
    assert {name: leaf.dtype for name, leaf in varied.items()} == {name: leaf.dtype for name, leaf in FIRST.items()}
    assert (varied["half"] != FIRST["half"]).any()
    with pytest.raises(TypeError, match=r"but the genotype has a leaf of type key<fry>; leave it out"):
        iso_line({"x": FIRST["bias"], "key": KEY}, {"x": FIRST["bias"], "key": KEY}, KEY, VariationConfig())


def test_an_agent_keeps_the_hyper_parameters_and_the_statistics_of_the_first_parent():
    genotypes = [
        Genotype(params, Hyper(jnp.asarray(rate)), {"mean": jnp.full((2,), rate)})
        for params, rate in ((FIRST, 0.1), (SECOND, 0.2))
    ]
    config = VariationConfig(1.0, 1.0)
    created, varied = child(genotypes[0], genotypes[1], KEY, config), iso_line(FIRST, SECOND, KEY, config)
    tiny.assert_equal((created.hyper, created.normalizer), genotypes[0][1:])
    tiny.assert_equal(created.params, varied)
    tiny.assert_equal(child(FIRST, SECOND, KEY, config), varied)  # of any other tree all leaves vary
    assert not jnp.array_equal(created.params["kernel"], FIRST["kernel"])


def test_children_of_one_pair_differ_by_their_keys():
    make = partial(iso_line, FIRST, SECOND, config=VariationConfig())
    created = jax.vmap(make)(member_keys(KEY, 6))
    for name in FLOATING:
        assert len({leaf.tobytes() for leaf in np.asarray(created[name])}) == 6
    np.testing.assert_allclose(created["kernel"][2], make(member_keys(KEY, 3)[2])["kernel"], rtol=1e-5, atol=1e-6)


def test_whole_numbers_reach_both_ends_of_their_type():
    low, high = jnp.zeros((), jnp.uint32), jnp.asarray(4_000_000_000, jnp.uint32)
    for first, second, expected in ((low, high, 3.6e9), (high, low, 0.4e9)):
        found = float(variation._vary(first, second, jnp.float32(0.9), jnp.zeros(()), jnp.float32(0.5)))
        assert abs(found - expected) < 300, "float32 has 24 bits"
    for kind in ("int8", "int16"):
        near = jnp.full((200,), jnp.iinfo(kind).min + 1, kind)
        assert iso_line(near, near, KEY, VariationConfig(1.0, 0.0)).min() == jnp.iinfo(kind).min
