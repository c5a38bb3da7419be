"""QDax's documented plots and CSV logger."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from rookery.compat.qdax import (
    CSVLogger,
    MapElitesRepertoire,
    compute_euclidean_centroids,
    plot_2d_map_elites_repertoire,
    plot_map_elites_results,
    plot_skills_trajectory,
)
from rookery.storage.csv_log import read_csv

INF = float("inf")
GRID = compute_euclidean_centroids((2, 2), 0.0, 1.0)
FITNESS = jnp.array([1.0, -INF, 3.0, 2.0])


@pytest.fixture(autouse=True)
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Draw without a display, close all figures, and check that the settings are unchanged."""
    pyplot.switch_backend("agg")
    before = dict(matplotlib.rcParams)
    yield
    pyplot.close("all")
    assert dict(matplotlib.rcParams) == before


def cells(axes: Axes) -> PolyCollection:
    (found,) = (artist for artist in axes.collections if isinstance(artist, PolyCollection))
    return found


def paths(axes: Axes) -> list[np.ndarray]:
    found = [artist for artist in axes.collections if isinstance(artist, LineCollection)]
    return [np.asarray(line) for lines in found for line in lines.get_segments()]


def colour_at(share: float) -> list[float]:
    return list(matplotlib.colormaps["viridis"](share))


# --- a repertoire


@pytest.mark.parametrize("fitness", [FITNESS[:, None], np.asarray(FITNESS, np.float64)])
def test_each_cell_has_the_colour_of_its_elite(fitness: Any):
    figure, axes = plot_2d_map_elites_repertoire(GRID, fitness, minval=0.0, maxval=1.0)
    assert (type(figure), type(axes)) == (Figure, Axes)
    assert pyplot.gcf() is figure
    polygons = cells(axes)
    corners = [np.asarray(path.vertices) for path in polygons.get_paths()]
    spans = [[corner.min(axis=0).round(3).tolist(), corner.max(axis=0).round(3).tolist()] for corner in corners]
    assert spans == [[[x, y], [x + 0.5, y + 0.5]] for x, y in [(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)]]
    shades = np.asarray(polygons.get_facecolor())
    np.testing.assert_allclose(shades[[0, 2, 3]], [colour_at(0.0), colour_at(1.0), colour_at(0.5)], atol=1e-6)
    assert not any(np.allclose(shades[1], colour_at(share), atol=0.1) for share in np.linspace(0, 1, 11))
    assert (axes.get_xlim(), axes.get_ylim(), axes.get_aspect()) == ((0.0, 1.0), (0.0, 1.0), 1.0)
    assert axes.get_title() == "coverage 75.0 % of 4 cells,  best 3 (star)"


def test_colour_limits_axes_and_dots_are_as_configured():
    descriptors = jnp.array([[1.0, -3.0], [9.0, 9.0], [1.0, 3.0], [19.0, 2.0]])
    figure, given = pyplot.subplots()
    centroids = compute_euclidean_centroids((2, 2), [0.0, -4.0], [20.0, 4.0])
    result = plot_2d_map_elites_repertoire(
        centroids, FITNESS, [0.0, -4.0], jnp.array([20.0, 4.0]), descriptors, given, vmin=1.0, vmax=5.0
    )
    assert result == (None, given)
    assert (given.get_xlim(), given.get_ylim()) == ((0.0, 20.0), (-4.0, 4.0))
    np.testing.assert_allclose(np.asarray(cells(given).get_facecolor())[2], colour_at(0.5), atol=1e-6)
    dots = np.asarray(given.collections[-1].get_offsets())
    np.testing.assert_array_equal(dots, np.asarray(descriptors)[[0, 2, 3]])
    assert len(figure.axes) == 2, "the axes and the colour bar"


# --- results

STEPS = (jnp.arange(3) + 1) * 1000
METRICS = {"coverage": jnp.array([25.0, 50.0, 75.0]), "max_fitness": jnp.array([-INF, 1.0, 3.0])}
METRICS |= {"qd_score": jnp.array([0.0, 2.0, 6.0]), "time": jnp.zeros(3)}
REPERTOIRE = MapElitesRepertoire({"x": jnp.zeros(4)}, FITNESS, GRID, GRID)


def test_results_are_three_curves_and_the_repertoire():
    figure, axes = plot_map_elites_results(STEPS, METRICS, REPERTOIRE, min_descriptor=0.0, max_descriptor=[1.0, 1.0])
    assert (type(figure), type(axes)) == (Figure, Axes)
    assert axes is figure.axes[3]
    for panel, name in zip(figure.axes[:3], ("coverage", "max_fitness", "qd_score"), strict=True):
        (line,) = panel.lines
        np.testing.assert_array_equal(line.get_xdata(), STEPS)
        np.testing.assert_array_equal(line.get_ydata(), METRICS[name])
        assert panel.get_xlabel() == "Environment steps"
    titles = [panel.get_title("left") for panel in figure.axes[:3]]
    assert titles == ["coverage, % of the cells", "best fitness", "QD score"]
    assert len(cells(axes).get_paths()) == 4
    figure.canvas.draw()


