"""A real Chromium, as the machine has it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

__all__ = ["chromium"]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the length of the block."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "a Chromium is needed: apt-get install chromium"
    with sync_playwright() as playwright:
        # The sandbox refuses to run as root, as which containers do.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
