"""Debian's Chromium, driven by Playwright's client: what the fixture `browser` of tests/conftest.py opens."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser without windows; the test is skipped where there is none.

    Until it ends no asyncio loop can run in this thread, since the client's own does."""
    client = pytest.importorskip("playwright.sync_api", reason="needs Playwright's client: pip install 'kreplog[dev]'")
    executable = shutil.which("chromium")
    if executable is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with client.sync_playwright() as driver:
        # Chromium's sandbox refuses to run as root.
        browser = driver.chromium.launch(executable_path=executable, chromium_sandbox=os.getuid() != 0)
        try:
            yield browser
        finally:
            browser.close()
