"""Conversion of a state's leaves to stored arrays and manifest records, and their restoration."""

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
    """Copies of arrays in separate buffers, on the same devices.

    The call waits for the copies: on CPU devices the collectives of a generation that runs concurrently with another
    program can start in different orders, which deadlocks.
    """
    copies: dict[str, Any] = {name: np.array(array) for name, array in arrays.items() if not _on_device(array)}
    groups: dict[Any, dict[str, Any]] = {}
    for name, array in arrays.items():
        if _on_device(array):  # one jitted call accepts arrays of the same devices only
            groups.setdefault(frozenset(array.sharding.device_set), {})[name] = array
    for group in groups.values():
        copies |= _copies(group)
    return jax.block_until_ready(copies)


def flatten(tree: PyTree) -> list[tuple[str, Any]]:
    """Leaves with their paths as text, in the order of `jax.tree.leaves`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path) or "the state", leaf) for path, leaf in leaves]


def _on_device(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def is_stored(leaf: Any) -> bool:
    """Whether orbax stores a leaf; Python scalars are in the manifest, and arrays of size 0 need only their shape."""
    return type(leaf) not in _PYTHON_SCALARS and leaf.size > 0


def record(path: str, leaf: Any) -> dict[str, Any]:
    """The manifest's record of a leaf, as JSON values.

    Raises:
      TypeError: the leaf is neither an array nor a Python bool, int or float.
    """
    if type(leaf) in _PYTHON_SCALARS:
        return {"path": path, "dtype": f"Python {type(leaf).__name__}", "shape": [], "value": leaf}
    if _on_device(leaf) or isinstance(leaf, np.ndarray | np.generic):
        return {"path": path, "dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    raise TypeError(f"{path} is a {type(leaf).__name__}, which is neither an array nor a number")


def differences(saved: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[str]:
    """The differences between the leaf records of a checkpoint and of a template, as text; empty if they match."""
    here = {record["path"]: f"{record['dtype']} {record['shape']}" for record in wanted}
    there = {record["path"]: f"{record['dtype']} {record['shape']}" for record in saved}
    found = [
        f"{path} is {there.get(path, 'absent')} in the checkpoint and {here.get(path, 'absent')} in the run"
        for path in dict.fromkeys([*here, *there])
        if here.get(path) != there.get(path)
    ]
    return found or (["the leaves are in another order"] if list(here) != list(there) else [])


def _is_placed(leaf: Any) -> bool:
    """Whether a leaf is committed to its devices."""
    if isinstance(leaf, jax.Array):
        return leaf.committed
    return getattr(leaf, "sharding", None) is not None


def restore_target(leaf: Any) -> Any:
    """The target that orbax receives to restore a leaf of the template."""
    if not _on_device(leaf):
        return np.asarray(leaf)
    sharding = leaf.sharding if _is_placed(leaf) else jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def restore_leaf(leaf: Any, record: Mapping[str, Any], array: Any) -> Any:
    """The restored value of a leaf of the template; `array` is None if orbax did not store the leaf."""
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
