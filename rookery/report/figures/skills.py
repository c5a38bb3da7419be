"""`skills.png`: where the episodes of each skill went."""

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

_FAIR = 0.4  # of a dimension's limits: what takes less is drawn larger
_MARGIN = 0.06  # of what the trajectories span
_SLIMMEST = 0.5  # height of a map against its width, or the other way round
_DARKER = 0.88  # than the colour map, whose middle is pale on white
_MOST_LISTED = 12  # skills in a legend
_OUTWARDS = np.array([[-1.0], [1.0]])  # of lower and of upper ends
_PARTS = 12  # of a line that fades
_FEW = 8  # starts that may be marked clearly
_MANY = 60  # trajectories, from which on they are drawn finer


class Trajectory(NamedTuple):
    """One episode."""

    skill: int
    points: np.ndarray  # [states, 2]: the first two dimensions, or the step and the only one


class View(NamedTuple):
    """The part of the plane that is drawn."""

    ends: np.ndarray  # [2, 2], lower and upper of both axes
    limits: np.ndarray | None  # likewise, the descriptor's; None where they are not known
    equal: bool  # both axes have one unit

    @property
    def zoomed(self) -> bool:
        """Some of the limits lie outside."""
        return self.limits is not None and bool((_OUTWARDS * (self.limits - self.ends) > 0).any())

    @property
    def crossed(self) -> bool:
        """Some of the limits lie inside."""
        return self.limits is not None and bool((_OUTWARDS * (self.ends - self.limits) > 0).any())


def draw_skills(run_dir: str | Path) -> Path:
    """Draw the trajectories of a run's skills, each skill in a colour of its own, beside its tables.

    A line shows an episode in the first two dimensions of the descriptor, or in its only one over the steps. It ends in
    a dot, and rings mark where episodes began. Of a descriptor that is the mean over an episode, the mean of the steps
    so far is drawn, fainter the fewer they are. The frame is that of the descriptor's limits, or closer where the
    trajectories take less than two fifths of it.

    Returns:
      The picture's path.

    Raises:
      ValueError: the folder holds no run, no trajectories, or a table that cannot be read.
    """
    folder = open_existing(run_dir)
    _figure(folder).savefig(folder.skills_picture_file, dpi=130)
    return folder.skills_picture_file


