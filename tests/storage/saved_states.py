"""A state with every kind of leaf, and functions that save and compare states."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.storage.checkpoint import Checkpointer


class State(NamedTuple):
    params: Any
    counter: Any
    keys: Any
    nothing: Any
    empty: Any
    flags: Any
    python: Any


def make_state(seed: int) -> State:
    normal = jax.random.normal(jax.random.key(seed), (4, 3))
    return State(
        params={"kernel": normal, "half": normal.astype(jnp.bfloat16), "nan": jnp.array([jnp.nan, -0.0, jnp.inf])},
        counter=jnp.asarray(seed, jnp.int32),
        keys=jax.random.split(jax.random.key(seed), 3),
        nothing=None,
        empty=(jnp.zeros((0, 5)), jax.random.split(jax.random.key(0), 0), np.zeros((2, 0), np.int8)),
        flags=[jnp.array([True, False]), jnp.asarray(2**32 - 1, jnp.uint32), np.arange(3), np.float64(1 / 3)],
        python=(True, 7 + seed, 0.1),
    )


def bits(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array) if isinstance(b, jax.Array) else type(a) is type(b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
        assert bits(a) == bits(b)


def save_all(directory: Path, *generations: int, keep: int = 10) -> None:
    with Checkpointer(directory, keep=keep) as checkpointer:
        for generation in generations:
            checkpointer.save(generation, make_state(generation), {"made": generation})
