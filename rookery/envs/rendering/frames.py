"""Films with the visualisers of other suites, without pyplot: no display is needed and no figure stays open."""

import contextlib
from collections.abc import Callable, Iterator
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from rookery.types import PyTree


def frames(states: PyTree) -> list[PyTree]:
    """Copy the states of an episode to the host and split them into a list of T + 1 states.

    Args:
      states: leaves `[T + 1, ...]`.
    """
    on_host = jax.tree.map(np.asarray, states)
    count = len(jax.tree.leaves(on_host)[0])
    return [jax.tree.map(itemgetter(t), on_host) for t in range(count)]


@contextlib.contextmanager
def canvas(modules: tuple[Any, ...], figsize: tuple[float, float]) -> Iterator[Any]:
    """Create a figure outside of pyplot on which `modules` draw while the context is active.

    The modules draw with pyplot, which would choose a backend, look for a display and keep the figure. The context
    replaces their global `plt` by an object that refers to the figure, and restores it at the end.

    Args:
      modules: modules with a global `plt`.
      figsize: width and height in inches.

    Yields:
      The matplotlib figure.
    """
    from matplotlib import patches
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize)
    axes = figure.subplots()
    replacement = SimpleNamespace(
        subplots=lambda *_, **__: (figure, axes),
        axis=axes.axis,
        Circle=patches.Circle,
        close=lambda _: None,
    )
    before = [module.plt for module in modules]
    try:
        for module in modules:
            module.plt = replacement
        yield figure
    finally:
        for module, plt in zip(modules, before, strict=True):
            module.plt = plt


def write(figure: Any, draw: Callable[[int], Any], count: int, path: str, frames_per_second: int) -> None:
    """Draw the frames one after the other and write them as a `.gif`.

    Args:
      figure: the matplotlib figure that `draw` draws on.
      draw: draws frame t on the figure, t counted from 0.
      count: number of frames, at least 1.
      path: output file.
      frames_per_second: playback speed.
    """
    from matplotlib.animation import PillowWriter

    writer = PillowWriter(fps=frames_per_second)
    with writer.saving(figure, path, dpi=80):
        for frame in range(count):
            draw(frame)
            writer.grab_frame()


def write_images(images: list[np.ndarray], path: str, frames_per_second: int) -> None:
    """Write images as a `.gif`.

    Args:
      images: `[height, width, 3]` uint8 each, at least 1.
      path: output file.
      frames_per_second: playback speed.
    """
    from PIL import Image

    first, *rest = [Image.fromarray(np.asarray(image, np.uint8)) for image in images]
    first.save(path, save_all=True, append_images=rest, duration=1000 // frames_per_second, loop=0)
