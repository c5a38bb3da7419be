"""Figure of a tournament: the mean return of every member against every opponent."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rookery.report.figures.style import INK, colour_bar, label_axes, new_figure, save_figure, title_axes
from rookery.report.formatting import number, signed
from rookery.storage.played import Tournament

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NUMBERS = 10  # cells contain their numbers up to this number of members and of opponents


def draw_tournament(result: Tournament, path: str | Path, title: str = "") -> Path:
    """Draw one heat map per role: members from the highest rating down, opponents by the mean return against them."""
    roles, size, opponents = result.returns.shape
    columns = min(roles, 2)
    width, height = (max(3.8, 1.6 + 0.42 * opponents), max(2.6, 1.2 + 0.36 * size))
    figure = new_figure((columns * width, 0.3 + -(-roles // columns) * height), title)
    grid = figure.subplots(-(-roles // columns), columns, squeeze=False).ravel()
    for role, axes in enumerate(grid[:roles]):
        _draw_role(axes, result, role)
    for axes in grid[roles:]:
        axes.set_axis_off()
    return save_figure(figure, Path(path))


def _draw_role(axes: "Axes", result: Tournament, role: int) -> None:
    members, opponents = members_by_rating(result, role), opponents_by_strength(result, role)
    values = result.returns[role][np.ix_(members, opponents)]
    shown = axes.imshow(values, cmap="viridis", aspect="auto")
    if max(values.shape) <= _MOST_NUMBERS:
        middle = np.nanmean([np.nanmin(values), np.nanmax(values)]) if np.isfinite(values).any() else 0.0
        for (row, column), value in np.ndenumerate(values):
            colour = INK if value > middle else "white"
            axes.text(column, row, number(value), color=colour, fontsize=7, ha="center", va="center")
    axes.set_xticks(range(len(opponents)), [str(slot) for slot in opponents])
    axes.set_yticks(range(len(members)), [f"{member} ({signed(result.ratings[role, member])})" for member in members])
    others = [name for name in result.agents if name != result.agents[role]]
    opponent = others[0] if len(others) == 1 else "the others, by slot"
    label_axes(axes, f"{opponent}, by the mean return against it, lowest first", "member (rating)")
    title_axes(axes, f"mean return of {result.agents[role]}")
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    colour_bar(shown, [axes], "")


def members_by_rating(result: Tournament, role: int) -> np.ndarray:
    """The members `[P]` of a role from the highest rating down; those without one last."""
    return np.argsort(-np.nan_to_num(result.ratings[role], nan=-np.inf), kind="stable")


def opponents_by_strength(result: Tournament, role: int) -> np.ndarray:
    """The opponents `[Q]` of a role, those first against which its members have the lowest mean return."""
    finite = np.isfinite(result.returns[role])
    total = np.where(finite, result.returns[role], 0.0).sum(axis=0)
    return np.argsort(np.where(finite.any(axis=0), total / np.maximum(finite.sum(axis=0), 1), np.inf), kind="stable")
