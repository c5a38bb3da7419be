"""Who came from whom in a run, and under which hyper-parameters the winner grew up: a schedule to replay.

PBT finds no single setting but a schedule: what the winner's ancestors trained with, one generation after the other
(Jaderberg 2017, arXiv:1711.09846). Here it is read from a run's tables, kept as a file, and stretched to
another length of generation.
"""

import json
import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rookery.runs.config import PYTHON
from rookery.runs.folder import RunFolder, open_existing, write_atomically
from rookery.runs.log import read_csv

SCHEDULE_FILE = "schedule.json"
"""The name of a schedule inside the folder of a run that replays it."""
SCHEDULE_FORMAT = 1
"""The schema of a schedule's file; raised whenever an older reader would misread a newer file."""
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

    `lineage.hyper["discount"][g, lineage.ancestors()[g]]` is what the winner's ancestor of generation g trained with.
    """

    parents: np.ndarray  # [G, P] int64, the member of the generation before that it came from; row 0 is not meaningful
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
            found[generation - 1, self.parents[generation, found[generation]]] = True
        return found

    def ancestors(self, member: int | None = None, generation: int | None = None) -> np.ndarray:
        """The members that an individual descends from, one in each generation, itself at the end.

        Args:
          member: in 0..P-1; by default the one with the highest finite fitness in that generation.
          generation: in 0..G-1; by default the last.

        Returns:
          `[generation + 1]` int64, the member in each generation from 0 on. Equal neighbours mean that it survived.

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
            line[later - 1] = self.parents[later, line[later]]
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
        values = {name: column[np.arange(len(line)), line] for name, column in self.hyper.items()}
        return Schedule(values, self.steps_per_generation, self.agent)

    def _best(self, generation: int) -> int:
        fitness = self.fitness[generation]
        finite = np.isfinite(fitness)
        if not finite.any():
            raise ValueError(f"no member of generation {generation} has a finite fitness; name a member yourself.")
        return int(np.argmax(np.where(finite, fitness, -np.inf)))


def lineage(run: str | os.PathLike[str]) -> Lineage:
    """Read who came from whom, how fit everybody was, and what they trained with.

    A run that is still going can be read; a last generation that is only half written is left out.

    Args:
      run: path of a run folder.

    Raises:
      ValueError: no run folder, no finished generation, or a damaged table.
    """
    folder = open_existing(run)
    columns = _read(folder, folder.lineage_file, _KNOWN_COLUMNS)
    generations, population = _shape(folder, columns)
    whole = generations * population
    table = {name: column[:whole].reshape(generations, population) for name, column in columns.items()}
    strange = (table["parent"] < 0) | (table["parent"] >= population)
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
        steps_per_generation=_member_steps(folder, population),
        agent=_agent(folder.config.get("kind")),
    )


def write_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write a schedule as JSON, atomically; `read_schedule` gives back the same bits.

    Raises:
      ValueError: the schedule is empty, its arrays are not all `[generations]` of finite numbers, or
        `steps_per_generation` is below 1.
      OSError: the file cannot be written.
    """
    _check_schedule(schedule)
    content = {
        "format": SCHEDULE_FORMAT,
        "agent": schedule.agent,
        "steps_per_generation": int(schedule.steps_per_generation),
        # a Python float is written as the shortest text that reads back to the same bits
        "values": {name: np.asarray(values, np.float64).tolist() for name, values in schedule.values.items()},
    }
    write_atomically(Path(path), json.dumps(content, indent=2) + "\n")


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """A schedule that `write_schedule` wrote: bit-equal float64, names in the same order.

    Raises:
      ValueError: the file cannot be read, is damaged, or was written by another version.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        written_as = content["format"]
        if written_as == SCHEDULE_FORMAT:
            values = {name: np.array(numbers, np.float64) for name, numbers in content["values"].items()}
            schedule = Schedule(values, operator.index(content["steps_per_generation"]), content["agent"])
            _check_schedule(schedule)
            return schedule
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); write it with write_schedule.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # ValueError: no JSON, or no UTF-8
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {str(error).rstrip('.')}); put a copy of it back."
        ) from error
    raise ValueError(
        f"{path} has format {written_as!r}, but this version reads format {SCHEDULE_FORMAT}; "
        "use the version of rookery that wrote it."
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
      ValueError: a count below 1, or a schedule that `write_schedule` would refuse.
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


def _agent(kind: object) -> str | None:
    """A run's kind is its agent's name, after that of the population method and a hyphen if there is one."""
    return kind.rpartition("-")[2] if isinstance(kind, str) and kind != PYTHON else None


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
