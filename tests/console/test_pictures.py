"""Pictures of the console for docs/console.md, whose build puts them into the folder KREPLOG_PICTURES."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.console.example_source import ExampleSource
from tests.console.test_browser import sees, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = {
    "console-cluster": ("cluster", ["2: 2"], 1000, 860),
    "console-topic": ("topic/orders", ["1 min 34 s", "lag 2,400"], 1400, 560),
    "console-group": ("groups/billing", ["1 min 34 s"], 1000, 600),
}
"""By file name: the address of the view, texts that it has once all is shown, its width and height."""

MAX_BYTES = 100_000


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_the_docs(browser: Browser, tmp_path: Path, name: str) -> None:
    path, texts, width, height = PICTURES[name]
    folder = Path(os.environ.get("KREPLOG_PICTURES", tmp_path))
    screen = {"viewport": {"width": width, "height": height}, "color_scheme": "light", "reduced_motion": "reduce"}
    with visiting(browser, ExampleSource(), screen=screen) as visit:
        visit.page.goto(f"{visit.console.origin}/#/{path}")
        for text in texts:
            sees(visit.page, text)
        if path == "cluster":
            visit.page.wait_for_function(
                "() => (document.querySelector('path')?.getAttribute('d') ?? '').includes('L')"
            )
        picture = visit.page.screenshot(path=folder / f"{name}.png")
    assert picture.startswith(b"\x89PNG") and len(picture) < MAX_BYTES


def test_the_docs_have_these_pictures() -> None:
    page = (DOCS / "console.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^```\{console-picture\} ([\w-]+)$", page, re.MULTILINE)) == PICTURES.keys()
