"""Grouping of run directories by configuration: the runs of a group differ only in their seeds."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rookery.factories import is_reference
from rookery.report.formatting import Settings
from rookery.report.readers import RunRecord, open_run
from rookery.report.runs import Run
from rookery.settings import BEST
from rookery.storage.manifest import digest_of
from rookery.storage.record import (
    CHOICES,
    DEFAULTS,
    DESCRIPTOR,
    INDEPENDENT,
    KEYS,
    PROGRAM,
    PYTHON,
    SCALES,
    SCHEDULE,
    SKILL_METHODS,
    are_independent,
    kind_label,
    recorded_keys,
)
from rookery.storage.run_dir import user_path
from rookery.trees import flatten_mapping

# Settings without an effect on the results, or (`devices` without `exact`) only on their rounding.
_WITHOUT_EFFECT = {
    *("seed", "run.seed", "run.run_dir", "run.keep", "run.checkpoint_every", "run.quiet", "run.live", "run.overwrite"),
    *("environment.devices", "environment.exact"),
}
_PRECISION, _FITNESS_FROM = "environment.precision", "learner.fitness_from"
_NO_SETTINGS = (CHOICES, DEFAULTS, DESCRIPTOR, INDEPENDENT, KEYS, SCALES)
# What the fitness measures.
_MEASURES = {
    "learner.objective",
    "evaluation.objective",
    "learner.fitness",
    *(f"{name}.fitness" for name in SKILL_METHODS),
}
# Values that mean the same as the absence of the setting: older versions did not record it, or it changes the rounding.
_ABSENT = {
    _PRECISION: ("auto", "float32", "tf32"),
    _FITNESS_FROM: ("evaluation",),
    "environment.frame_stack": (1,),
    "agent.network": ("mlp",),
    "agent.critics": (2,),
    "islands.islands": (1,),
    "islands.migrate_every": (10,),
    "islands.migrate_fraction": (0.25,),
}


class Group(NamedTuple):
    """Runs of one configuration."""

    label: str
    """Kind, environment, and the settings in which the groups of this kind on this environment differ, named by their
    flags where these are unambiguous (`pbt-sac hopper, perturb=pb2`); unique among the groups."""
    name: str
    """The label without the environment."""
    task: str
    """The task, with the settings that change it."""
    environment: str
    """The task, with the settings that change it (`hopper, backend=mjx`) and the measure that is the fitness, if it is
    not the return; scores are comparable within it only."""
    runs: tuple[Run, ...]
    """In the given order; each independent member of a folder is a run."""
    population: str = "1"
    """Size of the population whose best member is the score of a run, as text."""
    independent: bool = False
    """Whether the members of a folder are independent."""
    from_training: bool = False
    """Whether the fitness is that of training episodes."""
    from_python: bool = False
    """Whether the runs were started from Python, so that no fresh episodes can be run."""

    @property
    def selected(self) -> bool:
        """Whether a run's score is the highest of several evaluations."""
        columns = {run.column for run in self.runs}
        is_best = any(column == "best_fitness" or column.startswith(BEST) for column in columns)
        return "max_fitness" in columns or (is_best and self.population != "1")


def group_runs(
    runs: str | Path | Iterable[str | Path | RunRecord],
    score: str | None = None,
    metric: str | None = None,
    across_objectives: bool = False,
) -> list[Group]:
    """Group runs by configuration, in the order in which the configurations first appear.

    Two runs are in one group if their `config.json` agree except for the seed and for settings without an effect on
    the results: folder, stored checkpoints, devices, output. A setting that is null or an empty list counts as absent.
    Runs started from Python record the settings of the parts that this library makes; a program that is written from
    scratch records them by `Program.settings`.

    Each independent member of a folder (`--seeds 8`) is a run, whose environment steps are its share of the folder's;
    the number of members then does not distinguish groups.

    Args:
      runs: a run directory, or several, of which duplicates are dropped, or their records.
      score: the column of `metrics.csv` that is the score of a run. By default the fitness: of the best elite for a run
        with a repertoire, of the member itself if it is independent, else of the best member. A column describes all
        members of a folder together, so with a column a folder of independent members counts as one run.
      metric: the measure of the task, or "return", that is the score of the same members in place of their fitness.
      across_objectives: whether runs whose fitness is another measure are on one environment.

    Raises:
      ValueError: no folder is given, a folder is not a run or has damaged files, or a run has no finished generation or
        lacks the column.
    """
    runs = [runs] if isinstance(runs, str | Path) else runs
    paths = {run.path if isinstance(run, RunRecord) else user_path(run).resolve(): run for run in runs}
    if not paths:
        raise ValueError("there is no run to compare; give the folders of at least one.")
    _check_exact(run if isinstance(run, RunRecord) else open_run(path) for path, run in paths.items())
    sorted_runs: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    independent = {}
    for path, run in paths.items():
        record = run if isinstance(run, RunRecord) else open_run(path)
        per_member = score is None and record.is_independent
        without_effect = _WITHOUT_EFFECT | {"population"} if per_member else _WITHOUT_EFFECT
        settings = _settings(record.config).items()
        key = tuple(sorted((name, _text(value)) for name, value in settings if name not in without_effect))
        if metric is not None:
            scored = record.measured(metric, per_member)
        else:
            scored = record.members if per_member else [record.learning_curve(score)]
        sorted_runs.setdefault(key, []).extend(scored)
        independent[key] = record.is_independent
    short = _short_names([dict(key) for key in sorted_runs])
    configurations = {key: {name: short.get(value, value) for name, value in key} for key in sorted_runs}
    return [
        _group(configurations[key], configurations.values(), runs, not across_objectives)._replace(
            independent=independent[key]
        )
        for key, runs in sorted_runs.items()
    ]


