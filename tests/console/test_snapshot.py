"""Snapshots of a cluster: health in a sentence, what has changed between two; and the ring of the events."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from kreplog.client.degraded_partitions import degraded_partitions
from kreplog.console import timeline
from kreplog.console.cluster_changes import concerns, differences, where
from kreplog.console.out_of_sync import OutOfSync
from kreplog.console.snapshot import BrokerRow, ClusterSnapshot, PartitionRow, TopicSnapshot
from kreplog.console.timeline import MAX_SENT, Timeline

ROW = PartitionRow(1, 5, (1, 2), (1, 2))
BROKERS = {1: BrokerRow("a", 1, "r"), 2: BrokerRow("b", 2, None)}
BEFORE = ClusterSnapshot("c", 1, BROKERS, {"t": TopicSnapshot(False, {0: ROW})})


def test_health_names_what_is_wrong() -> None:
    assert BEFORE.health() == "Healthy: 2 brokers, 1 topic, 1 partition, every replica in sync."
    worse = replace(BEFORE, controller=-1, brokers={1: BROKERS[1]}, degraded=("1 partition is under-replicated: t-0",))
    assert worse.health() == (
        "Degraded: broker 2 is not running; there is no controller; 1 partition is under-replicated: t-0"
    )
    assert (BEFORE.overview()["problems"], len(worse.overview()["problems"])) == ([], 3)
    states = [(broker["id"], broker["state"]) for broker in worse.overview()["brokers"]]
    assert states == [(1, "live"), (2, "not running")]
    silent = replace(BEFORE, silent=frozenset({2}))
    assert silent.health() == "Degraded: broker 2 does not respond"
    assert silent.overview()["brokers"][1]["state"] == "no response"
    assert differences(BEFORE, silent) == [{"kind": "broker silent", "text": "broker 2 does not respond"}]
    assert differences(silent, BEFORE) == [{"kind": "broker responds", "text": "broker 2 responds again"}]
    directory = ClusterSnapshot(topics={"t": TopicSnapshot(False, {0: PartitionRow(-1, 5, (), ())})})
    assert directory.health() == "1 topic, 1 partition." and not directory.overview()["problems"]


def test_the_overview_counts_partitions() -> None:
    rows = {0: ROW, 1: PartitionRow(-1, 6, (1, 2), (2,)), 2: PartitionRow(1, 6, (1, 2), (1,))}
    (topic,) = replace(BEFORE, topics={"t": TopicSnapshot(True, rows)}).overview()["topics"]
    assert (topic["partitions"], topic["leaderless"], topic["under_replicated"], topic["internal"]) == (3, 1, 2, True)


def texts(before: ClusterSnapshot, after: ClusterSnapshot) -> list[str]:
    return [f"{event['text']}: {where(event)}".removesuffix(": ") for event in differences(before, after)]


def with_rows(**topics: dict[int, PartitionRow]) -> ClusterSnapshot:
    return replace(BEFORE, topics={name: TopicSnapshot(False, rows) for name, rows in topics.items()})


def test_differences() -> None:
    rows = {0: PartitionRow(2, 6, (1, 2, 3), (2, 3)), 1: ROW}
    brokers = {2: BROKERS[2], 3: BROKERS[1]}
    after = ClusterSnapshot("c", 2, brokers, {"t": TopicSnapshot(False, rows)}, controller_epoch=9)
    assert texts(BEFORE, after) == [
        "broker 1 is gone",
        "broker 3 is live",
        "controller 1 → 2, epoch 9",
        "leader 1 → 2, epoch 6: t 0",
        "ISR changes: broker 1 leaves, broker 3 joins: t 0",
        "replicas: broker 3 added: t 0",
        "partition added: t 1",
    ]
    assert differences(BEFORE, BEFORE) == []
    assert texts(BEFORE, with_rows(u={})) == ["topic deleted: t", "topic created: u"]
    grown = with_rows(t={0: ROW._replace(isr=(1,), leader_epoch=-1)})
    assert texts(grown, BEFORE) == ["the leader stays, epoch 5: t 0", "ISR grows: broker 2 joins: t 0"]
    assert texts(BEFORE, grown)[0] == "the leader stays: t 0"  # Kafka before 2.1 reports no epoch
    assert texts(BEFORE, with_rows(t={0: ROW._replace(replicas=(2, 1))})) == ["replicas: in another order: t 0"]


def test_what_happens_to_many_partitions_is_one_event() -> None:
    rows = {number: PartitionRow(1 + number % 2, number % 3, (1, 2), (1, 2)) for number in range(100)}
    failed = {number: PartitionRow(2, 1 + number % 3, (1, 2), (2,)) for number in rows}
    before, after = with_rows(t=rows, u=rows), with_rows(t=failed, u=failed)
    leader, epoch, isr = differences(before, after)
    assert leader["text"] == "leader 1 → 2, epochs 1 to 3"
    assert leader["partitions"] == {name: list(range(0, 100, 2)) for name in ("t", "u")}
    assert epoch["text"] == "the leader stays, epochs 1 to 3"
    assert (isr["text"], where(isr)) == ("ISR shrinks: broker 1 leaves", "t 0-99; u 0-99")
    assert where(leader).startswith("t 0, 2, 4, ") and "22, ...; u 0, 2," in where(leader)
    many = with_rows(**{f"t{number}": rows for number in range(6)})
    none = with_rows(**{f"t{number}": failed for number in range(6)})
    assert where(differences(many, none)[2]).endswith("; t3 0-99; and 2 more topics")
    assert concerns(isr, "t") and not concerns(isr, "other") and concerns({"kind": "broker gone"}, "other")


def test_topics_of_the_brokers_themselves_are_named_last() -> None:
    in_sync, failed = PartitionRow(1, 1, (1, 2), (1, 2)), PartitionRow(1, 1, (1, 2), (1,))
    before, after = (
        replace(BEFORE, topics={name: TopicSnapshot(name != "t", {0: row}) for name in ("__consumer_offsets", "t")})
        for row in (in_sync, failed)
    )
    (isr,) = differences(before, after)
    assert where(isr) == "t 0; __consumer_offsets 0"
    partitions = [
        SimpleNamespace(partition_index=number, leader_id=1, replica_nodes=[1, 2], isr_nodes=[1]) for number in (10, 9)
    ]
    topics = [
        SimpleNamespace(name=name, is_internal=name != "t", partitions=partitions)
        for name in ("__consumer_offsets", "t")
    ]
    assert degraded_partitions(topics) == ["4 partitions are under-replicated: t-9, t-10, __consumer_offsets-9, ..."]


def test_since_when_and_why_replicas_are_out_of_sync() -> None:
    found = OutOfSync()
    behind = {0: PartitionRow(1, 5, (1, 2), (1,)), 1: ROW, 2: ROW}
    found.update(0, with_rows(t=behind))
    (row,) = found.brokers()
    assert (row["broker"], row["partitions"], row["since_ms"]) == (2, 1, None)
    assert row["text"] == (
        "broker 2 is out of sync in 1 partition since before 1970-01-01 00:00:00Z: it runs, and is too slow, held back "
        "by a quota, or has an offline log directory"
    )
    found.update(1000, with_rows(t=dict.fromkeys(range(3), ROW)))
    assert found.brokers() == []
    found.update(5000, with_rows(t=behind))
    worse = dict.fromkeys(range(3), behind[0])
    found.update(8000, replace(with_rows(t=worse, u={}), silent=frozenset({2})))
    assert [(row["partitions"], row["since_ms"]) for row in found.brokers()] == [(3, 5000)]
    assert found.brokers("u") == []
    gone = replace(with_rows(t=worse), brokers={1: BROKERS[1]})
    for now_ms in (9000, 9500):
        found.update(now_ms, gone)
        assert found.brokers("t")[0]["text"] == (
            "broker 2 is out of sync in 3 partitions since 1970-01-01 00:00:05Z: it is not running since "
            "1970-01-01 00:00:08Z"
        )
    found.update(12_000, with_rows(t=worse))
    assert found.brokers()[0]["text"].endswith("it runs again since 1970-01-01 00:00:12Z, and has to catch up")


def test_the_time_line_is_bounded_and_numbered() -> None:
    line = Timeline(1000)
    line.add(7, ({"kind": "leader", "partitions": {f"t{number % 2}": [0]}} for number in range(1500)))
    line.add(8, [{"kind": "broker gone"}])
    assert line.end == 1501
    assert [event["number"] for event in line.since(0)] == list(range(501, 501 + MAX_SENT))  # the oldest that it has
    assert [event["number"] for event in line.since(1499)] == [1499, 1500]
    assert line.since(1501) == []
    assert [event["number"] for event in line.before(9999, "t0")][-3:] == [1496, 1498, 1500]
    assert [event["number"] for event in line.before(502)] == [501]
    assert line.since(1500)[0] == {"number": 1500, "time_ms": 8, "kind": "broker gone"}


def test_the_time_line_is_bounded_by_the_partitions_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_PARTITIONS", 100)
    line = Timeline()
    line.add(1, ({"kind": "leader", "partitions": {"t": list(range(30))}} for _ in range(10)))
    assert [event["number"] for event in line.since(0)] == [7, 8, 9]
    line.add(2, [{"kind": "leader", "partitions": {"t": list(range(1000))}}])
    assert [event["number"] for event in line.since(0)] == [10]
    line.add(3, [{"kind": "broker gone"}])
    assert [event["number"] for event in line.since(0)] == [11]
