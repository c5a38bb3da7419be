"""Data of a page: quartiles, lineages, maps of a repertoire, skills, episodes, and comparisons of several runs."""

import re
from itertools import pairwise

import numpy as np
import pytest

from rookery.report.readers import open_run
from rookery.report.sections.comparison import comparison_chapter
from rookery.report.sections.repertoire import repertoire_chapter
from rookery.report.sections.run import chapters
from rookery.storage.csv_log import write_table
from rookery.storage.played import FORMAT, Episodes, write_episodes
from tests.report.test_page_json import unpacked
from tests.written_runs import MEMBERS, METRICS, SQUARE, write, write_repertoire

NAN, INF = float("nan"), float("inf")


def page_data(path):
    return chapters(open_run(path))


def numbers(part, *names):
    return [unpacked(part[name]).tolist() for name in names]


class TestLearning:
    def test_independent_members_have_an_interval_over_the_steps_of_each(self, tmp_path):
        config = {"kind": "sac", "draw_hyper": False, "population": 2}
        page = page_data(write(tmp_path, config, members=MEMBERS))
        learning = page["learning"]
        assert numbers(learning, "env_steps") == [[50, 100, 150]]
        assert (learning["best"], learning["seeds"]["count"], learning["seeds"]["points"]) == (None, 2, [0, 1, 2])
        assert numbers(learning["seeds"], "value", "low", "high") == [[0.5, 1, 1.5], [0, -1, 1], [1, 3, 2]]
        assert page["populations"][0]["best"] is None
        assert page["result"] == (
            "Fitness 1.5 (interquartile mean, 95 % interval 1 to 2), after 150 environment steps of each of 2 seeds"
        )

    def test_quartiles_of_the_members_by_steps_and_by_time(self, tmp_path):
        metrics = METRICS | {"seconds_tables": (0.5, 0.0, 1.0)}
        learning = page_data(write(tmp_path, metrics=metrics, members=MEMBERS))["learning"]
        assert numbers(learning, "env_steps", "seconds") == [[100, 200, 300], [2.5, 5.5, 10.5]]
        assert numbers(learning, "best") == [[1, 3, 2]]
        assert numbers(learning, "lower", "median", "upper") == [[0.25, 0, 1.25], [0.5, 1, 1.5], [0.75, 2, 1.75]]
        assert (learning["elite"], learning["agents"], learning["label"]) == (None, {}, "fitness")
        diverged = MEMBERS | {"fitness": (NAN, -2.0, NAN, INF, 5.0, -INF)}  # they are left out
        learning = page_data(write(tmp_path, members=diverged))["learning"]
        for name in ("lower", "median", "upper"):
            np.testing.assert_array_equal(unpacked(learning[name]), [-2.0, NAN, 5.0])
        alone = {"generation": (0, 1, 2), "member": (0,) * 3, "parent": (0,) * 3, "fitness": (1.0, 2.0, 3.0)}
        for members in (alone, None):
            assert "median" not in page_data(write(tmp_path / "alone", members=members))["learning"]

    def test_elites_agents_and_the_label_of_the_fitness(self, tmp_path):
        steps = (2.0**40 + 1, 2.0**40 + 2, 2.0**40 + 3)
        more = {"max_fitness": (1.0, 4.0, 4.0), "qd_score": (0.0,) * 3, "coverage": (1.0, 2.0, 3.0), "env_steps": steps}
        config = {"diayn": {"fitness": "accuracy"}}
        page = page_data(write(tmp_path / "elites", config, METRICS | more | {"return/prey": (0.0, 0.0, 1.0)}))
        assert numbers(page["learning"], "elite") == [[1, 4, 4]]
        assert page["learning"]["agents"] == {"prey": "return/prey"}
        assert page["learning"]["label"] == "discriminator accuracy"
        assert set(page["metrics"]) == {"generation", *METRICS, *more, "return/prey"}
        assert numbers(page["metrics"], "env_steps", "generation") == [list(steps), [0, 1, 2]], "in double precision"
        # The best of all agents is no fitness of a team.
        config = {"kind": "pbt-ippo", "member": "agent", "population": 1}
        metrics = METRICS | {"return/fox": (0.0, 1.0, 2.0), "return/hare": (0.0, -1.0, -2.0)}
        run = write(tmp_path / "team", config, metrics | {"episode_length": (5.0, 6.0, 7.0)})
        assert page_data(run)["learning"]["panels"] == [["episode_length", "Steps of an episode"]]

    def test_measures_have_charts_and_the_objective_its_name(self, tmp_path):
        names = ("measure/success", "measure/distance", "return")
        measures = {f"{begin}{name}": (0.0, 0.5, 1.0) for begin in ("", "best/") for name in names}
        config = {"learner": {"objective": "success"}}
        page = page_data(write(tmp_path / "population", config, METRICS | measures))
        assert page["learning"]["label"] == "success"
        assert page["learning"]["panels"] == [
            ["best/return", "Return, of the best member"],
            ["best/measure/distance", "Distance, of the best member"],
        ]
        assert page["result"].startswith("Best success ")
        assert ["objective", "success"] in page["facts"]
        skills = {"diayn": {"fitness": "diversity"}}
        for more, name in (({}, "return"), (skills, "diversity return, nats")):
            assert ["objective", name] in page_data(write(tmp_path / name, {"learner": {}, **more}))["facts"]
        more = {"max_fitness": (1.0, 4.0, 4.0), "qd_score": (0.0,) * 3, "coverage": (1.0, 2.0, 3.0)}
        panels = page_data(write(tmp_path / "elites", {}, METRICS | measures | more))["learning"]["panels"]
        assert [title for _, title in panels[2:]] == ["Success, of the best child", "Distance, of the best child"]


