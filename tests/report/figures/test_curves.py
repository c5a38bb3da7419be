"""`curves.png`: its panels, their labels and their values."""

import errno
import os
import re
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from rookery.envs.rendering.scene import Scene, Scenery
from rookery.report.figures import curves
from rookery.report.figures.animation import animate
from rookery.report.figures.style import RANKS, new_figure, save_figure
from rookery.report.readers import open_run
from tests import written_runs

MEMBERS = (0, 1)


def write(path, metrics, config=None, members=MEMBERS, rates=(0.1, 0.1)):
    """A run of two generations: name -> its two values; `lineage.csv` has a rate, which by default never changes."""
    columns = {"env_steps": (10.0, 20.0), "best_fitness": (0.5, 0.75), "median_fitness": (0.25, 0.5)} | metrics
    table = {
        "generation": np.repeat((0, 1), len(members)),
        **dict.fromkeys(("member", "parent", "fitness"), members * 2),
    }
    table |= {"rate": np.repeat(rates, len(members))}
    return written_runs.write(path, {"kind": "pbt-diayn"} | (config or {}), columns, table if members else None)


def axes_of(path) -> list[Any]:
    """The axes of the figure of a run; not typed, since their content is inspected by its methods."""
    return list(curves._figure(open_run(path)).axes)


def drawn(path):
    """The name of the fitness, and title -> values of each panel below."""
    first, *panels = axes_of(path)
    return first.get_ylabel(), {axes.get_title("left"): list(axes.lines[0].get_ydata()) for axes in panels}


SKILLS = {"accuracy": (0.25, 0.5), "diversity_return": (1.0, 2.0), "true_return": (-3.0, -4.0)}


@pytest.mark.parametrize(
    ("fitness", "label", "panels"),
    [
        ("accuracy", "discriminator accuracy", {"mean return": [-3.0, -4.0], "diversity return, nats": [1.0, 2.0]}),
        ("diversity", "diversity return, nats", {"discriminator accuracy": [0.25, 0.5], "mean return": [-3.0, -4.0]}),
        ("return", "mean return", {"discriminator accuracy": [0.25, 0.5], "diversity return, nats": [1.0, 2.0]}),
    ],
)
def test_the_panels_of_skills_are_the_metrics_that_are_not_the_fitness(tmp_path, fitness, label, panels):
    config = {"diayn": {"fitness": fitness}}
    assert drawn(write(tmp_path, SKILLS, config, members=(0,))) == (label, panels)
    averaged = {f"{name} (mean of the members)": values for name, values in panels.items()}
    assert drawn(write(tmp_path, SKILLS, config)) == (label, averaged)


def test_the_name_of_the_fitness_without_a_configured_one_and_of_an_objective(tmp_path):
    label, panels = drawn(write(tmp_path, SKILLS, members=(0,)))
    assert (label, list(panels)) == ("mean return", ["discriminator accuracy", "mean return"])
    first = axes_of(tmp_path)[0]
    assert [(line.get_label(), line.get_ydata().tolist()) for line in first.lines] == [("only member", [0.5, 0.75])]
    assert first.get_xlabel() == "environment steps"
    assert drawn(write(tmp_path, {})) == ("mean return", {})
    config = {"kind": "sac", "learner": {"objective": "approach"}, "environment": {"env": "/a/b/mass.py:make"}}
    figure = curves._figure(open_run(write(tmp_path, {}, config)))
    assert figure.axes[0].get_ylabel() == "mean approach"
    assert figure.get_suptitle() == "sac on mass", "a file is named by its stem"


def test_equal_members_have_equal_ranks():
    fitness = np.asarray([[2.0, 1.0, 1.0, 4.0], [5.0, 5.0, 5.0, 5.0], [np.nan, 1.0, np.nan, 2.0], [np.nan] * 4])
    expected = [[2 / 3, 1 / 6, 1 / 6, 1.0], [0.5] * 4, [0.0, 2 / 3, 0.0, 1.0], [0.0] * 4]
    np.testing.assert_allclose(curves._ranks(fitness), expected)
    assert curves._ranks(fitness[:0]).shape == (0, fitness.shape[1])


def test_a_repertoire_has_panels_of_coverage_and_qd_score(tmp_path):
    metrics = {"coverage": (10.0, 30.0), "qd_score": (100.0, 400.0), "max_fitness": (1.0, 2.0)}
    label, panels = drawn(write(tmp_path, metrics, members=()))
    assert (label, panels) == ("mean return", {"coverage, % of the cells": [10.0, 30.0], "QD score": [100.0, 400.0]})


