"""A program's `init` and `step` in stages, so that the host has control within a generation.

The stages are compiled apart: side by side on several cores, the drawing of start states once for `init` and `step`,
and training for any number of iterations, so that a long generation is several short calls. Called as functions,
`StagedInit` and `StagedStep` are their stages one after the other: an `InitFn` and a `StepFn` like any other.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import jax

from rookery.learners.base import Bank
from rookery.populations.base import InitFn, Program, ProgramState, StepFn
from rookery.types import Array, Key, Metrics, PyTree


class Work(NamedTuple):
    """What a generation in progress holds beside the program's state."""

    members: PyTree = ()
    """Leaves `[P, ...]`, spread over the devices like the members: their keys, and the logs of their training."""
    shared: PyTree = ()
    """Whole on every device: start states and keys."""


class StartStatesFn(Protocol):
    """Draw the start states of a generation; the key is consumed."""

    def __call__(self, key: Key) -> Bank: ...


class AdvanceFn(Protocol):
    """Train for the iterations from `first` up to, but without, `last`; both are `[]` int32 or int, never batched."""

    def __call__(
        self, state: ProgramState, work: Work, first: Array | int, last: Array | int
    ) -> tuple[ProgramState, Work]: ...


@dataclass(frozen=True, eq=False)
class StagedInit:
    """An `InitFn` in two stages."""

    start_states: StartStatesFn
    create: Callable[[Key, Bank], ProgramState]
    """Keys and start states -> the state before the first generation; the keys are consumed."""
    keys: int
    """How many keys `create` gets, `[keys]`; 0 for a single one, that of the whole `InitFn`."""

    def __call__(self, key: Key) -> ProgramState:
        """Both stages: the `InitFn`."""
        bank_key, keys = split(self, key)
        return self.create(keys, self.start_states(bank_key))


@dataclass(frozen=True, eq=False)
class StagedStep:
    """A `StepFn` in stages."""

    start_states: StartStatesFn
    begin: Callable[[ProgramState, Bank, Key], tuple[ProgramState, Work]]
    """What happens before training; the keys, which are consumed, are for the whole rest of the generation."""
    advance: AdvanceFn
    finish: Callable[[ProgramState, Work], tuple[ProgramState, Metrics]]
    """What happens after training: evaluation, selection, and the metrics of the generation."""
    iterations: int
    """Iterations of training in a generation; 0 where nothing is trained."""
    keys: int
    """How many keys `begin` gets, `[keys]`; 0 for a single one, that of the whole `StepFn`."""

    def __call__(self, state: ProgramState, key: Key) -> tuple[ProgramState, Metrics]:
        """All stages: the `StepFn`."""
        bank_key, keys = split(self, key)
        state, work = self.begin(state, self.start_states(bank_key), keys)
        if self.iterations:
            state, work = self.advance(state, work, 0, self.iterations)
        return self.finish(state, work)


def split(staged: StagedInit | StagedStep, key: Key) -> tuple[Key, Key]:
    """The key for `start_states`, and what follows gets: keys, or the key itself where there are no stages."""
    if not staged.keys:
        return key, key
    keys = jax.random.split(key, 1 + staged.keys)
    return keys[0], keys[1:]


def staged_init(init: InitFn) -> StagedInit:
    """Any `InitFn` in stages; one that is whole becomes a single stage."""
    return init if isinstance(init, StagedInit) else StagedInit(_nothing, partial(_create, init), 0)


def staged_step(step: StepFn) -> StagedStep:
    """Any `StepFn` in stages; one that is whole becomes a single stage."""
    return (
        step
        if isinstance(step, StagedStep)
        else StagedStep(_nothing, _keep, _advance_nothing, partial(_step, step), 0, 0)
    )


def change_init(program: Program, change: Callable[[ProgramState], ProgramState]) -> Program:
    """The same program, whose first state is changed by a pure function."""
    init = staged_init(program.init)
    return program._replace(init=replace(init, create=partial(_create_changed, init.create, change)))


def change_step(program: Program, change: Callable[[ProgramState], ProgramState]) -> Program:
    """The same program, whose state is changed by a pure function before each generation."""
    step = staged_step(program.step)
    return program._replace(step=replace(step, begin=partial(_begin_changed, step.begin, change)))


def _create_changed(create: Callable, change: Callable, key: Key, bank: Bank) -> ProgramState:
    return change(create(key, bank))


def _begin_changed(
    begin: Callable, change: Callable, state: ProgramState, bank: Bank, key: Key
) -> tuple[ProgramState, Work]:
    return begin(change(state), bank, key)


def _nothing(key: Key) -> Bank:
    del key
    return ()


def _create(init: InitFn, key: Key, bank: Bank) -> ProgramState:
    del bank
    return init(key)


def _keep(state: ProgramState, bank: Bank, key: Key) -> tuple[ProgramState, Work]:
    del bank
    return state, Work(shared=key)


def _advance_nothing(
    state: ProgramState, work: Work, first: Array | int, last: Array | int
) -> tuple[ProgramState, Work]:
    del first, last
    return state, work


def _step(step: StepFn, state: ProgramState, work: Work) -> tuple[ProgramState, Metrics]:
    return step(state, work.shared)
