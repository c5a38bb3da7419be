"""Scripts of a page: bundles that are safe inside a script element, their licences, and the scripts of the player."""

import json
import re
from pathlib import Path

import pytest

import rookery

WEB = Path(rookery.__file__).parent / "report" / "web"
BUNDLES = {"charts": ("echarts", "zrender", "tslib"), "bodies": ("three",)}
SOURCES = sorted(WEB.glob("player*.js"))


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_is_safe_inside_a_script_element(name: str):
    text = (WEB / "vendor" / f"{name}.min.js").read_bytes()
    assert text.isascii()
    assert not re.search(rb"</script|<!--", text, re.IGNORECASE)


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_names_its_parts_and_their_licences_are_included(name: str):
    lock = json.loads((Path(rookery.__file__).parents[1] / "web" / "package-lock.json").read_text())
    head = (WEB / "vendor" / f"{name}.min.js").read_text().splitlines()[0]
    licences = (WEB / "vendor" / "LICENSES.txt").read_text()
    for part in BUNDLES[name]:
        version = lock["packages"][f"node_modules/{part}"]["version"]
        assert f"{part} {version} (" in head
        assert f"{name}.min.js holds {part} {version} (" in licences


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_scripts_are_short_and_never_parse_data_as_html(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|</script", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|\bfetch\(|XMLHttpRequest|^(import|export) ", text, re.M)
