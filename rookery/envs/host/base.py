"""The interface between compiled programs and environments on the host.

In a compiled program an episode is a `HostState`: the number of the slot that holds its environment object, and the
seed that the episode was reset with. A start state is a seed alone, so start states can be stored and picked as often
as those of any other environment; the environment object is reset when the first step is taken. A running episode
exists once: its state must be stepped once and not be kept.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike

from rookery.types import Array

FRESH = -1  # slot of an episode whose first step was not taken yet
ENDED = -2  # slot of an episode that is over; further steps change nothing

TERMINATED, TRUNCATED, BROKEN, FAILED = 1, 2, 4, 8
"""Bits of `StepRows.flags`. FAILED: the environment raised an exception, or its worker was lost."""


class HostState(NamedTuple):
    """The state of an episode on the host."""

    slot: Array
    """`[]` int32, number of the slot, or `FRESH` or `ENDED`."""
    seed: Array
    """`[]` int32, at least 0: the seed that the episode is reset with."""
    action: Array
    """`[A]`, or `[]` int32: the last action; with the seed it determines the episode, so that it can be drawn later."""


class Sizes(NamedTuple):
    """Sizes of the arrays that are exchanged with the host."""

    features: int  # O
    dtype: np.dtype  # float32, or uint8 for pixels
    descriptor: int  # D
    action: tuple[int, ...]  # shape of an action, `(A,)`, or `()` for discrete actions
    discrete: bool  # whether actions are int32 indices
    measures: tuple[str, ...] = ()  # `[M]`, names of the measures


class StepRows(NamedTuple):
    """The results of a step of n environments."""

    features: np.ndarray
    """`[n, O]`, of the true successors."""
    rewards: np.ndarray
    """`[n]` float32."""
    flags: np.ndarray
    """`[n]` int32, bits as above."""
    descriptors: np.ndarray
    """`[n, D]` float32."""
    events: Mapping[int, str] = {}
    """Row -> the rest of a sentence about its environment: an error if the bit `FAILED` is set, else a warning."""
    starts: Mapping[int, int] = {}
    """Row -> checksum of the first features, for rows whose environment was reset."""
    measures: np.ndarray = np.zeros((0, 0), np.float32)
    """`[n, M]` float32, what the step adds to the sum of each measure."""

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The results of the rows that are sent to the device; without measures no array of them."""
        measures = (self.measures,) if self.measures.shape[1] else ()
        return self.features, self.rewards, self.flags, self.descriptors, *measures


def empty_rows(sizes: Sizes, count: int) -> StepRows:
    """Rows of zeros to write results into."""
    return StepRows(
        np.zeros((count, sizes.features), sizes.dtype),
        np.zeros(count, np.float32),
        np.zeros(count, np.int32),
        np.zeros((count, sizes.descriptor), np.float32),
        measures=np.zeros((count, len(sizes.measures)), np.float32),
    )


LARGEST_REWARD = 1e15  # squared errors of values, and the squares of their gradients, are finite up to it
NONFINITE = (
    f"returned numbers that are not finite, or a reward beyond {LARGEST_REWARD:.0e}; the episode ended as broken."
)


def replace_nonfinite(rows: StepRows) -> dict[int, str]:
    """End the episodes whose step has numbers that are not finite, as `guard_physics` does; returns their events."""
    is_sound = np.abs(rows.rewards) <= LARGEST_REWARD
    for values in (rows.features, rows.descriptors):
        is_sound &= np.isfinite(values).all(axis=1)
    if is_sound.all():
        return {}
    broken = np.flatnonzero(~is_sound)
    rows.flags[broken] = TERMINATED | BROKEN
    rows.rewards[broken] = 0.0
    rows.measures[broken] = 0.0
    for array in (rows.features, rows.descriptors):
        array[broken] = np.nan_to_num(array[broken], nan=0.0, posinf=0.0, neginf=0.0)
    return dict.fromkeys(broken.tolist(), NONFINITE)


class Runner(Protocol):
    """The environment objects of one worker; all methods are called by the same thread."""

    def reset(self, seeds: Sequence[int]) -> StepRows:
        """The first features and descriptors of episodes with these seeds, which are not kept."""
        ...

    def step(self, slots: Sequence[int], seeds: Sequence[int], actions: np.ndarray) -> StepRows:
        """Step the environments of slots; one with a seed of 0 or more is reset with it first. Frees ended slots."""
        ...

    def free(self, slots: Sequence[int]) -> None:
        """Free slots whose episodes are abandoned."""
        ...

    def save(self, slots: Sequence[int]) -> Mapping[str, np.ndarray] | None:
        """The states of running episodes, arrays `[n, ...]`; None if they cannot be saved."""
        ...

    def load(self, slots: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
        """Continue saved episodes in these slots."""
        ...

    def close(self) -> None:
        """Close all environment objects."""
        ...


class Event(NamedTuple):
    """What an environment did, and where."""

    text: str
    """The rest of a sentence about the environment."""
    row: int = 0
    """Row of the call, counted from 0."""
    slots: np.ndarray = np.zeros(0, np.int32)
    """`[n]`, the slots of the call after the step; none if the event concerns no single episode."""
    shape: tuple[int, ...] = ()
    """The mapped axes of the call: members and environments, or environments."""
    starts: bool = False
    """Whether start states were computed, which belong to no member."""


Rows = tuple[np.ndarray, ...]


class Host(Protocol):
    """An environment on the host, for the compiled program, whose mapped axes `shape` are n rows, and for the run."""

    sizes: Sizes
    name: str  # of the environment, for messages
    failure: Event | None  # the first failure, after which the run stops
    warnings: list[Event]  # other events that were not shown to the user yet, each text once

    def reset(self, shape: tuple[int, ...], seeds: ArrayLike) -> Rows:
        """Seeds `[n]` -> features `[n, O]`, descriptors `[n, D]`."""
        ...

    def steps_here(self, count: int) -> bool:
        """Whether `step` takes so many steps in the calling thread, so that announcing them would gain nothing."""
        ...

    def announce(self, shape: tuple[int, ...], slots: ArrayLike, seeds: ArrayLike, actions: ArrayLike) -> Rows:
        """Begin a step whose results `step` will return; -> slots `[n]`."""
        ...

    def step(self, shape: tuple[int, ...], slots: ArrayLike, seeds: ArrayLike, actions: ArrayLike) -> Rows:
        """Slots, seeds `[n]`, actions -> slots, features, rewards, flags, descriptors, and measures if it has any."""
        ...

    def try_step(self) -> str:
        """Take one step in a new environment if none was created yet; returns what failed, as a sentence, or ""."""
        ...

    def keep(self, slots: Collection[int], /) -> None:
        """Free all other slots: episodes of a member that was restarted, or of an evaluation that was stopped."""
        ...

    def save(self) -> dict[str, np.ndarray] | None:
        """The states of all running episodes, arrays of n rows with their `slots`; None if one cannot be saved.

        No call may be in progress. An exception is a warning, since all else can be saved.
        """
        ...

    def load(self, arrays: Mapping[str, np.ndarray], /) -> None:
        """Continue the episodes that `save` returned, in place of all others; a HostError if the states have other
        shapes."""
        ...

    def close(self) -> None:
        """Close all environments and end the workers."""
        ...


class HostWarning(UserWarning):
    """An environment on the host behaves in a way that is rarely intended, or one of its workers was started again."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, without its full stop, as a part of a sentence."""
    return (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")


class HostError(RuntimeError):
    """An environment on the host failed; the message names the environment and the cause."""
