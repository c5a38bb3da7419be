"""QDax's documented plots of repertoires, metrics and skills, and its CSV logger.

The plots are those of `rookery.report`, drawn on pyplot figures, so that `plt.show()` and `plt.savefig(...)` work. The
matplotlib settings are not changed.
"""

import csv
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from rookery.compat.qdax.map_elites import Limit, MapElitesRepertoire, limits_of
from rookery.compat.records import check
from rookery.report.dimensions import Dimensions, names
from rookery.report.figures import curves, style
from rookery.report.figures import repertoire as repertoire_picture
from rookery.report.figures import skills as skills_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CSVLogger", "plot_2d_map_elites_repertoire", "plot_map_elites_results", "plot_skills_trajectory"]

_METRICS = {"coverage": curves.REPERTOIRE["coverage"], "max_fitness": "best fitness"} | curves.REPERTOIRE
_PANEL = 4.6  # inches


class CSVLogger:
    """Writes metrics to a CSV file, one row at a time; `rookery.storage.csv_log.read_csv` reads the exact numbers.

    Args:
      filename: output file; an existing file is overwritten.
      header: column names.
    """

    def __init__(self, filename: str, header: Sequence[str]) -> None:
        self._filename, self._header = filename, list(header)
        self._write("w", None)

    def log(self, metrics: Mapping[str, ArrayLike]) -> None:
        """Append a row.

        Args:
          metrics: column -> a number or an array of one number; missing columns become NaN.

        Raises:
          ValueError: a name is not a column, or a value has more than one number.
        """
        unknown = sorted(set(metrics) - set(self._header))
        check(
            not unknown, f"{self._filename} has the columns {self._header}, but not {unknown}; add them to the header."
        )
        numbers = {name: np.asarray(value) for name, value in metrics.items()}
        many = sorted(name for name, number in numbers.items() if number.size != 1)
        check(not many, f"a row has one number in each column, but {many} have another size; log metrics[name][-1].")
        self._write("a", {name: number.item() for name, number in numbers.items()})

    def _write(self, mode: str, row: Mapping[str, float] | None) -> None:
        with open(self._filename, mode, encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._header, restval="nan", lineterminator="\n")
            writer.writeheader() if row is None else writer.writerow(row)


def plot_2d_map_elites_repertoire(
    centroids: ArrayLike,
    repertoire_fitnesses: ArrayLike,
    minval: Limit,
    maxval: Limit,
    repertoire_descriptors: ArrayLike | None = None,
    ax: "Axes | None" = None,
    vmin: float | None = None,
    vmax: float | None = None,
) -> "tuple[Figure | None, Axes]":
    """Plot the cells of a repertoire, coloured by the fitness of their elites.

    Args:
      centroids: `[C, 2]`.
      repertoire_fitnesses: `[C]`, or `[C, 1]`; not finite where a cell is empty.
      minval: the descriptor's lower limits, `[2]` or one number.
      maxval: its upper limits.
      repertoire_descriptors: descriptors of the elites, `[C, 2]`, drawn as dots; None draws no dots.
      ax: axes to draw on; None creates a new figure.
      vmin: fitness at the dark end of the colour scale; None for the lowest fitness of the elites.
      vmax: fitness at the bright end of the colour scale; None for the highest fitness of the elites.

    Returns:
      The figure (None if `ax` was given) and the axes.

    Raises:
      NotImplementedError: the descriptor size is not 2.
      ValueError: there are no cells, the numbers of cells, fitnesses and descriptors differ, or the limits are invalid.
    """
    from matplotlib import pyplot

    repertoire = _repertoire(centroids, repertoire_fitnesses, repertoire_descriptors, minval, maxval)
    figure = None
    if ax is None:
        figure, ax = pyplot.subplots(figsize=repertoire_picture.figure_size(repertoire), layout="constrained")
    _draw_repertoire(ax, repertoire, vmin, vmax)
    return figure, ax


def _draw_repertoire(
    axes: "Axes", repertoire: repertoire_picture.Repertoire, vmin: float | None = None, vmax: float | None = None
) -> None:
    repertoire_picture.draw_map(axes, repertoire, repertoire_picture.colours_of(repertoire, vmin, vmax))
    dots = repertoire.descriptors[repertoire.occupied]
    axes.scatter(dots[:, 0], dots[:, 1], s=6, color=style.INK, linewidths=0)
    axes.set_aspect("equal")
    axes.set_title(repertoire_picture.summary(repertoire), fontsize=10, color=style.INK)


def _repertoire(
    centroids: ArrayLike, fitness: ArrayLike, descriptors: ArrayLike | None, *limits: Limit
) -> repertoire_picture.Repertoire:
    centers, fitness = np.asarray(centroids, np.float64), np.asarray(fitness, np.float64)
    if centers.ndim != 2 or centers.shape[1] != 2:
        raise NotImplementedError(f"only repertoires of two dimensions can be plotted, [C, 2]; got {centers.shape}.")
    reached = np.full_like(centers, np.nan) if descriptors is None else np.asarray(descriptors, np.float64)
    check(len(centers) > 0, "there is no cell to plot; centroids must contain at least one.")
    fits = fitness.shape in ((len(centers),), (len(centers), 1)) and reached.shape == centers.shape
    check(
        fits, f"{len(centers)} cells need as many rows; got fitnesses {fitness.shape} and descriptors {reached.shape}."
    )
    lower, upper = _limits(*limits)
    return repertoire_picture.Repertoire(fitness.ravel(), centers, reached, lower, upper, names("descriptor", 2))


