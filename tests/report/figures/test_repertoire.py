"""`repertoire.png`: positions and colours of the cells, Voronoi polygons, bins, and the title."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from rookery.envs import base as envs
from rookery.report import dimensions
from rookery.report.figures import repertoire as repertoire_picture
from rookery.report.figures.repertoire import draw_repertoire
from rookery.report.readers import Repertoire, open_run
from rookery.storage.run_dir import create
from tests import written_runs
from tests.report.sections.test_sections import area

INF, NAN = float("inf"), float("nan")
YELLOW, VIOLET = (matplotlib.colormaps["viridis"](end)[:3] for end in (1.0, 0.0))
PALE = (0xE9 / 255, 0xEE / 255, 0xF1 / 255)


def write(path: Path, centroids, fitness, **more) -> Path:
    """A run's folder; descriptors equal the centroids, limits are [0, 1] unless `descriptor` is given."""
    size = len(centroids[0])
    limits = more.get("descriptor", {"meaning": "place", "lower": [0.0] * size, "upper": [1.0] * size})
    config = {"kind": "map-elites", "environment": {"env": "arm"}} | ({"descriptor": limits} if limits else {})
    scores = more.get("qd_score")
    written_runs.write(path, config, scores and {"env_steps": scores, "qd_score": scores})
    written_runs.write_repertoire(path, np.asarray(centroids, float), fitness)
    return path


def read(path: Path) -> Repertoire:
    return open_run(path).repertoire


def title(path: Path) -> str:
    return repertoire_picture._title(open_run(path))


def has_colour(picture: Path, colour) -> np.ndarray:
    """Whether each pixel of a picture has a colour, `[height, width]` bool."""
    return np.abs(imread(picture)[..., :3] - np.asarray(colour)).max(axis=-1) < 0.02


def fraction(picture: Path, colour) -> float:
    """The fraction of pixels that have a colour."""
    return float(has_colour(picture, colour).mean())


SQUARE = [[0.25, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.75]]


class TestDrawn:
    @pytest.mark.parametrize("centroids", [[[0.75], [0.25], [0.5]], np.random.default_rng(0).random((30, 8))])
    def test_it_is_drawn_for_any_number_of_dimensions(self, tmp_path, centroids):
        fitness = [-INF, *range(len(centroids) - 1)]
        path = draw_repertoire(write(tmp_path, centroids, fitness))
        assert path == tmp_path / "repertoire.png"
        assert fraction(path, YELLOW) > 0.001
        assert fraction(path, PALE) > 0.01

    def test_cells_have_the_colours_of_their_fitness(self, tmp_path):
        picture = draw_repertoire(write(tmp_path, SQUARE, [0.0, 1.0, -INF, -INF]))
        yellow, violet, pale = (has_colour(picture, colour) for colour in (YELLOW, VIOLET, PALE))
        assert yellow.mean() == pytest.approx(violet.mean(), rel=0.1)  # except for the star and the colour bar
        assert pale.mean() == pytest.approx(yellow.mean() + violet.mean(), rel=0.1)
        middle = [np.median(np.argwhere(pixels), axis=0) for pixels in (yellow, violet, pale)]
        assert middle[0][0] < middle[1][0]  # higher up: further along the second dimension
        assert middle[0][1] < middle[2][1]  # further left: less far along the first

    def test_all_cells_of_an_empty_repertoire_are_pale(self, tmp_path):
        before = draw_repertoire(write(tmp_path, SQUARE, [-INF, -INF, 5.0, -INF])).read_bytes()
        picture = draw_repertoire(write(tmp_path, SQUARE, [-INF] * 4))
        assert picture.read_bytes() != before, "an existing picture is replaced"
        assert fraction(picture, PALE) > 0.6
        assert fraction(picture, YELLOW) == 0.0
        assert title(tmp_path) == "map-elites on arm\nempty: none of 4 cells has an elite"


class TestTitle:
    def test_the_title_has_coverage_best_fitness_and_the_last_qd_score(self, tmp_path):
        assert title(write(tmp_path, SQUARE, [0.0] * 4)).endswith("best 0 (star)")
        write(tmp_path, SQUARE, [-2.0, 3.25, -INF, 1.0], qd_score=[1.0, 12_345.6])
        assert title(tmp_path) == "map-elites on arm\ncoverage 75.0 % of 4 cells,  best 3.25 (star),  QD score 12,346"


