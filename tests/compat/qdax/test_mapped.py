"""QDax's documented functions give the same however JAX maps them: compiled, batched, scanned, and over devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.compat.qdax import PBTTD3
from tests import apart
from tests.compat.qdax.documented import population


@pytest.fixture(scope="module")
def mapped() -> dict[str, Any]:
    return apart.run_module("tests.compat.qdax.mapped", timeout=600)


def test_any_layout_gives_the_same_next_population(mapped):
    """By pmap and by a checked shard_map, on 1 and 4 devices, with raw keys and typed ones."""
    before, *after = mapped["exploits"].values()
    assert len(after) == 4
    assert len(set(after)) == 1
    assert before not in after


def test_members_train_and_are_judged_alike_in_a_mapped_axis(mapped):
    lives = mapped["lives"]
    assert lives.pop("trained") > 1e-4
    assert set(lives) == {"pmap 4", "checked"}
    assert max(lives.values()) < 1e-5


def test_all_devices_have_one_repertoire(mapped):
    bred = mapped["bred"]
    assert len(bred["shares"]) == 4
    assert len(set(bred["shares"])) == 1
    assert bred["coverage"] == sorted(bred["coverage"])
    assert bred["coverage"][-1] > bred["coverage"][0] > 100 * 4 / 36


def test_newcomers_differ_over_devices_and_over_calls_with_the_same_keys(mapped):
    """Of 8 members 4 are replaced in each generation."""
    first, second = (np.ravel(discounts) for discounts in mapped["bred"]["discounts"])
    assert len(set(first)) == len(set(second)) == 8
    assert 4 <= int(np.sum(first != second)) <= 8


def close(left: Any, right: Any) -> None:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    for mine, other in pairs:
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-5, atol=1e-6)


def test_one_agent_goes_alike_called_compiled_batched_and_scanned():
    made, states, buffers = population(PBTTD3, 2)
    one, rows = jax.tree.map(lambda leaf: leaf[0], (states, buffers))
    plain = made.update(one.replace(key=jax.random.wrap_key_data(one.key)), rows)
    close(jax.jit(made.update)(one, rows), plain)
    close(jax.tree.map(lambda leaf: leaf[0], jax.jit(jax.vmap(made.update))(states, buffers)), plain)
    scan = jax.jit(lambda state: jax.lax.scan(lambda carry, _: made.update(carry, rows)[::2], state, length=1))
    close(scan(one)[0], plain[0])


def test_a_key_of_either_kind_begins_the_same_population():
    made, _, _ = population(PBTTD3, 2)
    begin = made.get_init_fn(2, 2, 2, 16)
    raw, typed = begin(jax.random.PRNGKey(7)), begin(jax.random.key(7))
    close(raw, typed)
    assert raw[0].key.dtype == jnp.uint32  # what is kept can be stored like any array
