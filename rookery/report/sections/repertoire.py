"""Repertoire section of a report: maps of all cells, and the history of insertions."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from rookery.report.figures.repertoire import Repertoire, edges, read_repertoire, voronoi
from rookery.report.packing import packed
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import RunFolder

_MOST_DIMENSIONS = 5  # dimensions whose pairs are drawn
_FEWEST, _MOST = 4, 40  # tiles along a dimension in the map of a pair


def repertoire_chapter(folder: RunFolder) -> dict[str, Any] | None:
    """A run's repertoire as JSON values, or None for a run without one.

    `maps` are maps of the same C cells: for one dimension a strip, for two the Voronoi cells, for more a map of each
    pair of the first five dimensions, in tiles that several cells share. `of` `[C]` is the index of each cell's polygon
    in a map; polygon i has the `points` from `starts[i]` to `starts[i + 1]`. `history` has a row for each added or
    improved elite.

    Raises:
      ValueError: a table is damaged.
    """
    if not folder.repertoire_file.exists():
        return None
    repertoire = read_repertoire(folder)
    return {
        "fitness": packed(np.where(repertoire.occupied, repertoire.fitness, np.nan)),
        "centroids": packed(repertoire.centroids),
        "descriptors": packed(repertoire.descriptors),
        "names": repertoire.names,
        "limits": [repertoire.lower.tolist(), repertoire.upper.tolist()],
        "maps": _maps(repertoire),
        "history": _history(folder),
    }


def _history(folder: RunFolder) -> dict[str, Any] | None:
    """Insertions by generation; None for a run of an older version that did not record them."""
    if not folder.cells_file.exists():
        return None
    history = read_csv(folder.cells_file)
    if not {"generation", "cell", "fitness"} <= set(history):
        raise ValueError(f"{folder.cells_file} lacks the columns of its first line; put a copy of the file back.")
    return {name: packed(values) for name, values in history.items()}


def _maps(repertoire: Repertoire) -> list[dict[str, Any]]:
    size, cells = repertoire.centroids.shape[1], np.arange(len(repertoire.centroids))
    if size == 1:
        order = np.argsort(repertoire.centroids[:, 0], kind="stable")
        ends = edges(repertoire.centroids[order, 0], repertoire.lower[0], repertoire.upper[0])
        strip = [_tile(left, right, 0.0, 1.0) for left, right in pairwise(ends)]
        return [_map((0, None), strip, np.argsort(order))]
    if size == 2:
        return [_map((0, 1), voronoi(repertoire), cells)]
    return [_pair(repertoire, pair) for pair in combinations(range(min(size, _MOST_DIMENSIONS)), 2)]


def _map(axes: tuple[int, int | None], polygons: Sequence[np.ndarray], of: np.ndarray) -> dict[str, Any]:
    starts = np.cumsum([0, *(len(polygon) for polygon in polygons)])
    return {"axes": axes, "points": packed(np.concatenate(polygons)), "starts": packed(starts), "of": packed(of)}


def _pair(repertoire: Repertoire, pair: tuple[int, int]) -> dict[str, Any]:
    """Map of two of several dimensions: tiles along the columns of a grid, or few tiles so that all contain cells."""
    ends = [_tile_edges(repertoire, axis) for axis in pair]
    columns, rows = (
        np.clip(np.searchsorted(end, repertoire.centroids[:, axis], side="right") - 1, 0, len(end) - 2)
        for end, axis in zip(ends, pair, strict=True)
    )
    (xs, ys), tall = ends, len(ends[1]) - 1
    tiles = [_tile(xs[x], xs[x + 1], ys[y], ys[y + 1]) for x in range(len(xs) - 1) for y in range(tall)]
    return _map(pair, tiles, columns * tall + rows)


def _tile_edges(repertoire: Repertoire, axis: int) -> np.ndarray:
    values, lower, upper = np.unique(repertoire.centroids[:, axis]), repertoire.lower[axis], repertoire.upper[axis]
    if len(values) <= min(_MOST, len(repertoire.centroids) // 2):
        return edges(values, lower, upper)
    count = int(np.clip(round(len(repertoire.centroids) ** 0.5 / 2), _FEWEST, _MOST))
    return np.linspace(lower, upper, count + 1)


def _tile(left: float, right: float, low: float, high: float) -> np.ndarray:
    return np.array([[left, low], [right, low], [right, high], [left, high]])
