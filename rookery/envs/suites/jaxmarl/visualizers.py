"""Films with JaxMARL's visualisers, for MPE, SMAX and Overcooked (version 1)."""

import contextlib
import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.envs.rendering import frames as films
from rookery.envs.rendering.scene import FilmFn
from rookery.envs.suites import third_party
from rookery.envs.suites.jaxmarl.tasks import OVERCOOKED, OVERCOOKED_V2, SMAX
from rookery.types import Array, PyTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FRAMES_PER_SECOND = 10
OVERCOOKED_FRAMES_PER_SECOND = 4
TILE = 32  # pixels


def film(name: str, env: object) -> FilmFn | None:
    """The function that draws an environment object of JaxMARL, or None if JaxMARL cannot write its film.

    JaxMARL draws the other environments in windows only, or with packages that it does not require.
    """
    if any(base.__module__.startswith("jaxmarl.environments.mpe") for base in type(env).__mro__):
        return partial(_mpe, env)
    if name.startswith(SMAX):
        return partial(_smax, env)
    if name.startswith(OVERCOOKED) and not name.startswith(OVERCOOKED_V2):
        return _overcooked
    return None


def _mpe(env: object, states: PyTree, rewards: Array, path: str) -> None:
    del rewards  # not shown
    with third_party.standard_promotion(), contextlib.redirect_stdout(io.StringIO()):
        from jaxmarl.environments.mpe import mpe_visualizer

        frames = films.frames(states)
        with films.canvas((mpe_visualizer,), figsize=(5, 5)) as figure:
            drawing = mpe_visualizer.MPEVisualizer(env, frames)
            films.write(figure, drawing.update, len(frames), path, FRAMES_PER_SECOND)


def _smax(env: object, states: PyTree, rewards: Array, path: str) -> None:
    """Draw one frame per step; the suite's film has one per substep (eight per step), which states do not contain."""
    del rewards  # not shown
    frames = films.frames(states.state)
    with third_party.standard_promotion(), films.canvas((), figsize=(6, 5)) as figure:
        films.write(figure, partial(_smax_frame, env, figure.axes[0], frames), len(frames), path, FRAMES_PER_SECOND)


def _smax_frame(env: Any, axes: "Axes", frames: list[PyTree], frame: int) -> None:
    state = frames[frame]
    attacks = dict(zip(env.all_agents, state.prev_attack_actions, strict=True))
    env.init_render(axes, (None, state, attacks), 0, frame)


def _overcooked(states: PyTree, rewards: Array, path: str) -> None:
    del rewards  # not shown
    with third_party.standard_promotion():
        from jaxmarl.viz.overcooked_visualizer import OvercookedVisualizer

        images = [_overcooked_frame(OvercookedVisualizer, state) for state in films.frames(states)]
    films.write_images(images, path, OVERCOOKED_FRAMES_PER_SECOND)


def _overcooked_frame(visualizer: PyTree, state: PyTree) -> np.ndarray:
    grid = state.maze_map[3:-3, 3:-3, :]  # without the border that the suite adds for partial views of 5 x 5
    agents = {"agent_dir_idx": state.agent_dir_idx, "agent_inv": state.agent_inv}
    return np.asarray(visualizer._render_grid(grid, tile_size=TILE, highlight_mask=None, **agents))
