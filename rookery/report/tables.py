"""What a command prints at its end: the best, median and worst member, and where everything lies."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from rookery.distributed.device_memory import size
from rookery.report.figures import style
from rookery.report.groups import Run, independent_runs, worst_fitness
from rookery.report.statistics import over_runs, summarize
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import open_existing
from rookery.training.memory_plan import WORKING, Plan


def summary(run_dir: str | Path) -> Table:
    """The last generation of a run: best, median and worst member with the hyper-parameters they trained with; of
    independent members their interquartile mean and its interval."""
    folder = open_existing(run_dir)
    lineage = read_csv(folder.lineage_file)
    last = lineage["generation"] == lineage["generation"].max()
    columns = {name: values[last] for name, values in lineage.items() if name not in ("generation", "parent")}
    if runs := independent_runs(folder):
        return _seeds_summary(runs, columns)
    fitness = columns["fitness"]
    order = np.argsort(-np.nan_to_num(fitness, nan=-np.inf), kind="stable")
    chosen = {"best": order[0], "median": order[(len(order) - 1) // 2], "worst": order[-1]}
    if len(order) == 1:
        chosen = {"only member": order[0]}
    table = Table(title=f"generation {int(lineage['generation'].max()) + 1}", title_justify="left")
    table.add_column("")
    for label in chosen:
        table.add_column(label, justify="right")
    for name, values in columns.items():
        table.add_row(name, *(_number(values[index]) for index in chosen.values()))
    return table


def _seeds_summary(runs: Sequence[Run], columns: Mapping[str, np.ndarray]) -> Table:
    """The last generation of independent members, whose hyper-parameters are alike."""
    table = Table(title=f"generation {len(runs[0].env_steps)}", title_justify="left")
    table.add_column("")
    table.add_column(style.counted(len(runs), "independent member"), justify="right")
    for name, text in seeds_rows([run.end.fitness for run in runs], worst_fitness(runs)).items():
        table.add_row(name, text)
    for name, values in columns.items():
        if name not in ("member", "fitness"):
            table.add_row(name, _number(values[0]))
    return table


def seeds_rows(fitness: npt.ArrayLike, floor: float | None = None) -> dict[str, str]:
    """The fitness of independent members `[P]` in words: label -> number; the best of them is no score of any run.

    Args:
      fitness: of each member.
      floor: what one that diverged counts as; by default the least finite one.
    """
    fitness = np.asarray(fitness, np.float64)
    finite = fitness[np.isfinite(fitness)]
    told = {}
    if len(finite):
        middle = over_runs(fitness, floor)
        told["interquartile mean of the fitness"] = style.number(middle.value)
        told["95 % interval"] = f"{style.number(middle.low)} to {style.number(middle.high)}"
        told["median"] = style.number(float(np.median(finite)))
        told["lowest to highest"] = f"{style.number(finite.min())} to {style.number(finite.max())}"
    return told | ({"diverged": str(len(fitness) - len(finite))} if len(finite) < len(fitness) else {})


def repertoire_summary(run_dir: str | Path) -> Table:
    """How full the repertoire was after the first and after the last generation of a run, and how good."""
    metrics = read_csv(open_existing(run_dir).metrics_file)
    table = Table(title=f"repertoire after generation {int(metrics['generation'][-1]) + 1}", title_justify="left")
    for name in ("", "first", "last"):
        table.add_column(name, justify="right" if name else "left")
    for name, label in _REPERTOIRE.items():
        table.add_row(label, *(_number(metrics[name][row]) for row in (0, -1)))
    return table


_MANY = 7  # columns
_REPERTOIRE = {"coverage": "coverage, %", "qd_score": "QD score", "max_fitness": "best fitness"}


def repertoire_examination(metrics: Mapping[str, np.ndarray]) -> Table:
    """What a repertoire claims beside what its elites did on fresh start states."""
    episodes = metrics["returns"].shape[1]
    elites = int(np.sum(np.isfinite(metrics["stored_fitness"])))
    title = f"{style.counted(elites, 'elite')}, {style.counted(episodes, 'episode')} each"
    table = Table(title=title, title_justify="left")
    for name in ("", "stored", "corrected"):
        table.add_column(name, justify="right" if name else "left")
    for name, label in _REPERTOIRE.items():
        table.add_row(label, *(_number(metrics[f"{side}/{name}"]) for side in ("stored", "corrected")))
    return table


def examination(metrics: Mapping[str, np.ndarray]) -> Table:
    """Every member on fresh start states, best first: mean and spread of the return, episode length, descriptor.

    With skills also how well they are told apart. Where the fitness is not the mean return, it has a column of its own.
    """
    returns, fitness = metrics["returns"], metrics["fitness"]
    mean = returns.mean(axis=1)
    shown = [mean, returns.std(axis=1), returns.min(axis=1), returns.max(axis=1)]
    columns: dict[str, list[str]] = dict(zip(("mean return", "std", "min", "max"), _alike(*shown), strict=True))
    rounding = 1e-5 * np.abs(returns).max(axis=1)
    if not np.isclose(fitness, mean, rtol=1e-4, atol=rounding, equal_nan=True).all():
        columns = {"fitness": _alike(fitness)[0], **columns}
    if "accuracy" in metrics:
        columns |= _told_apart(metrics["accuracy"].mean(axis=1), metrics["diversity_return"].mean(axis=1))
    columns["length"] = [f"{value:.0f}" for value in metrics["lengths"].mean(axis=1)]
    if metrics["descriptor"].shape[1] > 0:
        columns["descriptor"] = _places(metrics["descriptor"])
    table = _examined(f"{style.counted(returns.shape[1], 'episode')} per member", ("member", *columns))
    for member in np.argsort(-np.nan_to_num(fitness, nan=-np.inf), kind="stable"):
        table.add_row(str(member), *(texts[member] for texts in columns.values()))
    return table


def examined_scores(metrics: Mapping[str, np.ndarray]) -> list[Table | str]:
    """What the members' fitnesses on fresh start states come to: of independent members their interquartile mean with
    its interval; of others which score is optimistic, since it was selected by what it is measured with."""
    if "stored_fitness" in metrics:
        return [
            "note: the stored best is the highest of many noisy evaluations, which is optimistic, and the corrected "
            "best, chosen by these episodes, still a little; `rookery compare RUN --fresh 100` evaluates the best "
            "elite alone."
        ]
    fitness = np.asarray(metrics["fitness"])
    if "best_member" not in metrics or len(fitness) < 2:
        return []
    if metrics["independent"]:
        table = Table(title=style.counted(len(fitness), "independent member"), title_justify="left", show_header=False)
        for name, text in seeds_rows(fitness).items():
            table.add_row(name, text)
        return [table]
    best = int(metrics["best_member"])
    return [
        f"note: the first row is the best of {len(fitness)} on these same episodes, which is optimistic; member {best} "
        "was the best in the run's own evaluation, and for it these episodes are fresh: "
        f"{style.number(float(fitness[best]))}."
    ]


def team_examination(metrics: Mapping[str, np.ndarray]) -> Table:
    """The agents of the best team on fresh start states, a row each: returns, and how episodes end for it; of several
    independent teams all of them.

    Args:
      metrics: `agents` `[I]`, names; `fitness` `[P]`; of each name, `return/<name>`, `final_reward/<name>`,
        `terminated/<name>` and `truncated/<name>`, `[P, N]`; `independent` `[]`, whether each team is a run by itself.
    """
    if metrics.get("independent") and len(metrics["fitness"]) > 1:
        return _teams_examination(metrics)
    team = int(np.argmax(np.nan_to_num(metrics["fitness"], nan=-np.inf)))
    names = [str(name) for name in metrics["agents"]]
    of = {what: np.stack([metrics[f"{what}/{name}"][team] for name in names]) for what in _ENDS}
    told = summarize(of["return"])
    kept = told.mean, told.deviation, told.minimum, told.median, told.maximum
    columns: dict[str, list[str]] = dict(zip(_RETURNS, _alike(*kept), strict=True))
    columns |= _endings(of)
    which = f", team {team}" if len(metrics["fitness"]) > 1 else ""
    return _agents_table(f"{style.counted(of['return'].shape[1], 'episode')} per agent{which}", names, columns)


def _teams_examination(metrics: Mapping[str, np.ndarray]) -> Table:
    """The agents of independent teams: the interquartile mean over teams of each one's mean return."""
    names = [str(name) for name in metrics["agents"]]
    teams, episodes = metrics[f"return/{names[0]}"].shape
    of = {what: np.stack([metrics[f"{what}/{name}"].ravel() for name in names]) for what in _ENDS}
    means = of["return"].reshape(len(names), teams, episodes).mean(axis=2)
    middle = over_runs(means)
    kept = middle.value, middle.low, middle.high, means.min(axis=1), means.max(axis=1)
    columns: dict[str, list[str]] = dict(zip(_MIDDLE, _alike(*kept), strict=True)) | _endings(of)
    title = f"{teams} independent teams, {style.counted(episodes, 'episode')} per agent, 95 % intervals"
    return _agents_table(title, names, columns)