class TestVoronoi:
    def test_cells_contain_the_points_nearest_to_their_centroid(self, tmp_path):
        random = np.random.default_rng(1)
        limits = {"meaning": "place", "lower": [-3.0, 10.0], "upper": [9.0, 11.0]}
        lower, upper = np.array(limits["lower"]), np.array(limits["upper"])
        centroids = random.uniform(lower, upper, (20, 2))
        cells = repertoire_picture.voronoi(read(write(tmp_path, centroids, range(20), descriptor=limits)))
        points = random.uniform(lower, upper, (40_000, 2))
        nearest = np.argmin(((points[:, None] - centroids[None]) ** 2).sum(axis=-1), axis=1)
        counted = np.bincount(nearest, minlength=20) / len(points) * 12.0
        np.testing.assert_allclose([area(cell) for cell in cells], counted, atol=0.08)  # five standard deviations
        assert sum(area(cell) for cell in cells) == pytest.approx(12.0)
        for cell in cells:
            assert (cell >= lower - 1e-9).all()
            assert (cell <= upper + 1e-9).all()

    def test_centroids_that_coincide_or_are_on_a_limit(self, tmp_path):
        centroids = [[0.0, 0.0], [0.5, 0.5], [0.5, 0.5], [1.0, 1.0], [0.3, 1.0]]
        cells = repertoire_picture.voronoi(read(write(tmp_path, centroids, range(5))))
        areas = [area(cell) for cell in cells]
        assert sum(areas) == pytest.approx(1.0)
        assert areas[2] == 0.0
        assert min(areas[0], areas[1], areas[3], areas[4]) > 0.05
        draw_repertoire(tmp_path)


def test_a_bin_has_the_best_fitness_of_its_elites(tmp_path):
    centroids = [[0.1, 0.9, 0.9], [0.2, 0.1, 0.8], [0.9, 0.9, 0.9], [0.6, 0.5, 1.7], [0.4, 0.4, 0.4]]
    repertoire = read(write(tmp_path, centroids, [1.0, 3.0, 2.0, -4.0, -INF]))
    # First dimension against third, in halves; 1.7 exceeds its limit and belongs to the outermost bin.
    assert repertoire_picture._best_of_bins(repertoire, (0, 2), 2).tolist() == [[-INF, 3.0], [-INF, 2.0]]
    assert repertoire_picture._best_of_bins(repertoire, (0, 1), 2).tolist() == [[3.0, 1.0], [-INF, 2.0]]


def test_dimensions_are_named_by_the_meaning():
    named = {
        ("final x, y", 2): ["final x", "final y"],
        ("final x, y of the torso", 2): ["final x of the torso", "final y of the torso"],
        ("x, y, z", 3): ["x", "y", "z"],
        ("sum of each half", 2): ["sum of each half (1 of 2)", "sum of each half (2 of 2)"],
        ("x, y", 3): ["x, y (1 of 3)", "x, y (2 of 3)", "x, y (3 of 3)"],
        ("slow, and then fast", 2): ["slow, and then fast (1 of 2)", "slow, and then fast (2 of 2)"],
        ("share of steps", 1): ["share of steps"],
    }
    assert {given: dimensions.names(*given) for given in named} == named
    spec = envs.descriptor_spec(("position", "speed"), "final", (0.0, 0.0), (1.0, 2.0))
    assert spec.meaning == "position, speed"
    recorded = json.loads(json.dumps({"descriptor": spec._asdict()}))
    assert dimensions.dimensions(recorded, 2).names == ["position", "speed"]


def test_missing_limits_are_estimated_from_the_centroids(tmp_path):
    repertoire = read(write(tmp_path, SQUARE, [0.0] * 4, descriptor=None))
    np.testing.assert_allclose([repertoire.lower, repertoire.upper], [[0.0, 0.0], [1.0, 1.0]])
    assert repertoire.names == ["descriptor (1 of 2)", "descriptor (2 of 2)"]
    alone = read(write(tmp_path, [[3.0, 4.0]], [0.0], descriptor=None))
    assert (alone.upper > alone.lower).all()


def test_errors(tmp_path):
    create(tmp_path, {}).release()
    with pytest.raises(ValueError, match=r"has no repertoire to draw: repertoire\.csv is missing in it; choose a run"):
        draw_repertoire(tmp_path)
    (tmp_path / "repertoire.csv").write_text("cell,fitness,centroid/0\n0,1.0,2.0\n")
    with pytest.raises(ValueError, match=r"repertoire\.csv lacks the columns descriptor/0; let the run write it again"):
        draw_repertoire(tmp_path)
    (tmp_path / "repertoire.csv").write_text("cell,fitness,descriptor/0,centroid/0\n")
    with pytest.raises(ValueError, match=r"repertoire\.csv lacks cells; let the run write it again"):
        draw_repertoire(tmp_path)
    assert not (tmp_path / "repertoire.png").exists()


def test_individuals_without_cells_are_counted(tmp_path):
    folder = write(tmp_path / "run", [[0.2, 0.3], [0.7, 0.6], [0.5, 0.5]], [1.0, -INF, 2.0])
    repertoire = read(folder)
    assert repertoire.has_cells
    assert repertoire_picture.summary(repertoire).startswith("coverage 66.7 % of 3 cells")
    text = repertoire_picture.summary(repertoire._replace(has_cells=False))
    assert text == "2 of at most 3 individuals,  best 2 (star)"
