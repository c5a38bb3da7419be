"""A headless Chromium for tests, and pages of it that may neither complain nor fetch anything."""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_NETWORK = ("file:", "data:", "blob:")
_FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]  # 3-D without a graphics card

_PATIENCE = 15_000  # ms


def require() -> None:
    """Skip the calling module where there is no browser to be driven; in CI, where there must be one, fail it."""
    lacking = [] if importlib.util.find_spec("playwright") else ["playwright"]
    lacking += [] if CHROMIUM else ["chromium"]
    if not lacking:
        return
    reason = f"pages are tried in a browser, which needs {' and '.join(lacking)}; install what is missing."
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


@contextlib.contextmanager
def launched() -> Iterator["Browser"]:
    """The browser. No test may use asyncio meanwhile: playwright keeps a loop of its own in this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: "Browser", address: str, allowed: str | None = None, **context: Any) -> Iterator["Page"]:
    """A page in a context of its own, closed in the end.

    In the end nothing may have been complained of, no dialog may have opened, and every request must have been for
    what needs no network; or for an address that begins with `allowed`.
    """
    own = browser.new_context(**context)
    page = own.new_page()
    page.set_default_timeout(_PATIENCE)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(f"dialog: {dialog.message}"))
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    try:
        yield page
    finally:
        own.close()
    assert said == []
    assert asked, "the requests were not seen"
    assert [url for url in asked if not url.startswith(NO_NETWORK) and not (allowed and url.startswith(allowed))] == []


def shown(browser: "Browser", path: Path, **context: Any) -> Any:
    """A page in a file, as `opened` opens it."""
    return opened(browser, path.as_uri(), **{"viewport": {"width": 1200, "height": 900}, **context})


def picture(page: "Page", name: str) -> "Locator":
    """The figure of this name in the page of a run, looked at and drawn."""
    figure = page.locator(f"figure[data-name='{name}']").first
    figure.scroll_into_view_if_needed()
    if figure.locator(".chart, canvas.lineage").count():
        figure.locator("[data-drawn=true]").wait_for()
    return figure


def see_everything(page: "Page") -> None:
    """Scroll to each figure of the page of a run, until all are drawn."""
    for figure in page.locator("figure").all():
        figure.scroll_into_view_if_needed()
    page.locator(".chart:not([data-drawn]), .lineage:not([data-drawn])").first.wait_for(state="detached")
