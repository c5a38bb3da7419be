"""Comparison section of a report of several runs: one comparison per environment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.report.compare import compare
from rookery.report.compare_records import Comparison, Row
from rookery.report.figures import comparison
from rookery.report.groups import Run
from rookery.report.packing import packed
from rookery.report.statistics import Estimate


def comparison_chapter(run_dirs: Sequence[Path], resamples: int = 2000) -> dict[str, Any]:
    """Compare groups of runs, as JSON values; the runs of a group differ only in their seeds.

    For runs that cannot be compared the section has a note with the reason, and no environments.
    """
    try:
        found = compare(run_dirs, resamples=resamples)
    except ValueError as error:
        return {"environments": [], "notes": [str(error)]}
    several = ["the runs are of several environments, whose scores are not comparable: each is drawn separately."]
    return {
        "environments": [_environment(found, name) for name in found.settings],
        "notes": [*(several if len(found.settings) > 1 else []), *found.notes],
    }


def _environment(found: Comparison, name: str) -> dict[str, Any]:
    setting = found.settings[name]
    rows = [row for row in found.rows if row.group.environment == name]
    pairs = [pair for pair in found.pairs if pair.first.environment == name]
    return {
        "name": name,
        "budget": setting.budget,
        "score": setting.score,
        "groups": [_group(row, setting.floor) for row in rows],
        "pairs": [
            {"first": pair.first.name, "second": pair.second.name, "clear": pair.is_clear, **_json(pair.probability)}
            for pair in pairs
        ],
    }


def _group(row: Row, floor: float) -> dict[str, Any]:
    steps, fitness = comparison.curve(row.group.runs, floor)
    curve = {name: packed(np.asarray(values, float)) for name, values in fitness._asdict().items()}
    scores = {"runs": _names(row.group.runs), "scores": row.scores.tolist(), "diverged": row.diverged}
    scores |= {"chosen": row.chosen}
    aggregates = {"iqm": row.interquartile_mean, "median": row.median, "mean": row.mean, "gap": row.optimality_gap}
    estimates = {name: _json(estimate) for name, estimate in aggregates.items()}
    return {"name": row.group.name, **scores, **estimates, "steps": packed(steps, precise=True), "curve": curve}


def _names(runs: Sequence[Run]) -> list[str]:
    """Names of the runs' folders, with the index of the member for folders of several runs."""
    folders = [run.path for run in runs]
    return [run.path.name if folders.count(run.path) == 1 else f"{run.path.name}:{run.member}" for run in runs]


def _json(estimate: Estimate) -> dict[str, float]:
    return {name: float(value) for name, value in estimate._asdict().items()}
