"""A recorded run as a Python object: its tables, its policies, and what the commands do with it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rookery import running
from rookery.deploy import evaluate as evaluation
from rookery.deploy import render as rendering
from rookery.deploy import tournament as tournaments
from rookery.deploy.episodes import add_episodes
from rookery.deploy.export import Exported, export
from rookery.deploy.policy import Cell, acting, select
from rookery.distributed import mesh, programs
from rookery.experiments import build, config_io, repertoire_io, warm_start, warm_start_settings
from rookery.experiments.kinds import check_effects, kind_of, with_steps
from rookery.experiments.spec import RunSpec
from rookery.experiments.warm_start import RestoredRun
from rookery.islands import plan
from rookery.populations.base import Program, ProgramState
from rookery.qd.repertoire import Repertoire
from rookery.report.page import write_report
from rookery.report.readers import RunRecord, open_run
from rookery.settings import check_counts, type_of, user_path
from rookery.storage import sources
from rookery.storage.best_checkpoint import find
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.island_files import best_of, check_is_no_island
from rookery.storage.lineage import Lineage, schedule_of
from rookery.storage.played import Tournament
from rookery.storage.record import check_rebuildable
from rookery.training import Callback, Required, loop
from rookery.types import Genotype


class Columns(dict[str, np.ndarray]):
    """Columns of a table: name -> `[rows]`."""

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame, which must be installed."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas; install it: pip install pandas") from error
        return pandas.DataFrame(dict(self))


class LoadedRun:
    """A run that was recorded by the command line or by `rookery.run`; made by `load`.

    Files are read when they are first needed. Methods raise ValueError with the remedy where the run lacks what they
    need, and CheckpointError where no checkpoint is complete.

    Args:
      record: the run folder.
      program: the program of a run that was started from Python.

    Attributes:
      path: the run directory.
    """

    def __init__(self, record: RunRecord, program: Program | None = None):
        self._opened, self._program = record, program
        self._restored: RestoredRun | None = None
        self.path: Path = record.path

    def __repr__(self) -> str:
        """The class and the run directory."""
        return f"LoadedRun({str(self.path)!r})"

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the run, nested as in `config.json`."""
        return self._opened.config

    @property
    def _record(self) -> RunRecord:
        """The files of the run; a RunFolderError if its folder is gone, as after it was moved."""
        return self._opened if self.path.is_dir() else open_run(self.path)

    @cached_property
    def metrics(self) -> Columns:
        """`metrics.csv`: name -> `[G]`, one row for each finished generation."""
        return Columns(self._record.metrics)

    @property
    def lineage(self) -> Lineage:
        """The parents, the hyper-parameters and the fitness of every member in every generation."""
        return self._record.lineage

    @property
    def generation(self) -> int:
        """The number of finished generations in the newest complete checkpoint."""
        newest = self._checkpoints.latest()
        if newest is None:
            raise ValueError(
                f"{self._record.path} has no complete checkpoint; wait for its first, resume the run, or put a copy of "
                "a damaged one back."
            )
        return newest

    def state(self, generation: int | None = None) -> ProgramState:
        """The whole state in a checkpoint (by default the newest complete one), on the first device."""
        self._check_program()
        if generation is not None:
            check_counts(0, generation=generation)
        template = programs.template(self._parts[1].program, mesh.make_mesh(1))
        return self._checkpoints.restore(template, generation)[0]

    def best(self, checkpoint: str | int = "last") -> Genotype:
        """The genotype of the best member by its last evaluation, or of the best elite of a repertoire.

        The checkpoint is "last", "best" (by the run's `best_by`), or a generation.
        """
        return select(self._origin(checkpoint)).genotype

    def repertoire(self) -> Repertoire:
        """The repertoire in the newest complete checkpoint."""
        return repertoire_io.repertoire(self.path, self._program)

    def policy(
        self,
        cell: Cell | None = None,
        member: int | None = None,
        skill: int | None = None,
        checkpoint: str | int = "last",
        agent: str | int | None = None,
    ) -> Callable[..., Any]:
        """A policy of the run as a compiled function from an observation to the deterministic action.

        Args:
          cell: for runs with a repertoire: "best" (the default), a cell's index, or a descriptor for the nearest elite.
          member: for all other runs: the index of the member; by default the best of the last evaluation.
          skill: index of the skill, for runs that discover skills; 0 by default.
          checkpoint: "last", "best" (by the run's `best_by`), or a generation.
          agent: name or index of one agent of a team, which then acts on its own observation.

        Returns:
          A function from an observation as the environment gives it, or from features `[O]`, to the action that the
          environment takes: `[A]` or `[]` int32; with Gymnasium an array of NumPy within its bounds, or an int. For a
          team without `agent` from `[I, O]` to `[I, A]`. A recurrent policy also takes and returns its memory, which is
          0 in the first step of an episode.
        """
        return acting(select(self._origin(checkpoint), cell, member, skill), agent)

    def evaluate(self, episodes: int = 100, seed: int = 0, checkpoint: str | int = "last") -> dict[str, np.ndarray]:
        """Evaluate every member, or every elite, in fresh episodes; see `rookery.deploy.evaluate.evaluate`."""
        self._check_program()
        return evaluation.evaluate(self.path, episodes, seed, checkpoint, self._everywhere)[1]

    def tournament(
        self,
        against: "LoadedRun | str | Path | None" = None,
        episodes: int = 100,
        seed: int = 0,
        checkpoint: str | int = "last",
    ) -> Tournament:
        """Let the members of each role play all members of the other roles, of this or another run, and write
        `tournament.csv`; see `rookery.deploy.tournament.tournament`."""
        self._check_program()
        other, program = (against.path, against._program) if isinstance(against, LoadedRun) else (against, None)
        return tournaments.tournament(self.path, other, episodes, seed, checkpoint, self._everywhere, program)

    def render(
        self,
        path: str | Path | None = None,
        member: int | None = None,
        skill: int | None = None,
        seed: int = 0,
        cell: Cell | None = None,
        checkpoint: str | int = "last",
    ) -> Path:
        """Write a film of one deterministic episode, by default `episode.gif` in the run directory; see `policy`."""
        self._check_program()
        target = user_path(path) if path is not None else self.path / "episode.gif"
        played = rendering.render(self.path, member, skill, seed, checkpoint, self._program, cell, target)
        return rendering.draw_episode(played, target)

    def goals(self, goals: int = 50, seed: int = 0, checkpoint: str | int = "last") -> dict[str, np.ndarray]:
        """Let the skills of the best member reach goals, without training; see `deploy.evaluate.evaluate_goals`."""
        self._check_program()
        return evaluation.evaluate_goals(self.path, goals, seed, checkpoint, self._program)

    def report(self, path: str | Path | None = None, rollouts: int | None = 0, seed: int = 0) -> Path:
        """Write the page of the run, by default `report.html` in the run directory.

        Args:
          path: the file to write.
          rollouts: number of episodes to record first, which the page then plays (`rookery report` records 12); 0 keeps
            those that are recorded, None records all policies.
          seed: seed of the start state of the episodes.
        """
        if rollouts != 0:
            if rollouts is not None:
                check_counts(0, rollouts=rollouts)
            self._check_program()
            add_episodes(self.path, rollouts, seed, self._program)
        return write_report([self.path], path)

    def export(
        self,
        to: str | Path | None = None,
        cell: Cell | None = None,
        member: int | None = None,
        skill: int | None = None,
        checkpoint: str | int = "last",
    ) -> Exported:
        """Write one policy for use without this library; see `rookery.export`."""
        self._check_program()
        return export(self.path, to, cell, member, skill, checkpoint, self._program)

    def resume(self, generations: int, callbacks: Sequence[Callback | Required] = (), **options: object) -> loop.Result:
        """Continue the run in this process, up to generation `generations`.

        Args:
          generations: the number of generations to reach.
          callbacks: as of `rookery.run`.
          **options: further fields of `RunConfig`, such as `quiet=True`.

        Raises:
          ValueError: an option is invalid, or another seed than that of the run.
          TypeError: there is no such option.
        """
        check_is_no_island(self.path)
        try:
            return self._continue(generations, callbacks, options)
        finally:
            self._opened, self._restored = open_run(self.path), None
            for name in ("metrics", "_checkpoints", "_parts"):
                self.__dict__.pop(name, None)

    def _continue(
        self, generations: int, callbacks: Sequence[Callback | Required], options: dict[str, Any]
    ) -> loop.Result:
        if self._program is not None:
            options |= {"run_dir": str(self.path), "generations": generations}
            return running.run(self._program, resume=True, callbacks=callbacks, **options)
        self._check_program()
        sources.use(self._record.folder)
        spec = config_io.from_record(self.config)
        options = {**vars(spec.run), **options, "generations": generations, "run_dir": str(self.path)}
        spec = dataclasses.replace(spec, run=loop.run_config(None, options, resume=True))
        return running.start(spec, schedule_of(self.config), callbacks, resume=True)

    @cached_property
    def _checkpoints(self) -> Checkpointer:
        return Checkpointer(self._record.folder.checkpoints, read_only=True)

    @cached_property
    def _parts(self) -> tuple[RunSpec, build.Built]:
        return warm_start.opened_on(self._record.folder, mesh.here(), self._program)

    @cached_property
    def _everywhere(self) -> Program:
        """The program on all devices of this machine; it is compiled once for a number of episodes."""
        return warm_start.opened_on(self._record.folder, None, self._program)[1].program

    def _origin(self, checkpoint: str | int) -> RestoredRun:
        """The run at a checkpoint, which is not read again while no other is asked for."""
        self._check_program()
        folder, (spec, built) = self._record.folder, self._parts
        chosen = find(folder, self._checkpoints, checkpoint, spec.run.best_by)
        wanted = self._checkpoints.latest() if chosen is None else chosen
        if self._restored is None or self._restored.generation != wanted:
            self._restored = warm_start.restore(folder, spec, built, checkpoint, self._checkpoints)
        return self._restored

    def _check_program(self) -> None:
        if self._program is None:
            remedy = "give it, rookery.load(run, program=program), or train it by `rookery train program`"
            check_rebuildable(self._record.config, self.path, remedy)


