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
from rookery.deploy.export import Exported, export
from rookery.deploy.policy import Cell, acting, choose
from rookery.deploy.tournament import Tournament
from rookery.distributed import mesh, programs
from rookery.experiments import build, config_io, repertoire_io, warm_start
from rookery.experiments.lineage import Lineage, schedule_of
from rookery.experiments.warm_start import Origin
from rookery.populations.base import Program, ProgramState
from rookery.qd.repertoire import Repertoire
from rookery.report.figures.animation import draw_episode
from rookery.report.page import write_report
from rookery.report.readers import RunRecord, open_run
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.island_files import best_of, check_is_no_island
from rookery.training import Callback, Required, loop
from rookery.types import Genotype


class Columns(dict[str, np.ndarray]):
    """Columns of a table: name -> `[rows]`."""

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame.

        Raises:
          ImportError: pandas is not installed.
        """
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
        self._record, self._program = record, program
        self.path: Path = record.path

    def __repr__(self) -> str:
        """The class and the run directory."""
        return f"LoadedRun({str(self.path)!r})"

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the run, nested as in `config.json`."""
        return self._record.config

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
        newest = self._checkpoints().latest()
        if newest is None:
            raise ValueError(f"{self.path} has no complete checkpoint yet; wait for the first, or resume the run.")
        return newest

    def state(self, generation: int | None = None) -> ProgramState:
        """The whole state in a checkpoint, on the first device.

        Args:
          generation: of the checkpoint; None for the newest complete one.
        """
        template = programs.template(self._built_program(), mesh.make_mesh(1))
        return self._checkpoints().restore(template, generation)[0]

    def best(self, checkpoint: str = "last") -> Genotype:
        """The genotype of the best member by its last evaluation, or of the best elite of a repertoire.

        Args:
          checkpoint: "last", "best", or a generation.
        """
        return choose(self._origin(checkpoint)).genotype

    def repertoire(self) -> Repertoire:
        """The repertoire in the newest complete checkpoint."""
        return repertoire_io.repertoire(self.path, self._program)

    def policy(
        self,
        cell: Cell | None = None,
        member: int | None = None,
        skill: int | None = None,
        checkpoint: str = "last",
        agent: str | int | None = None,
    ) -> Callable[..., Any]:
        """A policy of the run as a compiled function from an observation to the deterministic action.

        Args:
          cell: for runs with a repertoire: "best" (the default), a cell's index, or a descriptor for the nearest elite.
          member: for all other runs: the index of the member; by default the best of the last evaluation.
          skill: index of the skill, for runs that discover skills; 0 by default.
          checkpoint: "last", "best", or a generation.
          agent: name or index of one agent of a team, which then acts on its own observation.

        Returns:
          A function from `[O]`, or from features in their own shape, such as an image, to `[A]` (or `[]` int32); for a
          team without `agent` from `[I, O]` to `[I, A]`. A recurrent policy also takes and returns its memory, which is
          0 in the first step of an episode.
        """
        return acting(choose(self._origin(checkpoint), cell, member, skill), agent)

    def evaluate(self, episodes: int = 100, seed: int = 0, checkpoint: str = "last") -> dict[str, np.ndarray]:
        """Evaluate every member, or every elite, in fresh episodes; see `rookery.deploy.evaluate.evaluate`."""
        self._check_program("evaluate")
        return evaluation.evaluate(self.path, episodes, seed, checkpoint, self._program)[1]

    def tournament(
        self, against: "LoadedRun | None" = None, episodes: int = 100, seed: int = 0, checkpoint: str = "last"
    ) -> Tournament:
        """Let the members of each role play all members of the other roles, of this or another run, and write
        `tournament.csv`; see `rookery.deploy.tournament.tournament`."""
        self._check_program("tournament")
        other, program = (None, None) if against is None else (against.path, against._program)
        return tournaments.tournament(self.path, other, episodes, seed, checkpoint, self._program, program)

    def render(
        self,
        path: str | Path | None = None,
        member: int | None = None,
        skill: int | None = None,
        seed: int = 0,
        cell: Cell | None = None,
        checkpoint: str = "last",
    ) -> Path:
        """Write a film of one deterministic episode, by default `episode.gif` in the run directory; see `policy`."""
        self._check_program("render")
        target = Path(path) if path is not None else self.path / "episode.gif"
        played = rendering.render(self.path, member, skill, seed, checkpoint, self._program, cell)
        return draw_episode(played, target)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page of the run, by default `report.html` in the run directory."""
        return write_report([self.path], path)

    def export(
        self,
        to: str | Path | None = None,
        cell: Cell | None = None,
        member: int | None = None,
        skill: int | None = None,
        checkpoint: str = "last",
    ) -> Exported:
        """Write one policy for use without this library; see `rookery.export`."""
        self._check_program("export")
        return export(self.path, to, cell, member, skill, checkpoint, self._program)

    def resume(self, generations: int, callbacks: Sequence[Callback | Required] = (), **options: Any) -> loop.Result:
        """Continue the run in this process, up to generation `generations`.

        Args:
          generations: the number of generations to reach.
          callbacks: as of `rookery.run`.
          **options: further fields of `RunConfig`, such as `quiet=True`.
        """
        check_is_no_island(self.path)
        if self._program is not None:
            options |= {"run_dir": str(self.path), "generations": generations}
            return running.run(self._program, resume=True, callbacks=callbacks, **options)
        config = self._config("resume")
        run = dataclasses.replace(config.run, generations=generations, run_dir=str(self.path), **options)
        built = build.build(dataclasses.replace(config, run=run), schedule_of(self.config))
        record = {**self.config, "run": dataclasses.asdict(run)}
        return running.train(built.program, run, built.mesh, resume=True, record=record, callbacks=callbacks)

    def _checkpoints(self) -> Checkpointer:
        return Checkpointer(self._record.folder.checkpoints, read_only=True)

    def _config(self, method: str) -> Any:
        self._check_program(method)
        return config_io.from_record(self.config)

    def _built_program(self) -> Program:
        return self._program or build.on_one_device(self._config("state")).program

    def _origin(self, checkpoint: str) -> Origin:
        self._check_program("policy")
        return warm_start.open_origin(self.path, checkpoint, self._program)

    def _check_program(self, method: str) -> None:
        if self._program is None and self.config.get("kind") == config_io.PYTHON:
            remedy = "give its program, rookery.load(run, program=program), or train it by `rookery train program`"
            raise ValueError(f"{self.path} was started from Python, so {method} cannot rebuild its parts; {remedy}.")


def load(run_dir: str | Path, program: Program | None = None) -> LoadedRun:
    """Open a recorded run.

    Args:
      run_dir: the run directory; of a run of islands, the island with the best member or elite is opened.
      program: the program of a run that was started from Python, which its record cannot rebuild. A run of `rookery
        train program` is rebuilt by its recorded factory.

    Raises:
      ValueError: the folder is no run directory.

    Example:
      >>> run = rookery.load("runs/pbt-sac")
      >>> size = rookery.make(run.config["environment"]["env"]).spec.observation_size
      >>> action = run.policy()(jnp.zeros(size))
    """
    return LoadedRun(open_run(best_of(run_dir)), program)
