"""Runs a generation as compiled calls of about one second each, so that signals and progress are handled promptly."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from rookery.distributed import sync
from rookery.distributed.programs import Stages
from rookery.envs.base import Step
from rookery.factories import OWN_ENVIRONMENT
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import Work, split, staged_init, staged_step
from rookery.types import Key

_CALL_SECONDS = 1.0
"""Target duration of one compiled call."""

_MAX_GROWTH = 2
"""Largest factor by which the iterations grow from one call to the next; each generation begins with 1 iteration.

The duration of an iteration is not known in advance: gradient updates cost more than environment steps, so iterations
become slower once the warm-up steps end.
"""

_FINISH_SECONDS = 10.0
"""A generation with at most this much time left is finished before the run stops at a signal."""


class Pause(NamedTuple):
    """A generation that stopped before its end."""

    signum: int | None
    """Number of the signal; None if an environment on the host failed."""
    state: ProgramState
    """State of the program."""
    work: Work | None
    """Intermediate state of the generation; None before its first iteration."""
    done: int
    """Training iterations of the generation that are done."""


class Generations:
    """Runs generations of a program with its compiled stages.

    The number of iterations per call depends on wall time but does not change the result: the same compiled loop body
    runs every iteration.

    Args:
      program: the program to run.
      stages: the compiled stages of the program.
      signum: returns the number of the signal that requested this process to stop, or None.
      show: called with the fraction of the generation's training that is done, in [0, 1], and the estimated seconds
        until the end of the generation.
      failed: given the state, whether an environment on the host has failed; None if there are none.
    """

    def __init__(
        self,
        program: Program,
        stages: Stages,
        signum: Callable[[], int | None],
        show: Callable[[float, float], None],
        failed: Callable[[ProgramState], bool] | None = None,
    ):
        self._init, self._step = staged_init(program.init), staged_step(program.step)
        self._stages, self._name = stages, program.task
        self._signum, self._show, self._failed = signum, show, failed
        self._count = 1  # iterations in the next call
        self._finish_seconds = 0.0

    @property
    def finish_seconds(self) -> float:
        """Duration of the stage `finish` in the previous generation: evaluation and selection, if members train."""
        return self._finish_seconds

    @property
    def stages(self) -> Stages:
        """The compiled stages."""
        return self._stages

    def create(self, key: Key) -> ProgramState:
        """The state before the first generation; a ValueError if no start state of the environment is finite."""
        bank_key, keys = split(self._init, key)
        bank = self._stages.first_states(bank_key)
        first = bank[1] if isinstance(bank, tuple) and bank else None
        shown = (first.observation.features, first.descriptor) if isinstance(first, Step) else ()
        if not all(np.isfinite(leaf).all() for leaf in jax.device_get(shown)):  # else others have replaced such states
            raise ValueError(
                f"the environment {self._name} is wrong, see {OWN_ENVIRONMENT}: every start state has an observation "
                "or a descriptor that is not finite."
            )
        return self._stages.create(keys, bank)

    def run(
        self, state: ProgramState, key: Key, work: Work | None = None, done: int = 0
    ) -> tuple[ProgramState, dict[str, np.ndarray]] | Pause:
        """Run a generation, or the remaining iterations of a paused one.

        Args:
          state: of the program; donated.
          key: random key of the generation.
          work: intermediate state of a generation paused after `done` iterations; donated.
          done: iterations of a paused generation that are done.

        Returns:
          The next state and the metrics on the host; or a `Pause`, if a signal came and more than 10 seconds were left,
          or if an environment on the host failed.
        """
        if work is None:
            bank_key, keys = split(self._step, key)
            self._count = 1
            bank = self._stages.start_states(bank_key)
            if self._failed and jax.block_until_ready(bank) and self._failed(state):
                return Pause(None, state, None, 0)
            state, work = self._stages.begin(state, bank, keys)
            assert work is not None
        while done < self._step.iterations:
            state, work, done, seconds = self._advance(state, work, done)
            left = self._seconds_left(done, seconds)
            self._show(done / self._step.iterations, left)
            if self._failed and self._failed(state):
                return Pause(None, state, work, done)
            signum, _ = sync.agree(self._signum(), False)
            if signum is not None and sync.of_first(left > _FINISH_SECONDS) and done < self._step.iterations:
                return Pause(signum, state, work, done)
        started = time.monotonic()
        with jax.debug_nans(False):  # a fitness of NaN is a result; the flag checks the training
            state, metrics = jax.block_until_ready(self._stages.finish(state, work))
        metrics = dict(jax.device_get(metrics))
        self._finish_seconds = time.monotonic() - started
        return state, metrics

    def _advance(self, state: ProgramState, work: Work, done: int) -> tuple[ProgramState, Work, int, float]:
        """Run some iterations; also returns the number of iterations done so far and the seconds per iteration."""
        last = min(done + sync.of_first(self._count), self._step.iterations)
        started = time.monotonic()
        state, work = self._stages.advance(state, work, np.int32(done), np.int32(last))
        jax.block_until_ready((state, work))
        seconds = (time.monotonic() - started) / (last - done)
        self._count = max(1, min(int(_CALL_SECONDS / max(seconds, 1e-9)), _MAX_GROWTH * self._count))
        return state, work, last, seconds

    def _seconds_left(self, done: int, seconds: float) -> float:
        return (self._step.iterations - done) * seconds + self._finish_seconds
