"""The console of a running cluster, by its requests: offsets, records, groups, settings, acts; and the command."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from kreplog.cli import main
from kreplog.client.bootstrap import UnreachableError
from kreplog.client.broker_client import BrokerClient
from kreplog.client.replica_states import replica_states
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.connecting import admin_client, bootstrap_servers
from kreplog.console import cluster_source
from kreplog.console.access import LOGIN
from kreplog.console.cluster_source import ClusterSource
from kreplog.errors import CoordinationError, UsageError
from kreplog.types import TopicPartition
from tests.console.served import WITHIN_S, Console, serving
from tests.integration import clusters


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (*clusters.GROUPS,)
    with clusters.running(tmp_path_factory.mktemp("console") / "c", settings) as made:
        with clusters.admin_of(made.bootstrap()) as admin:
            admin.create_topics({"events": {"num_partitions": 2, "replication_factor": 3}})
        clusters.wait_for_topic(made, "events", 2)
        producer = KafkaProducer(bootstrap_servers=made.bootstrap().split(","), acks="all")
        for number in range(10):
            producer.send("events", b"v%d" % number, b"k%d" % (number % 3), partition=0, timestamp_ms=1000 * number + 1)
            producer.flush()
        producer.send("events", bytes(1_000_000), partition=1)
        producer.close()
        yield made


def source_of(cluster: LocalCluster) -> ClusterSource:
    return ClusterSource(
        partial(bootstrap_servers, cluster.directory, None, None), ["--cluster", str(cluster.directory)]
    )


@pytest.fixture
def console(cluster: LocalCluster) -> Iterator[Console]:
    with serving(source_of(cluster), allow_writes=True) as made:
        made.log_in()
        yield made


def get(console: Console, name: str, **parameters: Any) -> Any:
    query = "&".join(f"{key}={value}" for key, value in parameters.items())
    return console.request(f"/api/{name}?{query}").json


def offsets(page: Any) -> list[int]:
    return [record["offset"] for record in page["records"]]


def act(console: Console, name: str, confirm: str | None, **parameters: str) -> Any:
    body = json.dumps({"parameters": parameters, "confirm": confirm}).encode()
    return console.request(f"/api/acts/{name}", "POST", body, Origin=console.origin).json


def test_the_snapshot_and_the_offsets_of_replicas(cluster: LocalCluster) -> None:
    async def run() -> None:
        source = source_of(cluster)
        snapshot = await source.snapshot()
        assert snapshot.health().startswith("Healthy: 3 brokers")
        assert set(snapshot.brokers) == {0, 1, 2} and snapshot.controller in snapshot.brokers
        rows = snapshot.topics["events"].partitions
        assert sorted(rows[0].isr) == sorted(rows[0].replicas) == [0, 1, 2]
        replicas = await source.replicas("events", rows)
        assert {each["log_end_offset"] for each in replicas[0]} == {10}
        assert [each["state"] for each in replicas[0]].count("leader") == 1
        await source.close()

    asyncio.run(run())


def test_how_long_a_replica_lags(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    at, lacked_ms = TopicPartition("events", 0), 4001

    async def run() -> None:
        source = source_of(cluster)
        row = (await source.snapshot()).topics["events"].partitions[0]
        behind, other = (broker for broker in row.replicas if broker != row.leader)

        def states(*arguments: Any) -> Any:
            found = replica_states(*arguments)
            found[behind][at] = replace(found[behind][at], log_end_offset=4)
            return found

        monkeypatch.setattr(cluster_source, "replica_states", states)
        before_ms = time.time_ns() // 1_000_000
        replicas = (await source.replicas("events", {0: row._replace(isr=(row.leader, other))}))[0]
        found = {replica["broker"]: (replica["lag"], replica["lag_ms"]) for replica in replicas}
        lag, lag_ms = found.pop(behind)
        assert lag == 6 and 0 <= lag_ms + lacked_ms - before_ms < 1000 * WITHIN_S
        assert set(found.values()) == {(0, 0)}
        await source.close()

    asyncio.run(run())


def test_how_long_the_replica_of_a_dead_broker_lags(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """From where its log ended when its broker last responded; nothing is known by one who has not seen it."""
    at, lacked_ms = TopicPartition("events", 0), 4001

    async def run() -> None:
        source, later = source_of(cluster), source_of(cluster)
        row = (await source.snapshot()).topics["events"].partitions[0]
        await later.snapshot()
        dead, other = (broker for broker in row.replicas if broker != row.leader)
        rows = {0: row._replace(isr=(row.leader, other))}

        def behind(*arguments: Any) -> Any:
            found = replica_states(*arguments)
            found[dead][at] = replace(found[dead][at], log_end_offset=4)
            return found

        def without(*arguments: Any) -> Any:
            found = replica_states(*arguments)
            del found[dead]
            return found

        async def seen_by(source: ClusterSource) -> Any:
            return next(each for each in (await source.replicas("events", rows))[0] if each["broker"] == dead)

        monkeypatch.setattr(cluster_source, "replica_states", behind)
        await seen_by(source)
        monkeypatch.setattr(cluster_source, "replica_states", without)
        before_ms = time.time_ns() // 1_000_000
        found = await seen_by(source)
        assert (found["state"], found["log_end_offset"], found["last_log_end_offset"]) == ("down", None, 4)
        assert found["lag"] == 6 and 0 <= found["lag_ms"] + lacked_ms - before_ms < 1000 * WITHIN_S
        found = await seen_by(later)
        assert found["state"] == "down" and found["last_log_end_offset"] is found["lag"] is found["lag_ms"] is None
        await source.close()
        await later.close()

    asyncio.run(run())


def test_a_silent_broker_is_not_waited_for(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bars of the others go on: a broker that hangs would hold up each look by the time-out of a request."""
    requested: list[int] = []

    def states(admin: Any, by_broker: Any) -> Any:
        requested.extend(by_broker)
        return replica_states(admin, by_broker)

    monkeypatch.setattr(cluster_source, "replica_states", states)
    monkeypatch.setattr(cluster_source, "_silent", lambda _: frozenset({1}))

    async def run() -> None:
        source = source_of(cluster)
        snapshot = await source.snapshot()
        while not snapshot.silent:  # a look does not wait for a probe
            snapshot = await source.snapshot()
        replicas = await source.replicas("events", snapshot.topics["events"].partitions)
        assert sorted(requested) == [0, 2]
        assert {each["broker"]: each["state"] for each in replicas[0]}[1] == "down"
        await source.close()

    asyncio.run(run())


