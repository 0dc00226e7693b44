"""The pages of docs/replication-replayed.md: every scenario has one, and the broken rule breaks a guarantee."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="needs Sphinx, as the documentation does: make setup installs it")

import replays

PAGE = Path(__file__).parents[2] / "docs" / "replication-replayed.md"


def test_every_scenario_is_in_one_group_that_the_page_lists() -> None:
    listed = re.findall(r"^```{lessons} (\w+)$", PAGE.read_text(encoding="utf-8"), re.M)
    assert listed == list(replays.GROUPS)
    paths = [path for group in listed for path in replays.scenarios(group)]
    assert sorted(paths) == sorted(replays.SCENARIOS.glob("*.txt"))


def test_a_build_writes_all_pages(tmp_path: Path) -> None:
    replays.write(tmp_path)
    names = {path.stem for path in replays.SCENARIOS.glob("*.txt")} | {replays.BROKEN_RULE}
    assert {path.stem for path in tmp_path.glob("*.html")} == names
    broken = (tmp_path / f"{replays.BROKEN_RULE}.html").read_text(encoding="utf-8")
    assert '{"violation":"lacks committed"}' in broken
    for path in tmp_path.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert path.stem == replays.BROKEN_RULE or '{"violation":' not in text
        assert not re.search(r"\bhttps?://", text), "a page loads nothing, so it names no address"
