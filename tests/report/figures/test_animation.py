"""Animations of bodies in a plane: frames, artists, captions, file formats and errors."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import matplotlib.animation
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from rookery.envs import registry
from rookery.envs.rendering.scene import Scene, Scenery
from rookery.report.figures import animation, style

RED, TEAL, GREEN = (np.asarray(to_rgb(style.PALETTE[index])) * 255 for index in (0, 1, 4))
CHASE = Scenery((0.0, 0.0), (1.0, 1.0), ("predator", "prey"), (0.05, 0.05), reaches=(0.2, 0.0))
MAZE = Scenery((-1.0, -1.0), (1.0, 0.0), ("point",), (0.05,), ((-0.5, -0.5, 0.5, -0.5),), ((0.5, -0.2, 0.1),))


def chase(length: int) -> Scene:
    """The predator moves to the right; the prey is above it and invisible in the last state."""
    position = np.full((length, 2, 2), 0.75)
    position[:, 0] = np.stack([np.linspace(0.25, 0.75, length), np.full(length, 0.25)], axis=1)
    visible = np.ones((length, 2), bool)
    visible[-1:, 1] = False
    return Scene(position, np.zeros((length, 2)), visible)  # pyright: ignore[reportArgumentType]


def point(length: int) -> Scene:
    position = np.linspace([-0.9, -0.9], [0.9, -0.1], length)[:, None]
    return Scene(position, np.full((length, 1), math.nan), np.ones((length, 1), bool))  # pyright: ignore[reportArgumentType]


def returns(length: int) -> dict[str, np.ndarray]:
    return {"predator": -np.arange(length, dtype=float), "prey": np.arange(length) / 2}


def frames(path: Path) -> list[np.ndarray]:
    shown = []
    with Image.open(path) as film:
        for index in range(getattr(film, "n_frames", 1)):
            film.seek(index)
            shown.append(np.asarray(film.convert("RGB"), int))
    return shown


def centre_of(frame: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Mean row and column of all pixels of a colour, as fractions of the plane below the text."""
    plane = frame[-346:]
    return np.argwhere(np.abs(plane - colour).max(axis=2) < 12).mean(axis=0) / 346


def staged(length: int, time: int, scenery: Scenery = CHASE) -> tuple[Any, Any]:
    """Figure and artists at a time."""
    scenes = chase(length) if scenery is CHASE else point(length)
    labelled = animation._label_returns(returns(length), scenery.bodies)
    canvas, artists = animation._create_figure(scenery, labelled, "a chase")
    animation._update(artists, scenery, scenes, labelled, time)
    return canvas.figure, artists


def test_a_gif_has_a_frame_per_state_and_they_differ(tmp_path: Path) -> None:
    path = animation.animate(CHASE, chase(8), returns(8), tmp_path / "new" / "chase.gif", title="a chase")
    shown = frames(path)
    assert len(shown) == 8  # the last one has a longer duration instead of being repeated
    assert all((one != other).any() for one, other in pairwise(shown))
    with Image.open(path) as film:
        assert film.size == (360, 406)
        assert film.info["loop"] == 0  # endless
        first = film.info["duration"]
        film.seek(7)
        assert (first, film.info["duration"]) == (50, 1550)
    assert path.stat().st_size < 60_000


def test_bodies_are_drawn_at_their_positions(tmp_path: Path) -> None:
    shown = frames(animation.animate(CHASE, chase(5), {}, tmp_path / "chase.gif"))
    # The predator moved by half the width; the cross of the prey is at its last position, but paler.
    begin, end = centre_of(shown[0], RED), centre_of(shown[-1], RED)
    np.testing.assert_allclose(end - begin, [0.0, 0.45], atol=0.06)
    prey = centre_of(shown[0], TEAL)
    assert prey[0] < begin[0]  # above
    assert (np.abs(shown[-1] - TEAL).max(axis=2) < 12).sum() < 0.5 * (np.abs(shown[0] - TEAL).max(axis=2) < 12).sum()
    assert tuple(shown[0][1, 1]) == pytest.approx((255, 255, 255), abs=2)  # the background


