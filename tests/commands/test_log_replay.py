"""`kreplog cluster replay`: the failure of a broker, from the log files of a running cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.commands.conftest import Kreplog
from tests.integration.clusters import eventually, kill


def leader_of(on_trio: Kreplog, topic: str) -> int:
    described = json.loads(on_trio("topic", "describe", topic, "--json").out)
    return int(described["partitions"][0]["leader"])


def replayed(kreplog: Kreplog, trio: LocalCluster, html: Path, *words: str) -> list[dict[str, Any]]:
    """The events of the page."""
    done = kreplog("cluster", "replay", trio.directory, "--html", html, *words)
    assert (done.code, done.err) == (0, "")
    data = html.read_text(encoding="utf-8").partition('id="replay">')[2].partition("</script>")[0]
    _, *events = map(json.loads, data.splitlines())
    assert done.out.decode().startswith(f"{html}: {len(events)} events. From 2")
    return events


def test_the_page_shows_how_a_partition_got_another_leader(
    trio: LocalCluster, on_trio: Kreplog, kreplog: Kreplog, tmp_path: Path
) -> None:
    on_trio("topic", "create", "replayed", "-p", "1", "-r", "3")
    eventually(lambda: leader_of(on_trio, "replayed") >= 0, "the partition has no leader")
    failed = leader_of(on_trio, "replayed")
    kill(trio, failed)
    eventually(lambda: leader_of(on_trio, "replayed") not in (failed, -1), "nobody else leads")
    leader = leader_of(on_trio, "replayed")

    def found() -> bool:
        """Whether the log files, which are written a moment later, have the new leader and that it has applied it."""
        events = replayed(kreplog, trio, tmp_path / "page.html")
        changes = [change for event in events for change in event.get("changes", ())]
        of_partition = [change for change in changes if change.get("partition") == "replayed-0"]
        return {"broker": failed, "status": "down"} in changes and any(
            change.get("broker") == leader and change.get("role") == "leader" for change in of_partition
        )

    try:
        eventually(found, "the page does not show the failover")
    finally:
        trio.start([failed])


def test_times_and_files_that_are_wrong_are_named(trio: LocalCluster, kreplog: Kreplog, tmp_path: Path) -> None:
    words = ("cluster", "replay", trio.directory, "--html")
    missing = kreplog(*words, tmp_path / "no" / "page.html")
    assert (missing.code, missing.out) == (2, b"")
    assert f"there is no directory {tmp_path / 'no'}" in missing.err
    early = kreplog(*words, tmp_path / "page.html", "--since", "1999-01-01T00:00:00", "--until", "1999-01-01T00:00:01")
    assert early.code == 2
    assert "there is no log line from 00:00:00.000000 to 00:00:01.000000 UTC" in early.err
    assert not (tmp_path / "page.html").exists()
    assert kreplog(*words, tmp_path / "page.html", "--since", "noon").code == 2
