"""Between a state and a store of arrays: which leaves it takes, what is noted of each, how they come back."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import PyTree

_PYTHON_SCALARS = (bool, int, float)


@jax.jit
def _copies(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: jnp.copy(array) for name, array in arrays.items()}


def copy(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Real copies in buffers of their own, each where its original is, and finished.

    They are waited for: on devices of a CPU a generation that runs beside another program can have its exchanges begun
    in different orders, and then never ends.
    """
    copies: dict[str, Any] = {name: np.array(array) for name, array in arrays.items() if not _on_device(array)}
    places: dict[Any, dict[str, Any]] = {}
    for name, array in arrays.items():
        if _on_device(array):  # one call can only take arrays of the same devices
            places.setdefault(frozenset(array.sharding.device_set), {})[name] = array
    for group in places.values():
        copies |= _copies(group)
    return jax.block_until_ready(copies)


def flatten(tree: PyTree) -> list[tuple[str, Any]]:
    """The leaves with their paths as text, in the order of `jax.tree.leaves`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path) or "the state", leaf) for path, leaf in leaves]


def _on_device(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def is_stored(leaf: Any) -> bool:
    """Python's scalars stand in the manifest, and arrays of size 0 are refused by orbax: their shape says it all."""
    return type(leaf) not in _PYTHON_SCALARS and leaf.size > 0


def record(path: str, leaf: Any) -> dict[str, Any]:
    """What the manifest says of a leaf, as JSON values.

    Raises:
      TypeError: the leaf is neither an array nor a Python bool, int or float.
    """
    if type(leaf) in _PYTHON_SCALARS:
        return {"path": path, "dtype": f"Python {type(leaf).__name__}", "shape": [], "value": leaf}
    if _on_device(leaf) or isinstance(leaf, np.ndarray | np.generic):
        return {"path": path, "dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    raise TypeError(f"{path} is a {type(leaf).__name__}, which is neither an array nor a number")


def differences(saved: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[str]:
    """What keeps a checkpoint from filling a template, leaf by leaf."""
    here = {record["path"]: f"{record['dtype']} {record['shape']}" for record in wanted}
    there = {record["path"]: f"{record['dtype']} {record['shape']}" for record in saved}
    found = [
        f"{path} is {there.get(path, 'absent')} in the checkpoint and {here.get(path, 'absent')} in the run"
        for path in dict.fromkeys([*here, *there])
        if here.get(path) != there.get(path)
    ]
    return found or (["the leaves stand in another order"] if list(here) != list(there) else [])


def _is_placed(leaf: Any) -> bool:
    """Whether the leaf is bound to the devices it is on; others may follow the arrays they meet."""
    if isinstance(leaf, jax.Array):
        return leaf.committed
    return getattr(leaf, "sharding", None) is not None


def target(leaf: Any) -> Any:
    """What orbax shall restore for a leaf of the template."""
    if not _on_device(leaf):
        return np.asarray(leaf)
    sharding = leaf.sharding if _is_placed(leaf) else jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def revive(leaf: Any, record: Mapping[str, Any], array: Any) -> Any:
    """The restored value of a leaf of the template; `array` is None if orbax did not hold it."""
    if type(leaf) in _PYTHON_SCALARS:
        return record["value"]
    if not _on_device(leaf):
        array = np.zeros(leaf.shape, leaf.dtype) if array is None else array
        return array[()] if isinstance(leaf, np.generic) else array
    if array is None:
        return jnp.empty(leaf.shape, leaf.dtype, device=leaf.sharding if _is_placed(leaf) else None)
    if _is_placed(leaf):
        return array
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = jnp.array(np.asarray(jax.random.key_data(array)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
    return jnp.array(np.asarray(array))
