"""Readers of a run folder. Figures, tables and page sections take a `RunRecord` and open no file themselves."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rookery.report.dimensions import Dimensions, dimensions
from rookery.report.formatting import Settings, fitness_metric, objective, part
from rookery.report.runs import Run, finite_or_nan, ranking_fitness
from rookery.settings import BEST, MEASURE, RETURN, suggestion
from rookery.storage.csv_log import HAS_MEMBERS, are_too_few, check_columns, filled, lost_rows, read_members, read_table
from rookery.storage.events import read_journal
from rookery.storage.island_files import islands_of
from rookery.storage.lineage import Lineage, lineage_of
from rookery.storage.manifest import generations
from rookery.storage.played import Episodes, read_episodes
from rookery.storage.record import ISLAND, are_independent
from rookery.storage.run_dir import RunFolder, open_existing
from rookery.trees import flatten_mapping

Table = Mapping[str, np.ndarray]  # columns of a table: name -> `[rows]`
Event = Settings  # an event of a run, see `storage.events.read_journal`
_AGAIN = "let the run write it again"


class Repertoire(NamedTuple):
    """Content of `repertoire.csv`, with the descriptor's limits and names from `config.json`."""

    fitness: np.ndarray
    """`[C]`, -inf in empty cells."""
    centroids: np.ndarray
    """`[C, D]`."""
    descriptors: np.ndarray
    """`[C, D]`, NaN in empty cells."""
    lower: np.ndarray
    """`[D]`, lower limits of the descriptor."""
    upper: np.ndarray
    """`[D]`, upper limits of the descriptor."""
    names: list[str]
    """Names of the D dimensions."""
    has_cells: bool = True
    """Whether the places are cells; False if each is a slot of any individual (dominated novelty), whose centroid is
    the individual's descriptor."""

    @property
    def occupied(self) -> np.ndarray:
        """`[C]` bool."""
        return np.isfinite(self.fitness)


class Trajectory(NamedTuple):
    """Trajectory of one episode in descriptor space."""

    skill: int
    points: np.ndarray  # `[states, 2]`: the first two dimensions of the descriptor, or the step and the only dimension


