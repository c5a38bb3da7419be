"""Sections of a report of one run, as JSON values: learning, population, skills, episodes; only read from its files."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rookery.deploy.episodes import Episodes, read_episodes
from rookery.experiments.lineage import Lineage, lineage
from rookery.report.figures import comparison
from rookery.report.figures.skills import read_trajectories, view_of
from rookery.report.groups import Run, independent_runs, worst_fitness
from rookery.report.packing import packed, rounded
from rookery.report.sections import summary
from rookery.report.sections.repertoire import repertoire_chapter
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import RunFolder

_AGENT = "return/"
_LONGEST = 400  # points of a trajectory in the page
_NEEDED = ("generation", "env_steps", "best_fitness", "median_fitness", "worst_fitness", "seconds", "steps_per_second")
_OF_REPERTOIRE = ("max_fitness", "qd_score")


def chapters(folder: RunFolder) -> dict[str, Any]:
    """All sections of a run; those that do not apply to the run are None.

    Raises:
      ValueError: no generation is finished yet, or a table is damaged.
    """
    metrics = read_metrics(folder)
    seeds = independent_runs(folder)
    family = lineage(folder.path, separate_roles=True) if folder.lineage_file.exists() else None
    has_teams = folder.config.get("member") != "agent"  # quartiles over agents of several roles are meaningless
    populations = [] if family is None else _populations(family, metrics, has_teams, bool(seeds))
    return {
        **summary.head(folder, metrics, seeds),
        "metrics": {name: packed(values, precise=True) for name, values in metrics.items()},
        "learning": _learning(folder, metrics, family if has_teams else None, seeds),
        "populations": populations,
        "repertoire": repertoire_chapter(folder),
        "skills": _skills(folder),
        "episodes": _episodes(folder),
    }


def read_metrics(folder: RunFolder) -> dict[str, np.ndarray]:
    """`metrics.csv`.

    Raises:
      ValueError: no generation is finished yet, or the table is damaged.
    """
    metrics = read_csv(folder.metrics_file) if folder.metrics_file.exists() else {}
    if not any(map(len, metrics.values())):
        raise ValueError(f"{folder.path} has no finished generation to report yet; wait for its first.")
    missing = [name for name in _NEEDED + _OF_REPERTOIRE * ("coverage" in metrics) if name not in metrics]
    if missing:
        raise ValueError(f"{folder.metrics_file} lacks the columns {', '.join(missing)}; put a copy of the file back.")
    return metrics


def _learning(
    folder: RunFolder, metrics: Mapping[str, np.ndarray], family: Lineage | None, seeds: Sequence[Run]
) -> dict[str, Any]:
    """Best, median and quartiles of each generation, by environment steps and by wall-clock time.

    For independent members, their interquartile mean with its interval instead, by the environment steps of each.
    """
    learning = {
        "env_steps": packed(metrics["env_steps"] / max(len(seeds), 1), precise=True),
        "seconds": packed(np.cumsum(summary.seconds(metrics)), precise=True),
        "seeds": _seeds(seeds),
        "best": None if seeds else packed(metrics["best_fitness"]),
        "elite": packed(metrics["max_fitness"]) if "max_fitness" in metrics else None,
        "agents": {name.removeprefix(_AGENT): name for name in metrics if name.startswith(_AGENT)},
        "label": _FITNESS.get(str(folder.config.get("diayn", {}).get("fitness")), "fitness"),
    }
    if seeds or family is None or family.fitness.shape[1] < 2:
        return learning
    finite = np.where(np.isfinite(family.fitness), family.fitness, np.nan)
    has_finite = np.isfinite(finite).any(axis=1)
    quartiles = np.full((3, len(finite)), np.nan)
    quartiles[:, has_finite] = np.nanquantile(finite[has_finite], [0.25, 0.5, 0.75], axis=1)
    names = ("lower", "median", "upper")
    return learning | {name: packed(values) for name, values in zip(names, quartiles, strict=True)}


def _seeds(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The interquartile mean of independent members with its 95 % interval, at the generations `points`."""
    floor = worst_fitness(runs)
    if not np.isfinite(floor):
        return None
    steps, fitness = comparison.curve(runs, floor)
    curve = {name: packed(np.asarray(values, float)) for name, values in fitness._asdict().items()}
    return {"count": len(runs), "points": np.searchsorted(runs[0].env_steps, steps).tolist(), **curve}


