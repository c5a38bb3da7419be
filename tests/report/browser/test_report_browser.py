"""The page of a run in a browser: its sections, figures and controls, without network access."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from rookery.storage.csv_log import read_csv
from tests.report.browser import chromium as browsing
from tests.report.browser.chromium import draw_everything, picture, shown
from tests.short_runs import KINDS

browsing.require()
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

LEARNING = ["learning", "metrics"]
SYSTEM = {"system": ["speed", "phases", "wrongs", "machine"]}
HYPER = [f"hyper-{name}" for name in ("alpha_lr", "critic_lr", "discount", "policy_lr", "reward_scaling")]
POPULATION = {"population": ["lineage", *HYPER]}
SECTIONS = {  # section -> its figures, in order
    "pbt-sac": {"episode": ["episodes"], "learning": LEARNING} | POPULATION | SYSTEM,
    "me-pbt-sac": {
        "repertoire": ["repertoire", "episodes"],
        "learning": ["learning", "coverage", "qd_score", "metrics"],
        **POPULATION,
        **SYSTEM,
    },
    "diayn": {
        "skills": ["skills", "episodes"],
        "learning": ["learning", "true_return", "diversity_return", "metrics"],
        **SYSTEM,
    },
    "ippo": {
        "episode": ["episodes"],
        "learning": [
            *("learning", "median_fitness", "episode_length", "measure/captures", "measure/survival", "metrics"),
        ],
        **SYSTEM,
    },
}
HEADS = {
    "pbt-sac": ("pbt-sac on inverted_pendulum", "Best fitness "),
    "me-pbt-sac": ("me-pbt-sac on point_room", " cells covered, best "),
    "diayn": ("diayn on point_room", "Discriminator accuracy "),
    "ippo": ("ippo on pursuit_continuous", "Mean returns of 2 seeds: predator "),
}


KEEP_CHARTS = """() => {
  const all = Charts;
  window.drawn = {};
  const init = (box, ...more) => (drawn[box.closest('figure').dataset.name] = all.init(box, ...more));
  window.Charts = { ...all, init };
}"""


@pytest.fixture(scope="module")
def page(browser: "Browser", short_runs: dict[str, Path], request: pytest.FixtureRequest) -> "Iterator[Page]":
    """The page of the run whose kind is the parameter, with its episodes paused; the tests of a kind share it."""
    with shown(browser, short_runs[request.param] / "report.html", reduced_motion="reduce") as page:
        page.evaluate(KEEP_CHARTS)  # those below the window are not drawn yet
        yield page


def of(*kinds: str) -> Any:
    return pytest.mark.parametrize("page", kinds, indirect=True, scope="module")


def written(page: "Page", value: float) -> str:
    """A number as formatted by the page."""
    return page.evaluate("(value) => written(value)", value)


COLOURS = """(canvas) => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""


def count_colours(page: "Page", selector: str) -> list[int]:
    """The number of colours of each canvas that matches the selector."""
    return page.evaluate(f"[...document.querySelectorAll({selector!r})].map({COLOURS})")


@of(*KINDS)
def test_every_section_and_figure_is_drawn(page: "Page", request: pytest.FixtureRequest) -> None:
    kind = request.node.callspec.params["page"]
    title, result = HEADS[kind]
    assert page.locator("h1").text_content() == title == page.title()
    assert result in str(page.locator(".result").text_content())
    assert f"{kind}: finished, " in str(page.locator(".state").text_content())
    assert f"rookery train {kind} --" in str(page.locator(".how code").text_content())
    figures = "(section) => [...section.querySelectorAll('figure')].map((figure) => figure.dataset.name)"
    found = page.evaluate(
        f"[...document.querySelectorAll('section')].map((section) => [section.id, ({figures})(section)])"
    )
    assert dict(found) == SECTIONS[kind]
    assert page.locator(".contents a").evaluate_all("(all) => all.map((link) => link.hash)") == [
        f"#{i}" for i, _ in found
    ]
    draw_everything(page)
    colours = count_colours(page, ".chart canvas, canvas.lineage")
    assert len(colours) >= sum(
        name not in ("wrongs", "machine", "episodes", "repertoire") for _, names in found for name in names
    )
    assert min(colours) > 20  # axes, texts and their antialiasing; an empty canvas has one


@of("pbt-sac")
def test_the_member_under_the_pointer_is_described(page: "Page", short_runs: dict[str, Path]) -> None:
    table = read_csv(short_runs["pbt-sac"] / "lineage.csv")
    child = next(row for row, parent in enumerate(table["parent"]) if parent != table["member"][row])
    generation, member, parent = (int(table[name][child]) for name in ("generation", "member", "parent"))
    figure = picture(page, "lineage")
    canvas = figure.locator("canvas.lineage")
    box = canvas.bounding_box()
    assert box is not None
    assert "Point at a member" in str(figure.locator(".details").text_content())
    across = 34 + (generation + 0.5) / 3 * (box["width"] - 44)
    canvas.hover(position={"x": across, "y": 8 + (member + 0.5) / 3 * (box["height"] - 34)})
    text = str(figure.locator(".details").inner_text())
    assert f"member {member}, generation {generation + 1}" in text
    assert f"copied from member {parent} after generation {generation}" in text
    values = {name.removeprefix("hyper-"): None for name in HYPER} | {"fitness": None}
    assert all(f"{name} {written(page, float(table[name][child]))}" in text for name in values)
    canvas.press("ArrowLeft")
    assert f"member {member}, generation {generation}" in figure.locator(".details").inner_text()