class RunRecord:
    """The content of a run folder; each file is read once, when a field that needs it is first used.

    Every field and method raises ValueError, with the remedy, where its file is missing or damaged.

    Attributes:
      folder: the run directory, which is only read.
      path: its absolute path.
      config: the configuration of the run.
    """

    def __init__(self, folder: RunFolder):
        self.folder, self.path = folder, folder.path
        self.config: Settings = folder.config

    @property
    def has_generation(self) -> bool:
        """Whether a generation is finished."""
        return any(map(len, self._metrics.values()))

    @property
    def has_members(self) -> bool:
        """Whether the run has rows in `lineage.csv`: plain MAP-Elites has none."""
        return bool(self._tables[1])

    @property
    def has_repertoire(self) -> bool:
        """Whether the run has `repertoire.csv`."""
        return self.folder.repertoire_file.is_file()

    @property
    def outside(self) -> str:
        """What a member with the parent -1 came from."""
        sources = ["the repertoire"] * ("coverage" in self._metrics) + ["another island"] * (ISLAND in self.config)
        members = self._tables[1]
        if not sources and np.any(np.isnan(members["fitness"]) & (members["parent"] < 0)):
            return "new parameters, or a row that is lost,"  # `csv_log.filled`
        return " or ".join(sources) or "new parameters"

    @property
    def is_independent(self) -> bool:
        """Whether the members are independent runs."""
        return are_independent(self.config)

    @cached_property
    def metrics(self) -> Table:
        """`metrics.csv`: name -> `[G]`, G at least 1."""
        if not self.has_generation:
            found, remedy = "no finished generation to report yet", "wait for its first, or leave it out"
            if generations(self.folder.checkpoints):
                found, remedy = "lost all rows of metrics.csv", "put a copy of the file back, or leave the run out"
            raise ValueError(f"{self.path} has {found}; {remedy}.")
        return self._metrics

    @cached_property
    def islands(self) -> "tuple[RunRecord, ...]":
        """The runs of its islands that have, or have lost, a finished generation; () for a run without islands."""
        records = (RunRecord(open_existing(path)) for path in islands_of(self.path))
        return tuple(one for one in records if one.has_generation or generations(one.folder.checkpoints))

    @property
    def name(self) -> str:
        """The name of the run: that of its folder, for an island with that of the whole run."""
        number = part(self.config, ISLAND).get("number")
        return self.path.name if number is None else f"{self.path.parent.parent.name}, island {number}"

    @cached_property
    def _metrics(self) -> Table:
        tables = [island.metrics for island in self.islands]
        always = ("generation", "env_steps", "best_fitness")
        needed = [name for name in _TOGETHER if name in always or any(name in table for table in tables)]
        for island in self.islands:
            check_columns(island.folder.metrics_file, island.metrics, needed)
        return _together(tables) or self._tables[0]

    @property
    def losses(self) -> Sequence[str]:
        """A sentence for each table that has lost rows."""
        return self._tables[2]

    @cached_property
    def _tables(self) -> tuple[Table, Table, Sequence[str]]:
        """`metrics.csv` and `lineage.csv` up to the same generation, with all generations; and `losses`."""
        metrics, lineage, losses = read_table(self.folder.metrics_file), {}, []
        try:
            lineage = read_members(self.folder)
        except ValueError as error:  # a page can do without it
            losses.append(str(error))
        if not len(metrics.get("generation", ())):
            return metrics, lineage, losses
        end, rows = int(metrics["generation"].max()) + 1, len(metrics["generation"])
        if are_too_few(rows, end):
            path = self.folder.metrics_file
            problem = f"{end - 1} is far beyond its {rows} rows; correct or delete the line."
            raise ValueError(f"{path}, column generation is damaged: {problem}")
        if len(lineage.get("generation", ())):
            lost, recorded = filled(lineage, end)[1], end
            if self.is_independent or lost == [end - 1]:  # a run in progress writes lineage.csv last
                end = int(np.setdiff1d(np.arange(end), lost).max(initial=0)) + 1
            if end < recorded - 1:
                losses.append(f"{self.folder.lineage_file} has lost all rows after generation {end - 1}.")
        elif not losses and end > 1 and (self.folder.lineage_file.is_file() or HAS_MEMBERS in metrics):
            losses.append(f"{self.folder.lineage_file} has lost all rows.")
            lineage = {}
        saved = max(generations(self.folder.checkpoints), default=0)
        if saved > end:
            losses.append(f"the tables end with generation {end - 1}, though the checkpoint is of generation {saved}.")
        whole: list[Table] = []
        for path, table in ((self.folder.metrics_file, metrics), (self.folder.lineage_file, lineage)):
            complete, lost = filled(table, end) if table else ({}, [])
            losses += [f"{path} {lost_rows(lost)}."] if lost else []
            whole.append(complete)
        return whole[0], whole[1], losses

    @cached_property
    def lineage(self) -> Lineage:
        """`lineage.csv`; the members are agents where the roles of a team evolve separately."""
        # A table that cannot be read raises its error again.
        return lineage_of(self.folder, self._tables[1] or read_members(self.folder), self._metrics)

    def learning_curve(self, score: str | None = None) -> Run:
        """The learning curve of the whole folder by a column of `metrics.csv`: by default the fitness of the best elite
        of a run with a repertoire, of the best member of others."""
        metrics = self.metrics
        column = score or ("max_fitness" if "max_fitness" in metrics else "best_fitness")
        for name in ("env_steps", column):
            if name not in metrics:
                remedy = suggestion(name, metrics)
                raise ValueError(f"{self.path} cannot be compared: its metrics.csv has no column {name}; {remedy}")
        values = finite_or_nan(metrics[column])
        return Run(self.path, self._seed, metrics["env_steps"], values, column, losses=self.losses)

    @cached_property
    def members(self) -> tuple[Run, ...]:
        """The learning curve of each independent member, with its share of the environment steps."""
        metrics, lineage = self.metrics, self.lineage
        fitness = finite_or_nan(lineage.fitness)
        env_steps = metrics["env_steps"] / fitness.shape[1]
        return tuple(
            Run(self.path, self._seed, env_steps, values, "fitness", member, losses=self.losses)
            for member, values in enumerate(fitness.T)
        )

    def measured(self, metric: str, per_member: bool) -> Sequence[Run]:
        """The curves of the members that the fitness of the run is of (with `per_member` of each independent one, not
        of the best), by a measure of the task or "return"."""
        fitness = list(self.members) if per_member else [self.learning_curve()]
        name = metric if metric == RETURN else f"{MEASURE}{metric}"
        columns = self.lineage.reported if per_member else {} if self.has_repertoire else self.metrics
        column = name if per_member else BEST + name
        diverged = all(run.diverged for run in fitness)
        reported = [name for name, values in columns.items() if diverged or np.isfinite(values).any()]
        if column in reported:
            curves = columns[column].T if per_member else [columns[column]]
            return [_by(run, finite_or_nan(values), column) for run, values in zip(fitness, curves, strict=True)]
        is_of_task = fitness_metric(self.config) in (None, "true_return")
        if metric == RETURN and objective(self.config) is None and is_of_task:
            return fitness  # the fitness is the return
        if self.has_repertoire:
            raise ValueError(
                f"{self.path} records no {metric} of its elites in training; evaluate the best one: --fresh 100."
            )
        beginning = MEASURE if per_member else BEST + MEASURE
        known = [name.removeprefix(beginning) for name in reported if name.startswith(beginning)]
        has_mean = metric == RETURN and "true_return" in self.metrics  # a run with skills
        means = ", use its mean over the members: --score true_return" if has_mean else ""
        remedy = suggestion(metric, known) if known else f"leave it out{means}, or evaluate the run: --fresh 100."
        raise ValueError(f"{self.path} cannot be compared: it records no measure {metric}; {remedy}")

    @property
    def evaluation(self) -> Table:
        """`evaluation.csv`, the new episodes of the best member: name -> `[N]`; {} where there are none."""
        return read_table(self.folder.evaluation_file)

    @property
    def seeds(self) -> tuple[Run, ...]:
        """The learning curves of several independent members; () for a folder that is one run."""
        members = self.members if self.is_independent and self.has_members else ()
        return members if len(members) > 1 else ()

    @property
    def _seed(self) -> int | None:
        settings = flatten_mapping(self.config)
        return next((settings[name] for name in ("run.seed", "seed") if settings.get(name) is not None), None)

    @cached_property
    def journal(self) -> Sequence[Event]:
        """The events of the run, oldest first; empty where none are recorded."""
        return read_journal(self.folder)

    @cached_property
    def episodes(self) -> Episodes | None:
        """The recorded episodes; None where there are none."""
        return read_episodes(self.path)

    @cached_property
    def repertoire(self) -> Repertoire:
        """The repertoire that the run last saved."""
        path = self.folder.repertoire_file
        if not self.has_repertoire:
            raise ValueError(
                f"{self.path} has no repertoire to draw: repertoire.csv is missing in it; choose a run of a kind with "
                "a repertoire, or wait for its first generation."
            )
        table = read_table(path)
        size = _count(table, "centroid/")
        check_columns(path, table, ("fitness", *_columns("centroid", size), *_columns("descriptor", size)), _AGAIN)
        if not size or not len(table["fitness"]):
            raise ValueError(f"{path} lacks cells; {_AGAIN}.")
        centroids, descriptors = (_stacked(table, kind, size) for kind in ("centroid", "descriptor"))
        if not np.isfinite(centroids).all():
            raise ValueError(f"{path} has a centroid that is not finite; {_AGAIN}.")
        descriptor = dimensions(self.config, size)
        lower, upper = _estimate_limits(centroids) if descriptor.limits is None else descriptor.limits
        has_cells = part(self.config, "cells").get("survival") != "dominated-novelty"
        return Repertoire(table["fitness"], centroids, descriptors, lower, upper, descriptor.names, has_cells)

    @cached_property
    def insertions(self) -> Table | None:
        """`cells.csv`: `generation`, `cell` and `fitness` of each added or improved elite; None in older runs, and
        where a full disk has left the file empty."""
        table = read_table(self.folder.cells_file)
        check_columns(self.folder.cells_file, table, ("generation", "cell", "fitness") if table else ())
        return table or None

    @cached_property
    def trajectories(self) -> tuple[list[Trajectory], Dimensions]:
        """All recorded trajectories of skills, sorted by skill, and the dimensions of their descriptor."""
        path, again = self.folder.skills_file, f"`rookery evaluate {self.path}` writes it"
        if not path.is_file():
            raise ValueError(f"{self.path} has no trajectories to draw: skills.csv is missing in it; {again}.")
        table = read_table(path)
        size = _count(table, "descriptor/")
        check_columns(path, table, ("skill", "episode", "step", *_columns("descriptor", size)), f"{again} anew")
        if not size:
            raise ValueError(
                f"{path} has no descriptor, so there are no trajectories to draw; train on a task that has one "
                "(`rookery envs` lists them)."
            )
        descriptor = dimensions(self.config, size)
        trajectories = _trajectories(table, descriptor)
        if not trajectories:
            raise ValueError(f"{path} contains no trajectory; {again} anew.")
        return trajectories, descriptor


