"""How the members of a population and the cells of a repertoire are divided over the devices of a mesh."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from rookery import trees
from rookery.distributed.mesh import AXIS, check_population
from rookery.populations import base
from rookery.populations.sharding import HERE, Placement, Rows, Shares, moved
from rookery.types import Array, PyTree


def population_map(over: Mesh, exact: bool = False) -> base.PopulationMap:
    """Map members over the devices of a mesh, each device its own share, without communication.

    Args:
      over: a mesh with one axis.
      exact: map a device's members one by one (`jax.lax.map`) instead of at once. Then any number of devices gives
        the same bits; with `vmap` a device's batch size changes the matmul kernel, and results agree to rounding.
    """
    return partial(_map, over, exact)


def _map(over: Mesh, exact: bool, function: Callable, mapped: tuple, shared: tuple) -> Any:
    local = partial(_map_one_by_one if exact else base.vmap, function)
    specs = (PartitionSpec(AXIS), PartitionSpec())
    return jax.shard_map(local, mesh=over, in_specs=specs, out_specs=specs[0], check_vma=False)(mapped, shared)


def _map_one_by_one(function: Callable, mapped: tuple, shared: tuple) -> Any:
    return jax.lax.map(lambda member: function(*member, *shared), mapped)


def placement(over: Mesh, exact: bool = False, cells: int = 0, divides_cells: bool = False) -> Placement:
    """Where members, evaluations and a repertoire lie on a mesh; see `population_map` and `rows`.

    Args:
      over: a mesh with one axis.
      exact: map a device's members one by one, for the same bits on any number of devices.
      cells: C, of the repertoire; 0 without one.
      divides_cells: every device keeps C / devices cells, instead of all of them.

    Raises:
      ValueError: the devices do not divide the cells.
    """
    if divides_cells:
        check_population(cells, over, "repertoire")
    if over.devices.size == 1:
        return Placement(population_map(over, exact), divides_cells=divides_cells)
    everywhere, move = partial(_everywhere, over), partial(_move, over)
    return Placement(population_map(over, exact), everywhere, move, rows(over, divides_cells), divides_cells)


def _everywhere(over: Mesh, function: Callable, *arguments: Any) -> Any:
    """The same on every device, each with the whole: nothing is left for the compiler to divide."""
    whole = PartitionSpec()
    return jax.shard_map(function, mesh=over, in_specs=whole, out_specs=whole, check_vma=False)(*arguments)


def _move(over: Mesh, tree: PyTree, sources: Array, in_place: bool = False) -> PyTree:
    spec, of_share = PartitionSpec(AXIS), partial(moved, rows=shares(AXIS).rows, in_place=in_place)
    moving = jax.shard_map(of_share, mesh=over, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False)
    return moving(tree, sources)


def rows(over: Mesh, divided: bool) -> Rows:
    """How the genotypes of a repertoire are read and written on a mesh: either moves the rows named, to every device.

    Args:
      over: a mesh with one axis.
      divided: every device keeps C / devices cells, instead of all of them.
    """
    if over.devices.size == 1:
        return HERE
    if not divided:
        return Rows(
            lambda tree, indices: _everywhere(over, trees.take, tree, indices),
            lambda tree, indices, rows: _everywhere(over, trees.scatter, tree, indices, rows),
        )
    spec, whole = PartitionSpec(AXIS), PartitionSpec()
    of_shares = shares(AXIS).rows
    take = jax.shard_map(of_shares.take, mesh=over, in_specs=(spec, whole), out_specs=whole, check_vma=False)
    put = jax.shard_map(of_shares.put, mesh=over, in_specs=(spec, whole, whole), out_specs=spec, check_vma=False)
    return Rows(take, put)


def shares(axis: str) -> Shares:
    """Of a whole whose equal shares lie along a mapped axis, for functions that run inside of it.

    Numbers of rows are those in the whole, and the same on all devices.
    """
    rows = Rows(partial(_take_share, axis), partial(_put_share, axis))
    return Shares(rows, partial(_gather, axis), partial(_own_rows, axis))


def axis_size(axis: str) -> int:
    """How many devices share a mapped axis, 1 outside of it."""
    try:
        return jax.lax.axis_size(axis)
    except NameError:
        return 1


def _gather(axis: str, tree: PyTree) -> PyTree:
    try:
        return jax.tree.map(partial(jax.lax.all_gather, axis_name=axis, tiled=True), tree)
    except NameError as error:
        raise ValueError(f"this works inside a mapped axis {axis!r} only, of jax.pmap or jax.shard_map.") from error


def _own_rows(axis: str, tree: PyTree) -> PyTree:
    def own(leaf: Array) -> Array:
        count = leaf.shape[0] // jax.lax.axis_size(axis)
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(axis) * count, count)

    return jax.tree.map(own, tree)


def _take_share(axis: str, tree: PyTree, indices: Array) -> PyTree:
    """Rows from whichever device has them: one gives the row's bits, the others zeros, and integers add up exactly."""
    local, mine, _ = _own_share(axis, tree, indices)
    found = jax.tree.map(_as_bits, trees.take(tree, jnp.where(mine, local, 0)))
    everybodys = jax.lax.psum(trees.where(mine, found, jax.tree.map(jnp.zeros_like, found)), axis)
    return jax.tree.map(_from_bits, everybodys, tree)


def _own_share(axis: str, tree: PyTree, indices: Array) -> tuple[Array, Array, int]:
    """Where rows of the whole lie among this device's, `[N]`; which are this device's, `[N]` bool; how many it has."""
    count = jax.tree.leaves(tree)[0].shape[0]
    local = indices - jax.lax.axis_index(axis) * count
    return local, (local >= 0) & (local < count), count


def _as_bits(leaf: Array) -> Array:
    if leaf.dtype == bool:
        return leaf.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")


def _from_bits(bits: Array, like: Array) -> Array:
    return bits.astype(bool) if like.dtype == bool else jax.lax.bitcast_convert_type(bits, like.dtype)


def _put_share(axis: str, tree: PyTree, indices: Array, rows: PyTree) -> PyTree:
    """Every device writes the rows of its own cells, in place."""
    local, mine, count = _own_share(axis, tree, indices)
    beyond = count + jnp.arange(indices.shape[0])  # unique, and never written
    return trees.scatter(tree, jnp.where(mine, local, beyond), rows)


def map_over(function: Callable[..., PyTree], axis: str, devices: Sequence[Any] | None = None) -> Callable[..., PyTree]:
    """A compiled function whose arguments and results have a leading axis of devices, one row for each.

    Args:
      function: is given rows without that axis, and may exchange over `axis`.
      axis: its name inside.
      devices: all of this process by default.
    """
    over, spec = Mesh(np.asarray(jax.local_devices() if devices is None else devices), (axis,)), PartitionSpec(axis)

    def of_one(arguments: tuple, named: dict) -> PyTree:
        arguments, named = jax.tree.map(lambda leaf: leaf[0], (arguments, named))
        return jax.tree.map(lambda leaf: leaf[None], function(*arguments, **named))

    mapped = jax.jit(jax.shard_map(of_one, mesh=over, in_specs=(spec, spec), out_specs=spec, check_vma=False))

    def checked(*arguments: PyTree, **named: PyTree) -> PyTree:
        rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves((arguments, named))}
        if rows != {(over.devices.size,)}:
            raise ValueError(f"arguments need a row for each of {over.devices.size} devices, got leading axes {rows}.")
        return mapped(arguments, named)

    return checked
