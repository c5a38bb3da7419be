"""Members mapped in chunks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents import backend


def _scaled(values: dict, factor: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    noise = jax.random.normal(key, values["x"].shape)
    return factor * values["x"] + noise, jax.lax.cond(factor > 1.0, jnp.sum, jnp.max, values["x"])


@pytest.mark.parametrize("size", [4, 6, 7])
def test_chunks_of_members_equal_all_members_at_once(size: int) -> None:
    values = {"x": jnp.arange(3.0 * size).reshape(size, 3)}
    keys, factor = jax.random.split(jax.random.key(0), size), jnp.float32(2.0)
    results = [
        jax.jit(jax.vmap(function, in_axes=(0, None, 0)))(values, factor, keys)
        for function in (_scaled, backend.in_chunks(_scaled))
    ]
    for expected, chunked in zip(*results, strict=True):
        np.testing.assert_array_equal(expected, chunked)
    np.testing.assert_array_equal(results[1][1], values["x"].sum(axis=1))


def test_chunks_are_a_loop_on_a_cpu_only_and_leave_shared_arguments_shared() -> None:
    mapped = jax.vmap(backend.in_chunks(_scaled), in_axes=(0, None, 0))
    arguments = {"x": jnp.ones((8, 3))}, jnp.float32(2.0), jax.random.split(jax.random.key(0), 8)
    text = str(jax.make_jaxpr(mapped)(*arguments))
    assert "scan[" in text
    assert "length=2" in text
    assert "cond[" in text  # not replaced by a select: the condition is the same for all members
    with backend.tracing_for("gpu"):
        assert "scan[" not in str(jax.make_jaxpr(mapped)(*arguments))
