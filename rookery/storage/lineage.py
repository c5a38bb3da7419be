"""The lineage of a run's members, and the hyper-parameter schedule of the best member, which another run can replay.

PBT finds a schedule, not one constant setting: the hyper-parameters that the best member's ancestors trained with in
each generation (Jaderberg 2017, arXiv:1711.09846). This module reads it from a run's tables and resamples it to another
number of environment steps per generation.
"""

import contextlib
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rookery import trees
from rookery.settings import CALLBACK, LARGEST_COUNT, MEASURE, RETURN, ROUND, check_counts
from rookery.storage.csv_log import HAS_MEMBERS, MEMBER_COLUMNS, check_columns, read_members, read_table
from rookery.storage.island_files import Exchange, ancestors, best_of, islands_of, read_exchanges
from rookery.storage.record import CHOICES, ISLAND, PROGRAM, PYTHON, SCHEDULE, agent_name, agent_of
from rookery.storage.run_dir import RunFolder, open_existing
from rookery.types import FROM_REPERTOIRE, Record

_RATING = "rating"


class Schedule(NamedTuple):
    """Hyper-parameters that change from generation to generation."""

    values: Mapping[str, np.ndarray]
    """Name of the hyper-parameter -> its value in each generation, `[generations]` float64, or names."""
    steps_per_generation: int
    """Environment steps of one member per generation."""
    agent: str | None
    """Name of the agent that the hyper-parameters belong to, such as "sac" or "td3"; None if unknown."""

    @property
    def generations(self) -> int:
        """Number of generations in the schedule; 0 without hyper-parameters."""
        return min((len(values) for values in self.values.values()), default=0)


