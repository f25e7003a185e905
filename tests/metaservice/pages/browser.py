"""A browser for tests: the Chromium that is installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

__all__ = ["chromium"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, closed at the end of the block."""
    executable = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    assert executable, "a Chromium is needed: apt-get install chromium"
    with sync_playwright() as playwright:
        # The sandbox does not run as root, the user of most containers.
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()
