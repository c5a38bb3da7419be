"""A headless Chromium for tests, whose pages may neither log messages nor send requests."""

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
_FLAGS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]  # 3D without a graphics card

_TIMEOUT = 15_000  # ms


def require() -> None:
    """Skip the calling module where playwright or Chromium is missing; in CI fail it."""
    missing = [] if importlib.util.find_spec("playwright") else ["playwright"]
    missing += [] if CHROMIUM else ["chromium"]
    if not missing:
        return
    reason = f"tests of pages need a browser: {' and '.join(missing)}; install what is missing."
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)


@contextlib.contextmanager
def launched() -> Iterator["Browser"]:
    """The browser. Tests must not use asyncio meanwhile, since playwright runs an event loop in this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=_FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: "Browser", address: str, allowed: str | None = None, **context: Any) -> Iterator["Page"]:
    """A page in a separate context, which is closed at the end.

    At the end it is checked that the page logged no message and opened no dialog, and that every request was one
    without network access, or to an address that begins with `allowed`.
    """
    separate = browser.new_context(**context)
    page = separate.new_page()
    page.set_default_timeout(_TIMEOUT)
    messages: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(f"dialog: {dialog.message}"))
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.on("request", lambda request: requested.append(request.url))
    page.goto(address)
    try:
        yield page
    finally:
        separate.close()
    assert messages == []
    assert requested, "no request was recorded"
    assert [
        url for url in requested if not url.startswith(NO_NETWORK) and not (allowed and url.startswith(allowed))
    ] == []


def shown(browser: "Browser", path: Path, **context: Any) -> Any:
    """A page in a file, as `opened` opens it."""
    return opened(browser, path.as_uri(), **{"viewport": {"width": 1200, "height": 900}, **context})


def picture(page: "Page", name: str) -> "Locator":
    """The figure of this name in the page of a run, scrolled into view and drawn."""
    figure = page.locator(f"figure[data-name='{name}']").first
    figure.scroll_into_view_if_needed()
    if figure.locator(".chart, canvas.lineage").count():
        figure.locator("[data-drawn=true]").wait_for()
    return figure


def draw_everything(page: "Page") -> None:
    """Scroll to each figure of the page of a run, until all are drawn."""
    for figure in page.locator("figure").all():
        figure.scroll_into_view_if_needed()
    page.locator(".chart:not([data-drawn]), .lineage:not([data-drawn])").first.wait_for(state="detached")