class TestPopulation:
    def test_the_lineage_and_the_evolved_hyper_parameters(self, tmp_path):
        population = page_data(write(tmp_path / "selected", members=MEMBERS))["populations"][0]
        assert numbers(population, "parents") == [[[0, 1], [0, 0], [0, 1]]]
        assert numbers(population, "fitness") == [[[1, 0], [3, -1], [2, 1]]]
        assert numbers(population, "descends") == [[[1, 0], [1, 1], [1, 1]]]
        assert numbers(population, "best") == [[0, 0, 0]]
        assert population["evolves"] is True
        assert list(population["hyper"]) == ["rate"], "tau does not vary"
        assert population["scales"] == {}, "an older run recorded none"
        recorded = write(tmp_path / "scales", {"scales": {"rate": "Uniform"}}, members=MEMBERS)
        assert page_data(recorded)["populations"][0]["scales"] == {"rate": "Uniform"}
        rates = np.array([[0.1, 0.2], [0.1, 0.125], [0.1, 0.125]], np.float32)
        np.testing.assert_array_equal(unpacked(population["hyper"]["rate"]), rates)
        members = MEMBERS | {"parent": (0, 1) * 3, "fitness": (1.0,) * 4 + (NAN, NAN)}
        population = page_data(write(tmp_path / "alone", members=members))["populations"][0]
        assert (population["evolves"], population["best"]) == (False, None)
        assert page_data(write(tmp_path / "none"))["populations"] == []

    def test_roles_that_evolve_separately_are_populations_of_agents(self, tmp_path):
        columns = {"parent": (0, 1, 2, 3, 0, 1, 0, 1), "fitness": (-1.0, 1.0, -2.0, 2.0, -1.0, 1.0, -3.0, 3.0)}
        table = {"generation": (0,) * 4 + (1,) * 4, "member": (0, 1, 2, 3) * 2, **columns, "rate": (0.1, 0.2) * 4}
        returns = {"return/chaser": (0.0, 1.0), "return/chased": (0.0, -1.0)}
        metrics = {name: values[:2] for name, values in METRICS.items()} | {"env_steps": (6.0, 12.0)} | returns
        run = page_data(write(tmp_path, {"kind": "pbt-ippo", "member": "agent", "population": 2}, metrics, table))
        chasers, chased = run["populations"]
        assert (chasers["name"], chased["name"]) == ("chaser", "chased")
        assert numbers(chasers, "parents", "best", "fitness") == [[[0, 1], [0, 0]], [0, 0], [[-1, -2], [-1, -3]]]
        assert numbers(chased, "parents", "best", "fitness") == [[[0, 1], [0, 0]], [0, 1], [[1, 2], [1, 3]]]
        assert "median" not in run["learning"], "quartiles over both roles are meaningless"
        assert chasers["label"] == "fitness"

        rated = table | {"rating": (-9.0, 9.0, 9.0, -9.0, 5.0, -5.0, -5.0, 5.0)}
        run = page_data(write(tmp_path, {"kind": "pbt-ippo", "member": "agent", "population": 2}, metrics, rated))
        chasers, chased = run["populations"]
        assert chasers["label"] == "rating"
        assert numbers(chasers, "best", "fitness") == [[0, 0], [[-9, 9], [5, -5]]]
        assert numbers(chased, "best", "fitness") == [[0, 1], [[9, -9], [-5, 5]]]
        assert list(chasers["hyper"]) == []

    def test_the_page_has_the_ratings_of_a_league(self, tmp_path):
        empty = {
            "league_entered/0": (NAN, 4.0, 4.0),
            "league_entered/1": (NAN, 2.0, 2.0),
            "league_entered/2": (NAN,) * 3,
        }
        rated = {"league_rating/prey/0": (NAN, 9.0, -30.0), "league_rating/prey/1": (NAN, 8.0, 120.4)}
        metrics = METRICS | empty | rated | {"league_rating/prey/2": (NAN,) * 3}
        facts = dict(page_data(write(tmp_path, metrics=metrics, members=MEMBERS))["facts"])
        text = facts["ratings of earlier opponents of prey"]
        assert re.fullmatch(r"\+120 \(generation 2\), .30 \(generation 4\)", text)
        for lost in ({**metrics, "league_rating/x": (1.0,) * 3}, METRICS | {"league_rating/prey/x": (1.0,) * 3}):
            with pytest.raises(ValueError, match=r"metrics\.csv lacks the columns league_entered/x; put a copy"):
                page_data(write(tmp_path, metrics=lost, members=MEMBERS))


