"""`kreplog trace`: a running cluster for some seconds, as a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")
pytest.importorskip("aiohttp", reason="needs the extra `console`")

from tests.commands.conftest import Kreplog
from tests.integration.clusters import eventually


def partition(on_trio: Kreplog, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(on_trio("topic", "describe", topic, "--json").out)["partitions"][0]
    return found


def test_the_page_has_leaders_isrs_and_offsets(on_trio: Kreplog, tmp_path: Path) -> None:
    on_trio("topic", "create", "traced", "-p", "1", "-r", "3")
    eventually(lambda: partition(on_trio, "traced")["leader"] >= 0, "the partition has no leader")
    assert on_trio("produce", "traced", stdin=b"a\nb\n").code == 0
    html = tmp_path / "trace.html"
    done = on_trio("trace", "traced", "--html", html, "--seconds", "2")
    assert done.code == 0, done.err
    data = html.read_text(encoding="utf-8").partition('id="replay">')[2].partition("</script>")[0]
    head, *events = map(json.loads, data.splitlines())
    changes = [change for event in events for change in event.get("changes", ())]
    assert head["partitions"] == ["traced-0"] and head["brokers"] == [0, 1, 2]
    leader = partition(on_trio, "traced")["leader"]
    assert {"broker": leader, "status": "up"} in changes
    assert any(change.get("leader") == leader and change.get("partition") == "traced-0" for change in changes)
    ends = {change["broker"]: change["end"] for change in changes if "end" in change}
    assert ends == {0: 2, 1: 2, 2: 2}


def test_what_cannot_be_traced_is_named(on_trio: Kreplog, tmp_path: Path) -> None:
    html = tmp_path / "trace.html"
    missing = on_trio("trace", "no-such-topic", "--html", html)
    assert missing.code == 2 and "there is no topic 'no-such-topic'" in missing.err
    folder = on_trio("trace", "t", "--html", tmp_path / "no" / "trace.html")
    assert folder.code == 2 and "there is no directory" in folder.err and not html.exists()
