"""VirtualMarkerSender: a leader gets one WriteTxnMarkers at a time, and a lost response is waited for as brokers do."""

from __future__ import annotations

from kreplog.core.effects import SendMarkers
from kreplog.core.events import MarkersReplied
from kreplog.core.messages import (
    ProducedPartition,
    ProducePartition,
    ProduceResponse,
    TransactionMarker,
    WriteMarkersRequest,
)
from kreplog.core.transactions.marker_writer import APPEND_TIMEOUT_MS, RESPONSE_TIMEOUT_MS
from kreplog.errors import ErrorCode
from kreplog.sim.brokers.marker_requests import VirtualMarkerSender
from kreplog.sim.machines.network import Network
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.types import TopicPartition

T = TopicPartition("t", 0)


class Leader:
    """Broker 2, which responds when `respond` is called; the sender is on broker 1."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.network = Network(self.scheduler)
        self.network.attach("b2", lambda reply_to, request, channel: self.arrived.append(reply_to))
        self.arrived: list[int] = []
        self.outcomes: list[MarkersReplied] = []
        self.sender = VirtualMarkerSender(self.network, 1, lambda: True, lambda event: None, self.outcomes.append)

    def send(self, tag: int) -> None:
        produced = (ProducePartition(T, TransactionMarker(tag, 0, True, 0)),)
        self.sender.send(SendMarkers(tag, 2, WriteMarkersRequest(-1, APPEND_TIMEOUT_MS, produced)))

    def respond(self) -> None:
        response = ProduceResponse((ProducedPartition(T, ErrorCode.NONE),))
        self.network.reply(self.arrived[-1], response)

    def run_ms(self, ms: int) -> None:
        self.scheduler.run_until(self.scheduler.now_us + ms * MS)


def test_the_next_request_follows_the_response_to_the_one_before() -> None:
    leader = Leader()
    leader.send(1)
    leader.send(2)
    leader.run_ms(100)
    assert len(leader.arrived) == 1
    leader.respond()
    leader.run_ms(100)
    assert len(leader.arrived) == 2
    assert leader.outcomes == [MarkersReplied(1, ((T, ErrorCode.NONE),))]


def test_a_request_without_a_response_is_lost_after_its_time_and_no_other_with_it() -> None:
    leader = Leader()
    leader.send(1)
    leader.send(2)
    leader.run_ms(RESPONSE_TIMEOUT_MS - 1)
    assert leader.outcomes == []
    leader.run_ms(100)
    assert leader.outcomes == [MarkersReplied(1, ())]
    leader.respond()
    leader.run_ms(100)
    assert leader.outcomes[1:] == [MarkersReplied(2, ((T, ErrorCode.NONE),))]


def test_the_response_of_a_leader_whose_replicas_are_late_is_waited_for() -> None:
    leader = Leader()
    leader.send(1)
    leader.run_ms(APPEND_TIMEOUT_MS + 100)
    leader.respond()
    leader.run_ms(100)
    assert leader.outcomes == [MarkersReplied(1, ((T, ErrorCode.NONE),))]
