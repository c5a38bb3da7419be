"""Draw the packages and their imports: `python docs/draw_architecture.py` writes `docs/images/architecture.png`.

An arrow leads from a package to one that it imports. Those that follow from others are left out: where A imports B and
B imports C, that of A and C is not drawn.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent / "rookery"
PICTURE = Path(__file__).parent / "images" / "architecture.png"
GROUPS = {
    "records": ("versions", "types", "factories", "trees", "features", "hyperparams"),
    "mathematics": ("networks", "distributions", "returns", "normalize", "buffers", "gradients"),
    "running, loading": ("running", "loading"),
}
"""Name in the picture -> modules that are drawn as one."""
LEFT_OUT = ("__init__", "__main__")
LAZY = {("qd", "experiments"), ("populations", "experiments")}
"""Names that a package offers and imports when they are used, see `tests/test_house.py`."""


def main() -> None:
    """Write the picture."""
    needs = reduced(imports())
    rows = layers(needs)
    places = {
        name: ((index + 0.5) / len(row) * 10, level) for level, row in enumerate(rows) for index, name in enumerate(row)
    }
    figure = Figure(figsize=(8, 0.68 * len(rows)))
    axes = figure.add_axes((0, 0, 1, 1))
    for name, used in needs.items():
        for other in used:
            (x, y), (to_x, to_y) = places[name], places[other]
            arrow = {"arrowstyle": "-|>", "color": "#6f8e9f", "shrinkA": 0, "shrinkB": 0}
            arrow["connectionstyle"] = f"arc3,rad={0.0 if y - to_y == 1 else 0.12}"
            axes.annotate("", (to_x, to_y + 0.23), (x, y - 0.23), arrowprops=arrow)
    box = {"boxstyle": "round,pad=0.35", "facecolor": "#e8f1f5", "edgecolor": "#1b5e7d"}
    for name, (x, y) in places.items():
        axes.text(x, y, name, ha="center", va="center", fontsize=11, bbox=box, color="#12303f")
    axes.set(xlim=(0, 10), ylim=(-0.5, len(rows) - 0.5))
    axes.axis("off")
    figure.savefig(PICTURE, dpi=100, metadata={"Software": None})


def imports() -> dict[str, set[str]]:
    """The packages that each package imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = _drawn(path.relative_to(ROOT).parts[0].removesuffix(".py"))
        if name not in LEFT_OUT:
            used = {_drawn(module.split(".")[1]) for module in _modules(path) if module.startswith("rookery.")}
            found.setdefault(name, set()).update(used - {name})
    return {
        name: {other for other in used if other in found and (name, other) not in LAZY} for name, used in found.items()
    }


def _modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _drawn(name: str) -> str:
    return next((group for group, members in GROUPS.items() if name in members), name)


def reduced(needs: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The imports that do not follow from others."""
    reached: dict[str, set[str]] = {}
    for name in TopologicalSorter(needs).static_order():
        reached[name] = needs[name].union(*(reached[other] for other in needs[name]))
    return {name: used - set().union(*(reached[other] for other in used)) for name, used in needs.items()}


def layers(needs: Mapping[str, set[str]]) -> list[list[str]]:
    """The packages by level: each is one above the highest that it imports, the lowest level first."""
    level: dict[str, int] = {}
    for name in TopologicalSorter(needs).static_order():
        level[name] = 1 + max((level[other] for other in needs[name]), default=-1)
    return [sorted(name for name in level if level[name] == row) for row in range(max(level.values()) + 1)]


if __name__ == "__main__":
    main()