def train(
    kind: str,
    env: str | None = None,
    steps: float | None = None,
    callbacks: Sequence[Callback | Required] = (),
    **settings: object,
) -> LoadedRun:
    """Train as `rookery train KIND` does: the same kinds of run, settings, defaults and files.

    Args:
      kind: a kind of `rookery train`, such as "sac" or "pbt-sac".
      env: name of a task, of a factory ("file.py:make"), or one that `rookery.register` gave; by default that of the
        kind.
      steps: environment steps of each member (above 0), another way to say how many generations; rounded up to whole
        ones.
      callbacks: as of `rookery.run`; of a run of islands for each of them.
      **settings: as of `rookery.experiments.configure`, named like the flags: `population=8`, `seed=0`,
        `generations=100`, `hidden_sizes=(64, 64)`, `space={"discount": 0.98}`. Without a `run_dir` it is
        `runs/<kind>-<env>-<seed>`.

    Returns:
      The run, as `load` opens it.

    Raises:
      ValueError: there is no such kind or task, or a setting is invalid or has no effect.
      TypeError: the kind has no such setting.
      Interrupted, Diverged, CheckpointError, CallbackError: as of `rookery.run`.

    Example:
      >>> run = rookery.train("sac", "point_room", steps=1_500, hidden_sizes=(8,), run_dir="runs/room", quiet=True)
      >>> run.generation
      2
    """
    if not isinstance(env, str | None):
        raise TypeError(
            f"env must be the name of a task, got {type_of(env)}; give an environment of your own a name with "
            "rookery.register, or build a program and use rookery.run."
        )
    settings |= {} if env is None else {"env": env}
    usual = warm_start_settings.defaults(kind_of(kind), settings)
    spec = with_steps(usual.replace(**settings), usual, steps)
    check_effects(spec)
    if "islands" in spec.flat and spec.method.islands.islands > 1:
        spec, _ = running.complete(plan.check(spec), steps)
        running.start_islands(spec, lambda: callbacks)
    else:
        spec, schedule = running.complete(spec, steps)
        running.start(spec, schedule, callbacks)
    return load(str(spec.run.run_dir))


def load(
    run_dir: str | Path, program: Program | None = None, env: str | None = None, factory: str | None = None
) -> LoadedRun:
    """Open a recorded run.

    Args:
      run_dir: the run directory; of a run of islands, the island with the best member or elite is opened.
      program: the program of a run that was started from Python, which its record cannot rebuild. A run of `rookery
        train program` is rebuilt by its recorded factory.
      env: the factory of a user-defined environment, such as "path/to/file.py:make", in place of the recorded one; by
        default the recorded file, or its copy in the run directory where that is gone.
      factory: that of a user-defined program, likewise.

    Raises:
      ValueError: the folder is no run directory, or its run has no user-defined environment or program to replace.

    Example:
      >>> run = rookery.load("runs/pbt-sac")
      >>> size = rookery.make(run.config["environment"]["env"]).spec.observation_size
      >>> action = run.policy()(jnp.zeros(size))
    """
    sources.replace(run_dir, env=env, factory=factory)
    return LoadedRun(open_run(best_of(run_dir)), program)
