"""cluster add-brokers: a plan that changes nothing, then the moves, which may be left and gone on with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client import admin_client
from kreplog.client.reassignment import OngoingReassignment
from kreplog.cluster.expansion import common_settings, extend
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.rebalance_plan import _consistent_snapshot
from kreplog.errors import UsageError
from kreplog.log import Log
from kreplog.server.settings_file import parse
from kreplog.types import TopicPartition
from tests.commands.conftest import Kreplog
from tests.integration.clusters import end, eventually, kill, pid_of


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Path]:
    """The directory of two brokers that serve."""
    root = tmp_path / "c"
    try:
        LocalCluster.create(root, [0, 1], 0, ['"log.segment.bytes" = 1048576']).start()
        yield root
    finally:
        end(LocalCluster(root))


def add_brokers(run: Kreplog, *words: Any) -> dict[str, Any]:
    answer = run("cluster", "add-brokers", *words, "--json")
    assert answer.code == 0
    found: dict[str, Any] = json.loads(answer.out)
    return found


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if "coordination" not in str(path)}


def test_brokers_are_added_and_get_their_share(pair: Path, kreplog: Kreplog) -> None:
    where = ("--cluster", pair)
    kreplog("topic", "create", "grown", "-p", 6, "-r", 2, *where)
    kreplog("produce", "grown", *where, stdin=b"".join(b"%d\n" % number for number in range(1000)))
    before = files(pair)
    plan = add_brokers(kreplog, "2", pair)
    assert (plan["executed"], len(plan["moves"])) == (False, 4)
    assert {move["to"] for move in plan["moves"]} == {2}
    assert [broker["replicas"] for broker in plan["brokers"]] == [[6, 4], [6, 4], [0, 4]]
    assert [broker["preferred_leaders"] for broker in plan["brokers"]] == [[3, 2], [3, 2], [0, 2]]
    sizes = {
        move["partition"]: size_of(pair / f"broker-{move['from']}" / "data" / f"grown-{move['partition']}")
        for move in plan["moves"]
    }
    assert [move["bytes"] for move in plan["moves"]] == [sizes[move["partition"]] for move in plan["moves"]]
    assert plan["bytes"] == sum(sizes.values()) > 0
    text = kreplog("cluster", "add-brokers", "2", pair).out.decode().splitlines()
    move = plan["moves"][0]
    assert text[0] == f"grown-{move['partition']}  broker {move['from']} -> 2  {move['bytes']:,} bytes"
    assert text[-1].startswith("nothing changed: use --execute")
    assert files(pair) == before and LocalCluster(pair).brokers == (0, 1)

    done = add_brokers(kreplog, "2", pair, "--execute")
    assert done["executed"] and done["bytes_copied"] == plan["bytes"] and done["partitions"] == plan["partitions"]
    assert len(done["done"]) == len(plan["partitions"]) and not done["moving"] + done["failed"]
    described = json.loads(kreplog("topic", "describe", "grown", "--json", *where).out)["partitions"]
    placed = [
        {"topic": "grown", "partition": partition["partition"], "replicas": partition["replicas"]}
        for partition in described
    ]
    assert [partition for partition in plan["partitions"] if partition not in placed] == []
    again = add_brokers(kreplog, "2", pair, "--execute")
    assert (again["moves"], again["partitions"], again["done"]) == ([], [], [])
    records = kreplog("consume", "grown", "--from-beginning", "-n", 1000, *where).out.split()
    assert sorted(map(int, records)) == list(range(1000))
    kill(LocalCluster(pair), 0)
    refused = kreplog("cluster", "add-brokers", "3", pair, "--execute")
    assert (refused.code, "brokers [0] are not running" in refused.err) == (1, True)
    assert LocalCluster(pair).brokers == (0, 1, 2)


def test_an_interrupted_addition_continues(pair: Path, kreplog: Kreplog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "CONNECT_TIMEOUT_S", 0.3)
    kreplog("topic", "create", "kept", "-p", 5, "-r", 2, "--cluster", pair)
    grown = extend(LocalCluster(pair), [2], 0, [])
    grown.start([2])
    os.kill(pid_of(grown, 2), signal.SIGSTOP)
    try:
        left = add_brokers(kreplog, "2", pair, "--execute", "--no-wait")
        assert (len(left["moves"]), left["done"], left["failed"]) == (3, [], [])
        eventually(lambda: add_brokers(kreplog, "2", pair)["moving_already"] == 3, "they do not begin")
        assert [add_brokers(kreplog, "2", pair)[key] for key in ("moves", "partitions")] == [[], []]
    finally:
        os.kill(pid_of(grown, 2), signal.SIGCONT)
    again = add_brokers(kreplog, "2", pair, "--execute")
    assert again["failed"] == []
    last = add_brokers(kreplog, "2", pair)
    assert (last["moves"], last["partitions"], last["moving_already"]) == ([], [], 0)


def size_of(folder: Path) -> int:
    with Log.open(folder, read_only=True) as log:
        return log.size


def test_a_new_broker_in_another_rack_gets_a_replica_of_each_partition(tmp_path: Path, kreplog: Kreplog) -> None:
    root = tmp_path / "c"
    try:
        LocalCluster.create(root, [0, 1], 0, [], {0: "a", 1: "a"}).start()
        kreplog("topic", "create", "spread", "-p", 4, "-r", 2, "--cluster", root)
        refused = kreplog("cluster", "add-brokers", "2", root, "--racks", "3=b")
        assert (refused.code, "brokers [3] are not among [2]" in refused.err) == (2, True)
        same, other = (add_brokers(kreplog, "2", root, "--racks", f"2={rack}") for rack in "ab")
        assert len(same["moves"]) < len(other["moves"]) == 4
        add_brokers(kreplog, "2", root, "--racks", "2=b", "--execute")
        described = json.loads(kreplog("topic", "describe", "spread", "--json", "--cluster", root).out)["partitions"]
        assert all(2 in partition["replicas"] for partition in described)
        assert [LocalCluster(root).settings(broker).rack for broker in (0, 1, 2)] == ["a", "a", "b"]
    finally:
        end(LocalCluster(root))


def test_new_brokers_get_the_settings_that_all_share(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [0, 1], 0, ['"min.insync.replicas" = 2', '"broker.rack" = "a"'])
    other = made.home(1) / "broker.toml"
    other.write_text(other.read_text() + '"log.roll.ms" = 5000\n')
    lines = common_settings(made, ['"num.replica.fetchers" = 3'])
    grown = extend(made, [7], 20001, lines)
    assert grown.brokers == (0, 1, 7)
    found = parse((grown.home(7) / "broker.toml").read_text())
    assert found == {
        "broker.id": 7,
        "listeners": ["127.0.0.1:20001", *found["listeners"][1:]],
        "log.dirs": [str(grown.home(7) / "data")],
        "coordination": f"embedded:{tmp_path}/c/coordination",
        "inter.broker.key.file": f"{tmp_path}/c/cluster.key",
        "min.insync.replicas": 2,
        "offsets.topic.replication.factor": 2,
        "transaction.state.log.replication.factor": 2,
    }
    ports = [int(address.rpartition(":")[2]) for address in grown.bootstrap().split(",")]
    assert ports[2] == 20001
    assert len(set(ports)) == 3


def test_refused_additions(tmp_path: Path, kreplog: Kreplog) -> None:
    root = tmp_path / "c"
    made = json.loads(kreplog("cluster", "create", "--brokers", "0", "--port", "0", "--json", root).out)
    assert made == {"directory": str(root), "brokers": [0], "bootstrap": LocalCluster(root).bootstrap()}
    for words, wanted in (
        (["1,1"], "brokers [1, 1]: give each id once"),
        (["x"], "brokers 'x': give comma-separated ids"),
        (["1", "--set", '"no.such" = 1'], "no.such"),
        (["1", "--set", '"broker.id" = 3'], "broker.id differs from broker to broker"),
        (["1"], "no broker of"),
    ):
        answer = kreplog("cluster", "add-brokers", *words[:1], root, *words[1:])
        assert answer.code != 0 and wanted in answer.err
        assert answer.err.count("\n") == 1
    with pytest.raises(UsageError, match="contains no cluster"):
        LocalCluster(tmp_path)
    assert kreplog("cluster", "add-brokers", "1", tmp_path).code == 2
    assert not (root / "broker-1").exists()


def test_a_move_that_ends_between_two_requests_does_not_add_replicas() -> None:
    """It ends between Metadata, which still lists the leaving replica, and the list of ongoing reassignments."""
    topic_partition = TopicPartition("t", 0)
    moves = [{topic_partition: OngoingReassignment((0, 1, 2), (2,), (0,))}, {}, {}, {}]
    seen = [[0, 1, 2], [1, 2]]

    class ScriptedClient:
        def metadata(self) -> Any:
            partition = SimpleNamespace(partition_index=0, replica_nodes=seen.pop(0))
            return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[partition])])

        def request(self, *_: Any, **__: Any) -> Any:
            found = moves.pop(0)
            partitions = [
                SimpleNamespace(
                    partition_index=0,
                    replicas=state.replicas,
                    adding_replicas=state.adding,
                    removing_replicas=state.removing,
                )
                for state in found.values()
            ]
            topics = [SimpleNamespace(name="t", partitions=partitions)] if found else []
            return SimpleNamespace(error_code=0, error_message=None, topics=topics)

    partitions, moving = _consistent_snapshot(ScriptedClient())  # type: ignore[arg-type]
    assert (partitions[topic_partition].replica_nodes, moving) == ([1, 2], {})
