"""Meshes and shardings; the only file that names devices. One device is a mesh of 1, not a case of its own."""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery import trees
from rookery.populations import api
from rookery.populations.placement import HERE, Placement, Rows, Shares, moved
from rookery.populations.stages import Work, split, staged_init, staged_step
from rookery.types import Array, Key, Metrics, PyTree

AXIS = "population"


def mesh(count: int | None = None) -> Mesh:
    """A mesh of `count` devices, all of them by default; as many of each process, where there are several.

    Raises:
      ValueError: there are fewer devices, or the processes cannot give equally many.
    """
    devices, processes = jax.devices(), jax.process_count()
    count = len(devices) if count is None else count
    if not 1 <= count <= len(devices):
        raise ValueError(f"asked for {count} devices, but there are {len(devices)}: {devices}.")
    of_each = [[device for device in devices if device.process_index == process] for process in range(processes)]
    share = count // processes
    if count % processes or min(len(own) for own in of_each) < share:
        raise ValueError(
            f"asked for {count} devices, but each of {processes} processes must give as many of its own, and they have "
            f"{[len(own) for own in of_each]}; use a multiple of {processes}."
        )
    return Mesh(np.asarray([device for own in of_each for device in own[:share]]), (AXIS,))


def here() -> Mesh:
    """A mesh of one device of this process, to read what a run has left, whatever it was made on."""
    return Mesh(np.asarray(jax.local_devices()[:1]), (AXIS,))


