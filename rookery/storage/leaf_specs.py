"""Conversion of a state's leaves to stored arrays and their specs, and their restoration."""

from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypeAlias, TypedDict, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import PyTree

Scalar: TypeAlias = bool | int | float
Stored: TypeAlias = jax.Array | np.ndarray | np.generic
Leaf: TypeAlias = Stored | jax.ShapeDtypeStruct | Scalar
Target: TypeAlias = jax.ShapeDtypeStruct | np.ndarray
Tree = TypeVar("Tree")


class LeafSpec(TypedDict):
    """What identifies a leaf, as JSON values."""

    path: str  # path in the tree, as text
    dtype: str
    shape: list[int]
    value: NotRequired[Scalar]  # a Python scalar itself, which is not stored as an array


@jax.jit
def _copies(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    return {name: jnp.copy(array) for name, array in arrays.items()}


def copy(arrays: Mapping[str, Stored]) -> dict[str, Any]:
    """Copies of arrays in separate buffers, on the same devices.

    The call waits for the copies: on CPU devices the collectives of a generation that runs concurrently with another
    program can start in different orders, which deadlocks.
    """
    copies: dict[str, Any] = {}
    groups: dict[frozenset, dict[str, jax.Array]] = {}
    for name, array in arrays.items():
        if isinstance(array, jax.Array):  # one jitted call accepts arrays of the same devices only
            groups.setdefault(frozenset(array.sharding.device_set), {})[name] = array
        else:
            copies[name] = np.array(array)
    for group in groups.values():
        copies |= _copies(group)
    return jax.block_until_ready(copies)


def specs(tree: PyTree) -> list[LeafSpec]:
    """The specs of a tree's leaves, in the order of `jax.tree.leaves`; a TypeError if one is neither an array nor a
    number or switch of Python."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [_spec(jax.tree_util.keystr(path) or "the state", leaf) for path, leaf in leaves]


def differences(saved: Sequence[LeafSpec], wanted: Sequence[LeafSpec]) -> list[str]:
    """The differences between the leaf specs of a checkpoint and of a template, as text; empty if they match.

    The checkpoint may lack what older versions did not have.
    """
    there, here = ({spec["path"]: f"{spec['dtype']} {spec['shape']}" for spec in side} for side in (saved, wanted))
    found = [
        f"{path} is {there.get(path, 'absent')} in the checkpoint and {here.get(path, 'absent')} in the run"
        for path in dict.fromkeys([*here, *there])
        if here.get(path) != there.get(path) and not (path not in there and _begins_at_zero(path))
    ]
    common = [path for path in here if path in there]
    return found or (["the leaves are in another order"] if common != list(there) else [])


def _begins_at_zero(path: str) -> bool:
    """Whether older versions did not have a leaf, which is 0 in their runs: the sums of training returns."""
    return ".sums." in path or ".ended_" in path


def stored(tree: PyTree) -> dict[str, Stored]:
    """The leaves of a state that orbax stores, by their number: all but Python scalars and arrays of size 0."""
    return {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(tree)) if _is_stored(leaf)}


def numbers(saved: Sequence[LeafSpec], wanted: Sequence[LeafSpec]) -> list[int | None]:
    """The number of the saved leaf with the path of each wanted one; None without one."""
    found = {spec["path"]: number for number, spec in enumerate(saved)}
    return [found.get(spec["path"]) for spec in wanted]


def restore_targets(template: PyTree, found: Sequence[int | None]) -> dict[str, Target]:
    """The targets from which orbax restores the template's leaves, by their numbers `found` in the checkpoint."""
    leaves = zip(found, jax.tree.leaves(template), strict=True)
    return {str(number): _target(leaf) for number, leaf in leaves if number is not None and _is_stored(leaf)}


def restored(
    template: Tree, saved: Sequence[LeafSpec], found: Sequence[int | None], arrays: Mapping[str, jax.Array | np.ndarray]
) -> Tree:
    """The state in the containers of the template, whose leaves have the numbers `found` among the `saved` ones (None:
    they begin at 0); `arrays` are what orbax restored, by the leaf's number."""
    leaves, structure = jax.tree.flatten(template)
    values = [
        _zeros(leaf) if number is None else _restored(leaf, saved[number], arrays.get(str(number)))
        for number, leaf in zip(found, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, values)


def _spec(path: str, leaf: Leaf) -> LeafSpec:
    if _is_scalar(leaf):
        return {"path": path, "dtype": f"Python {type(leaf).__name__}", "shape": [], "value": cast(Scalar, leaf)}
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | np.ndarray | np.generic):
        return {"path": path, "dtype": str(leaf.dtype), "shape": list(leaf.shape)}
    raise TypeError(f"{path} is a {type(leaf).__name__}, which is neither an array nor a number")


def _is_scalar(leaf: Leaf) -> bool:
    return type(leaf) in (bool, int, float)  # not isinstance: np.float64 is a float


def _is_stored(leaf: Leaf) -> bool:
    return not _is_scalar(leaf) and cast(Stored, leaf).size > 0


def _is_placed(leaf: jax.Array | jax.ShapeDtypeStruct) -> bool:
    """Whether a leaf is committed to its devices."""
    return leaf.committed if isinstance(leaf, jax.Array) else leaf.sharding is not None


def _target(leaf: Stored | jax.ShapeDtypeStruct) -> Target:
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return np.asarray(leaf)
    sharding = leaf.sharding if _is_placed(leaf) else jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _zeros(leaf: Leaf) -> Leaf:
    assert isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)
    return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding if _is_placed(leaf) else None)


def _restored(leaf: Leaf, spec: LeafSpec, array: jax.Array | np.ndarray | None) -> Leaf:
    """The restored value of a leaf of the template; `array` is None if orbax did not store the leaf."""
    if "value" in spec:
        return spec["value"]
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        values = np.zeros(spec["shape"], spec["dtype"]) if array is None else np.asarray(array)
        return values[()] if isinstance(leaf, np.generic) else values
    if array is None:
        return jnp.empty(leaf.shape, leaf.dtype, device=leaf.sharding if _is_placed(leaf) else None)
    if _is_placed(leaf):
        return cast(jax.Array, array)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        keys = cast(jax.Array, array)
        return jax.random.wrap_key_data(
            jnp.array(np.asarray(jax.random.key_data(keys))), impl=jax.random.key_impl(keys)
        )
    return jnp.array(np.asarray(array))