# --- skills


def test_each_skill_has_a_colour_and_each_episode_a_line():
    descriptors = jax.random.uniform(jax.random.key(0), (7, 4, 2)).at[5:, 3].set(jnp.nan)  # [T, E, D]
    skills = jnp.concatenate([jnp.eye(2), jnp.eye(2)])
    figure, axes = plot_skills_trajectory(
        trajectories=descriptors.T, skills=skills, min_values=[0.0, 0.2], max_values=[0.5, 1]
    )
    assert (type(figure), type(axes)) == (Figure, Axes)
    lines = paths(axes)
    expected = [descriptors[:, 0], descriptors[:, 2], descriptors[:, 1], descriptors[:5, 3]]
    assert len(lines) == 4
    for line, states in zip(lines, expected, strict=True):
        np.testing.assert_allclose(line, states, rtol=1e-6)
    collections = [artist for artist in axes.collections if isinstance(artist, LineCollection)]
    assert len({tuple(np.asarray(lines.get_color())[0]) for lines in collections}) == 2
    assert all(artist.get_clip_on() for artist in axes.collections), "lines outside the frame are not drawn"
    assert (axes.get_xlim(), axes.get_ylim(), axes.get_aspect()) == ((0.0, 0.5), (0.2, 1.0), 1.0)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["0", "1", "start"]
    figure, axes = plot_skills_trajectory(descriptors.T - 0.5, skills, -1.0, 1.0)
    figure.canvas.draw()
    assert axes.yaxis.label.get_window_extent().x0 >= 0, "the label is inside of the figure"


def test_what_cannot_be_drawn_is_rejected_and_leaves_no_figure():
    flat = REPERTOIRE.replace(centroids=jnp.zeros((4, 1)))
    drawn: dict[str, Any] = {
        "there is no cell to plot": lambda: plot_2d_map_elites_repertoire(jnp.zeros((0, 2)), FITNESS, 0.0, 1.0),
        "4 cells need as many rows": lambda: plot_2d_map_elites_repertoire(GRID, jnp.zeros(3), 0.0, 1.0),
        r"two dimensions .* got \(4, 1\)": lambda: plot_map_elites_results(STEPS, METRICS, flat, 0.0, 1.0),
        "the shape of env_steps": lambda: plot_map_elites_results(STEPS[:2], METRICS, REPERTOIRE, 0.0, 1.0),
        "no finite state": lambda: plot_skills_trajectory(jnp.zeros((2, 4, 0)), jnp.zeros((4, 2)), -1.0, 1.0),
    }
    for message, draw in drawn.items():
        with pytest.raises(NotImplementedError if "two dimensions" in message else ValueError, match=message):
            draw()
    assert pyplot.get_fignums() == []


# --- the logger


def test_a_row_is_appended_and_read_bit_equal(tmp_path: Path):
    path = tmp_path / "logs.csv"
    path.write_text("an older file")
    logger = CSVLogger(str(path), header=["loop", "iteration", "qd_score", "max_fitness"])
    assert path.read_text() == "loop,iteration,qd_score,max_fitness\n"
    assert [column.shape for column in read_csv(path).values()] == [(0,)] * 4
    third = jnp.float32(1.0) / 3
    logger.log({"loop": 1, "iteration": jnp.int32(10), "qd_score": third, "max_fitness": jnp.array([-INF])})
    logger.log({"max_fitness": 0.1, "loop": 2, "iteration": np.int64(20)})
    first, second = path.read_text().splitlines()[1:]
    assert first == f"1,10,{float(third)!r},-inf"
    assert second == "2,20,nan,0.1"
    table = read_csv(path)
    np.testing.assert_array_equal(table["qd_score"], np.array([float(third), np.nan]))
    assert table["iteration"].tolist() == [10.0, 20.0]
    with pytest.raises(ValueError, match=r"the columns \['loop', .*\], but not \['time'\]"):
        logger.log({"loop": 3, "time": 1.0})
    with pytest.raises(ValueError, match=r"\['qd_score'\] have another size; log metrics\[name\]\[-1\]"):
        logger.log({"loop": 3, "qd_score": jnp.zeros(2)})
    assert len(path.read_text().splitlines()) == 3, "a rejected row is not written"
