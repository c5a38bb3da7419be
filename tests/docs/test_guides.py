"""The code blocks of the guides run."""

from pathlib import Path

import pytest

from tests.docs.guide_code import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FACTS = [page for folder in ("agents", "methods") for page in sorted((DOCS / folder).glob("*.md"))]
FIRST = [DOCS / f"{name}.md" for name in ("index", "gallery", "getting_started", "concepts")]
PAGES = [*FIRST, *sorted((DOCS / "guides").glob("*.md")), *FACTS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_guide_runs(
    page: Path, short_runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    Page(page, short_runs).run()