class Lineage(NamedTuple):
    """The family tree of a run's G generations of P members: an individual is a pair (generation, member).

    `lineage.hyper["discount"][g, lineage.ancestors()[g]]` is the discount that the best member's ancestor trained with
    in generation g.
    """

    parents: np.ndarray
    """Parent's member number in the previous generation, `[G, P]` int64; -1: from a repertoire or another island, a new
    member of a method that draws one, or the row is lost; row 0 is unused."""
    fitness: np.ndarray
    """Mean return of each individual, `[G, P]` float64; NaN where a member diverged."""
    hyper: Mapping[str, np.ndarray]
    """Name -> the hyper-parameter that each individual trained with in its generation, `[G, P]` float64; of one in
    `choices` the place of its name there."""
    steps_per_generation: int
    """Environment steps of one member per generation."""
    agent: str | None
    """Name of the agent, such as "sac" or "td3"; None if the run does not record it."""
    rating: np.ndarray | None = None
    """Rating of each individual among those of its generation, `[G, P]` float64; None where members are selected by
    fitness."""
    island: Path | None = None
    """Run directory of the island that the members belong to; None for a run without islands, or with a repertoire."""
    choices: Mapping[str, Sequence[str]] = {}
    """Name of each hyper-parameter whose values are names -> all its names."""
    reported: Mapping[str, np.ndarray] = {}
    """Name -> what else is known of each individual, `[G, P]` float64: in an environment with measures `return` and
    `measure/...` of its evaluation; `callback/...`, the numbers that a callback returned; `round` where the exploit
    interval is automatic; NaN where it is unknown."""

    @property
    def evolving(self) -> Mapping[str, np.ndarray]:
        """The hyper-parameters that have more than one value."""
        return {name: values for name, values in self.hyper.items() if len(np.unique(values[np.isfinite(values)])) > 1}

    @property
    def selected_by(self) -> np.ndarray:
        """What members are selected by, `[G, P]`: their ratings, or their fitness."""
        return self.fitness if self.rating is None else self.rating

    @property
    def best_member(self) -> int:
        """The member with the highest finite fitness (a ValueError without any), or rating, in the last generation;
        among equals, the lowest number."""
        return self._best(len(self.fitness) - 1)

    @property
    def has_descendants(self) -> np.ndarray:
        """Whether each individual has a descendant in the last generation, `[G, P]` bool; the last row is all True.

        To plot the tree, connect (g - 1, `parents[g, i]`) to (g, i) for all g >= 1, with a thick line where
        `has_descendants[g, i]`. The number of True values in a row is the number of surviving lineages.
        """
        found = np.zeros(self.parents.shape, bool)
        found[-1] = True
        for generation in range(len(found) - 1, 0, -1):
            parents = self.parents[generation, found[generation]]
            found[generation - 1, parents[parents >= 0]] = True
        return found

    def ancestors(self, member: int | None = None, generation: int | None = None) -> np.ndarray:
        """The ancestors of an individual, one in each generation, with the individual itself at the end.

        Args:
          member: of the individual, in 0..P-1; by default the one with the highest finite fitness in the generation.
          generation: of the individual, in 0..G-1; by default the last.

        Returns:
          The member number in each generation from 0 on, `[generation + 1]` int64. Two equal neighbours mean that the
          member was not replaced. -1 marks all generations before an ancestor that came from a repertoire or another
          island, or was new.

        Raises:
          ValueError: `member` or `generation` is out of range, or no member is given and none has a finite fitness.
        """
        generation = len(self.parents) - 1 if generation is None else generation
        _check_range("generation", generation, len(self.parents))
        member = self._best(generation) if member is None else member
        _check_range("member", member, len(self.parents[generation]))
        line = np.empty(generation + 1, np.int64)
        line[generation] = member
        for later in range(generation, 0, -1):
            line[later - 1] = self.parents[later, line[later]] if line[later] >= 0 else FROM_REPERTOIRE
        return line

    def schedule(self, member: int | None = None, generation: int | None = None) -> Schedule:
        """The hyper-parameters that an individual and its ancestors trained with, from generation 0 on.

        On islands the ancestors are followed through imports, for which the tables of the other islands are read. The
        schedule has one value for each generation that an ancestor trained in: it is shorter than the run where an
        import was published in an earlier generation.

        The arguments are those of `ancestors`. Each value of the schedule is `[generation + 1]` float64.

        Raises:
          ValueError: as for `ancestors`, or an ancestor came from a repertoire, or an import is not recorded, so that
            the schedule is incomplete.
        """
        line = self.ancestors(member, generation)
        if (line < 0).any() and self.island is not None:
            return self._across_islands(self.island, len(line), int(line[-1]))
        if (line < 0).any():
            first = int(np.argmax(line >= 0))
            raise ValueError(
                f"the lineage begins after generation {first}, with an elite of the repertoire, a new member or lost "
                "rows of lineage.csv, and the hyper-parameters of earlier generations are not recorded; from Python "
                "choose a member whose lineage begins with an initial one: lineage(run).schedule(member)."
            )
        values = {name: column[np.arange(len(line)), line] for name, column in self.hyper.items()}
        return self._schedule_of(values)

    def _schedule_of(self, values: dict[str, np.ndarray]) -> Schedule:
        values |= {name: np.array(names)[values[name].astype(int)] for name, names in self.choices.items()}
        return Schedule(values, self.steps_per_generation, self.agent)

    def _across_islands(self, folder: Path, generation: int, member: int) -> Schedule:
        lineages, exchanges = _read_islands(folder.parent.parent)
        parents = {number: lineage.parents for number, lineage in lineages.items()}
        line = ancestors(parents, exchanges, (int(folder.name), generation, member))
        number, first, _ = line[0]
        if first > 1:
            raise ValueError(
                f"the lineage begins with a member that island {number} imported after generation {first - 1}, whose "
                f"source is not recorded; put back a copy of {folder.parent}, with every lineage.csv and imports.jsonl."
            )
        trained = [(lineages[number].hyper, row - 1, slot) for number, row, slot in line]
        values = {name: np.array([hyper[name][row, slot] for hyper, row, slot in trained]) for name in self.hyper}
        return self._schedule_of(values)

    def _best(self, generation: int) -> int:
        fitness = self.selected_by[generation]
        finite = np.isfinite(fitness)
        if not finite.any():
            raise ValueError(f"no member of generation {generation} has a finite fitness; give a member explicitly.")
        return int(np.argmax(np.where(finite, fitness, -np.inf)))


def lineage(run: str | os.PathLike[str], separate_roles: bool = False) -> Lineage:
    """Read the parents, fitness and hyper-parameters of all members in all generations of a run.

    The run may still be in progress; a last generation that is only partly written is left out.

    Args:
      run: path of the run directory; of a run of islands, the best island is read.
      separate_roles: accept also a run with a separate population for each role of a team (`--member agent`). The
        members of its lineage are agents: in teams of I, the agent in role i and slot p is member `p I + i`.

    Raises:
      ValueError: the path is no run directory, the run has no finished generation, a table is damaged, or the run has a
        separate population for each role and `separate_roles` is False.

    Example:
      >>> lineage = rookery.experiments.lineage("runs/pbt-sac")
      >>> schedule = lineage.schedule()
    """
    folder = open_existing(best_of(run))
    if folder.config.get("member") == "agent" and not separate_roles:
        raise ValueError(
            f"{folder.path} has a separate population for each role and matches new teams in each generation, so whole "
            "teams have no lineage; call lineage(run, separate_roles=True) for that of the agents."
        )
    return lineage_of(folder, *_tables(folder))


