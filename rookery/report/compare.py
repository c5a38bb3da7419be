"""`rookery compare`: compare groups of runs by aggregate scores, with confidence intervals.

The score of a run is the fitness of its best finite member, the one that would be deployed. Independent members
(`--seeds 8`) are separate runs, each with its fitness and its environment steps; those of one folder share the start
states of their evaluations. Within an environment every run is scored at the same budget of environment steps: the
largest that all of them reached. The highest of several noisy evaluations is optimistic; the selected members and
elites can be scored on fresh episodes instead.
"""

import itertools
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich import box, console
from rich.table import Table
from rich.text import Text

from rookery.report.compare_notes import MIXED, notes
from rookery.report.compare_records import TOO_FEW, Comparison, Pair, Row, Setting, ranked
from rookery.report.figures.comparison import MOST_PAIRS, check_format, draw_comparison
from rookery.report.formatting import significant, steps_text
from rookery.report.readers import RunRecord, open_run
from rookery.report.run_groups import Group, group_runs
from rookery.report.runs import Fresh, Run, Score, worst_fitness
from rookery.report.statistics import (
    MOST_RESAMPLES,
    Estimate,
    estimate,
    interquartile_mean,
    mean,
    median_run,
    optimality_gap,
    probability_of_improvement,
)
from rookery.settings import SettingError, Within, check_counts, check_numbers

__all__ = ["Comparison", "Fresh", "Pair", "Row", "Setting", "compare", "group_runs", "tables"]

_NO_INTERVAL = "1 run, no interval"


def compare(
    run_dirs: str | Path | Iterable[str | Path | RunRecord],
    picture: str | Path | None = None,
    resamples: int = 5000,
    gamma: float | None = None,
    score: str | None = None,
    fresh: Fresh | None = None,
    metric: str | None = None,
) -> Comparison:
    """Compare runs: group them by configuration, and compare the groups within each environment.

    Scores are taken at the common budget of an environment: at each run's last generation within the number of
    environment steps that every run of the comparison reached there. A run all of whose members diverged stays in the
    comparison and does not limit the budget; it is scored with the worst fitness that any run of the comparison ever
    had on its environment.

    Args:
      run_dirs: a run directory, or several, of which duplicates are dropped, or their records.
      picture: file to draw the comparison to; None for no figure.
      resamples: number of bootstrap resamples, at least 1.
      gamma: target fitness of the optimality gap; by default the best score on each environment.
      score: a column of `metrics.csv` instead of the best fitness, e.g. `qd_score` or `coverage`; a folder of
        independent members then counts as one run, since the column describes all of them.
      fresh: score each run on fresh episodes of one checkpoint, regardless of its environment steps, instead of by the
        evaluations recorded in training at the common budget.
      metric: a measure of the task, or "return", in place of the fitness of the same members; runs of different
        objectives are compared by it.

    Returns:
      The comparison. Intervals are 95 % stratified bootstrap intervals, and NaN for a group of one run.

    Raises:
      ValueError: `group_runs` raises it; every run of an environment diverged; a run has no generation within the
        common budget; `resamples` is below 1, or `gamma` not finite; the figure cannot be written, or not in its
        format; both `score` and `fresh` are given; or a run cannot be evaluated.
      CheckpointError: with `fresh`, a run has no complete checkpoint.
      ImportError: with `fresh`, the package of a run's environment is not installed.
    """
    check_counts(1, MOST_RESAMPLES, resamples=resamples)  # before runs are evaluated
    if score is not None and fresh is not None:
        raise SettingError("score", score, "has no effect with {fresh}, which gives a fitness", "leave one of them out")
    if score is not None and metric is not None:
        raise SettingError("score", score, "is a column, and {metric} a measure of members", "give one of them")
    if gamma is not None:
        check_numbers(Within(), gamma=gamma)
    if picture is not None:
        check_format(picture)
    found = group_runs(run_dirs, score, None if fresh else metric, across_objectives=metric is not None)
    if fresh is not None:
        found = _evaluated(found, fresh, metric)
        found = found if metric is None else [_with_curves(group, metric) for group in found]
    settings = {}
    for environment in dict.fromkeys(group.environment for group in found):
        runs = [run for group in found if group.environment == environment for run in group.runs]
        settings[environment] = _setting(environment, runs, gamma, fresh, metric)
    rows = [_row(group, settings[group.environment], resamples) for group in found]
    better = partial(estimate, probability_of_improvement, resamples=resamples)
    pairs = [
        Pair(first.group, second.group, better(first.scores, second.scores).item())
        for first, second in itertools.combinations(ranked(rows), 2)
        if first.group.environment == second.group.environment
    ]
    comparison = Comparison(found, settings, rows, pairs, notes(rows, settings), None)
    if picture is None:
        return comparison
    return comparison._replace(picture=draw_comparison(comparison, picture))


