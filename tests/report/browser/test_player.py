"""The player of episodes in a browser: display and controls, with synthetic episodes."""

import base64
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import rookery
from tests.report.browser import chromium as browsing

browsing.require()

WEB = Path(rookery.__file__).parent / "report" / "web"
KINDS = {"step": "Int32Array", "frames": "Int32Array", "visible": "Uint8Array"}
HALF = 0.5**0.5


def array(name: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"type": KINDS.get(name, "Float32Array"), "shape": shape, "data": data}


def arrays(**named: tuple[list[int], list[Any]]) -> dict[str, Any]:
    return {name: array(name, *value) for name, value in named.items()}


def plane() -> dict[str, Any]:
    """Two bodies; the second of two episodes has one frame. The second body is invisible after step 10."""
    still = [0.0, 0.0, 0.5, 0.5]
    return {
        "kind": "plane",
        "secondsPerStep": None,
        "scenery": {"lower": [-1, -1], "upper": [1, 1], "bodies": ["hunter", "prey"], "radii": [0.1, 0.1]}
        | {"walls": [], "goals": [[0.5, -0.5, 0.1]], "reaches": [0.3, 0.0]},
        "names": ["hunter", "prey"],
        "episodes": [
            {"label": "<b>cell 7</b>", "cell": 7, "descriptor": [0.0, 1.0], "steps": 20},
            {"label": "cell 9", "cell": 9, "descriptor": [1.0, 0.0], "steps": 0},
        ],
        "arrays": arrays(
            step=([2, 3], [0, 10, 20, 0, 0, 0]),
            frames=([2], [3, 1]),
            position=([2, 3, 2, 2], [*still, 0.4, 0.0, 0.5, 0.5, 0.4, 0.8, 0.5, 0.5, *still * 3]),
            heading=([2, 3, 2], [3.0, None, -3.0, None, -3.0, None, *[None] * 6]),
            visible=([2, 3, 2], [1, 1, 1, 1, 1, 0, *[1] * 6]),
            reward=([2, 3, 2], [0, 0, 1, -1, 4, -4, *[0] * 6]),
        ),
        "film": None,
    }


def bodies() -> dict[str, Any]:
    """A capsule that rotates by a right angle about z while it moves 2 m; its physics diverge at the end."""
    floor = {"link": -1, "kind": "plane", "size": [0, 0], "position": [0, 0, 0], "rotation": [1, 0, 0, 0]}
    solid = {"link": 0, "kind": "capsule", "size": [0.1, 0.4], "position": [0, 0, 0], "rotation": [1, 0, 0, 0]}
    return {
        "kind": "bodies",
        "secondsPerStep": 0.05,
        "shapes": [shape | {"colour": None, "role": "body"} for shape in (floor, solid)],
        "names": ["return"],
        "episodes": [{"label": "member 0", "member": 0, "descriptor": None, "steps": 20}],
        "arrays": arrays(
            step=([1, 3], [0, 10, 20]),
            frames=([1], [3]),
            position=([1, 3, 1, 3], [0, 0, 1, 2, 0, 1, None, None, None]),
            # The second is the negative quaternion of the same rotation: interpolation must take the short path.
            rotation=([1, 3, 1, 4], [1, 0, 0, 0, -HALF, 0, 0, -HALF, None, None, None, None]),
            reward=([1, 3, 1], [0, 1.25, 2.5]),
        ),
        "film": None,
    }


def page_text() -> str:
    scripts = [WEB / "vendor" / "bodies.min.js", *sorted(WEB.glob("player*.js"))]
    data = {"plane": plane(), "bodies": bodies()}
    start = """
      const players = {};
      for (const [name, data] of Object.entries(DATA)) {
        for (const array of Object.values(data.arrays)) {
          array.data = globalThis[array.type].from(array.data, (value) => (value === null ? NaN : value));
        }
        players[name] = createPlayer(document.getElementById(name), data);
      }"""
    texts = [*(path.read_text() for path in scripts), f"const DATA = {json.dumps(data)};{start}"]
    style = f"<style>{(WEB / 'player.css').read_text()}</style>"
    hosts = "<div id=plane></div><div id=bodies></div>"
    return f"<!doctype html><meta charset=utf-8>{style}{hosts}" + "".join(f"<script>{text}</script>" for text in texts)


@pytest.fixture
def page(browser, tmp_path: Path):
    """Paused, as with the setting for reduced motion."""
    (tmp_path / "page.html").write_text(page_text())
    address = (tmp_path / "page.html").as_uri()
    with browsing.opened(browser, address, viewport={"width": 600, "height": 700}, reduced_motion="reduce") as page:
        yield page


def scroll_to(page: Any, name: str) -> None:
    page.locator(f"#{name} .player-stage").scroll_into_view_if_needed()
    page.wait_for_function(f"players.{name}.inSight && players.{name}.sized")


