"""Notes on the limits of a comparison, printed with its numbers."""

from collections.abc import Iterable, Mapping, Sequence

from rookery.report.compare_records import Row, Setting
from rookery.report.formatting import counted, significant
from rookery.report.run_groups import Group
from rookery.report.runs import Run

MIXED = "best fitness"  # label of the score where only some of the runs have a repertoire
_MOST_NAMES = 3


def notes(rows: Sequence[Row], settings: Mapping[str, Setting]) -> list[str]:
    """All notes on a comparison: per environment, on the scores, and per group."""
    found = []
    for environment, setting in settings.items():
        groups = [row.group for row in rows if row.group.environment == environment]
        found += [*_on_budgets(environment, setting, groups), *_on_populations(environment, setting, groups)]
    found += _on_objectives([row.group for row in rows])
    found += _on_scores([row.group for row in rows], any(setting.fresh for setting in settings.values()))
    for row in rows:
        found += _on_group(row, settings[row.group.environment])
    return found


def _on_objectives(groups: Sequence[Group]) -> list[str]:
    """Notes on runs of a task that are not compared, since their fitness is not the same measure."""
    found = []
    for task in dict.fromkeys(group.task for group in groups):
        environments = list(dict.fromkeys(group.environment for group in groups if group.task == task))
        if len(environments) > 1:
            found.append(
                f"the runs on {' and on '.join(environments)} are not compared with each other, since their fitnesses "
                "are different measures; --metric return, or another measure that all have, compares them."
            )
    return found


def _on_budgets(environment: str, setting: Setting, groups: Sequence[Group]) -> list[str]:
    found = []
    budgets = "; ".join(f"{group.name}: {_budget(group)}" for group in groups)
    if setting.unequal and setting.fresh:
        found.append(
            f"the checkpoints on {environment} are of unequal environment steps ({budgets}): fresh episodes compare "
            "the performance of these checkpoints, not the sample efficiency of the groups."
        )
    elif setting.unequal:
        found.append(
            f"the runs on {environment} had unequal budgets of environment steps ({budgets}), so each is scored at "
            f"its last generation within {setting.budget:,.0f} steps, the largest number that all of them reached."
        )
    if setting.score == MIXED:
        found.append(
            f"on {environment} runs with a repertoire are scored by the best elite that they ever stored, the "
            "others by their best member of a generation. The environment steps exclude evaluations, of which there "
            "are more where variations are evaluated as well."
        )
    return found


def _on_populations(environment: str, setting: Setting, groups: Sequence[Group]) -> list[str]:
    sizes = {group.population for group in groups}
    if len(sizes) < 2:
        return []
    bias = "" if setting.fresh else ", and the maximum over more evaluations is more optimistic"
    return [
        f"the populations on {environment} differ in size ({', '.join(sorted(sizes, key=float))}): equal steps of a "
        f"population are unequal steps of a member{bias}."
    ]


def _on_scores(groups: Sequence[Group], fresh: bool) -> list[str]:
    """Notes on scores that are biased by selection, and on scores that do not belong to single members."""
    found, command = [], "; `rookery compare RUN ... --fresh 100`"
    of_selected = f"{command} evaluates the selected member or elite on 100 fresh episodes and compares that"
    of_policies = f"{command} compares the policies"
    if any(group.from_python for group in groups):
        of_selected = of_policies = ""
    selected = [group.label for group in groups if group.selected]
    if selected and not fresh:
        names = "; ".join(selected) if len(selected) <= _MOST_NAMES else counted(len(selected), "group")
        problem = f"a score of {names} is the highest of several noisy evaluations, which is optimistic"
        found.append(f"{problem}{of_selected}.")
    if not fresh and len({group.from_training for group in groups}) > 1:
        found.append(
            "some fitnesses are those of exploratory training episodes and others those of deterministic "
            f"evaluations{of_policies}."
        )
    aggregated = [group for group in groups if group.independent and group.population != "1"]
    if aggregated:
        columns = ", ".join(sorted({run.column for group in aggregated for run in group.runs}))
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
            f"{row.diverged} of {counted(len(runs), 'run')} of {label} diverged; a diverged run is scored with the "
            f"worst fitness that any run had on {row.group.environment}: {significant(setting.floor)}."
        )
    counts = " A run whose score is lost counts as diverged." if row.diverged else ""
    found += [f"{loss}{counts}" for loss in dict.fromkeys(loss for run in runs for loss in run.losses)]
    if repeated := _repeated(runs):
        found.append(
            f"several runs of {label} have the seed {', '.join(map(str, repeated))}: they are not independent "
            "runs, and the intervals are too narrow."
        )
    if None in [run.seed for run in runs] and len({run.path for run in runs}) > 1:
        found.append(
            f"config.json of {label} records no seed, and perhaps no settings: its {len(runs)} runs count as "
            "independent runs of one configuration; `run(..., record=...)` records settings that distinguish them."
        )
    return found


def _repeated(runs: Iterable[Run]) -> list[int]:
    """Seeds with more than one run; the members of one folder share a seed and are independent nevertheless."""
    drawn = [(run.seed, run.member) for run in runs if run.seed is not None]
    return sorted({seed for seed, member in drawn if drawn.count((seed, member)) > 1})


def _budget(group: Group) -> str:
    ends = sorted({run.end.env_steps for run in group.runs if not run.diverged})
    if not ends:
        return "diverged"
    return f"{ends[0]:,.0f}" if len(ends) == 1 else f"{ends[0]:,.0f} to {ends[-1]:,.0f}"
