"""The pool of environments on the host: numbers the episodes, divides them among workers, and records failures."""

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rookery.envs.host.base import (
    BROKEN,
    ENDED,
    FAILED,
    FRESH,
    TERMINATED,
    TRUNCATED,
    Event,
    HostError,
    Sizes,
    StepRows,
    empty_rows,
    first_line,
)
from rookery.envs.host.workers import RunnerError, Worker, WorkerLost
from rookery.factories import place_of

_RESTARTS = 3  # how often a worker that was lost is started again in a run
_REMEMBERED = 4_096  # number of start states whose first features are compared with those of their episodes


class _Task(NamedTuple):
    """The rows of one worker in a call."""

    number: int
    worker: Worker
    slots: list[int]
    future: Future


_BAD_START = (
    "returned numbers that are not finite from a reset; episodes begin from other start states, if one is finite."
)
_DIFFERS = (
    "does not begin the same episode when it is reset with the same seed again, so runs cannot be repeated and first "
    "observations are wrong; let it draw random numbers from self.np_random only."
)


class HostPool:
    """Environments on the host, for any number of callers; implements `host.base.Host`.

    A failure never raises an exception in a compiled program, which would lose the program's state: the episode ends as
    broken, and `failure` is set, which the training loop reads after each call.

    Args:
      name: of the environment, for messages.
      sizes: of the arrays.
      start: creates a worker, given its number.
      workers: number of workers, at least 1; they are started with the first call.
      timeout: seconds above 0 after which a step or a reset counts as hanging.
      rows_here: up to so many rows are stepped in the calling thread, without the time limit. Handing them to another
        thread takes longer than few fast steps, but an environment that could hang has to be in another thread.

    Raises:
      ValueError: the timeout is not above 0.
    """

    def __init__(
        self,
        name: str,
        sizes: Sizes,
        start: Callable[[int], Worker],
        workers: int,
        timeout: float,
        rows_here: int = 0,
    ):
        if timeout <= 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}.")
        self.name, self.sizes, self._rows_here = name, sizes, rows_here
        self.failure: Event | None = None
        """The first failure, after which the run stops."""
        self.warnings: list[Event] = []
        """Other events that were not shown to the user yet, each text once."""
        self._warned: set[str] = set()
        self._start, self._timeout = start, timeout
        self._workers: list[Worker | None] = [None] * workers
        self._counts = [0] * workers  # running episodes of each worker
        self._of_slot: dict[int, int] = {}  # slot -> worker
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[_Task, int]] = {}  # slot -> the task that steps it, and its place in the task
        self._firsts: dict[int, int] = {}  # seed -> checksum of the first features
        self._lost = 0
        self._lock = threading.RLock()

    def try_step(self) -> str:
        """See `Host.try_step`."""
        if any(self._workers):
            return ""
        seeds, kind = np.zeros(1, np.int32), np.int32 if self.sizes.discrete else np.float32
        self.reset((1,), seeds)
        if self.failure is None:
            slots, *_ = self.step((1,), seeds + FRESH, seeds, np.zeros((1, *self.sizes.action), kind))
            self.keep(self._of_slot.keys() - {int(slots[0])})
        failure, self.failure = self.failure, None
        self.warnings.clear()  # a run gives them with the place in it
        self._warned.clear()
        return f"it {failure.text}." if failure else ""

    def reset(self, shape: tuple[int, ...], seeds: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """The first features and descriptors of episodes; see `Host`."""
        seeds = np.asarray(seeds)
        features = np.zeros((len(seeds), self.sizes.features), self.sizes.dtype)
        descriptors = np.zeros((len(seeds), self.sizes.descriptor), np.float32)
        tasks = []
        with self._lock:
            for number, rows in enumerate(np.array_split(np.arange(len(seeds)), len(self._workers))):
                if len(rows):
                    worker = self._worker(number)
                    tasks.append((rows, number, worker, worker.submit("reset", seeds[rows].tolist())))
        for rows, number, worker, future in tasks:
            found = self._first_rows(number, worker, future, seeds[rows].tolist())
            features[rows], descriptors[rows] = found.features, found.descriptors
            for place, checksum in found.starts.items():
                self._compare(int(seeds[rows[place]]), checksum)
            for place, text in found.events.items():
                self._record(Event(text, int(rows[place]), np.full(len(seeds), FRESH), shape, starts=True), True)
        if not np.isfinite(features).all() or not np.isfinite(descriptors).all():
            self._record(Event(_BAD_START), False)
        return features, descriptors

    def steps_here(self, count: int) -> bool:
        """Whether so many rows are stepped in the calling thread; see `Host`."""
        return count <= self._rows_here

    def announce(
        self, shape: tuple[int, ...], slots: ArrayLike, seeds: ArrayLike, actions: ArrayLike
    ) -> tuple[np.ndarray]:
        """Begin a step; see `Host`."""
        del shape
        return (self._submit(np.array(slots), np.asarray(seeds), np.asarray(actions)),)

    def step(
        self, shape: tuple[int, ...], slots: ArrayLike, seeds: ArrayLike, actions: ArrayLike
    ) -> tuple[np.ndarray, ...]:
        """Step environments, or return the results of an announced step; see `Host`."""
        seeds = np.asarray(seeds)
        slots = self._submit(np.array(slots), seeds, np.asarray(actions))
        rows, events = empty_rows(self.sizes, len(slots)), {}
        rows.flags[:] = TRUNCATED  # of ended slots
        for task, places in self._awaited(slots):
            results, own = self._results(task), list(places)
            for array, values in zip(rows.arrays, results.arrays, strict=True):
                array[own] = values[list(places.values())]
            for row, place in places.items() if results.events or results.starts else ():
                if place in results.events:
                    events[row] = results.events[place]
                if place in results.starts:
                    self._compare(int(seeds[row]), results.starts[place])
        if (repeated := _repeated(slots)) is not None:
            events[repeated] = "was stepped twice from one state of a running episode, which exists once"
            rows.flags[repeated] |= FAILED
        self._forget(slots, rows.flags)
        for row, text in events.items():
            self._record(Event(text, row, slots.copy(), shape), bool(rows.flags[row] & FAILED))
        return slots, *rows.arrays

    def keep(self, slots: Collection[int]) -> None:
        """See `Host.keep`."""
        with self._lock:
            for slot in self._of_slot.keys() - set(slots):
                self._counts[self._of_slot[slot]] -= 1
                self._worker(self._of_slot.pop(slot)).submit("free", [slot])
                self._pending.pop(slot, None)

    def save(self) -> dict[str, np.ndarray] | None:
        """See `Host.save`."""
        parts = []
        for number in range(len(self._workers)):
            slots = [slot for slot, worker in self._of_slot.items() if worker == number]
            if slots:
                try:
                    arrays = self._worker(number).submit("save", slots).result()
                except Exception as error:
                    self._record(Event(f"cannot save its running episodes: it {_raised(error)}."), False)
                    arrays = None
                if arrays is None:
                    return None
                parts.append({"slots": np.asarray(slots), **arrays})
        if not parts:
            return {"slots": np.zeros(0, np.int64)}
        try:
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        except (ValueError, KeyError):
            self._record(Event("cannot save its running episodes: their states differ in shape."), False)
            return None

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """See `Host.load`."""
        self.keep(())
        slots = arrays["slots"].tolist()
        with self._lock:
            self._numbers = itertools.count(max(slots, default=-1) + 1)
            for number in range(len(self._workers)):
                rows = list(range(number, len(slots), len(self._workers)))
                own = [slots[row] for row in rows]
                if own:
                    part = {name: values[rows] for name, values in arrays.items() if name != "slots"}
                    self._load(number, own, part)
                self._of_slot |= dict.fromkeys(own, number)
                self._counts[number] += len(own)

    def _load(self, number: int, slots: list[int], arrays: Mapping[str, np.ndarray]) -> None:
        try:
            self._worker(number).submit("load", slots, arrays).result()
        except Exception as error:
            raise HostError(f"{self.name} cannot continue its saved episodes: it {_raised(error)}") from error

    def close(self) -> None:
        """See `Host.close`."""
        for number, worker in enumerate(self._workers):
            if worker is not None:
                worker.close()
            self._workers[number] = None

    def _awaited(self, slots: np.ndarray) -> Iterable[tuple[_Task, dict[int, int]]]:
        """The tasks that step these slots, each with its rows: row of the call -> place in the task."""
        found: dict[int, tuple[_Task, dict[int, int]]] = {}
        for row, slot in enumerate(slots.tolist()):
            if slot != ENDED:
                task, place = self._pending[slot]
                found.setdefault(id(task), (task, {}))[1][row] = place
        return found.values()

    def _submit(self, slots: np.ndarray, seeds: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Give every row without a task to its worker, and a slot to every fresh one; returns the slots."""
        with self._lock:
            parts: dict[int, dict[int, tuple[int, int]]] = {}  # worker -> slot -> row, and the seed to reset with or -1
            for row, slot in enumerate(slots.tolist()):
                if slot == ENDED or slot in self._pending:
                    continue
                seed = int(seeds[row]) if slot == FRESH else -1
                running = self._allocate() if slot == FRESH else slot
                slots[row] = running
                parts.setdefault(self._of_slot.get(running, 0), {}).setdefault(running, (row, seed))
            workers = {number: self._worker(number) for number in parts}
        # Without the lock, since other devices step their environments meanwhile.
        for number, worker in workers.items():
            own, (rows, resets) = list(parts[number]), zip(*parts[number].values(), strict=True)
            send = worker.call if self.steps_here(len(slots)) else worker.submit
            task = _Task(number, worker, own, send("step", own, resets, actions[list(rows)]))
            with self._lock:
                self._pending.update({slot: (task, place) for place, slot in enumerate(own)})
        return slots

    def _allocate(self) -> int:
        """A new slot, of the worker with the fewest running episodes."""
        slot, number = next(self._numbers), int(np.argmin(self._counts))
        self._of_slot[slot] = number
        self._counts[number] += 1
        return slot

    def _forget(self, slots: np.ndarray, flags: np.ndarray) -> None:
        """Forget the tasks of these rows, and the slots whose episodes are over."""
        with self._lock:
            for row, slot in enumerate(slots.tolist()):
                if slot == ENDED:
                    continue
                self._pending.pop(slot, None)
                if flags[row] & (TERMINATED | TRUNCATED):
                    slots[row] = ENDED
                    if slot in self._of_slot:
                        self._counts[self._of_slot.pop(slot)] -= 1

    def _worker(self, number: int) -> Worker:
        worker = self._workers[number]
        if worker is None:
            worker = self._workers[number] = self._start(number)
        return worker

    def _wait(self, worker: Worker, future: Future, rows: int) -> StepRows:
        """The result of a task of a worker, which must make progress within every `timeout` seconds."""
        worker.await_start()
        reached = worker.progress()
        if reached is None:
            return future.result(self._timeout * rows)
        while True:
            try:
                return future.result(self._timeout)
            except TimeoutError:
                if worker.progress() == reached:
                    raise
                reached = worker.progress()

    def _first_rows(self, number: int, worker: Worker, future: Future, seeds: list[int]) -> StepRows:
        """The results of `reset`; a worker that was lost is started again and repeats it."""
        while True:
            try:
                return self._wait(worker, future, len(seeds))
            except Exception as error:
                cause = self._cause(number, worker, error, "reset")
                if not self._is_restarted(error):
                    return empty_rows(self.sizes, len(seeds))._replace(events={0: cause})
            with self._lock:
                worker = self._worker(number)
            future = worker.submit("reset", seeds)

    def _results(self, task: _Task) -> StepRows:
        """The results of a task; if it failed as a whole, all its episodes end as broken."""
        count = len(task.slots)
        try:
            return self._wait(task.worker, task.future, count)
        except Exception as error:
            cause = self._cause(task.number, task.worker, error, "step")
            rows = empty_rows(self.sizes, count)
            rows.flags[:] = TERMINATED | BROKEN
            if self._is_restarted(error):
                return rows
            current = (task.worker.progress() or (0, -1))[1]
            rows.flags[:] |= FAILED
            return rows._replace(events={task.slots.index(current) if current in task.slots else 0: cause})

    def _is_restarted(self, error: Exception) -> bool:
        """Whether the run goes on after an exception, since it concerns a process that can be started again."""
        return isinstance(error, WorkerLost) and self._lost <= _RESTARTS

    def _cause(self, number: int, worker: Worker, error: Exception, method: str) -> str:
        """Describe an exception; a worker that hangs or has ended is replaced, and its episodes are forgotten."""
        if isinstance(error, WorkerLost):
            cause = f"was lost: {error}"
        elif isinstance(error, TimeoutError):
            cause = f"did not return from {method} within {self._timeout:g} s"
        else:
            return _raised(error)
        with self._lock:
            if self._workers[number] is worker:
                self._workers[number], self._counts[number] = None, 0
                self._of_slot = {slot: own for slot, own in self._of_slot.items() if own != number}
                self._lost += 1
                if self._is_restarted(error):
                    text = (
                        f"{cause}; its worker was started again ({self._lost} of {_RESTARTS}), and its episodes ended."
                    )
                    self._record(Event(text), False)
                worker.abandon()
        return cause

    def _compare(self, seed: int, checksum: int) -> None:
        """Compare the first features of two episodes with the same seed."""
        with self._lock:
            if self._firsts.setdefault(seed, checksum) != checksum:
                self._record(Event(_DIFFERS), False)
            if len(self._firsts) > _REMEMBERED:
                self._firsts.pop(next(iter(self._firsts)))

    def _record(self, event: Event, failed: bool) -> None:
        with self._lock:
            if failed:
                self.failure = self.failure or event
            elif event.text not in self._warned:
                self._warned.add(event.text)
                self.warnings.append(event)


def _raised(error: Exception) -> str:
    kind = "" if isinstance(error, RunnerError) else f"{type(error).__name__}: "
    return f"raised {kind}{first_line(error)}{place_of(error)}"


def _repeated(slots: np.ndarray) -> int | None:
    """The row of a slot that an earlier row has too; None if there is none."""
    listed = slots.tolist()
    running = [slot for slot in listed if slot != ENDED]
    if len(set(running)) == len(running):
        return None
    return next(row for row, slot in enumerate(listed) if slot != ENDED and listed.index(slot) < row)
