"""Frozen records that JAX can map, for whoever writes classes around pure functions; and the keys that they keep."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, dataclass_transform

import jax
import jax.numpy as jnp

from rookery.types import Array, Key, PyTree


@dataclass_transform(frozen_default=True)
class Record:
    """A frozen dataclass and pytree; whoever inherits becomes one.

    Names in `paths` stand for what lies deeper, in NamedTuples, and are read and replaced like fields.
    """

    paths: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init_subclass__(cls) -> None:
        """Make it one."""
        jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))

    def __getattr__(self, name: str) -> Any:
        """What lies at the path of that name."""
        if name not in type(self).paths:
            raise AttributeError(f"{type(self).__name__} has no {name!r}.")
        value: Any = self
        for step in type(self).paths[name]:
            value = getattr(value, step)
        return value

    def replace(self, **changes: Any) -> Self:
        """The same record with some fields changed."""
        plain = {name: value for name, value in changes.items() if name not in self.paths}
        result = dataclasses.replace(self, **plain)  # pyright: ignore[reportArgumentType]
        for name in changes.keys() - plain.keys():
            field, *path = self.paths[name]
            changed = _put(getattr(result, field), path, changes[name]) if path else changes[name]
            result = dataclasses.replace(result, **{field: changed})  # pyright: ignore[reportArgumentType]
        return result


def _put(tree: Any, path: list[str], value: PyTree) -> Any:
    name, *rest = path
    return tree._replace(**{name: _put(getattr(tree, name), rest, value) if rest else value})


def static() -> Any:
    """A field of a record that is no leaf: it decides shapes."""
    return dataclasses.field(metadata={"static": True})


def typed(key: Key) -> Key:
    """A typed key from one of either kind, raw (`[2]` uint32) or typed."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def split(key: Key, count: int = 2) -> tuple[Array, Key]:
    """What a record keeps of its key, raw, so that it can be stored like any array; and `count - 1` typed keys to
    consume, one alone without an axis."""
    keys = jax.random.split(typed(key), count)
    return jax.random.key_data(keys[0]), keys[1] if count == 2 else keys[1:]


@jax.custom_batching.custom_vmap
def in_step(count: Array) -> Array:
    """A count `[]` that all members of a population have in common: it stays `[]` where they are mapped, so that what
    is delayed by it is really skipped. Should members differ, the first one's counts for all."""
    return count


@in_step.def_vmap
def _in_step(size: int, batched: list[bool], count: Array) -> tuple[Array, bool]:
    del size
    return in_step(count[0] if batched[0] else count), False  # of the axes further out as well


def check(holds: bool, otherwise: str) -> None:
    """Refuse what does not hold.

    Raises:
      ValueError: it does not; the message is `otherwise`.
    """
    if not holds:
        raise ValueError(otherwise)


def check_counts(**counts: int) -> None:
    """Refuse numbers of something below 1.

    Raises:
      ValueError: there is one; the message has its name.
    """
    for name, value in counts.items():
        check(value >= 1, f"{name} must be at least 1, got {value}.")


def by_agent(what: str, count: int, numbers: Array, leading: int = 0) -> Array:
    """Numbers `[..., I]` from code of a user's own, which gave them for each of so many leading axes.

    Raises:
      ValueError: it gave another number of them.
    """
    numbers = jnp.asarray(numbers)
    shape = numbers.shape[leading:]
    check(math.prod(shape) == count, f"{what} gives shape {shape} for {count} actors; make it ({count},).")
    return numbers.reshape(*numbers.shape[:leading], count)
