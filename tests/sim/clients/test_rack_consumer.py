"""The consumer that names its rack against scripted brokers: where it reads, and when it is done."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kreplog.core.messages import (
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ListedOffset,
    ListOffsetsResponse,
    PartitionState,
)
from kreplog.errors import ErrorCode
from kreplog.sim.clients.rack_consumer import STAYS_MS, rack_consumer
from kreplog.sim.clients.workload import Call, ClientContext, Metadata, Settings, Sleep, Switch
from kreplog.sim.history import Event, History, Misdirected, Read, Watermark
from kreplog.sim.machines.records import ModelCodec
from kreplog.types import LeaderAndIsr, TopicPartition

TP, LEADER, FOLLOWER, EPOCH = TopicPartition("t", 0), 1, 2, 4
STATE = PartitionState(TP, "id", LeaderAndIsr(LEADER, EPOCH, (LEADER, FOLLOWER)), (LEADER, FOLLOWER))


class Bench:
    """The consumer, whose choices are the first ones; it begins at offset 0."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.codec = ModelCodec()
        self.history = History(lambda: self.now_ms)
        self.switch = Switch()
        random = Random(0)
        random.choice = lambda seq: seq[0]  # type: ignore[method-assign]
        context = ClientContext("c", Settings(), self.history, self.codec, random, [LEADER], self.switch)
        self.client = rack_consumer(context, "b")
        self.effect: Any = next(self.client)
        self.done = False

    def answer(self, answer: Any) -> None:
        try:
            self.effect = self.client.send(answer)
        except StopIteration:
            self.done = True

    def fetches_from(self) -> int:
        """Answer all else until the client fetches; the broker that it fetches from."""
        while True:
            match self.effect:
                case Metadata():
                    self.answer(({}, {TP: STATE}))
                case Sleep():
                    self.answer(None)
                case Call(broker, (FetchRequest() as fetch,)):
                    assert fetch.rack == "b"
                    return broker
                case Call(requests=(listing,)):
                    self.answer([listed(listing)])

    def respond(self, high_watermark: int, *values: bytes, error: ErrorCode = ErrorCode.NONE, **facts: Any) -> None:
        start = self.effect.requests[0].partitions[0].fetch_offset
        records = self.codec.encode(7, 0, start, list(values), base_offset=start, leader_epoch=EPOCH) if values else b""
        found = FetchedPartition(
            TP, error, high_watermark, 0, leader_epoch=EPOCH, topic_id="id", records=records, **facts
        )
        self.answer([FetchResponse(ErrorCode.NONE, partitions=(found,))])

    def sent_to_the_follower(self, high_watermark: int = 5) -> None:
        assert self.fetches_from() == LEADER
        self.respond(high_watermark, preferred_read_replica=FOLLOWER)
        assert self.fetches_from() == FOLLOWER

    def events(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.history.events if isinstance(event, kind)]


def listed(listing: Any) -> Any:
    return ListOffsetsResponse((ListedOffset(listing.partitions[0].partition, ErrorCode.NONE, 0, EPOCH),))


def test_it_reads_where_the_leader_sends_it_until_the_time_is_over() -> None:
    bench = Bench()
    bench.sent_to_the_follower()
    bench.respond(1, b"7:0")
    (read,) = bench.events(Read)
    assert (read.broker, read.offset) == (FOLLOWER, 0)
    assert [(event.broker, event.source) for event in bench.events(Watermark)] == [(1, "fetch"), (2, "replica")]
    bench.now_ms = STAYS_MS[0] - 1
    assert bench.fetches_from() == FOLLOWER
    bench.respond(1)
    bench.now_ms = STAYS_MS[0]
    assert bench.fetches_from() == LEADER


@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OFFSET_OUT_OF_RANGE])
def test_it_goes_back_to_the_leader_after_an_error_and_stays_at_its_offset(error: ErrorCode) -> None:
    bench = Bench()
    bench.sent_to_the_follower()
    bench.respond(1, b"7:0")
    assert bench.fetches_from() == FOLLOWER
    bench.respond(0, error=error)
    assert bench.fetches_from() == LEADER
    assert bench.effect.requests[0].partitions[0].fetch_offset == 1
    refused = [(event.broker, event.offset, event.leader_epoch) for event in bench.events(Misdirected)]
    assert refused == ([(FOLLOWER, 1, EPOCH)] if error is ErrorCode.OFFSET_OUT_OF_RANGE else [])


def test_silence_brings_it_back_too() -> None:
    bench = Bench()
    bench.sent_to_the_follower()
    bench.answer([None])
    assert bench.fetches_from() == LEADER


def test_the_leader_alone_says_that_all_is_read() -> None:
    bench = Bench()
    bench.sent_to_the_follower()
    bench.switch.off = True
    bench.respond(1, b"7:0")
    assert bench.fetches_from() == FOLLOWER
    bench.respond(1)  # which has the high watermark late
    bench.sent_to_the_follower(2)
    bench.respond(2, b"7:1")
    assert bench.fetches_from() == FOLLOWER
    bench.respond(2)
    assert bench.fetches_from() == LEADER
    bench.respond(2, preferred_read_replica=FOLLOWER)
    assert bench.done
