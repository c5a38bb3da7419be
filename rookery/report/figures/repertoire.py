"""`repertoire.png`: the fitness of each elite in descriptor space."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rookery.report.dimensions import wrapped
from rookery.report.figures.style import INK, colour_bar, label_axes, new_figure, save_figure, tidy
from rookery.report.formatting import headline, number
from rookery.report.readers import Repertoire, RunRecord, open_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

_EMPTY = "#e9eef1"  # a cell without an elite
_BINS = 40  # bins per dimension at most, where more than two dimensions are projected on pairs
_FEW = 2500  # cells up to which a white line separates them
_MOST_DIMENSIONS = 6  # dimensions whose pairs are drawn


def draw_repertoire(run_dir: str | Path) -> Path:
    """Draw a run's repertoire into its run directory.

    Cells are coloured by the fitness of their elite, and pale where empty; a star marks the best elite. One dimension
    is drawn as a strip, two as a map of the cells. With more, each panel shows a pair of the first six dimensions,
    divided into bins that show the best fitness of all elites whose descriptors are in the bin.

    Raises:
      ValueError: the folder is not a run, has no repertoire, or has a table that cannot be read.
    """
    record = open_run(run_dir)
    repertoire = record.repertoire
    figure, colours = new_figure(figure_size(repertoire), _title(record)), colours_of(repertoire)
    size = repertoire.centroids.shape[1]
    if size > 2:
        _draw_pairs(figure, repertoire, colours)
    else:
        draw = draw_strip if size == 1 else draw_map
        draw(figure.subplots(), repertoire, colours)
    return save_figure(figure, record.folder.repertoire_picture_file)


def _title(record: RunRecord) -> str:
    parts = [summary(record.repertoire)]
    if record.repertoire.occupied.any() and record.has_generation and "qd_score" in record.metrics:
        parts.append(f"QD score {number(record.metrics['qd_score'][-1])}")
    return f"{headline(record.config)}\n{',  '.join(parts)}"


def summary(repertoire: Repertoire) -> str:
    """Coverage and best fitness, as text."""
    occupied, cells = int(repertoire.occupied.sum()), len(repertoire.fitness)
    if not occupied:
        return f"empty: none of {cells:,} cells has an elite"
    best = repertoire.fitness[repertoire.occupied].max()
    if not repertoire.has_cells:
        return f"{occupied:,} of at most {cells:,} individuals,  best {number(best)} (star)"
    return f"coverage {100 * occupied / cells:.1f} % of {cells:,} cells,  best {number(best)} (star)"


def colours_of(repertoire: Repertoire, least: float | None = None, greatest: float | None = None) -> "ScalarMappable":
    """The colour map of fitness from `least` to `greatest`, by default the lowest and the highest of all elites; masked
    values get the pale colour of empty cells."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    shades = matplotlib.colormaps["viridis"].with_extremes(bad=_EMPTY)
    fitness = repertoire.fitness[repertoire.occupied]
    low, high = (fitness.min(), fitness.max()) if len(fitness) else (0.0, 1.0)
    low, high = low if least is None else least, high if greatest is None else greatest
    if low == high:
        low, high = low - 0.5, high + 0.5
    return ScalarMappable(Normalize(low, high), shades)


def figure_size(repertoire: Repertoire) -> tuple[float, float]:
    """Width and height of the figure, in inches."""
    size = min(repertoire.centroids.shape[1], _MOST_DIMENSIONS)
    if size == 1:
        return 9.0, 2.4
    if size == 2:
        width, height = repertoire.upper - repertoire.lower
        return 7.5, 0.9 + 5.8 * float(np.clip(height / width, 0.4, 1.7))
    return 2.4 * (size - 1) + 1.6, 2.4 * (size - 1) + 0.8


def draw_strip(axes: "Axes", repertoire: Repertoire, colours: "ScalarMappable") -> None:
    """Draw a one-dimensional repertoire: each cell in the colour of its elite, a star at the best, a colour bar."""
    order, tiles = strip(repertoire)
    _draw_cells(axes, tiles, repertoire.fitness[order], colours)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    _finish_cells(axes, repertoire, colours)


def strip(repertoire: Repertoire) -> tuple[np.ndarray, list[np.ndarray]]:
    """The cells of one dimension: the order of their centroids `[C]`, and in this order tiles `[4, 2]` of height 1."""
    order = np.argsort(repertoire.centroids[:, 0], kind="stable")
    ends = edges(repertoire.centroids[order, 0], repertoire.lower[0], repertoire.upper[0])
    return order, [tile(left, right, 0.0, 1.0) for left, right in pairwise(ends)]


def tile(left: float, right: float, low: float, high: float) -> np.ndarray:
    """The corners of a rectangle, `[4, 2]`."""
    return np.array([[left, low], [right, low], [right, high], [left, high]])


def edges(centroids: np.ndarray, lower: float, upper: float) -> np.ndarray:
    """Edges `[C + 1]` of the cells of sorted one-dimensional centroids `[C]`: the midpoints, and the limits."""
    return np.concatenate([[lower], (centroids[:-1] + centroids[1:]) / 2, [upper]])


def draw_map(axes: "Axes", repertoire: Repertoire, colours: "ScalarMappable") -> None:
    """Draw a two-dimensional repertoire: each cell in the colour of its elite, a star at the best, a colour bar."""
    _draw_cells(axes, voronoi(repertoire), repertoire.fitness, colours)
    axes.set_ylim(repertoire.lower[1], repertoire.upper[1])
    _finish_cells(axes, repertoire, colours)


