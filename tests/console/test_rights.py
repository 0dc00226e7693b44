"""The console of a cluster where its principal may do little: views say what is denied, and show the rest."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as Terminal

from kreplog.cli import main
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.connecting import bootstrap_servers
from kreplog.console.cluster_source import ClusterSource
from kreplog.console.terminal import TerminalView
from tests.console.served import Console, serving
from tests.integration import clusters

SETTINGS = ['"authorizer.class.name" = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"']


def kreplog(*words: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert not left.value.code


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster.create(tmp_path / "c", [0], 0, SETTINGS)
    at = ("--cluster", str(cluster.directory))
    allowed = ("--allow-principal", "User:ANONYMOUS", "--topic", "mine")
    operations = [word for name in ("Create", "Describe", "Write") for word in ("--operation", name)]
    kreplog("acl", "add", "--offline", *allowed, *operations, *at)
    try:
        cluster.start()
        kreplog("topic", "create", "mine", *at)
        yield cluster
    finally:
        clusters.end(cluster)


def source_of(cluster: LocalCluster) -> ClusterSource:
    return ClusterSource(partial(bootstrap_servers, cluster.directory, None, None), [])


@pytest.fixture
def console(cluster: LocalCluster) -> Iterator[Console]:
    with serving(source_of(cluster), allow_writes=True) as made:
        made.log_in()
        yield made


def test_the_terminal_shows_what_it_may(cluster: LocalCluster) -> None:
    async def run() -> str:
        source = source_of(cluster)
        out = io.StringIO()
        assert await TerminalView(source, Terminal(file=out, width=120)).print_once(0.01) == ""
        await source.close()
        return out.getvalue()

    found = asyncio.run(run())
    assert "Healthy: 1 broker, 1 topic" in found and "mine" in found


def test_what_is_denied_is_named(console: Console) -> None:
    def get(name: str, **parameters: Any) -> Any:
        query = "&".join(f"{key}={value}" for key, value in parameters.items())
        answer = console.request(f"/api/{name}?{query}")
        assert answer.status in (200, 502)
        return answer.json

    def act(name: str, confirm: str, **parameters: str) -> Any:
        body = json.dumps({"parameters": parameters, "confirm": confirm}).encode()
        return console.request(f"/api/acts/{name}", "POST", body, Origin=console.origin).json

    assert "done" in act("produce", "mine", topic="mine", partition="0", value="v")
    denied = {
        "records": get("records", topic="mine", partition=0)["error"],
        "topic-settings": get("topic-settings", topic="mine")["error"],
        "broker-settings": get("broker-settings", broker=0)["error"],
        "acls": get("acls")["error"],
        "users": get("users")["error"],
    }
    for name, text in denied.items():
        assert "authorization" in text.lower(), (name, text)
    assert get("groups") == {"groups": [], "unread": 0}  # those that it may describe
    assert "authorization" in get("group", group="g")["error"].lower()
    assert denied["records"].endswith("no ACL allows it to this principal")
    assert "authorization" in act("create-topic", "other", topic="other")["error"].lower()
    assert "authorization" in act("delete-topic", "mine", topic="mine")["error"].lower()
    assert "authorization" in act("reassign-partitions", "mine", topic="mine", replicas="0=0")["error"].lower()
