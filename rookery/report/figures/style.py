"""Colours, and the style of figures and axes."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rookery.report.formatting import steps_text
from rookery.storage.run_dir import user_path, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

    from rookery.report.statistics import Estimate

INK, QUIET = "#1b3a4b", "#8fa7b3"
"""Colours of text and main elements, and of secondary elements."""

PALETTE = (
    *("#d1495b", "#00798c", "#edae49", "#6a4c93", "#5b8c5a"),
    *("#8c5e3c", "#3d5a9e", "#e07a9b", "#77808a", "#9bb83c"),
)
"""Colours of groups, in their order."""

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#771144", "#717d85")
"""Colours of compared groups, those of the page on white (`--series` in `page.css`)."""

RANKS = ("#a3b3bc", "#cb8a50", "#b33a00")
"""Colours of ranks in a population, from the lowest to the highest, which has the most contrast on white."""


def colour_of(index: int) -> str:
    """The colour of a group; those of the palette repeat."""
    return PALETTE[index % len(PALETTE)]


def group_colours(names: Sequence[str]) -> dict[str, str]:
    """The colours of compared groups, as `groupColours` of the page has them: shades where the groups are many."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if len(names) <= len(SERIES):
        return dict(zip(names, SERIES, strict=False))
    shares = np.linspace(0.08, 0.92, len(names))
    return {name: to_hex(colormaps["viridis"](share)) for name, share in zip(names, shares, strict=True)}


def new_figure(size: tuple[float, float], title: str = "", fontsize: int = 11) -> "Figure":
    """A figure of a width and height in inches that belongs to no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, color=INK, fontsize=fontsize)
    return figure


def save_figure(figure: "Figure", path: Path) -> Path:
    """Write a figure; returns the path, with the suffix of the format, which is PNG without one."""
    from matplotlib.text import Text

    path = user_path(path)
    for text in figure.findobj(Text):
        # Names of runs and metrics, in which `$` begins no formula, as in matplotlib's own labels of logarithmic axes.
        if isinstance(text, Text) and text.get_text() and r"\mathdefault" not in text.get_text():
            text.set_parse_math(False)
            text.set_text(text.get_text().encode(errors="replace").decode())
    path = path if path.suffix else path.with_suffix(".png")
    content = io.BytesIO()
    figure.savefig(content, dpi=130, format=path.suffix[1:])
    write_atomically(path, content.getvalue())
    return path


def title_axes(axes: "Axes", title: str) -> None:
    """Set the title above the left end of axes, and tidy them."""
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    tidy(axes)


def label_axes(axes: "Axes", x: str, y: str | None = None) -> None:
    """Set the labels of the axes; None leaves the vertical one as it is."""
    axes.set_xlabel(x, fontsize=9)
    if y is not None:
        axes.set_ylabel(y, fontsize=9)


def count_steps(axes: "Axes") -> None:
    """Format the horizontal axis as environment steps, short enough that neighbours never touch."""
    from matplotlib.ticker import FuncFormatter

    count_whole(axes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda steps, _: steps_text(steps)))


def count_whole(axes: "Axes") -> None:
    """Put the ticks of the horizontal axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 2.5, 5, 10]))


def draw_estimate(
    axes: "Axes", steps: np.ndarray, estimate: "Estimate", colour: str, alpha: float = 0.15, **line: object
) -> None:
    """Draw a curve `[G]` at `steps` `[G]`, and the band of its interval, where it has one; `alpha` is its opacity."""
    axes.plot(steps, estimate.value, color=colour, **{"linewidth": 1.8, **line})
    if estimate.has_interval:
        axes.fill_between(steps, estimate.low, estimate.high, color=colour, alpha=alpha, linewidth=0)


def colour_bar(
    colours: "ScalarMappable", axes: "Sequence[Axes]", label: str, ticks: np.ndarray | None = None
) -> "Colorbar":
    """Add a colour bar without decoration beside axes."""
    bar = axes[0].figure.colorbar(colours, ax=axes, pad=0.02, aspect=35, ticks=ticks)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return bar


def tidy(axes: "Axes") -> None:
    """Remove decoration that carries no data from axes."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2, linewidth=0.6)
    axes.tick_params(labelsize=8)
