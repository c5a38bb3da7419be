"""What documented programs end in: pictures of a repertoire, of its metrics and of skills, and a table.

The pictures are those of `rookery.report`, on figures of pyplot, so that `plt.show()` and `plt.savefig(...)` find them.
Nobody's matplotlib settings change.
"""

import csv
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rookery.compat.qdax.map_elites import MapElitesRepertoire, limits_of
from rookery.compat.records import check
from rookery.report.dimensions import Dimensions, names
from rookery.report.figures import curves, style
from rookery.report.figures import repertoire as repertoire_picture
from rookery.report.figures import skills as skills_picture

__all__ = ["CSVLogger", "plot_2d_map_elites_repertoire", "plot_map_elites_results", "plot_skills_trajectory"]

_METRICS = {"coverage": curves.REPERTOIRE["coverage"], "max_fitness": "best fitness"} | curves.REPERTOIRE
_PANEL = 4.6  # inches


class CSVLogger:
    """A table of metrics that grows by a row at a time; `rookery.storage.csv_log.read_csv` reads its numbers exactly.

    Args:
      filename: a file of that name is overwritten.
      header: the columns.
    """

    def __init__(self, filename: str, header: Sequence[str]) -> None:
        self._filename, self._header = filename, list(header)
        self._write("w", None)

    def log(self, metrics: Mapping[str, Any]) -> None:
        """Append a row: column -> a number, also as an array of one. A column that is not given is NaN; more than one
        number, or a name that is no column, is a `ValueError`."""
        unknown = sorted(set(metrics) - set(self._header))
        check(not unknown, f"{self._filename} has the columns {self._header}, and none for {unknown}.")
        numbers = {name: np.asarray(value) for name, value in metrics.items()}
        many = sorted(name for name, number in numbers.items() if number.size != 1)
        check(not many, f"a row has one number in each column; {many} have another size: log metrics[name][-1].")
        self._write("a", {name: number.item() for name, number in numbers.items()})

    def _write(self, mode: str, row: Mapping[str, Any] | None) -> None:
        with open(self._filename, mode, encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._header, restval="nan", lineterminator="\n")
            writer.writeheader() if row is None else writer.writerow(row)


def plot_2d_map_elites_repertoire(
    centroids: Any,
    repertoire_fitnesses: Any,
    minval: Any,
    maxval: Any,
    repertoire_descriptors: Any = None,
    ax: Any = None,
    vmin: float | None = None,
    vmax: float | None = None,
) -> tuple[Any, Any]:
    """Draw the cells of a repertoire in the colours of their elites' fitness.

    Args:
      centroids: `[C, 2]`.
      repertoire_fitnesses: `[C]`, or `[C, 1]`; not finite where a cell is empty.
      minval: the descriptor's lower limits, `[2]` or one number.
      maxval: its upper limits.
      repertoire_descriptors: `[C, 2]`, the elites' own, drawn as dots; None for none.
      ax: where to draw; None for a figure of its own.
      vmin: the fitness at the dark end of the colours; None for the least of all elites.
      vmax: that at the bright end; None for the greatest.

    Returns:
      The figure, None if `ax` was given, and the axes.

    Raises:
      NotImplementedError: a descriptor has another size than 2.
      ValueError: there is no cell, another number of fitnesses or descriptors, or a limit that is none.
    """
    from matplotlib import pyplot

    cells = _cells(centroids, repertoire_fitnesses, repertoire_descriptors, minval, maxval)
    figure = None
    if ax is None:
        figure, ax = pyplot.subplots(figsize=repertoire_picture.figure_size(cells), layout="constrained")
    repertoire_picture.draw_map(ax, cells, repertoire_picture.colours_of(cells, vmin, vmax))
    dots = cells.descriptors[cells.occupied]
    ax.scatter(dots[:, 0], dots[:, 1], s=6, color=style.INK, linewidths=0)
    ax.set_aspect("equal")
    ax.set_title(repertoire_picture.summary(cells), fontsize=10, color=style.INK)
    return figure, ax


def _cells(centroids: Any, fitness: Any, descriptors: Any, *limits: Any) -> repertoire_picture.Repertoire:
    places, fitness = np.asarray(centroids, np.float64), np.asarray(fitness, np.float64)
    if places.ndim != 2 or places.shape[1] != 2:
        raise NotImplementedError(f"only repertoires of two dimensions are drawn, [C, 2]; got {places.shape}.")
    reached = np.full_like(places, np.nan) if descriptors is None else np.asarray(descriptors, np.float64)
    check(len(places) > 0, "there is no cell to draw.")
    fits = fitness.shape in ((len(places),), (len(places), 1)) and reached.shape == places.shape
    check(fits, f"of {len(places)} cells there are fitnesses {fitness.shape} and descriptors {reached.shape}.")
    lower, upper = _limits(*limits)
    return repertoire_picture.Repertoire(fitness.ravel(), places, reached, lower, upper, names("descriptor", 2))


