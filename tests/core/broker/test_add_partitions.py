"""What one request to a coordinator holds of the partitions that a leader sends (KIP-890)."""

from __future__ import annotations

from collections import deque

from kreplog.core.broker.add_partitions import GatheredResponses, coalesce
from kreplog.core.effects import SendAddPartitions
from kreplog.core.events import AddPartitionsReplied
from kreplog.core.transaction_messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

P = [TopicPartition("topic", number) for number in range(4)]
NONE, FENCED = ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH


def sending(
    tag: int, partition: TopicPartition, name: str = "a", epoch: int = 0, verify: bool = False
) -> SendAddPartitions:
    request = AddPartitionsToTxnRequest(name, 7, epoch, (partition,), from_leader=True, verify_only=verify)
    return SendAddPartitions(tag, 1, request)


def test_a_transactional_id_stands_once_with_all_its_partitions() -> None:
    waiting = deque([sending(1, P[0]), sending(2, P[1], "b"), sending(3, P[2]), sending(4, P[0])])
    coalesced = coalesce(waiting)
    held = [(each.transactional_id, each.partitions) for each in coalesced.transactions]
    assert held == [("a", (P[0], P[2])), ("b", (P[1],))]
    assert not waiting
    responses = {
        "a": AddPartitionsToTxnResponse(((P[0], NONE), (P[2], FENCED)), 5),
        "b": AddPartitionsToTxnResponse(((P[1], NONE),), 6),
    }
    assert list(coalesced.replied(responses)) == [
        AddPartitionsReplied(1, NONE, 5),
        AddPartitionsReplied(2, NONE, 6),
        AddPartitionsReplied(3, FENCED, 5),
        AddPartitionsReplied(4, NONE, 5),
    ]


def test_another_producer_and_another_purpose_wait_for_the_next_request() -> None:
    """A partition that is only verified must not be added, nor one of a fenced producer to its successor's."""
    first, newer, verified, last = (
        sending(1, P[0]),
        sending(2, P[1], epoch=1),
        sending(3, P[2], verify=True),
        sending(4, P[3]),
    )
    waiting = deque([first, newer, verified, last])
    assert coalesce(waiting).effects == (first, last)
    assert list(waiting) == [newer, verified]
    assert coalesce(waiting).effects == (newer,)


def test_what_the_response_lacks_is_lost() -> None:
    coalesced = coalesce(deque([sending(1, P[0]), sending(2, P[1], "b")]))
    assert list(coalesced.replied({})) == [AddPartitionsReplied(1), AddPartitionsReplied(2)]
    others = {"a": AddPartitionsToTxnResponse(((P[3], NONE),), 5)}
    assert list(coalesced.replied(others)) == [AddPartitionsReplied(1, None, 5), AddPartitionsReplied(2)]


def test_responses_are_complete_with_the_last() -> None:
    """Also where a request names a transactional id twice, which no kreplog broker does."""
    response = AddPartitionsToTxnResponse(((P[0], NONE),), 5)
    gathered = GatheredResponses(3)
    assert gathered.add("a", response) == gathered.add("b", response) == {}
    assert gathered.add("a", response) == {"a": response, "b": response}
