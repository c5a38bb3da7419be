"""Draw the pictures of `docs/concepts.md`: `python docs/draw_concepts.py` writes docs/images/concepts/*.svg.

Each has a light background of its own, so that it can be read on a light and on a dark page.
"""

import math
from pathlib import Path

FOLDER = Path(__file__).parent / "images" / "concepts"
BLUE, ORANGE, GREEN, GREY = "#2c6fbb", "#c8601d", "#2f8556", "#5b6470"
PALE = {BLUE: "#e3eefa", ORANGE: "#fbeadd", GREEN: "#e2f2e9", GREY: "#eceef1"}
VIRIDIS = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#fde725")


def box(x: float, y: float, width: float, height: float, lines: str, colour: str) -> str:
    """A rounded box with centred lines of text, the first one bold."""
    rows = lines.split("|")
    first = y + height / 2 - 9 * (len(rows) - 1) + 5
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{PALE[colour]}" stroke="{colour}"/>'
    return shape + "".join(
        text(x + width / 2, first + 18 * place, row, GREY if place else colour, "normal" if place else "bold")
        for place, row in enumerate(rows)
    )


def text(x: float, y: float, words: str, colour: str = GREY, weight: str = "normal", anchor: str = "middle") -> str:
    """Text at a point."""
    return f'<text x="{x}" y="{y}" fill="{colour}" font-weight="{weight}" text-anchor="{anchor}">{words}</text>'


def arrow(*points: tuple[float, float], colour: str = GREY) -> str:
    """A line along points that ends in an arrowhead."""
    path = " ".join(f"{x},{y}" for x, y in points)
    (x0, y0), (x1, y1) = points[-2:]
    angle = math.atan2(y1 - y0, x1 - x0)
    head = " ".join(
        f"{x1 - 9 * math.cos(angle + turn):.1f},{y1 - 9 * math.sin(angle + turn):.1f}" for turn in (0.4, -0.4)
    )
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    return line + f'<polygon points="{x1},{y1} {head}" fill="{colour}"/>'


