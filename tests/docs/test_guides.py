"""Every code block of the guides runs, at a small size, or is parsed; links and names of documents exist."""

from pathlib import Path

import pytest

from tests.docs.guide_code import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [DOCS / "getting_started.md", DOCS / "concepts.md", *sorted((DOCS / "guides").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_guide_runs(
    page: Path, short_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    Page(page, short_runs).run()
