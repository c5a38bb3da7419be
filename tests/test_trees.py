"""Pytrees with a leading axis: whole rows are selected and written, and all others are unchanged."""

import math
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import trees


class Pair(NamedTuple):
    wide: jax.Array  # [N, 2]
    flag: jax.Array  # [N] bool


def pair(*rows: float) -> Pair:
    """Rows `(x, 10 x)` and whether x is even."""
    values = jnp.asarray(rows, jnp.float32)
    return Pair(jnp.stack([values, 10 * values], axis=1), values % 2 == 0)


def assert_same(one: Pair, other: Pair) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_numbers_from_outside_are_float_and_nan_where_they_are_masked() -> None:
    masked = np.ma.masked_array([1, 2], [False, True])
    swapped, given = np.asarray([1.0, 2.0], ">f8"), [Fraction(1, 2), "2"]
    for values, expected in ((masked, [1.0, np.nan]), (swapped, [1.0, 2.0]), (given, [0.5, 2.0]), (True, 1.0)):
        found = trees.unmasked(values, np.float32)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "values",
    [
        np.full(2, np.datetime64("2020")),
        np.full(2, np.timedelta64(1, "s")),
        np.zeros(2, [("x", "f4")]),
        np.ones(2) * 1j,
        (one for one in [1.0, 2.0]),
        [1.0, [2.0]],
        ["a", "b"],
        10**400,
    ],
    ids=lambda values: type(values).__name__,  # the text of a generator has an address, another one in each process
)
def test_what_is_no_number_is_no_number_from_outside(values) -> None:
    with pytest.raises(ValueError, match=r"^an array or a list of numbers is needed, got an object of type "):
        trees.unmasked(values, np.float32)


def test_take_returns_the_rows_that_stack_made_in_the_order_of_the_indices() -> None:
    singles = [Pair(jnp.asarray([x, 10 * x]), jnp.asarray(x % 2 == 0)) for x in (1.0, 2.0, 3.0)]
    stacked = trees.stack(singles)
    assert_same(stacked, pair(1, 2, 3))
    for index, single in enumerate(singles):
        assert_same(trees.take(stacked, index), single)
    assert_same(trees.take(stacked, jnp.asarray([2, 0, 2])), pair(3, 1, 3))
    with pytest.raises(ValueError, match=r"^stack needs at least one tree; got an empty sequence\.$"):
        trees.stack([])


def test_indices_are_uniform_below_a_size_for_each_row() -> None:
    draw = jax.jit(jax.vmap(lambda key, size: trees.indices(key, (30, 40), size)))
    drawn = draw(jax.random.split(jax.random.key(0), 3), jnp.asarray([1, 5, 1200], jnp.int32))
    assert (drawn.shape, drawn.dtype) == ((3, 30, 40), jnp.int32)
    assert not drawn[0].any()
    counts = np.bincount(np.asarray(drawn[1]).reshape(-1))
    assert len(counts) == 5
    assert np.abs(counts - 240).max() < 5 * math.sqrt(240 * 0.8)
    assert 1150 < np.asarray(drawn[2]).max() < 1200


def test_where_with_one_condition_chooses_a_whole_tree() -> None:
    for condition, expected in ((True, pair(1, 2)), (False, pair(3, 4))):
        assert_same(trees.where(jnp.asarray(condition), pair(1, 2), pair(3, 4)), expected)


def test_where_with_a_condition_per_row_chooses_whole_rows_of_any_rank() -> None:
    assert_same(trees.where(jnp.asarray([True, False, True]), pair(1, 2, 3), pair(4, 5, 6)), pair(1, 5, 3))
    broken = Pair(jnp.full((2, 2), jnp.nan), jnp.asarray([False, False]))
    assert_same(trees.where(jnp.asarray([False, False]), broken, pair(4, 6)), pair(4, 6))


def test_where_takes_python_scalars_and_typed_keys() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    chosen = trees.where(jnp.asarray(False), {"key": keys[0], "x": 1.0}, {"key": keys[1], "x": 2.0})
    assert jax.random.key_data(chosen["key"]).tolist() == jax.random.key_data(keys[1]).tolist()
    assert float(chosen["x"]) == 2.0


def test_scatter_writes_the_rows_named_drops_others_and_survives_its_inputs() -> None:
    old = pair(1, 2, 3, 4)
    assert_same(trees.scatter(old, jnp.asarray([3, 1]), pair(8, 9)), pair(1, 9, 3, 8))
    assert_same(trees.scatter(old, jnp.asarray([4, 0, 100]), pair(7, 8, 9)), pair(8, 2, 3, 4))
    assert_same(old, pair(1, 2, 3, 4))


def test_all_finite_finds_one_non_finite_number_in_one_leaf_and_in_each_row_under_vmap() -> None:
    for number in (1.0, np.nan, np.inf, -np.inf):
        tree = {"a": jnp.zeros((2, 3)), "b": jnp.asarray([0.0, number]), "i": jnp.arange(3), "k": jax.random.key(0)}
        assert bool(trees.all_finite(tree)) is (number == 1.0)
    assert bool(trees.all_finite({"i": jnp.arange(3), "flag": jnp.asarray(False), "none": jnp.zeros((0,))}))
    assert bool(trees.all_finite(()))
    rows = Pair(jnp.asarray([[1.0, 2.0], [jnp.nan, 1.0], [1.0, jnp.inf]]), jnp.asarray([True, True, True]))
    assert jax.vmap(trees.all_finite)(rows).tolist() == [True, False, False]
