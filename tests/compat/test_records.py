"""Records: frozen pytrees with names for nested values, raw and typed keys, and counts that members share."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from rookery.compat import records


class Inner(NamedTuple):
    left: Any
    right: Any


class Tree(records.Record):
    paths: ClassVar[dict] = {"deep": ("inner", "left", "right"), "alias": ("inner",)}

    inner: Any
    count: Any
    width: int = records.static_field()


def tree() -> Tree:
    return Tree(Inner(Inner(1.0, jnp.arange(3)), 2.0), jnp.zeros(3), 7)


def test_static_fields_of_a_record_are_not_leaves():
    assert len(jax.tree.leaves(tree())) == 4
    assert jax.tree.map(lambda leaf: leaf + 1, tree()).width == 7
    mapped = jax.vmap(lambda one: one.replace(count=one.count + one.deep))(
        tree().replace(inner=Inner(Inner(jnp.ones(3), jnp.arange(3.0)), jnp.ones(3)))
    )
    assert mapped.count.tolist() == [0, 1, 2]


def test_names_of_nested_values_are_read_and_replaced():
    changed = tree().replace(deep=jnp.asarray(9), count=jnp.ones(3))
    assert (int(changed.deep), int(changed.inner.left.right)) == (9, 9)
    assert changed.inner.right == 2.0
    assert changed.count.tolist() == [1, 1, 1]
    assert tree().deep.tolist() == [0, 1, 2]  # the original is unchanged
    assert tree().replace(alias=Inner(5.0, 6.0)).inner == Inner(5.0, 6.0)
    with pytest.raises(AttributeError, match="Tree has no 'shallow'"):
        _ = tree().shallow


@pytest.mark.parametrize("count", [2, 4])
def test_raw_and_typed_keys_are_stored_raw_and_used_typed(count: int):
    next_key, used = records.split_key(jax.random.key(5), count)
    next_of_raw, used_of_raw = records.split_key(jax.random.PRNGKey(5), count)
    assert next_key.dtype == jnp.uint32
    assert next_key.shape == (2,)
    assert next_key.tolist() == next_of_raw.tolist()
    assert used.shape == (() if count == 2 else (count - 1,))
    assert jnp.issubdtype(used.dtype, jax.dtypes.prng_key)
    assert jax.random.key_data(used).tolist() == jax.random.key_data(used_of_raw).tolist()
    used_keys = jax.random.key_data(used).reshape(-1, 2).tolist()
    assert next_key.tolist() not in used_keys


def test_a_condition_on_a_shared_count_remains_a_branch():
    def delayed(count: jax.Array, value: jax.Array) -> jax.Array:
        return jax.lax.cond(records.shared_count(count) % 2 == 0, lambda x: 2 * x, lambda x: x, value)

    def repeated(count: jax.Array, value: jax.Array) -> jax.Array:
        def body(carry: tuple, _: None) -> tuple:
            count, value = carry
            return (count + 1, delayed(count, value)), None

        return jax.lax.scan(body, (count, value), length=3)[0][1]

    counts, values = jnp.zeros((2, 4), jnp.int32), jnp.ones((2, 4))
    mapped = jax.vmap(jax.vmap(repeated))
    assert mapped(counts, values).tolist() == jnp.full((2, 4), 4.0).tolist()
    assert "cond" in str(jax.make_jaxpr(mapped)(counts, values))
    assert delayed(jnp.asarray(1), jnp.asarray(3.0)) == 3.0
