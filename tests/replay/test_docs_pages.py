"""The pages of docs/replication-replayed.md: every scenario has one, and the broken rule breaks a guarantee."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="needs Sphinx, as the documentation does: make setup installs it")

import replays

from kreplog.replay import lesson_files

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "replication-replayed.md"
SCENARIOS = [path.stem for path in (ROOT / "kreplog" / "sim" / "scenarios").glob("*.txt")]


def test_every_scenario_is_in_one_group_that_the_page_lists() -> None:
    listed = re.findall(r"^```{lessons} (.+)$", PAGE.read_text(encoding="utf-8"), re.M)
    assert listed == list(lesson_files.GROUPS)
    names = [name for group in listed for name in lesson_files.names(group)]
    assert sorted(names) == sorted(SCENARIOS)


def test_a_build_writes_all_pages(tmp_path: Path) -> None:
    replays.write(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.html")} == {*SCENARIOS, replays.BROKEN_RULE}
    broken = (tmp_path / f"{replays.BROKEN_RULE}.html").read_text(encoding="utf-8")
    assert '{"violation":"lacks committed"}' in broken
    for path in tmp_path.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert path.stem == replays.BROKEN_RULE or '{"violation":' not in text
        assert not re.search(r"\bhttps?://", text), "a page loads nothing, so it names no address"
