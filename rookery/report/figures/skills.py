"""`skills.png`: trajectories of each skill in descriptor space."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rookery.report.dimensions import Dimensions, wrapped
from rookery.report.figures.style import INK, PALETTE, QUIET, colour_bar, label_axes, new_figure, save_figure, tidy
from rookery.report.formatting import Settings, counted, headline, limits_text
from rookery.report.readers import RunRecord, Trajectory, open_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Colour = str | tuple[float, ...]

_ZOOM_BELOW = 0.4  # fraction of a dimension's limits: the view zooms in on trajectories with a smaller range
_MARGIN = 0.06  # fraction of the range of the trajectories
_SMALLEST_ASPECT = 0.5  # ratio of the shorter to the longer side of the view
_DARKER = 0.88  # factor on the colour map, whose middle is pale on white
_MOST_LISTED = 12  # skills in a legend
_OUTWARDS = np.array([[-1.0], [1.0]])  # directions of the lower and the upper ends
_PARTS = 12  # segments of a fading line
_FEW = 8  # starts up to which they are marked clearly
_MANY = 60  # trajectories above which lines are thinner


class View(NamedTuple):
    """The drawn part of the plane."""

    ends: np.ndarray  # `[2, 2]`, lower and upper ends of both axes
    limits: np.ndarray | None  # `[2, 2]`, lower and upper limits of the descriptor; None if unknown
    equal: bool  # whether both axes have the same unit

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

    Raises:
      ValueError: the folder is not a run, has no trajectories, or has a table that cannot be read.
    """
    record = open_run(run_dir)
    return save_figure(_figure(record), record.folder.skills_picture_file)


def _figure(record: RunRecord) -> "Figure":
    trajectories, descriptor = record.trajectories
    view = view_of(trajectories, descriptor)
    figure = new_figure(figure_size(view, len(descriptor.names)), _title(record.config, trajectories, descriptor, view))
    draw_trajectories(figure.subplots(), trajectories, descriptor, view)
    return figure


def draw_trajectories(axes: "Axes", trajectories: Sequence[Trajectory], descriptor: Dimensions, view: View) -> None:
    """Draw trajectories, each skill in a separate colour, with a legend or a colour bar of the skills."""
    colours = _colours(sorted({trajectory.skill for trajectory in trajectories}))
    _draw_trajectories(axes, trajectories, colours, fading=descriptor.kind == "mean")
    if descriptor.kind != "mean":
        _draw_starts(axes, trajectories)
    _frame(axes, view, descriptor)
    if len(colours) <= _MOST_LISTED:
        place = {"loc": "center left", "bbox_to_anchor": (1.02, 0.5)}
        legend = axes.legend(title="skill", frameon=False, fontsize=8, title_fontsize=9, **place)
        legend.get_title().set_color(INK)
    else:
        _draw_bar(axes, colours)


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

    `spanned` are the minimum and maximum of the points `[2, axes]`; points beyond the `limits` `[2, axes]` are drawn as
    well. Axes with an `equal` unit are both zoomed in on, or none.
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


def _title(config: Settings, trajectories: Sequence[Trajectory], descriptor: Dimensions, view: View) -> str:
    episodes = list(Counter(trajectory.skill for trajectory in trajectories).values())
    uniform = len(set(episodes)) == 1
    total = f"{counted(episodes[0], 'episode')} each" if uniform else counted(sum(episodes), "episode")
    parts = [f"{counted(len(episodes), 'skill')}, {total}"]
    if len(descriptor.names) > 2:
        parts.append(f"two of {len(descriptor.names)} dimensions")
    if descriptor.limits is not None and view.zoomed:
        parts.append(f"zoomed in (limits {limits_text(*descriptor.limits[:, :2])})")
    elif view.crossed:
        parts.append("dashed: the limits")
    return f"{headline(config)}\n{',  '.join(parts)}"


def figure_size(view: View, size: int) -> tuple[float, float]:
    """Width and height of the figure, in inches."""
    if size == 1:
        return 8.5, 4.2
    width, height = view.ends[1] - view.ends[0]
    return 7.5, 0.9 + 6.0 * float(np.clip(height / width, 0.4, 1.7)) if view.equal else 6.2


def _colours(skills: Sequence[int]) -> dict[int, Colour]:
    import matplotlib

    if len(skills) <= len(PALETTE):
        return dict(zip(skills, PALETTE, strict=False))
    shades = matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, len(skills)))[:, :3]
    return {skill: tuple(_DARKER * shade) for skill, shade in zip(skills, shades, strict=True)}


def _draw_trajectories(
    axes: "Axes", trajectories: Sequence[Trajectory], colours: Mapping[int, Colour], fading: bool
) -> None:
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


def _draw_starts(axes: "Axes", trajectories: Sequence[Trajectory]) -> None:
    starts = np.unique([trajectory.points[0] for trajectory in trajectories], axis=0)
    few = {"s": 30, "edgecolors": INK, "linewidths": 0.9, "zorder": 4}
    crowd = {"s": 12, "edgecolors": QUIET, "linewidths": 0.8, "zorder": 1}
    ring_style = few if len(starts) <= _FEW else crowd
    axes.scatter(starts[:, 0], starts[:, 1], label="start", facecolors="none", clip_on=False, **ring_style)


def _frame(axes: "Axes", view: View, descriptor: Dimensions) -> None:
    from matplotlib.patches import Rectangle

    if view.crossed and view.limits is not None:
        lower, upper = view.limits
        line_style = {"fill": False, "edgecolor": QUIET, "linewidth": 0.9, "linestyle": "--"}
        axes.add_patch(Rectangle(lower, *(upper - lower), **line_style))
    axes.set_xlim(*view.ends[:, 0])
    axes.set_ylim(*view.ends[:, 1])
    if view.equal:
        axes.set_aspect("equal")
    labels = [_label(name, descriptor.kind) for name in descriptor.names[:2]]
    labels = ["step", *labels] if len(labels) == 1 else labels
    label_axes(axes, *labels)
    tidy(axes)


def _label(name: str, kind: str) -> str:
    """Label of an axis; without "final", since all states of an episode are drawn."""
    name = wrapped(name.removeprefix("final "), 50)
    return f"{name},\nmean of the steps so far" if kind == "mean" else name


def _draw_bar(axes: "Axes", colours: Mapping[int, Colour]) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    count = len(colours)
    shades = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), ListedColormap(list(colours.values())))
    ticks = np.arange(0, count, -(-count // 10))
    bar = colour_bar(shades, [axes], "skill", ticks=ticks)
    bar.minorticks_off()
    bar.set_ticklabels([str(list(colours)[tick]) for tick in ticks])
    bar.ax.tick_params(length=0)
