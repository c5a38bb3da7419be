"""Films of Gymnasium's environments: the episode is repeated in a new environment object that draws its frames.

An episode is determined by its seed and its actions, which its states hold (`HostState`). An environment with other
sources of randomness gives another episode; its rewards show that, and a warning says so.
"""

import contextlib
import ctypes.util
import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.envs.host.base import HostState, HostWarning, first_line
from rookery.envs.rendering import frames
from rookery.envs.suites import third_party
from rookery.factories import RAISED, place_of
from rookery.types import Array

if TYPE_CHECKING:
    from rookery.envs.suites.gymnasium.spaces import Env

MOST_FRAMES = 200
"""Largest number of frames, besides the first; of a longer episode every k-th step is drawn, and the last."""
MOST_PER_SECOND = 50.0  # browsers show the frames of a faster `.gif` at a tenth of a second each
_DEFAULT_PER_SECOND = 30.0
_RGB = "rgb_array"
_GL_ERRORS = re.compile(r"display|x11|glfw|egl|osmesa|opengl|gl ?context|video (device|system)", re.IGNORECASE)


def has_frames(env: "Env", creatable: bool) -> bool:
    """Whether an environment object can draw frames, or if `creatable` one that is created with another render mode."""
    modes = (getattr(env, "metadata", None) or {}).get("render_modes") or ()
    return _RGB in modes if creatable else getattr(env, "render_mode", None) == _RGB


def film(
    name: str,
    create: Callable[[], Any],
    decode: Callable[[np.ndarray], object],
    states: HostState,
    rewards: Array,
    path: str,
) -> None:
    """Repeat an episode and write its frames; see `rendering.scene.FilmFn`.

    Args:
      name: of the environment, for messages.
      create: creates an environment object whose render mode is "rgb_array".
      decode: action of the agent -> action of the environment.

    Raises:
      ValueError: no frames can be drawn; the message names the remedy.

    Warns:
      HostWarning: the repeated episode has other rewards.
    """
    with _without_display():
        try:
            env = create()
        except RAISED as error:
            raise ValueError(_explained(name, error, mujoco=False)) from error
        try:
            images, per_second, repeated = _repeat(name, env, decode, states)
        finally:
            with contextlib.suppress(*RAISED):  # it is discarded
                env.close()
    _compare(name, np.asarray(rewards)[1:], repeated)
    frames.write_images(images, path, per_second)


def _repeat(
    name: str, env: "Env", decode: Callable[[np.ndarray], object], states: HostState
) -> tuple[list[np.ndarray], float, list[float]]:
    """The frames, their number per second, and the rewards of the steps, up to the end of the repeated episode."""
    actions = np.asarray(states.action)[1:]
    stride, per_second = _speed(len(actions), (env.metadata or {}).get("render_fps"))
    env.reset(seed=int(np.asarray(states.seed)[0]))
    images, rewards = [_frame(name, env)], []
    for step, action in enumerate(actions, start=1):
        if not np.isfinite(action).all():
            break  # the agent has diverged, and the step was not taken
        try:
            _, reward, terminated, truncated, _ = env.step(decode(action))
        except RAISED:  # as in the recorded episode, which it ended; otherwise rewards are missing
            break
        rewards.append(float(reward))
        ended = terminated or truncated or step == len(actions)
        if ended or step % stride == 0:
            images.append(_frame(name, env))
        if ended:
            break
    return images, per_second, rewards


def _speed(steps: int, per_second: Any) -> tuple[int, float]:
    """Every how many steps a frame is drawn, and the number of frames per second at which the film has real time."""
    valid = isinstance(per_second, int | float) and math.isfinite(per_second) and per_second > 0
    speed = float(per_second) if valid else _DEFAULT_PER_SECOND
    stride = max(1, math.ceil(steps / MOST_FRAMES), math.ceil(speed / MOST_PER_SECOND))
    return stride, speed / stride


def _frame(name: str, env: "Env") -> np.ndarray:
    """The current frame `[height, width, 3]`; a ValueError if the environment draws none."""
    try:
        image = env.render()
    except RAISED as error:
        raise ValueError(_explained(name, error, hasattr(env.unwrapped, "mujoco_renderer"))) from error
    if not isinstance(image, np.ndarray) or image.ndim != 3 or image.shape[2] != 3:
        found = f"an array of shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ValueError(
            f"{name} cannot be filmed: its render() returned {found} instead of an image [height, width, 3]; its "
            f"render_mode must be {_RGB}."
        )
    return image


def _compare(name: str, recorded: np.ndarray, repeated: list[float]) -> None:
    """Warn if the repeated episode is not the recorded one."""
    # An exception or an output that is not finite ended the recorded episode with reward 0.
    count = min(len(recorded), len(repeated))
    complete = len(recorded) - count <= 1
    found = np.nan_to_num(np.asarray(repeated[:count], np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    if not (complete and np.allclose(recorded[:count], found, rtol=1e-4, atol=1e-5)):
        text = (
            f"the film of {name} shows another episode than the recorded one: the repeated rewards differ, because the "
            "environment is not determined by its seed and actions; let it draw all random numbers from self.np_random."
        )
        warnings.warn(text, HostWarning, stacklevel=2)


def _without_display() -> contextlib.AbstractContextManager[None]:
    """Let MuJoCo and pygame draw without a display where there is none, unless the user has chosen how.

    Both read these variables when they draw first.
    """
    chosen = {name: value for name, value in _drawing_variables().items() if name not in os.environ}
    return third_party.environment_variables(**chosen)


def _drawing_variables() -> dict[str, str]:
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        return {}
    return {"MUJOCO_GL": _headless_gl(), "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}


def _headless_gl() -> str:
    """The library with which MuJoCo draws without a display: EGL where it is installed, otherwise OSMesa."""
    imported = os.environ.get("PYOPENGL_PLATFORM", "")  # a process can use one of them only
    if imported in ("egl", "osmesa"):
        return imported
    return "osmesa" if ctypes.util.find_library("OSMesa") and not ctypes.util.find_library("EGL") else "egl"


def _explained(name: str, error: BaseException, mujoco: bool) -> str:
    """Why an environment cannot be drawn, and the remedy."""
    cause = first_line(error)
    if type(error).__name__ == "DependencyNotInstalled":
        return f"{name} cannot be filmed: it needs another package ({cause})."
    if mujoco:
        library = os.environ.get("MUJOCO_GL", "glfw")
        return (
            f"{name} cannot be filmed on this machine: MuJoCo cannot draw with MUJOCO_GL={library} ({cause}); install "
            "libegl1 or libosmesa6 (apt-get install libosmesa6) and set MUJOCO_GL=egl or MUJOCO_GL=osmesa, or start "
            "the command under xvfb-run."
        )
    if _GL_ERRORS.search(f"{type(error).__name__} {cause}"):
        return (
            f"{name} cannot be filmed on this machine: it needs a display ({cause}); start the command under xvfb-run, "
            "or install libegl1 or libosmesa6 if it draws with OpenGL."
        )
    raised = f"raised {type(error).__name__} when it was drawn: {cause}{place_of(error)}"
    return f"{name} cannot be filmed: it {raised}."
