"""Draw the pictures of the report pages: `python -m docs.draw_reports RUNS` writes docs/images/report_*.png.

The four commands of `docs/guides/report.md` train in the folder RUNS; a run that is there already is not repeated. The
pictures need playwright and Chromium, as the tests of the page do.
"""

import re
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser

from tests.report.browser.chromium import draw_everything, launched, shown

DOCS = Path(__file__).parent
SIZE = {"width": 1180, "height": 900}
SECTIONS = {
    "pbt-sac": ("population", "light"),
    "me-pbt-sac": ("repertoire", "light"),
    "diayn": ("skills", "dark"),
    "ippo": ("episode", "dark"),
}
"""Kind of the run -> the section of its page that is shown, and the colours."""


def main() -> None:
    """Train what is missing, write every page, and take its picture."""
    runs = Path(sys.argv[1])
    guide = (DOCS / "guides" / "report.md").read_text().replace("\\\n", "")
    with launched() as browser:
        for command in re.findall(r"^rookery train .*", guide, re.MULTILINE):
            kind = command.split()[2]
            run = runs / kind
            if not run.exists():
                subprocess.run([*command.split(), "--run-dir", run], check=True)
            subprocess.run(["rookery", "report", run], check=True)
            picture = DOCS / "images" / f"report_{kind.replace('-', '_')}.png"
            draw(browser, run / "report.html", picture, *SECTIONS[kind])


def draw(browser: Browser, file: Path, picture: Path, section: str, colours: str) -> None:
    """Take a picture of the page, scrolled to a section whose episode has been played for a second."""
    with shown(browser, file, viewport=SIZE, color_scheme=colours) as page:
        draw_everything(page)
        page.locator(f"#{section}").evaluate("section => section.scrollIntoView()")
        page.wait_for_timeout(1_000)
        page.screenshot(path=picture)


if __name__ == "__main__":
    main()
