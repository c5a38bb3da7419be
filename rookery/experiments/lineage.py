"""Who came from whom in a run, and under which hyper-parameters the winner grew up: a schedule to replay.

PBT finds no single setting but a schedule: what the winner's ancestors trained with, one generation after the other
(Jaderberg 2017, arXiv:1711.09846). Here it is read from a run's tables and stretched to another length of generation.
"""

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.experiments.config_io import PYTHON, SCHEDULE
from rookery.experiments.kinds import agent_of
from rookery.qd.pbt_emitter import FROM_REPERTOIRE
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import RunFolder, open_existing

_KNOWN_COLUMNS = ("generation", "member", "parent", "fitness")


class Schedule(NamedTuple):
    """Hyper-parameters that change from generation to generation."""

    values: Mapping[str, np.ndarray]  # name -> [generations] float64
    steps_per_generation: int  # environment steps of one member
    agent: str | None  # whose hyper-parameters these are: "sac", "td3"; None if unknown

    @property
    def generations(self) -> int:
        """How many generations it describes; 0 without hyper-parameters."""
        return min((len(values) for values in self.values.values()), default=0)


class Lineage(NamedTuple):
    """The family tree of a run's G generations of P members: an individual is a pair (generation, member).

    A parent of -1 says that it came out of a repertoire.

    `lineage.hyper["discount"][g, lineage.ancestors()[g]]` is what the winner's ancestor of generation g trained with.
    """

    parents: np.ndarray  # [G, P] int64, the member of the generation before that it came from; row 0 says nothing
    fitness: np.ndarray  # [G, P] float64, mean return; NaN where a member diverged
    hyper: Mapping[str, np.ndarray]  # name -> [G, P] float64, trained with in that generation
    steps_per_generation: int  # environment steps of one member
    agent: str | None  # whose hyper-parameters these are: "sac", "td3"; None for a run that was started from Python

    @property
    def winner(self) -> int:
        """The member with the highest finite fitness in the last generation; among equals the lowest.

        Raises:
          ValueError: no member of the last generation is finite.
        """
        return self._best(len(self.fitness) - 1)

    @property
    def has_descendants(self) -> np.ndarray:
        """Which individuals the last generation descends from, `[G, P]` bool; its last row is True.

        A drawing of the tree joins (g - 1, `parents[g, i]`) to (g, i) for all g >= 1, and thickens the line where
        `has_descendants[g, i]`; the number of True per row is how many lines of descent were still open.
        """
        found = np.zeros(self.parents.shape, bool)
        found[-1] = True
        for generation in range(len(found) - 1, 0, -1):
            parents = self.parents[generation, found[generation]]
            found[generation - 1, parents[parents >= 0]] = True
        return found

    def ancestors(self, member: int | None = None, generation: int | None = None) -> np.ndarray:
        """The members that an individual descends from, one in each generation, itself at the end.

        Args:
          member: in 0..P-1; by default the one with the highest finite fitness in that generation.
          generation: in 0..G-1; by default the last.

        Returns:
          `[generation + 1]` int64, the member in each generation from 0 on. Equal neighbours mean that it survived; -1
          stands before one that came out of the repertoire.

        Raises:
          ValueError: a member or generation out of range, or no member given and none is finite.
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

        Args:
          member: as for `ancestors`.
          generation: as for `ancestors`.

        Returns:
          Each name -> `[generation + 1]` float64.

        Raises:
          ValueError: as `ancestors`.
        """
        line = self.ancestors(member, generation)
        if (line < 0).any():
            born = int(np.argmax(line >= 0))
            raise ValueError(
                f"the ancestors came out of the repertoire in generation {born}, and what those before trained with is "
                "not known; from Python choose a member whose line goes back to generation 0: lineage(run).schedule(i)."
            )
        values = {name: column[np.arange(len(line)), line] for name, column in self.hyper.items()}
        return Schedule(values, self.steps_per_generation, self.agent)

    def _best(self, generation: int) -> int:
        fitness = self.fitness[generation]
        finite = np.isfinite(fitness)
        if not finite.any():
            raise ValueError(f"no member of generation {generation} has a finite fitness; name a member yourself.")
        return int(np.argmax(np.where(finite, fitness, -np.inf)))


def lineage(run: str | os.PathLike[str], apart: bool = False) -> Lineage:
    """Read who came from whom, how fit everybody was, and what they trained with.

    A run that is still going can be read; a last generation that is only half written is left out.

    Args:
      run: path of a run folder.
      apart: read also a run that bred the roles of a team apart; its members are then agents, of a team of I the one
        in role i and slot p at `p I + i`.

    Raises:
      ValueError: no run folder, no finished generation, or a damaged table.
    """
    folder = open_existing(run)
    kind, of_agents = folder.config.get("kind"), folder.config.get("member") == "agent"
    if of_agents and not apart:
        raise ValueError(
            f"{folder.path} bred the roles of a team apart, matched anew in each generation, so whole members have no "
            "family tree; read its lineage.csv."
        )
    columns = _read(folder, folder.lineage_file, _KNOWN_COLUMNS)
    generations, population = _shape(folder, columns)
    whole = generations * population
    table = {name: column[:whole].reshape(generations, population) for name, column in columns.items()}
    has_repertoire = "coverage" in _read(folder, folder.metrics_file, ("env_steps",))
    least = FROM_REPERTOIRE if has_repertoire else 0
    strange = (table["parent"] < least) | (table["parent"] >= population)
    if strange.any():
        generation, member = np.argwhere(strange)[0]
        raise ValueError(
            f"{folder.lineage_file} is damaged: the parent of member {member} in generation {generation} is "
            f"{table['parent'][generation, member]}, not in 0..{population - 1}; put a copy of the file back."
        )
    return Lineage(
        parents=table["parent"],
        fitness=table["fitness"],
        hyper={name: values for name, values in table.items() if name not in _KNOWN_COLUMNS},
        steps_per_generation=_member_steps(folder, folder.config["population"] if of_agents else population),
        agent=None if kind in (None, PYTHON) else agent_of(kind),
    )


