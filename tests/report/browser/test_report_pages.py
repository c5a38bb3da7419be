"""Pages of runs in a browser: saved files, themes, phones, names with markup, several runs, and a served page."""

import csv
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rookery.report.page import write_report
from rookery.report.serve import server
from rookery.storage.csv_log import read_csv
from rookery.storage.played import read_episodes, write_episodes
from tests.commandline import call
from tests.report.browser import chromium as browsing
from tests.report.browser.chromium import draw_everything, opened, picture, shown
from tests.written_runs import METRICS, write

browsing.require()
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

Runs = dict[str, Path]
MARKUP = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script>"


def saved(page: "Page", figure: "Locator") -> dict[str, list[str]]:
    """The file that the button of a figure saves: column -> texts."""
    # Of two downloads in direct succession, Chromium sometimes loses the second.
    page.wait_for_timeout(150)
    with page.expect_download() as download:
        figure.get_by_role("button", name="CSV", exact=True).click()
    with open(download.value.path(), newline="") as file:
        header, *rows = csv.reader(file)
    assert download.value.suggested_filename == f"{figure.get_attribute('data-name')}.csv"
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}


SAVED = """() => {
  const texts = [], text = csvText;
  window.csvText = (columns) => (texts.push(text(columns)), '');
  HTMLAnchorElement.prototype.click = () => {};  // saves no file
  for (const button of document.querySelectorAll('figure button.csv')) button.click();
  return texts;
}"""


@pytest.mark.parametrize(
    ("kind", "name"),
    [("ippo", "metrics"), ("pbt-sac", "lineage"), ("me-pbt-sac", "repertoire"), ("diayn", "metrics")],
)
def test_every_figure_can_be_saved_with_the_numbers_of_its_table(
    browser: "Browser", short_runs: Runs, kind: str, name: str
) -> None:
    wanted = read_csv(short_runs[kind] / f"{name}.csv")
    with shown(browser, short_runs[kind] / "report.html") as page:
        found, texts = saved(page, picture(page, name)), page.evaluate(SAVED)
        assert len(texts) == page.locator("figure").count()
        for header, *rows in (csv.reader(text.splitlines()) for text in texts):
            assert header
            assert rows, "columns without rows"
    constant = {column for column, values in wanted.items() if name == "lineage" and len(np.unique(values)) == 1}
    assert set(found) == set(wanted) - constant
    for column, texts in found.items():
        values = np.asarray([float(text or "nan") for text in texts])
        values -= column == "generation"  # as in the figure, counted from 1
        finite = np.where(np.isfinite(wanted[column]), wanted[column], np.nan)  # an empty cell is an empty field
        np.testing.assert_allclose(values, finite, rtol=1e-6, err_msg=column)


def test_independent_members_are_drawn_by_their_interval(browser: "Browser", tmp_path: Path) -> None:
    generation, member = np.divmod(np.arange(600), 2)
    members = {"generation": generation, "member": member, "parent": member, "fitness": 1.0 * generation + member}
    metrics = {name: np.arange(1, 301) * 100.0 if name == "env_steps" else np.ones(300) for name in METRICS}
    config = {"kind": "sac", "draw_hyper": False, "population": 2, "run": {"seed": 0, "generations": 300}}
    page_file = write_report([write(tmp_path / "seeds", config, metrics, members)])
    with shown(browser, page_file) as page:
        assert str(page.locator(".result").text_content()).endswith("after 15k environment steps of each of 2 seeds")
        figure = picture(page, "learning")
        assert "Interquartile mean of 2 independent seeds and its 95 % bootstrap interval." in figure.inner_text()
        found = saved(page, figure)
        chart = figure.locator(".chart")
        box = chart.bounding_box()
        assert box is not None
        tip = chart.locator("div:has(> .tip-head)").last
        for margin in range(
            16, 60
        ):  # from the right until the last point is reached; its position depends on the labels
            chart.hover(position={"x": box["width"] - margin, "y": box["height"] / 2})
            page.wait_for_timeout(50)
            if tip.is_visible():
                break
        assert tip.inner_text().split("\n") == ["15k steps, generation 300", "interquartile mean 299.5"]
    assert list(found) == ["generation", "env_steps", "seconds", "iqm", "low", "high"]
    assert (len(found["iqm"]), found["generation"][-1], found["env_steps"][-1]) == (150, "300", "15000")
    assert [found[name][-1] for name in ("iqm", "low", "high")] == ["299.5", "299", "300"]


