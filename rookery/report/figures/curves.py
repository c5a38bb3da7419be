"""`curves.png`: learning curves of all members, and the evolved hyper-parameters."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.report.figures import style
from rookery.report.figures.comparison import curve, steps_text
from rookery.report.groups import Run, independent_runs, worst_fitness
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import RunFolder, open_existing


def draw_curves(run_dir: str | Path) -> Path:
    """Draw a run's learning curves into its run directory.

    The first panel shows fitness over environment steps: each member slot as a thin line, the median as a thick line,
    and the envelope of the best member (for independent members their interquartile mean with its 95 % band instead).
    With a repertoire it also shows the best elite, and two panels show coverage and QD score. With skills, two panels
    show those of accuracy, return and diversity return that are not the fitness. For a team the first panel shows the
    return of each agent, and two panels below show fitness and episode length. One panel per hyper-parameter that
    varied shows its values over generations on a separate scale, coloured by the rank of the member.

    Returns:
      The figure's path.

    Raises:
      ValueError: the folder is not a run, or no generation is finished.
    """
    folder = open_existing(run_dir)
    _figure(folder).savefig(folder.picture_file, dpi=130)
    return folder.picture_file


def _figure(folder: RunFolder) -> Any:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = read_csv(folder.metrics_file)
    if not len(metrics["generation"]):
        raise ValueError(f"{folder.path} has no finished generation to draw; wait for its first.")
    seeds = independent_runs(folder)
    metrics["env_steps"] = metrics["env_steps"] / max(len(seeds), 1)
    lineage = read_csv(folder.lineage_file) if folder.lineage_file.exists() else {}
    hyper = _evolving(lineage)
    fitness = _fitness(folder.config)
    panels = _panels(metrics, fitness, " (mean of the members)" if lineage and lineage["member"].any() else "")
    agents = [name for name in metrics if name.startswith(_AGENT)]
    panels = {_TEAM: "fitness of the teams", "episode_length": "steps of an episode"} if agents else panels
    rows = 1 + -(-len([*panels, *hyper]) // 2)
    figure = Figure(figsize=(9, 3.6 + 2.1 * (rows - 1)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(rows, 2, height_ratios=[1.7] + [1.0] * (rows - 1))
    if agents:
        _draw_agents(figure.add_subplot(grid[0, :]), metrics, agents)
    else:
        _draw_fitness(figure.add_subplot(grid[0, :]), metrics, lineage, _SKILLS[fitness or "true_return"], seeds)
    for index, name in enumerate([*panels, *hyper]):
        axes = figure.add_subplot(grid[1 + index // 2, index % 2])
        if name == _TEAM:
            _draw_fitness(axes, metrics, lineage, panels[name], seeds)
        elif name in panels:
            draw_metric(axes, panels[name], metrics["env_steps"], metrics[name])
        else:
            _draw_hyper(axes, name, lineage, _ranks(lineage), matplotlib.colormaps["viridis"])
    figure.suptitle(style.headline(folder.config), color=style.INK, fontsize=12)
    return figure


_AGENT = "return/"  # prefix of the columns of a team's agents
_TEAM = "team"  # the panel of a team's fitness
REPERTOIRE = {"coverage": "coverage, % of the cells", "qd_score": "QD score"}
_MOST_OF_SKILLS = 2  # panels
_SKILLS = {
    "accuracy": "discriminator accuracy",
    "true_return": "mean return",
    "diversity_return": "diversity return, nats",
}
_FITNESS = {"accuracy": "accuracy", "diversity": "diversity_return", "return": "true_return"}  # of DIAYN, as configured


def _fitness(config: Mapping[str, Any]) -> str | None:
    """The metric of skills that is the fitness; None in a run whose configuration names none."""
    diayn = config.get("diayn")
    return _FITNESS.get(str(diayn.get("fitness"))) if isinstance(diayn, Mapping) else None


def _panels(metrics: Mapping[str, np.ndarray], fitness: str | None, averaged: str) -> dict[str, str]:
    """Metric -> label of each panel; `averaged` is appended to the labels of the skills' metrics."""
    others = [name for name in _SKILLS if name in metrics and name != fitness]
    skills = {name: _SKILLS[name] + averaged for name in others[:_MOST_OF_SKILLS]}
    return {name: label for name, label in REPERTOIRE.items() if name in metrics} | skills


