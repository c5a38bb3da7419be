"""Placement of a population's members and a repertoire's cells on the devices of a mesh."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from rookery import trees
from rookery.distributed.mesh import AXIS, check_population, make_mesh, mesh_for
from rookery.populations import base
from rookery.populations.rebuild import rebuild, recipe_of
from rookery.populations.sharding import HERE, Placement, Rows, Shares, moved
from rookery.types import Array, PyTree


def population_map(over: Mesh, exact: bool = False) -> base.PopulationMap:
    """A map over members in which each device of a mesh processes its share, without communication.

    Args:
      over: a mesh with one axis.
      exact: map a device's members one by one (`jax.lax.map`) instead of with `vmap`. The results are then
        bit-identical for any number of devices; with `vmap` a device's batch size changes the matmul kernel, and
        results agree up to rounding.
    """
    return partial(_map, over, exact)


def _map(over: Mesh, exact: bool, function: Callable, mapped: tuple, shared: tuple) -> PyTree:
    local = partial(_map_one_by_one if exact else base.vmap, function)
    return _shard_map(local, over, (PartitionSpec(AXIS), PartitionSpec()), PartitionSpec(AXIS))(mapped, shared)


def _map_one_by_one(function: Callable, mapped: tuple, shared: tuple) -> PyTree:
    return jax.lax.map(lambda member: function(*member, *shared), mapped)


def _shard_map(function: Callable, over: Mesh, specs: Sequence[PartitionSpec], out: PartitionSpec) -> Callable:
    """`jax.shard_map` whose arguments may contain arrays without elements.

    XLA's compiler crashes if they are arguments of a mapped function (seen with jaxlib 0.11.2), so they are created
    inside it.
    """

    def mapped(*arguments: PyTree) -> PyTree:
        shapes = tuple(
            jax.tree.map(partial(_shard_shape, over, spec), argument)
            for spec, argument in zip(specs, arguments, strict=True)
        )
        filled = jax.tree.map(lambda leaf: leaf if jnp.size(leaf) else None, arguments)
        local = jax.shard_map(
            lambda *filled: function(*jax.tree.map(_fill, shapes, filled)),
            mesh=over,
            in_specs=tuple(specs),
            out_specs=out,
            check_vma=False,
        )
        return local(*filled)

    return mapped


def _fill(shape: jax.ShapeDtypeStruct, leaf: Array | None) -> Array:
    return jnp.zeros(shape.shape, shape.dtype) if leaf is None else leaf


def _shard_shape(over: Mesh, spec: PartitionSpec, leaf: Array) -> jax.ShapeDtypeStruct:
    """The shape and dtype of one device's share of an array."""
    whole = jax.typeof(leaf)
    shape = (whole.shape[0] // over.devices.size, *whole.shape[1:]) if len(spec) else whole.shape
    return jax.ShapeDtypeStruct(shape, whole.dtype)


def placement(over: Mesh, exact: bool = False, cells: int = 0, divides_cells: bool = False) -> Placement:
    """The placement of members, evaluations and a repertoire on a mesh; see `population_map` and `rows`.

    Args:
      over: a mesh with one axis.
      exact: map a device's members one by one, for bit-identical results on any number of devices.
      cells: C, the number of cells of the repertoire; 0 without a repertoire.
      divides_cells: every device stores C / devices cells instead of all C.

    Raises:
      ValueError: the devices do not divide the cells.
    """
    if divides_cells:
        check_population(cells, over, "repertoire")
    if over.devices.size == 1:
        return Placement(population_map(over, exact), divides_cells=divides_cells, mesh=over, exact=exact)
    everywhere, move = partial(_everywhere, over), partial(_move, over)
    mapped, found = population_map(over, exact), rows(over, divides_cells)
    return Placement(mapped, everywhere, move, rows(over, True).take, found, divides_cells, over, exact)


def mesh_of(program: base.Program) -> Mesh:
    """The devices that a program runs on by default.

    These are the devices of its placement, if it was built with one; all devices that divide its population, if it can
    be built again for them; else one device of each process.

    Raises:
      ValueError: the population cannot be divided over the processes.
    """
    recipe = recipe_of(program)
    if recipe is None:
        return make_mesh(jax.process_count())
    if recipe.placement.mesh is not None:
        return recipe.placement.mesh
    return mesh_for(math.gcd(program.population_size, program.batch_size or 0))


def place(program: base.Program, over: Mesh) -> base.Program:
    """The program, bound to the devices of a mesh; unchanged if it is bound to them already or cannot be built again.

    Its functions are the same in every call, so that JAX compiles them once. If the program was built with a placement,
    the new one is as exact, and divides the cells alike.
    """
    recipe = recipe_of(program)
    if recipe is None:
        return program
    bound = recipe.placement
    if bound.mesh == over or (bound.mesh is None and over.devices.size == 1):
        return program
    cells = program.settings.get("cells", {}).get("cells", 0)
    return rebuild(program, placement(over, bound.exact, cells, bound.divides_cells), known_as=over) or program


def _everywhere(over: Mesh, function: Callable, *arguments: PyTree) -> PyTree:
    """Run a function on replicated arguments on every device, so that the compiler does not shard it."""
    replicated = PartitionSpec()
    return _shard_map(function, over, [replicated] * len(arguments), replicated)(*arguments)


def _move(over: Mesh, tree: PyTree, sources: Array, in_place: bool = False) -> PyTree:
    spec, move_local = PartitionSpec(AXIS), partial(moved, shares=shares(AXIS), in_place=in_place)
    return _shard_map(move_local, over, (spec, PartitionSpec()), spec)(tree, sources)


def rows(over: Mesh, divided: bool) -> Rows:
    """Reads and writes of a repertoire's genotypes on a mesh; rows read or written are replicated on every device.

    If `divided`, every device stores C / devices cells instead of all C.
    """
    if over.devices.size == 1:
        return HERE
    if not divided:
        return Rows(
            lambda tree, indices: _everywhere(over, trees.take, tree, indices),
            lambda tree, indices, rows: _everywhere(over, trees.scatter, tree, indices, rows),
        )
    spec, replicated = PartitionSpec(AXIS), PartitionSpec()
    local_rows = shares(AXIS).rows
    take = _shard_map(local_rows.take, over, (spec, replicated), replicated)
    put = _shard_map(local_rows.put, over, (spec, replicated, replicated), spec)
    return Rows(take, put)


def shares(axis: str) -> Shares:
    """Operations on an array that is divided equally along a mapped axis, for functions that run inside that axis.

    Row indices refer to the whole array and are the same on all devices.
    """
    rows = Rows(partial(_take_share, axis), partial(_put_share, axis))
    return Shares(rows, partial(_gather, axis), partial(_local_rows, axis), partial(_arrange, axis))


def axis_size(axis: str) -> int:
    """The number of devices along a mapped axis; 1 outside it."""
    try:
        return jax.lax.axis_size(axis)
    except NameError:
        return 1


def _gather(axis: str, tree: PyTree) -> PyTree:
    try:
        return jax.tree.map(partial(jax.lax.all_gather, axis_name=axis, tiled=True), tree)
    except NameError as error:
        raise ValueError(f"this works only inside a mapped axis {axis!r}, of jax.pmap or jax.shard_map.") from error


def _local_rows(axis: str, tree: PyTree) -> PyTree:
    def local(leaf: Array) -> Array:
        count = leaf.shape[0] // jax.lax.axis_size(axis)
        return jax.lax.dynamic_slice_in_dim(leaf, jax.lax.axis_index(axis) * count, count)

    return jax.tree.map(local, tree)


def _arrange(axis: str, tree: PyTree, sources: Array) -> PyTree:
    packed = jax.lax.all_gather(_pack(tree), axis, tiled=True)
    return _unpack(trees.take(packed, _local_rows(axis, sources)), tree)


def _take_share(axis: str, tree: PyTree, indices: Array) -> PyTree:
    """Rows from any device, bit-exact: the device with a row contributes its bits as integers, all others zeros."""
    local, is_local, _ = _local_indices(axis, tree, indices)
    packed = _pack(trees.take(tree, jnp.where(is_local, local, 0)))
    bits = {kind: jnp.where(is_local[:, None], _as_bits(rows), 0) for kind, rows in packed.items()}
    return _unpack(jax.tree.map(_from_bits, jax.lax.psum(bits, axis), packed), tree)


def _local_indices(axis: str, tree: PyTree, indices: Array) -> tuple[Array, Array, int]:
    """Indices within this device's share, `[N]`; whether each is in the share, `[N]` bool; the size of the share."""
    count = jax.tree.leaves(tree)[0].shape[0]
    local = indices - jax.lax.axis_index(axis) * count
    return local, (local >= 0) & (local < count), count


def _pack(tree: PyTree) -> dict[str, Array]:
    """All leaves `[N, ...]` as few arrays, so that one transfer moves them: type -> `[N, S]` for S numbers in a row."""
    found: dict[str, list[Array]] = {}
    for leaf in jax.tree.leaves(tree):
        found.setdefault(leaf.dtype.name, []).append(leaf.reshape(len(leaf), leaf.size // len(leaf)))
    return {kind: jnp.concatenate(columns, axis=1) for kind, columns in found.items()}


def _unpack(packed: dict[str, Array], like: PyTree) -> PyTree:
    """The inverse of `_pack`, for any number of rows of a tree with the leaves of `like`."""
    ends = dict.fromkeys(packed, 0)

    def unpacked(leaf: Array) -> Array:
        begin, kind = ends[leaf.dtype.name], leaf.dtype.name
        ends[kind] += leaf.size // len(leaf)
        columns = packed[kind][:, begin : ends[kind]]
        return columns.reshape(len(columns), *leaf.shape[1:])

    return jax.tree.map(unpacked, like)


def _as_bits(leaf: Array) -> Array:
    if leaf.dtype == bool:
        return leaf.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")


def _from_bits(bits: Array, like: Array) -> Array:
    return bits.astype(bool) if like.dtype == bool else jax.lax.bitcast_convert_type(bits, like.dtype)


def _put_share(axis: str, tree: PyTree, indices: Array, rows: PyTree) -> PyTree:
    """Every device writes the rows of its share in place."""
    local, is_local, count = _local_indices(axis, tree, indices)
    dropped = count + jnp.arange(indices.shape[0])  # out of bounds, so never written; distinct, as `scatter` requires
    return trees.scatter(tree, jnp.where(is_local, local, dropped), rows)


def map_over(
    function: Callable[..., PyTree], axis: str, devices: Sequence[object] | None = None
) -> Callable[..., PyTree]:
    """A jitted function whose arguments and results have a leading device axis, `[devices, ...]`.

    Args:
      function: runs on each device with that device's row, without the leading axis; may use collectives over `axis`.
      axis: the name of the device axis inside `function`.
      devices: all devices of this process by default.

    Returns:
      The mapped function; it raises ValueError if a leading axis differs from the number of devices.
    """
    over, spec = Mesh(np.asarray(jax.local_devices() if devices is None else devices), (axis,)), PartitionSpec(axis)

    def on_one_device(arguments: tuple, named: dict) -> PyTree:
        arguments, named = jax.tree.map(lambda leaf: leaf[0], (arguments, named))
        return jax.tree.map(lambda leaf: leaf[None], function(*arguments, **named))

    mapped = jax.jit(_shard_map(on_one_device, over, (spec, spec), spec))

    def checked(*arguments: PyTree, **named: PyTree) -> PyTree:
        rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves((arguments, named))}
        if rows != {(over.devices.size,)}:
            raise ValueError(f"arguments need a row for each of {over.devices.size} devices, got leading axes {rows}.")
        return mapped(arguments, named)

    return checked
