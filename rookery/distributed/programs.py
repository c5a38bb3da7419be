"""Compilation of programs for a mesh, and the shapes and shardings of their states."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.agents import backend
from rookery.distributed.mesh import AXIS, check_population
from rookery.populations import base
from rookery.populations.stages import Work, split, staged_init, staged_step
from rookery.types import Key, Metrics, PyTree


class Compiled(NamedTuple):
    """The jitted functions of a program on a mesh."""

    init: Callable[[Key], base.ProgramState]
    """Draws the initial state."""
    step: Callable[[base.ProgramState, Key], tuple[base.ProgramState, Metrics]]
    """Runs one generation; the state is donated."""
    evaluate: Callable[[base.ProgramState, Key], Metrics]
    """Evaluates the population, without a change to the state."""


class Stages(NamedTuple):
    """The stages of a program's `init` and `step` (see `populations.stages`) on a mesh, jitted or compiled.

    The program state and the work in progress are donated.
    """

    first_states: Any
    """Draws the start states for `create`; the same function as `start_states` if the program draws both alike."""
    create: Any
    """Draws the initial program state."""
    start_states: Any
    """Draws the start states of a generation."""
    begin: Any
    """Begins a generation."""
    advance: Any
    """Runs some of a generation's iterations."""
    finish: Any
    """Ends a generation: evaluation, selection and metrics."""


def shardings(over: Mesh, divides_cells: bool = False) -> base.ProgramState:
    """The shardings of a `ProgramState`: members divided, the shared part replicated, cells divided or replicated."""
    divided, replicated = NamedSharding(over, PartitionSpec(AXIS)), NamedSharding(over, PartitionSpec())
    return base.ProgramState(divided, replicated, divided if divides_cells else replicated)


def compile_program(program: base.Program, over: Mesh) -> Compiled:
    """Jit the functions of a program for a mesh: one call per generation, with a donated, sharded state.

    Raises:
      ValueError: the devices do not divide the population or the batch, or a switch of JAX is on with which no program
        can run: `jax_enable_x64`, `jax_disable_jit`, `jax_transfer_guard`, or with a repertoire `jax_debug_infs`.
    """
    _check(program, over)
    layout = shardings(over, program.divides_cells)
    return Compiled(
        init=jax.jit(program.init, out_shardings=layout),
        step=jax.jit(program.step, donate_argnums=0, out_shardings=(layout, layout.shared)),
        evaluate=jax.jit(program.evaluate, out_shardings=layout.shared),
    )


def compile_stages(program: base.Program, over: Mesh) -> Stages:
    """Jit the stages of a program for a mesh; arguments and errors are those of `compile_program`."""
    _check(program, over)
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


def compile_lowered(lowered: Any, once: bool = False, platform: str | None = None) -> Any:
    """Compile a lowered function.

    On a CPU the compiler runs fewer of LLVM's passes: SAC on hopper compiles in 0.7 of the time and runs as fast.
    Options that the environment variable `XLA_FLAGS` sets take precedence.

    Args:
      lowered: the result of `jax.stages.Wrapped.lower`.
      once: the function runs briefly and at most once per generation, so compile time matters more than its speed.
      platform: the platform that it is compiled for; by default `jax.default_backend()`.
    """
    platform = platform or jax.default_backend()
    return lowered.compile(compiler_options=_options(once) if platform == "cpu" else {})


def _options(once: bool) -> dict[str, bool | str]:
    options = {"xla_backend_optimization_level": 0 if once else 1, "xla_llvm_disable_expensive_passes": True}
    return {name: value for name, value in options.items() if name not in os.environ.get("XLA_FLAGS", "")}


def check_switches(has_infinities: bool) -> None:
    """Raise a ValueError that names a switch of JAX which is on and with which nothing of this library can run.

    Args:
      has_infinities: whether its results have infinities on purpose, as the fitness of empty cells.
    """
    if jax.numpy.result_type(float) == "float64":
        raise ValueError(
            "jax_enable_x64 is on, but everything is computed in float32: unset JAX_ENABLE_X64, or in Python work "
            "inside `with jax.enable_x64(False):`."
        )
    if backend.switch("jax_disable_jit"):
        raise ValueError("jax_disable_jit is on, but a program is compiled before it runs: unset JAX_DISABLE_JIT.")
    guard = backend.switch("jax_transfer_guard_host_to_device") or backend.switch("jax_transfer_guard")
    if str(guard).startswith("disallow"):
        raise ValueError(
            f"jax_transfer_guard is {guard}, but constants and results are copied between host and device: unset "
            "JAX_TRANSFER_GUARD."
        )
    if backend.switch("jax_debug_infs") and has_infinities:
        raise ValueError(
            "jax_debug_infs is on, but the fitness of empty cells is -inf: unset JAX_DEBUG_INFS; JAX_DEBUG_NANS works."
        )


def _check(program: base.Program, over: Mesh) -> None:
    check_switches(has_infinities=program.table is not None)
    check_population(program.population_size, over)
    if program.batch_size is not None:
        check_population(program.batch_size, over, "batch")


def template(program: base.Program, over: Mesh) -> base.ProgramState:
    """Shapes, dtypes and shardings of a program's state, without computing it; errors as `compile_program`."""
    _check(program, over)
    return state_on(over, program, jax.eval_shape(program.init, jax.random.key(0)))


def state_on(over: Mesh, program: base.Program, shapes: base.ProgramState) -> base.ProgramState:
    """The shapes of a program's state with the shardings of a mesh."""
    return base.ProgramState(*_placed(shardings(over, program.divides_cells), shapes))


def work_on(over: Mesh, shapes: Work) -> Work:
    """The shapes of the work of a generation in progress with the shardings of a mesh."""
    layout = shardings(over)
    return Work(*_placed(Work(layout.members, layout.shared), shapes))


def stage_keys(program: base.Program) -> tuple[Key, Key]:
    """Shapes of the keys that the stages `create` and `begin` receive."""
    stages = staged_init(program.init), staged_step(program.step)
    keys = (jax.eval_shape(partial(split, stage), jax.random.key(0))[1] for stage in stages)
    return tuple(keys)  # pyright: ignore[reportReturnType] - there are two


def replicated(over: Mesh, tree: PyTree) -> PyTree:
    """Shapes, dtypes and shardings of a tree that is replicated on every device."""
    return _placed((shardings(over).shared,), (tree,))[0]


def place_like(tree: PyTree, like: PyTree) -> PyTree:
    """The arrays of a tree with the shardings of another tree of the same structure."""
    return jax.tree.map(lambda leaf, other: jax.device_put(leaf, other.sharding), tree, like)


def _placed(layout: Sequence[NamedSharding], shapes: Sequence[PyTree]) -> list[PyTree]:
    def place(sharding: NamedSharding, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return [jax.tree.map(partial(place, sharding), part) for sharding, part in zip(layout, shapes, strict=True)]
