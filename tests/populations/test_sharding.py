"""Moved rows: from arbitrary sources, along chains of parents, and in cycles."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.populations import sharding
from rookery.populations.sharding import _depth, move_here, moved, rows_at_once

SIZE = 17


def rows(size: int = SIZE) -> dict[str, jax.Array]:
    numbers = np.arange(size)
    return {
        "weights": jnp.asarray(numbers[:, None] * [1.0, -2.0], jnp.float32),
        "count": jnp.asarray(numbers, jnp.int32),
    }


@partial(jax.jit, static_argnames=("in_place", "few_at_a_time"))
def move(tree: dict[str, jax.Array], sources: jax.Array, in_place: bool, few_at_a_time: bool) -> dict[str, jax.Array]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "_GATHERED_BYTES", 0 if few_at_a_time else 1000)
        return moved(tree, sources, sharding.WHOLE, in_place)


def assert_moved(tree: dict[str, jax.Array], sources: np.ndarray, in_place: bool) -> None:
    for few_at_a_time in (False, True):  # as in a small population, and as in a large one
        result = move(tree, jnp.asarray(sources, jnp.int32), in_place, few_at_a_time)
        for name, leaf in tree.items():
            np.testing.assert_array_equal(result[name], np.asarray(leaf)[sources])


@pytest.mark.parametrize("seed", range(3))
def test_a_forest_moves_in_place_and_every_row_may_come_from_any_other(seed):
    """Parents rank better than their children, so any lower number may be one; several generations deep."""
    rng = np.random.default_rng(seed)
    parents = np.asarray([rng.integers(0, member + 1) for member in range(SIZE)])
    order = rng.permutation(SIZE)  # ranks are independent of the slots
    sources = np.empty(SIZE, int)
    sources[order] = order[parents]
    assert_moved(rows(), sources, in_place=True)
    for any_sources in (sources, rng.permutation(SIZE)):
        assert_moved(rows(), any_sources, in_place=False)


def test_a_chain_small_populations_and_a_tree_without_leaves():
    assert_moved(rows(), np.maximum(np.arange(SIZE) - 1, 0), in_place=True)
    for size in (1, 2):
        assert_moved(rows(size), np.zeros(size, int), in_place=True)
    assert move_here((), jnp.arange(3), in_place=True) == ()  # such as the buffers of on-policy learners


@pytest.mark.parametrize(("columns", "loops"), [(2**18, False), (2**18 + 1, True)])
def test_up_to_16_megabytes_are_gathered_on_one_device(columns, loops):
    tree = jax.ShapeDtypeStruct((16, columns), jnp.float32)
    traced = jax.make_jaxpr(move_here)(tree, jax.ShapeDtypeStruct((16,), jnp.int32))
    assert ("while" in str(traced)) == loops


def test_depth_counts_the_steps_to_a_survivor():
    parents = jnp.asarray([0, 0, 1, 2, 4, 3])
    assert _depth(parents).tolist() == [0, 1, 2, 3, 0, 4]
    circle = _depth(jnp.asarray([1, 2, 0, 3]))
    assert circle[0] == circle[1] == circle[2] >= 4
    assert circle[3] == 0


def test_an_eighth_of_the_rows_move_at_once_and_no_more_than_64_megabytes():
    assert rows_at_once(rows(800), 800) == 100
    large = {"buffer": jax.ShapeDtypeStruct((800, 2**22), jnp.float32)}  # 16 MiB a row
    assert rows_at_once(large, 800) == 4
    assert rows_at_once(rows(3), 3) == 1
