"""QDax's documented functions give the same results compiled, batched, scanned, and mapped over devices."""

from typing import Any

import jax
import numpy as np
import pytest

from rookery.compat.qdax import PBTTD3
from tests import apart
from tests.compat.qdax.documented import population


@pytest.fixture(scope="module")
def mapped() -> dict[str, Any]:
    return apart.run_module("tests.compat.qdax.mapped", timeout=600)


def test_any_layout_gives_the_same_next_population(mapped):
    """With pmap and with a checked shard_map on 4 devices and without, with raw and typed keys."""
    before, *after = mapped["exploits"].values()
    assert len(after) == 3
    assert len(set(after)) == 1
    assert before not in after


def test_all_devices_have_the_same_repertoire(mapped):
    results = mapped["map_elites"]
    assert len(results["shares"]) == 4
    assert len(set(results["shares"])) == 1
    assert results["coverage"] == sorted(results["coverage"])
    assert results["coverage"][-1] > results["coverage"][0] > 100 * 4 / 36


def test_new_members_differ_between_devices_and_between_calls_with_the_same_keys(mapped):
    """4 of 8 members are replaced in each generation."""
    first, second = (np.ravel(discounts) for discounts in mapped["map_elites"]["discounts"])
    assert len(set(first)) == len(set(second)) == 8
    assert 4 <= int(np.sum(first != second)) <= 8


def close(left: Any, right: Any) -> None:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-6)


def test_an_update_is_equal_with_a_typed_key_batched_and_scanned():
    learner, states, buffers = population(PBTTD3, 2)
    one, rows = jax.tree.map(lambda leaf: leaf[0], (states, buffers))
    plain = jax.jit(learner.update)(one.replace(key=jax.random.wrap_key_data(one.key)), rows)
    close(jax.tree.map(lambda leaf: leaf[0], jax.jit(jax.vmap(learner.update))(states, buffers)), plain)
    scan = jax.jit(lambda state: jax.lax.scan(lambda carry, _: learner.update(carry, rows)[::2], state, length=1))
    close(scan(one)[0], plain[0])