def _finish_cells(axes: "Axes", repertoire: Repertoire, colours: "ScalarMappable") -> None:
    best = _best(repertoire)
    if best is not None:
        _mark(axes, *np.append(repertoire.centroids[best], 0.5)[:2])  # the middle of a strip
    axes.set_xlim(repertoire.lower[0], repertoire.upper[0])
    label_axes(axes, *repertoire.names)
    _finish(axes)
    _bar(colours, [axes], repertoire)


def _draw_pairs(figure: "Figure", repertoire: Repertoire, colours: "ScalarMappable") -> None:
    """Draw the lower triangle of a matrix of panels: the row's dimension is the y axis, the column's the x axis."""
    size = min(repertoire.centroids.shape[1], _MOST_DIMENSIONS)
    panels = figure.subplots(size - 1, size - 1, squeeze=False, sharex="col", sharey="row")
    count = int(np.clip(round(len(repertoire.fitness) ** 0.5 / 2), 6, _BINS))
    for column, row in combinations(range(size), 2):
        axes = panels[row - 1, column]
        x, y = (np.linspace(repertoire.lower[index], repertoire.upper[index], count + 1) for index in (column, row))
        bins = np.ma.masked_invalid(_best_of_bins(repertoire, (column, row), count).T)
        axes.pcolormesh(x, y, bins, cmap=colours.cmap, norm=colours.norm)
        best = _best(repertoire)
        if best is not None:
            _mark(axes, *repertoire.descriptors[best, [column, row]])
        if column == 0:
            axes.set_ylabel(wrapped(repertoire.names[row]), fontsize=8)
        if row == size - 1:
            axes.set_xlabel(wrapped(repertoire.names[column]), fontsize=8)
        _finish(axes)
    for row, column in combinations(range(size - 1), 2):
        panels[row, column].set_visible(False)
    _bar(colours, panels.ravel().tolist(), repertoire)


def _best_of_bins(repertoire: Repertoire, pair: tuple[int, int], count: int) -> np.ndarray:
    """The best fitness in each bin of two dimensions, `[count, count]`; -inf in empty bins."""
    occupied = repertoire.occupied
    fraction = (repertoire.descriptors[occupied] - repertoire.lower) / (repertoire.upper - repertoire.lower)
    bins = np.clip(np.nan_to_num(fraction) * count, 0, count - 1).astype(int)  # beyond the limits: the outermost bin
    best = np.full((count, count), -np.inf)
    np.maximum.at(best, (bins[:, pair[0]], bins[:, pair[1]]), repertoire.fitness[occupied])
    return best


def voronoi(repertoire: Repertoire) -> list[np.ndarray]:
    """The Voronoi cell of each centroid within the limits, as a polygon `[corners, 2]`.

    All centroids are mirrored at the four limits, which thereby become edges of cells. Where centroids coincide, only
    the first has a cell of positive area.
    """
    from scipy.spatial import Voronoi

    lower, upper = repertoire.lower, repertoire.upper
    scale = (upper - lower).max()  # the same for both: separate scales would distort the cells
    ends = (upper - lower) / scale
    margin = 1e-6 * ends  # a centroid on a limit would coincide with its mirror image
    points = np.clip((repertoire.centroids - lower) / scale, margin, ends - margin)
    points, first = np.unique(points, axis=0, return_index=True)
    left, low = points * [-1, 1], points * [1, -1]
    right, high = left + np.array([2 * ends[0], 0.0]), low + np.array([0.0, 2 * ends[1]])
    diagram = Voronoi(np.concatenate([points, left, right, low, high]))
    cells = [np.repeat(centroid[None], 3, axis=0) for centroid in repertoire.centroids]
    for index, cell in enumerate(first):
        corners = diagram.vertices[diagram.regions[diagram.point_region[index]]]
        cells[cell] = np.clip(corners, 0.0, ends) * scale + lower
    return cells


def _draw_cells(axes: "Axes", corners: Sequence[np.ndarray], fitness: np.ndarray, colours: "ScalarMappable") -> None:
    from matplotlib.collections import PolyCollection

    faces = colours.to_rgba(np.ma.masked_invalid(fitness))
    few = len(fitness) <= _FEW
    edges = {"edgecolors": "white", "linewidths": 0.4} if few else {"edgecolors": faces, "linewidths": 0.2}
    axes.add_collection(PolyCollection(corners, facecolors=faces, **edges), autolim=False)


def _best(repertoire: Repertoire) -> int | None:
    """The cell of the best elite; None for an empty repertoire."""
    if not repertoire.occupied.any():
        return None
    return int(np.argmax(np.where(repertoire.occupied, repertoire.fitness, -np.inf)))


def _mark(axes: "Axes", x: float, y: float) -> None:
    axes.plot([x], [y], "*", color="white", markeredgecolor=INK, markeredgewidth=1.0, markersize=13, clip_on=False)


def _bar(colours: "ScalarMappable", axes: "Sequence[Axes]", repertoire: Repertoire) -> None:
    if repertoire.occupied.any():
        colour_bar(colours, axes, "fitness")


def _finish(axes: "Axes") -> None:
    tidy(axes)
    axes.grid(visible=False)