def test_the_controllers_epoch(cluster: LocalCluster) -> None:
    async def run() -> None:
        connect = partial(bootstrap_servers, cluster.directory, None, None)
        source = ClusterSource(connect, [], controller_epoch=cluster.controller_epoch)
        epoch = (await source.snapshot()).controller_epoch
        assert epoch is not None and epoch >= 1
        await source.close()

        def unreadable() -> int:
            raise CoordinationError("the store is gone")

        source = ClusterSource(connect, [], controller_epoch=unreadable)
        assert (await source.snapshot()).controller_epoch is None
        await source.close()

    asyncio.run(run())


def test_looks_share_connections(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    connect = BrokerClient._open

    async def counting(self: BrokerClient) -> Any:
        opened.append(self)
        return await connect(self)

    monkeypatch.setattr(BrokerClient, "_open", counting)

    async def run() -> None:
        source = source_of(cluster)
        counts = []
        for _ in range(4):
            rows = (await source.snapshot()).topics["events"].partitions
            await source.replicas("events", rows)
            counts.append(len(opened))
        await source.close()
        assert 0 < counts[1] == counts[2] == counts[3]

    asyncio.run(run())


def test_a_broker_that_hangs_does_not_hold_up_the_others(cluster: LocalCluster) -> None:
    async def run() -> None:
        source = source_of(cluster)
        first = await source.snapshot()
        suspended = next(broker for broker in sorted(first.brokers) if broker != first.controller)
        os.kill(clusters.pid_of(cluster, suspended), signal.SIGSTOP)
        try:
            assert suspended not in (await source.snapshot()).silent  # its time-out is not waited for
            async with asyncio.timeout(clusters.WITHIN_S):
                while suspended not in (snapshot := await source.snapshot()).silent:
                    await asyncio.sleep(0)
            assert f"broker {suspended} does not respond" in snapshot.health()
            rows = snapshot.topics["events"].partitions
            states = {each["broker"]: each["state"] for each in (await source.replicas("events", rows))[0]}
            assert states.pop(suspended) == "down" and "down" not in states.values()
        finally:
            os.kill(clusters.pid_of(cluster, suspended), signal.SIGCONT)
        async with asyncio.timeout(clusters.WITHIN_S):
            while (snapshot := await source.snapshot()).problems():
                await asyncio.sleep(0.05)
        await source.close()

    asyncio.run(run())


def test_records(console: Console) -> None:
    page = get(console, "records", topic="events", partition=0)
    assert (offsets(page), page["high_watermark"]) == (list(range(10)), 10)
    assert base64.b64decode(page["records"][3]["value"]["base64"]) == b"v3"
    assert offsets(get(console, "records", topic="events", partition=0, newest=2)) == [8, 9]
    assert offsets(get(console, "records", topic="events", partition=0, time_ms=5001)) == [5, 6, 7, 8, 9]
    assert offsets(get(console, "records", topic="events", partition=0, key="k1")) == [1, 4, 7]
    assert offsets(get(console, "records", topic="events", partition=0, offset=99)) == []
    (large,) = get(console, "records", topic="events", partition=1)["records"]
    assert large["value"]["size"] == 1_000_000
    field = console.request("/api/record-field?topic=events&partition=1&offset=0")
    assert field.body == bytes(1_000_000)
    assert "there is no partition events-7" in get(console, "records", topic="events", partition=7)["error"]
    assert "missing" in get(console, "records", topic="missing", partition=0)["error"]


def test_settings_users_and_acls(console: Console) -> None:
    settings = {each["name"]: each for each in get(console, "topic-settings", topic="events")["settings"]}
    assert settings["min.insync.replicas"] == {"name": "min.insync.replicas", "value": "2", "source": "broker's file"}
    broker = {each["name"]: each["value"] for each in get(console, "broker-settings", broker=1)["settings"]}
    assert broker["broker.id"] == "1"
    assert get(console, "users") == {"users": []}
    assert "authorizer" in get(console, "acls")["error"]
    assert "broker 9 does not respond" in get(console, "broker-settings", broker=9)["error"]
    assert get(console, "sizes", topic="events", partitions="0,1")["sizes"]["1"]["0"] > 1_000_000
    assert "has no 'other'" in get(console, "other")["error"]


def lag_of(console: Console, group: str) -> int:
    """Once it is known: a broker that others hold for failed leads nothing for a while."""
    until = time.monotonic() + WITHIN_S
    while (lag := get(console, "group", group=group)["lag"]) is None:
        assert time.monotonic() < until, "its partitions have no leaders"
        time.sleep(0.1)  # brokers elect, and send no event
    return int(lag)


def group_row(console: Console, group: str, **parameters: str) -> Any:
    """What the list of groups has of it, once its lag in time has been read: groups and records are, by and by."""
    until = time.monotonic() + WITHIN_S
    while True:
        listed = get(console, "groups", **parameters)
        found = {row["group"]: row for row in listed["groups"]}
        if not listed["unread"] and group in found and found[group]["lag_ms"]:
            return {name: value for name, value in found[group].items() if name != "lag_ms"}
        assert time.monotonic() < until, listed
        time.sleep(0.2)  # the console reads a few groups at a time, and sends no event


def test_groups_and_their_reset(cluster: LocalCluster, console: Console) -> None:
    with pytest.raises(SystemExit):
        main(
            [
                "consume",
                "events",
                "--group",
                "g",
                "--from-beginning",
                "--max-messages",
                "4",
                "--cluster",
                str(cluster.directory),
            ]
        )
    assert get(console, "group", group="g")["state"] == "Empty"
    before = lag_of(console, "g")
    assert before > 0
    row = group_row(console, "g", topic="events")
    assert (row["state"], row["members"], row["lag"], row["error"]) == ("Empty", 0, before, "")
    assert (row["partitions"], row["lag_unknown"]) == (2, 0)
    assert group_row(console, "g") == row
    assert get(console, "groups", topic="other") == {"groups": [], "unread": 0}
    before_ms = time.time_ns() // 1_000_000
    facts = get(console, "group", group="g", history="")
    ages = {row["partition"]: row["lag_ms"] for row in facts["offsets"]}
    assert 0 <= ages[0] + 4001 - before_ms < 1000 * WITHIN_S and facts["lag_ms"] == ages[0]
    assert facts["history"]["lags"]["all"][-1] == before
    assert "no group 'missing'" in get(console, "group", group="missing")["error"]
    prepared = act(console, "reset-offsets", None, group="g", to="latest")
    assert "→ 10" in prepared["text"] and prepared["name"] == "g"
    assert lag_of(console, "g") == before
    assert act(console, "reset-offsets", "g", group="g", to="latest")["done"].endswith(
        "offsets of group g are committed"
    )
    assert lag_of(console, "g") == 0
    for to in ("", "-1", "soon"):
        assert "error" in act(console, "reset-offsets", "g", group="g", to=to)
    assert "no committed offsets" in act(console, "reset-offsets", None, group="missing", to="latest")["error"]


def run_command(command: str) -> str:
    """Standard output and errors of a shell's command, with this Python's kreplog."""
    assert "kreplog " in command
    words = command.replace("kreplog ", f"{shlex.quote(sys.executable)} -m kreplog ")
    done = subprocess.run(["bash", "-euc", words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_acts_do_what_their_commands_do(console: Console) -> None:
    parameters = {"topic": "acted", "partitions": "2", "replication_factor": "3"}
    command = act(console, "create-topic", None, **parameters)["command"]
    assert act(console, "create-topic", "acted", **parameters) == {"done": "acted is created"}
    assert "exists" in act(console, "create-topic", "acted", **parameters)["error"]
    run_command(command.replace("acted", "commanded"))
    assert "not confirmed" in act(console, "create-topic", "other", **{**parameters, "topic": "x"})["error"]

    setting = {"topic": "acted", "config": "retention.ms", "value": "7000"}
    prepared = act(console, "alter-config", None, **setting)
    assert prepared["text"] == "Sets retention.ms of topic acted to 7000."
    assert act(console, "alter-config", "acted", **setting)["done"] == "acted: retention.ms is 7000"
    run_command(prepared["command"])
    assert act(console, "alter-config", "acted", topic="acted", config="retention.ms")["done"].endswith("its default")
    assert "error" in act(console, "alter-config", None, topic="acted", config="no.such")

    value = 'it\'s "$HOME" `id` \\n %s {}'
    record = {"topic": "acted", "partition": "1", "key": "a'b", "value": value}
    assert act(console, "produce", "acted", **record) == {"done": "produced to acted-1 at offset 0"}
    run_command(act(console, "produce", None, **record)["command"])
    page = get(console, "records", topic="acted", partition=1)
    found = [[base64.b64decode(each[name]["base64"]) for name in ("key", "value")] for each in page["records"]]
    assert found == [[b"a'b", value.encode()]] * 2
    for wrong in ({"value": "a\nb"}, {"key": "a\tb"}, {"partition": "9"}, {"topic": "missing"}):
        assert "error" in act(console, "produce", "acted", **{**record, **wrong})
    assert act(console, "elect-preferred", None, topic="acted")["text"] == "Changes nothing: all leaders are preferred."
    assert "leaders elected" in act(console, "elect-preferred", "acted", topic="acted")["done"]
    assert "no act 'other'" in act(console, "other", None)["error"]


def test_reassignment_and_deletion(cluster: LocalCluster, console: Console) -> None:
    parameters = {"topic": "moved", "partitions": "2", "replication_factor": "1"}
    for name in ("moved", "moved-by-command"):
        assert act(console, "create-topic", name, **{**parameters, "topic": name}) == {"done": f"{name} is created"}
    act(console, "produce", "moved", topic="moved", partition="0", value="x" * 5000)
    with admin_client(cluster.directory, None) as admin:

        def replicas() -> list[list[int]]:
            (found,) = admin.metadata(["moved"]).topics
            partitions = {each.partition_index: list(each.replica_nodes) for each in found.partitions}
            return [partitions[number] for number in sorted(partitions)]

        before = replicas()
        new = [[broker, (broker + 1) % 3] for (broker,) in before]
        words = " ".join(f"{number}={','.join(map(str, target))}" for number, target in enumerate(new))
        prepared = act(console, "reassign-partitions", None, topic="moved", replicas=words)
        (size,) = re.findall(r": ([\d,]+) bytes to copy\.", prepared["text"])
        assert f"moved-0 {before[0]} → {new[0]}" in prepared["text"] and int(size.replace(",", "")) > 5000
        assert "not confirmed" in act(console, "reassign-partitions", "other", topic="moved", replicas=words)["error"]
        assert replicas() == before
        assert "2 partitions" in act(console, "reassign-partitions", "moved", topic="moved", replicas=words)["done"]
        clusters.eventually(lambda: replicas() == new, "the partitions are reassigned")
        back = " ".join(f"{number}={target[0]}" for number, target in enumerate(before))
        run_command(act(console, "reassign-partitions", None, topic="moved", replicas=back)["command"])
        clusters.eventually(lambda: replicas() == before, "the command does the same")
        for wrong in ("", "0", "x=1", "0=1 0=2", "0=9", "7=1"):
            assert "error" in act(console, "reassign-partitions", None, topic="moved", replicas=wrong)

        prepared = act(console, "delete-topic", None, topic="moved")
        assert re.search(r"2 partitions, [5-9],\d{3} bytes at their leaders", prepared["text"]), prepared
        assert "not confirmed" in act(console, "delete-topic", "move", topic="moved")["error"]
        assert replicas() == before
        assert act(console, "delete-topic", "moved", topic="moved") == {"done": "moved is deleted"}
        assert "no such topic" in act(console, "delete-topic", None, topic="moved")["error"]
        run_command(prepared["command"].replace("moved", "moved-by-command"))


def test_no_command_is_shown_for_a_name_that_is_an_option(console: Console) -> None:
    assert act(console, "create-topic", None, topic="-h")["command"] is None


# The command


@contextmanager
def command(cluster: LocalCluster, port: int) -> Iterator[tuple[subprocess.Popen[str], Console]]:
    """`kreplog console` at a port, 0 for any free one, and what it has announced."""
    words = [sys.executable, "-m", "kreplog", "console", "--port", str(port), "--cluster", str(cluster.directory)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(rf"open http://127\.0\.0\.1:(\d+){LOGIN}\?token=(\S+)\n", line)
            assert found is not None, line
            yield process, Console(int(found[1]), [found[2]])
        finally:
            process.kill()


def test_the_command(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with command(cluster, 0) as (process, console):
        console.log_in()
        assert console.request("/").status == 200
        assert process.stdout is not None
        assert process.stdout.readline().startswith("for another browser: http://127.0.0.1:")
        with pytest.raises(SystemExit):
            main(["console", "--port", str(console.port), "--cluster", str(cluster.directory)])
        assert f"port {console.port} is in use" in capsys.readouterr().err
        process.kill()
        assert process.wait(clusters.WITHIN_S) == -signal.SIGKILL
    with command(cluster, console.port) as (process, again):  # the one before has left nothing in its way
        assert again.tokens != console.tokens
        assert console.request("/").status == 401
        again.log_in()
        assert again.request("/").status == 200
        process.terminate()
        assert process.wait(clusters.WITHIN_S) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--bootstrap", "127.0.0.1:1"), "no broker responds at 127.0.0.1:1"),
        (("/nowhere/at/all",), "does not exist"),
        ((".", "--bootstrap", "127.0.0.1:1"), "DIRECTORY, --bootstrap and --seed exclude each other"),
        (("--seed", "3", "--bootstrap", "127.0.0.1:1"), "exclude each other: give one of them"),
        ((), "no cluster given"),
        ((".", "--bearer-token-file", "short"), "the token is 32 or more"),
    ],
)
def test_wrong_usage(
    words: tuple[str, ...],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KREPLOG_CLUSTER", raising=False)
    (tmp_path / "short").write_text("secret")
    with pytest.raises(SystemExit) as left:
        main(["console", "--port", "0", *words])
    assert left.value.code and text in capsys.readouterr().err


def test_the_directory_of_a_cluster_is_no_directory_of_logs(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["console", str(cluster.directory)])
    assert f"kreplog console --cluster {cluster.directory}" in capsys.readouterr().err


def test_a_cluster_that_is_gone(tmp_path: Path) -> None:
    def connect() -> Any:
        raise UnreachableError("no broker responds")

    async def run() -> None:
        source = ClusterSource(connect, [])
        for call in (source.snapshot(), source.read("groups", {})):
            with pytest.raises(UnreachableError):
                await call
        with pytest.raises(UsageError):
            await source.read("other", {})
        await source.close()

    asyncio.run(run())
