"""What a command prints at its end: the best, median and worst member, and where everything lies."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from rookery.runs.folder import open_existing
from rookery.runs.log import read_csv


def summary(run_dir: str | Path) -> Table:
    """The last generation of a run: best, median and worst member with the hyper-parameters they trained with."""
    lineage = read_csv(open_existing(run_dir).lineage_file)
    last = lineage["generation"] == lineage["generation"].max()
    columns = {name: values[last] for name, values in lineage.items() if name not in ("generation", "parent")}
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


def repertoire_summary(run_dir: str | Path) -> Table:
    """How full the repertoire was after the first and after the last generation of a run, and how good."""
    metrics = read_csv(open_existing(run_dir).metrics_file)
    table = Table(title=f"repertoire after generation {int(metrics['generation'][-1]) + 1}", title_justify="left")
    for name in ("", "first", "last"):
        table.add_column(name, justify="right" if name else "left")
    for name, label in _REPERTOIRE.items():
        table.add_row(label, *(_number(metrics[name][row]) for row in (0, -1)))
    return table


_REPERTOIRE = {"coverage": "coverage, %", "qd_score": "QD score", "max_fitness": "best fitness"}


def repertoire_examination(metrics: Mapping[str, np.ndarray]) -> Table:
    """What a repertoire claims beside what its elites did on fresh start states."""
    episodes = metrics["returns"].shape[1]
    elites = int(np.sum(np.isfinite(metrics["stored_fitness"])))
    title = f"{elites} elite{'s' * (elites != 1)}, {episodes} episode{'s' * (episodes != 1)} each"
    table = Table(title=title, title_justify="left")
    for name in ("", "stored", "corrected"):
        table.add_column(name, justify="right" if name else "left")
    for name, label in _REPERTOIRE.items():
        table.add_row(label, *(_number(metrics[f"{side}/{name}"]) for side in ("stored", "corrected")))
    return table


def examination(metrics: Mapping[str, np.ndarray]) -> Table:
    """Every member on fresh start states, best first: mean and spread of the return, episode length, descriptor."""
    table = Table(title=f"{metrics['returns'].shape[1]} episodes per member", title_justify="left")
    for name in ("member", "mean return", "std", "min", "max", "length"):
        table.add_column(name, justify="right")
    with_descriptor = metrics["descriptor"].shape[1] > 0
    if with_descriptor:
        table.add_column("descriptor", justify="right")
    for member in np.argsort(-np.nan_to_num(metrics["fitness"], nan=-np.inf), kind="stable"):
        returns = metrics["returns"][member]
        numbers = [metrics["fitness"][member], returns.std(), returns.min(), returns.max()]
        row = [str(member), *(f"{value:.1f}" for value in numbers), f"{metrics['lengths'][member].mean():.0f}"]
        if with_descriptor:
            row.append(" ".join(f"{value:.2f}" for value in metrics["descriptor"][member]))
        table.add_row(*row)
    return table


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


def _descriptor(row: Mapping[str, Any]) -> str:
    if not row["descriptor"]:
        return ""
    bounds = dict.fromkeys(zip(row["descriptor_lower"], row["descriptor_upper"], strict=True))
    limits = " x ".join(f"[{lower:g}, {upper:g}]" for lower, upper in bounds)
    return f"{row['descriptor']} ({row['descriptor_size']}, {limits})"


def _number(value: np.ndarray) -> str:
    return str(value) if value.dtype.kind == "i" else f"{value:.4g}"
