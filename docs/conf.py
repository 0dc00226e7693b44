"""Sphinx's settings. What is made from the code is made by generated.py, pictures.py, replays.py beside this file."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "spark")]

import kreplog  # noqa: E402 (it is found by that path)

project = "kreplog"
release = version = kreplog.__version__
project_copyright = "the kreplog authors; Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated", "pictures", "replays"]
html_theme = "furo"
html_title = f"kreplog {release}"
html_show_sourcelink = False
exclude_patterns = ["README.md"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
nitpicky = True
# Only names of kreplog have a page here: what belongs to Python, pyarrow or PySpark is a plain word. Those of the
# compiled modules are private, and shown by their public names.
nitpick_ignore_regex = [
    ("py:.*", r"(?!kreplog\.|pyspark_kreplog\.).*"),
    ("py:.*", r"kreplog\._native\..*"),
    ("py:class", r"kreplog\.errors\.ErrorCode"),  # the codes of Kafka's protocol, which its own guide describes
]
