"""`skills.png`: trajectories of each skill in descriptor space."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.report.dimensions import Dimensions, dimensions, wrapped
from rookery.report.figures import style
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import RunFolder, open_existing

_ZOOM_BELOW = 0.4  # fraction of a dimension's limits: the view zooms in on trajectories with a smaller range
_MARGIN = 0.06  # fraction of the range of the trajectories
_SMALLEST_ASPECT = 0.5  # ratio of the shorter to the longer side of the view
_DARKER = 0.88  # factor on the colour map, whose middle is pale on white
_MOST_LISTED = 12  # skills in a legend
_OUTWARDS = np.array([[-1.0], [1.0]])  # directions of the lower and the upper ends
_PARTS = 12  # segments of a fading line
_FEW = 8  # starts up to which they are marked clearly
_MANY = 60  # trajectories above which lines are thinner


class Trajectory(NamedTuple):
    """Trajectory of one episode in descriptor space."""

    skill: int
    points: np.ndarray
    """`[states, 2]`: the first two dimensions of the descriptor, or the step and the only dimension."""


class View(NamedTuple):
    """The drawn part of the plane."""

    ends: np.ndarray
    """`[2, 2]`, lower and upper ends of both axes."""
    limits: np.ndarray | None
    """`[2, 2]`, lower and upper limits of the descriptor; None if unknown."""
    equal: bool
    """Whether both axes have the same unit."""

    @property
    def zoomed(self) -> bool:
        """Whether some of the limits are outside the view."""
        return self.limits is not None and bool((_OUTWARDS * (self.limits - self.ends) > 0).any())

    @property
    def crossed(self) -> bool:
        """Whether some of the limits are inside the view."""
        return self.limits is not None and bool((_OUTWARDS * (self.ends - self.limits) > 0).any())


def draw_skills(run_dir: str | Path) -> Path:
    """Draw the trajectories of a run's skills into its run directory, each skill in a separate colour.

    A line shows an episode in the first two dimensions of the descriptor, or in its only dimension over the steps. A
    dot marks the end of an episode, and rings mark the start states. For a descriptor that is the mean over an episode,
    the mean up to each step is drawn, fainter at early steps. The view shows the descriptor's limits, or zooms in where
    the trajectories cover less than two fifths of them.

    Returns:
      The figure's path.

    Raises:
      ValueError: the folder is not a run, has no trajectories, or has a table that cannot be read.
    """
    folder = open_existing(run_dir)
    _figure(folder).savefig(folder.skills_picture_file, dpi=130)
    return folder.skills_picture_file


def _figure(folder: RunFolder) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    trajectories, descriptor = read_trajectories(folder)
    view = view_of(trajectories, descriptor)
    figure = Figure(figsize=figure_size(view, len(descriptor.names)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(folder.config, trajectories, descriptor, view), color=style.INK, fontsize=11)
    draw_trajectories(figure.subplots(), trajectories, descriptor, view)
    return figure


def draw_trajectories(axes, trajectories: Sequence[Trajectory], descriptor: Dimensions, view: View) -> None:
    """Draw trajectories, each skill in a separate colour, with a legend or a colour bar of the skills."""
    colours = _colours(sorted({trajectory.skill for trajectory in trajectories}))
    _draw_trajectories(axes, trajectories, colours, fading=descriptor.kind == "mean")
    if descriptor.kind != "mean":
        _draw_starts(axes, trajectories)
    _frame(axes, view, descriptor)
    if len(colours) <= _MOST_LISTED:
        _list_skills(axes)
    else:
        _draw_bar(axes.figure, axes, colours)


def read_trajectories(folder: RunFolder) -> tuple[list[Trajectory], Dimensions]:
    """Read all recorded trajectories, sorted by skill, and the dimensions of their descriptor.

    Raises:
      ValueError: there are no trajectories, or the table cannot be read.
    """
    again = f"`rookery evaluate {folder.path}` writes it"
    if not folder.skills_file.is_file():
        raise ValueError(f"{folder.path} has no trajectories to draw: skills.csv is missing in it; {again}.")
    table = read_csv(folder.skills_file)
    size = sum(name.startswith("descriptor/") for name in table)
    columns = ["skill", "episode", "step", *(f"descriptor/{index}" for index in range(size))]
    missing = [name for name in columns if name not in table]
    if missing:
        raise ValueError(f"{folder.skills_file} lacks the columns {', '.join(missing)}; {again} anew.")
    if not size:
        raise ValueError(
            f"{folder.skills_file} has no descriptor, so there are no trajectories to draw; train on a task that has "
            "one (`rookery envs` lists them)."
        )
    descriptor = dimensions(folder.config, size)
    trajectories = _trajectories(table, descriptor)
    if not trajectories:
        raise ValueError(f"{folder.skills_file} contains no trajectory; {again} anew.")
    return trajectories, descriptor


def _trajectories(table: Mapping[str, np.ndarray], descriptor: Dimensions) -> list[Trajectory]:
    """The points of every episode, sorted by skill; states that are not finite are dropped."""
    states = np.stack([table[f"descriptor/{index}"] for index in range(len(descriptor.names))][:2], axis=1)
    order = np.lexsort((table["step"], table["episode"], table["skill"]))
    order = order[np.isfinite(states[order]).all(axis=1)]
    labels = np.stack([table["skill"][order], table["episode"][order]], axis=1)
    trajectories = []
    for rows in np.split(order, 1 + np.flatnonzero((labels[1:] != labels[:-1]).any(axis=1))):
        steps, points = table["step"][rows], states[rows]
        if descriptor.kind == "mean":  # the start state is not yet part of the episode's descriptor
            steps, points = steps[steps > 0], points[steps > 0]
            points = np.cumsum(points, axis=0) / np.arange(1, len(points) + 1)[:, None]
        if points.shape[1] == 1:
            points = np.concatenate([steps[:, None].astype(float), points], axis=1)
        if len(points):
            trajectories.append(Trajectory(int(table["skill"][rows[0]]), points))
    return trajectories


def view_of(trajectories: Sequence[Trajectory], descriptor: Dimensions) -> View:
    """The part of the plane to draw: the limits, or a zoomed part if the trajectories cover little of them."""
    points = np.concatenate([trajectory.points for trajectory in trajectories])
    spanned = np.stack([points.min(axis=0), points.max(axis=0)])
    limits = None if descriptor.limits is None else descriptor.limits[:, :2]
    if len(descriptor.names) == 1:
        steps = np.array([[spanned[0, 0]], [max(spanned[1, 0], spanned[0, 0] + 1)]])
        ends = np.concatenate([steps, _ends(spanned[:, 1:], limits, equal=False)], axis=1)
        return View(ends, None if limits is None else np.concatenate([steps, limits], axis=1), equal=False)
    equal = limits is not None and bool(np.isclose(*(limits[1] - limits[0])))
    return View(_ends(spanned, limits, equal), limits, equal)


def _ends(spanned: np.ndarray, limits: np.ndarray | None, equal: bool) -> np.ndarray:
    """Lower and upper ends of some axes, `[2, axes]`.

    Args:
      spanned: `[2, axes]`, minimum and maximum of the points.
      limits: `[2, axes]`; points beyond them are drawn as well.
      equal: whether the axes have the same unit, so that the view zooms in on both or on none.

    Returns:
      The ends.
    """
    size = spanned[1] - spanned[0]
    if limits is None:
        return spanned + _OUTWARDS * np.where(size > 0, _MARGIN * size, 0.5)
    width = limits[1] - limits[0]
    covered = np.minimum(spanned[1], limits[1]) - np.maximum(spanned[0], limits[0])
    full = covered >= _ZOOM_BELOW * width
    full = np.full_like(full, full.any()) if equal else full
    close = spanned + _OUTWARDS * np.maximum(_MARGIN * size, 0.01 * width)
    beyond = _OUTWARDS * (spanned - limits) > 1e-6 * width  # more than rounding
    wide = limits + _OUTWARDS * (_MARGIN * width if beyond.any() else 0.0)  # a margin makes the limits visible
    ends = np.where(full & ~beyond, wide, close)
    if equal:
        size = ends[1] - ends[0]
        ends = ends + _OUTWARDS * np.maximum(_SMALLEST_ASPECT * size.max() - size, 0.0) / 2
    return ends


def _title(config: Mapping[str, Any], trajectories: Sequence[Trajectory], descriptor: Dimensions, view: View) -> str:
    episodes = list(Counter(trajectory.skill for trajectory in trajectories).values())
    uniform = len(set(episodes)) == 1
    counted = f"{style.counted(episodes[0], 'episode')} each" if uniform else style.counted(sum(episodes), "episode")
    parts = [f"{style.counted(len(episodes), 'skill')}, {counted}"]
    if len(descriptor.names) > 2:
        parts.append(f"two of {len(descriptor.names)} dimensions")
    if descriptor.limits is not None and view.zoomed:
        parts.append(
            f"zoomed in (limits {' x '.join(f'[{low:g}, {high:g}]' for low, high in descriptor.limits.T[:2])})"
        )
    elif view.crossed:
        parts.append("dashed: the limits")
    return f"{style.headline(config)}\n{',  '.join(parts)}"


def figure_size(view: View, size: int) -> tuple[float, float]:
    """Width and height of the figure, in inches."""
    if size == 1:
        return 8.5, 4.2
    width, height = view.ends[1] - view.ends[0]
    return 7.5, 0.9 + 6.0 * float(np.clip(height / width, 0.4, 1.7)) if view.equal else 6.2


def _colours(skills: Sequence[int]) -> dict[int, Any]:
    """Skill -> colour."""
    import matplotlib

    if len(skills) <= len(style.PALETTE):
        return dict(zip(skills, style.PALETTE, strict=False))
    shades = matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, len(skills)))[:, :3]
    return {skill: tuple(_DARKER * shade) for skill, shade in zip(skills, shades, strict=True)}


def _draw_trajectories(axes, trajectories: Sequence[Trajectory], colours: Mapping[int, Any], fading: bool) -> None:
    from matplotlib.collections import LineCollection

    many = len(trajectories) > _MANY
    for skill, colour in colours.items():
        paths = [trajectory.points for trajectory in trajectories if trajectory.skill == skill]
        parts = [_parts(path) for path in paths] if fading else [[path] for path in paths]
        opacity = [(index + 1) / len(segments) for segments in parts for index in range(len(segments))]
        line_style = {"linewidths": 0.8 if many else 1.1, "alpha": np.multiply(opacity, 0.6 if many else 0.75)}
        flat = [segment for segments in parts for segment in segments]
        lines = LineCollection(flat, colors=[colour] * len(opacity), **line_style)
        lines.set_clip_on(False)  # trajectories may run along the frame
        axes.add_collection(lines, autolim=False)
        ends = np.stack([path[-1] for path in paths])
        dot_style = {"color": colour, "s": 16 if many else 26, "edgecolors": "white", "linewidths": 0.5, "zorder": 3}
        axes.scatter(ends[:, 0], ends[:, 1], label=str(skill), clip_on=False, **dot_style)


def _parts(path: np.ndarray) -> list[np.ndarray]:
    """Split a path into at most `_PARTS` segments; each ends at the first point of the next."""
    cuts = np.unique(np.linspace(0, len(path) - 1, _PARTS + 1).round().astype(int))
    return [path[first : last + 1] for first, last in pairwise(cuts)] or [path]


def _draw_starts(axes, trajectories: Sequence[Trajectory]) -> None:
    starts = np.unique([trajectory.points[0] for trajectory in trajectories], axis=0)
    few = {"s": 30, "edgecolors": style.INK, "linewidths": 0.9, "zorder": 4}
    crowd = {"s": 12, "edgecolors": style.QUIET, "linewidths": 0.8, "zorder": 1}
    ring_style = few if len(starts) <= _FEW else crowd
    axes.scatter(starts[:, 0], starts[:, 1], label="start", facecolors="none", clip_on=False, **ring_style)


def _frame(axes, view: View, descriptor: Dimensions) -> None:
    from matplotlib.patches import Rectangle

    if view.crossed and view.limits is not None:
        lower, upper = view.limits
        line_style = {"fill": False, "edgecolor": style.QUIET, "linewidth": 0.9, "linestyle": "--"}
        axes.add_patch(Rectangle(lower, *(upper - lower), **line_style))
    axes.set_xlim(*view.ends[:, 0])
    axes.set_ylim(*view.ends[:, 1])
    if view.equal:
        axes.set_aspect("equal")
    labels = [_label(name, descriptor.kind) for name in descriptor.names[:2]]
    labels = ["step", *labels] if len(labels) == 1 else labels
    axes.set_xlabel(labels[0], fontsize=9)
    axes.set_ylabel(labels[1], fontsize=9)
    style.tidy(axes)


def _label(name: str, kind: str) -> str:
    """Label of an axis; without "final", since all states of an episode are drawn."""
    name = wrapped(name.removeprefix("final "), 50)
    return f"{name},\nmean of the steps so far" if kind == "mean" else name


def _list_skills(axes) -> None:
    legend = axes.legend(
        title="skill", loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=8, title_fontsize=9
    )
    legend.get_title().set_color(style.INK)


def _draw_bar(figure, axes, colours: Mapping[int, Any]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    count = len(colours)
    shades = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), ListedColormap(list(colours.values())))
    ticks = np.arange(0, count, -(-count // 10))
    bar = figure.colorbar(shades, ax=axes, pad=0.02, aspect=35, ticks=ticks)
    bar.minorticks_off()
    bar.set_ticklabels([str(list(colours)[tick]) for tick in ticks])
    bar.set_label("skill", fontsize=9)
    bar.ax.tick_params(labelsize=8, length=0)
    bar.outline.set_visible(False)
