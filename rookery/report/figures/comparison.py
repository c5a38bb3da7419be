"""Figure of a comparison: learning curves, interquartile means, and probabilities of improvement."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rookery.report.compare_records import TOO_FEW, Comparison, Pair, Row, Setting, ranked
from rookery.report.figures.style import (
    INK,
    PALETTE,
    QUIET,
    count_steps,
    draw_estimate,
    group_colours,
    label_axes,
    new_figure,
    save_figure,
    title_axes,
)
from rookery.report.formatting import counted, steps_text
from rookery.report.run_groups import Group
from rookery.report.runs import curve
from rookery.report.statistics import Estimate
from rookery.settings import SettingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

MOST_PAIRS = 6  # more pairs are drawn as a matrix
_MOST_LINES = 3  # of a label; the table has the full text


def check_format(path: str | Path) -> None:
    """Check that matplotlib supports the format that the path's suffix names; ValueError where it does not."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    formats, suffix = sorted(FigureCanvasAgg.get_supported_filetypes()), Path(path).suffix[1:]
    if suffix and suffix.lower() not in formats:  # without a suffix, matplotlib appends .png
        raise SettingError("picture", str(path), f"must end in one of .{', .'.join(formats)}")


def draw_comparison(comparison: Comparison, path: str | Path) -> Path:
    """Draw a comparison, one block per environment.

    Left: the interquartile mean over runs of the best fitness, against environment steps, with its 95 % band. A
    diverged run continues after its end with the worst fitness, and a dashed line marks the common budget if budgets
    were unequal. Right: the interquartile mean at the common budget, or over fresh episodes, with its 95 % interval,
    best group on top; its labels explain the colours of both panels. Below: the probability of improvement of each
    pair, as a matrix if there are more than six pairs. The suffix of `path` is the format, and its path is returned.

    Raises:
      ValueError: the file cannot be written, or matplotlib does not support the format.
    """
    names = list(dict.fromkeys(group.name for group in comparison.groups))
    colours = group_colours(names)
    blocks = [
        (environment, setting, ranked(comparison.rows_on(environment)), comparison.pairs_on(environment))
        for environment, setting in comparison.settings.items()
    ]
    heights = [height for _, _, rows, pairs in blocks for height in _heights(rows, pairs)]
    figure = new_figure((10 if len(names) <= 5 else 12, sum(heights)))
    parts = iter(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])
    for environment, setting, rows, pairs in blocks:
        top = next(parts)
        top.suptitle(environment, color=INK, fontsize=12)
        left, right = top.subplots(1, 2, width_ratios=[1.3, 1.0])
        _draw_curves(left, rows, setting, colours)
        _draw_intervals(right, rows, setting, colours)
        if len(pairs) > MOST_PAIRS:
            _draw_matrix(next(parts).subplots(), rows, pairs, colours)
        elif pairs:
            _draw_pairs(next(parts).subplots(), pairs, colours)
    try:
        return save_figure(figure, Path(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; choose another file.") from error


def _heights(rows: Sequence[Row], pairs: Sequence[Pair]) -> list[float]:
    """Heights of a block's parts, in inches."""
    top = max(3.6, 1.2 + 0.46 * len(rows))
    if not pairs:
        return [top]
    return [top, 0.8 + 0.36 * len(rows) if len(pairs) > MOST_PAIRS else 1.0 + 0.36 * len(pairs)]


def _draw_curves(axes: "Axes", rows: Sequence[Row], setting: Setting, colours: Mapping[str, str]) -> None:
    crowded = len(rows) > 5
    recorded = [
        row for row in rows if np.isfinite([value for run in row.group.runs for value in run.best_fitness]).any()
    ]
    if not recorded:
        axes.text(0.5, 0.5, "not recorded in training", color=QUIET, ha="center", transform=axes.transAxes)
    for row in reversed(recorded):  # the best is drawn last, on top
        colour = colours[row.group.name]
        steps, fitness = curve(row.group.runs, setting.floor)
        marker = "o" if len(steps) == 1 else None
        line = {"linewidth": 1.4 if crowded else 1.8, "marker": marker, "markersize": 4}
        draw_estimate(axes, steps, fitness, colour, alpha=0.08 if crowded else 0.15, **line)
    if setting.unequal and not setting.fresh:
        axes.axvline(setting.budget, color=QUIET, linewidth=1.2, linestyle="--")
        anchor = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right", "va": "bottom"}
        axes.annotate("compared here", (setting.budget, 0.0), (-3, 5), color=INK, fontsize=8, rotation=90, **anchor)
    count_steps(axes)
    label_axes(axes, "environment steps of a run", setting.score)
    title_axes(axes, "interquartile mean over runs, 95 % band")


def _draw_intervals(axes: "Axes", rows: Sequence[Row], setting: Setting, colours: Mapping[str, str]) -> None:
    for height, row in enumerate(rows):
        colour = colours[row.group.name]
        axes.plot(row.scores, np.full(len(row.scores), height), "|", color=colour, markersize=9, alpha=0.6)
        _draw_estimate(axes, row.interquartile_mean, height, colour)
    axes.set_yticks(range(len(rows)), [_wrapped(f"{row.group.name} ({_runs(row)})") for row in rows])
    _colour_labels(axes.get_yticklabels(), [row.group for row in rows], colours)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.locator_params(axis="x", nbins=5)
    label_axes(axes, setting.score)
    where = f"over {setting.fresh} fresh episodes" if setting.fresh else f"at {steps_text(setting.budget)} steps"
    title_axes(axes, f"interquartile mean {where}\nticks are runs")


def _draw_pairs(axes: "Axes", pairs: Sequence[Pair], colours: Mapping[str, str]) -> None:
    axes.axvline(0.5, color=QUIET, linewidth=1.2, linestyle="--")
    for height, pair in enumerate(pairs):
        few = not pair.has_enough_runs
        _draw_estimate(axes, pair.probability, height, INK if pair.is_clear else QUIET, interval=not few)
        if few:
            value = pair.probability.value
            side = {"ha": "right", "xytext": (-8, 0)} if value > 0.5 else {"ha": "left", "xytext": (8, 0)}
            style = {"textcoords": "offset points", "va": "center", "fontsize": 8, "color": INK}
            axes.annotate(TOO_FEW, (value, height), **side, **style)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(len(pairs) - 0.4, -0.6)
    right = axes.secondary_yaxis("right")
    for side, groups in ((axes, [pair.first for pair in pairs]), (right, [pair.second for pair in pairs])):
        side.set_yticks(range(len(pairs)), [_wrapped(group.name) for group in groups])
        _colour_labels(side.get_yticklabels(), groups, colours)
    right.tick_params(labelsize=8, length=0)
    right.spines["right"].set_visible(False)
    label_axes(axes, "P(a run of the left is better than one of the right); dark where 0.5 is excluded")
    title_axes(axes, "probability of improvement, 95 % intervals")


def _draw_matrix(axes: "Axes", rows: Sequence[Row], pairs: Sequence[Pair], colours: Mapping[str, str]) -> None:
    """Matrix of the probabilities of improvement, best group first."""
    from matplotlib.colors import LinearSegmentedColormap

    ranks = {row.group.label: index for index, row in enumerate(rows)}
    values = np.full((len(rows), len(rows)), np.nan)
    for pair in pairs:
        first, second, value = ranks[pair.first.label], ranks[pair.second.label], pair.probability.value
        values[first, second], values[second, first] = value, 1.0 - value
        weight = "bold" if pair.is_clear else "normal"
        for row, column in ((first, second), (second, first)):
            colour = "white" if abs(values[row, column] - 0.5) > 0.35 else INK
            style = {"color": colour, "weight": weight, "fontsize": 8, "ha": "center", "va": "center"}
            axes.text(column, row, f"{values[row, column]:.2f}", **style)
    shades = LinearSegmentedColormap.from_list("improvement", [PALETTE[0], "#ffffff", PALETTE[1]])
    axes.imshow(values, cmap=shades, vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(rows)), [str(index + 1) for index in range(len(rows))])
    names = [_wrapped(row.group.name, width=60) for row in rows]
    axes.set_yticks(range(len(rows)), [f"{name}  {index + 1}" for index, name in enumerate(names)])
    _colour_labels(axes.get_yticklabels(), [row.group for row in rows], colours)
    title_axes(axes, "P(a run of the row is better than one of the column); bold where the interval excludes 0.5")
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)


def _draw_estimate(axes: "Axes", estimate: Estimate[float], height: int, colour: str, interval: bool = True) -> None:
    if estimate.has_interval and interval:
        ends = [estimate.low, estimate.high]
        axes.plot(ends, [height, height], color=colour, linewidth=5, alpha=0.4, solid_capstyle="butt")
    axes.plot([estimate.value], [height], "o", color=colour, markersize=7, markeredgecolor="white", clip_on=False)


def _colour_labels(labels: "Sequence[Text]", groups: Sequence[Group], colours: Mapping[str, str]) -> None:
    for label, group in zip(labels, groups, strict=True):
        label.set_color(colours[group.name])


def _runs(row: Row) -> str:
    chosen = f", {row.chosen}" if row.chosen else ""
    diverged = f", {row.diverged} diverged" if row.diverged else ""
    return f"{counted(len(row.scores), 'run')}{chosen}{diverged}".replace(" ", "\N{NO-BREAK SPACE}")


def _wrapped(name: str, width: int = 32) -> str:
    lines = textwrap.wrap(name, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines if len(lines) <= _MOST_LINES else [*lines[: _MOST_LINES - 1], "..."])