def record_of(schedule: Schedule | None) -> dict[str, Any]:
    """What `config.json` says of the schedule that a run replays, so that its folder is complete; {} without one.

    Raises:
      ValueError: the schedule is empty, its arrays are not all `[generations]` of finite numbers, or
        `steps_per_generation` is below 1.
    """
    if schedule is None:
        return {}
    _check_schedule(schedule)
    values = {name: np.asarray(values, np.float64).tolist() for name, values in schedule.values.items()}
    content = {"agent": schedule.agent, "steps_per_generation": int(schedule.steps_per_generation), "values": values}
    return {SCHEDULE: content}


def schedule_of(record: Mapping[str, Any]) -> Schedule | None:
    """The schedule that a run's `config.json` says it replays, bit-equal; None for a run that replays none.

    Raises:
      ValueError: it is damaged.
    """
    content = record.get(SCHEDULE)
    if content is None:
        return None
    try:
        values = {name: np.array(numbers, np.float64) for name, numbers in content["values"].items()}
        schedule = Schedule(values, operator.index(content["steps_per_generation"]), content["agent"])
        _check_schedule(schedule)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {str(error).rstrip('.')}"
        raise ValueError(f"config.json's schedule is damaged ({reason}); put a copy of the file back.") from error
    return schedule


def check_agent(schedule: Schedule, agent: str) -> None:
    """Refuse a schedule of another agent.

    Raises:
      ValueError: the sentence names both agents.
    """
    if schedule.agent not in (None, agent):
        raise ValueError(
            f"the schedule is that of a {schedule.agent} agent and cannot be replayed by {agent}; "
            f"use: rookery train {schedule.agent} --replay-schedule RUN."
        )


def at_steps(schedule: Schedule, steps_per_generation: int, generations: int) -> dict[str, np.ndarray]:
    """A schedule for a run whose members make another number of environment steps per generation.

    Generation g of the new run begins at environment step g `steps_per_generation` of its member, and takes the values
    that the old run's member used at that step; a change that falls between two beginnings comes with the later one.
    After the old run's end its last values hold.

    Args:
      schedule: of the old run.
      steps_per_generation: of one member of the new run, at least 1.
      generations: of the new run, at least 1.

    Returns:
      Each name -> `[generations]` float64, none of them interpolated.

    Raises:
      ValueError: a count below 1, or a schedule that `record_of` would refuse.
    """
    for name, value in (("steps_per_generation", steps_per_generation), ("generations", generations)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}.")
    _check_schedule(schedule)
    steps = np.arange(generations, dtype=np.int64) * steps_per_generation
    old = np.minimum(steps // schedule.steps_per_generation, schedule.generations - 1)
    return {name: np.asarray(values, np.float64)[old] for name, values in schedule.values.items()}


def _read(folder: RunFolder, path: Path, needed: tuple[str, ...]) -> dict[str, np.ndarray]:
    """A table with at least one row."""
    columns = read_csv(path) if path.is_file() else {}
    if not columns or not len(next(iter(columns.values()))):
        raise _unfinished(folder)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise ValueError(f"{path} is damaged: it has no column {', '.join(missing)}; put a copy of the file back.")
    return columns


def _shape(folder: RunFolder, columns: Mapping[str, np.ndarray]) -> tuple[int, int]:
    """The number of whole generations and of members."""
    generation, member = columns["generation"], columns["member"]
    configured = folder.config.get("population")
    # While only generation 0 is there, nothing but the configuration tells whether it is whole.
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


def _unfinished(folder: RunFolder) -> ValueError:
    return ValueError(f"{folder.path} has no finished generation of members; let it run for at least one.")


def _member_steps(folder: RunFolder, population: int) -> int:
    """Environment steps of one member per generation."""
    env_steps = float(_read(folder, folder.metrics_file, ("env_steps",))["env_steps"][0])
    steps = env_steps / population
    if not (steps >= 1 and steps.is_integer()):
        raise ValueError(
            f"{folder.metrics_file} gives {env_steps:g} env_steps to the first generation, which is no multiple of its "
            f"{population} members; put a copy of the file back, or take a run whose members make equally many steps."
        )
    return int(steps)


def _check_range(name: str, value: int, size: int) -> None:
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
        if not np.isfinite(values).all():
            raise ValueError(f"a schedule needs finite values; change those of {name}.")
    if schedule.steps_per_generation < 1:
        raise ValueError(f"a schedule needs steps_per_generation of at least 1, got {schedule.steps_per_generation}.")
