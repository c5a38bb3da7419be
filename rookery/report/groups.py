"""Grouping of run directories by configuration: the runs of a group differ only in their seeds."""

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

# Settings without an effect on the results, or (`devices` without `exact`) only on their rounding.
_WITHOUT_EFFECT = {
    *("seed", "run.seed", "run.run_dir", "run.keep", "run.checkpoint_every", "run.quiet", "run.live", "run.overwrite"),
    *("environment.devices", "environment.exact"),
}


class Score(NamedTuple):
    """Score of a run."""

    env_steps: float
    """Environment steps of the scored generation."""
    fitness: float
    """NaN where no fitness was finite."""


class Run(NamedTuple):
    """Learning curve of one run: of a whole folder, or of one independent member of a folder."""

    path: Path
    """Absolute."""
    seed: int | None
    """None if config.json does not record it."""
    env_steps: np.ndarray
    """`[G]`, cumulative environment steps: of the whole population, or of the independent member."""
    best_fitness: np.ndarray
    """`[G]`, of the best finite member, or the requested score; NaN where no value was finite."""
    column: str = "best_fitness"
    """Source column of `best_fitness` in metrics.csv; "fitness" for an independent member."""
    member: int | None = None
    """Index of the independent member; None where the folder is one run."""
    fresh: Score | None = None
    """Score on fresh episodes, if requested."""

    def score(self, budget: float) -> Score:
        """Score on fresh episodes if there is one, else of the last generation within a budget of environment steps."""
        if self.fresh is not None:
            return self.fresh
        last = int(np.searchsorted(self.env_steps, budget, side="right")) - 1
        return Score(float(self.env_steps[last]), float(self.best_fitness[last]))

    @property
    def end(self) -> Score:
        """Score of the last generation."""
        return self.score(np.inf)

    @property
    def diverged(self) -> bool:
        """Whether no fitness of the last generation is finite."""
        return not np.isfinite(self.end.fitness)


class Group(NamedTuple):
    """Runs of one configuration."""

    label: str
    """Kind, environment, and the settings in which the groups of this kind on this environment differ, named by their
    flags where these are unambiguous (`pbt-sac hopper, perturb=pb2`); unique among the groups."""
    name: str
    """The label without the environment."""
    environment: str
    """The task, with the settings that change it (`hopper, backend=mjx`); scores are comparable within it only."""
    runs: tuple[Run, ...]
    """In the given order; each independent member of a folder is a run."""
    population: str = "1"
    """Size of the population whose best member is the score of a run, as text."""
    independent: bool = False
    """Whether the members of a folder are independent."""

    @property
    def selected(self) -> bool:
        """Whether a run's score is the highest of several evaluations."""
        columns = {run.column for run in self.runs}
        return "max_fitness" in columns or ("best_fitness" in columns and self.population != "1")


def groups(run_dirs: Iterable[str | Path], score: str | None = None) -> list[Group]:
    """Group runs by configuration, in the order in which the configurations first appear.

    Two runs are in one group if their `config.json` agree except for the seed and for settings without an effect on
    the results: folder, stored checkpoints, devices, output. A setting that is null or an empty list counts as absent.
    Runs started from Python do not record their program unless `run` was given a `record`: all runs without one are in
    one group.

    Each independent member of a folder (`--seeds 8`) is a run, whose environment steps are its share of the folder's;
    the number of members then does not distinguish groups.

    Args:
      run_dirs: run directories; duplicates are dropped.
      score: the column of `metrics.csv` that is the score of a run. By default the fitness: of the best elite for a run
        with a repertoire, of the member itself if it is independent, else of the best member. A column describes all
        members of a folder together, so with a column a folder of independent members counts as one run.

    Returns:
      The groups.

    Raises:
      ValueError: no folder is given, a folder is not a run or has damaged files, or a run has no finished generation or
        lacks the column.
    """
    paths = dict.fromkeys(Path(path).resolve() for path in run_dirs)
    if not paths:
        raise ValueError("there is no run to compare; give the folders of at least one.")
    sorted_runs: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    independent = {}
    for path in paths:
        folder = open_run(path)
        per_member = score is None and are_independent(folder.config)
        settings = _flatten(_settings(folder.config))
        without_effect = _WITHOUT_EFFECT | {"population"} if per_member else _WITHOUT_EFFECT
        key = tuple(sorted((name, _text(value)) for name, value in settings.items() if name not in without_effect))
        seed = settings.get("run.seed", settings.get("seed"))
        runs = _members(path, seed) if per_member else [_read(path, seed, score)]
        sorted_runs.setdefault(key, []).extend(runs)
        independent[key] = are_independent(folder.config)
    configurations = [dict(key) for key in sorted_runs]
    return [
        _group(dict(key), configurations, runs)._replace(independent=independent[key])
        for key, runs in sorted_runs.items()
    ]


