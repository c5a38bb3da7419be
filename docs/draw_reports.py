"""Draw the pictures of the report pages: `python -m docs.draw_reports RUNS` writes `getting_started.png` and
`report_*.png` in docs/images.

The commands of `docs/getting_started.md` and `docs/guides/report.md` train in the folder RUNS; a run that is there
already is not repeated. The pictures need playwright and Chromium, as the tests of the page do.
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
    with launched() as browser:
        for command in commands(DOCS / "guides" / "report.md"):
            kind = command[2]
            picture = DOCS / "images" / f"report_{kind.replace('-', '_')}.png"
            draw(browser, page_of(command, runs / kind), picture, *SECTIONS[kind])
        first = commands(DOCS / "getting_started.md")[0]
        run = runs / "pbt-sac-point_maze-0"
        draw(browser, page_of(first, run), DOCS / "images" / "getting_started.png", "episode", "light")


def commands(document: Path) -> list[list[str]]:
    """The words of the training commands in a document."""
    found = re.findall(r"^rookery train .*", document.read_text().replace("\\\n", ""), re.MULTILINE)
    return [command.split() for command in found]


def page_of(command: list[str], run: Path) -> Path:
    """The page of a run with its episodes; trains if the run does not exist."""
    if not run.exists():
        subprocess.run([*command, "--run-dir", run], check=True)
    subprocess.run(["rookery", "report", run], check=True)
    return run / "report.html"


def draw(browser: Browser, file: Path, picture: Path, section: str, colours: str) -> None:
    """Take a picture of the page, scrolled to a section whose episode was played for a second."""
    with shown(browser, file, viewport=SIZE, color_scheme=colours) as page:
        draw_everything(page)
        page.locator(f"#{section}").evaluate("section => section.scrollIntoView()")
        page.wait_for_timeout(1_000)
        page.screenshot(path=picture)


if __name__ == "__main__":
    main()
