"""Sections of a report of one run, as JSON values: learning, population, skills, episodes; only read from its files."""

import base64
from collections.abc import Sequence

import numpy as np

from rookery.report.figures.skills import view_of
from rookery.report.formatting import (
    REPERTOIRE_METRICS,
    SKILL_METRICS,
    fitness_metric,
    individual,
    measure_labels,
    objective,
)
from rookery.report.page_json import JsonObject, packed, packed_fields, rounded
from rookery.report.readers import RunRecord
from rookery.report.runs import Run, curve, finite_or_nan, worst_fitness
from rookery.report.sections.islands import islands_chapter
from rookery.report.sections.repertoire import repertoire_chapter
from rookery.report.sections.summary import head, seconds
from rookery.settings import AGENT_RETURN
from rookery.storage.csv_log import check_columns
from rookery.storage.lineage import Lineage
from rookery.storage.played import Episodes
from rookery.storage.record import SCALES

_LONGEST = 400  # points of a trajectory in the page
_ROUNDED = {"position", "rotation", "heading"}  # arrays of episodes that are stored as int16
_NEEDED = ("generation", "env_steps", "best_fitness", "median_fitness", "worst_fitness", "seconds", "steps_per_second")
_OF_REPERTOIRE = ("max_fitness", "qd_score")


def chapters(record: RunRecord) -> JsonObject:
    """All sections of a run, None where they do not apply; a ValueError if no generation is finished yet, or a table is
    damaged."""
    check_metrics(record)
    return {
        **head(record),
        "metrics": {name: packed(values, precise=True) for name, values in record.metrics.items()},
        "islands": islands_chapter(record),
        "learning": _learning(record),
        "populations": _populations(record) if record.has_members else [],
        "repertoire": repertoire_chapter(record),
        "skills": _skills(record),
        "episodes": _episodes(record.episodes),
    }


def check_metrics(record: RunRecord) -> None:
    """Raise ValueError if no generation of a run is finished, or its table lacks a column that a page needs."""
    rated = (name.rpartition("/")[2] for name in record.metrics if name.startswith("league_rating/"))
    of_league = dict.fromkeys(f"league_entered/{entry}" for entry in rated)
    needed = (*_NEEDED, *_OF_REPERTOIRE * ("coverage" in record.metrics), *of_league)
    check_columns(record.folder.metrics_file, record.metrics, needed)


def _learning(record: RunRecord) -> JsonObject:
    """Best, median and quartiles of each generation, by environment steps and by wall-clock time.

    For independent members, their interquartile mean with its interval instead, by the environment steps of each.
    """
    metrics, seeds = record.metrics, record.seeds
    learning: JsonObject = {
        "env_steps": packed(metrics["env_steps"] / max(len(seeds), 1), precise=True),
        "seconds": packed(np.cumsum(seconds(metrics)), precise=True),
        "seeds": _seeds(seeds),
        "best": None if seeds else packed(metrics["best_fitness"]),
        "individual": individual(metrics),
        "elite": packed(metrics["max_fitness"]) if "max_fitness" in metrics else None,
        "agents": {name.removeprefix(AGENT_RETURN): name for name in metrics if name.startswith(AGENT_RETURN)},
        "panels": _panels(record),
        "label": objective(record.config) or SKILL_METRICS.get(fitness_metric(record.config) or "", "fitness"),
    }
    # Quartiles over agents of several roles are meaningless.
    if seeds or not record.has_members or _has_roles(record) or record.lineage.fitness.shape[1] < 2:
        return learning
    finite = finite_or_nan(record.lineage.fitness)
    has_finite = np.isfinite(finite).any(axis=1)
    quartiles = np.full((3, len(finite)), np.nan)
    quartiles[:, has_finite] = np.nanquantile(finite[has_finite], [0.25, 0.5, 0.75], axis=1)
    names = ("lower", "median", "upper")
    return learning | {name: packed(values) for name, values in zip(names, quartiles, strict=True)}