def area(corners):
    """Of a polygon (the shoelace formula)."""
    x, y = corners.T
    return abs(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1))) / 2


def polygons(picture):
    starts, points = unpacked(picture["starts"]), unpacked(picture["points"])
    return [points[first:last] for first, last in pairwise(starts)]


def contains(polygon, point):
    """Whether a point is in a convex polygon or on its edge: on the same side of all edges."""
    along, to = np.roll(polygon, -1, axis=0) - polygon, point - polygon
    side = along[:, 0] * to[:, 1] - along[:, 1] * to[:, 0]
    return bool((side >= -1e-6).all() or (side <= 1e-6).all())


def drawn(path, centroids, config=None):
    """The section of a repertoire with these centroids in the unit cube."""
    centroids = np.asarray(centroids, float)
    size = centroids.shape[1]
    limits = {"meaning": "place", "lower": [0.0] * size, "upper": [1.0] * size}
    write(path, {"descriptor": limits, **(config or {})})
    write_repertoire(path, centroids.tolist(), list(range(len(centroids))))
    found = repertoire_chapter(open_run(path))
    assert found is not None
    return found


def grid(*counts):
    axes = [(np.arange(count) + 0.5) / count for count in counts]
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)


def random(cells, size):
    return np.random.default_rng(size).random((cells, size))


