"""One browser for all tests of pages, which is closed before other tests of the same process."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.report.browser.chromium import launched

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    with launched() as browser:
        yield browser
