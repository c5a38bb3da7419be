"""`curves.png`: learning curves of all members, and the evolved hyper-parameters."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rookery.report.figures.style import (
    INK,
    PALETTE,
    QUIET,
    RANKS,
    colour_of,
    count_steps,
    count_whole,
    draw_estimate,
    new_figure,
    save_figure,
    tidy,
    title_axes,
)
from rookery.report.formatting import (
    REPERTOIRE_METRICS,
    SKILL_METRICS,
    fitness_label,
    fitness_metric,
    headline,
    individual,
    measure_labels,
)
from rookery.report.readers import RunRecord, Table, open_run
from rookery.report.runs import Run, curve, ranking_fitness, worst_fitness
from rookery.settings import AGENT_RETURN
from rookery.storage.lineage import Lineage
from rookery.storage.record import SCALES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPERTOIRE = REPERTOIRE_METRICS  # columns of `metrics.csv` in a run with a repertoire, and their labels
_TEAM = "team"  # the panel of a team's fitness
_MOST_OF_SKILLS = 2  # panels


def draw_curves(run_dir: str | Path) -> Path:
    """Draw a run's learning curves into its run directory.

    The first panel shows fitness over environment steps: each member slot as a thin line, the median as a thick line,
    and the envelope of the best member (for independent members their interquartile mean with its 95 % band instead).
    With a repertoire it also shows the best elite, and two panels show coverage and QD score. With skills, two panels
    show those of accuracy, return and diversity return that are not the fitness. For a team the first panel shows the
    return of each agent, and panels below show fitness and episode length. One panel per hyper-parameter that
    varied shows its values over generations on a separate scale, coloured by the rank of the member.

    Raises:
      ValueError: the folder is not a run, or no generation is finished.
    """
    record = open_run(run_dir)
    return save_figure(_figure(record), record.folder.picture_file)


def _figure(record: RunRecord) -> "Figure":
    metrics, seeds = record.metrics, record.seeds
    lineage = record.lineage if record.has_members else None
    steps = metrics["env_steps"] / max(len(seeds), 1)
    hyper = {} if lineage is None else lineage.evolving
    fitness = fitness_metric(record.config)
    several = lineage is not None and lineage.fitness.shape[1] > 1
    panels = _panels(metrics, fitness, " (mean of the members)" if several else "")
    measures = measure_labels(record.config, metrics, bool(seeds))
    agents = [name for name in metrics if name.startswith(AGENT_RETURN)]
    if agents:
        # Where roles evolve separately, the fitness of all agents together says nothing about one of the roles.
        team = {} if record.config.get("member") == "agent" else {_TEAM: "fitness of the teams"}
        panels = team | {"episode_length": "steps of an episode"}
    panels |= measures
    rows = 1 + -(-len([*panels, *hyper]) // 2)
    figure = new_figure((9, 3.6 + 2.1 * (rows - 1)), headline(record.config), fontsize=12)
    grid = figure.add_gridspec(rows, 2, height_ratios=[1.7] + [1.0] * (rows - 1))
    first = figure.add_subplot(grid[0, :])
    if agents:
        _draw_agents(first, steps, metrics, agents)
    else:
        _draw_fitness(first, steps, metrics, lineage, fitness_label(record.config), seeds)
    for index, name in enumerate([*panels, *hyper]):
        axes = figure.add_subplot(grid[1 + index // 2, index % 2])
        if name == _TEAM:
            _draw_fitness(axes, steps, metrics, lineage, panels[name], seeds)
        elif name in panels:
            draw_metric(axes, panels[name], steps, metrics[name])
        elif lineage is not None:
            domain = record.config.get(SCALES, {}).get(name)
            _draw_hyper(axes, name, hyper[name], _ranks(lineage.selected_by), domain, lineage.choices.get(name, ()))
    return figure


def _panels(metrics: Table, fitness: str | None, averaged: str) -> dict[str, str]:
    """Metric -> label of each panel; `averaged` is appended to the labels of the skills' metrics."""
    others = [name for name in SKILL_METRICS if name in metrics and name != fitness]
    skills = {name: SKILL_METRICS[name] + averaged for name in others[:_MOST_OF_SKILLS]}
    return {name: label for name, label in REPERTOIRE_METRICS.items() if name in metrics} | skills


def _draw_agents(axes: "Axes", steps: np.ndarray, metrics: Table, agents: Sequence[str]) -> None:
    for index, name in enumerate(agents):
        label = name.removeprefix(AGENT_RETURN)
        draw_metric(axes, "mean return of each agent", steps, metrics[name], colour_of(index), label)
    if len(agents) <= len(PALETTE):
        axes.legend(frameon=False, fontsize=8)


def draw_metric(
    axes: "Axes",
    label: str,
    steps: np.ndarray,
    values: np.ndarray,
    colour: str = PALETTE[0],
    name: str | None = None,
    counted: str = "environment steps",
) -> None:
    """Draw one column of `metrics.csv` `[G]` over the environment steps `[G]`, or another axis named by `counted`."""
    axes.plot(steps, values, color=colour, linewidth=1.6, marker=_marker(steps), label=name)
    axes.set_xlabel(counted, fontsize=8)
    count_steps(axes)
    title_axes(axes, label)