def open_run(path: str | Path) -> RunRecord:
    """Open a run directory; a RunFolderError, which names similar runs nearby, if it is none."""
    return RunRecord(open_existing(path))


def _without_nan(statistic: Callable[..., np.ndarray], values: np.ndarray, axis: int = 0) -> np.ndarray:
    """A statistic `[G]` over the numbers `[islands, G]` that are not NaN; NaN where all of a generation are."""
    known = ~np.isnan(values).all(axis=axis)
    found = np.full(known.shape, np.nan)
    found[known] = statistic(values[:, known], axis=axis)
    return found


_TOGETHER = {
    "generation": np.max,
    "env_steps": np.sum,
    "evaluation_steps": np.sum,
    "max_fitness": np.fmax.reduce,
    "best_fitness": np.fmax.reduce,
    "median_fitness": partial(_without_nan, np.nanmedian),
    "worst_fitness": np.fmin.reduce,
    "seconds": np.max,
    "steps_per_second": np.sum,
}
_OF_ONE_GENERATION = ("evaluation_steps", "seconds", "steps_per_second")
"""Columns of `_TOGETHER` that are 0 in a generation that an island has not run."""


def _together(tables: Sequence[Table]) -> dict[str, np.ndarray]:
    """The metrics of all islands together, up to the last generation of the one that has finished most, with the last
    values of the others from their ends on; {} without islands. What is reported of the best member is that of the
    island with the highest fitness."""
    if not tables:
        return {}
    length = max(len(table["generation"]) for table in tables)
    columns = [name for name in tables[0] if name in _TOGETHER or name == RETURN or name.startswith((MEASURE, BEST))]
    stacked = {
        name: np.stack([_continued(table, name, length) for table in tables])
        for name in columns
        if all(name in table for table in tables)
    }
    best = ranking_fitness(stacked["best_fitness"]).argmax(axis=0)
    mean = partial(_without_nan, np.nanmean)
    return {
        name: values[best, np.arange(length)] if name.startswith(BEST) else _TOGETHER.get(name, mean)(values, axis=0)
        for name, values in stacked.items()
    }