def test_goals_walls_and_bodies_without_heading(tmp_path: Path) -> None:
    shown = frames(animation.animate(MAZE, point(3), {"return": np.zeros(3)}, tmp_path / "maze.gif"))
    assert shown[0].shape[0] < 250  # the plane is half as high as wide
    for colour in (GREEN, np.asarray(to_rgb(animation._WALL)) * 255, RED):
        assert (np.abs(shown[0] - colour).max(axis=2) < 12).sum() > 20
    _, artists = staged(3, 0, MAZE)
    assert not artists.noses[0].get_visible()
    assert artists.discs[0].get_visible()


def test_captions_show_the_step_and_each_return_and_an_invisible_body_has_a_cross_and_no_disc() -> None:
    figure, before = staged(8, 6)
    assert [text.get_text() for text in figure.texts] == ["a chase", "step 6", "predator  -6", "prey  3.0"]
    assert [text.get_color() for text in before.returns] == list(style.PALETTE[:2])
    assert animation._number(np.array([0.0, -0.04]), 1) == "0.0"
    _, after = staged(8, 7)
    assert [artists.discs[1].get_visible() for artists in (before, after)] == [True, False]
    assert [artists.crosses[1].get_alpha() for artists in (before, after)] == [0.0, 1.0]
    assert after.crosses[1].get_xydata().tolist() == [[0.75, 0.75]]
    assert after.discs[0].get_visible()


def test_a_trail_is_the_path_of_the_last_steps_and_reaches_are_drawn() -> None:
    _, artists = staged(41, 40)
    trail = np.stack(artists.trails.get_segments()[: animation._TRAIL])
    np.testing.assert_allclose(trail[0, 0], [0.5, 0.25])
    np.testing.assert_allclose(trail[-1, 1], [0.75, 0.25])
    assert artists.reaches[0].get_radius() == 0.2
    assert artists.reaches[1] is None


def test_a_nose_points_along_the_heading_and_long_episodes_are_subsampled_with_their_last_frame() -> None:
    nose = animation._nose(np.asarray([1.0, 2.0]), math.pi / 2, 0.1)
    np.testing.assert_allclose(nose[0], [1.0, 2.2], atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(nose[1:] - [1.0, 2.0], axis=1), 0.1)
    assert animation._frames(1, 10) == [0]
    assert animation._frames(10, 10) == list(range(10))
    assert animation._frames(11, 10) == [0, 2, 4, 6, 8, 10]
    assert animation._frames(12, 5) == [0, 3, 6, 9, 11]


def test_many_returns_are_reported_by_kind() -> None:
    bodies = ("predator",) * 3 + ("prey",) * 4
    several = {str(index): np.full(2, float(index)) for index in range(7)}
    labelled = animation._label_returns(several, bodies)
    assert {name: float(values[0]) for name, (values, _) in labelled.items()} == {"predator x 3": 1.0, "prey x 4": 4.5}
    assert [colour for _, colour in labelled.values()] == list(style.PALETTE[:2])
    assert animation._text_grid(["r", "r", "b", "b", "b"]) == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert animation._text_grid(["r", "b"]) == [(1, 0), (1, 1)]
    unlike = animation._label_returns({"return": np.zeros(2)}, ("robot", "ball"))
    assert unlike["return"][1] == style.INK


def test_an_mp4_needs_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matplotlib.animation.FFMpegWriter, "isAvailable", staticmethod(lambda: False))
    sentence = r"chase\.mp4 needs the program ffmpeg, which is not installed; install it, or choose a \.gif\.$"
    with pytest.raises(ValueError, match=sentence):
        animation.animate(CHASE, chase(3), {}, tmp_path / "new" / "chase.mp4")
    assert not (tmp_path / "new").exists()


