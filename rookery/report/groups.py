"""Run folders sorted into groups: runs of one configuration, which differ in nothing but their seed."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.runs.folder import RunFolder, RunFolderError, open_existing
from rookery.runs.log import read_csv
from rookery.runs.record import DESCRIPTOR, SCHEDULE
from rookery.runs.settings import flat

# Settings that change nothing of what is learned, or (`devices` without `exact`) its rounding only.
_WITHOUT_EFFECT = {
    *("seed", "run.seed", "run.run_dir", "run.keep", "run.checkpoint_every", "run.quiet", "run.live", "run.overwrite"),
    *("world.devices", "world.exact"),
}


class Run(NamedTuple):
    """What a run folder says of how well the run went."""

    path: Path  # absolute
    seed: int | None  # None if config.json does not name it
    env_steps: np.ndarray  # [G], environment steps of the whole population so far
    best_fitness: np.ndarray  # [G], of the best finite member, or the score asked for; NaN where nothing was finite
    column: str = "best_fitness"  # of metrics.csv, that this is

    @property
    def diverged(self) -> bool:
        """Whether no member was finite in the last generation."""
        return not np.isfinite(self.best_fitness[-1])


class Group(NamedTuple):
    """Runs of one configuration.

    Attributes:
      label: kind, environment, and the settings in which the groups of this kind on this environment differ, by
        their flag where that says enough (`pbt-sac hopper, perturb=pb2`); unique among the groups.
      name: the same without the environment, for where all groups share it.
      environment: the task, with what else shapes it (`hopper, backend=mjx`); scores compare within it only.
      runs: in the order given.
      population: members of each run.
    """

    label: str
    name: str
    environment: str
    runs: tuple[Run, ...]
    population: str = "1"  # members, as the settings say


def groups(run_dirs: Iterable[str | Path], score: str | None = None) -> list[Group]:
    """Sort run folders by configuration, in the order in which the configurations first appear.

    Two runs belong together if their `config.json` agrees in all but the seed and what changes nothing of what is
    learned: folder, checkpoints kept, devices, output. A setting that is null, or an empty list, counts as absent. Runs
    started from Python say nothing of their program unless `run` was given a `record`: all those stand in one group.

    Args:
      run_dirs: a folder that is given twice counts once.
      score: the column of `metrics.csv` that says how good a run is; by default the fitness of its best elite if it has
        a repertoire, else of its best member.

    Raises:
      ValueError: no folder, a folder that is no run or whose files are damaged, a run without a finished generation, or
        one without the column.
    """
    paths = dict.fromkeys(Path(path).resolve() for path in run_dirs)
    if not paths:
        raise ValueError("there is no run to compare; give the folders of at least one.")
    sorted_runs: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for path in paths:
        everything = _told(_open(path))
        key = tuple(sorted((name, _text(value)) for name, value in everything.items() if name not in _WITHOUT_EFFECT))
        run = _read(path, everything.get("run.seed", everything.get("seed")), score)
        sorted_runs.setdefault(key, []).append(run)
    configurations = [dict(key) for key in sorted_runs]
    return [
        _group(settings, configurations, runs)
        for settings, runs in zip(configurations, sorted_runs.values(), strict=True)
    ]


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


def _open(path: Path) -> dict[str, Any]:
    """A run's settings; a schedule that it replays is told by its numbers, in short, and not by where it came from."""
    config = {name: value for name, value in open_run(path).config.items() if name != DESCRIPTOR}
    if SCHEDULE in config:
        digest = hashlib.sha256(json.dumps(config[SCHEDULE], sort_keys=True).encode()).hexdigest()
        config |= {SCHEDULE: digest[:6], "replay_schedule": None}
    return config


def _read(path: Path, seed: int | None, score: str | None) -> Run:
    try:
        metrics = read_csv(path / "metrics.csv")
    except FileNotFoundError:
        metrics = {}
    if not metrics or not len(metrics["generation"]):
        raise ValueError(f"{path} has no finished generation to compare.")
    column = score or ("max_fitness" if "max_fitness" in metrics else "best_fitness")
    for name in ("env_steps", column):
        if name not in metrics:
            near = difflib.get_close_matches(name, metrics, cutoff=0.5) or list(metrics)
            raise ValueError(f"{path} cannot be compared: its metrics.csv has no column {name}, but {', '.join(near)}.")
    values = np.where(np.isfinite(metrics[column]), metrics[column], np.nan)
    return Run(path, seed, metrics["env_steps"], values, column)


def _told(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings as `run.generations`; without those that are null or an empty list."""
    return {name: value for name, value in flat(config).items() if value is not None and value != []}


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