def test_positions_and_rotations_are_interpolated_along_the_short_path(page: Any):
    moment = "(() => {{ const e = players.{0}.episode, m = e.moment({1}); return [{2}]; }})()"
    place = page.evaluate(moment.format("plane", 15, "e.position(0, m), e.heading(0, e.moment(5))"))
    assert place[0] == pytest.approx([0.4, 0.4])
    assert abs(place[1]) == pytest.approx(3.14159265, abs=1e-6)  # from 3 to -3 through pi, not through 0
    turned = page.evaluate(moment.format("bodies", 5, "e.position(0, m), e.rotation(0, m)"))
    assert turned[0] == pytest.approx([1.0, 0.0, 1.0])
    assert turned[1] == pytest.approx([0.92387953, 0.0, 0.0, 0.38268343])  # half of a right angle


def test_step_and_cumulative_returns_are_shown_and_labels_are_text(page: Any):
    scroll_to(page, "plane")
    page.evaluate("players.plane.seek(12.5)")
    host = page.locator("#plane")
    assert host.get_attribute("data-frame") == "12.5"
    assert host.locator(".player-time").text_content() == "step 12 of 20"
    assert host.locator(".player-return").all_text_contents() == ["hunter1", "prey-1"]
    assert page.evaluate("[-0.04, -0.06, -0.4].map((value) => fixed(value, 1))") == ["0.0", "-0.1", "-0.4"]
    assert host.get_attribute("data-label") == host.locator(".player-label").text_content() == "<b>cell 7</b>"
    visible = "[10, 19, 20].map((time) => players.plane.episode.visible(1, players.plane.episode.frameAt(time)))"
    assert page.evaluate(visible) == [True, True, False]


@pytest.mark.parametrize(("size", "width", "rendering"), [(40, "240px", "pixelated"), (300, "300px", "auto")])
def test_a_film_keeps_its_size_and_its_time(page: Any, size: int, width: str, rendering: str):
    first, *others = [Image.new("RGB", (size, size), colour) for colour in ("red", *["blue"] * 5)]
    encoded = io.BytesIO()
    first.save(encoded, "GIF", save_all=True, append_images=others, duration=50)  # which stores equal images once
    film = "data:image/gif;base64," + base64.b64encode(encoded.getvalue()).decode()
    data = {"kind": "film", "secondsPerStep": None, "names": ["return"], "arrays": None, "film": film}
    data["episodes"] = [{"label": "member 0", "steps": 5}]
    page.evaluate("document.body.prepend(globalThis.host = document.createElement('div'))")
    page.evaluate("(data) => { players.film = createPlayer(host, data); }", data)
    page.wait_for_function("players.film.view.seconds && players.film.stage.style.maxWidth")
    style = "getComputedStyle(players.film.view.canvas)"
    assert page.evaluate(f"[players.film.stage.style.maxWidth, {style}.imageRendering]") == [width, rendering]
    wanted = "[0, 0.9, 1, 5].map((time) => { players.film.view.draw(time); return players.film.view.wanted; })"
    assert page.evaluate(wanted) == [0, 0, 1, 1]


def test_an_episode_is_found_by_its_cell_or_by_the_nearest_descriptor(page: Any):
    assert page.evaluate("['cell', 'skill'].map((field) => players.plane.find(field, 9))") == [1, -1]
    assert page.evaluate("[players.plane.nearest([0.8, 0.1]), players.bodies.nearest([0, 0])]") == [1, -1]
    page.evaluate("players.plane.show(1)")
    assert page.locator("#plane .player-count").text_content() == "2 of 2"


@pytest.mark.parametrize("name", ["plane", "bodies"])
def test_it_plays_and_stops_when_paused_or_out_of_view(page: Any, name: str):
    scroll_to(page, name)
    stage, host = page.locator(f"#{name} .player-stage"), page.locator(f"#{name}")
    assert host.get_attribute("data-playing") == "false"
    before = stage.screenshot()
    host.locator(".player-play").click()
    page.wait_for_function(f"Number(document.getElementById('{name}').dataset.frame) > 2")
    assert stage.screenshot() != before
    page.locator(f"#{name} .player").press("Space")
    assert host.get_attribute("data-playing") == "false"
    page.locator(f"#{name} .player").press("Home")
    page.locator(f"#{name} .player").press("ArrowRight")
    assert host.get_attribute("data-frame") == "1"
    page.evaluate(f"players.{name}.play()")
    assert host.get_attribute("data-playing") == "true"
    page.evaluate("document.body.style.paddingBottom = '3000px'; scrollTo(0, document.body.scrollHeight)")
    page.wait_for_function(f"document.getElementById('{name}').dataset.playing === 'false'")


def test_broken_physics_are_not_drawn_and_a_destroyed_player_releases_its_context(page: Any):
    scroll_to(page, "bodies")
    drawn = "[10, 20].map((time) => (players.bodies.view.draw(time), players.bodies.view.links[0].visible))"
    assert page.evaluate(drawn) == [True, False]
    lost = "((context) => (players.bodies.destroy(), context.isContextLost()))"
    assert page.evaluate(f"{lost}(players.bodies.view.renderer.getContext())") is True
    assert page.locator("#bodies *").count() == 0