def _limits(lower: Limit, upper: Limit) -> np.ndarray:
    """Check and stack the limits of two dimensions, `[2, 2]`."""
    limits = np.array(limits_of(2, lower, upper))
    fits = bool(np.isfinite(limits).all() and (limits[0] < limits[1]).all())
    check(fits, f"limits must be finite, the lower below the upper, got {limits[0].tolist()}, {limits[1].tolist()}.")
    return limits


def plot_map_elites_results(
    env_steps: ArrayLike,
    metrics: Mapping[str, ArrayLike],
    repertoire: MapElitesRepertoire,
    min_descriptor: Limit,
    max_descriptor: Limit,
    x_label: str = "Environment steps",
) -> "tuple[Figure, Axes]":
    """Plot coverage, best fitness and QD score over training, and the final repertoire.

    Args:
      env_steps: `[N]`, number of steps at each row of the metrics.
      metrics: `coverage`, `max_fitness` and `qd_score`, `[N]` each; other metrics are ignored.
      repertoire: the final repertoire.
      min_descriptor: the descriptor's lower limits, `[2]` or one number.
      max_descriptor: its upper limits.
      x_label: label of the axis of `env_steps`.

    Returns:
      The figure, and the axes with the repertoire, the last of `figure.axes` before the colour bar.

    Raises:
      NotImplementedError: the descriptor size is not 2.
      ValueError: a metric is missing or has another length than `env_steps`, or `plot_2d_map_elites_repertoire` raises.
    """
    from matplotlib import pyplot

    missing = sorted(set(_METRICS) - set(metrics))
    check(not missing, f"metrics need {', '.join(_METRICS)}; {', '.join(missing)} is missing.")
    steps, shown = np.asarray(env_steps), {name: np.asarray(metrics[name]) for name in _METRICS}
    odd = {name: values.shape for name, values in shown.items() if values.shape != steps.shape or steps.ndim != 1}
    check(not odd, f"metrics must have the shape of env_steps, {steps.shape}; got {odd}.")
    cells = repertoire.centroids, repertoire.fitnesses, repertoire.descriptors
    final = _repertoire(*cells, min_descriptor, max_descriptor)  # check before a figure is created
    figure = pyplot.figure(figsize=(4 * _PANEL, 0.9 * _PANEL), layout="constrained")
    *panels, last = figure.subplots(1, 4, width_ratios=[1.0, 1.0, 1.0, 1.2])
    for axes, (name, values) in zip(panels, shown.items(), strict=True):
        curves.draw_metric(axes, _METRICS[name], steps, values, counted=x_label)
    _draw_repertoire(last, final)
    return figure, last


def plot_skills_trajectory(
    trajectories: ArrayLike, skills: ArrayLike, min_values: Limit, max_values: Limit
) -> "tuple[Figure, Axes]":
    """Plot the trajectories of all episodes, coloured by skill.

    Args:
      trajectories: `[2, E, T]`, the transpose of state descriptors `[T, E, 2]`; non-finite states are omitted.
      skills: `[E, K]`, one-hot.
      min_values: lower limits of the axes, `[2]` or one number.
      max_values: upper limits of the axes, `[2]` or one number.

    Returns:
      The figure and its axes.

    Raises:
      ValueError: the shapes do not match, no state is finite, or the limits are invalid.
    """
    from matplotlib import pyplot

    paths, skills = np.asarray(trajectories, np.float64), np.asarray(skills)
    fits = paths.ndim == 3 and paths.shape[0] == 2 and skills.ndim == 2 and len(skills) == paths.shape[1]
    check(fits, f"trajectories must be [2, E, T] and skills [E, K], got {paths.shape} and {skills.shape}.")
    limits, drawn = _limits(min_values, max_values), []
    for skill, path in zip(skills, np.moveaxis(paths, 0, -1), strict=True):
        states = path[np.isfinite(path).all(axis=1)]
        drawn += [skills_picture.Trajectory(int(np.argmax(skill)), states)] if len(states) else []
    check(bool(drawn), "these trajectories contain no finite state to plot.")
    view = skills_picture.View(limits, limits, equal=True)
    figure, axes = pyplot.subplots(figsize=skills_picture.figure_size(view, 2), layout="constrained")
    skills_picture.draw_trajectories(axes, drawn, Dimensions(names("state descriptor", 2), "final", limits), view)
    for lines in axes.collections:
        lines.set_clip_on(True)  # here the limits are the view, not the walls of the environment
    figure.draw_without_rendering()  # the first layout of axes of equal units cuts a label off
    return figure, axes
