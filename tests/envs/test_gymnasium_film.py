"""Films of environments on the host: the repeated episode, its frames, and what keeps it from being drawn."""

import io
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence

import rookery
from rookery.deploy import episodes, render
from rookery.deploy.episode_selection import Selection
from rookery.envs.base import Environment
from rookery.envs.host.base import HostState, HostWarning
from rookery.envs.suites.gymnasium import film
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.envs.wrappers.skills import skills
from rookery.types import Genotype, Observation

SIZE, LENGTH, STEP = 16, 12, 0.5


class Walk(gymnasium.Env):
    """A point on a line, moved by half of the action's bound in each test; it is drawn as a white column."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))
    created = 0

    def __init__(self, render_mode: str | None = "rgb_array", mistake: str = ""):
        self.render_mode, self._mistake = render_mode, mistake
        Walk.created += 1
        self._number = Walk.created

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self._position = self.np_random.uniform(0.0, 1.0)
        return self._observed(), {}

    def step(self, action: np.ndarray) -> Any:
        self._position += float(action[0])
        if self._mistake == "raises" and self._position > 5.0:
            raise RuntimeError("the point fell off")
        reward = self._position + (self._number if self._mistake == "not seeded" else 0.0)
        return self._observed(), reward, self._position > 9.0, False, {}

    def render(self) -> np.ndarray:
        if self._mistake == "display":
            raise RuntimeError("No available video device")
        image = np.zeros((SIZE, SIZE, 3), np.uint8)
        image[:, int(self._position)] = 255
        return image[:, :, 0] if self._mistake == "grey" else image

    def _observed(self) -> np.ndarray:
        return np.asarray([self._position], np.float32)


def walk(**options: Any) -> Environment:
    return from_gymnasium(partial(Walk, **options), episode_length=LENGTH, workers=1)


def push(params: jax.Array, observation: Observation) -> jax.Array:
    """An agent that adds 1 to the position in each step, whatever it observes."""
    del params, observation
    return jnp.full((1,), STEP)


ACTOR = Genotype(jnp.zeros(()), jnp.zeros(()), None)


def images_of(path: Path | io.BytesIO) -> list[np.ndarray]:
    """The frames `[height, width, 3]` of a film."""
    with Image.open(path) as film_file:
        return [np.asarray(image.convert("RGB")) for image in ImageSequence.Iterator(film_file)]


def columns(path: Path | io.BytesIO) -> list[int]:
    """The column of the point in each frame of a film."""
    return [int(image[0, :, 0].argmax()) for image in images_of(path)]


def played(environment: Environment) -> tuple[Any, np.ndarray]:
    return render.play(push, environment, ACTOR, jax.random.key(0))


def filmed(environment: Environment, path: Path) -> list[int]:
    states, rewards = played(environment)
    episode = render.RenderedEpisode(render.picture_of(environment), states, rewards, ("return",), "walk", 1, 0)
    return columns(render.film(episode, path))


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: skills(stack_frames(env, 3), 2)])
def test_a_film_shows_the_recorded_episode(wrap: Callable[[Environment], Environment], tmp_path: Path) -> None:
    # The point starts in the first column and moves one column in each step, until the task ends in column 9.
    assert filmed(wrap(walk()), tmp_path / "walk.gif") == list(range(10))


def test_the_states_of_the_report_are_not_thinned_out() -> None:
    selection = Selection(jax.tree.map(lambda leaf: leaf[None], ACTOR), np.zeros(1, int), np.zeros(1, int), [{}])
    found = episodes.play_all(push, walk(), selection, most_frames=3)
    assert found.header["kind"] == "film"
    assert found.header["episodes"][0]["steps"] == 9
    assert columns(io.BytesIO(found.arrays["film"].tobytes())) == list(range(10))


def test_an_exception_of_the_episode_ends_its_film(tmp_path: Path) -> None:
    assert filmed(walk(mistake="raises"), tmp_path / "walk.gif") == [0, 1, 2, 3, 4]


def test_an_environment_with_other_randomness_is_reported(tmp_path: Path) -> None:
    environment = walk(mistake="not seeded")
    with pytest.warns(HostWarning, match=r"shows another episode than the recorded one: .*self\.np_random\.$"):
        filmed(environment, tmp_path / "walk.gif")


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("grey", r"its render\(\) returned an array of shape \(16, 16\) instead of an image \[height, width, 3\]; its"),
        ("display", r"cannot be filmed on this machine: it needs a display \(No available video device\); start the"),
    ],
)
def test_what_cannot_be_drawn_is_explained(mistake: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        filmed(walk(mistake=mistake), tmp_path / "walk.gif")


def test_an_object_without_frames_has_no_picture() -> None:
    with pytest.raises(ValueError, match=r'draw no frames; create them in make_env with render_mode="rgb_array"'):
        render.picture_of(walk(render_mode=None))
    assert rookery.make("gym:CartPole-v1", workers=1).picture is not None  # created with that mode for its film


@pytest.mark.parametrize(
    ("steps", "per_second", "stride", "shown"),
    [(1000, 125, 5, 25.0), (100, 125, 3, 125 / 3), (401, 4, 3, 4 / 3), (10, None, 1, 30.0)],
)
def test_films_have_real_time_and_a_limited_number_of_frames(
    steps: int, per_second: Any, stride: int, shown: float
) -> None:
    assert film._speed(steps, per_second) == (stride, pytest.approx(shown))
    assert math.ceil(steps / stride) <= film.MOST_FRAMES


@pytest.mark.parametrize(
    ("variables", "installed", "chosen"),
    [
        ({"DISPLAY": ":0"}, ("EGL", "OSMesa"), None),
        ({}, ("EGL", "OSMesa"), "egl"),
        ({}, ("OSMesa",), "osmesa"),
        ({"PYOPENGL_PLATFORM": "osmesa"}, ("EGL", "OSMesa"), "osmesa"),
    ],
)
def test_the_library_that_draws_without_a_display(
    variables: dict[str, str], installed: tuple[str, ...], chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "PYOPENGL_PLATFORM", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("ctypes.util.find_library", lambda name: name if name in installed else None)
    assert film._drawing_variables().get("MUJOCO_GL") == chosen


def _draws() -> str:
    """Why MuJoCo cannot draw here; empty if it can."""
    try:
        with film._without_display():
            env = gymnasium.make("Hopper-v5", render_mode="rgb_array", width=32, height=32)
            env.reset(seed=0)
            env.render()
            env.close()
    except Exception as error:
        return str(error).splitlines()[0]
    return ""


def test_mujoco_is_drawn_without_a_display(tmp_path: Path) -> None:
    if reason := _draws():
        pytest.skip(f"MuJoCo finds no OpenGL here: {reason}")
    environment: Any = rookery.make("gym:Hopper-v5", episode_length=6, workers=1, width=64, height=64)
    states, rewards = render.play(_stand, environment, ACTOR, jax.random.key(0))
    environment.picture.film(states, jnp.asarray(rewards), str(tmp_path / "hopper.gif"))
    images = images_of(tmp_path / "hopper.gif")
    # Every third of six steps is drawn, since 125 frames per second are too many for a .gif.
    assert [image.shape for image in images] == [(64, 64, 3)] * 3
    assert images[0].std() > 20.0


def _stand(params: jax.Array, observation: Observation) -> jax.Array:
    del params, observation
    return jnp.zeros(3)


def test_mujoco_without_a_graphics_library_names_the_remedy() -> None:
    message = film._explained("gym:Hopper-v5", AttributeError("'NoneType' has no eglQueryString"), mujoco=True)
    assert message.endswith("and set MUJOCO_GL=egl or MUJOCO_GL=osmesa, or start the command under xvfb-run.")


def test_an_action_that_is_not_finite_ends_the_film(tmp_path: Path) -> None:
    states = HostState(jnp.zeros(3, int), jnp.zeros(3, int), jnp.asarray([[0.0], [STEP], [jnp.nan]]))
    rewards = np.asarray([0.0, 1.0 + np.random.default_rng(0).uniform(), 0.0])
    film.film("walk", Walk, lambda action: 2.0 * action, states, jnp.asarray(rewards), str(tmp_path / "walk.gif"))
    assert columns(tmp_path / "walk.gif") == [0, 1]
