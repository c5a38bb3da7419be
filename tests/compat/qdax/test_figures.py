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


@pytest.mark.parametrize("fitness", [FITNESS, FITNESS[:, None], np.asarray(FITNESS, np.float64)])
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


@pytest.mark.parametrize("fitness", [-INF, 2.0])
def test_one_cell_is_drawn_empty_and_full(fitness: float):
    figure, axes = plot_2d_map_elites_repertoire(jnp.full((1, 2), 0.5), jnp.full(1, fitness), 0.0, 1.0)
    assert len(cells(axes).get_paths()) == 1
    assert axes.get_title().startswith("empty: " if fitness < 0 else "coverage 100.0 %")
    assert figure is not None
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("error", "changes", "message"),
    [
        (NotImplementedError, {"centroids": jnp.zeros((4, 3))}, r"two dimensions can be plotted, .* got \(4, 3\)"),
        (ValueError, {"centroids": jnp.zeros((0, 2))}, "there is no cell to plot"),
        (ValueError, {"repertoire_fitnesses": jnp.zeros(3)}, r"4 cells need as many rows; got fitnesses \(3,\)"),
        (ValueError, {"repertoire_descriptors": jnp.zeros((4, 1))}, r"descriptors \(4, 1\)"),
        (ValueError, {"maxval": 0.0}, r"the lower below the upper, got \[0.0, 0.0\], \[0.0, 0.0\]"),
        (ValueError, {"minval": [0.0]}, "limits of 2 dimensions must be one number or 2 numbers"),
    ],
)
def test_a_repertoire_that_cannot_be_drawn_is_rejected(error: Any, changes: dict[str, Any], message: str):
    arguments = {"centroids": GRID, "repertoire_fitnesses": FITNESS, "minval": 0.0, "maxval": 1.0}
    with pytest.raises(error, match=message):
        plot_2d_map_elites_repertoire(**{**arguments, **changes})
    assert pyplot.get_fignums() == []


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


@pytest.mark.parametrize("size", [0, 1])
def test_results_without_rows_and_with_one_row_are_drawn(size: int):
    metrics = {name: values[:size] for name, values in METRICS.items()}
    figure, _ = plot_map_elites_results(STEPS[:size], metrics, REPERTOIRE, 0.0, 1.0, x_label="Evaluations")
    assert [np.size(panel.lines[0].get_xdata()) for panel in figure.axes[:3]] == [size] * 3
    assert figure.axes[0].get_xlabel() == "Evaluations"
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("metrics", "steps", "message"),
    [
        ({"coverage": jnp.zeros(3)}, STEPS, "metrics need .*; max_fitness, qd_score is missing"),
        (METRICS, STEPS[:2], r"the shape of env_steps, \(2,\); got .*'coverage': \(3,\)"),
    ],
)
def test_results_that_do_not_fit_are_rejected(metrics: dict[str, jax.Array], steps: jax.Array, message: str):
    with pytest.raises(ValueError, match=message):
        plot_map_elites_results(steps, metrics, REPERTOIRE, 0.0, 1.0)
    with pytest.raises(NotImplementedError, match="two dimensions"):
        plot_map_elites_results(STEPS, METRICS, REPERTOIRE.replace(centroids=jnp.zeros((4, 1))), 0.0, 1.0)
    assert pyplot.get_fignums() == []


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


def test_one_step_of_one_skill_is_drawn():
    figure, axes = plot_skills_trajectory(jnp.zeros((2, 1, 1)), jnp.eye(1), -1.0, 1.0)
    assert [line.tolist() for line in paths(axes)] == [[[0.0, 0.0]]]
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("shape", "episodes", "limit", "message"),
    [
        ((3, 4, 7), 4, 1.0, r"must be \[2, E, T\] and skills \[E, K\], got \(3, 4, 7\)"),
        ((2, 4, 7), 3, 1.0, r"got \(2, 4, 7\) and \(3, 2\)"),
        ((2, 0, 7), 0, 1.0, "no finite state"),
        ((2, 4, 0), 4, 1.0, "no finite state"),
        ((2, 4, 7), 4, -1.0, "the lower below the upper"),
    ],
)
def test_trajectories_that_cannot_be_drawn_are_rejected(shape: tuple, episodes: int, limit: float, message: str):
    with pytest.raises(ValueError, match=message):
        plot_skills_trajectory(jnp.zeros(shape), jnp.zeros((episodes, 2)), -1.0, limit)
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
