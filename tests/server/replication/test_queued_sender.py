"""MarkerSender and AddPartitionsSender: one request in flight to a broker, over one connection."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kreplog.core.effects import SendAddPartitions, SendMarkers
from kreplog.core.events import AddPartitionsReplied, MarkersReplied
from kreplog.core.messages import (
    ProducedPartition,
    ProducePartition,
    ProduceResponse,
    TransactionMarker,
    WriteMarkersRequest,
)
from kreplog.core.transaction_messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from kreplog.core.transactions.marker_writer import APPEND_TIMEOUT_MS
from kreplog.errors import ErrorCode
from kreplog.server.network.connections import Connection, Frame
from kreplog.server.network.internal import Address
from kreplog.server.replication.add_partitions_sender import AddPartitionsSender
from kreplog.server.replication.marker_sender import MarkerSender
from kreplog.types import TopicPartition
from kreplog.wire import transactions
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import BETWEEN_BROKERS
from tests.server.loop import run, until

OWN, OTHER = 1, 2
P = [TopicPartition("topic", number) for number in range(5)]

Respond = Callable[[RequestHeader, Frame], Sequence[Any]]


class Peer:
    """Another broker, which responds when the test has it respond. connections: how many it has accepted."""

    def __init__(self) -> None:
        self.arrived: list[Frame] = []
        self.connections = 0
        self._connection: Connection | None = None

    async def connect(self, address: Address) -> socket.socket:
        assert address == ("peer", 9)
        ours, theirs = socket.socketpair()
        self._connection = Connection(theirs, 1 << 20, self.arrived.append, lambda: None)
        self.connections += 1
        return ours

    async def request(self) -> tuple[RequestHeader, Frame]:
        """The one request that is in flight."""
        await until(lambda: bool(self.arrived))
        await asyncio.sleep(0.01)  # a second one would have arrived
        (frame,) = self.arrived
        self.arrived.clear()
        return decode_request_header(frame, BETWEEN_BROKERS), frame

    def send(self, response: Sequence[Any]) -> None:
        assert self._connection is not None
        self._connection.send(response)

    def hang_up(self) -> None:
        assert self._connection is not None
        self._connection.close()


def adding(tag: int, name: str, epoch: int = 0) -> SendAddPartitions:
    request = AddPartitionsToTxnRequest(name, 7, epoch, (P[tag],), from_leader=True)
    return SendAddPartitions(tag, OTHER, request)


def marking(tag: int) -> SendMarkers:
    produced = (ProducePartition(P[tag], TransactionMarker(tag, 0, True, 0)),)
    return SendMarkers(tag, OTHER, WriteMarkersRequest(-1, APPEND_TIMEOUT_MS, produced))


def address_of(broker: int) -> Address | None:
    return ("peer", 9) if broker == OTHER else None


def test_partitions_that_have_come_meanwhile_go_with_those_left_over() -> None:
    async def work() -> None:
        peer, put = Peer(), list[AddPartitionsReplied]()
        sender = AddPartitionsSender("me", OWN, lambda event: None, put.append, address_of, peer.connect)

        async def answer(*expected: tuple[str, tuple[TopicPartition, ...]]) -> None:
            header, frame = await peer.request()
            requests = transactions.decode_leaders_add_partitions(frame, header)
            assert [(request.transactional_id, request.partitions) for request in requests] == list(expected)
            responses = {
                request.transactional_id: AddPartitionsToTxnResponse(
                    tuple((partition, ErrorCode.NONE) for partition in request.partitions), 5
                )
                for request in requests
            }
            peer.send(transactions.encode_leaders_add_partitions_response(responses, header))

        sender.send(adding(0, "a"))
        sender.send(adding(1, "a", epoch=1))
        await until(lambda: bool(peer.arrived))
        sender.send(adding(2, "b"))
        sender.send(adding(3, "b"))
        await answer(("a", (P[0],)))
        await answer(("a", (P[1],)), ("b", (P[2], P[3])))
        await until(lambda: len(put) == 4)
        assert put == [AddPartitionsReplied(tag, ErrorCode.NONE, 5) for tag in range(4)]
        assert peer.connections == 1
        sender.close()

    run(work)


def test_markers_that_have_come_meanwhile_go_together_and_a_closed_connection_loses_one_response() -> None:
    async def work() -> None:
        peer, put = Peer(), list[MarkersReplied]()
        sender = MarkerSender("me", OWN, lambda event: None, put.append, address_of, peer.connect)
        sender.send(marking(0))
        await until(lambda: bool(peer.arrived))
        sender.send(marking(1))
        sender.send(marking(2))
        await peer.request()
        peer.hang_up()
        header, frame = await peer.request()
        request = transactions.decode_write_markers(frame, header, timeout_ms=APPEND_TIMEOUT_MS)
        assert request.partitions == (*marking(1).request.partitions, *marking(2).request.partitions)
        moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = ProduceResponse((ProducedPartition(P[1], ErrorCode.NONE), ProducedPartition(P[2], moved)))
        peer.send(transactions.encode_write_markers_response(response, request, header))
        await until(lambda: len(put) == 3)
        assert put[0] == MarkersReplied(0, ())
        assert put[1:] == [MarkersReplied(1, ((P[1], ErrorCode.NONE),)), MarkersReplied(2, ((P[2], moved),))]
        assert peer.connections == 2
        sender.close()

    run(work)


def test_a_request_that_cannot_be_encoded_is_lost_and_those_behind_it_are_not(caplog: pytest.LogCaptureFixture) -> None:
    """As one with an epoch that is no epoch: a fault of this broker, without which all else would wait for ever."""

    async def work() -> None:
        peer, put = Peer(), list[MarkersReplied]()
        sender = MarkerSender("me", OWN, lambda event: None, put.append, address_of, peer.connect)
        wrong = WriteMarkersRequest(
            -1, APPEND_TIMEOUT_MS, (ProducePartition(P[0], TransactionMarker(0, 1 << 15, True, 0)),)
        )
        sender.send(SendMarkers(0, OTHER, wrong))
        await until(lambda: put == [MarkersReplied(0, ())])
        sender.send(marking(1))
        await peer.request()
        sender.close()

    with caplog.at_level(logging.INFO, "kreplog.server"):
        run(work)
    (record,) = caplog.records
    assert record.levelname == "ERROR" and record.exc_info is not None
    assert record.getMessage().startswith("WriteTxnMarkers to broker 2: no response: ")
