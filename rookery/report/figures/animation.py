"""Animation of an episode with bodies in a plane, as `.gif` or `.mp4`."""

import io
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rookery.report.figures.style import INK, PALETTE, QUIET, colour_of
from rookery.storage.run_dir import user_path, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Polygon, Rectangle
    from matplotlib.text import Text
    from PIL.Image import Image as PaletteImage

    from rookery.envs.rendering.scene import Scene, Scenery

_WALL, _GOAL, _GROUND = "#a9b6be", PALETTE[4], "#f5f7f8"
_DOTS_PER_INCH = 100
_WIDTH, _MARGIN = 3.6, 0.14  # inches: width of the figure, and margin around the plane
_LINE = 0.21  # inches, height of a line of text
_MOST_NAMED = 6  # returns that are shown by name; of more, the mean per kind of body is shown
_COLUMNS = 3
_TRAIL = 20  # steps
_NOSE = 2.0  # distance of a nose's tip from the centre of its body, in radii
_CROSS_STEPS = 15  # steps for which a cross marks the position of a body that became invisible
_PALETTE_SIZE, _SAMPLED = 64, 8  # colours of a .gif, and number of frames from which they are chosen
_INDISTINCT = 6  # of 255, the largest difference between colours that look equal
_CHANNELS = np.array([1, 256, 256**2], np.uint32)  # factors that encode red, green and blue as one integer
_LAST = 1.5  # seconds for which the last frame is held


class _Artists(NamedTuple):
    """The moving artists, which are created once and then updated; the first four have an entry per body."""

    discs: "list[Circle]"
    noses: "list[Polygon]"
    reaches: "list[Circle | None]"  # None for a body without a reach beyond its disc
    crosses: "list[Line2D]"
    trails: "LineCollection"
    step: "Text"
    returns: "list[Text]"


class _Return(NamedTuple):
    """A shown return."""

    values: np.ndarray  # cumulative, `[T]`
    colour: str


def animate(
    scenery: "Scenery",
    scenes: "Scene",
    returns: Mapping[str, np.ndarray],
    path: str | Path,
    title: str = "",
    frames_per_second: int = 20,
    most_frames: int = 201,
) -> Path:
    """Animate an episode.

    A body is drawn as a disc, with a nose in the direction of its heading and a trail of its last 20 steps. A body
    whose reach exceeds its disc has a pale disc of that radius. A cross marks for 15 steps the position of a body that
    became invisible. The title line shows the step; below it are the cumulative returns, in the colours of the bodies.

    Args:
      scenery: the static objects, as `envs/rendering/scene.py: Scenery`.
      scenes: the moving bodies, as `envs/rendering/scene.py: Scene` with numpy leaves `[T, bodies, ...]`, starting with
        the start state.
      returns: name -> `[T]`; one per body in their order, or any other number, which is then shown without colours.
      path: file to write: a `.gif`, or a `.mp4` where the program ffmpeg is installed.
      frames_per_second: at least 1.
      most_frames: largest number of frames, at least 2; of a longer episode every k-th step is drawn, and the last.

    Raises:
      ValueError: the path has another suffix, ffmpeg is missing, an argument is below its minimum, or there are no
        scenes.
    """
    if most_frames < 2:
        raise ValueError(f"most_frames must be at least 2, got {most_frames}.")
    path, length = user_path(path), len(scenes.position)
    if not length:
        raise ValueError("an episode without a state cannot be drawn; give at least its start.")
    if frames_per_second < 1:
        raise ValueError(f"frames_per_second must be at least 1, got {frames_per_second}.")
    check_suffix(path)
    save = _save_gif if path.suffix == ".gif" else _save_mp4
    path.parent.mkdir(parents=True, exist_ok=True)
    labelled = _label_returns(returns, scenery.bodies)
    canvas, artists = _create_figure(scenery, labelled, title)
    times = [*_frames(length, most_frames), *[length - 1] * round(_LAST * frames_per_second)]
    updates = (_update(artists, scenery, scenes, labelled, time) for time in times)
    save(canvas, updates, path, frames_per_second)
    return path


def check_suffix(path: Path) -> None:
    """Raise a ValueError if `path` is no .gif or .mp4 file, or is an .mp4 and ffmpeg is missing."""
    if path.suffix == ".gif":
        return
    if path.suffix != ".mp4":
        raise ValueError(f"an animation is a .gif or .mp4 file, got {str(path)!r}; choose one of these suffixes.")
    from matplotlib.animation import FFMpegWriter

    if not FFMpegWriter.isAvailable():
        raise ValueError(f"{path} needs the program ffmpeg, which is not installed; install it, or choose a .gif.")