class TestMaps:
    @pytest.mark.parametrize(
        ("centroids", "axes"),
        [
            ([[0.7], [0.1], [0.3]], [(0, None)]),
            (grid(4, 3), [(0, 1)]),
            (random(50, 2), [(0, 1)]),
            (grid(3, 2, 4), [(0, 1), (0, 2), (1, 2)]),
            (random(300, 6), [(a, b) for a in range(5) for b in range(a + 1, 5)]),
            ([[0.5, 0.5, 0.5]], [(0, 1), (0, 2), (1, 2)]),
        ],
    )
    def test_polygons_partition_the_limits_and_contain_their_cells(self, tmp_path, centroids, axes):
        centroids, found = np.asarray(centroids), drawn(tmp_path, centroids)
        assert [picture["axes"] for picture in found["maps"]] == axes
        for picture, (x, y) in zip(found["maps"], axes, strict=True):
            tiles, of = polygons(picture), unpacked(picture["of"])
            corners = np.concatenate(tiles)
            assert [corners.min(), corners.max()] == pytest.approx([0.0, 1.0])
            assert sum(map(area, tiles)) == pytest.approx(1.0, abs=1e-5)
            assert len(of) == len(centroids)
            for cell, polygon in enumerate(of):
                place = [centroids[cell, x], 0.5 if y is None else centroids[cell, y]]
                assert contains(tiles[polygon], place), (cell, polygon)

    def test_the_tiles_of_strips_grids_and_other_repertoires(self, tmp_path):
        (strip,) = drawn(tmp_path, [[0.75], [0.0], [0.25]])["maps"]
        assert unpacked(strip["of"]).tolist() == [2, 0, 1], "in the order of the centroids"
        np.testing.assert_allclose([tile[:2, 0] for tile in polygons(strip)], [[0, 0.125], [0.125, 0.5], [0.5, 1]])
        (picture,) = drawn(tmp_path, random(20, 2))["maps"]
        assert unpacked(picture["of"]).tolist() == list(range(20))
        first, second, third = drawn(tmp_path, grid(3, 2, 4))["maps"]
        assert [len(polygons(picture)) for picture in (first, second, third)] == [6, 12, 8]
        assert unpacked(first["of"]).tolist() == np.repeat(np.arange(6), 4).tolist()
        assert np.bincount(unpacked(second["of"])).tolist() == [2] * 12
        assert [len(polygons(picture)) for picture in drawn(tmp_path, random(300, 6))["maps"]] == [9 * 9] * 10
        assert len(polygons(drawn(tmp_path, random(8, 3))["maps"][0])) == 16


class TestRepertoire:
    def test_empty_cells_are_nan_and_insertions_are_listed(self, tmp_path):
        write(tmp_path)
        assert repertoire_chapter(open_run(tmp_path)) is None
        write_repertoire(tmp_path, SQUARE, [1.0, -INF, 2.0, NAN])
        assert (repertoire_chapter(open_run(tmp_path)) or {})["history"] is None
        (tmp_path / "cells.csv").touch()
        assert (repertoire_chapter(open_run(tmp_path)) or {})["history"] is None
        history = {"generation": (0, 0, 2), "cell": (0, 2, 2), "fitness": (1.0, 1.5, 2.0)}
        write_table(tmp_path / "cells.csv", history)
        found = repertoire_chapter(open_run(tmp_path))
        assert found is not None
        np.testing.assert_array_equal(unpacked(found["fitness"]), [1.0, NAN, 2.0, NAN])
        assert {name: unpacked(column).tolist() for name, column in found["history"].items()} == {
            name: list(values) for name, values in history.items()
        }
        assert found["names"] == ["descriptor (1 of 2)", "descriptor (2 of 2)"]
        assert found["limits"] == [[0.0, 0.0], [1.0, 1.0]]


LIMITS = {"meaning": "final x, y", "lower": [-1.0, -1.0], "upper": [1.0, 1.0], "kind": "final"}


class TestSkills:
    def test_trajectories_keep_their_ends(self, tmp_path):
        write(tmp_path, {"skills": {"num_skills": 2}, "descriptor": LIMITS})
        long = np.arange(1001)
        states = {"skill": np.repeat([1, 0], [1001, 2]), "episode": np.repeat([0, 1], [1001, 2])}
        places = {
            "step": [*long, 0, 1],
            "descriptor/0": [*(long / 1000), 0.0, -1.0],
            "descriptor/1": [*(-long / 1000), 0, 1],
        }
        missing = r"skills\.csv is missing in it; `rookery evaluate .*` writes it"
        assert re.search(missing, page_data(tmp_path)["skills"]["missing"])
        write_table(tmp_path / "skills.csv", states | places)
        skills = page_data(tmp_path)["skills"]
        short, thinned = skills["trajectories"]
        assert (short["skill"], thinned["skill"]) == (0, 1)
        np.testing.assert_allclose(unpacked(short["points"]), [[0, 0], [-1, 1]], atol=1e-4)
        points = unpacked(thinned["points"])
        assert points.shape == (400, 2)
        np.testing.assert_allclose(points[[0, -1]], [[0, 0], [1, -1]], atol=1e-4)
        assert np.diff(points[:, 0]).max() < 0.0041, "points are evenly spaced"
        assert skills["names"] == ["final x", "final y"]
        assert skills["limits"] == [[-1, -1], [1, 1]]
        assert page_data(write(tmp_path))["skills"] is None