def _marker(steps: np.ndarray) -> str | None:
    """A single generation is a dot, since a line needs two."""
    return "o" if len(steps) == 1 else None


def _draw_fitness(
    axes: "Axes", steps: np.ndarray, metrics: Table, lineage: Lineage | None, label: str, seeds: Sequence[Run]
) -> None:
    marker, best = _marker(steps), "best child" if individual(metrics) == "child" else "best"
    is_alone = lineage is not None and lineage.fitness.shape[1] == 1
    if lineage is not None and not is_alone:
        axes.plot(steps, lineage.fitness, color=QUIET, linewidth=0.8, alpha=0.7, marker=marker, markersize=3)
    if "max_fitness" in metrics:
        axes.plot(steps, metrics["max_fitness"], color=PALETTE[1], label="best elite", marker=marker)
    if seeds:
        _draw_seeds(axes, seeds, marker)
    elif is_alone:
        axes.plot(steps, metrics["best_fitness"], color=INK, linewidth=2.2, label="only member", marker=marker)
    else:
        axes.plot(steps, metrics["best_fitness"], color=PALETTE[0], linewidth=1.6, label=best, marker=marker)
        axes.plot(steps, metrics["median_fitness"], color=INK, linewidth=2.2, label="median", marker=marker)
    unit = " (evaluations)" if lineage is None else " of each seed" if seeds else " of the population"
    axes.set_xlabel(f"environment steps{'' if is_alone else unit}")
    axes.set_ylabel(label)
    axes.legend(*axes.get_legend_handles_labels(), frameon=False, loc="lower right")  # curves rise
    count_steps(axes)
    tidy(axes)


def _draw_seeds(axes: "Axes", seeds: Sequence[Run], marker: str | None) -> None:
    """The interquartile mean of independent members, and its interval."""
    floor = worst_fitness(seeds)
    if not np.isfinite(floor):
        return
    steps, fitness = curve(seeds, floor)
    label = f"interquartile mean of {len(seeds)} seeds, 95 % band"
    draw_estimate(axes, steps, fitness, INK, linewidth=2.2, label=label, marker=marker)


def _ranks(fitness: np.ndarray) -> np.ndarray:
    """Rank of each member in its generation, 1 the best, 0 the worst or not finite, equal ones the mean; `[G, P]`."""
    ranks = np.empty(fitness.shape)
    for rank, row in zip(ranks, ranking_fitness(fitness), strict=True):  # SciPy's rankdata is slow to import
        ordered = np.sort(row)
        rank[:] = 0.5 * (np.searchsorted(ordered, row, "left") + np.searchsorted(ordered, row, "right") - 1.0)
    return np.where(np.isfinite(fitness), ranks / max(fitness.shape[1] - 1, 1), 0.0)


def _steps_125(low: float, high: float) -> np.ndarray:
    """1, 2 and 5 times powers of ten around an interval, at least two; of many the powers alone."""
    powers = 10.0 ** np.arange(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = np.outer(powers, [1.0] if high > 1e4 * low else [1.0, 2.0, 5.0]).ravel()
    first = max(int(np.searchsorted(steps, low * 1.0001, "right")) - 1, 0)
    return steps[first : max(int(np.searchsorted(steps, high * 0.9999)), first + 1) + 1]


def _draw_hyper(
    axes: "Axes", name: str, values: np.ndarray, ranks: np.ndarray, domain: str | None, names: Sequence[str]
) -> None:
    """Draw a hyper-parameter `[G, P]` over generations, counted from 1, coloured by the rank of the member.

    `domain` is the class of its domain, which decides the scale; None if the run did not record it. `names` are those
    of a `Choice`, () of numbers.
    """
    from matplotlib import ticker
    from matplotlib.colors import LinearSegmentedColormap

    is_reversed = domain == "OneMinusLog" or (domain is None and name == "discount")
    scale = 1.0 - values if is_reversed else values
    if names:  # members with one name lie side by side
        scale = scale + 0.5 * (np.arange(values.shape[1]) + 0.5) / values.shape[1] - 0.25
    generations = np.repeat(np.arange(1, len(values) + 1)[:, None], values.shape[1], axis=1)
    colours = LinearSegmentedColormap.from_list("ranks", RANKS)
    axes.scatter(generations, scale, c=ranks.ravel(), cmap=colours, vmin=0.0, vmax=1.0, s=9, linewidths=0)
    count_whole(axes)
    axes.set_xlim(0.5, len(values) + 0.5)  # no tick at 0, which is no generation
    if names:
        axes.set_yticks(range(len(names)), names)
    elif (scale > 0).all() and domain not in ("Uniform", "Whole"):
        axes.set_yscale("log")
        ticks = _steps_125(float(scale.min()), float(scale.max()))
        margin = (ticks[-1] / ticks[0]) ** 0.04
        axes.set_ylim(ticks[0] / margin, ticks[-1] * margin)
        axes.set_yticks(ticks)
        axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("generation (orange: best of its generation, grey: worst)", fontsize=8)
    title_axes(axes, f"1 - {name}" if is_reversed else name)