def _figure(folder: RunFolder) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    trajectories, told = read_trajectories(folder)
    view = view_of(trajectories, told)
    figure = Figure(figsize=figure_size(view, len(told.names)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(folder.config, trajectories, told, view), color=style.INK, fontsize=11)
    draw_trajectories(figure.subplots(), trajectories, told, view)
    return figure


def draw_trajectories(axes, trajectories: Sequence[Trajectory], told: Dimensions, view: View) -> None:
    """Draw episodes, one or more, each skill in a colour of its own, and say which is which."""
    colours = _colours(sorted({trajectory.skill for trajectory in trajectories}))
    _draw_trajectories(axes, trajectories, colours, fading=told.kind == "mean")
    if told.kind != "mean":
        _draw_starts(axes, trajectories)
    _frame(axes, view, told)
    if len(colours) <= _MOST_LISTED:
        _list_skills(axes)
    else:
        _draw_bar(axes.figure, axes, colours)


def read_trajectories(folder: RunFolder) -> tuple[list[Trajectory], Dimensions]:
    """Every episode that was written down, by skill, and what its dimensions are.

    Raises:
      ValueError: there are none, or the table cannot be read.
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
            f"{folder.skills_file} has no descriptor, so nothing in it says where a skill went; train on a task that "
            "has one (`rookery envs` lists them)."
        )
    told = dimensions(folder.config, size)
    trajectories = _trajectories(table, told)
    if not trajectories:
        raise ValueError(f"{folder.skills_file} holds no trajectory; {again} anew.")
    return trajectories, told


def _trajectories(table: Mapping[str, np.ndarray], told: Dimensions) -> list[Trajectory]:
    """Every episode, by skill, as it is drawn; without states that are not finite."""
    states = np.stack([table[f"descriptor/{index}"] for index in range(len(told.names))][:2], axis=1)
    order = np.lexsort((table["step"], table["episode"], table["skill"]))
    order = order[np.isfinite(states[order]).all(axis=1)]
    labels = np.stack([table["skill"][order], table["episode"][order]], axis=1)
    trajectories = []
    for rows in np.split(order, 1 + np.flatnonzero((labels[1:] != labels[:-1]).any(axis=1))):
        steps, points = table["step"][rows], states[rows]
        if told.kind == "mean":  # the start state is not yet part of the episode's descriptor
            steps, points = steps[steps > 0], points[steps > 0]
            points = np.cumsum(points, axis=0) / np.arange(1, len(points) + 1)[:, None]
        if points.shape[1] == 1:
            points = np.concatenate([steps[:, None].astype(float), points], axis=1)
        if len(points):
            trajectories.append(Trajectory(int(table["skill"][rows[0]]), points))
    return trajectories


def view_of(trajectories: Sequence[Trajectory], told: Dimensions) -> View:
    """The part of the plane that shows trajectories well: the limits, or closer where they take little of them."""
    points = np.concatenate([trajectory.points for trajectory in trajectories])
    spanned = np.stack([points.min(axis=0), points.max(axis=0)])
    limits = None if told.limits is None else told.limits[:, :2]
    if len(told.names) == 1:
        steps = np.array([[spanned[0, 0]], [max(spanned[1, 0], spanned[0, 0] + 1)]])
        ends = np.concatenate([steps, _ends(spanned[:, 1:], limits, equal=False)], axis=1)
        return View(ends, None if limits is None else np.concatenate([steps, limits], axis=1), equal=False)
    equal = limits is not None and bool(np.isclose(*(limits[1] - limits[0])))
    return View(_ends(spanned, limits, equal), limits, equal)


def _ends(spanned: np.ndarray, limits: np.ndarray | None, equal: bool) -> np.ndarray:
    """Lower and upper of some axes, `[2, axes]`.

    Args:
      spanned: `[2, axes]`, the least and the greatest point.
      limits: `[2, axes]`; what lies beyond them is drawn all the same.
      equal: the axes have one unit, so that both come closer or none.
    """
    size = spanned[1] - spanned[0]
    if limits is None:
        return spanned + _OUTWARDS * np.where(size > 0, _MARGIN * size, 0.5)
    width = limits[1] - limits[0]
    taken = np.minimum(spanned[1], limits[1]) - np.maximum(spanned[0], limits[0])
    fair = taken >= _FAIR * width
    fair = np.full_like(fair, fair.any()) if equal else fair
    close = spanned + _OUTWARDS * np.maximum(_MARGIN * size, 0.01 * width)
    beyond = _OUTWARDS * (spanned - limits) > 1e-6 * width  # more than rounding
    about = limits + _OUTWARDS * (_MARGIN * width if beyond.any() else 0.0)  # so that the limits are seen
    ends = np.where(fair & ~beyond, about, close)
    if equal:
        size = ends[1] - ends[0]
        ends = ends + _OUTWARDS * np.maximum(_SLIMMEST * size.max() - size, 0.0) / 2
    return ends


def _title(config: Mapping[str, Any], trajectories: Sequence[Trajectory], told: Dimensions, view: View) -> str:
    episodes = list(Counter(trajectory.skill for trajectory in trajectories).values())
    alike = len(set(episodes)) == 1
    counted = f"{style.counted(episodes[0], 'episode')} each" if alike else style.counted(sum(episodes), "episode")
    parts = [f"{style.counted(len(episodes), 'skill')}, {counted}"]
    if len(told.names) > 2:
        parts.append(f"two of {len(told.names)} dimensions")
    if told.limits is not None and view.zoomed:
        parts.append(f"zoomed in (limits {' x '.join(f'[{low:g}, {high:g}]' for low, high in told.limits.T[:2])})")
    elif view.crossed:
        parts.append("dashed: the limits")
    return f"{style.headline(config)}\n{',  '.join(parts)}"


def figure_size(view: View, size: int) -> tuple[float, float]:
    """Inches."""
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
        strength = [(index + 1) / len(own) for own in parts for index in range(len(own))]
        looks = {"linewidths": 0.8 if many else 1.1, "alpha": np.multiply(strength, 0.6 if many else 0.75)}
        lines = LineCollection([part for own in parts for part in own], colors=[colour] * len(strength), **looks)
        lines.set_clip_on(False)  # the frame may be a wall that they run along
        axes.add_collection(lines, autolim=False)
        ends = np.stack([path[-1] for path in paths])
        looks = {"color": colour, "s": 16 if many else 26, "edgecolors": "white", "linewidths": 0.5, "zorder": 3}
        axes.scatter(ends[:, 0], ends[:, 1], label=str(skill), clip_on=False, **looks)


def _parts(path: np.ndarray) -> list[np.ndarray]:
    """A path in at most so many parts of which each ends where the next begins."""
    cuts = np.unique(np.linspace(0, len(path) - 1, _PARTS + 1).round().astype(int))
    return [path[first : last + 1] for first, last in pairwise(cuts)] or [path]


def _draw_starts(axes, trajectories: Sequence[Trajectory]) -> None:
    starts = np.unique([trajectory.points[0] for trajectory in trajectories], axis=0)
    few = {"s": 30, "edgecolors": style.INK, "linewidths": 0.9, "zorder": 4}
    crowd = {"s": 12, "edgecolors": style.QUIET, "linewidths": 0.8, "zorder": 1}
    looks = few if len(starts) <= _FEW else crowd
    axes.scatter(starts[:, 0], starts[:, 1], label="start", facecolors="none", clip_on=False, **looks)


def _frame(axes, view: View, told: Dimensions) -> None:
    from matplotlib.patches import Rectangle

    if view.crossed and view.limits is not None:
        lower, upper = view.limits
        looks = {"fill": False, "edgecolor": style.QUIET, "linewidth": 0.9, "linestyle": "--"}
        axes.add_patch(Rectangle(lower, *(upper - lower), **looks))
    axes.set_xlim(*view.ends[:, 0])
    axes.set_ylim(*view.ends[:, 1])
    if view.equal:
        axes.set_aspect("equal")
    labels = [_label(name, told.kind) for name in told.names[:2]]
    labels = ["step", *labels] if len(labels) == 1 else labels
    axes.set_xlabel(labels[0], fontsize=9)
    axes.set_ylabel(labels[1], fontsize=9)
    style.tidy(axes)


def _label(name: str, kind: str) -> str:
    """Of an axis: every state is drawn, not only the final one."""
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
