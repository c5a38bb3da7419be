"""An episode as a film of bodies in a plane, `.gif` or `.mp4`."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.report.figures import style

_WALL, _GOAL, _GROUND = "#a9b6be", style.PALETTE[4], "#f5f7f8"
_DOTS_PER_INCH = 100
_WIDTH, _MARGIN = 3.6, 0.14  # inches: of the picture, and about the plane
_LINE = 0.21  # inches, height of a line of text
_LISTED = 6  # returns that have a name each; of more, the mean of each kind is told
_COLUMNS = 3
_TRAIL = 20  # steps
_NOSE = 2.0  # how far a body's nose reaches, in its radii
_MOURNED = 15  # frames for which a cross marks where a body vanished
_SHADES, _SAMPLED = 64, 8  # colours of a .gif, and the frames that they are chosen from
_ALIKE = 6  # of 255, a difference between colours that nobody sees
_PLACES = np.array([1, 256, 256**2], np.uint32)  # of red, green and blue, where a colour is one number
_LAST = 1.5  # seconds for which the last frame is held


class _Artists(NamedTuple):
    """What moves, drawn once and then only changed."""

    discs: list[Any]  # of each body, as the next four
    noses: list[Any]
    reaches: list[Any]  # None for a body without one
    crosses: list[Any]
    trails: Any
    step: Any
    returns: list[Any]


def animate(
    scenery: Any,
    scenes: Any,
    returns: Mapping[str, np.ndarray],
    path: str | Path,
    title: str = "",
    frames_per_second: int = 20,
    most_frames: int = 201,
) -> Path:
    """Draw an episode.

    A body is a disc with a nose where it heads, and a trail of its last 20 steps. Where it reaches further than its
    disc, so does a pale one. A cross stays for a while where a body vanished. Above stand the step and the returns so
    far, in the colours of the bodies.

    Args:
      scenery: what does not move, as `envs/rendering/scene.py: Scenery`.
      scenes: what does, as `envs/rendering/scene.py: Scene` with leaves `[T, bodies, ...]` of numpy, the start first.
      returns: name -> `[T]`; one per body in their order, or any other number, which is then told without colours.
      path: a `.gif`, or a `.mp4` where the program ffmpeg is installed; written.
      title: stands above.
      frames_per_second: at least 1.
      most_frames: at least 2; of a longer episode every second frame is drawn, or every third and so on, and the last.

    Returns:
      The path.

    Raises:
      ValueError: the path has another ending, ffmpeg is missing, a number is below its least, or nothing is to be seen.
    """
    if most_frames < 2:
        raise ValueError(f"most_frames must be at least 2, got {most_frames}.")
    path, length = Path(path), len(scenes.position)
    if not length:
        raise ValueError("an episode without a state cannot be drawn; give at least its start.")
    save = _saver(path, frames_per_second)
    path.parent.mkdir(parents=True, exist_ok=True)
    told = _told(returns, scenery.bodies)
    figure, artists = _stage(scenery, told, title)
    times = [*_frames(length, most_frames), *[length - 1] * round(_LAST * frames_per_second)]
    moves = (_move(artists, scenery, scenes, told, time) for time in times)
    save(figure, moves, path, frames_per_second)
    return path


def _saver(path: Path, frames_per_second: int) -> Callable[[Any, Iterator[None], Path, int], None]:
    if frames_per_second < 1:
        raise ValueError(f"frames_per_second must be at least 1, got {frames_per_second}.")
    if path.suffix == ".gif":
        return _save_gif
    if path.suffix != ".mp4":
        raise ValueError(f"a film ends in .gif or .mp4, got {str(path)!r}.")
    from matplotlib.animation import FFMpegWriter

    if not FFMpegWriter.isAvailable():
        raise ValueError(f"{path} needs the program ffmpeg, which is not installed; install it, or choose a .gif.")
    return _save_mp4


def _save_gif(figure: Any, moves: Iterator[None], path: Path, frames_per_second: int) -> None:
    """With one table of few colours for all frames: half as large as matplotlib's own, which has one per frame."""
    from PIL import Image

    frames = []
    for _ in moves:
        figure.canvas.draw()
        frames.append(np.array(figure.canvas.buffer_rgba())[..., :3])
    table = _table(np.concatenate(frames[:: math.ceil(len(frames) / _SAMPLED)]))
    images = [Image.fromarray(frame).quantize(palette=table, dither=Image.Dither.NONE) for frame in frames]
    looks = {"append_images": images[1:], "duration": round(1000 / frames_per_second), "loop": 0, "optimize": True}
    images[0].save(path, save_all=True, **looks)


