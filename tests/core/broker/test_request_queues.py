"""What one of a broker's cores sends another broker goes in one request after the other."""

from __future__ import annotations

from collections import deque

import pytest

from kreplog.core.broker.request_queues import RequestQueues, add_partitions_queues
from kreplog.core.effects import SendAddPartitions
from kreplog.core.transaction_messages import AddPartitionsToTxnRequest
from kreplog.types import TopicPartition


def adding(tag: int, name: str, epoch: int = 0) -> SendAddPartitions:
    request = AddPartitionsToTxnRequest(name, 7, epoch, (TopicPartition("topic", tag),), from_leader=True)
    return SendAddPartitions(tag, 1, request)


def test_what_an_earlier_request_had_no_place_for_goes_with_what_has_come_since() -> None:
    queues = add_partitions_queues()
    first, newer, other, joined = adding(1, "a"), adding(2, "a", epoch=1), adding(3, "b"), adding(4, "b")
    for effect in (first, newer):
        queues.put(1, effect)
    request = queues.next_request(1)
    assert request is not None
    assert request.effects == (first,)
    for effect in (other, joined):
        queues.put(1, effect)
    assert queues.next_request(1) is None, "one is in flight"
    queues.replied(1)
    request = queues.next_request(1)
    assert request is not None
    assert request.effects == (newer, other, joined)
    queues.replied(1)
    assert queues.next_request(1) is None, "nothing waits"


def test_one_request_is_in_flight_to_each_broker() -> None:
    queues: RequestQueues[int, int] = RequestQueues(deque.popleft)
    for broker, effect in ((1, 1), (1, 2), (2, 3)):
        queues.put(broker, effect)
    assert (queues.next_request(1), queues.next_request(1), queues.next_request(2)) == (1, None, 3)
    queues.replied(1)
    assert (queues.next_request(1), queues.next_request(2)) == (2, None)


def test_no_response_comes_without_a_request() -> None:
    queues: RequestQueues[int, int] = RequestQueues(deque.popleft)
    queues.put(1, 5)
    with pytest.raises(KeyError):
        queues.replied(1)
