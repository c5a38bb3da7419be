"""Find pages of the built site that are wider than a screen: `python -m docs.measure_widths site 1280 400`.

It names each page with the pixels that it is too wide, and exits with 1 if there is one. It needs playwright and
Chromium, as the tests of the report page do.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.report.browser.chromium import launched

BEYOND = """() => Math.max(...[document.documentElement, ...document.querySelectorAll(".bd-article-container")]
  .map(element => element.scrollWidth - element.clientWidth))"""
"""Pixels that the page, or the article in it, which the theme lets scroll by itself, is too wide."""


def main() -> int:
    """Measure all pages at each width."""
    site, widths = Path(sys.argv[1]).resolve(), [int(width) for width in sys.argv[2:]]
    found = list(too_wide(site, widths))
    print("\n".join(found) or "no page scrolls to the side")
    return 1 if found else 0


def too_wide(site: Path, widths: list[int]) -> Iterator[str]:
    """A line for each page that is wider than the screen; listings of source code are left out."""
    with launched() as browser:
        for width in widths:
            page = browser.new_page(viewport={"width": width, "height": 900})
            for file in sorted(site.rglob("*.html")):
                name = file.relative_to(site).as_posix()
                if not name.startswith("_"):
                    page.goto(file.as_uri())
                    if beyond := page.evaluate(BEYOND):
                        yield f"{name}: {beyond} pixels too wide for a screen of {width}"
            page.close()


if __name__ == "__main__":
    sys.exit(main())
