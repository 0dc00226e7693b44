"""What one WriteTxnMarkers request holds of the markers that wait for a leader."""

from __future__ import annotations

from collections import deque

import pytest

from kreplog.core.broker import write_markers
from kreplog.core.broker.request_queues import marker_queues
from kreplog.core.broker.write_markers import coalesce
from kreplog.core.effects import SendMarkers
from kreplog.core.events import MarkersReplied
from kreplog.core.messages import (
    ProducedPartition,
    ProducePartition,
    ProduceResponse,
    TransactionMarker,
    WriteMarkersRequest,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

P = [TopicPartition("topic", number) for number in range(4)]
NONE, MOVED = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER


def sending(tag: int, producer: int, *partitions: TopicPartition, coordinator_epoch: int = 0) -> SendMarkers:
    marker = TransactionMarker(producer, 0, True, coordinator_epoch)
    produced = tuple(ProducePartition(name, marker) for name in partitions)
    return SendMarkers(tag, 1, WriteMarkersRequest(-1, 500, produced))


def test_each_transaction_has_its_own_outcome() -> None:
    """They may be in the same partitions."""
    coalesced = coalesce(deque([sending(1, 7, P[0], P[1]), sending(2, 8, P[0]), sending(3, 9, P[2])]))
    held = [(each.records.producer_id, each.partition) for each in coalesced.request.partitions]
    assert held == [(7, P[0]), (7, P[1]), (8, P[0]), (9, P[2])]
    assert (coalesced.request.acks, coalesced.request.timeout_ms) == (-1, 500)
    errors = (NONE, MOVED, MOVED, NONE)
    pairs = zip((P[0], P[1], P[0], P[2]), errors, strict=True)
    response = ProduceResponse(tuple(ProducedPartition(name, error) for name, error in pairs))
    assert list(coalesced.replied(response)) == [
        MarkersReplied(1, ((P[0], NONE), (P[1], MOVED))),
        MarkersReplied(2, ((P[0], MOVED),)),
        MarkersReplied(3, ((P[2], NONE),)),
    ]


def test_a_producer_that_stands_in_a_request_waits_for_the_next() -> None:
    """A coordinator that was replaced and came back sends markers that it has sent before."""
    first, again, other = sending(1, 7, P[0]), sending(2, 7, P[0], coordinator_epoch=1), sending(3, 8, P[0])
    waiting = deque([first, again, other])
    assert coalesce(waiting).effects == (first, other)
    assert list(waiting) == [again]


def test_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is larger goes alone, and those that have no place keep their order."""
    monkeypatch.setattr(write_markers, "MAX_PARTITIONS", 3)
    large, small = sending(1, 1, *P), sending(2, 2, P[0])
    pair, next_pair, last = sending(3, 3, P[0], P[1]), sending(4, 4, P[2], P[3]), sending(5, 5, P[3])
    waiting = deque([large, small, pair, next_pair, last])
    assert coalesce(waiting).effects == (large,)
    assert coalesce(waiting).effects == (small, pair)
    assert coalesce(waiting).effects == (next_pair, last)
    assert not waiting


def test_a_leader_that_does_not_respond_holds_up_none_for_more_than_two_requests() -> None:
    """One by one, each would wait for the time of all before it."""
    queues = marker_queues()
    lost: list[MarkersReplied] = []
    for tag in range(50):
        queues.put(1, sending(tag, tag, P[0]))
        if tag == 0:
            first = queues.next_request(1)
    assert first is not None
    lost += first.replied(None)
    queues.replied(1)
    second = queues.next_request(1)
    assert second is not None
    lost += second.replied(None)
    assert lost == [MarkersReplied(tag, ()) for tag in range(50)]