def save(name: str, width: int, height: int, title: str, *parts: str) -> None:
    """Write a picture with a title for screen readers."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" font-size="13" '
        f'font-family="system-ui, sans-serif">\n<title>{title}</title>\n'
        f'<rect width="{width}" height="{height}" rx="10" fill="#fcfcfd"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def member() -> None:
    """What belongs to one member."""
    parts = [
        f'<rect x="20" y="20" width="708" height="170" rx="10" fill="none" stroke="{BLUE}" stroke-dasharray="5 4"/>',
        text(40, 44, "one member", BLUE, "bold", "start"),
    ]
    contents = (
        "parameters|policy, critics",
        "optimiser|moments",
        "hyper-parameters|rates, discount",
        "environments|E states",
    )
    for place, (lines, colour) in enumerate(zip(contents, (BLUE, BLUE, ORANGE, GREEN), strict=True)):
        parts.append(box(38 + 172 * place, 58, 156, 56, lines, colour))
    parts += [box(38, 126, 500, 48, "replay buffer|the latest transitions (off-policy)", GREY)]
    parts += [box(554, 126, 156, 48, "key|an argument", GREY)]
    save("member", 748, 210, "What a member consists of", *parts)


def generation() -> None:
    """The three parts of a generation."""
    names = ("train|each member alone", "evaluate|fresh episodes", "select|rank by fitness", "inherit|copy and perturb")
    parts = []
    for place, (lines, colour) in enumerate(zip(names, (BLUE, GREEN, ORANGE, ORANGE), strict=True)):
        parts.append(box(20 + 186 * place, 40, 160, 60, lines, colour))
        if place:
            parts.append(arrow((186 * place - 4, 70), (17 + 186 * place, 70)))
    parts.append(arrow((658, 100), (658, 135), (100, 135), (100, 104)))
    parts.append(text(379, 155, "next generation: one compiled call, with all members side by side"))
    save("generation", 758, 175, "A generation: train, evaluate, select, inherit", *parts)


def program() -> None:
    """How a program is composed."""
    parts = [
        box(20, 20, 140, 56, "environment|reset, step, spec", GREEN),
        box(20, 104, 140, 56, "agent|act, update, space", BLUE),
        box(220, 62, 140, 56, "learner|one member", GREY),
        box(420, 62, 250, 56, "program|a population, by generations", ORANGE),
        arrow((160, 48), (190, 48), (190, 80), (216, 80)),
        arrow((160, 132), (190, 132), (190, 100), (216, 100)),
        arrow((360, 90), (416, 90)),
        text(545, 142, "rookery.run: files, devices, resume"),
        arrow((545, 118), (545, 128)),
    ]
    save("program", 690, 180, "An environment and an agent make a learner, and a learner makes a program", *parts)


def hyper_parameter() -> None:
    """A hyper-parameter on its scale, over the generations."""
    # Eight members, whose learning rates (log10) are inherited and perturbed.
    lines = (
        ("-3.2 -3.2 -3.2 -3.1 -3.1 -3.2 -3.2", ORANGE),
        ("-4.2 -4.2 -3.1 -3.1 -3.0 -3.0 -2.9", BLUE),
        ("-2.7 -2.7 -2.7 -3.3 -3.3 -3.2 -3.2", BLUE),
        ("-3.8 -3.8 -3.8 -3.8 -3.2 -3.2 -3.3", BLUE),
    )
    parts = [arrow((70, 200), (70, 24)), arrow((70, 200), (630, 200))]
    for exponent in (-4, -3):
        y = 30 + (-2.5 - exponent) * 90
        parts += [
            text(62, y + 5, f"1e{exponent}", anchor="end"),
            f'<line x1="70" x2="620" y1="{y}" y2="{y}" stroke="#dfe2e6"/>',
        ]
    for values, colour in lines:
        points = [(100 + 80 * place, 30 + (-2.5 - float(value)) * 90) for place, value in enumerate(values.split())]
        path = " ".join(f"{x},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2" opacity="0.85"/>')
        parts += [f'<circle cx="{x}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
    parts += [text(352, 222, "generation"), text(84, 26, "learning rate of each member, logarithmic", anchor="start")]
    parts += [text(240, 185, "a jump: the member inherits, and the value is perturbed", BLUE, anchor="start")]
    save("hyper_parameter", 660, 235, "The learning rates of four members over the generations", *parts)


def repertoire() -> None:
    """A grid of cells with elites, coloured by fitness."""
    parts, size = [], 26
    for row in range(6):
        for column in range(8):
            height = math.sin(0.55 * column) + math.cos(0.7 * row) + 0.4 * math.sin(2.1 * column * row)
            empty = (row, column) in {(0, 7), (0, 6), (1, 7), (5, 0), (4, 0), (5, 7), (2, 6)}
            fill = "#eceef1" if empty else VIRIDIS[min(5, max(0, int((height + 1.6) * 1.7)))]
            x, y = 60 + column * size, 24 + row * size
            parts.append(f'<rect x="{x}" y="{y}" width="{size - 2}" height="{size - 2}" rx="3" fill="{fill}"/>')
    parts += [
        text(164, 202, "descriptor, first number"),
        f'<g transform="rotate(-90 42 102)">{text(42, 102, "second number")}</g>',
    ]
    parts += [arrow((374, 62), (270, 86)), text(384, 58, "a cell: the fittest genotype with", anchor="start")]
    parts += [text(384, 77, "such a descriptor, its elite", anchor="start")]
    parts += [arrow((374, 127), (270, 164)), text(384, 131, "an empty cell", anchor="start")]
    parts += [text(384, 166, "colour: fitness", anchor="start")]
    for place, colour in enumerate(VIRIDIS):
        parts.append(f'<rect x="{384 + 30 * place}" y="176" width="30" height="12" fill="{colour}"/>')
    save(
        "repertoire",
        660,
        220,
        "A repertoire: cells of the descriptor space, coloured by the fitness of their elites",
        *parts,
    )


if __name__ == "__main__":
    for draw in (member, generation, program, hyper_parameter, repertoire):
        draw()