def reported(page: Path, *runs: Path) -> Path:
    """The page of runs without new episodes."""
    assert call("report", *map(str, runs), "--page", str(page), "--rollouts", "0")[0] == 0
    return page


def drawn(page: "Page") -> list[str]:
    draw_everything(page)
    return page.evaluate("[...document.querySelectorAll('.chart canvas, .lineage')].map((one) => one.toDataURL())")


def test_the_dark_theme_redraws_every_chart_and_is_kept(browser: "Browser", short_runs: Runs) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with shown(browser, short_runs["pbt-sac"] / "report.html", reduced_motion="reduce") as page:
        light, before, stage = page.evaluate(ground), drawn(page), page.locator(".player-stage")
        image = stage.screenshot()
        page.get_by_role("button", name="Light or dark").click()
        assert (light, page.evaluate(ground)) == ("rgb(246, 248, 249)", "rgb(16, 24, 29)")
        after = drawn(page)
        assert len(before) == len(after) == 2 + 6 + 2
        assert all(one != other for one, other in zip(before, after, strict=True))
        assert stage.screenshot() != image
        page.reload()
        assert page.evaluate(ground) == "rgb(16, 24, 29)"
    with shown(browser, short_runs["ippo"] / "report.html", color_scheme="dark") as page:
        assert page.evaluate(ground) == "rgb(16, 24, 29)"
        page.get_by_role("button", name="Light or dark").click()
        assert page.evaluate(ground) == light


