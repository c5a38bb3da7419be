"""`skills.png`: the trajectory of each episode in the colour of its skill, the view, and the legend."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from rookery.report.figures import skills as skills_picture
from rookery.report.figures import style
from rookery.report.figures.skills import draw_skills
from rookery.report.readers import open_run
from rookery.storage.csv_log import write_table
from rookery.storage.run_dir import create
from tests import written_runs

ROOM = {"meaning": "final x, y", "kind": "final", "lower": [-1.0, -1.0], "upper": [1.0, 1.0]}
LINE = {"meaning": "final x", "kind": "final", "lower": [-1.0], "upper": [1.0]}
FEET = {"meaning": "ground contact of each foot", "kind": "mean", "lower": [0.0, 0.0], "upper": [1.0, 1.0]}


def write(path, episodes, descriptor=ROOM):
    """A run's folder; `episodes` are pairs of a skill and its states `[states, D]`."""
    rows, numbers = [], Counter()
    for skill, states in episodes:
        rows += [(skill, numbers[skill], step, *map(float, row)) for step, row in enumerate(states)]
        numbers[skill] += 1
    run = written_runs.write(path, {"kind": "diayn", "descriptor": descriptor}, metrics=None)
    names = ["skill", "episode", "step", *(f"descriptor/{index}" for index in range(len(rows[0]) - 3))]
    write_table(run / "skills.csv", dict(zip(names, zip(*rows, strict=True), strict=True)))
    return run


def axes_of(path) -> list[Any]:
    """The axes of the figure of a run; not typed, since their content is inspected by its methods."""
    return list(skills_picture._figure(open_run(path)).axes)


def drawn(path):
    """Skill -> the figure's lines and the dots at their ends; the starts; and the axes."""
    axes, *_ = axes_of(path)
    lines = [collection for collection in axes.collections if hasattr(collection, "get_segments")]
    dots = {collection.get_label(): collection for collection in axes.collections if collection not in lines}
    starts = dots.pop("start", None)
    places = {label: np.asarray(collection.get_offsets()).tolist() for label, collection in dots.items()}
    rings = None if starts is None else np.asarray(starts.get_offsets()).tolist()
    return {int(label): (own, places[label]) for label, own in zip(places, lines, strict=True)}, rings, axes


def paths(lines):
    return [segment.tolist() for segment in lines.get_segments()]


def title(path):
    return skills_picture._figure(open_run(path)).get_suptitle()


def frame(axes):
    return [list(map(float, axes.get_xlim())), list(map(float, axes.get_ylim()))]


def straight(skills, size=2, length=0.9):
    """An episode of two steps for each skill, outwards from the origin."""
    angles = 2 * np.pi * np.arange(skills) / skills
    ends = np.stack([np.cos(angles), np.sin(angles), *np.zeros((max(size - 2, 0), skills))], axis=1)[:, :size]
    return [(skill, np.linspace(np.zeros(size), length * end, 3)) for skill, end in enumerate(ends)]