def _table(sample: np.ndarray) -> Any:
    """An image with the colours that a sample `[height, width, 3]` is told in: the most frequent ones as they are."""
    from PIL import Image

    numbers, counts = np.unique(sample.astype(np.uint32) @ _PLACES, return_counts=True)
    frequent = numbers[np.argsort(-counts, kind="stable")[: _SHADES // 2], None] // _PLACES % 256
    others = Image.fromarray(sample).quantize(_SHADES // 2, method=Image.Quantize.MEDIANCUT).getpalette() or []
    shades = np.array(others, np.int64).reshape(-1, 3)
    apart = np.abs(shades[:, None] - frequent[None].astype(np.int64)).max(axis=2).min(axis=1)
    table = Image.new("P", (1, 1))
    table.putpalette([*frequent.flatten().tolist(), *shades[apart > _ALIKE].flatten().tolist()])
    return table


def _save_mp4(figure: Any, moves: Iterator[None], path: Path, frames_per_second: int) -> None:
    from matplotlib.animation import FFMpegWriter

    writer = FFMpegWriter(fps=frames_per_second, extra_args=["-pix_fmt", "yuv420p"])
    with writer.saving(figure, str(path), _DOTS_PER_INCH):
        for _ in moves:
            writer.grab_frame()


def _frames(length: int, most_frames: int) -> list[int]:
    """The steps that are drawn, evenly but for the last."""
    stride = max(1, math.ceil((length - 1) / (most_frames - 1)))
    return [*range(0, length - 1, stride), length - 1]


def _told(returns: Mapping[str, np.ndarray], bodies: Sequence[str]) -> dict[str, tuple[np.ndarray, str]]:
    """Name -> return so far and colour."""
    colours = _colours(bodies)
    if len(returns) != len(bodies):
        return {name: (np.asarray(values), style.INK) for name, values in list(returns.items())[:_LISTED]}
    if len(returns) <= _LISTED:
        return {
            name: (np.asarray(own), colours[kind]) for (name, own), kind in zip(returns.items(), bodies, strict=True)
        }
    every = np.stack([np.asarray(values) for values in returns.values()])
    own = {kind: np.asarray([body == kind for body in bodies]) for kind in colours}
    return {f"{kind} x {rows.sum()}": (every[rows].mean(axis=0), colours[kind]) for kind, rows in own.items()}


def _colours(bodies: Sequence[str]) -> dict[str, str]:
    kinds = list(dict.fromkeys(bodies))
    return {kind: style.PALETTE[index % len(style.PALETTE)] for index, kind in enumerate(kinds)}


def _stage(scenery: Any, told: Mapping[str, tuple[np.ndarray, str]], title: str) -> tuple[Any, _Artists]:
    """The figure before anything has moved."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pad = max(scenery.radii, default=0.0)
    (left, low), (right, high) = np.asarray(scenery.lower) - pad, np.asarray(scenery.upper) + pad
    width = _WIDTH - 2 * _MARGIN
    tall = width * (high - low) / (right - left)
    places = _places([colour for _, colour in told.values()])
    head = _LINE * (1 + max((row for row, _ in places), default=0)) + 0.04
    pixels = round((tall + 2 * _MARGIN + head) * _DOTS_PER_INCH / 2) * 2  # even, as ffmpeg wants it
    height = pixels / _DOTS_PER_INCH
    figure = Figure(figsize=(_WIDTH, height), dpi=_DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((_MARGIN / _WIDTH, _MARGIN / height, width / _WIDTH, tall / height))
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.set_axis_off()
    ground = _set_scenery(axes, scenery)
    side = _MARGIN + width * pad / (right - left)
    columns = side + (_WIDTH - 2 * side) * np.arange(_COLUMNS) / min(_COLUMNS, max(len(told), 1))
    lines = 1.0 - (_MARGIN + 0.1 + _LINE * np.arange(1 + len(told))) / height
    looks = {"fontsize": 9.5, "color": style.INK}
    figure.text(side / _WIDTH, lines[0], title, weight="bold", **looks)
    step = figure.text(1 - side / _WIDTH, lines[0], "", ha="right", **looks)
    returns = [
        figure.text(columns[column] / _WIDTH, lines[row], "", fontsize=8.5, color=colour)
        for (row, column), (_, colour) in zip(places, told.values(), strict=True)
    ]
    return figure, _actors(axes, scenery, ground)._replace(step=step, returns=returns)


def _places(colours: Sequence[str]) -> list[tuple[int, int]]:
    """Row, from 1, and column of each return; where one row does not hold them, each colour begins another."""
    places = []
    for index, colour in enumerate(colours):
        row, column = places[-1] if places else (1, -1)
        full = column == _COLUMNS - 1 or (len(colours) > _COLUMNS and index > 0 and colour != colours[index - 1])
        places.append((row + 1, 0) if full else (row, column + 1))
    return places


def _set_scenery(axes: Any, scenery: Any) -> Any:
    """All that stands still; the ground that it stands on."""
    from matplotlib.patches import Circle, Rectangle

    size = np.asarray(scenery.upper) - np.asarray(scenery.lower)
    ground = axes.add_patch(Rectangle(scenery.lower, *size, facecolor=_GROUND, edgecolor=style.QUIET, zorder=0))
    for x, y, radius in scenery.goals:
        axes.add_patch(Circle((x, y), radius, facecolor=_GOAL, alpha=0.25, edgecolor="none"))
        axes.add_patch(Circle((x, y), radius, fill=False, edgecolor=_GOAL, linewidth=1.4))
    for x, y, other_x, other_y in scenery.walls:
        wall = axes.plot((x, other_x), (y, other_y), color=_WALL, linewidth=4, solid_capstyle="projecting", zorder=2)
        wall[0].set_clip_path(ground)
    return ground


def _actors(axes: Any, scenery: Any, ground: Any) -> _Artists:
    """All that moves, with no place yet."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Circle, Polygon

    colours = _colours(scenery.bodies)
    discs, noses, reaches, crosses, shades = [], [], [], [], []
    fading = np.linspace(0.0, 0.75, _TRAIL)
    for index, (kind, radius) in enumerate(zip(scenery.bodies, scenery.radii, strict=True)):
        colour = colours[kind]
        reach = scenery.reaches[index] if scenery.reaches else 0.0
        reaches.append(_reach(axes, reach, colour, ground) if reach > 0 else None)
        noses.append(axes.add_patch(Polygon(np.zeros((3, 2)), facecolor=colour, edgecolor="none", zorder=4)))
        discs.append(axes.add_patch(Circle((0, 0), radius, facecolor=colour, edgecolor="none", zorder=5)))
        crosses += axes.plot([], [], "x", color=colour, markersize=9, markeredgewidth=2.0, zorder=6)
        shades += [to_rgba(colour, alpha) for alpha in fading]
    for moving in (*discs, *noses):
        moving.set_clip_on(False)
    widths = np.tile(np.linspace(0.5, 2.4, _TRAIL), len(discs))
    trails = LineCollection([], colors=shades, linewidths=widths, capstyle="butt", zorder=3, clip_on=False)
    axes.add_collection(trails, autolim=False)
    return _Artists(discs, noses, reaches, crosses, trails, None, [])


def _reach(axes: Any, radius: float, colour: str, ground: Any) -> Any:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Circle

    looks = {"facecolor": to_rgba(colour, 0.1), "edgecolor": to_rgba(colour, 0.45), "linewidth": 0.9}
    reach = axes.add_patch(Circle((0, 0), radius, zorder=1, **looks))
    reach.set_clip_path(ground)
    return reach


def _move(artists: _Artists, scenery: Any, scenes: Any, told: Mapping[str, tuple[np.ndarray, str]], time: int) -> None:
    """Show the state after so many steps."""
    times = np.clip(np.arange(time - _TRAIL, time + 1), 0, None)
    paths = np.moveaxis(np.asarray(scenes.position)[times], 0, 1)  # [bodies, 21, 2]
    artists.trails.set_segments(np.stack([paths[:, :-1], paths[:, 1:]], axis=2).reshape(-1, 2, 2))
    for body, radius in enumerate(scenery.radii):
        place, heading = scenes.position[time, body], float(scenes.heading[time, body])
        seen = bool(scenes.visible[time, body])
        artists.discs[body].set(center=place, visible=seen)
        artists.noses[body].set_visible(seen and math.isfinite(heading))
        if math.isfinite(heading):
            artists.noses[body].set_xy(_nose(place, heading, radius))
        if artists.reaches[body] is not None:
            artists.reaches[body].set(center=place, visible=seen)
        gone = 0 if seen else time - int(np.flatnonzero(scenes.visible[: time + 1, body])[-1:].sum())
        artists.crosses[body].set_data([place[0]], [place[1]])
        artists.crosses[body].set_alpha(max(0.0, 1.0 - (gone - 1) / _MOURNED) if gone else 0.0)
    artists.step.set_text(f"step {time}")
    for text, (name, (values, _)) in zip(artists.returns, told.items(), strict=True):
        text.set_text(f"{name}  {_number(values, time)}")


def _nose(place: np.ndarray, heading: float, radius: float) -> np.ndarray:
    """A triangle whose sides touch the disc, `[3, 2]`."""
    side = math.acos(1.0 / _NOSE)
    angles = heading + np.array([0.0, side, -side])
    return place + radius * np.array([[_NOSE], [1.0], [1.0]]) * np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _number(values: np.ndarray, time: int) -> str:
    """Whole where all are."""
    whole = bool((values == np.round(values)).all())
    return f"{values[time]:.{0 if whole else 1}f}"
