"""Comparison section of a report of several runs: one comparison per environment."""

from collections.abc import Sequence
from pathlib import Path

from rookery.report.compare import compare
from rookery.report.compare_records import TOO_FEW, Comparison, Row
from rookery.report.page_json import JsonObject, packed, packed_fields
from rookery.report.readers import RunRecord
from rookery.report.runs import Run, curve


def comparison_chapter(runs: Sequence[Path | RunRecord], resamples: int = 2000) -> JsonObject:
    """Compare groups of runs, as JSON values; the runs of a group differ only in their seeds.

    For runs that cannot be compared the section has a note with the reason, and no environments.
    """
    try:
        found = compare(runs, resamples=resamples)
    except ValueError as error:
        return {"environments": [], "notes": [str(error)]}
    several = ["the runs are of several environments, whose scores are not comparable: each is drawn separately."]
    return {
        "environments": [_environment(found, name) for name in found.settings],
        "notes": [*(several if len({group.task for group in found.groups}) > 1 else []), *found.notes],
    }


def _environment(found: Comparison, name: str) -> JsonObject:
    setting = found.settings[name]
    return {
        "name": name,
        "budget": setting.budget,
        "score": setting.score,
        "names": list(dict.fromkeys(group.name for group in found.groups)),
        "groups": [_group(row, setting.floor) for row in found.rows_on(name)],
        "pairs": [
            {
                "first": pair.first.name,
                "second": pair.second.name,
                "clear": pair.is_clear,
                "few": "" if pair.has_enough_runs else TOO_FEW,
                **pair.probability._asdict(),
            }
            for pair in found.pairs_on(name)
        ],
    }


def _group(row: Row, floor: float) -> JsonObject:
    steps, fitness = curve(row.group.runs, floor)
    estimates = {"iqm": row.interquartile_mean, "median": row.median, "mean": row.mean, "gap": row.optimality_gap}
    return {
        "name": row.group.name,
        "runs": _names(row.group.runs),
        "scores": row.scores.tolist(),
        "diverged": row.diverged,
        "chosen": row.chosen,
        **{name: estimate._asdict() for name, estimate in estimates.items()},
        "steps": packed(steps, precise=True),
        "curve": packed_fields(fitness),
    }


def _names(runs: Sequence[Run]) -> list[str]:
    """Names of the runs' folders, with the index of the member for folders of several runs."""
    folders = [run.path for run in runs]
    return [run.path.name if folders.count(run.path) == 1 else f"{run.path.name}:{run.member}" for run in runs]
