"""Functions and objects of the user that process 0 calls after every generation, and at the begin and end of a run."""

import reprlib
import signal
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np

from rookery import trees
from rookery.distributed import sync
from rookery.distributed.signals import Requests
from rookery.factories import RAISED, place_of
from rookery.settings import CALLBACK, METRIC_NAMES, check_names
from rookery.storage.record import CHOICES
from rookery.storage.run_dir import OutputWarning
from rookery.training.metrics import mean_over_members
from rookery.types import Record


class Generation(NamedTuple):
    """A finished generation, as a callback sees it: copies on the host, which do not affect the run."""

    finished: int
    """Number of finished generations, this one included; at least 1."""
    total: int
    """Number of generations after which the run ends."""
    metrics: dict[str, float]
    """Column of `metrics.csv` -> value in this generation."""
    members: dict[str, np.ndarray]
    """Name -> `[P]`, read-only: every metric with one value per member, such as `fitness`, `parent`, `diverged`,
    `hyper/discount` or `actor_loss`. `P` is the number of children where a program has no members (MAP-Elites)."""
    run_dir: Path | None
    """The run directory; None if nothing is written."""
    choices: Mapping[str, Sequence[str]] = {}
    """Name of each hyper-parameter whose values are names, which `members` then has -> all its names."""

    @property
    def number(self) -> int:
        """The number of this generation, counted from 0 as in `metrics.csv` and `lineage.csv`."""
        return self.finished - 1

    @property
    def is_last(self) -> bool:
        """Whether the run is complete after this generation."""
        return self.finished == self.total

    @property
    def env_steps(self) -> int:
        """Environment steps of all members since the beginning of the run."""
        return int(self.metrics["env_steps"])

    @property
    def seconds(self) -> float:
        """Wall time of this generation in seconds, without tables, checkpoints and callbacks."""
        return self.metrics["seconds"]


class Start(NamedTuple):
    """The start or the continuation of a run, as a callback sees it."""

    config: Record
    """The recorded settings, nested as in `config.json`."""
    run_dir: Path | None
    """The run directory; None if nothing is written."""
    finished: int
    """Number of generations that are finished already: 0 for a new run, more for a resumed one."""
    total: int
    """Number of generations after which the run ends."""


class Callback(Protocol):
    """A function `f(generation)`, or an object that has `begin(start)` or `end(error)` in addition to `__call__`.

    Only process 0 of a run calls it. An exception in `__call__` or `end`, SystemExit too, becomes a `CallbackWarning`,
    once for each callback, and the run continues; `Required(callback)` ends the run instead. An exception in `begin`
    ends the run before its first generation. KeyboardInterrupt in `__call__` stops the run as Ctrl-C does: it is saved
    first.

    - `begin(start: Start)`: before the program is compiled and the first generation runs.
    - `__call__(generation: Generation)`: after each generation, when its rows are in the tables. It may return a
      mapping of names to numbers, or to one number for each of the P members: they become columns of `metrics.csv`
      (of members, their mean) and `lineage.csv` (`callback/NAME`), and the callbacks after it see them. In generations
      without them they are NaN. A name is that of no other metric.
    - `end(error: BaseException | None)`: after the last generation, or with the exception that ended the run;
      `rookery.distributed.signals.Interrupted` after a signal. It is called if `begin` succeeded.
    """

    def __call__(self, generation: Generation, /) -> object: ...


class Required(NamedTuple):
    """A callback whose exception ends the run with a `CallbackError`; the generation is saved first."""

    callback: Callback


class CallbackWarning(UserWarning):
    """A callback raised an exception; the run continues."""


class CallbackLostWarning(CallbackWarning, OutputWarning):
    """It lost what it should have written, or sent; one that tries again later has an exception with `is_temporary`."""


class CallbackError(RuntimeError):
    """A required callback raised an exception, which ended the run; the message names where the run is saved."""


class Called(NamedTuple):
    """What the callbacks of a generation returned."""

    seconds: float
    """Wall time that they took."""
    row: Mapping[str, float] = {}
    """Name -> number, for `metrics.csv`."""
    members: Mapping[str, np.ndarray] = {}
    """Name -> `[P]`, for `lineage.csv`; their means are in `row`."""


