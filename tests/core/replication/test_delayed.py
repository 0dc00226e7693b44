"""Produces and fetches that wait: answered once, in the order of their offsets, and never after their time."""

from __future__ import annotations

from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest, ProducedPartition, ProducePartition
from kreplog.core.replication.delayed import (
    MIN_COMPLETED,
    CommitQueue,
    Deadlines,
    DelayedFetch,
    DelayedProduce,
    ParkedFetches,
)
from kreplog.core.replication.sessions import FetchContext, FetchSessions
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def produce(*partitions: TopicPartition) -> DelayedProduce:
    return DelayedProduce(
        "client", 100, [ProducedPartition(topic_partition, ErrorCode.NONE, 5) for topic_partition in partitions]
    )


def test_a_delayedto_two_partitions_is_complete_when_both_are() -> None:
    delayed = produce(P0, P1)
    queues = CommitQueue(), CommitQueue()
    queues[0].push(6, delayed, 0)
    queues[1].push(6, delayed, 1)
    assert [waiting.settle(index) for waiting, index in queues[0].committed(6)] == [False]
    assert list(queues[1].committed(5)) == []
    assert [waiting.settle(index) for waiting, index in queues[1].committed(9)] == [True]
    assert [answer.base_offset for answer in delayed.response.partitions] == [5, 5]


def test_delayed_produces_complete_by_offset_and_in_order_of_arrival() -> None:
    queue = CommitQueue()
    waiting = [produce(P0) for _ in range(4)]
    for delayed, offset in zip(waiting, (7, 6, 9, 6), strict=True):
        queue.push(offset, delayed, 0)
    assert [delayed for delayed, _ in queue.committed(7)] == [waiting[1], waiting[3], waiting[0]]
    assert queue.drain() == [(waiting[2], 0)] and len(queue) == 0


def test_an_error_or_the_end_of_its_time_settles_it_once() -> None:
    delayed = produce(P0, P1)
    queue = CommitQueue()
    queue.push(6, delayed, 0)
    queue.push(6, delayed, 1)
    assert not delayed.settle(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    delayed.expire()
    errors = [answer.error for answer in delayed.response.partitions]
    assert errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]
    assert not any(waiting.settle(index) for waiting, index in queue.committed(6))


def test_no_batch_is_held_for_a_produce_that_was_answered() -> None:
    """Though the coordinator that has to confirm its transaction has not answered yet."""
    held = produce(P0, P1)
    held.waiting |= {0, 1}
    held.unverified[0] = ProducePartition(P0, b"records")
    held.unverified[1] = ProducePartition(P1, b"records")
    assert not held.settle(1, ErrorCode.PRODUCER_FENCED)
    assert list(held.unverified) == [0]
    held.waiting.add(1)
    held.expire()
    assert not held.unverified
    assert [answer.message.split()[0] for answer in held.response.partitions] == ["not", "appended,"]


def test_deadlines_come_due_in_order() -> None:
    deadlines: Deadlines[str] = Deadlines(lambda waiting: True)
    for at, name in ((30, "c"), (10, "a"), (10, "b")):
        deadlines.push(at, name)
    assert deadlines.next_ms() == 10
    assert list(deadlines.due(10)) == ["a", "b"] and list(deadlines.due(29)) == []
    assert list(deadlines.due(30)) == ["c"] and deadlines.next_ms() is None


def test_deadlines_of_completed_requests_are_dropped_long_before_they_are_due() -> None:
    waits: set[int] = set()
    deadlines: Deadlines[int] = Deadlines(waits.__contains__)
    for number in range(50):
        waits.add(number)
        deadlines.push(1000 - number, number)
    for number in range(50, 10_000):
        deadlines.push(2**31, number, 1 + number % 3)
        assert len(deadlines) <= 50 + MIN_COMPLETED + 1
    assert [deadlines.next_ms(), *deadlines.due(1000)] == [951, *reversed(range(50))]


def fetch(sessions: FetchSessions, replica_id: int, epoch: int, *partitions: TopicPartition) -> DelayedFetch:
    requested = tuple(FetchPartition(topic_partition, "id", 0, 0) for topic_partition in partitions)
    request = FetchRequest(replica_id, 1, 500, 1, 1000, requested, session_epoch=epoch)
    context = sessions.begin(request, 0)
    assert isinstance(context, FetchContext)
    return DelayedFetch("client", 500, request, context)


def test_parked_fetches_are_found_by_session_by_partition_and_by_follower() -> None:
    sessions, parked = FetchSessions(1, iter([7])), ParkedFetches()
    follower, consumer = fetch(sessions, 2, 0, P0, P1), fetch(sessions, CONSUMER, -1, P0, P0)
    for delayed in (follower, consumer):
        parked.add(delayed)
    assert parked.waiting_for(P0, sessions.mark(P0)) == [follower, consumer]
    assert parked.waiting_for(P1, sessions.mark(P1)) == [follower]
    assert parked.of((2, 3)) == [follower]
    for delayed in (follower, consumer):
        parked.remove(delayed)
        assert delayed not in parked
    assert parked.waiting_for(P0, sessions.mark(P0)) == []