def _panels(record: RunRecord) -> list[list[str]]:
    """Columns of `metrics.csv` with a chart of their own, and the titles of the charts."""
    if sum(name.startswith(AGENT_RETURN) for name in record.metrics) > 1:
        fitness = {"median_fitness": "median fitness"} if record.seeds else {"best_fitness": "best fitness"}
        # Where roles evolve separately, the best of all agents is one of the role that wins.
        labels = {} if _has_roles(record) else {name: f"{label} of the teams" for name, label in fitness.items()}
        labels["episode_length"] = "steps of an episode"
    else:
        labels = REPERTOIRE_METRICS | SKILL_METRICS
        labels.pop(fitness_metric(record.config) or "", None)
    labels |= measure_labels(record.config, record.metrics, bool(record.seeds))
    return [[name, label[0].upper() + label[1:]] for name, label in labels.items() if name in record.metrics]


def _has_roles(record: RunRecord) -> bool:
    """Whether the roles of a team evolve separately, so that the members are agents."""
    return record.config.get("member") == "agent"


def _seeds(runs: Sequence[Run]) -> JsonObject | None:
    """The interquartile mean of independent members with its 95 % interval, at the generations `points`."""
    floor = worst_fitness(runs)
    if not np.isfinite(floor):
        return None
    steps, fitness = curve(runs, floor)
    points = np.searchsorted(runs[0].env_steps, steps).tolist()
    return {"count": len(runs), "points": points, **packed_fields(fitness)}


def _populations(record: RunRecord) -> list[JsonObject]:
    """The population; or one per role, where I roles evolve separately: role i of slot p has index `p I + i`."""
    own = {"outside": record.outside, "scales": record.config.get(SCALES, {}), "choices": record.lineage.choices}
    lineage, names = record.lineage, [name for name in record.metrics if name.startswith(AGENT_RETURN)]
    if not (_has_roles(record) and names):
        return [{"name": None, **own, **_population(lineage, bool(record.seeds))}]
    count = len(names)
    populations = []
    for role, name in enumerate(names):
        of_role = lineage._replace(
            parents=lineage.parents[:, role::count] // count,
            fitness=lineage.fitness[:, role::count],
            rating=None if lineage.rating is None else lineage.rating[:, role::count],
            hyper={hyper: values[:, role::count] for hyper, values in lineage.hyper.items()},
        )
        populations.append({"name": name.removeprefix(AGENT_RETURN), **own, **_population(of_role)})
    return populations


def _population(lineage: Lineage, independent: bool = False) -> JsonObject:
    """Fitness, parent and hyper-parameters of every member in every generation `[G, P]`, and `best` `[G]`.

    `label` is what `fitness` contains, which is the rating of members that are selected by it. `best` are the
    ancestors of the best member; None for independent members.
    """
    parents = lineage.parents
    finite = np.isfinite(lineage.selected_by[-1]).any()
    return {
        "label": "fitness" if lineage.rating is None else "rating",
        "fitness": packed(lineage.selected_by),
        "parents": packed(parents),
        "descends": packed(lineage.has_descendants),
        "best": packed(lineage.ancestors()) if finite and not independent else None,
        "hyper": {name: packed(values) for name, values in lineage.evolving.items()},
        "evolves": bool((parents[1:] != np.arange(parents.shape[1])).any()),
    }


def _skills(record: RunRecord) -> JsonObject | None:
    """Trajectories of each skill in descriptor space; `missing` states the reason where there are none."""
    if "skills" not in record.config:
        return None
    try:
        trajectories, descriptor = record.trajectories
    except ValueError as error:
        return {"missing": str(error).replace(str(record.path), record.path.name)}
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


def _episodes(recorded: Episodes | None) -> JsonObject | None:
    """The recorded episodes for the player; None where none were recorded."""
    if recorded is None:
        return None
    names = ("kind", "scenery", "shapes", "names", "episodes", "generation", "seed")
    header = {name: recorded.header.get(name) for name in names}
    if "film" in recorded.arrays:
        film = f"data:image/gif;base64,{base64.b64encode(recorded.arrays['film'].tobytes()).decode()}"
        arrays = {}
    else:
        film = None
        arrays = {name: (rounded if name in _ROUNDED else packed)(array) for name, array in recorded.arrays.items()}
    return header | {"secondsPerStep": recorded.header.get("seconds_per_step"), "film": film, "arrays": arrays}