class TestTrajectories:
    def test_every_episode_is_a_line_in_its_skills_colour_and_ends_in_a_dot(self, tmp_path):
        first, second = [[0.0, 0.0], [0.5, 0.0], [1.0, 0.25]], [[0.0, 0.0], [0.5, 0.5]]
        other = [[0.0, 0.0], [-1.0, 0.0]]
        skills, starts, _ = drawn(write(tmp_path, [(0, first), (3, other), (0, second)]))
        assert list(skills) == [0, 3]
        assert paths(skills[0][0]) == [first, second]
        assert paths(skills[3][0]) == [other]
        assert skills[0][1] == [[1.0, 0.25], [0.5, 0.5]]
        assert skills[3][1] == [[-1.0, 0.0]]
        for (lines, _), colour in zip(skills.values(), style.PALETTE, strict=False):
            assert np.asarray(lines.get_colors())[:, :3].tolist() == [list(to_rgba(colour)[:3])] * len(paths(lines))
        assert starts == [[0.0, 0.0]]  # one ring for all episodes with this start

    def test_one_dimension_is_drawn_over_the_steps(self, tmp_path):
        skills, starts, axes = drawn(write(tmp_path, [(0, [[0.0], [0.5], [0.75]]), (1, [[-0.5], [-1.0]])], LINE))
        assert paths(skills[0][0]) == [[[0.0, 0.0], [1.0, 0.5], [2.0, 0.75]]]
        assert skills[1][1] == [[1.0, -1.0]]
        assert starts == [[0.0, -0.5], [0.0, 0.0]]
        assert frame(axes) == [[0.0, 2.0], [-1.0, 1.0]]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "x")

    def test_of_many_dimensions_the_first_two_are_drawn(self, tmp_path):
        descriptor = {"meaning": "place", "kind": "final", "lower": [-1.0] * 4, "upper": [1.0] * 4}
        skills, _, axes = drawn(write(tmp_path, [(0, [[0.0, 0.0, 9.0, 9.0], [1.0, -1.0, 9.0, 9.0]])], descriptor))
        assert paths(skills[0][0]) == [[[0.0, 0.0], [1.0, -1.0]]]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("place (1 of 4)", "place (2 of 4)")
        assert title(tmp_path).endswith("1 skill, 1 episode each,  two of 4 dimensions")

    def test_states_that_are_not_finite_are_left_out_and_rows_may_be_in_any_order(self, tmp_path):
        states = [[0.0, 0.0], [0.5, 0.5], [float("nan"), 0.0]]
        write(tmp_path, [(0, states), (1, [[float("inf"), 0.0]]), (2, [[0.0, 0.0], [0.5, 0.0], [1.0, 0.0]])])
        header, *rows = (tmp_path / "skills.csv").read_text().splitlines()
        (tmp_path / "skills.csv").write_text("\n".join([header, *reversed(rows), ""]))
        skills, _, _ = drawn(tmp_path)
        assert list(skills) == [0, 2]
        assert skills[0][1] == [[0.5, 0.5]]
        assert paths(skills[2][0]) == [[[0.0, 0.0], [0.5, 0.0], [1.0, 0.0]]]


class TestMeans:
    # The contacts of two feet; the start state is no part of the episode's mean, so it has no effect here.
    CONTACTS = ([1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0])

    def test_the_mean_so_far_ends_in_the_episodes_descriptor(self, tmp_path):
        skills, starts, axes = drawn(write(tmp_path, [(0, self.CONTACTS)], FEET))
        points = [segment[-1] for segment in paths(skills[0][0])]
        np.testing.assert_allclose(points, [[1 / 2, 0.0], [1 / 3, 0.0], [1 / 2, 0.0]])  # after 2, 3 and 4 steps
        assert paths(skills[0][0])[0][0] == [1.0, 0.0]  # after one
        assert skills[0][1] == [np.mean(self.CONTACTS[1:], axis=0).tolist()]
        assert starts is None
        assert axes.get_xlabel() == "ground contact of each foot (1 of 2),\nmean of the steps so far"

    def test_a_line_is_fainter_where_fewer_steps_were_averaged(self, tmp_path):
        contacts = np.random.default_rng(0).integers(0, 2, (400, 2))
        skills, _, _ = drawn(write(tmp_path, [(0, contacts)], FEET))
        lines = skills[0][0]
        strengths = np.asarray(lines.get_colors())[:, 3]
        assert (np.diff(strengths) > 0).all()
        assert strengths[-1] > 8 * strengths[0]
        for before, after in zip(paths(lines)[:-1], paths(lines)[1:], strict=True):
            assert before[-1] == after[0]

    def test_means_over_the_steps_begin_with_step_one(self, tmp_path):
        hop = {"meaning": "contact", "kind": "mean", "lower": [0.0], "upper": [1.0]}
        skills, _, axes = drawn(write(tmp_path, [(0, [[1.0], [0.0], [1.0]]), (1, [[1.0]])], hop))
        assert list(skills) == [0], "an episode without a step has no mean"
        assert paths(skills[0][0]) == [[[1.0, 0.0], [2.0, 0.5]]]
        assert frame(axes) == [[1.0, 2.0], [0.0, 1.0]]


