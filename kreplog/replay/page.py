"""The page of a recording: an HTML file with its style, its script and its data, which loads nothing and sends nothing.

Its content security policy allows the two inline blocks by their hashes. Data is JSON in a block that no browser runs,
without any `<`, so that no text of a run can end the block.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib.resources import files

from kreplog.replay.recording import Recording


def render(recording: Recording) -> str:
    """The page. The recording should be limited (Recording.limit)."""
    style, script = _read("page.css"), _read("page.js")
    data = "\n".join(recording.lines()).replace("<", "\\u003c")
    return _read("page.html").format(
        policy=policy_of_pages(), title=html.escape(recording.title), style=style, data=data, script=script
    )


def policy_of_pages() -> str:
    """The content security policy of every page, as in its own meta element."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(_read('page.js'))}",
            f"style-src {_hash(_read('page.css'))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _read(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of an inline block with that text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
