"""Pictures of the console, made by the test of its views where this machine has a browser, and else left out.

The directive `console-picture` shows one; its content is the text for those who cannot see it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).parent / "images"
TEST = Path(__file__).parent.parent / "tests" / "console" / "test_pictures.py"
TIMEOUT_S = 300.0


class ConsolePicture(SphinxDirective):
    """The picture of the name that is its argument."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        path = FOLDER / f"{self.arguments[0]}.png"
        self.env.note_dependency(str(path))
        if not path.exists():
            return []
        return [nodes.image(uri=f"{FOLDER.name}/{path.name}", alt=" ".join(self.content))]


def make(app: Sphinx) -> None:
    """Make the pictures again. The test is skipped without a browser."""
    if app.builder.format != "html":
        return
    FOLDER.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(TEST)],
        env={**os.environ, "KREPLOG_PICTURES": str(FOLDER)},
        cwd=TEST.parents[2],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    if done.returncode:
        logging.getLogger(__name__).warning("no pictures of the console: %s", done.stdout[-2000:])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("console-picture", ConsolePicture)
    app.connect("builder-inited", make)
    return {"parallel_read_safe": True}