SPEED = {"meaning": "speed and height", "kind": "final", "lower": [-1.0, -50.0], "upper": [1.0, 50.0]}


@pytest.mark.parametrize(
    ("episodes", "limits", "view", "words"),
    [
        (straight(4, length=0.5), ROOM, [[-1.0, 1.0]] * 2, "diayn on room\n4 skills, 1 episode each"),
        # Small trajectories are zoomed in on, with 6 % more on each side, and in an aspect ratio of at least a half.
        (straight(2, length=0.25), ROOM, [[-0.28, 0.28], [-0.14, 0.14]], "zoomed in (limits [-1, 1] x [-1, 1])"),
        ([(0, [[-0.5, 0.0], [0.5, 10.0]])], SPEED, [[-1.0, 1.0], [-1.0, 11.0]], ""),  # 1 % of the limits at least
        ([(0, [[0.0, 0.0], [2.0, 0.0]])], ROOM, [[-1.12, 2.12], [-1.12, 1.12]], "dashed: the limits"),
        ([(0, [[0.5, 0.5]] * 3), (1, [[0.5, 0.5]] * 3)], ROOM, [[0.48, 0.52]] * 2, ""),
        ([(0, [[0.0, 1.0], [10.0, 1.0]])], None, [[-0.6, 10.6], [0.5, 1.5]], ""),
    ],
)
def test_the_view(tmp_path, episodes, limits, view, words):
    _, _, axes = drawn(write(tmp_path, episodes, limits))
    np.testing.assert_allclose(frame(axes), view)
    assert title(tmp_path).endswith(words)
    if limits is not None:
        assert axes.get_aspect() == ("auto" if limits is SPEED else 1.0), "axes with two units zoom separately"
    else:
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("descriptor (1 of 2)", "descriptor (2 of 2)")
    boxes = [(box.get_xy(), box.get_width(), box.get_height()) for box in axes.patches]
    assert boxes == ([((-1.0, -1.0), 2.0, 2.0)] if "dashed" in words else [])


class TestSkills:
    def test_few_skills_have_a_legend(self, tmp_path):
        count = 12
        skills, _, axes = drawn(write(tmp_path, straight(count)))
        listed = [text.get_text() for text in axes.get_legend().get_texts()]
        assert listed == [*map(str, range(count)), "start"]
        assert len({tuple(np.asarray(lines.get_colors())[0]) for lines, _ in skills.values()}) == count
        uneven = title(write(tmp_path, [*straight(count), *straight(1)]))
        assert uneven.endswith(f"{count} skills, {count + 1} episodes")

    def test_many_skills_have_a_colour_bar(self, tmp_path):
        write(tmp_path, straight(30))
        skills, _, axes = drawn(tmp_path)
        assert axes.get_legend() is None
        assert len({tuple(np.asarray(lines.get_colors())[0]) for lines, _ in skills.values()}) == 30
        _, bar = axes_of(tmp_path)
        assert bar.get_ylabel() == "skill"
        assert [text.get_text() for text in bar.get_yticklabels()] == [str(skill) for skill in range(0, 30, 3)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, r"has no trajectories to draw: skills\.csv is missing in it; `rookery evaluate .*` writes it\.$"),
        ("skill,step,descriptor/1\n", "lacks the columns episode, descriptor/0; `rookery evaluate .*` writes it"),
        ("skill,episode,step\n0,0,0\n", r"has no descriptor, so .*; train on a task that has one \(`rookery envs`"),
        ("skill,episode,step,descriptor/0\n0,0,0,nan\n", r"contains no trajectory; `rookery evaluate .*` writes it"),
    ],
)
def test_errors(tmp_path, table, message):
    create(tmp_path, {}).release()
    if table is not None:
        (tmp_path / "skills.csv").write_text(table)
    with pytest.raises(ValueError, match=message):
        draw_skills(tmp_path)
    assert not (tmp_path / "skills.png").exists()
