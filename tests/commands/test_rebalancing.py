"""cluster rebalance and drain, racks of a cluster on this host, and topic remove-partitions, on real brokers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from typer.testing import CliRunner

from kreplog.cli import app
from kreplog.cluster.expansion import extend
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.store_requests import request_removal
from kreplog.errors import UsageError
from tests.commands.conftest import Kreplog
from tests.integration.clusters import end, eventually, kill


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of four brokers that serve, in two racks. Whoever stops one starts it again."""
    root = tmp_path_factory.mktemp("four") / "c"
    words = ["cluster", "create", "--brokers", "0,1,2,3", "--port", "0", "--racks", "0=a,1=a,2=b,3=b"]
    made = CliRunner().invoke(app, [*words, "--set", '"broker.session.timeout.ms" = 2000', str(root)])
    assert made.exit_code == 0, made.output
    try:
        LocalCluster(root).start()
        yield root
    finally:
        end(LocalCluster(root))


def run_json(run: Kreplog, *words: Any) -> dict[str, Any]:
    outcome = run(*words, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def replicas_of(run: Kreplog, topic: str, root: Path) -> list[list[int]]:
    described = run_json(run, "topic", "describe", topic, "--cluster", root)["partitions"]
    return [partition["replicas"] for partition in described]


def only_one_and_two_run(run: Kreplog, root: Path) -> bool:
    """Whether brokers 1 and 2 are the only ones in the metadata: none is left to take their replicas."""
    refused = run("cluster", "drain", "1,2", root)
    return refused.code == 2 and "there is none to move replicas to" in refused.err


def test_brokers_are_drained_and_balance_is_restored(four: Path, kreplog: Kreplog) -> None:
    where = ("--cluster", four)
    assert kreplog("topic", "create", "kept", "-p", 8, "-r", 2, *where).code == 0
    assert all({0, 1} & set(held) and {2, 3} & set(held) for held in replicas_of(kreplog, "kept", four))
    kreplog("produce", "kept", *where, stdin=b"".join(b"%d\n" % number for number in range(400)))

    before = replicas_of(kreplog, "kept", four)
    plan = run_json(kreplog, "cluster", "drain", "3", four)
    assert {move["from"] for move in plan["moves"]} == {3} and not plan["executed"]
    assert {move["to"] for move in plan["moves"]} == {2}, "each partition stays in both racks"
    assert replicas_of(kreplog, "kept", four) == before
    drained = run_json(kreplog, "cluster", "drain", "3", four, "--execute")
    assert drained["executed"] and not drained["failed"] + drained["moving"]
    assert all(3 not in held for held in replicas_of(kreplog, "kept", four))
    assert "0 replicas to move" in kreplog("cluster", "drain", "3", four).out.decode()

    LocalCluster(four).stop([3])
    kill(LocalCluster(four), 0)
    eventually(lambda: only_one_and_two_run(kreplog, four), "the killed broker remains in the metadata")
    dead = run_json(kreplog, "cluster", "drain", "0", four, "--execute")
    assert {move["to"] for move in dead["moves"]} == {1} and not dead["failed"]
    for words in (("9",), ("0,9", "--execute")):
        refused = kreplog("cluster", "drain", words[0], four, *words[1:])
        assert (refused.code, "there are no brokers [9]" in refused.err) == (2, True)
    assert "0 replicas to move" in kreplog("cluster", "drain", "0", four).out.decode(), "it is drained already"
    refused = kreplog("cluster", "drain", "1", four)
    assert (refused.code, "only 1 brokers stay" in refused.err) == (2, True)

    LocalCluster(four).start([0, 3])
    balanced = run_json(kreplog, "cluster", "rebalance", four, "--execute", "--throttle", 1_000_000_000)
    assert not balanced["failed"] + balanced["moving"]
    held = replicas_of(kreplog, "kept", four)
    assert Counter(broker for replicas in held for broker in replicas) == {0: 4, 1: 4, 2: 4, 3: 4}
    assert all({0, 1} & set(replicas) and {2, 3} & set(replicas) for replicas in held)
    assert run_json(kreplog, "cluster", "rebalance", four)["moves"] == []
    throttled = json.loads(kreplog("topic", "describe", "kept", "--json", *where).out)["configs"]
    assert not [name for name in throttled if "throttled" in name]
    records = kreplog("consume", "kept", "--from-beginning", "-n", 400, *where).out.split()
    assert sorted(map(int, records)) == list(range(400))
    kreplog("topic", "delete", "kept", *where)


def test_brokers_elsewhere_are_balanced_by_their_addresses(four: Path, kreplog: Kreplog) -> None:
    """As of several hosts, which share no directory of a cluster."""
    where = ("--bootstrap", LocalCluster(four).bootstrap())
    assert kreplog("topic", "create", "far", "-p", 4, "-r", 2, *where).code == 0
    drained = run_json(kreplog, "cluster", "drain", "3", *where, "--execute")
    assert drained["executed"] and not drained["failed"] + drained["moving"]
    assert all(3 not in held for held in replicas_of(kreplog, "far", four))
    refused = kreplog("cluster", "drain", "9", *where)
    assert (refused.code, "there are no brokers [9]" in refused.err) == (2, True)
    balanced = run_json(kreplog, "cluster", "rebalance", *where, "--execute")
    assert not balanced["failed"] + balanced["moving"]
    held = replicas_of(kreplog, "far", four)
    assert Counter(broker for replicas in held for broker in replicas) == {0: 2, 1: 2, 2: 2, 3: 2}
    for words in (("rebalance",), ("drain", "3")):
        refused = kreplog("cluster", *words)
        assert (refused.code, "no cluster given" in refused.err) == (2, True)
    kreplog("topic", "delete", "far", *where)


def test_a_stopped_broker_with_replicas_is_named(four: Path, kreplog: Kreplog) -> None:
    kreplog("topic", "create", "single", "-p", 4, "-r", 1, "--cluster", four)
    holder = replicas_of(kreplog, "single", four)[0][0]
    LocalCluster(four).stop([holder])
    named = f"brokers [{holder}] have replicas and are not running"
    eventually(lambda: named in kreplog("cluster", "rebalance", four).err, "it remains in the metadata")
    text = kreplog("cluster", "drain", holder, four).out.decode()
    assert f"single-0  broker {holder} -> " in text and "size unknown: it has no leader" in text
    refused = kreplog("cluster", "drain", holder, four, "--execute")
    assert refused.code == 1 and "without a leader to copy from" in refused.err
    assert replicas_of(kreplog, "single", four)[0] == [holder]
    LocalCluster(four).start([holder])
    kreplog("topic", "delete", "single", "--cluster", four)


def test_the_last_partitions_are_removed(four: Path, kreplog: Kreplog) -> None:
    where = ("--cluster", four)
    kreplog("topic", "create", "cut", "-p", 5, "-r", 2, *where)
    kreplog("produce", "cut", *where, "--partition", 3, stdin=b"a\nb\n")
    kreplog("produce", "cut", *where, "--partition", 0, stdin=b"c\n")
    text = kreplog("topic", "remove-partitions", "cut", "--keep", 3, *where).out.decode()
    assert text.splitlines()[:2] == ["cut-3  2 records", "cut-4  0 records"]
    assert len(replicas_of(kreplog, "cut", four)) == 5
    removed = run_json(kreplog, "topic", "remove-partitions", "cut", "--keep", 3, *where, "--execute")
    assert (removed["executed"], removed["pending"]) == (True, [])
    assert len(replicas_of(kreplog, "cut", four)) == 3
    folders = {path.name for path in four.glob("broker-*/data/cut-*")}
    assert folders <= {"cut-0", "cut-1", "cut-2"} | {name for name in folders if name.endswith("-delete")}
    assert kreplog("consume", "cut", "--from-beginning", "-n", 1, *where).out == b"c\n"
    refused = kreplog("topic", "remove-partitions", "cut", "--keep", 3, *where, "--execute")
    assert (refused.code, "there is none beyond 3" in refused.err) == (2, True)

    # A partition made again under the number of a removed one begins empty.
    assert kreplog("topic", "alter", "cut", "--partitions", 4, *where).code == 0
    kreplog("produce", "cut", *where, "--partition", 3, stdin=b"d\n")
    assert kreplog("consume", "cut", "--from-beginning", "--partition", 3, "-n", 1, *where).out == b"d\n"

    # Replicas of a killed broker are deleted when it is back.
    holder = replicas_of(kreplog, "cut", four)[3][0]
    kill(LocalCluster(four), holder)
    numbers, pending = LocalCluster(four).remove_partitions("cut", 3, timeout_s=0.5)
    assert (numbers, pending) == ([3], [3])
    assert LocalCluster(four).remove_partitions("cut", 3, timeout_s=0.0) == ([3], [3]), "requested once"
    LocalCluster(four).start([holder])
    eventually(lambda: not list(four.glob("broker-*/data/cut-3")), "the replica is not deleted")


def test_internal_topics_keep_their_partitions() -> None:
    with pytest.raises(UsageError, match="__consumer_offsets is internal"):
        request_removal(None, "__consumer_offsets", 1)  # type: ignore[arg-type]  # refused before the session is used


def test_racks_are_given_to_brokers(tmp_path: Path, kreplog: Kreplog) -> None:
    root = tmp_path / "c"
    for text, wanted in (
        ("0=a,0=b", "give each broker once"),
        ("0", "as in 0=a,1=b"),
        ("0=", "as in 0=a,1=b"),
        ("7=a", "brokers [7] are not among [0, 1]"),
    ):
        refused = kreplog("cluster", "create", "--brokers", "0,1", "--port", 0, "--racks", text, root)
        assert (refused.code, wanted in refused.err) == (2, True)
        assert not root.exists()
    both = ("--racks", "1=b", "--set", '"broker.rack" = "c"')
    assert kreplog("cluster", "create", "--brokers", "0,1", "--port", 0, *both, root).code == 2
    assert kreplog("cluster", "create", "--brokers", "0,1", "--port", 0, "--racks", '0=a,1="b', root).code == 0
    made = LocalCluster(root)
    assert [made.settings(broker).rack for broker in made.brokers] == ["a", '"b']
    grown = extend(made, [2, 3], 0, [], {2: "c"})
    assert [grown.settings(broker).rack for broker in grown.brokers] == ["a", '"b', "c", None]