def use_cores(population_size: int, processes: int = 1) -> int:
    """Make cores of the CPU into devices, as many as divide the population, so that members train side by side.

    One device leaves cores idle between small matrix products: two cores as two devices were 1.7 times as fast with
    64-wide nets, 1.1 times with 256-wide ones. Without effect where JAX has started already, or where the user has
    chosen a number (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`); a machine whose devices are others does not notice.

    Args:
      population_size: what is divided, of all processes.
      processes: how many share it; each takes cores that it may run on.

    Returns:
      How many devices were asked for, 0 if none.
    """
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if by_flag or "JAX_NUM_CPU_DEVICES" in os.environ:
        return 0
    cores = os.cpu_count() or 1
    if processes > 1 and hasattr(os, "sched_getaffinity"):  # what a cluster has left to this process of the machine
        cores = len(os.sched_getaffinity(0))
    share = max(population_size // processes, 1)
    count = max(divisor for divisor in range(1, cores + 1) if share % divisor == 0)
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:  # JAX has started
        return 0
    return count


def mesh_for(population_size: int, count: int | None = None) -> Mesh:
    """A mesh for a population: `count` devices, or as many of all devices as divide it.

    Raises:
      ValueError: there are fewer devices than `count`, or `count` does not divide the population.
    """
    processes = jax.process_count()
    if count is None:
        owners = [device.process_index for device in jax.devices()]
        share = math.gcd(min(map(owners.count, range(processes))), max(population_size // processes, 1))
        count = processes * share
    chosen = mesh(count)
    check_population(population_size, chosen)
    return chosen


def describe(over: Mesh) -> str:
    """A mesh in words: `4 cpu devices of 2 processes`."""
    count, processes = over.devices.size, len({device.process_index for device in over.devices.flat})
    of_many = f" of {processes} processes" if processes > 1 else ""
    return f"{count} {over.devices.flat[0].platform} device{'s' if count > 1 else ''}{of_many}"


def shake_hands(over: Mesh) -> None:
    """One collective over a mesh, and wait for it: then all devices are connected."""
    count, divided = over.devices.size, NamedSharding(over, PartitionSpec(AXIS))
    ones = jax.make_array_from_callback((count,), divided, lambda index: np.ones(count)[index])
    jax.block_until_ready(jax.jit(jnp.sum, out_shardings=NamedSharding(over, PartitionSpec()))(ones))


def check_population(population_size: int, over: Mesh, what: str = "population") -> None:
    """Refuse a population (or a batch, or cells) that its devices cannot share evenly.

    Raises:
      ValueError: the number of devices does not divide `population_size`.
    """
    count = over.devices.size
    if population_size % count:
        lower = population_size // count * count
        raise ValueError(
            f"a {what} of {population_size} cannot be divided evenly over {count} devices; "
            f"use {f'{lower} or ' if lower else ''}{lower + count}, or fewer devices."
        )


def population_map(over: Mesh, exact: bool = False) -> api.PopulationMap:
    """Map members over the devices of a mesh, each device its own share, without communication.

    Args:
      over: a mesh with one axis.
      exact: map a device's members one by one (`jax.lax.map`) instead of at once. Then any number of devices gives
        the same bits; with `vmap` a device's batch size changes the matmul kernel, and results agree to rounding.
    """
    return partial(_map, over, exact)


def _map(over: Mesh, exact: bool, function: Callable, mapped: tuple, shared: tuple) -> Any:
    local = partial(_map_one_by_one if exact else api.vmap, function)
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


class Compiled(NamedTuple):
    """A program's functions, to be compiled for a mesh."""

    init: Callable[[Key], api.ProgramState]
    step: Callable[[api.ProgramState, Key], tuple[api.ProgramState, Metrics]]  # the state is donated
    examine: Callable[[api.ProgramState, Key], Metrics]


class Stages(NamedTuple):
    """The stages of a program's `init` and `step`, see `populations.stages`; to be compiled, or compiled, for a mesh.

    State and work are donated.
    """

    first_states: Any
    """The start states of `init`: the same function as `start_states` wherever the program draws both alike."""
    create: Any
    start_states: Any
    begin: Any
    advance: Any
    finish: Any


def shardings(over: Mesh, divides_cells: bool = False) -> api.ProgramState:
    """How a `ProgramState` lies on a mesh: members divided, the rest whole on every device, cells as asked for."""
    divided, whole = NamedSharding(over, PartitionSpec(AXIS)), NamedSharding(over, PartitionSpec())
    return api.ProgramState(divided, whole, divided if divides_cells else whole)


def compile_program(program: api.Program, over: Mesh) -> Compiled:
    """Bind a program to a mesh: one compiled call per generation, its state donated and spread over the devices.

    Raises:
      ValueError: the devices do not divide the population or the batch.
    """
    _check_sizes(program, over)
    layout = shardings(over, program.divides_cells)
    return Compiled(
        init=jax.jit(program.init, out_shardings=layout),
        step=jax.jit(program.step, donate_argnums=0, out_shardings=(layout, layout.shared)),
        examine=jax.jit(program.examine, out_shardings=layout.shared),
    )


def compile_stages(program: api.Program, over: Mesh) -> Stages:
    """Bind the stages of a program to a mesh; arguments and errors are those of `compile_program`."""
    _check_sizes(program, over)
    layout = shardings(over, program.divides_cells)
    both = (layout, Work(layout.members, layout.shared))
    init, step = staged_init(program.init), staged_step(program.step)
    start_states = jax.jit(step.start_states, out_shardings=layout.shared)
    alike = init.start_states is step.start_states
    return Stages(
        first_states=start_states if alike else jax.jit(init.start_states, out_shardings=layout.shared),
        create=jax.jit(init.create, out_shardings=layout),
        start_states=start_states,
        begin=jax.jit(step.begin, donate_argnums=(0, 1), out_shardings=both),
        advance=jax.jit(step.advance, donate_argnums=(0, 1), out_shardings=both),
        finish=jax.jit(step.finish, donate_argnums=0, out_shardings=(layout, layout.shared)),
    )


def compile_lowered(lowered: Any, once: bool = False) -> Any:
    """Compile what `jax.stages.Wrapped.lower` gave.

    On a CPU with fewer of LLVM's passes: SAC on hopper compiles in 0.7 of the time and runs as fast. What the variable
    `XLA_FLAGS` says of these passes stands.

    Args:
      once: it runs once a generation at most and briefly, so compiling quickly matters more than speed.
    """
    return lowered.compile(compiler_options=_options(once) if jax.default_backend() == "cpu" else {})


def _options(once: bool) -> dict[str, Any]:
    options = {"xla_backend_optimization_level": 0 if once else 1, "xla_llvm_disable_expensive_passes": True}
    return {name: value for name, value in options.items() if name not in os.environ.get("XLA_FLAGS", "")}


def _check_sizes(program: api.Program, over: Mesh) -> None:
    check_population(program.population_size, over)
    if program.batch_size is not None:
        check_population(program.batch_size, over, "batch")


def template(program: api.Program, over: Mesh) -> api.ProgramState:
    """Shapes, dtypes and shardings of a program's state, without computing it."""
    layout = shardings(over, program.divides_cells)
    return api.ProgramState(*_placed(layout, jax.eval_shape(program.init, jax.random.key(0))))


def work_template(program: api.Program, over: Mesh, state: api.ProgramState) -> Work:
    """Shapes, dtypes and shardings of what a generation in progress holds, see `template`."""
    step, layout = staged_step(program.step), shardings(over)
    bank = jax.eval_shape(step.start_states, jax.random.key(0))
    _, work = jax.eval_shape(step.begin, state, bank, stage_keys(program)[1])
    return Work(*_placed(Work(layout.members, layout.shared), work))


def stage_keys(program: api.Program) -> tuple[Key, Key]:
    """Shapes of the keys that the stages `create` and `begin` get."""
    stages = staged_init(program.init), staged_step(program.step)
    keys = (jax.eval_shape(partial(split, stage), jax.random.key(0))[1] for stage in stages)
    return tuple(keys)  # pyright: ignore[reportReturnType] - there are two


def whole(over: Mesh, tree: PyTree) -> PyTree:
    """The shapes of a tree that is whole on every device."""
    return _placed((shardings(over).shared,), (tree,))[0]


def _placed(layout: Sequence[NamedSharding], shapes: Sequence[PyTree]) -> list[PyTree]:
    def place(sharding: NamedSharding, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return [jax.tree.map(partial(place, sharding), part) for sharding, part in zip(layout, shapes, strict=True)]