def _evaluated(groups: Sequence[Group], fresh: Fresh, metric: str | None) -> list[Group]:
    if fresh.episodes < 1:
        raise ValueError(f"fresh must be at least 1 episode, got {fresh.episodes}.")
    results = fresh.evaluate(list(dict.fromkeys(run.path for group in groups for run in group.runs)), metric)

    def scored(run: Run) -> Run:
        generation, fitness = results[run.path]
        # Every generation makes equally many steps, also those whose rows are lost.
        env_steps = run.env_steps[-1] / len(run.env_steps) * generation
        return run._replace(fresh=Score(float(env_steps), float(fitness[run.member or 0])))

    return [group._replace(runs=tuple(map(scored, group.runs))) for group in groups]


def _with_curves(group: Group, metric: str) -> Group:
    """A group that is scored on fresh episodes, with the curves of the same measure; NaN where a run records none."""

    def curves(path: Path, per_member: bool) -> Sequence[Run]:
        try:
            return open_run(path).measured(metric, per_member)
        except ValueError:
            return ()

    runs = []
    for path, given in itertools.groupby(group.runs, key=lambda run: run.path):
        scored = list(given)
        unknown = [run._replace(best_fitness=np.full(len(run.env_steps), np.nan)) for run in scored]
        recorded = curves(path, scored[0].member is not None) or unknown
        runs += [by._replace(fresh=run.fresh) for run, by in zip(scored, recorded, strict=True)]
    return group._replace(runs=tuple(runs))


def tables(comparison: Comparison) -> list[console.RenderableType]:
    """The printed output, in order: per environment a table of groups and one of pairs; then the notes."""
    parts: list[console.RenderableType] = []
    for environment, setting in comparison.settings.items():
        rows, pairs = ranked(comparison.rows_on(environment)), comparison.pairs_on(environment)
        parts.append(_groups_table(environment, setting, rows))
        parts += [_pairs_table(environment, rows, pairs)] if pairs else []
    parts += [Text(f"note: {note}") for note in comparison.notes]
    return parts


def _setting(
    environment: str, runs: Sequence[Run], gamma: float | None, fresh: Fresh | None, metric: str | None
) -> Setting:
    """Budget, target score and worst score on an environment; with fresh episodes the budget is the longest run's."""
    ends = {run.end.env_steps: run for run in runs if not run.diverged}
    if not ends:
        raise ValueError(f"every run on {environment} diverged, so there is nothing to compare.")
    budget = min(ends) if fresh is None else max(ends)
    for run in runs if fresh is None else ():
        if run.env_steps[0] > budget:
            raise ValueError(
                f"{run.path} cannot be compared at an equal budget: its first generation ends at "
                f"{run.env_steps[0]:,.0f} environment steps, and {ends[budget].path} stopped at {budget:,.0f}; "
                "continue that run, or compare the last checkpoints of both with --fresh 100."
            )
    floor = np.nanmin([worst_fitness(runs), *(run.fresh.fitness for run in runs if run.fresh is not None)])
    scores = [_score(run, budget, float(floor)) for run in runs]
    label = _label({run.column for run in runs}) if metric is None else f"mean {metric}"
    gamma = max(scores) if gamma is None else gamma
    return Setting(budget, gamma, float(floor), len(ends) > 1, label, fresh.episodes if fresh else 0)