def _continued(table: Table, name: str, length: int) -> np.ndarray:
    values = table[name]
    last = np.zeros_like(values[-1]) if name in _OF_ONE_GENERATION else values[-1]
    return np.concatenate([values, np.repeat(last, length - len(values))])


def _by(run: Run, values: np.ndarray, column: str) -> Run:
    """A run with another score, from the first generation on that has it; unknown where no fitness is finite."""
    values = np.where(np.isfinite(run.best_fitness), values, np.nan)
    first = int(np.isfinite(values).argmax())
    return run._replace(env_steps=run.env_steps[first:], best_fitness=values[first:], column=column)


def _count(table: Table, prefix: str) -> int:
    return sum(name.startswith(prefix) for name in table)


def _columns(kind: str, size: int) -> list[str]:
    return [f"{kind}/{index}" for index in range(size)]


def _stacked(table: Table, kind: str, size: int) -> np.ndarray:
    """The columns of a vector, `[rows, size]`."""
    return np.stack([table[name] for name in _columns(kind, size)], axis=1)


def _estimate_limits(centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Limits for a run that did not record them: the range of the centroids, extended by half a cell."""
    lower, upper = centroids.min(axis=0), centroids.max(axis=0)
    width = upper - lower
    margin = np.where(width > 0, 0.5 * width / max(len(centroids) ** (1 / centroids.shape[1]) - 1, 1), 0.5)
    return lower - margin, upper + margin


def _trajectories(table: Table, descriptor: Dimensions) -> list[Trajectory]:
    """The points of every episode, sorted by skill; states that are not finite are dropped."""
    states = _stacked(table, "descriptor", min(len(descriptor.names), 2))
    order = np.lexsort((table["step"], table["episode"], table["skill"]))
    order = order[np.isfinite(states[order]).all(axis=1)]
    labels = np.stack([table["skill"][order], table["episode"][order]], axis=1)
    trajectories = []
    for rows in np.split(order, 1 + np.flatnonzero((labels[1:] != labels[:-1]).any(axis=1))):
        steps, points = table["step"][rows], states[rows]
        if descriptor.kind == "mean":  # the start state is not yet part of the episode's descriptor
            steps, points = steps[steps > 0], points[steps > 0]
            points = np.cumsum(points, axis=0) / np.arange(1, len(points) + 1)[:, None]
        if points.shape[1] == 1:
            points = np.concatenate([steps[:, None].astype(float), points], axis=1)
        if len(points):
            trajectories.append(Trajectory(int(table["skill"][rows[0]]), points))
    return trajectories
