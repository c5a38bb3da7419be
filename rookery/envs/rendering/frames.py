"""Films by the visualisers of other suites, kept away from pyplot: no display is needed and no figure stays open."""

import contextlib
from collections.abc import Callable, Iterator
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from rookery.types import PyTree


def frames(states: PyTree) -> list[PyTree]:
    """The states of an episode one by one, on the host.

    Args:
      states: leaves `[T + 1, ...]`.
    """
    on_host = jax.tree.map(np.asarray, states)
    count = len(jax.tree.leaves(on_host)[0])
    return [jax.tree.map(itemgetter(t), on_host) for t in range(count)]


@contextlib.contextmanager
def canvas(modules: tuple[Any, ...], figsize: tuple[float, float]) -> Iterator[Any]:
    """A figure that pyplot does not know, and that `modules` draw on as long as this lasts.

    They are written for pyplot, which would choose a backend, look for a display and keep the figure: their name `plt`
    stands for the figure here, and for pyplot again afterwards.

    Args:
      modules: those whose `plt` is to be the figure.
      figsize: inches.
    """
    from matplotlib import patches
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize)
    axes = figure.subplots()
    stand_in = SimpleNamespace(
        subplots=lambda *_, **__: (figure, axes),
        axis=axes.axis,
        Circle=patches.Circle,
        close=lambda _: None,
    )
    before = [module.plt for module in modules]
    try:
        for module in modules:
            module.plt = stand_in
        yield figure
    finally:
        for module, plt in zip(modules, before, strict=True):
            module.plt = plt


def write(figure: Any, draw: Callable[[int], Any], count: int, path: str, frames_per_second: int) -> None:
    """Draw frame after frame and write them as a `.gif`.

    Args:
      figure: that `draw` draws on.
      draw: puts frame t, from 0, on the figure.
      count: of frames, at least 1.
      path: written.
      frames_per_second: of the film.
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
      path: written.
      frames_per_second: of the film.
    """
    from PIL import Image

    first, *rest = [Image.fromarray(np.asarray(image, np.uint8)) for image in images]
    first.save(path, save_all=True, append_images=rest, duration=1000 // frames_per_second, loop=0)
