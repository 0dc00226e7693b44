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
from kreplog.server.network.slices import max_entries
from kreplog.types import TopicPartition
from kreplog.wire import transactions
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import BETWEEN_BROKERS, ApiKey
from tests.wire.messages import joined

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


def test_a_producer_that_is_in_a_request_waits_for_the_next() -> None:
    """A coordinator that was replaced and came back sends markers that it has sent before."""
    first, again, other = sending(1, 7, P[0]), sending(2, 7, P[0], coordinator_epoch=1), sending(3, 8, P[0])
    waiting = deque([first, again, other])
    assert coalesce(waiting).effects == (first,)
    assert coalesce(waiting).effects == (again, other)


def test_a_transaction_that_is_larger_than_a_request_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_markers, "MAX_ENTRIES", 5)
    large, small, next_small, last = sending(1, 1, *P), sending(2, 2, P[0]), sending(3, 3, P[0]), sending(4, 4, P[0])
    waiting = deque([large, small, next_small, last])
    assert [coalesce(waiting).effects for _ in range(4)] == [(large,), (small,), (next_small,), (last,)]
    assert not waiting


@pytest.mark.parametrize("topics", [1, 2, 50])
def test_a_leader_in_a_cluster_of_any_size_takes_a_full_request(topics: int) -> None:
    """One that it does not take is lost, and would be sent again and again."""
    names = [TopicPartition(f"topic-{number}", 0) for number in range(topics)]
    header = RequestHeader(ApiKey.WRITE_TXN_MARKERS, 1, 1, "a broker")
    waiting = deque(sending(tag, tag, *names) for tag in range(1000))
    request = coalesce(waiting).request
    assert 1000 / (1 + 2 * topics) - 1 < len(request.partitions) / topics <= 1000 / (1 + 2 * topics)
    frame = joined(transactions.encode_write_markers(request, header))[4:]
    sent = decode_request_header(frame, BETWEEN_BROKERS)
    few = max_entries(ApiKey.WRITE_TXN_MARKERS, 0)
    assert transactions.decode_write_markers(frame, sent, few, timeout_ms=500) == request


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
