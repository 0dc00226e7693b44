"""PartitionQueue: what is in flight together, what is sent again, and in which order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kreplog._native.arrow_records import BatchEncoder, arrow_pieces
from kreplog.client import ProduceError
from kreplog.client.produce_queue import MAX_IN_FLIGHT, PartitionQueue, QueuedBatch
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

NOW = 100.0


class Queue:
    """One row a batch, so that its base sequence is the row's number."""

    def __init__(self, rows: int) -> None:
        self.queue = PartitionQueue(TopicPartition("t", 0))
        self._encoder = BatchEncoder(300)
        (piece,) = arrow_pieces(pa.table({"value": [b"x" * 400] * rows}))
        self.queue.add(piece.whole(0))

    def send(self, now: float = NOW) -> list[QueuedBatch]:
        """All that may be sent now."""
        sent = []
        while (batch := self.queue.next_batch(self._encoder, 7, 0, now)) is not None:
            sent.append(batch)
        return sent

    def respond(self, batch: QueuedBatch, error: ErrorCode = ErrorCode.NONE) -> bool:
        return self.queue.on_response(batch, error, batch.base_sequence, -1, "")


def sequences(batches: list[QueuedBatch]) -> list[int]:
    return [batch.base_sequence for batch in batches]


def test_five_are_in_flight_and_each_acknowledgement_lets_one_more_go() -> None:
    made = Queue(8)
    first = made.send()
    assert sequences(first) == list(range(MAX_IN_FLIGHT))
    assert made.respond(first[0])
    assert sequences(made.send()) == [5]
    assert not made.queue.idle


def test_after_a_failure_nothing_is_sent_until_all_in_flight_has_landed() -> None:
    made = Queue(8)
    first, second, third, fourth, fifth = made.send()
    assert not made.respond(first, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert made.send() == []
    assert not made.respond(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    made.queue.on_lost([third, fourth])
    assert made.send() == []
    assert not made.respond(fifth, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    made.queue.retry_at = NOW + 1
    assert made.send() == []
    again = made.send(NOW + 1)
    assert again == [first, second, third, fourth, fifth]
    assert sequences(again) == [0, 1, 2, 3, 4]
    for batch in again:
        assert made.respond(batch)
    rest = made.send(NOW + 1)
    assert sequences(rest) == [5, 6, 7]
    for batch in rest:
        made.respond(batch)
    assert made.queue.idle
    assert sequences(made.queue.acked) == list(range(8))


def test_what_was_acknowledged_between_failures_is_not_sent_again() -> None:
    made = Queue(3)
    first, second, third = made.send()
    assert made.respond(first)
    assert not made.respond(second, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert made.respond(third)
    assert made.send() == [second]
    assert made.respond(second, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    assert [batch.base_offset for batch in made.queue.acked] == [0, 2, -1]


def test_out_of_order_without_a_failure_before_it_is_an_error() -> None:
    made = Queue(2)
    first, second = made.send()
    assert made.respond(first)
    with pytest.raises(ProduceError, match="OUT_OF_ORDER_SEQUENCE_NUMBER") as raised:
        made.respond(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert raised.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("error", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_errors_that_never_pass(error: ErrorCode) -> None:
    made = Queue(1)
    (batch,) = made.send()
    with pytest.raises(ProduceError, match=error.name):
        made.respond(batch, error)


def test_sequences_go_on_at_zero_behind_the_last() -> None:
    made = Queue(3)
    made.queue._next_sequence = 2**31 - 1
    assert sequences(made.send()) == [2**31 - 1, 0, 1]
