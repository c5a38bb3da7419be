"""Sentences that a reader of a comparison's numbers must know."""

from collections.abc import Iterable, Mapping, Sequence

from rookery.report.compare_records import Row, Setting
from rookery.report.figures.style import counted, significant
from rookery.report.groups import Group, Run

MIXED = "best fitness"
"""The score of runs some of which have a repertoire."""
_MOST_NAMES = 3


def notes(rows: Sequence[Row], settings: Mapping[str, Setting]) -> list[str]:
    """All notes on a comparison: on each environment, on how runs are scored, on each group."""
    found = []
    for environment, setting in settings.items():
        groups = [row.group for row in rows if row.group.environment == environment]
        found += [*_on_budgets(environment, setting, groups), *_on_populations(environment, setting, groups)]
    found += _on_scores([row.group for row in rows], any(setting.fresh for setting in settings.values()))
    for row in rows:
        found += _on_group(row, settings[row.group.environment])
    return found


def _on_budgets(environment: str, setting: Setting, groups: Sequence[Group]) -> list[str]:
    found = []
    budgets = "; ".join(f"{group.name}: {_budget(group)}" for group in groups)
    if setting.unequal and setting.fresh:
        found.append(
            f"the checkpoints on {environment} are of unequal environment steps ({budgets}): fresh episodes say what "
            "these checkpoints are worth, and not which group needs fewer steps."
        )
    elif setting.unequal:
        found.append(
            f"the runs on {environment} had unequal budgets of environment steps ({budgets}), so each is scored at "
            f"its last generation within {setting.budget:,.0f} steps, the most that all of them reached."
        )
    if setting.score == MIXED:
        found.append(
            f"on {environment} runs with a repertoire are scored by the best elite that they ever stored, the "
            "others by their best member of a generation; and what judging took is not among the steps, which is "
            "more where variations are judged as well."
        )
    return found


def _on_populations(environment: str, setting: Setting, groups: Sequence[Group]) -> list[str]:
    sizes = {group.population for group in groups}
    if len(sizes) < 2:
        return []
    luck = "" if setting.fresh else ", and the best of many evaluations looks better than the best of few"
    return [
        f"the populations on {environment} differ in size ({', '.join(sorted(sizes, key=float))}): equal steps of a "
        f"population are unequal steps of a member{luck}."
    ]


def _on_scores(groups: Sequence[Group], fresh: bool) -> list[str]:
    """What a selected score hides, and which scores are not of single members."""
    found = []
    selected = [group.label for group in groups if group.selected]
    if selected and not fresh:
        names = "; ".join(selected) if len(selected) <= _MOST_NAMES else counted(len(selected), "group")
        found.append(
            f"a score of {names} is the highest of several noisy evaluations, which is optimistic; `rookery compare "
            "RUN ... --fresh 100` evaluates the selected member or elite on 100 fresh episodes and compares that."
        )
    whole = [group for group in groups if group.independent and group.population != "1"]
    if whole:
        columns = ", ".join(sorted({run.column for group in whole for run in group.runs}))
        found.append(
            f"{columns} describes all members of a folder together, so that a folder of independent members counts as "
            "one run here; without --score each member is a run."
        )
    return found


def _on_group(row: Row, setting: Setting) -> list[str]:
    found = []
    label, runs = row.group.label, row.group.runs
    if row.diverged:
        found.append(
            f"{row.diverged} of {counted(len(runs), 'run')} of {label} diverged; that counts as the worst fitness that "
            f"any run had on {row.group.environment}: {significant(setting.floor)}."
        )
    if repeated := _repeated(runs):
        found.append(
            f"several runs of {label} have the seed {', '.join(map(str, repeated))}: they are no independent "
            "runs, and the intervals are too narrow."
        )
    if None in [run.seed for run in runs] and len({run.path for run in runs}) > 1:
        found.append(
            f"config.json of {label} names no seed, and perhaps no settings: its {len(runs)} runs count as "
            "independent runs of one configuration; `run(..., record=...)` can tell them apart."
        )
    return found


def _repeated(runs: Iterable[Run]) -> list[int]:
    """Seeds of which there is more than one run; members of one folder have one seed and are independent."""
    drawn = [(run.seed, run.member) for run in runs if run.seed is not None]
    return sorted({seed for seed, member in drawn if drawn.count((seed, member)) > 1})


def _budget(group: Group) -> str:
    ends = sorted({run.end.env_steps for run in group.runs if not run.diverged})
    if not ends:
        return "diverged"
    return f"{ends[0]:,.0f}" if len(ends) == 1 else f"{ends[0]:,.0f} to {ends[-1]:,.0f}"
