"""Films with the visualisers of other suites, without pyplot: no display is needed and no figure stays open."""

import contextlib
import math
from collections.abc import Callable, Iterator
from operator import itemgetter
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import jax
import numpy as np

from rookery.types import PyTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PALETTE_SIZE, _SAMPLED = 64, 8  # colours of a film of images, and number of images from which they are chosen


def frames(states: PyTree) -> list[PyTree]:
    """Copy the states of an episode, leaves `[T + 1, ...]`, to the host and split them into a list of T + 1 states."""
    on_host = jax.tree.map(np.asarray, states)
    count = len(jax.tree.leaves(on_host)[0])
    return [jax.tree.map(itemgetter(t), on_host) for t in range(count)]


@contextlib.contextmanager
def canvas(modules: tuple[ModuleType, ...], figsize: tuple[float, float]) -> Iterator["Figure"]:
    """Create a figure outside of pyplot on which `modules` with a global `plt` draw while the context is active.

    The modules draw with pyplot, which would choose a backend, look for a display and keep the figure. The context
    replaces their global `plt` by an object that refers to the figure of `figsize` inches, and restores it at the end.
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
            vars(module)["plt"] = replacement
        yield figure
    finally:
        for module, plt in zip(modules, before, strict=True):
            vars(module)["plt"] = plt


def write(figure: "Figure", draw: Callable[[int], object], count: int, path: str, frames_per_second: int) -> None:
    """Draw the frames, `draw(t)` for t from 0 to `count` - 1, on a figure and write them as a `.gif`."""
    from matplotlib.animation import PillowWriter

    writer = PillowWriter(fps=frames_per_second)
    with writer.saving(figure, path, dpi=80):
        for frame in range(count):
            draw(frame)
            writer.grab_frame()


def write_images(images: list[np.ndarray], path: str, frames_per_second: float, most_pixels: int = 360) -> None:
    """Write images, `[height, width, 3]` uint8 each and of one size, as a `.gif`; larger ones are scaled down.

    One palette for all frames, chosen from some of them, halves the size of the file.
    """
    from PIL import Image

    pictures = [Image.fromarray(np.asarray(image, np.uint8)) for image in images]
    for picture in pictures:
        picture.thumbnail((most_pixels, most_pixels))
    sample = np.concatenate([np.asarray(picture) for picture in pictures[:: math.ceil(len(pictures) / _SAMPLED)]])
    palette = Image.fromarray(sample).quantize(_PALETTE_SIZE)
    first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    duration = round(1000 / frames_per_second)
    first.save(path, save_all=True, append_images=rest, duration=duration, loop=0, optimize=True)
