"""What pictures and tables have in common: colours, axes without clutter, and how things are put in words."""

from collections.abc import Mapping
from typing import Any

INK, QUIET = "#1b3a4b", "#8fa7b3"
"""Text and what matters; what stands behind it."""

PALETTE = (
    *("#d1495b", "#00798c", "#edae49", "#6a4c93", "#5b8c5a"),
    *("#8c5e3c", "#3d5a9e", "#e07a9b", "#77808a", "#9bb83c"),
)
"""Groups that stand side by side, in their order."""


def headline(config: Mapping[str, Any]) -> str:
    """What ran, and where: the kind and the environment that `config.json` names."""
    return f"{config.get('kind', 'run')}  {config.get('world', {}).get('env', '')}".strip()


def counted(number: int, noun: str) -> str:
    """So many of something: "1 skill", "2 skills"."""
    return f"{number} {noun}{'s' * (number != 1)}"


def number(value: float) -> str:
    """Four significant digits, and thousands set apart."""
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e12 else f"{value:.4g}"


def significant(value: float) -> str:
    """Four significant digits, without an exponent where a reader expects none."""
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.4g}"


def tidy(axes) -> None:
    """Take away what carries no data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2, linewidth=0.6)
    axes.tick_params(labelsize=8)
