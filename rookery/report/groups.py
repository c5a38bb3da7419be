"""Run folders sorted into groups: runs of one configuration, which differ in nothing but their seed."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.experiments.config_io import DESCRIPTOR, INDEPENDENT, PYTHON, SCHEDULE, are_independent
from rookery.experiments.lineage import lineage
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import RunFolder, RunFolderError, open_existing
from rookery.trees import flatten_mapping

# Settings that change nothing of what is learned, or (`devices` without `exact`) its rounding only.
_WITHOUT_EFFECT = {
    *("seed", "run.seed", "run.run_dir", "run.keep", "run.checkpoint_every", "run.quiet", "run.live", "run.overwrite"),
    *("world.devices", "world.exact"),
}


class Score(NamedTuple):
    """What a run is scored by."""

    env_steps: float  # at which
    fitness: float  # NaN where nothing was finite


class Run(NamedTuple):
    """How well a run went: that of a folder, or of one of the independent members that a folder holds."""

    path: Path  # absolute
    seed: int | None  # None if config.json does not name it
    env_steps: np.ndarray  # [G], environment steps so far: of the whole population, or of the independent member
    best_fitness: np.ndarray  # [G], of the best finite member, or the score asked for; NaN where nothing was finite
    column: str = "best_fitness"  # of metrics.csv, that this is; "fitness" of an independent member
    member: int | None = None  # which independent member; None where the folder is one run
    fresh: Score | None = None  # of fresh episodes, where these were asked for

    def score(self, budget: float) -> Score:
        """By fresh episodes; without any by the last generation within a budget of environment steps."""
        if self.fresh is not None:
            return self.fresh
        last = int(np.searchsorted(self.env_steps, budget, side="right")) - 1
        return Score(float(self.env_steps[last]), float(self.best_fitness[last]))

    @property
    def end(self) -> Score:
        """What the run came to."""
        return self.score(np.inf)

    @property
    def diverged(self) -> bool:
        """Whether nothing was finite in the end."""
        return not np.isfinite(self.end.fitness)


class Group(NamedTuple):
    """Runs of one configuration.

    Attributes:
      label: kind, environment, and the settings in which the groups of this kind on this environment differ, by
        their flag where that says enough (`pbt-sac hopper, perturb=pb2`); unique among the groups.
      name: the same without the environment, for where all groups share it.
      environment: the task, with what else shapes it (`hopper, backend=mjx`); scores compare within it only.
      runs: in the order given; each independent member of a folder is a run.
      population: members that the score of each run is taken from.
    """

    label: str
    name: str
    environment: str
    runs: tuple[Run, ...]
    population: str = "1"  # members, as the settings say
    independent: bool = False  # whether the members of a folder are independent

    @property
    def selected(self) -> bool:
        """Whether a run's score is the highest of several evaluations."""
        columns = {run.column for run in self.runs}
        return "max_fitness" in columns or ("best_fitness" in columns and self.population != "1")


def groups(run_dirs: Iterable[str | Path], score: str | None = None) -> list[Group]:
    """Sort run folders by configuration, in the order in which the configurations first appear.

    Two runs belong together if their `config.json` agrees in all but the seed and what changes nothing of what is
    learned: folder, checkpoints kept, devices, output. A setting that is null, or an empty list, counts as absent. Runs
    started from Python say nothing of their program unless `run` was given a `record`: all those stand in one group.

    Each independent member of a folder (`--seeds 8`) is a run, whose environment steps are its share of the folder's;
    how many members a folder holds then divides no group.

    Args:
      run_dirs: a folder that is given twice counts once.
      score: the column of `metrics.csv` that says how good a run is; by default the fitness of its best elite if it has
        a repertoire, of an independent member its own, else of its best member. A column describes all members of a
        folder together, so that with one a folder of independent members counts as one run.

    Raises:
      ValueError: no folder, a folder that is no run or whose files are damaged, a run without a finished generation, or
        one without the column.
    """
    paths = dict.fromkeys(Path(path).resolve() for path in run_dirs)
    if not paths:
        raise ValueError("there is no run to compare; give the folders of at least one.")
    sorted_runs: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    independent = {}
    for path in paths:
        folder = open_run(path)
        apart = score is None and are_independent(folder.config)
        everything = _told(_settings(folder.config))
        without_effect = _WITHOUT_EFFECT | {"population"} if apart else _WITHOUT_EFFECT
        key = tuple(sorted((name, _text(value)) for name, value in everything.items() if name not in without_effect))
        seed = everything.get("run.seed", everything.get("seed"))
        runs = _members(path, seed) if apart else [_read(path, seed, score)]
        sorted_runs.setdefault(key, []).extend(runs)
        independent[key] = are_independent(folder.config)
    configurations = [dict(key) for key in sorted_runs]
    return [
        _group(dict(key), configurations, runs)._replace(independent=independent[key])
        for key, runs in sorted_runs.items()
    ]