def _read_islands(run_dir: Path) -> tuple[dict[int, Lineage], dict[int, list[Exchange]]]:
    """Number of an island -> its lineage, and its exchanges, of all islands that have a finished generation."""
    lineages, exchanges = {}, {}
    for path in islands_of(run_dir):
        folder, number = open_existing(path), int(path.name)
        with contextlib.suppress(_UnfinishedError):
            lineages[number] = lineage_of(folder, *_tables(folder))
            exchanges[number] = read_exchanges(folder.imports_file)
    return lineages, exchanges


def _tables(folder: RunFolder) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """The columns of `lineage.csv` and of `metrics.csv`; {} without the file."""
    return read_members(folder), read_table(folder.metrics_file)


def lineage_of(folder: RunFolder, members: Mapping[str, np.ndarray], metrics: Mapping[str, np.ndarray]) -> Lineage:
    """The lineage of a run by the columns of its `lineage.csv` and `metrics.csv`, {} for a file that does not exist; a
    ValueError if no generation is finished, or a table is damaged."""
    rows, finished = (len(next(iter(table.values()), ())) for table in (members, metrics))
    lost = folder.metrics_file if rows and not finished else None
    if not rows and finished > 1 and HAS_MEMBERS in metrics:  # a run in progress writes lineage.csv last
        lost = folder.lineage_file
    if lost is not None:
        raise ValueError(f"{lost} has lost all rows; put a copy of the file back.")
    if not (rows and finished):
        raise _unfinished(folder)
    check_columns(folder.metrics_file, metrics, ("env_steps",))
    generations, population = _shape(folder, members)
    whole = generations * population
    table = {name: column[:whole].reshape(generations, population) for name, column in members.items()}
    kind, of_agents = folder.config.get("kind"), folder.config.get("member") == "agent"
    out_of_range = (table["parent"] < FROM_REPERTOIRE) | (table["parent"] >= population)
    if out_of_range.any():
        generation, member = np.argwhere(out_of_range)[0]
        raise ValueError(
            f"{folder.lineage_file} is damaged: the parent of member {member} in generation {generation} is "
            f"{table['parent'][generation, member]}, not in 0..{population - 1}; put a copy of the file back."
        )
    return Lineage(
        parents=table["parent"],
        fitness=table["fitness"],
        hyper={name: values for name, values in table.items() if is_hyper(name)},
        steps_per_generation=_member_steps(
            folder, metrics, folder.config.get("population", 0) if of_agents else population
        ),
        agent=agent_name(folder.config) if kind in (PYTHON, PROGRAM) else None if kind is None else agent_of(kind),
        choices={name: names for name, names in folder.config.get(CHOICES, {}).items() if name in table},
        reported={name: values for name, values in table.items() if _is_reported(name)},
        rating=table.get(_RATING),
        island=folder.path if ISLAND in folder.config and "coverage" not in metrics else None,
    )


def is_hyper(column: str) -> bool:
    """Whether a column of `lineage.csv` is a hyper-parameter."""
    return column not in (*MEMBER_COLUMNS, _RATING) and not _is_reported(column)


def _is_reported(column: str) -> bool:
    return column in (RETURN, ROUND) or column.startswith((MEASURE, CALLBACK))


def record_of(schedule: Schedule | None) -> dict[str, Any]:
    """The entry of `config.json` for the schedule that a run replays, as JSON values; {} without a schedule.

    Raises:
      ValueError: the schedule is empty, its arrays are not all `[generations]` of finite numbers, or
        `steps_per_generation` is below 1.
    """
    if schedule is None:
        return {}
    _check_schedule(schedule)
    values = {name: _column(values).tolist() for name, values in schedule.values.items()}
    content = {"agent": schedule.agent, "steps_per_generation": int(schedule.steps_per_generation), "values": values}
    return {SCHEDULE: content}


def schedule_of(record: Record) -> Schedule | None:
    """The schedule stored in a run's `config.json`, bit-identical to the original; None for a run that replays none, a
    ValueError if it is damaged."""
    content, choices = record.get(SCHEDULE), record.get(CHOICES, {})
    if content is None:
        return None
    try:
        values = {name: _column(column) for name, column in content["values"].items()}
        if named := [name for name, column in values.items() if column.dtype.kind == "U" and name not in choices]:
            raise ValueError(f"{named[0]} has no names")
        schedule = Schedule(values, operator.index(content["steps_per_generation"]), content["agent"])
        _check_schedule(schedule)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise ValueError(f"config.json's schedule is damaged ({reason}); put a copy of the file back.") from error
    return schedule


