"""A program's `init` and `step` in stages, so that the host regains control within a generation.

The stages are compiled separately: in parallel on several cores, with one compilation of the start states for `init`
and `step`, and with a variable number of training iterations, so that a long generation becomes several short calls.
Called as functions, `StagedInit` and `StagedStep` run their stages in sequence and implement `InitFn` and `StepFn`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import jax

from rookery.learners.base import Bank, StartStatesFn
from rookery.networks import Precision, call_in
from rookery.populations import rebuild
from rookery.populations.base import InitFn, Program, ProgramStateT, StepFn
from rookery.types import Array, Key, Metrics, PyTree

T = TypeVar("T")


class Work(NamedTuple):
    """The temporary data of a generation in progress, in addition to the program's state."""

    members: PyTree = ()
    """Leaves `[P, ...]`, sharded like the members: their keys and training logs."""
    shared: PyTree = ()
    """Replicated on every device: start states and keys."""


class AdvanceFn(Protocol[ProgramStateT]):
    """Train for the iterations `first` to `last - 1`; both are `[]` int32 or int, never batched."""

    def __call__(
        self, state: ProgramStateT, work: Work, first: Array | int, last: Array | int
    ) -> tuple[ProgramStateT, Work]: ...


@dataclass(frozen=True, eq=False)
class StagedInit(Generic[ProgramStateT]):
    """An `InitFn` in two stages."""

    start_states: StartStatesFn
    create: Callable[[Key, Bank], ProgramStateT]
    """Keys and start states -> the state before the first generation; the keys are consumed."""
    keys: int
    """Number of keys `[keys]` passed to `create`; 0 to pass the key of the whole `InitFn`."""

    def __call__(self, key: Key) -> ProgramStateT:
        """Run both stages: the `InitFn`."""
        bank_key, keys = split(self, key)
        return self.create(keys, self.start_states(bank_key))


@dataclass(frozen=True, eq=False)
class StagedStep(Generic[ProgramStateT]):
    """A `StepFn` in stages."""

    start_states: StartStatesFn
    begin: Callable[[ProgramStateT, Bank, Key], tuple[ProgramStateT, Work]]
    """The stage before training; it consumes the keys of the whole remaining generation."""
    advance: AdvanceFn[ProgramStateT]
    finish: Callable[[ProgramStateT, Work], tuple[ProgramStateT, Metrics]]
    """The stage after training: evaluation, selection, and the metrics of the generation."""
    iterations: int
    """Training iterations in a generation; 0 for a program without training."""
    keys: int
    """Number of keys `[keys]` passed to `begin`; 0 to pass the key of the whole `StepFn`."""

    def __call__(self, state: ProgramStateT, key: Key) -> tuple[ProgramStateT, Metrics]:
        """Run all stages: the `StepFn`."""
        bank_key, keys = split(self, key)
        state, work = self.begin(state, self.start_states(bank_key), keys)
        if self.iterations:
            state, work = self.advance(state, work, 0, self.iterations)
        return self.finish(state, work)


def split(staged: StagedInit | StagedStep, key: Key) -> tuple[Key, Key]:
    """Split a key into the key for `start_states` and the keys for the next stage.

    A function without stages (`keys` is 0) gets the key itself.
    """
    if not staged.keys:
        return key, key
    keys = jax.random.split(key, 1 + staged.keys)
    return keys[0], keys[1:]


def staged_init(init: InitFn[ProgramStateT]) -> StagedInit[ProgramStateT]:
    """Return an `InitFn` in stages; a plain function becomes a single stage."""
    return init if isinstance(init, StagedInit) else StagedInit(no_start_states, partial(without_bank, init), 0)


def staged_step(step: StepFn[ProgramStateT]) -> StagedStep[ProgramStateT]:
    """Return a `StepFn` in stages; a plain function becomes a single stage."""
    return (
        step
        if isinstance(step, StagedStep)
        else StagedStep(no_start_states, _keep, advance_nothing, partial(_step, step), 0, 0)
    )


def change_init(
    program: Program[ProgramStateT], change: Callable[[ProgramStateT], ProgramStateT]
) -> Program[ProgramStateT]:
    """Return the program with a pure function applied to its initial state."""

    def apply(program: Program[ProgramStateT]) -> Program[ProgramStateT]:
        init = staged_init(program.init)
        return program._replace(init=replace(init, create=partial(_create_changed, init.create, change)))

    return rebuild.changed(program, apply)


def change_step(
    program: Program[ProgramStateT], change: Callable[[ProgramStateT], ProgramStateT]
) -> Program[ProgramStateT]:
    """Return the program with a pure function applied to its state before each generation."""

    def apply(program: Program[ProgramStateT]) -> Program[ProgramStateT]:
        step = staged_step(program.step)
        return program._replace(step=replace(step, begin=partial(_begin_changed, step.begin, change)))

    return rebuild.changed(program, apply)


def with_precision(program: Program[ProgramStateT], precision: Precision) -> Program[ProgramStateT]:
    """Return the program with the matrix products of its networks in a precision, see `networks.computing_in`.

    Example:
      >>> env = rookery.make("point_room")
      >>> program = rookery.pbt(rookery.off_policy(rookery.sac(env.spec), env), population_size=8)
      >>> program = rookery.populations.with_precision(program, "bfloat16")
    """
    if precision == "auto":
        return program

    def traced(function: Callable) -> Callable:
        return partial(call_in, precision, function)

    def apply(program: Program[ProgramStateT]) -> Program[ProgramStateT]:
        init, step = staged_init(program.init), staged_step(program.step)
        stages = {name: traced(getattr(step, name)) for name in ("begin", "advance", "finish")}
        return program._replace(
            init=replace(init, create=traced(init.create)),
            step=replace(step, **stages),
            evaluate=traced(program.evaluate),
            settings={**program.settings, "precision": precision},
        )

    return rebuild.changed(program, apply)


def _create_changed(create: Callable, change: Callable, key: Key, bank: Bank) -> PyTree:
    return change(create(key, bank))


def _begin_changed(begin: Callable, change: Callable, state: PyTree, bank: Bank, key: Key) -> tuple[PyTree, Work]:
    return begin(change(state), bank, key)


def no_start_states(key: Key) -> Bank:
    """The bank of what has no environment: ()."""
    del key
    return ()


def without_bank(init: Callable[[Key], T], key: Key, bank: Bank) -> T:
    """`init(key)`, for an interface with a bank of start states."""
    del bank
    return init(key)


def _keep(state: ProgramStateT, bank: Bank, key: Key) -> tuple[ProgramStateT, Work]:
    del bank
    return state, Work(shared=key)


def advance_nothing(state: T, work: Work, first: Array | int, last: Array | int) -> tuple[T, Work]:
    """A step without iterations."""
    del first, last
    return state, work


def _step(step: StepFn[ProgramStateT], state: ProgramStateT, work: Work) -> tuple[ProgramStateT, Metrics]:
    return step(state, work.shared)