_FITNESS = {"accuracy": "discriminator accuracy", "diversity": "diversity return, nats", "return": "mean return"}


def _populations(
    family: Lineage, metrics: Mapping[str, np.ndarray], has_teams: bool, independent: bool
) -> list[dict[str, Any]]:
    """The population; or one per role, where I roles evolve separately: role i of slot p has index `p I + i`."""
    names = [name.removeprefix(_AGENT) for name in metrics if name.startswith(_AGENT)]
    if has_teams or not names:
        return [{"name": None, **_population(family, independent)}]
    count = len(names)
    populations = []
    for role, name in enumerate(names):
        of_role = family._replace(
            parents=family.parents[:, role::count] // count,
            fitness=family.fitness[:, role::count],
            hyper={hyper: values[:, role::count] for hyper, values in family.hyper.items()},
        )
        populations.append({"name": name, **_population(of_role)})
    return populations


def _population(family: Lineage, independent: bool = False) -> dict[str, Any]:
    """Fitness, parent and hyper-parameters of every member in every generation `[G, P]`, and `winner` `[G]`.

    `winner` are the ancestors of the best member; None for independent members.
    """
    parents = family.parents
    evolving = {name: values for name, values in family.hyper.items() if len(np.unique(values)) > 1}
    finite = np.isfinite(family.fitness[-1]).any()
    return {
        "fitness": packed(family.fitness),
        "parents": packed(parents),
        "descends": packed(family.has_descendants),
        "winner": packed(family.ancestors()) if finite and not independent else None,
        "hyper": {name: packed(values) for name, values in evolving.items()},
        "evolves": bool((parents[1:] != np.arange(parents.shape[1])).any()),
    }


def _skills(folder: RunFolder) -> dict[str, Any] | None:
    """Trajectories of each skill in descriptor space; `missing` states the reason where there are none."""
    if "skills" not in folder.config:
        return None
    try:
        trajectories, descriptor = read_trajectories(folder)
    except ValueError as error:
        return {"missing": str(error).replace(str(folder.path), folder.path.name)}
    view = view_of(trajectories, descriptor)
    names = descriptor.names[:2] if len(descriptor.names) > 1 else ["step", *descriptor.names]
    return {
        "trajectories": [
            {"skill": path.skill, "points": rounded(path.points[_thinned(len(path.points))])} for path in trajectories
        ],
        "names": [f"{name}, mean so far" if descriptor.kind == "mean" and name != "step" else name for name in names],
        "ends": view.ends.tolist(),
        "limits": None if view.limits is None else view.limits.tolist(),
        "equal": view.equal,
    }


def _thinned(length: int) -> np.ndarray:
    """Indices of at most `_LONGEST` of `length` points, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, length - 1, min(length, _LONGEST)).round().astype(int))


def _episodes(folder: RunFolder) -> dict[str, Any] | None:
    """The recorded episodes for the player; None where none were recorded."""
    recorded = read_episodes(folder.path)
    if recorded is None:
        return None
    names = ("kind", "scenery", "shapes", "names", "episodes", "generation", "seed")
    header = {name: recorded.header.get(name) for name in names}
    return header | {"secondsPerStep": recorded.header.get("seconds_per_step"), **_frames(recorded)}


def _frames(recorded: Episodes) -> dict[str, Any]:
    if "film" in recorded.arrays:
        film = base64.b64encode(recorded.arrays["film"].tobytes()).decode()
        return {"film": f"data:image/gif;base64,{film}", "arrays": {}}
    packers = {"position": rounded, "rotation": rounded, "heading": rounded}
    arrays = {name: packers.get(name, packed)(array) for name, array in recorded.arrays.items()}
    return {"film": None, "arrays": arrays}