def test_generations_count_from_one_at_whole_numbers_and_the_best_is_orange(tmp_path):
    first, panel = axes_of(write(tmp_path, {"env_steps": (2.0, 4.0)}, {"kind": "pbt-sac"}, rates=(0.1, 0.2)))
    assert all(tick == round(tick) for tick in first.get_xticks()), "also those of few steps"
    assert panel.get_title("left") == "rate"
    (points,) = panel.collections
    assert points.get_offsets().data.tolist() == [[1.0, 0.1], [1.0, 0.1], [2.0, 0.2], [2.0, 0.2]]
    assert [tick for tick in panel.get_xticks() if 0.5 <= tick <= 2.5] == [1.0, 2.0]
    assert panel.get_xlim() == (0.5, 2.5)
    assert "generation (orange: best" in panel.get_xlabel()
    points.update_scalarmappable()
    assert [to_hex(colour) for colour in points.get_facecolors()] == [RANKS[0], RANKS[-1]] * 2


@pytest.mark.parametrize(("member", "titles"), [("agent", []), ("team", ["fitness of the teams"])])
def test_the_fitness_of_teams_is_left_out_where_roles_evolve_separately(tmp_path, member, titles):
    metrics = {"return/fox": (0.0, 1.0), "return/hare": (0.0, -1.0), "episode_length": (5.0, 6.0)}
    panels = axes_of(write(tmp_path, metrics, {"kind": "pbt-ippo", "member": member, "population": 1}))[1:]
    labels = [axes.get_title("left") or axes.get_ylabel() for axes in panels]
    assert labels == [*titles, "steps of an episode"]


def test_independent_members_have_an_interval_instead_of_the_best(tmp_path):
    path = write(tmp_path, {}, {"kind": "sac", "draw_hyper": False})
    first = axes_of(path)[0]
    (middle,) = [line for line in first.lines if line.get_label().startswith("interquartile mean of 2 seeds, 95 %")]
    assert (middle.get_xdata().tolist(), middle.get_ydata().tolist()) == ([5.0, 10.0], [0.5, 0.5])
    assert len(first.collections) == 1, "the band"
    labels = [text.get_text() for text in first.get_legend().get_texts()]
    assert labels == ["interquartile mean of 2 seeds, 95 % band"]
    assert first.get_xlabel() == "environment steps of each seed"
    lineage = path / "lineage.csv"
    lineage.write_text(re.sub(r"^(\d,\d,\d),.*?,", r"\1,nan,", lineage.read_text(), flags=re.MULTILINE))
    assert not axes_of(path)[0].get_legend().get_texts(), "without any fitness; matplotlib warns of an empty legend"


def test_a_full_disk_leaves_the_picture_that_was_there(tmp_path, monkeypatch):
    path = curves.draw_curves(write(tmp_path, {}))
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match=r"No space left on device: '.*curves\.png'"):
        curves.draw_curves(tmp_path)
    film = tmp_path / "film.gif"
    film.write_bytes(before)
    state = Scene(np.zeros((2, 1, 2)), np.zeros((2, 1)), np.ones((2, 1), bool))  # pyright: ignore[reportArgumentType]
    with pytest.raises(OSError, match=r"No space left on device: '.*film\.gif'"):
        animate(Scenery((-1.0, -1.0), (1.0, 1.0), ("point",), (0.1,)), state, {"point": np.zeros(2)}, film)
    assert path.read_bytes() == film.read_bytes() == before


@pytest.mark.parametrize("name", [r"$\frac{$", os.fsdecode(b"by\xff"), "two\nlines"])
def test_names_in_figures_may_have_all_characters(tmp_path, name):
    figure = new_figure((2, 1), name)
    axes = figure.subplots()
    axes.plot([1, 2], label=name)
    axes.set_yticks([1], [name.encode(errors="replace").decode()])
    axes.set_xscale("log")
    axes.legend()
    assert save_figure(figure, tmp_path / f"{name}.png").exists()


@pytest.mark.parametrize(
    ("scales", "scale", "title"),
    [
        ({}, "log", "rate"),
        ({"rate": "Uniform"}, "linear", "rate"),
        ({"rate": "OneMinusLog"}, "log", "1 - rate"),
    ],
)
def test_a_hyper_parameter_is_drawn_on_its_declared_scale(tmp_path, scales, scale, title):
    run = open_run(write(tmp_path, {}, {"scales": scales}, rates=(0.1, 0.2)))
    (axes,) = [axes for axes in curves._figure(run).axes if axes.get_title(loc="left") == title]
    assert axes.get_yscale() == scale
    if scale == "log":
        ticks = axes.get_yticks()
        assert np.unique(np.round(ticks / 10.0 ** np.floor(np.log10(ticks) + 1e-9), 6)).tolist() in ([1, 2], [1, 5])
    np.testing.assert_allclose(curves._steps_125(0.012, 0.047), [0.01, 0.02, 0.05])
    np.testing.assert_allclose(curves._steps_125(0.1, 0.1), [0.1, 0.2])