@pytest.fixture(scope="module")
def several(short_runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of a run, of a copy with another seed, and of a run in another environment."""
    folder = tmp_path_factory.mktemp("several")
    other = Path(shutil.copytree(short_runs["pbt-sac"], folder / "other seed"))
    about = json.loads((other / "config.json").read_text())
    about["config"]["run"]["seed"] = 1
    (other / "config.json").write_text(json.dumps(about))
    return write_report([short_runs["pbt-sac"], other, short_runs["ippo"]], folder / "report.html")


def test_runs_of_two_environments_are_compared_separately_with_a_note(browser: "Browser", several: Path) -> None:
    with shown(browser, several) as page:
        side = page.locator("#comparison")
        assert (
            "The runs are of several environments, whose scores are not comparable: each is drawn separately."
            in (side.all_inner_texts()[0])
        )
        charts = side.locator("figure[data-name=comparison]")
        assert charts.locator("h3").all_text_contents() == [
            "inverted_pendulum, episode_length=300",
            "pursuit_continuous, episode_length=60",
        ]
        assert charts.locator(".chart[data-drawn=true] canvas").count() == 2
        draw_everything(page)
        groups = [saved(page, figure) for figure in side.locator("figure[data-name=groups]").all()]
        assert [group["runs"] for group in groups] == [["pbt-sac other seed"], ["ippo:0 ippo:1"]]
        assert [page.locator("h1").text_content()] == ["pbt-sac on inverted_pendulum"]
        page.get_by_label("Run", exact=True).select_option("2")
        assert page.locator("h1").text_content() == "ippo on pursuit_continuous"
        assert page.locator(".player-host").count() == 1


@pytest.mark.parametrize("kind", ["me-pbt-sac", "diayn", "several"])  # the last has the sections of pbt-sac and ippo
def test_a_phone_scrolls_vertically_only(browser: "Browser", short_runs: Runs, several: Path, kind: str) -> None:
    path = several if kind == "several" else short_runs[kind] / "report.html"
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "device_scale_factor": 2}
    with shown(browser, path, **phone) as page:
        page.locator("summary").tap()
        draw_everything(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        reach = "[...document.querySelectorAll('figure')].map((figure) => figure.getBoundingClientRect().right)"
        assert max(page.evaluate(reach)) <= 390


def with_markup(run: Path, copy: Path) -> Path:
    """A copy of a run with markup in all names and texts that a run can define."""
    shutil.copytree(run, copy)
    about = json.loads((copy / "config.json").read_text())
    about["config"]["environment"]["env"] = SCRIPT
    about["config"]["run"]["best_by"] = MARKUP
    about["config"]["space"] = {MARKUP: 1.0}
    (copy / "config.json").write_text(json.dumps(about))
    events = [json.loads(line) for line in (copy / "journal.jsonl").read_text().splitlines()]
    events[0] |= {"command": ["rookery", SCRIPT], "hardware": {"devices": MARKUP, "kind": SCRIPT}}
    events.insert(1, {"event": "warned", "message": f"{MARKUP} {SCRIPT}", "at": MARKUP})
    (copy / "journal.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    metrics = (copy / "metrics.csv").read_text()
    (copy / "metrics.csv").write_text(metrics.replace("return/predator", f"return/{MARKUP}", 1))
    played = read_episodes(copy)
    assert played is not None
    episodes = [{**episode, "label": MARKUP} for episode in played.header["episodes"]]
    write_episodes(copy, played._replace(header={**played.header, "episodes": episodes, "names": [SCRIPT, MARKUP]}))
    return copy


def test_names_are_shown_as_text_and_never_executed(browser: "Browser", short_runs: Runs, tmp_path: Path) -> None:
    run = with_markup(short_runs["ippo"], tmp_path / MARKUP)
    with shown(browser, write_report([run]), reduced_motion="reduce") as page:
        scripts = page.locator("script").count()
        assert page.title() == page.locator("h1").text_content() == f"ippo on {SCRIPT}"
        assert str(page.locator(".state").text_content()).startswith(f"{MARKUP}: finished")
        assert page.locator(".player-label").text_content() == MARKUP
        assert page.locator(".player-name").all_text_contents() == [SCRIPT, MARKUP]
        draw_everything(page)
        chart = picture(page, "learning").locator(".chart")
        chart.hover(position={"x": 300, "y": 150})
        chart.locator(".tip-head").wait_for()
        assert MARKUP in chart.inner_text()
        page.locator("summary").click()
        assert SCRIPT in page.locator(".how code").inner_text()
        assert MARKUP in page.locator(".how").inner_text()
        assert f"{MARKUP} {SCRIPT}" in page.locator("#system").inner_text()
        assert (page.locator("img").count(), page.locator("script").count()) == (0, scripts)
    with shown(browser, short_runs["ippo"] / "report.html") as page:
        assert page.locator("script").count() == scripts
    with shown(browser, write_report([run, short_runs["diayn"]], tmp_path / "both.html")) as page:
        draw_everything(page)
        assert MARKUP in str(page.locator(".run-choice").text_content())
        assert SCRIPT in str(page.locator("#comparison").text_content())
        assert page.locator("img").count() == 0


@pytest.fixture
def served(short_runs: Runs, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A copy of a run with its first generation only, and the port at which its page is served."""
    run = Path(shutil.copytree(short_runs["pbt-sac"], tmp_path / "run"))
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    (run / "metrics.csv").write_text("".join(lines[:2]))
    events = (run / "journal.jsonl").read_text().splitlines(keepends=True)
    (run / "journal.jsonl").write_text("".join(line for line in events if '"ended"' not in line))
    with server([run], port=0) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
        thread.start()
        yield run, int(listening.server_address[1])
        listening.shutdown()
        thread.join()


def test_a_served_page_follows_its_run(browser: "Browser", short_runs: Runs, served: tuple[Path, int]) -> None:
    run, port = served
    address = f"http://127.0.0.1:{port}/"
    with opened(browser, "about:blank", allowed=address) as page:
        page.clock.install()  # replaces waiting for the next request of the page
        page.goto(address)
        state = page.locator(".state")
        assert "1 of 3 generations" in str(state.text_content())
        assert page.locator(".live").text_content() == "live"
        page.clock.fast_forward(6_000)
        shutil.copy(short_runs["pbt-sac"] / "metrics.csv", run / "metrics.csv")
        page.clock.fast_forward(6_000)
        state.get_by_text("3 of 3 generations").wait_for()
