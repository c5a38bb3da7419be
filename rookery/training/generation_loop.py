"""The loop over the generations of a run."""

import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import numpy as np

from rookery.distributed import sync
from rookery.distributed.signals import Interrupted, Requests
from rookery.envs.host.base import HostError
from rookery.factories import OWN_ENVIRONMENT
from rookery.populations.base import Program, ProgramState
from rookery.storage.best_checkpoint import Best
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.events import Diverged
from rookery.storage.run_dir import resume_command
from rookery.training.callbacks import Callbacks
from rookery.training.config import RunConfig
from rookery.training.generation import Generations, Pause
from rookery.training.host_episodes import HostEpisodes
from rookery.training.metrics import WallTimes, summarize
from rookery.training.progress import Reporter
from rookery.training.run_writer import RunWriters
from rookery.training.start_point import DONE, StartPoint
from rookery.types import Key


class ExchangeFn(Protocol):
    """Exchange members or elites with other runs after a generation, which is in the tables and not yet saved.

    Args:
      generation: number of finished generations.
      state: of the program; donated.

    Returns:
      The state with which the next generation begins.
    """

    def __call__(self, generation: int, state: ProgramState) -> ProgramState: ...


def lost_kind(program: Program, metrics: Mapping[str, np.ndarray]) -> str:
    """What of the run has diverged: every "elite", every "member", or every "member of prey", a role; else "".

    A member with a fitness that is not finite has not always diverged: if only its physics simulation produced values
    that are not finite, it can still learn. The metric `diverged`, where a program reports it, makes this distinction.
    """
    if "max_fitness" in metrics:
        return "" if np.isfinite(metrics["max_fitness"]).any() else ELITE
    team = program.learner.spec.team if program.learner and program.settings.get("member") == "agent" else None
    names = team.names if team else ("",)
    diverged = np.reshape(metrics.get("diverged", ~np.isfinite(metrics["fitness"])), (-1, len(names))).all(axis=0)
    if diverged.all():
        return "member"
    return f"member of {names[int(np.argmax(diverged))]}" if diverged.any() else ""


ELITE = "elite"
"""What a repertoire has, see `lost_kind`."""


def _no_selection(program: Program, first: int, history: Sequence[Mapping[str, np.ndarray]]) -> str:
    """A note on a run of which no fitness has differed, or been known, in its first generations; "" otherwise.

    Args:
      program: its warm-up does not count; a repertoire needs no fitness that differs.
      first: the generation that the run began with.
      history: the metrics of all generations since.
    """
    warm_up = program.learner.untrained_generations if program.learner else 0
    if first > 0 or program.table is not None or len(history) != warm_up + _EQUAL_GENERATIONS:
        return ""
    fitness = np.stack([metrics["fitness"] for metrics in history])
    if np.isnan(fitness).all() and all(np.all(metrics.get("broken_episodes", 0)) for metrics in history):
        return (
            f"no fitness of the first {len(history)} generations is finite, since an episode of each evaluation broke, "
            "so that no member can be selected: find out why by rookery.check_environment(environment)"
        )
    value = fitness.flat[0]
    if not (fitness == value).all():
        return ""
    evaluator = program.learner.evaluator if program.learner else None
    another = "another measure (--objective" if evaluator and evaluator.config.objective else "a measure (--objective"
    return (
        f"every fitness of the first {len(history)} generations is {value:.4g}, so that no member can be selected by "
        f"it, and there is little to learn: select by {another}; `rookery envs NAME` lists them), or shape the reward, "
        "by weights that evolve (--space.env.NAME evolve); see "
        f"{OWN_ENVIRONMENT}#parameters-that-evolve-and-measures"
    )


_EQUAL_GENERATIONS = 5


def _no_episode(program: Program, metrics: Mapping[str, np.ndarray]) -> str:
    """A note on a generation in which no training episode ended, from which the fitness would come; "" for others."""
    if program.learner is None or program.learner.rate_training is None or np.any(metrics["train_episodes"]):
        return ""
    return (
        "no training episode ended in this generation, so that no member has a fitness of it, and none is replaced: "
        "give longer generations (--evaluate-every, or --steps-per-generation), or shorter episodes (--episode-length)"
    )


