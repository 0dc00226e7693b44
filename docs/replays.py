"""The pages of `replication-replayed.md`: a replay of each scenario, and of a seed that breaks a rule.

The directive `lessons` lists them, in groups; they are written into the output of a build of HTML.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from kreplog.replay import lesson_files, lessons
from kreplog.replay.page import render
from kreplog.replay.seed_page import PageFile
from kreplog.sim import simulate

FOLDER = "replays"
"""Folder of the pages in the output."""

BROKEN_RULE = "truncate-to-watermark"
BROKEN_SEED = 3
"""A seed that finds that mutation, within two seconds of virtual time."""


class Lessons(SphinxDirective):
    """The list of a group's lessons: a link to each page, and its sentence."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        items = nodes.bullet_list()
        for name in lesson_files.names(self.arguments[0]):
            title, sentence = lesson_files.heading(name)
            link = nodes.reference("", title, refuri=f"{FOLDER}/{name}.html", internal=False)
            items += nodes.list_item("", nodes.paragraph("", "", link, nodes.Text(f": {sentence}")))
        return [items]


class BrokenRule(SphinxDirective):
    """A link to the page of the seed that breaks a rule."""

    def run(self) -> list[nodes.Node]:
        command = simulate.Options(mutation=BROKEN_RULE).command(BROKEN_SEED)
        link = nodes.reference(
            "", "", nodes.literal("", command), refuri=f"{FOLDER}/{BROKEN_RULE}.html", internal=False
        )
        return [nodes.paragraph("", "", link)]


def write(folder: Path) -> None:
    """Write all pages into `folder`. Raises ScenarioError if an expectation of a scenario does not hold."""
    folder.mkdir(exist_ok=True)
    for group in lesson_files.GROUPS:
        for name in lesson_files.names(group):
            recording = lessons.record(name)
            recording.limit()
            (folder / f"{name}.html").write_text(render(recording), encoding="utf-8")
    page, options = PageFile(folder / f"{BROKEN_RULE}.html"), simulate.Options(mutation=BROKEN_RULE)
    page.write(simulate.run_seed(BROKEN_SEED, options, traced=True, watchers=[page.watch]), options)


def _built(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        write(Path(app.outdir) / FOLDER)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("lessons", Lessons)
    app.add_directive("broken-rule", BrokenRule)
    app.connect("build-finished", _built)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
