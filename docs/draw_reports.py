"""Draw the pictures of the report pages: `python -m docs.draw_reports RUNS` writes `getting_started.png`,
`report_*.png`, and the curves and the film of the hopper in docs/images.

The commands of `docs/getting_started.md` and `docs/guides/report.md` train in the folder RUNS; a run that is there
already is not repeated. The pictures need playwright and Chromium, as the tests of the page do.
"""

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from tests.report.browser.chromium import draw_everything, launched, shown

DOCS = Path(__file__).parent
SIZE = {"width": 1180, "height": 900}
SECTIONS = {
    "pbt-ppo": ("population", "light"),
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
        film(browser, runs / "pbt-ppo" / "report.html", DOCS / "images" / "hopper.gif")
        shutil.copy(runs / "pbt-ppo" / "curves.png", DOCS / "images" / "hopper.png")
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


def film(browser: Browser, file: Path, picture: Path, side: int = 300) -> None:
    """Record 3.2 seconds of the first episode, where the simulator takes 125 steps a second, in 40 square frames."""
    with shown(browser, file, viewport=SIZE, color_scheme="light") as page:
        draw_everything(page)
        page.locator(".player-play").click()  # it plays when it is shown
        frames = []
        for step in range(300, 700, 10):
            move = "(bar, step) => { bar.value = step; bar.dispatchEvent(new Event('input')) }"
            page.locator(".player-scrubber").evaluate(move, step)
            page.wait_for_timeout(100)
            shot = Image.open(io.BytesIO(page.locator("#episode canvas").screenshot())).convert("RGB")
            margin = (shot.width - shot.height) // 2
            frames.append(shot.crop((margin, 0, margin + shot.height, shot.height)).resize((side, side)))
    colours = frames[0].quantize(24)
    first, *rest = [frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame in frames]
    first.save(picture, save_all=True, append_images=rest, duration=80, loop=0)


if __name__ == "__main__":
    main()
