"""Moments of a running cluster as a recording, with what its brokers logged meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kreplog.replay import cluster_trace
from kreplog.replay.cluster_trace import ClusterMoment, ClusterTrace, TracedPartition, TracedReplica
from kreplog.replay.recording import RecordedEvent, Recording

AT_MS = 1_772_366_587_000


def moment(ms: int, live: Mapping[int, bool], leader: int, end: int, *, controller: int = 1) -> ClusterMoment:
    """Of partition t-0, led in epoch 4 by broker 1 and else in epoch 5."""
    epoch, isr = (4, (1, 2)) if leader == 1 else (5, (2,))
    replicas = {
        (broker, "t-0"): TracedReplica("leader" if broker == leader else "follower", epoch, 0, end, end)
        for broker, responds in live.items()
        if responds
    }
    return ClusterMoment(AT_MS + ms, live, controller, {"t-0": TracedPartition(leader, epoch, isr)}, replicas)


def traced() -> Recording:
    trace = ClusterTrace(["t-0"])
    trace.add(moment(0, {1: True, 2: True}, 1, 3))
    trace.add(moment(200, {1: True, 2: True}, 1, 3))
    trace.add(moment(400, {1: False, 2: True}, 1, 3))
    trace.add(moment(600, {1: False, 2: True}, 2, 4, controller=2))
    return trace.recording()


def test_each_moment_has_what_is_different_from_the_one_before() -> None:
    found = traced()
    assert (found.brokers, found.began) == ([1, 2], "2026-03-01T12:03:07.000+00:00")
    changes: dict[int, list[dict[str, Any]]] = {}
    for event in found.events:
        changes.setdefault(event.at, []).extend(event.changes)
    assert changes.keys() == {0, 400_000, 600_000}
    assert len(changes[0]) == 6  # two brokers, the controller, the partition, two replicas
    assert [event.idle for event in found.events if event.at == 0] == [False] * 6  # logs are shown from the start
    assert changes[400_000] == [{"broker": 1, "status": "down"}]
    state = {"partition": "t-0", "leader": 2, "leader_epoch": 5, "isr": [2], "elr": []}
    replica = {"role": "leader", "leader_epoch": 5, "start": 0, "end": 4, "high_watermark": 4}
    assert changes[600_000] == [{"controller": 2}, state, {"broker": 2, "partition": "t-0", **replica}]


def test_what_brokers_logged_is_merged_by_its_time() -> None:
    found = traced()
    events = [
        RecordedEvent(0, "admin", "b1", "before the trace"),
        RecordedEvent(500_000, "message", "b2", "t-0 leader 2", ("t-0",), 2, "LeaderAndIsr", "b2", "b2", 501_000),
        RecordedEvent(700_000, "broker", "b2", "of another topic", ("other-0",), 2),
    ]
    events[2].changes = [{"partition": "other-0", "leader": 2, "leader_epoch": 1, "isr": [2], "elr": []}]
    logs = Recording("", "", "", [1, 2], ["t-0"], {}, events, ["a note"], "2026-03-01T12:03:06.950+00:00")
    cluster_trace.merge(found, logs)
    assert [event.at for event in found.events] == sorted(event.at for event in found.events)
    (message,) = (event for event in found.events if event.kind == "message")
    assert (message.at, message.until) == (450_000, 451_000)
    (other,) = (event for event in found.events if event.text == "of another topic")
    assert other.idle and other.changes == [] and found.notes == ["a note"]
    assert "before the trace" not in [event.text for event in found.events]


def test_a_trace_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_trace, "MAX_CHANGES", 10)
    trace = ClusterTrace(["t-0"])
    for number in range(100):
        if trace.full:
            break
        trace.add(moment(200 * number, {1: True, 2: True}, 1, number))
    found = trace.recording()
    assert sum(len(event.changes) for event in found.events) == 10
    assert found.notes == ["The trace ended at 10 changes."]