def _limits(lower: Any, upper: Any) -> np.ndarray:
    """Of two dimensions, `[2, 2]`."""
    limits = np.array(limits_of(2, lower, upper))
    fits = bool(np.isfinite(limits).all() and (limits[0] < limits[1]).all())
    check(fits, f"limits must be finite, the lower below the upper, got {limits[0].tolist()}, {limits[1].tolist()}.")
    return limits


def plot_map_elites_results(
    env_steps: Any,
    metrics: Mapping[str, Any],
    repertoire: MapElitesRepertoire,
    min_descriptor: Any,
    max_descriptor: Any,
    x_label: str = "Environment steps",
) -> tuple[Any, Any]:
    """Draw how coverage, best fitness and QD score went, and the repertoire that came of it.

    Args:
      env_steps: `[N]`, steps so far at each row of the metrics.
      metrics: `coverage`, `max_fitness` and `qd_score`, `[N]` each; what else it has is not drawn.
      repertoire: the last one.
      min_descriptor: the descriptor's lower limits, `[2]` or one number.
      max_descriptor: its upper limits.
      x_label: what `env_steps` counts.

    Returns:
      The figure, and the axes with the repertoire, the last of `figure.axes` but for the bar of its colours.

    Raises:
      NotImplementedError: a descriptor has another size than 2.
      ValueError: a metric is missing or has another length than `env_steps`, or see `plot_2d_map_elites_repertoire`.
    """
    from matplotlib import pyplot

    missing = sorted(set(_METRICS) - set(metrics))
    check(not missing, f"metrics need {', '.join(_METRICS)}; {', '.join(missing)} is missing.")
    steps, shown = np.asarray(env_steps), {name: np.asarray(metrics[name]) for name in _METRICS}
    odd = {name: values.shape for name, values in shown.items() if values.shape != steps.shape or steps.ndim != 1}
    check(not odd, f"metrics need a number for each of env_steps, {steps.shape}; got {odd}.")
    cells = repertoire.centroids, repertoire.fitnesses, repertoire.descriptors
    _cells(*cells, min_descriptor, max_descriptor)  # before there is a figure
    figure = pyplot.figure(figsize=(4 * _PANEL, 0.9 * _PANEL), layout="constrained")
    *panels, last = figure.subplots(1, 4, width_ratios=[1.0, 1.0, 1.0, 1.2])
    for axes, (name, values) in zip(panels, shown.items(), strict=True):
        curves.draw_metric(axes, _METRICS[name], steps, values, counted=x_label)
    told = {"minval": min_descriptor, "maxval": max_descriptor, "repertoire_descriptors": cells[2], "ax": last}
    plot_2d_map_elites_repertoire(*cells[:2], **told)
    return figure, last


def plot_skills_trajectory(trajectories: Any, skills: Any, min_values: Any, max_values: Any) -> tuple[Any, Any]:
    """Draw where the episodes of each skill went, a colour for each skill.

    Args:
      trajectories: `[2, E, T]`, the transpose of state descriptors `[T, E, 2]`; what is not finite is left out.
      skills: `[E, K]`, one-hot.
      min_values: lower limits of what is drawn, `[2]` or one number.
      max_values: upper limits.

    Returns:
      The figure and its axes.

    Raises:
      ValueError: shapes do not fit, nothing is finite, or a limit is none.
    """
    from matplotlib import pyplot

    paths, skills = np.asarray(trajectories, np.float64), np.asarray(skills)
    fits = paths.ndim == 3 and paths.shape[0] == 2 and skills.ndim == 2 and len(skills) == paths.shape[1]
    check(fits, f"trajectories must be [2, E, T] and skills [E, K], got {paths.shape} and {skills.shape}.")
    limits, drawn = _limits(min_values, max_values), []
    for skill, path in zip(skills, np.moveaxis(paths, 0, -1), strict=True):
        states = path[np.isfinite(path).all(axis=1)]
        drawn += [skills_picture.Trajectory(int(np.argmax(skill)), states)] if len(states) else []
    check(bool(drawn), "there is no finite state to draw in these trajectories.")
    view = skills_picture.View(limits, limits, equal=True)
    figure, axes = pyplot.subplots(figsize=skills_picture.figure_size(view, 2), layout="constrained")
    skills_picture.draw_trajectories(axes, drawn, Dimensions(names("state descriptor", 2), "final", limits), view)
    for lines in axes.collections:
        lines.set_clip_on(True)  # the limits are a frame here, and no walls
    return figure, axes