HEADER = {"format": FORMAT, "generation": 4, "seed": 1, "task": "t", "names": ["r"], "seconds_per_step": 0.05}


class TestEpisodes:
    def test_the_data_of_the_player(self, tmp_path):
        write(tmp_path)
        assert page_data(tmp_path)["episodes"] is None
        position = np.linspace(-1, 1, 2 * 3 * 1 * 2).reshape(2, 3, 1, 2).astype(np.float32)
        arrays = {"position": position, "visible": np.ones((2, 3, 1), bool), "frames": np.array([3, 2], np.int32)}
        arrays |= {"heading": np.full((2, 3, 1), np.nan, np.float32), "reward": np.zeros((2, 3, 1), np.float32)}
        arrays |= {"step": np.array([[0, 1, 2], [0, 1, 1]], np.int32)}
        write_episodes(tmp_path, Episodes({**HEADER, "kind": "plane", "episodes": [{"cell": 3}]}, arrays))
        found = page_data(tmp_path)["episodes"]
        assert (found["kind"], found["secondsPerStep"], found["generation"], found["film"]) == ("plane", 0.05, 4, None)
        types = {"position": "i2", "visible": "u1", "frames": "i4", "heading": "i2", "step": "i4", "reward": "f4"}
        assert {name: array["type"] for name, array in found["arrays"].items()} == types
        np.testing.assert_allclose(unpacked(found["arrays"]["position"]), position, atol=2 / 65534)
        film = np.frombuffer(b"GIF89a", np.uint8)
        write_episodes(tmp_path, Episodes({**HEADER, "kind": "film", "episodes": []}, {"film": film}))
        assert page_data(tmp_path)["episodes"]["film"] == "data:image/gif;base64,R0lGODlh"


class TestComparison:
    def test_groups_of_one_environment_are_compared(self, tmp_path):
        best = {"good": [2.0, 4.0], "bad": [1.0, 1.0]}
        for name, values in best.items():
            for seed, value in enumerate(values):
                metrics = METRICS | {"best_fitness": (0.0, 0.0, value)}
                write(tmp_path / f"{name}{seed}", {"kind": name, "run": {"seed": seed}}, metrics)
        found = comparison_chapter(sorted(tmp_path.iterdir()), resamples=20)
        (room,) = found["environments"]
        assert (room["name"], room["budget"], room["score"], found["notes"]) == (
            "room",
            300,
            "best member's fitness",
            [],
        )
        groups = {group["name"]: group for group in room["groups"]}
        assert groups["good"]["runs"] == ["good0", "good1"]
        assert (groups["good"]["scores"], groups["good"]["iqm"]["value"]) == ([2.0, 4.0], 3.0)
        assert groups["bad"]["iqm"] == {"value": 1.0, "low": 1.0, "high": 1.0}
        assert numbers(groups["good"], "steps") == [[100, 200, 300]]
        assert numbers(groups["good"]["curve"], "value") == [[0, 0, 3]]
        (pair,) = room["pairs"]
        assert (pair["first"], pair["second"], pair["value"], pair["clear"]) == ("good", "bad", 1.0, False)


DAMAGE = {
    "metrics.csv": "generation,env_steps\n0,1\n",
    "repertoire.csv": "cell,fitness,descriptor/0,centroid/0\n0,1.0,0.5,nan\n",
    "cells.csv": "generation,cell\n0,1\n",
    "episodes.npz": "PK\x03\x04 truncated",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_the_error_for_a_damaged_file_is_one_sentence(tmp_path, name):
    write(tmp_path, members=MEMBERS)
    write_repertoire(tmp_path)
    (tmp_path / name).write_text(DAMAGE[name])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / name))}[^\n]*; [^\n]*\.$"):
        page_data(tmp_path)
