"""The documents: links lead somewhere, commands are accepted, and the reference has every public name."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rookery
from tests.docs.guide_code import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
SOURCES = [
    path
    for folder in ("rookery", "tests", "examples", "benchmarks", "docker", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".sh", ".toml", "") and path.is_file()
]


def links_of(page: Path) -> Iterator[str]:
    """The links and pictures of a page that lead to files, without anchors."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", page.read_text())):
        if not target.startswith(("http:", "https:", "#")):
            yield target.partition("#")[0]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path):
    assert not [link for link in links_of(page) if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_are_accepted_and_python_compiles(page: Path):
    Page(page, {}).check()


def test_documents_that_code_and_documents_name_exist():
    named = {
        (name, path.relative_to(ROOT).as_posix())
        for path in (*WRITTEN, *SOURCES)
        for name in re.findall(r"(?<![\w/])docs/[\w/]+\.md", path.read_text())
    }
    assert not {(name, path) for name, path in named if not (ROOT / name).is_file() and "BENCHMARKS" not in name}


def test_the_reference_has_every_package_and_every_name_of_the_first():
    page = (DOCS / "reference" / "rookery.md").read_text()
    listed = set(re.findall(r"(?m)^   \w+\.(\w+)$", page))
    subpackages = {name for name in rookery.__all__ if inspect.ismodule(getattr(rookery, name))}
    assert listed | {"Agent"} == set(rookery.__all__) - subpackages
    assert "`rookery.Agent`" in page
    public = {path.parent for path in (ROOT / "rookery").rglob("__init__.py") if "\n__all__ = " in path.read_text()}
    packages = {path.relative_to(ROOT).as_posix().replace("/", ".") for path in public} - {"rookery", "rookery.cli"}
    described = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    assert not {package for package in packages if f"automodule:: {package}\n" not in described}
    for package in packages:
        assert importlib.import_module(package).__all__