class Callbacks:
    """The callbacks of a run; as a context manager it calls the `end` of those that have begun.

    Args:
      callbacks: of the user; only process 0 calls them.
      requests: the signals of the run, to which a KeyboardInterrupt of a callback is added.
    """

    def __init__(self, callbacks: Sequence[Callback | Required], requests: Requests):
        entries = _entries(callbacks)
        self._may_fail = any(isinstance(entry, Required) for entry in entries)
        self._entries = entries if sync.is_first() else []
        self._requests = requests
        self._begun: list[Callback] = []
        self._choices: Mapping[str, Sequence[str]] = {}
        self._warned: set[tuple[int, str]] = set()
        self._failure: tuple[Callback, BaseException] | None = None

    def begin(self, start: Start) -> None:
        """Call the `begin` of every callback; an exception ends the run."""
        self._choices = start.config.get(CHOICES, {})
        for callback in map(_callback, self._entries):
            if (begin := getattr(callback, "begin", None)) is not None:
                try:
                    begin(start)
                except SystemExit as error:  # it would end the process without a word
                    raise CallbackError(f"{_failed(callback, error)}, before the first generation.") from error
            self._begun.append(callback)

    def __call__(
        self, finished: int, total: int, row: Mapping[str, float], metrics: Mapping[str, np.ndarray], path: Path | None
    ) -> Called:
        """Call every callback after a generation.

        Args:
          finished: number of finished generations.
          total: number of generations of the run.
          row: of `metrics.csv`.
          metrics: of the program, on the host.
          path: of the run directory.
        """
        if not self._entries:
            return Called(0.0)
        started = time.monotonic()
        shape, row, added = np.shape(metrics["fitness"]), dict(row), Called(0.0, {}, {})
        members = {name: _copy(values) for name, values in metrics.items() if np.shape(values) == shape}
        for name, names in self._choices.items():
            if (hyper := f"hyper/{name}") in members:
                members[hyper] = np.array(names)[members[hyper].astype(int)]
        for entry in self._entries:
            seen = Generation(finished, total, {**row, **added.row}, dict(members), path, self._choices)
            found = self._call(entry, seen, metrics)
            added = Called(0.0, {**added.row, **found.row}, {**added.members, **found.members})
            members |= found.members
        return added._replace(seconds=time.monotonic() - started)

    def failed(self) -> bool:
        """Whether a required callback has failed in process 0; every process calls this, and they agree."""
        return self._may_fail and bool(sync.of_first(self._failure is not None))

    def error(self, generation: int, run_dir: Path | None) -> CallbackError:
        """The exception that ends the run after a required callback failed, which is its cause.

        Args:
          generation: number of finished generations, of which the last is saved.
          run_dir: the run directory.
        """
        saved = f"which is saved in {run_dir}; correct the callback, then continue with resume=True"
        saved = saved if run_dir else "of which nothing is saved, since the run has no run_dir"
        what = _failed(*self._failure) if self._failure else "a required callback failed in process 0"
        error = CallbackError(f"{what}, and ended the run after generation {generation}, {saved}.")
        error.__cause__ = self._failure[1] if self._failure else None
        return error

    def _call(self, entry: Callback | Required, generation: Generation, metrics: Mapping[str, np.ndarray]) -> Called:
        """Call a callback; its exception does not leave this function."""
        callback = _callback(entry)
        try:
            returned = callback(generation)
            return _columns(returned, generation, metrics) if isinstance(returned, Mapping) else Called(0.0)
        except KeyboardInterrupt:
            if self._requests.signum is not None:  # a second Ctrl-C stops at once
                raise
            self._requests.signum = signal.SIGINT
        except RAISED as error:
            if not isinstance(entry, Required):
                self._warn(callback, error, "the run continues, calls it again, and does not repeat this warning")
            elif self._failure is None:
                self._failure = callback, error
        return Called(0.0)

    def _warn(self, callback: Callback, error: BaseException, consequence: str) -> None:
        if (id(callback), consequence) not in self._warned:
            self._warned.add((id(callback), consequence))
            category = CallbackWarning if getattr(error, "is_temporary", False) else CallbackLostWarning
            warnings.warn(f"{_failed(callback, error)}; {consequence}.", category, stacklevel=4)

    def __enter__(self) -> "Callbacks":
        return self

    def __exit__(self, _: type | None, error: BaseException | None, __: TracebackType | None) -> None:
        for callback in reversed(self._begun):
            try:
                if (end := getattr(callback, "end", None)) is not None:
                    end(error)
            except RAISED as failure:
                self._warn(callback, failure, "the run itself has ended, and its files are complete")


def number_required(callbacks: Sequence[Callback | Required]) -> int:
    """The number of callbacks that can end the run, which all its processes have to agree on.

    Raises:
      TypeError: `callbacks` is not a sequence of functions or objects that can be called.
    """
    return sum(isinstance(entry, Required) for entry in _entries(callbacks))


def _entries(callbacks: Sequence[Callback | Required]) -> list[Callback | Required]:
    if callable(callbacks) or isinstance(callbacks, Required) or not isinstance(callbacks, Iterable):
        raise TypeError("callbacks is a list of functions; write callbacks=[f].")
    for entry in callbacks:
        if not callable(_callback(entry)):
            raise TypeError(
                f"the callback {entry!r} cannot be called; give functions of a rookery.training.Generation, "
                "or objects with `__call__`."
            )
    return list(callbacks)


def _callback(entry: Callback | Required) -> Callback:
    return entry.callback if isinstance(entry, Required) else entry


def _columns(returned: Mapping[Any, Any], generation: Generation, metrics: Mapping[str, np.ndarray]) -> Called:
    """The numbers that a callback returned.

    Raises:
      ValueError: a name is no name of a column or is that of another metric, or a value is neither a number nor `[P]`.
    """
    check_names("number of a callback", returned, [*METRIC_NAMES, CALLBACK, *generation.metrics, *metrics])
    fitness = metrics["fitness"]
    remedy = f"return a number, or one for each of the {len(fitness)} members"
    row, members = {}, {}
    for name, value in returned.items():
        try:
            array = trees.unmasked(value, np.float64)
        except (TypeError, ValueError):  # such as text
            raise ValueError(f"it returned {name} as {reprlib.repr(value)}; {remedy}") from None
        if array.shape not in ((), fitness.shape):
            raise ValueError(f"it returned {name} with the shape {list(array.shape)}; {remedy}")
        if array.shape:
            members[name] = _copy(array)
        row[name] = mean_over_members(array, fitness)
    return Called(0.0, row, members)


def _copy(values: np.ndarray) -> np.ndarray:
    copied = np.array(values)
    copied.setflags(write=False)
    return copied


def _failed(callback: Callback, error: BaseException) -> str:
    name = getattr(callback, "__qualname__", type(callback).__name__)
    return f"the callback {name} failed with {type(error).__name__}: {str(error).rstrip('.')}{place_of(error)}"