def _endings(of: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    """Columns of how the episodes of each agent `[I, N]` end."""
    columns = {"final reward": _alike(of["final_reward"].mean(axis=1))[0]}
    for what in ("terminated", "truncated"):
        columns[what] = [f"{100 * share:.0f} %" for share in of[what].mean(axis=1)]
    return columns


def _agents_table(title: str, names: Sequence[str], columns: Mapping[str, Sequence[str]]) -> Table:
    table = _examined(title, ("agent", *columns))
    for row, name in enumerate(names):
        table.add_row(name, *(texts[row] for texts in columns.values()))
    return table


_MIDDLE = ("IQM return", "interval low", "interval high", "lowest", "highest")
_RETURNS = ("mean return", "std", "min", "median", "max")
_ENDS = ("return", "final_reward", "terminated", "truncated")


def skill_examination(metrics: Mapping[str, np.ndarray], member: int = 0) -> Table:
    """The skills of one member on fresh start states: a row each, and the mean over all of them.

    Args:
      metrics: `skill` `[N]`, each episode's; of each member and episode `returns`, `diversity_return` in nats,
        `accuracy` in [0, 1] and `lengths` in steps, `[P, N]`, and `descriptors` `[P, N, D]`; D may be 0.
      member: whose.
    """
    skills, place, episodes = np.unique(metrics["skill"], return_inverse=True, return_counts=True)
    names = ("returns", "diversity_return", "accuracy", "lengths", "descriptors")
    each = {name: [metrics[name][member][place == row].mean(axis=0) for row in range(len(skills))] for name in names}
    of = {name: np.stack([*rows, np.mean(rows, axis=0)]) for name, rows in each.items()}
    columns = {"true return": _alike(of["returns"])[0], **_told_apart(of["accuracy"], of["diversity_return"])}
    columns["length"] = [f"{value:.0f}" for value in of["lengths"]]
    if of["descriptors"].shape[1] > 0:
        columns["mean descriptor"] = _places(of["descriptors"])
    least, most = int(episodes.min()), int(episodes.max())
    title = f"{style.counted(least, 'episode') if least == most else f'{least} to {most} episodes'} per skill"
    title += f", member {member}" if len(metrics["returns"]) > 1 else ""
    table = _examined(title, ("skill", *columns))
    for row, label in enumerate([*map(str, skills), "mean"]):
        table.add_row(label, *(texts[row] for texts in columns.values()), end_section=row == len(skills) - 1)
    return table


def _examined(title: str, names: Sequence[str]) -> Table:
    """An empty table; with many columns a dense one, so that 80 characters are enough for ten of them."""
    dense = len(names) > _MANY
    looks = {"box": box.SIMPLE_HEAD, "padding": 0, "show_edge": False} if dense else {}
    table = Table(title=title, title_justify="left", **looks)
    for name in names:
        table.add_column(name.replace(" ", "\n") if dense else name, justify="right")
    return table


def _told_apart(accuracy: np.ndarray, diversity_return: np.ndarray) -> dict[str, list[str]]:
    """Columns of what a discriminator says."""
    return {"accuracy": [f"{value:.3f}" for value in accuracy], "diversity return": _alike(diversity_return)[0]}


def _alike(*columns: np.ndarray) -> list[list[str]]:
    """Columns of numbers with equally many decimals: one to four, until the greatest has three digits."""
    finite = np.abs(np.concatenate(columns))
    greatest = np.max(finite, where=np.isfinite(finite), initial=0.0)
    decimals = int(np.clip(2 - np.floor(np.log10(greatest)), 1, 4)) if greatest > 0 else 1
    return [[f"{value:.{decimals}f}" for value in column] for column in columns]


def _places(descriptors: np.ndarray) -> list[str]:
    """Rows of numbers that stand below each other."""
    texts = [[f"{value:.2f}" for value in row] for row in descriptors]
    width = max(len(text) for row in texts for text in row)
    return [" ".join(text.rjust(width) for text in row) for row in texts]


def tasks_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The registry's rows for a terminal; only the descriptor's column wraps."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("task", "suite", "obs", "act", "agents", "steps"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("task", "suite") else "right")
    table.add_column("descriptor (size, limits)", overflow="fold")
    table.add_column("QD offset", no_wrap=True, justify="right")
    table.add_column("extra", no_wrap=True)
    for row in rows:
        actions = f"{row['action_size']}{' discrete' if row['actions'] == 'discrete' else ''}"
        counts = (str(row[name] or "") for name in ("agents", "episode_length"))
        offset = "" if row["qd_offset"] is None else f"{row['qd_offset']:g}"
        start = (row["task"], row["suite"], str(row["observation_size"] or ""), actions)
        table.add_row(*start, *counts, _descriptor(row), offset, row["extra"] or "")
    return table


def plan_table(planned: Plan) -> Table:
    """What a run will hold on all its devices together and on one, part by part, and the most at once."""
    count = planned.sizes.devices
    table = Table(title="memory", title_justify="left")
    for name in ("", *(["all devices"] if count > 1 else []), "one device"):
        table.add_column(name, justify="right" if name else "left")

    def add(name: str, share: int | None, end_section: bool = False) -> None:
        told = ["?"] * len(table.columns) if share is None else [size(count * share), size(share)]
        table.add_row(name, *told[-len(table.columns) + 1 :], end_section=end_section)

    for part in planned.parts:
        add(part.name, part.share, end_section=part is planned.parts[-1])
    add("the state", planned.held)
    add("its copies, while it is saved", planned.copies * planned.held)
    add(WORKING, planned.working, end_section=True)
    add("the most at once", planned.peak)
    add("there is", planned.available)
    return table


def _descriptor(row: Mapping[str, Any]) -> str:
    if not row["descriptor"]:
        return ""
    bounds = dict.fromkeys(zip(row["descriptor_lower"], row["descriptor_upper"], strict=True))
    limits = " x ".join(f"[{lower:g}, {upper:g}]" for lower, upper in bounds)
    return f"{row['descriptor']} ({row['descriptor_size']}, {limits})"


def _number(value: np.ndarray) -> str:
    return str(value) if value.dtype.kind == "i" else f"{value:.4g}"