def independent_runs(folder: RunFolder) -> tuple[Run, ...]:
    """The runs of a folder with several independent members; () for a folder that is one run.

    Raises:
      ValueError: a table is damaged, or no generation is finished.
    """
    runs = _members(folder.path, None) if are_independent(folder.config) and folder.lineage_file.exists() else []
    return tuple(runs) if len(runs) > 1 else ()


def worst_fitness(runs: Iterable[Run]) -> float:
    """The lowest fitness of any run in any generation, the score of diverged runs; NaN where no value was finite."""
    return min(
        (float(np.nanmin(run.best_fitness)) for run in runs if np.isfinite(run.best_fitness).any()), default=np.nan
    )


def open_run(path: Path) -> RunFolder:
    """Open a run directory.

    Raises:
      RunFolderError: the folder is not a run; the message names similar runs nearby.
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
        suggestions = ", ".join(str(known[name]) for name in near)
        raise RunFolderError(f"{str(error).removesuffix('.')}; runs near it are {suggestions}.") from error


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings; a replayed schedule is represented by a digest of its values instead of its source."""
    settings = {name: value for name, value in config.items() if name not in (DESCRIPTOR, INDEPENDENT)}
    if SCHEDULE in config:
        digest = hashlib.sha256(json.dumps(config[SCHEDULE], sort_keys=True).encode()).hexdigest()
        settings |= {SCHEDULE: digest[:6], "replay_schedule": None}
    if config.get("kind") == PYTHON and are_independent(
        config
    ):  # no other setting may distinguish it from a population
        settings[INDEPENDENT] = True
    return settings


def _metrics(path: Path) -> dict[str, np.ndarray]:
    """`metrics.csv`, with at least one finished generation."""
    try:
        metrics = read_csv(path / "metrics.csv")
    except FileNotFoundError:
        metrics = {}
    if not metrics or not len(metrics["generation"]):
        raise ValueError(f"{path} has no finished generation to compare; wait for its first, or leave it out.")
    return metrics


def _members(path: Path, seed: int | None) -> list[Run]:
    """Each independent member of a folder as a run, with its fitness and its share of the environment steps."""
    fitness = lineage(path).fitness  # read first: a run in progress writes lineage.csv after metrics.csv
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
            raise ValueError(
                f"{path} cannot be compared: its metrics.csv has no column {name}; choose one of {', '.join(near)}."
            )
    values = np.where(np.isfinite(metrics[column]), metrics[column], np.nan)
    return Run(path, seed, metrics["env_steps"], values, column)


def _flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with dotted names, such as `run.generations`; omits nulls and empty lists."""
    return {name: value for name, value in flatten_mapping(config).items() if value is not None and value != []}


def _group(settings: Mapping[str, str], configurations: Iterable[Mapping[str, str]], runs: Iterable[Run]) -> Group:
    environment, others = _split(settings)
    kind = others.get("kind", "run")
    rivals = [rival for rival_environment, rival in map(_split, configurations) if rival_environment == environment]
    rivals = [rival for rival in rivals if rival.get("kind") == others.get("kind")]
    flags = [name.rpartition(".")[2] for name in set().union(*rivals)]
    distinct = {}
    for name, value in others.items():
        if any(rival.get(name) != value for rival in rivals):
            flag = name.rpartition(".")[2]
            distinct[flag if flags.count(flag) == 1 else name] = value
    names = _join(f"{kind} {environment}", distinct), _join(kind, distinct)
    return Group(*names, environment, tuple(runs), settings.get("population", "1"))


def _split(settings: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The environment with its settings, across which scores are not comparable; and all other settings."""
    others = {name: value for name, value in settings.items() if name != "env" and not name.startswith("environment.")}
    environment = {name.removeprefix("environment."): value for name, value in settings.items() if name not in others}
    return _join(environment.pop("env", "an unnamed environment"), environment), others


def _join(start: str, settings: Mapping[str, str]) -> str:
    return ", ".join([start, *(f"{name}={value}" for name, value in settings.items())])


def _text(value: Any) -> str:
    """The text of a setting in a label; 1 and 1.0 are equal."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)