class Loop(NamedTuple):
    """The loop over generations, with all objects that it uses."""

    program: Program
    config: RunConfig
    generations: Generations
    writers: RunWriters
    reporter: Reporter
    requests: Requests
    best: Best
    callbacks: Callbacks
    host: HostEpisodes | None
    exchange: ExchangeFn | None
    pace: "Pace"

    def run(
        self, start: StartPoint, run_key: Key
    ) -> Generator[int, None, tuple[ProgramState, list[dict[str, np.ndarray]]]]:
        """Run from the starting point to the last generation, or until the first signal; yields as `turns` does."""
        history: list[dict[str, np.ndarray]] = []
        state, first, work, done, _ = start
        assert state is not None
        tables = checkpoint = 0.0
        if self.exchange is not None:
            with self.writers.journal.suspended():
                yield first
        for generation in range(first, self.config.generations):
            started = time.monotonic()
            key = jax.random.fold_in(run_key, generation)
            reached = self.generations.run(state, key, work, done)
            if isinstance(reached, Pause):
                raise self.pause(generation, reached)
            state, metrics = reached
            if self.program.table is None:
                metrics = {"parent": np.arange(len(metrics["fitness"])), **metrics}
            if self.host is not None and self.host.failed(()):  # in the evaluation, whose results are not used
                self.writers.wait()
                raise self.host.error((), generation, self.writers.run_dir, saved=False)
            work, done = None, 0
            history.append(metrics)
            seconds = time.monotonic() - started
            times = WallTimes(seconds, tables, checkpoint, self.generations.finish_seconds)
            row = summarize(self.program, generation, metrics, times)
            self.writers.write(generation, row, metrics)
            seeds = metrics["fitness"] if self.program.independent and self.program.population_size > 1 else None
            self.reporter.update(generation + 1, row, seeds)
            nothing = "" if generation > first else _no_episode(self.program, metrics)
            if note := nothing or _no_selection(self.program, first, history):
                self.reporter.message(f"note: {note}")
                self.writers.journal.noted(note)
            returned = self.callbacks(generation + 1, self.config.generations, row, metrics, self.writers.run_dir)
            self.writers.add(generation, returned.row, returned.members if "parent" in metrics else {})
            called = returned.seconds
            patience = self.config.patience if self.program.table is not None else 1
            if (kind := lost_kind(self.program, metrics)) and generation + 1 >= patience:
                raise Diverged(lost(generation + 1, kind, self.writers.checkpoints, self.writers.run_dir))
            left = time.monotonic() if self.exchange else 0.0
            state = self.exchange(generation + 1, state) if self.exchange else state
            with self.writers.journal.suspended():
                yield generation + 1
            called += time.monotonic() - left if self.exchange else 0.0  # other runs may have taken their turns
            checkpoint = self.save(generation + 1, state, row)
            tables = time.monotonic() - started - seconds - called - checkpoint
        return state, history

    def pause(self, generation: int, pause: Pause) -> Interrupted | HostError:
        """Save a generation that stopped before its end; returns the exception to raise."""
        episodes = self.host.save(pause.state) if self.host else None
        if pause.work is None:
            self.writers.save(generation, pause.state, self.program.table, self.best.generation, episodes, False)
            self.writers.wait()
        else:
            self.writers.save_interrupted(generation, (pause.state, pause.work), {DONE: pause.done}, episodes)
        if pause.signum is None:
            assert self.host is not None
            return self.host.error(pause.state, generation, self.writers.run_dir, saved=True)
        return Interrupted(pause.signum, _stopped(generation, self.writers.run_dir, within=True))

    def save(self, generation: int, state: ProgramState, row: Mapping[str, float]) -> float:
        """Save after `generation` generations, if a checkpoint is due or a stop was requested.

        Returns:
          Seconds that saving took.

        Raises:
          Interrupted: a stop was requested.
          CallbackError: a required callback failed.
        """
        last = generation == self.config.generations
        failed = self.callbacks.failed()
        planned = self.best.improves(generation, row) or generation % self.config.checkpoint_every == 0 or last
        signum, saves = sync.agree(self.requests.signum, planned or failed or self.pace.is_due())
        seconds = 0.0
        if saves or signum is not None:
            episodes = self.host.save(state) if self.host and self.writers.checkpoints else None
            spared, score = self.best.generation, self.best.score(row)
            seconds = self.writers.save(generation, state, self.program.table, spared, episodes, planned, score)
            self.pace.saved(seconds)
        if signum is not None and not last:
            raise Interrupted(signum, _stopped(generation, self.writers.run_dir))
        if failed:
            raise self.callbacks.error(generation, self.writers.run_dir)
        return seconds


class Pace:
    """Says when a checkpoint is due by the clock, in addition to those after a number of generations.

    Args:
      seconds: between two checkpoints, if saving takes at most 5 % of them; 0: never.
    """

    def __init__(self, seconds: float):
        self._seconds, self._last, self._cost = seconds, time.monotonic(), 0.0

    def is_due(self) -> bool:
        """Whether a checkpoint is due now."""
        return self._seconds > 0 and time.monotonic() - self._last >= max(self._seconds, _LEAST_TIMES * self._cost)

    def saved(self, cost: float) -> None:
        """Note that one was saved, which took `cost` seconds."""
        self._last, self._cost = time.monotonic(), cost


_LEAST_TIMES = 20


def _stopped(generation: int, run_dir: Path | None, within: bool = False) -> str:
    """The message of a run that a signal stopped after `generation` generations, or `within` the next one."""
    where = f"within generation {generation + 1}" if within else f"after generation {generation}"
    if run_dir is None:
        return f"stopped {where}; nothing was saved, since the run has no run_dir."
    saved = "whose progress" if within else "which"
    return f"stopped {where}, {saved} is saved; continue with: {resume_command(run_dir)}"


def lost(generation: int, kind: str, checkpoints: Checkpointer | None, run_dir: Path | None) -> str:
    """The message of a run that diverged; waits for the checkpoint in progress.

    Args:
      generation: the number of generations, of which the last had no finite member or elite.
      kind: what was lost, see `lost_kind`.
      checkpoints: the run's checkpoints, or None.
      run_dir: the run directory, or None.
    """
    if kind == ELITE:
        return (
            f"nothing was finite in {generation} generations, and the repertoire is empty: every fitness, descriptor "
            "or genotype contained a non-finite number; check the fitness and descriptor functions, or raise patience."
        )
    message = f"no {kind} is finite any more in generation {generation}"
    newest = None
    if checkpoints is not None:
        checkpoints.wait()
        newest = checkpoints.latest()
    if newest is None:
        return (
            f"{message}, and no checkpoint was saved before; lower the learning rates or the reward scale, and look "
            "for numbers that are not finite, or huge: rookery.check_environment(environment)."
        )
    return f"{message}; the last good checkpoint is that of generation {newest}, in {run_dir}."