ORIGINS = """(cases) => {
  const parents = { data: [0, 1, 0, 0, 0, 1, -1, 1] }; // two members in four generations
  const population = { name: null, outside: "the repertoire", parents, fitness: { shape: [4, 2] } };
  return cases.map(([generation, member]) => originText(population, generation, member));
}"""


TICKS_OF = [
    ([0.5, 20.0], "Uniform", [0, 5, 10, 15, 20]),
    ([-0.03, 0.04], "Uniform", [-0.04, -0.02, 0, 0.02, 0.04]),
    ([1.0, 3.0], "Whole", [1, 2, 3]),
    ([0.5, 20.0], "LogUniform", [-0.30103, 0, 0.30103, 0.69897, 1, 1.30103]),
    ([0.1, 0.1], "LogUniform", [-1, -0.69897]),
]
"""Values of a hyper-parameter, its scale, and the ticks at 1, 2 and 5 on that scale."""


@of("pbt-sac")
def test_origins_ranks_ticks_and_notes_of_known_data(page: "Page") -> None:
    assert page.evaluate(ORIGINS, [[0, 1], [2, 0], [1, 1], [3, 1], [3, 0]]) == [
        "initial member",
        "never replaced",
        "copied from member 0 after generation 1",
        "survived; copied from member 0 after generation 1",
        "from the repertoire after generation 3",
    ]
    fitness = "[2, 1, 1, 4, 5, 5, 5, 5, NaN, 1, NaN, 2]"  # equal members have equal ranks
    ranks = page.evaluate(f"Array.from(fitnessRanks({{ shape: [3, 4], data: {fitness} }}))")
    assert ranks == pytest.approx([2 / 3, 1 / 6, 1 / 6, 1, 0.5, 0.5, 0.5, 0.5, 0, 2 / 3, 0, 1])
    for values, scale, ticks in TICKS_OF:
        found = page.evaluate("([values, scale]) => hyperScale('rate', values, scale).axis.ticks", [values, scale])
        assert found == pytest.approx(ticks, abs=1e-5), (values, scale)
    note = "(losses) => withoutUpdates({ metrics: { critic_loss: { data: losses } } })"
    assert page.evaluate(note, [1.0, 2.0]) is None
    assert "first 2 generations only collected transitions" in page.evaluate(note, [0, 0, 1.5])
    assert page.evaluate(note, [0, 0]).startswith("No gradient update")
    assert "Compilation took" in picture(page, "phases").inner_text()
    facts = [str(text) for text in page.locator(".fact dt").all_text_contents()]
    assert facts[:1] == ["objective"]
    assert facts[4:7] == ["time without compilation", "of it evaluation and selection", "compilation"]


TICKS = """([name, axis]) => {
  const { scale } = drawn[name].getModel().getComponent(axis).axis;
  return scale.getTicks().map(({ value }) => value);
}"""
LINES = "(name) => drawn[name].getModel().getComponent('yAxis').axis.getTicksCoords().map(({ tickValue }) => tickValue)"


@of("pbt-sac")
def test_counts_have_whole_ticks_and_grid_lines_of_a_hyper_parameter_are_at_its_labels(page: "Page") -> None:
    picture(page, "metrics").get_by_label("Column of metrics.csv").select_option("replaced")
    for name, axis in (("metrics", "yAxis"), ("metrics", "xAxis"), ("speed", "xAxis"), ("hyper-policy_lr", "xAxis")):
        ticks = page.evaluate(TICKS, [name, axis])
        assert len(ticks) > 1
        assert ticks == [round(tick) for tick in ticks], (name, axis)
    for name in HYPER:
        labels = page.evaluate("(name) => drawn[name].getOption().yAxis[0].axisLabel.customValues", name)
        lines = page.evaluate(LINES, name)
        assert len(lines) > 1
        assert lines == pytest.approx(labels)


@of("pbt-sac")
def test_the_words_of_a_label_stay_whole_beside_a_long_text(page: "Page") -> None:
    label, text = picture(page, "machine").locator("tbody tr").first.locator("td").all()
    text.evaluate("(cell) => (cell.textContent = 'word '.repeat(300))")
    lines = "(c) => ((range) => (range.selectNodeContents(c), range.getClientRects().length))(document.createRange())"
    assert label.text_content() == "devices"
    assert label.evaluate(lines) == 1