def independent_runs(folder: RunFolder) -> tuple[Run, ...]:
    """The runs that a folder of several independent members holds; () of a folder that is one run.

    Raises:
      ValueError: a table is damaged, or no generation is finished.
    """
    runs = _members(folder.path, None) if are_independent(folder.config) and folder.lineage_file.exists() else []
    return tuple(runs) if len(runs) > 1 else ()


def worst_fitness(runs: Iterable[Run]) -> float:
    """The least fitness that any of the runs had in any generation, which is what a diverged one counts as; NaN where
    nothing was ever finite."""
    return min(
        (float(np.nanmin(run.best_fitness)) for run in runs if np.isfinite(run.best_fitness).any()), default=np.nan
    )


def open_run(path: Path) -> RunFolder:
    """Open the folder of a run.

    Raises:
      RunFolderError: it is none; names runs near it.
    """
    try:
        return open_existing(path)
    except RunFolderError as error:
        around = path if path.is_dir() else path.parent
        if (path / "config.json").is_file() or not around.is_dir():
            raise
        known = {config.parent.name: config.parent for config in sorted(around.glob("*/config.json"))}
        near = difflib.get_close_matches(path.name, known, cutoff=0.5) or list(known)[:3]
        if not near:
            raise
        there = ", ".join(str(known[name]) for name in near)
        raise RunFolderError(f"{str(error).removesuffix('.')}; runs near it are {there}.") from error


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings; a schedule that it replays is told by its numbers, in short, and not by where it came from."""
    settings = {name: value for name, value in config.items() if name not in (DESCRIPTOR, INDEPENDENT)}
    if SCHEDULE in config:
        digest = hashlib.sha256(json.dumps(config[SCHEDULE], sort_keys=True).encode()).hexdigest()
        settings |= {SCHEDULE: digest[:6], "replay_schedule": None}
    if config.get("kind") == PYTHON and are_independent(config):  # other settings may not tell it from a population
        settings[INDEPENDENT] = True
    return settings


def _metrics(path: Path) -> dict[str, np.ndarray]:
    """`metrics.csv`, with one finished generation or more."""
    try:
        metrics = read_csv(path / "metrics.csv")
    except FileNotFoundError:
        metrics = {}
    if not metrics or not len(metrics["generation"]):
        raise ValueError(f"{path} has no finished generation to compare.")
    return metrics


def _members(path: Path, seed: int | None) -> list[Run]:
    """Each independent member of a folder as a run, with its own fitness and its share of the environment steps."""
    fitness = lineage(path).fitness  # read first: while a run goes on, lineage.csv is written after metrics.csv
    env_steps = _metrics(path)["env_steps"][: len(fitness)]
    values = np.where(np.isfinite(fitness), fitness, np.nan)[: len(env_steps)]
    population = values.shape[1]
    return [
        Run(path, seed, env_steps / population, values[:, member], "fitness", member) for member in range(population)
    ]


def _read(path: Path, seed: int | None, score: str | None) -> Run:
    metrics = _metrics(path)
    column = score or ("max_fitness" if "max_fitness" in metrics else "best_fitness")
    for name in ("env_steps", column):
        if name not in metrics:
            near = difflib.get_close_matches(name, metrics, cutoff=0.5) or list(metrics)
            raise ValueError(f"{path} cannot be compared: its metrics.csv has no column {name}, but {', '.join(near)}.")
    values = np.where(np.isfinite(metrics[column]), metrics[column], np.nan)
    return Run(path, seed, metrics["env_steps"], values, column)


def _told(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings as `run.generations`; without those that are null or an empty list."""
    return {name: value for name, value in flatten_mapping(config).items() if value is not None and value != []}


def _group(settings: Mapping[str, str], configurations: Iterable[Mapping[str, str]], runs: Iterable[Run]) -> Group:
    environment, own = _split(settings)
    kind = own.get("kind", "run")
    rivals = [other for world, other in map(_split, configurations) if world == environment]
    rivals = [other for other in rivals if other.get("kind") == own.get("kind")]
    flags = [name.rpartition(".")[2] for name in set().union(*rivals)]
    chosen = {}
    for name, value in own.items():
        if any(other.get(name) != value for other in rivals):
            flag = name.rpartition(".")[2]
            chosen[flag if flags.count(flag) == 1 else name] = value
    names = _join(f"{kind} {environment}", chosen), _join(kind, chosen)
    return Group(*names, environment, tuple(runs), settings.get("population", "1"))


def _split(settings: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The environment with all that shapes it, since scores do not compare across that; and the other settings."""
    own = {name: value for name, value in settings.items() if name != "env" and not name.startswith("world.")}
    shape = {name.removeprefix("world."): value for name, value in settings.items() if name not in own}
    return _join(shape.pop("env", "an unnamed environment"), shape), own


def _join(start: str, settings: Mapping[str, str]) -> str:
    return ", ".join([start, *(f"{name}={value}" for name, value in settings.items())])


def _text(value: Any) -> str:
    """A setting as a label shows it; 1 and 1.0 are the same setting."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)
