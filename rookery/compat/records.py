"""Frozen dataclasses that are JAX pytrees, and the key, shape and argument helpers of the compatibility classes."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from rookery.types import Array, Key, PyTree


@dataclass_transform(frozen_default=True)
class Record:
    """Base class that makes each subclass a frozen dataclass registered as a pytree.

    `paths` maps additional attribute names to paths into nested NamedTuples. These names are read, and set by
    `replace`, like fields.
    """

    paths: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls) -> None:
        """Register the subclass as a frozen dataclass and pytree."""
        jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))

    def __getattr__(self, name: str) -> Any:
        """Return the nested value that `paths` defines for `name`."""
        if name not in type(self).paths:
            raise AttributeError(f"{type(self).__name__} has no {name!r}.")
        value: Any = self
        for step in type(self).paths[name]:
            value = getattr(value, step)
        return value

    def replace(self, **changes: object) -> Self:
        """Return a copy with the given fields, or values at names of `paths`, changed."""
        return type(self)(**self.nested(vars(self), changes))

    @classmethod
    def nested(cls, fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Put values at names of fields, then those at names of `paths`, into copies of the fields."""
        fields = dict(fields)
        for name in sorted(changes, key=lambda name: name in cls.paths):
            field, *path = cls.paths.get(name, (name,))
            fields[field] = _put(fields.get(field), path, changes[name])
        return fields


def _put(tree: Any, path: list[str], value: PyTree) -> Any:
    if not path:
        return value
    name, *rest = path
    return tree._replace(**{name: _put(getattr(tree, name), rest, value)})


ResultT = TypeVar("ResultT")


def takes_random_key(method: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """Let a method also take its first argument, a key, by the name that it had in QDax before 0.5, `random_key`."""

    @wraps(method)
    def renamed(self: object, *args: object, **named: object) -> ResultT:
        return method(self, *([named.pop("random_key")] if "random_key" in named else []), *args, **named)

    return renamed


def static_field() -> Any:
    """A dataclass field that is static metadata of the pytree, not a leaf, e.g. because it determines shapes."""
    return dataclasses.field(metadata={"static": True})


def typed_key(key: Key) -> Key:
    """Return a typed key for a raw (`[2]` uint32) or typed key; a ValueError for what is no key."""
    kind = getattr(key, "dtype", None)
    is_key = kind is not None and (kind == jnp.uint32 or jnp.issubdtype(kind, jax.dtypes.prng_key))
    check(is_key, f"a random key is needed, such as jax.random.key(0), got {key!r}.")
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def split_key(key: Key, count: int = 2) -> tuple[Array, Key]:
    """Split a key into the next key of a record and keys to consume.

    Returns:
      The next key, raw (`[2]` uint32), so that it can be stored like any array; and `count - 1` typed keys
      `[count - 1]`, or a single key `[]` if `count` is 2.
    """
    keys = jax.random.split(typed_key(key), count)
    return jax.random.key_data(keys[0]), keys[1] if count == 2 else keys[1:]


@jax.custom_batching.custom_vmap
def shared_count(count: Array) -> Array:
    """Declare that a count `[]` is equal for all members of a population.

    The count stays `[]` under `jax.vmap`, so that a `lax.cond` on it remains a branch and a delayed update is skipped
    instead of computed and discarded. If members differ, the first member's count applies to all.
    """
    return count


@shared_count.def_vmap
def _shared_count_batched(size: int, batched: list[bool], count: Array) -> tuple[Array, bool]:
    del size
    return shared_count(count[0] if batched[0] else count), False  # the recursive call handles outer mapped axes


def check(condition: bool, message: str) -> None:
    """Raise a ValueError with the message if a condition is false."""
    if not condition:
        raise ValueError(message)


def check_equal(name: str, configured: int, found: int | tuple[int, ...], description: str) -> None:
    """Raise a ValueError if a configured number is not the one found, for which `{}` in the description stands."""
    found_one = (configured,) if isinstance(found, tuple) else configured
    check(found == found_one, f"{name} is {configured}, but {description.format(found)}; make them equal.")


def per_agent(source: str, count: int, numbers: Array, leading: int = 0) -> Array:
    """Reshape per-agent numbers from a user-defined function to `[..., I]`.

    Args:
      source: the function or value that is named in the error message.
      count: I, the number of agents.
      numbers: the `leading` batch axes, then axes with I elements in total.
      leading: number of batch axes.

    Raises:
      ValueError: there are not I numbers for each element of the batch axes.
    """
    numbers = jnp.asarray(numbers)
    shape = numbers.shape[leading:]
    check(math.prod(shape) == count, f"{source} gives shape {shape} for {count} actors; make it ({count},).")
    return numbers.reshape(*numbers.shape[:leading], count)
