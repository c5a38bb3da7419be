"""Programs compiled for a mesh, and the shapes and shardings of their states."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.distributed.mesh import AXIS, check_population
from rookery.populations import base
from rookery.populations.stages import Work, split, staged_init, staged_step
from rookery.types import Key, Metrics, PyTree


class Compiled(NamedTuple):
    """A program's functions, to be compiled for a mesh."""

    init: Callable[[Key], base.ProgramState]
    step: Callable[[base.ProgramState, Key], tuple[base.ProgramState, Metrics]]  # the state is donated
    evaluate: Callable[[base.ProgramState, Key], Metrics]


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


def shardings(over: Mesh, divides_cells: bool = False) -> base.ProgramState:
    """How a `ProgramState` lies on a mesh: members divided, the rest whole on every device, cells as asked for."""
    divided, whole = NamedSharding(over, PartitionSpec(AXIS)), NamedSharding(over, PartitionSpec())
    return base.ProgramState(divided, whole, divided if divides_cells else whole)


def compile_program(program: base.Program, over: Mesh) -> Compiled:
    """Bind a program to a mesh: one compiled call per generation, its state donated and spread over the devices.

    Raises:
      ValueError: the devices do not divide the population or the batch.
    """
    _check_sizes(program, over)
    layout = shardings(over, program.divides_cells)
    return Compiled(
        init=jax.jit(program.init, out_shardings=layout),
        step=jax.jit(program.step, donate_argnums=0, out_shardings=(layout, layout.shared)),
        evaluate=jax.jit(program.evaluate, out_shardings=layout.shared),
    )


def compile_stages(program: base.Program, over: Mesh) -> Stages:
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


def _check_sizes(program: base.Program, over: Mesh) -> None:
    check_population(program.population_size, over)
    if program.batch_size is not None:
        check_population(program.batch_size, over, "batch")


def template(program: base.Program, over: Mesh) -> base.ProgramState:
    """Shapes, dtypes and shardings of a program's state, without computing it."""
    layout = shardings(over, program.divides_cells)
    return base.ProgramState(*_placed(layout, jax.eval_shape(program.init, jax.random.key(0))))


def work_template(program: base.Program, over: Mesh, state: base.ProgramState) -> Work:
    """Shapes, dtypes and shardings of what a generation in progress holds, see `template`."""
    step, layout = staged_step(program.step), shardings(over)
    bank = jax.eval_shape(step.start_states, jax.random.key(0))
    _, work = jax.eval_shape(step.begin, state, bank, stage_keys(program)[1])
    return Work(*_placed(Work(layout.members, layout.shared), work))


def stage_keys(program: base.Program) -> tuple[Key, Key]:
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
