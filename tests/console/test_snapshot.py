"""Snapshots of a cluster: health in a sentence, what has changed between two; and the ring of the events."""

from __future__ import annotations

from dataclasses import replace

from kreplog.console.snapshot import BrokerRow, ClusterSnapshot, PartitionRow, TopicSnapshot, differences
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
    assert differences(BEFORE, silent) == [{"kind": "broker silent", "broker": 2}]
    assert differences(silent, BEFORE) == [{"kind": "broker responds", "broker": 2}]
    directory = ClusterSnapshot(topics={"t": TopicSnapshot(False, {0: PartitionRow(-1, 5, (), ())})})
    assert directory.health() == "1 topic, 1 partition." and not directory.overview()["problems"]


def test_the_overview_counts_partitions() -> None:
    rows = {0: ROW, 1: PartitionRow(-1, 6, (1, 2), (2,)), 2: PartitionRow(1, 6, (1, 2), (1,))}
    (topic,) = replace(BEFORE, topics={"t": TopicSnapshot(True, rows)}).overview()["topics"]
    assert replace(BEFORE, topics={"t": TopicSnapshot(True, rows)}).overview()["out_of_sync"] == {1: 1, 2: 1}
    assert (topic["partitions"], topic["leaderless"], topic["under_replicated"], topic["internal"]) == (3, 1, 2, True)


def test_differences() -> None:
    rows = {0: PartitionRow(2, 6, (1, 2, 3), (2, 3)), 1: ROW}
    brokers = {2: BROKERS[2], 3: BROKERS[1]}
    after = ClusterSnapshot("c", 2, brokers, {"t": TopicSnapshot(False, rows)}, controller_epoch=9)
    assert differences(BEFORE, after) == [
        {"kind": "broker gone", "broker": 1},
        {"kind": "broker live", "broker": 3},
        {"kind": "controller", "from": 1, "to": 2, "epoch": 9},
        {"kind": "leader", "topic": "t", "partition": 0, "from": 1, "to": 2, "epoch": 6},
        {"kind": "ISR changes", "topic": "t", "partition": 0, "from": [1, 2], "to": [2, 3]},
        {"kind": "replicas", "topic": "t", "partition": 0, "from": [1, 2], "to": [1, 2, 3]},
        {"kind": "partition added", "topic": "t", "partition": 1},
    ]
    assert differences(BEFORE, BEFORE) == []
    new = replace(BEFORE, topics={"u": TopicSnapshot(False, {})})
    assert [(event["kind"], event["topic"]) for event in differences(BEFORE, new)] == [
        ("topic deleted", "t"),
        ("topic created", "u"),
    ]
    grown = replace(BEFORE, topics={"t": TopicSnapshot(False, {0: ROW._replace(isr=(1,), leader_epoch=-1)})})
    assert [event["kind"] for event in differences(grown, BEFORE)] == ["leader", "ISR grows"]
    assert differences(BEFORE, grown)[0]["epoch"] is None


def test_the_time_line_is_bounded_and_numbered() -> None:
    line = Timeline(1000)
    line.add(7, ({"kind": "leader", "topic": f"t{number % 2}"} for number in range(1500)))
    line.add(8, [{"kind": "broker gone", "broker": 1}])
    assert line.end == 1501
    assert [event["number"] for event in line.since(0)] == list(range(501, 501 + MAX_SENT))  # the oldest that it has
    assert [event["number"] for event in line.since(1499)] == [1499, 1500]
    assert line.since(1501) == []
    assert [event["number"] for event in line.before(9999, "t0")][-3:] == [1496, 1498, 1500]
    assert [event["number"] for event in line.before(502)] == [501]
    assert line.since(1500)[0] == {"number": 1500, "time_ms": 8, "kind": "broker gone", "broker": 1}
