"""Repertoire section of a report: maps of all cells, and the history of insertions."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from rookery.report.figures.repertoire import edges, strip, tile, voronoi
from rookery.report.page_json import JsonObject, packed
from rookery.report.readers import Repertoire, RunRecord

_MOST_DIMENSIONS = 5  # dimensions whose pairs are drawn
_FEWEST, _MOST = 4, 40  # tiles along a dimension in the map of a pair


def repertoire_chapter(record: RunRecord) -> JsonObject | None:
    """A run's repertoire as JSON values, or None for a run without one.

    `maps` are maps of the same C cells: for one dimension a strip, for two the Voronoi cells, for more a map of each
    pair of the first five dimensions, in tiles that several cells share. `of` `[C]` is the index of each cell's polygon
    in a map; polygon i has the `points` from `starts[i]` to `starts[i + 1]`. `history` has a row for each added or
    improved elite; None for a run of an older version that did not record them.

    Raises:
      ValueError: a table is damaged.
    """
    if not record.has_repertoire:
        return None
    repertoire, insertions = record.repertoire, record.insertions
    return {
        "fitness": packed(np.where(repertoire.occupied, repertoire.fitness, np.nan)),
        "centroids": packed(repertoire.centroids),
        "descriptors": packed(repertoire.descriptors),
        "names": repertoire.names,
        "limits": [repertoire.lower.tolist(), repertoire.upper.tolist()],
        "maps": _maps(repertoire),
        "history": insertions and {name: packed(values) for name, values in insertions.items()},
    }


def _maps(repertoire: Repertoire) -> list[JsonObject]:
    size, cells = repertoire.centroids.shape[1], np.arange(len(repertoire.centroids))
    if size == 1:
        order, tiles = strip(repertoire)
        return [_map((0, None), tiles, np.argsort(order))]
    if size == 2:
        return [_map((0, 1), voronoi(repertoire), cells)]
    return [_pair(repertoire, pair) for pair in combinations(range(min(size, _MOST_DIMENSIONS)), 2)]


def _map(axes: tuple[int, int | None], polygons: Sequence[np.ndarray], of: np.ndarray) -> JsonObject:
    starts = np.cumsum([0, *(len(polygon) for polygon in polygons)])
    return {"axes": axes, "points": packed(np.concatenate(polygons)), "starts": packed(starts), "of": packed(of)}


def _pair(repertoire: Repertoire, pair: tuple[int, int]) -> JsonObject:
    """Map of two of several dimensions: tiles along the columns of a grid, or few tiles so that all contain cells."""
    ends = [_tile_edges(repertoire, axis) for axis in pair]
    columns, rows = (
        np.clip(np.searchsorted(end, repertoire.centroids[:, axis], side="right") - 1, 0, len(end) - 2)
        for end, axis in zip(ends, pair, strict=True)
    )
    (xs, ys), tall = ends, len(ends[1]) - 1
    tiles = [tile(xs[x], xs[x + 1], ys[y], ys[y + 1]) for x in range(len(xs) - 1) for y in range(tall)]
    return _map(pair, tiles, columns * tall + rows)


def _tile_edges(repertoire: Repertoire, axis: int) -> np.ndarray:
    values, lower, upper = np.unique(repertoire.centroids[:, axis]), repertoire.lower[axis], repertoire.upper[axis]
    if len(values) <= min(_MOST, len(repertoire.centroids) // 2):
        return edges(values, lower, upper)
    count = int(np.clip(round(len(repertoire.centroids) ** 0.5 / 2), _FEWEST, _MOST))
    return np.linspace(lower, upper, count + 1)