@of("pbt-sac")
def test_a_chart_shows_the_values_under_the_pointer(page: "Page", short_runs: dict[str, Path]) -> None:
    metrics = read_csv(short_runs["pbt-sac"] / "metrics.csv")
    chart = picture(page, "learning").locator(".chart")
    box = chart.bounding_box()
    assert box is not None
    assert chart.locator(".tip-head").count() == 0
    chart.hover(position={"x": box["width"] - 30, "y": box["height"] / 2})
    tip = chart.locator("div:has(> .tip-head)").last
    tip.wait_for()
    last = len(metrics["generation"])
    assert str(tip.locator(".tip-head").text_content()).endswith(f"steps, generation {last}")
    for name, column in (("best member", "best_fitness"), ("median member", "median_fitness")):
        assert f"{name} {written(page, float(metrics[column][-1]))}" in tip.inner_text()


def filled(page: "Page") -> list[int]:
    cells = page.locator(".cells polygon:not(.empty)")
    return sorted(int(index) for index in cells.evaluate_all("(all) => all.map((cell) => cell.dataset.index)"))


@of("me-pbt-sac")
def test_the_slider_selects_the_generation_of_the_repertoire(page: "Page", short_runs: dict[str, Path]) -> None:
    history = read_csv(short_runs["me-pbt-sac"] / "cells.csv")
    first = sorted({int(cell) for cell in history["cell"][history["generation"] == 0]})
    last = sorted({int(cell) for cell in history["cell"]})
    assert len(first) < len(last), "the run is too short: the generations do not differ"
    assert filled(page) == last
    page.get_by_role("slider", name="Generation").press("Home")
    assert filled(page) == first
    assert f"After generation 1: {len(first)} of 16 cells" in str(page.locator("#repertoire").text_content())
    page.get_by_role("slider", name="Generation").press("End")
    assert filled(page) == last


@of("me-pbt-sac")
def test_a_cell_plays_its_policy_and_an_empty_one_the_nearest(page: "Page", short_runs: dict[str, Path]) -> None:
    table = read_csv(short_runs["me-pbt-sac"] / "repertoire.csv")
    occupied = np.flatnonzero(np.isfinite(table["fitness"]))
    best, host = int(occupied[table["fitness"][occupied].argmax()]), page.locator(".player-host")
    assert host.get_attribute("data-label") == f"cell {best}"
    cell = next(int(cell) for cell in occupied if cell != best)
    page.locator(f".cells polygon[data-index='{cell}']").click()
    assert host.get_attribute("data-label") == f"cell {cell}"
    text = str(page.locator(".chosen").text_content())
    assert text.startswith(f"Cell {cell}: fitness {written(page, float(table['fitness'][cell]))}, descriptor (")
    assert text.endswith("Its episode is shown.")
    centroids = np.stack([table["centroid/0"], table["centroid/1"]], axis=1)
    empty = next(int(cell) for cell in range(16) if cell not in occupied)
    distances = np.hypot(*(centroids[occupied] - centroids[empty]).T)
    near = {int(cell) for cell in occupied[np.isclose(distances, distances.min())]}
    page.locator(f".cells polygon[data-index='{empty}']").click()
    text = str(page.locator(".chosen").text_content())
    assert any(text.startswith(f"Cell {empty} is empty; the nearest with an elite is cell {other}. ") for other in near)
    assert host.get_attribute("data-label") in {f"cell {other}" for other in near}


FIND = """([index, colour]) => {
  const canvas = document.querySelectorAll('.chart canvas')[0];
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext('2d'); // of a canvas that is read twice the console warns
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  const is = (x, y) => colour.every((part, i) => data[4 * (y * width + x) + i] === part);
  for (let y = 3; y < height - 3; y++) for (let x = 3; x < width - 3; x++) {
    if ([-2, -1, 0, 1, 2].every((i) => [-2, -1, 0, 1, 2].every((j) => is(x + i, y + j)))) return [x, y];
  }
  return null;
}"""


@of("diayn")
def test_a_skill_plays_when_its_button_or_its_end_is_clicked(page: "Page") -> None:
    host, figure = page.locator(".player-host"), picture(page, "skills")
    assert host.get_attribute("data-label") == "skill 0"
    figure.get_by_role("button", name="skill 1").click()
    assert host.get_attribute("data-label") == "skill 1"
    figure.scroll_into_view_if_needed()
    place = page.evaluate(FIND, [0, [0, 114, 178]])  # the first of the colours, #0072b2, in a spot of 5 by 5 pixels
    figure.locator(".chart").click(position={"x": place[0], "y": place[1]})
    assert host.get_attribute("data-label") == "skill 0"


def test_the_player_moves_and_stops_when_paused(browser: Any, short_runs: dict[str, Path]) -> None:
    with shown(browser, short_runs["pbt-sac"] / "report.html", offline=True) as page:
        canvas, host = page.locator(".player-stage canvas"), page.locator(".player-host")
        canvas.scroll_into_view_if_needed()
        page.locator(".player-host[data-playing=true]").wait_for()
        before = canvas.screenshot()
        assert any(canvas.screenshot() != before for _ in range(30))
        page.get_by_role("button", name="Pause").click()
        assert host.get_attribute("data-playing") == "false"
        page.wait_for_timeout(100)  # until the last requested frame
        frame, before = host.get_attribute("data-frame"), canvas.screenshot()
        page.wait_for_timeout(300)
        assert canvas.screenshot() == before
        assert host.get_attribute("data-frame") == frame