def check_agent(schedule: Schedule, agent: str) -> None:
    """Raise a ValueError, which names both, if a schedule belongs to another agent than the given one."""
    if schedule.agent not in (None, agent):
        raise ValueError(
            f"the schedule is that of a {schedule.agent} agent and cannot be replayed by {agent}; "
            f"use: rookery train {schedule.agent} --replay-schedule RUN."
        )


def at_steps(schedule: Schedule, steps_per_generation: int, generations: int) -> dict[str, np.ndarray]:
    """Resample a schedule for a run with another number of environment steps per generation.

    Generation g of the new run begins at environment step `g * steps_per_generation` of its member and takes the values
    that the old run's member trained with at that step. A change between two such steps takes effect at the later one.
    Beyond the end of the old run, its last values apply.

    Args:
      schedule: of the old run.
      steps_per_generation: environment steps of one member of the new run per generation, at least 1.
      generations: of the new run, at least 1.

    Returns:
      Name of the hyper-parameter -> `[generations]` float64, not interpolated, or names.

    Raises:
      ValueError: a count is no whole number from 1 to the largest int32, or the schedule is one that `record_of`
        rejects.

    Example:
      >>> schedule = rookery.experiments.lineage("runs/pbt-sac").schedule()
      >>> rookery.experiments.at_steps(schedule, steps_per_generation=1000, generations=20)["discount"].shape
      (20,)
    """
    check_counts(steps_per_generation=steps_per_generation, generations=generations)
    _check_schedule(schedule)
    steps = np.arange(generations, dtype=np.int64) * steps_per_generation  # below 2**62
    old = np.minimum(steps // min(schedule.steps_per_generation, 2**62), schedule.generations - 1)
    return {name: _column(values)[old] for name, values in schedule.values.items()}


def _column(values: ArrayLike) -> np.ndarray:
    """Values of a schedule as float64, or as names."""
    column = np.asarray(values)
    return column if column.dtype.kind == "U" else trees.unmasked(values, np.float64)


def _shape(folder: RunFolder, columns: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """The number of complete generations and of members."""
    generation, member = columns["generation"], columns["member"]
    configured = folder.config.get("population")
    # While the table has only generation 0, only the configured population size shows whether it is complete.
    if isinstance(configured, int) and len(generation) < configured:
        raise _unfinished(folder)
    population = max(int(np.sum(generation == 0)), 1)
    expected_generation, expected_member = np.divmod(np.arange(len(generation)), population)
    wrong = (generation != expected_generation) | (member != expected_member)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{folder.lineage_file} is damaged: line {row + 2} should be generation {expected_generation[row]}, "
            f"member {expected_member[row]}; put a copy of the file back."
        )
    return len(generation) // population, population


class _UnfinishedError(ValueError):
    """A run has no finished generation of members."""


def _unfinished(folder: RunFolder) -> _UnfinishedError:
    return _UnfinishedError(f"{folder.path} has no finished generation of members; train it for at least one.")


def _member_steps(folder: RunFolder, metrics: Mapping[str, np.ndarray], population: int) -> int:
    """Environment steps of one member per generation."""
    if population < 1:
        raise ValueError(f"{folder.config_file} has the population {population}; put a copy of the file back.")
    env_steps = float(metrics["env_steps"][0])
    steps = env_steps / population
    if not (steps >= 1 and steps.is_integer()):
        raise ValueError(
            f"{folder.metrics_file} gives {env_steps:g} env_steps to the first generation, which is no multiple of its "
            f"{population} members; put a copy of the file back, or use a run whose members make equally many steps."
        )
    return int(steps)


def _check_range(name: str, value: int, size: int) -> None:
    check_counts(-LARGEST_COUNT, **{name: value})
    if not 0 <= value < size:
        raise ValueError(f"{name} {value} does not exist; choose one in 0..{size - 1}.")


def _check_schedule(schedule: Schedule) -> None:
    shapes = {name: np.shape(values) for name, values in schedule.values.items()}
    shape = next(iter(shapes.values()), ())
    if len(shape) != 1 or shape[0] < 1 or set(shapes.values()) != {shape}:
        raise ValueError(
            f"a schedule needs hyper-parameters with the same number of values each, at least 1; given: {shapes}."
        )
    for name, values in schedule.values.items():
        if (column := _column(values)).dtype.kind == "f" and not np.isfinite(column).all():
            raise ValueError(f"a schedule needs finite values; change those of {name}.")
    if not (isinstance(steps := schedule.steps_per_generation, int | np.integer) and steps >= 1):
        raise ValueError(f"a schedule needs a whole steps_per_generation of at least 1, got {steps!r}.")