def _short_names(configurations: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Factories of environments and programs in a file -> file and function without the folders, if that names one."""
    found = {settings.get(name, "") for settings in configurations for name in ("environment.env", "factory")}
    short = {name: Path(name).name for name in found if is_reference(name)}
    return {name: one for name, one in short.items() if [*short.values()].count(one) == 1}


def _check_exact(records: Iterable[RunRecord]) -> None:
    """Check that runs with `--exact`, which are compared bit by bit, had the same random keys."""
    exact = [record for record in records if flatten_mapping(record.config).get("environment.exact")]
    keys = {recorded_keys(record.config): record.path for record in exact}
    if len(keys) > 1:
        runs = " and ".join(f"{path} with {name}" for name, path in keys.items())
        raise ValueError(f"runs with --exact cannot be compared across implementations of random keys: {runs}.")


def _settings(config: Settings) -> dict[str, Any]:
    """A run's settings with dotted names, such as `run.generations`, without nulls and empty lists.

    A replayed schedule is represented by a digest of its values instead of its source.
    """
    settings = {name: value for name, value in config.items() if name not in _NO_SETTINGS}
    if SCHEDULE in config:
        settings |= {SCHEDULE: digest_of(config[SCHEDULE])[:6], "replay_schedule": None}
    if config.get("kind") in (PYTHON, PROGRAM):
        settings["kind"] = kind_label(config)
        if are_independent(config):  # no other setting may distinguish it from a population
            settings[INDEPENDENT] = True
    flat = flatten_mapping(settings)
    if isinstance(options := flat.get("environment.option"), list):
        del flat["environment.option"]
        for name, _, value in (str(word).partition("=") for word in options):
            short = f"environment.{name}"
            is_taken = short in flat or short in _ABSENT or short in _WITHOUT_EFFECT
            flat[f"environment.option.{name}" if is_taken else short] = value
    return {name: value for name, value in flat.items() if value not in (None, [], *_ABSENT.get(name, ()))}


def _group(
    settings: Mapping[str, str], configurations: Iterable[Mapping[str, str]], runs: Iterable[Run], by_fitness: bool
) -> Group:
    task, environment, others = _split(settings, by_fitness)
    kind = others.get("kind", "run")
    split = (_split(peer, by_fitness) for peer in configurations)
    peers = [peer for _, peer_environment, peer in split if peer_environment == environment]
    peers = [peer for peer in peers if peer.get("kind") == others.get("kind")]
    flags = [name.rpartition(".")[2] for name in set().union(*peers)]
    distinct = {}
    differing = [name for name, value in others.items() if any(peer.get(name) != value for peer in peers)]
    for name in _distinguishing_first(differing, peers):
        flag = name.rpartition(".")[2]
        distinct[flag if flags.count(flag) == 1 else name] = others[name]
    names = _join(f"{kind} {environment}", distinct), _join(kind, distinct)
    group = Group(*names, task, environment, tuple(runs), settings.get("population", "1"))
    from_training, from_python = settings.get(_FITNESS_FROM) == "training", kind.partition(" ")[0] == PYTHON
    return group._replace(from_training=from_training, from_python=from_python)


def _distinguishing_first(names: Sequence[str], peers: Sequence[Mapping[str, str]]) -> list[str]:
    """The names of settings in an order in which the first ones distinguish the peers, since pictures shorten labels.

    Of settings that distinguish as many, those whose values are words come first.
    """
    first: list[str] = []

    def distinguished(name: str) -> tuple[int, bool]:
        found = {tuple(peer.get(one) for one in (*first, name)) for peer in peers}
        return len(found), all(peer.get(name, "a").isalpha() for peer in peers)

    rest = list(names)
    while rest and (not first or distinguished(first[-1])[0] < len(peers)):
        first.append(max(rest, key=distinguished))
        rest.remove(first[-1])
    return [*first, *rest]


def _split(settings: Mapping[str, str], by_fitness: bool) -> tuple[str, str, dict[str, str]]:
    """The environment with its settings; the same and, if scores are fitnesses, the measure that the fitness is, across
    which scores are not comparable; and all other settings."""
    environment, measure, others = {}, {}, {}
    for name, value in settings.items():
        if name == "env" or (name.startswith("environment.") and name != _PRECISION):
            environment[name.removeprefix("environment.")] = value
        elif name not in _MEASURES or not by_fitness:
            others[name] = value
        elif value != "return":  # otherwise the fitness is that of a run without the setting
            measure[name.rpartition(".")[2]] = value
    task = _join(environment.pop("env", "an unnamed environment"), environment)
    return task, _join(task, measure), others


def _join(start: str, settings: Mapping[str, str]) -> str:
    return ", ".join([start, *(f"{name}={value}" for name, value in settings.items())])


def _text(value: object) -> str:
    """The text of a setting in a label; 1 and 1.0 are equal."""
    if isinstance(value, float):
        return f"{value:.12g}"
    return value if isinstance(value, str) else json.dumps(value)