def _save_gif(canvas: "FigureCanvasAgg", updates: Iterator[None], path: Path, frames_per_second: int) -> None:
    """Save with one palette for all frames: half the size of a file by matplotlib, which has a palette per frame."""
    from PIL import Image

    frames = []
    for _ in updates:
        canvas.draw()
        frames.append(np.array(canvas.buffer_rgba())[..., :3])
    palette = _palette_image(np.concatenate(frames[:: math.ceil(len(frames) / _SAMPLED)]))
    images = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    options = {"append_images": images[1:], "duration": round(1000 / frames_per_second), "loop": 0, "optimize": True}
    content = io.BytesIO()
    images[0].save(content, "gif", save_all=True, **options)
    write_atomically(path, content.getvalue())


def _palette_image(sample: np.ndarray) -> "PaletteImage":
    """An image with a palette for a sample `[height, width, 3]`: frequent colours exactly, others quantised."""
    from PIL import Image

    codes, counts = np.unique(sample.astype(np.uint32) @ _CHANNELS, return_counts=True)
    frequent = codes[np.argsort(-counts, kind="stable")[: _PALETTE_SIZE // 2], None] // _CHANNELS % 256
    others = Image.fromarray(sample).quantize(_PALETTE_SIZE // 2, method=Image.Quantize.MEDIANCUT).getpalette() or []
    quantised = np.array(others, np.int64).reshape(-1, 3)
    distance = np.abs(quantised[:, None] - frequent[None].astype(np.int64)).max(axis=2).min(axis=1)
    image = Image.new("P", (1, 1))
    image.putpalette([*frequent.flatten().tolist(), *quantised[distance > _INDISTINCT].flatten().tolist()])
    return image


def _save_mp4(canvas: "FigureCanvasAgg", updates: Iterator[None], path: Path, frames_per_second: int) -> None:
    from matplotlib.animation import FFMpegWriter

    writer = FFMpegWriter(fps=frames_per_second, extra_args=["-pix_fmt", "yuv420p"])
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, path.name)
        with writer.saving(canvas.figure, str(made), _DOTS_PER_INCH):
            for _ in updates:
                writer.grab_frame()
        write_atomically(path, made.read_bytes())


def _frames(length: int, most_frames: int) -> list[int]:
    """The drawn steps, evenly spaced except for the last."""
    stride = max(1, math.ceil((length - 1) / (most_frames - 1)))
    return [*range(0, length - 1, stride), length - 1]


def _label_returns(returns: Mapping[str, np.ndarray], bodies: Sequence[str]) -> dict[str, _Return]:
    """The shown returns by label."""
    colours = _colours(bodies)
    if len(returns) != len(bodies):
        return {name: _Return(np.asarray(values), INK) for name, values in list(returns.items())[:_MOST_NAMED]}
    if len(returns) <= _MOST_NAMED:
        named = zip(returns.items(), bodies, strict=True)
        return {name: _Return(np.asarray(values), colours[kind]) for (name, values), kind in named}
    stacked = np.stack([np.asarray(values) for values in returns.values()])
    of_kind = {kind: np.asarray([body == kind for body in bodies]) for kind in colours}
    return {
        f"{kind} x {rows.sum()}": _Return(stacked[rows].mean(axis=0), colours[kind]) for kind, rows in of_kind.items()
    }


def _colours(bodies: Sequence[str]) -> dict[str, str]:
    return {kind: colour_of(index) for index, kind in enumerate(dict.fromkeys(bodies))}


def _create_figure(
    scenery: "Scenery", labelled: Mapping[str, _Return], title: str
) -> "tuple[FigureCanvasAgg, _Artists]":
    """The canvas of a figure with its static objects, and its moving artists before the first update."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pad = max(scenery.radii, default=0.0)
    (left, low), (right, high) = np.asarray(scenery.lower) - pad, np.asarray(scenery.upper) + pad
    width = _WIDTH - 2 * _MARGIN
    tall = width * (high - low) / (right - left)
    grid = _text_grid([shown.colour for shown in labelled.values()])
    head = _LINE * (1 + max((row for row, _ in grid), default=0)) + 0.04
    pixels = round((tall + 2 * _MARGIN + head) * _DOTS_PER_INCH / 2) * 2  # ffmpeg requires an even height
    height = pixels / _DOTS_PER_INCH
    figure = Figure(figsize=(_WIDTH, height), dpi=_DOTS_PER_INCH, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((_MARGIN / _WIDTH, _MARGIN / height, width / _WIDTH, tall / height))
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.set_axis_off()
    ground = _set_scenery(axes, scenery)
    side = _MARGIN + width * pad / (right - left)
    columns = side + (_WIDTH - 2 * side) * np.arange(_COLUMNS) / min(_COLUMNS, max(len(labelled), 1))
    lines = 1.0 - (_MARGIN + 0.1 + _LINE * np.arange(1 + len(labelled))) / height
    font = {"fontsize": 9.5, "color": INK}
    figure.text(side / _WIDTH, lines[0], title, weight="bold", **font)
    step = figure.text(1 - side / _WIDTH, lines[0], "", ha="right", **font)
    returns = [
        figure.text(columns[column] / _WIDTH, lines[row], "", fontsize=8.5, color=shown.colour)
        for (row, column), shown in zip(grid, labelled.values(), strict=True)
    ]
    return canvas, _create_artists(axes, scenery, ground, step, returns)


def _text_grid(colours: Sequence[str]) -> list[tuple[int, int]]:
    """Row, from 1, and column of each return; if they do not fit into one row, each colour begins a new row."""
    grid = []
    for index, colour in enumerate(colours):
        row, column = grid[-1] if grid else (1, -1)
        full = column == _COLUMNS - 1 or (len(colours) > _COLUMNS and index > 0 and colour != colours[index - 1])
        grid.append((row + 1, 0) if full else (row, column + 1))
    return grid


def _set_scenery(axes: "Axes", scenery: "Scenery") -> "Rectangle":
    """Draw the static objects, and return the patch of the ground."""
    from matplotlib.patches import Circle, Rectangle

    size = np.asarray(scenery.upper) - np.asarray(scenery.lower)
    ground = Rectangle(scenery.lower, *size, facecolor=_GROUND, edgecolor=QUIET, zorder=0)
    axes.add_patch(ground)
    if scenery.ground:
        places, heights = np.asarray(scenery.ground).T
        soil = axes.fill_between(places, heights, scenery.lower[1], facecolor=_WALL, alpha=0.45, linewidth=0, zorder=1)
        soil.set_clip_path(ground)
        axes.plot(places, heights, color=_WALL, linewidth=2, zorder=1)[0].set_clip_path(ground)
    for x, y, radius in scenery.goals:
        axes.add_patch(Circle((x, y), radius, facecolor=_GOAL, alpha=0.25, edgecolor="none"))
        axes.add_patch(Circle((x, y), radius, fill=False, edgecolor=_GOAL, linewidth=1.4))
    for x, y, other_x, other_y in scenery.walls:
        wall = axes.plot((x, other_x), (y, other_y), color=_WALL, linewidth=4, solid_capstyle="projecting", zorder=2)
        wall[0].set_clip_path(ground)
    return ground


def _create_artists(
    axes: "Axes", scenery: "Scenery", ground: "Rectangle", step: "Text", returns: "list[Text]"
) -> _Artists:
    """Create the moving artists, without positions; `step` and `returns` exist already."""
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
    return _Artists(discs, noses, reaches, crosses, trails, step, returns)


def _reach(axes: "Axes", radius: float, colour: str, ground: "Rectangle") -> "Circle":
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Circle

    face, edge = to_rgba(colour, 0.1), to_rgba(colour, 0.45)
    reach = Circle((0, 0), radius, zorder=1, facecolor=face, edgecolor=edge, linewidth=0.9)
    axes.add_patch(reach)
    reach.set_clip_path(ground)
    return reach


def _update(artists: _Artists, scenery: "Scenery", scenes: "Scene", labelled: Mapping[str, _Return], time: int) -> None:
    """Update the artists to the state after `time` steps."""
    times = np.clip(np.arange(time - _TRAIL, time + 1), 0, None)
    positions = np.asarray(scenes.position)
    paths = np.moveaxis(positions[times], 0, 1)  # [bodies, 21, 2]
    artists.trails.set_segments(list(np.stack([paths[:, :-1], paths[:, 1:]], axis=2).reshape(-1, 2, 2)))
    for body, radius in enumerate(scenery.radii):
        position, heading = positions[time, body], float(scenes.heading[time, body])
        visible = bool(scenes.visible[time, body])
        artists.discs[body].set(center=position, visible=visible)
        artists.noses[body].set_visible(visible and math.isfinite(heading))
        if math.isfinite(heading):
            artists.noses[body].set_xy(_nose(position, heading, radius))
        if (reach := artists.reaches[body]) is not None:
            reach.set(center=position, visible=visible)
        hidden = 0 if visible else time - int(np.flatnonzero(scenes.visible[: time + 1, body])[-1:].sum())
        artists.crosses[body].set_data([position[0]], [position[1]])
        artists.crosses[body].set_alpha(max(0.0, 1.0 - (hidden - 1) / _CROSS_STEPS) if hidden else 0.0)
    artists.step.set_text(f"step {time}")
    for text, (name, shown) in zip(artists.returns, labelled.items(), strict=True):
        text.set_text(f"{name}  {_number(shown.values, time)}")


def _nose(position: np.ndarray, heading: float, radius: float) -> np.ndarray:
    """A triangle whose sides are tangent to the disc, `[3, 2]`."""
    side = math.acos(1.0 / _NOSE)
    angles = heading + np.array([0.0, side, -side])
    return position + radius * np.array([[_NOSE], [1.0], [1.0]]) * np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def _number(values: np.ndarray, time: int) -> str:
    """The value at a time, without decimals if all values are integers."""
    integers = bool((values == np.round(values)).all())
    return f"{values[time]:z.{0 if integers else 1}f}"
