"""Colours, axes style and number formats shared by figures and tables."""

from collections.abc import Mapping
from typing import Any

INK, QUIET = "#1b3a4b", "#8fa7b3"
"""Colours of text and main elements, and of secondary elements."""

PALETTE = (
    *("#d1495b", "#00798c", "#edae49", "#6a4c93", "#5b8c5a"),
    *("#8c5e3c", "#3d5a9e", "#e07a9b", "#77808a", "#9bb83c"),
)
"""Colours of groups, in their order."""


def headline(config: Mapping[str, Any]) -> str:
    """The kind and the environment of a run, from `config.json`."""
    return f"{config.get('kind', 'run')}  {config.get('environment', {}).get('env', '')}".strip()


def counted(number: int, noun: str) -> str:
    """A count with its noun: "1 skill", "2 skills"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def number(value: float) -> str:
    """Format with four significant digits; large numbers are rounded to integers with thousands separators."""
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e12 else f"{value:.4g}"


def significant(value: float) -> str:
    """Format with four significant digits, without an exponent below 10 million."""
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.4g}"


def tidy(axes) -> None:
    """Remove decoration that carries no data from axes."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2, linewidth=0.6)
    axes.tick_params(labelsize=8)