def _label(columns: set[str]) -> str:
    if len(columns) == 1:
        return _SCORES.get(next(iter(columns)), next(iter(columns)))
    return "fitness, in a population its best member's" if columns == {"fitness", "best_fitness"} else MIXED


_SCORES = {"best_fitness": "best member's fitness", "max_fitness": "best elite's fitness"}


def _score(run: Run, budget: float, floor: float) -> float:
    fitness = run.score(budget).fitness
    return fitness if np.isfinite(fitness) else floor


def _row(group: Group, setting: Setting, resamples: int) -> Row:
    budget, gamma, floor = setting.budget, setting.gamma, setting.floor
    scores = np.asarray([_score(run, budget, floor) for run in group.runs])
    diverged = sum(not np.isfinite(run.score(budget).fitness) for run in group.runs)
    gap = partial(optimality_gap, gamma=gamma)
    aggregates = (
        estimate(statistic, scores, resamples=resamples).item()
        for statistic in (interquartile_mean, median_run, mean, gap)
    )
    env_steps = max(run.score(budget).env_steps for run in group.runs)
    return Row(group, env_steps, scores, diverged, *aggregates)


def _groups_table(environment: str, setting: Setting, rows: Sequence[Row]) -> Table:
    caption = f"{setting.score}, 95 % bootstrap intervals; optimality gap to {significant(setting.gamma)}"
    where = f"over {setting.fresh} fresh episodes" if setting.fresh else f"at {setting.budget:,.0f} environment steps"
    out = _new_table(f"{environment} {where}", caption)
    out.add_column("", justify="right")
    out.add_column("group", overflow="fold")
    for name in ("runs", "steps", "IQM", "median", "mean", "gap"):
        out.add_column(name, justify="right")
    for place, row in enumerate(rows, start=1):
        remarks = [row.chosen] if row.chosen else []
        remarks += [f"{row.diverged} diverged"] if row.diverged else []
        remarks += [_NO_INTERVAL] if len(row.scores) == 1 else []
        name = "\n".join([row.group.name, *remarks])
        cells = [_cell(part) for part in (row.interquartile_mean, row.median, row.mean, row.optimality_gap)]
        steps = steps_text(row.env_steps)
        out.add_row(str(place), Text(name), str(len(row.scores)), steps, *cells)
    return out


def _pairs_table(environment: str, rows: Sequence[Row], pairs: Sequence[Pair]) -> Table:
    """A row per pair; groups are named by their ranks in the other table, followed by their names if pairs are few."""
    names = {row.group.label: f"{place} {row.group.name}" for place, row in enumerate(rows, start=1)}
    if len(pairs) > MOST_PAIRS:
        names = {label: name.partition(" ")[0] for label, name in names.items()}
    caption = "* the interval excludes 0.5, with enough runs" if any(pair.is_clear for pair in pairs) else None
    out = _new_table(f"{environment}: probability that a run of X is better than one of Y", caption)
    out.add_column("X", overflow="fold")
    out.add_column("Y", overflow="fold")
    out.add_column("P(X > Y)", justify="right", no_wrap=True)
    out.add_column("95 % interval", no_wrap=True)
    for pair in pairs:
        value, low, high = pair.probability
        interval = f"{low:.2f} to {high:.2f}{' *' * pair.is_clear}" if pair.has_enough_runs else TOO_FEW
        first, second = (Text(names[group.label]) for group in (pair.first, pair.second))
        out.add_row(first, second, f"{value:.2f}", interval)
    return out


def _new_table(title: str, caption: str | None) -> Table:
    out = Table(title=Text(title), caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    out.title_justify = out.caption_justify = "left"
    return out


def _cell(value: Estimate[float]) -> str:
    interval = f"\n{significant(value.low)} to {significant(value.high)}" if value.has_interval else ""
    return significant(value.value) + interval