class _Writer:
    """A replacement for the writer that calls ffmpeg."""

    grabbed = 0

    def __init__(self, fps: int, extra_args: list[str]) -> None:
        assert (fps, extra_args) == (10, ["-pix_fmt", "yuv420p"])

    @staticmethod
    def isAvailable() -> bool:  # noqa: N802
        return True

    def saving(self, figure: Any, path: str, dpi: int) -> Any:
        size = figure.get_size_inches() * dpi
        assert all(round(side) % 2 == 0 for side in size)
        return open(path, "wb")

    def grab_frame(self) -> None:
        _Writer.grabbed += 1


def test_an_mp4_has_every_frame_and_an_interrupted_one_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matplotlib.animation, "FFMpegWriter", _Writer)
    path = animation.animate(MAZE, point(4), {}, tmp_path / "maze.mp4", frames_per_second=10)
    assert _Writer.grabbed == 4 + 15
    monkeypatch.setattr(_Writer, "grab_frame", Mock(side_effect=KeyboardInterrupt))
    path.write_bytes(b"earlier")
    with pytest.raises(KeyboardInterrupt):
        animation.animate(MAZE, point(4), {}, path, frames_per_second=10)
    assert path.read_bytes() == b"earlier"
    assert [*tmp_path.iterdir()] == [path]


def test_errors(tmp_path: Path) -> None:
    cases: Any = (
        ("chase.avi", 3, {}, r"^an animation is a \.gif or \.mp4 file, got '.*chase\.avi'; choose one of"),
        ("chase.gif", 3, {"frames_per_second": 0}, r"^frames_per_second must be at least 1, got 0\.$"),
        ("chase.gif", 3, {"most_frames": 1}, r"^most_frames must be at least 2, got 1\.$"),
        ("chase.gif", 0, {}, r"^an episode without a state cannot be drawn"),
    )
    for name, length, options, message in cases:
        with pytest.raises(ValueError, match=message):
            animation.animate(CHASE, chase(length), {}, tmp_path / name, **options)


@pytest.mark.parametrize(
    ("name", "walls", "goals"),
    [
        ("point_maze", ((-1.0, -0.5, 0.5, -0.5), (-0.5, 0.2, 1.0, 0.2)), ((-0.4, 0.8, 0.1),)),
        ("point_trap", ((-0.5, 0.0, 0.5, 0.0), (-0.5, -0.6, -0.5, 0.0), (0.5, -0.6, 0.5, 0.0)), ((0.0, 0.75, 0.1),)),
    ],
)
def test_the_point_environments_draw_their_walls_goals_and_point(name: str, walls: Any, goals: Any) -> None:
    env = registry.make(name)
    assert env.picture is not None
    assert env.picture.scene is not None
    assert env.picture.scenery is not None
    assert (env.picture.scenery.walls, env.picture.scenery.goals) == (walls, goals)
    state, step = env.reset(jax.random.key(0))
    scene = env.picture.scene(state)
    assert scene.position.tolist() == [step.observation.features.tolist()]
    assert scene.visible.tolist() == [True]
    assert math.isnan(float(scene.heading[0]))


def test_the_ground_is_filled_below_its_surface_within_the_limits() -> None:
    hill = MAZE._replace(walls=(), goals=(), ground=((-2.0, -0.9), (0.0, -0.3), (2.0, -0.9)))
    canvas, _ = animation._create_figure(hill, animation._label_returns({"return": np.zeros(1)}, hill.bodies), "")
    axes = canvas.figure.axes[0]
    soil = next(one for one in axes.collections if one.get_paths())
    box = soil.get_clip_box()
    assert box is not None
    drawn = box.transformed(axes.transData.inverted())
    np.testing.assert_allclose(drawn.intervalx, (-1.0, 1.0), err_msg="it begins and ends outside of the picture")
    (outline,) = soil.get_paths()
    assert outline.contains_point((0.0, -0.4))
    assert outline.contains_point((0.9, -0.9))
    assert not outline.contains_point((0.9, -0.4))
