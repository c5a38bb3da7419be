"""What all pictures have in common: their colours, and axes without clutter."""

INK, QUIET = "#1b3a4b", "#8fa7b3"
"""Text and what matters; what stands behind it."""

PALETTE = (
    *("#d1495b", "#00798c", "#edae49", "#6a4c93", "#5b8c5a"),
    *("#8c5e3c", "#3d5a9e", "#e07a9b", "#77808a", "#9bb83c"),
)
"""Groups that stand side by side, in their order."""


def tidy(axes) -> None:
    """Take away what carries no data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2, linewidth=0.6)
    axes.tick_params(labelsize=8)