def _draw_agents(axes, metrics: Mapping[str, np.ndarray], agents: list[str]) -> None:
    for index, name in enumerate(agents):
        colour = style.PALETTE[index % len(style.PALETTE)]
        label = "mean return of each agent"
        draw_metric(axes, label, metrics["env_steps"], metrics[name], colour, name.removeprefix(_AGENT))
    if len(agents) <= len(style.PALETTE):
        axes.legend(frameon=False, fontsize=8)


def draw_metric(
    axes,
    label: str,
    steps: np.ndarray,
    values: np.ndarray,
    colour: str = style.PALETTE[0],
    name: str | None = None,
    counted: str = "environment steps",
) -> None:
    """Draw one column of `metrics.csv` `[G]` over the environment steps `[G]`, or another axis named by `counted`."""
    marker = "o" if len(steps) == 1 else None
    axes.plot(steps, values, color=colour, linewidth=1.6, marker=marker, label=name)
    axes.set_title(label, fontsize=10, color=style.INK, loc="left")
    axes.set_xlabel(counted, fontsize=8)
    _count_steps(axes)
    style.tidy(axes)


def _count_steps(axes) -> None:
    """Short enough that neighbours never touch."""
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: steps_text(steps)))


def _evolving(lineage: dict[str, np.ndarray]) -> list[str]:
    names = [name for name in lineage if name not in ("generation", "member", "parent", "fitness")]
    return [name for name in names if len(np.unique(lineage[name])) > 1]


def _per_member(lineage: dict[str, np.ndarray], name: str) -> np.ndarray:
    """A column as `[generations, P]`."""
    population = int(lineage["member"].max()) + 1
    return lineage[name].reshape(-1, population)


def _draw_fitness(
    axes, metrics: dict[str, np.ndarray], lineage: dict[str, np.ndarray], label: str, seeds: Sequence[Run]
) -> None:
    steps = metrics["env_steps"]
    marker = "o" if len(steps) == 1 else None
    if lineage:
        fitness = _per_member(lineage, "fitness")
        axes.plot(steps, fitness, color=style.QUIET, linewidth=0.8, alpha=0.7, marker=marker, markersize=3)
    if "max_fitness" in metrics:
        axes.plot(steps, metrics["max_fitness"], color=style.PALETTE[1], label="best elite", marker=marker)
    if seeds:
        _draw_seeds(axes, seeds, marker)
    else:
        axes.plot(steps, metrics["best_fitness"], color=style.PALETTE[0], linewidth=1.6, label="best", marker=marker)
        axes.plot(steps, metrics["median_fitness"], color=style.INK, linewidth=2.2, label="median", marker=marker)
    unit = "of each seed" if seeds else "of the population"
    axes.set_xlabel(f"environment steps {unit}" if lineage else "environment steps (evaluations)")
    axes.set_ylabel(label)
    axes.legend(frameon=False, loc="upper left")
    _count_steps(axes)
    style.tidy(axes)


def _draw_seeds(axes, seeds: Sequence[Run], marker: str | None) -> None:
    """The interquartile mean of independent members, and its interval."""
    floor = worst_fitness(seeds)
    if not np.isfinite(floor):
        return
    steps, fitness = curve(seeds, floor)
    label = f"interquartile mean of {len(seeds)} seeds, 95 % band"
    axes.fill_between(steps, fitness.low, fitness.high, color=style.INK, alpha=0.15, linewidth=0)
    axes.plot(steps, fitness.value, color=style.INK, linewidth=2.2, label=label, marker=marker)


def _ranks(lineage: dict[str, np.ndarray]) -> np.ndarray:
    """Rank of each member in its generation, 1 the best, 0 the worst or not finite; `[generations, P]`."""
    fitness = np.nan_to_num(_per_member(lineage, "fitness"), nan=-np.inf)
    order = fitness.argsort(axis=1).argsort(axis=1)
    return order / max(fitness.shape[1] - 1, 1)


def _draw_hyper(axes, name: str, lineage: dict[str, np.ndarray], ranks: np.ndarray, colours) -> None:
    from matplotlib import ticker

    values, generations = _per_member(lineage, name), np.unique(lineage["generation"])
    scale = 1.0 - values if name == "discount" else values
    x = np.repeat(generations[:, None], values.shape[1], axis=1)
    axes.scatter(x, scale, c=ranks, cmap=colours, s=9, linewidths=0)
    if (scale > 0).all():
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.set_title("1 - discount" if name == "discount" else name, fontsize=10, color=style.INK, loc="left")
    axes.set_xlabel("generation (bright: best of its generation)", fontsize=8)
    style.tidy(axes)
