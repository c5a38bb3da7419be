"""One generation, cut into compiled calls of about a second, so that a signal and the progress line need not wait."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery.distributed import sync
from rookery.distributed.programs import Stages
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import Work, split, staged_init, staged_step
from rookery.types import Key

_SLICE = 1.0  # seconds that a compiled call should take
_GROWTH = 2  # the most by which one call has more iterations than the one before, and each generation begins with 1: an
# update costs more than a step, and after warm-up all of a generation's iterations are slower than before
_SHORT = 10.0  # seconds; a generation that needs no longer is finished before the run stops


class Pause(NamedTuple):
    """A generation that was stopped before its end."""

    signum: int
    state: ProgramState
    work: Work
    done: int
    """Iterations of its training that are done."""


class Generations:
    """Runs generations of a program by its compiled stages.

    Where a generation is cut depends on the clock and changes nothing: the same compiled loop runs every iteration.

    Args:
      program: any.
      stages: its own, compiled.
      signum: gives the signal that asks this process to stop, if one came.
      show: is called with the share of the generation's training that is done, in [0, 1], and the seconds that the rest
        of the generation will take.
    """

    def __init__(
        self, program: Program, stages: Stages, signum: Callable[[], int | None], show: Callable[[float, float], None]
    ):
        self._init, self._step = staged_init(program.init), staged_step(program.step)
        self._stages = stages
        self._signum, self._show = signum, show
        self._count = 1  # iterations in the next call
        self._finish_seconds = 0.0  # of the last generation

    @property
    def compiled(self) -> list[Any]:
        """The compiled stages of a generation."""
        stages = self._stages
        return [stages.start_states, stages.begin, stages.advance, stages.finish]

    def create(self, key: Key) -> ProgramState:
        """The state before the first generation."""
        bank_key, keys = split(self._init, key)
        return self._stages.create(keys, self._stages.first_states(bank_key))

    def run(
        self, state: ProgramState, key: Key, work: Work | None = None, done: int = 0
    ) -> tuple[ProgramState, dict[str, np.ndarray]] | Pause:
        """A generation, or what is left of it.

        Args:
          state: is donated.
          key: the generation's.
          work: of a generation that was paused after `done` iterations; donated.

        Returns:
          The next state and the metrics on the host; or the pause, if a signal came and much was left to do.
        """
        if work is None:
            state, work = self._begin(state, key)
        while done < self._step.iterations:
            state, work, done, seconds = self._advance(state, work, done)
            left = self._left(done, seconds)
            self._show(done / self._step.iterations, left)
            signum, _ = sync.agree(self._signum(), False)
            if signum is not None and sync.of_first(left > _SHORT) and done < self._step.iterations:
                return Pause(signum, state, work, done)
        started = time.monotonic()
        state, metrics = jax.block_until_ready(self._stages.finish(state, work))
        metrics = dict(jax.device_get(metrics))
        self._finish_seconds = time.monotonic() - started
        return state, metrics

    def _begin(self, state: ProgramState, key: Key) -> tuple[ProgramState, Work]:
        bank_key, keys = split(self._step, key)
        self._count = 1
        return self._stages.begin(state, self._stages.start_states(bank_key), keys)

    def _advance(self, state: ProgramState, work: Work, done: int) -> tuple[ProgramState, Work, int, float]:
        """Some iterations; also how many are done by then, and the seconds that each took."""
        last = min(done + sync.of_first(self._count), self._step.iterations)
        started = time.monotonic()
        state, work = self._stages.advance(state, work, np.int32(done), np.int32(last))
        jax.block_until_ready((state, work))
        seconds = (time.monotonic() - started) / (last - done)
        self._count = max(1, min(int(_SLICE / max(seconds, 1e-9)), _GROWTH * self._count))
        return state, work, last, seconds

    def _left(self, done: int, seconds: float) -> float:
        return (self._step.iterations - done) * seconds + self._finish_seconds
