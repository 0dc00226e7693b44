"""Clients against a broker with scripted responses: their requests, retries, and histories."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from kreplog.core import messages as m
from kreplog.errors import ErrorCode, KreplogError
from kreplog.sim.clients import workload
from kreplog.sim.clients.producer_id_client import new_producer_id
from kreplog.sim.history import Fail, History, Invoke, Ok, Position, Read, Unknown, Watermark
from kreplog.sim.machines.disk import Disks
from kreplog.types import LeaderAndIsr, TopicPartition

TP = TopicPartition("t", 0)
BROKER = 1


class ClientPort:
    """Time, and one broker that appends to a real disk and commits at once, unless `answer` says otherwise."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.disks = Disks("model")
        self.topic_id = "id0"
        self.epoch = 0
        self.disks.disk(BROKER).set_aside(TP)
        self.log = self.disks.disk(BROKER).open(TP, self.topic_id).log
        self.requests: list[Any] = []
        self.answer: Callable[[Any], Any] = self.serve
        self.known = True

    def after(self, ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now_ms + ms, next(self.numbers), action))

    def call(self, broker: int, request: Any, timeout_ms: int, on_reply: Callable[[Any], None]) -> None:
        assert broker == BROKER
        self.requests.append(request)
        response = self.answer(request)
        self.after(timeout_ms if response is None else 1, lambda: on_reply(response))

    def post(self, broker: int, request: Any) -> None:
        self.requests.append(request)
        self.answer(request)

    def metadata(self, broker: int, timeout_ms: int, on_reply: Callable[[Any], None]) -> None:
        state = m.PartitionState(TP, self.topic_id, LeaderAndIsr(BROKER, self.epoch, (BROKER,)), (BROKER,))
        self.after(1, lambda: on_reply(({BROKER: None}, {TP: state} if self.known else {})))

    def run(self, until_ms: int) -> None:
        while self.queue and self.queue[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self.queue)
            action()
        self.now_ms = until_ms

    def recreate_topic(self) -> None:
        self.topic_id = "id1"
        self.epoch = 0
        self.disks.disk(BROKER).set_aside(TP)
        self.log = self.disks.disk(BROKER).open(TP, self.topic_id).log

    def serve(self, request: Any) -> Any:
        if isinstance(request, m.ProduceRequest):
            return self.refuse(ErrorCode.NONE, self.append(request))
        if isinstance(request, m.ListOffsetsRequest):
            offset = self.log.high_watermark if request.partitions[0].timestamp == m.LATEST else 0
            return m.ListOffsetsResponse((m.ListedOffset(TP, ErrorCode.NONE, offset, self.epoch),))
        fetch = request.partitions[0]
        state, end = self.log.state(), self.log.high_watermark
        if fetch.fetch_offset > state.leo:
            found = m.FetchedPartition(TP, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            records = self.log.read(fetch.fetch_offset, end, fetch.max_bytes)
            found = m.FetchedPartition(TP, ErrorCode.NONE, end, 0, None, BROKER, self.epoch, records)
        return m.FetchResponse(ErrorCode.NONE, 0, (found,))

    def append(self, request: m.ProduceRequest) -> int:
        info, state = self.log.append_as_leader(request.partitions[0].records, self.epoch)
        self.log.advance_high_watermark(state.leo)
        return info.first_offset

    def refuse(self, error: ErrorCode, base_offset: int = -1) -> m.ProduceResponse:
        return m.ProduceResponse((m.ProducedPartition(TP, error, base_offset),))


class Run:
    """One client of a kind on a Port."""

    def __init__(self, kind: str, port: ClientPort | None = None, **settings: Any) -> None:
        self.port = port or ClientPort()
        self.history = History(lambda: self.port.now_ms)
        self.switch = workload.Switch()
        drawn = workload.Settings(**{"pause_ms": 20, "backoff_ms": 10, **settings})
        codec = self.port.disks.codec
        context = workload.ClientContext(kind[0], drawn, self.history, codec, Random(1), (BROKER,), self.switch)
        new_id = partial(new_producer_id, itertools.count(100))
        client = workload.producer(context, new_id) if kind == "producer" else workload.consumer(context)
        self.actor = workload.ClientRunner(client, self.port)
        self.actor.start()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.history.events if isinstance(event, kind)]

    def finish(self) -> None:
        self.switch.off = True
        self.port.run(self.port.now_ms + 5000)
        assert self.actor.done

    def log(self) -> list[str]:
        port = self.port
        return [record.value.decode() for record in port.disks.codec.decode(port.log.read(0, 1 << 30, 1 << 30))]


@pytest.mark.parametrize("in_flight", [1, 5])
def test_a_producer_writes_each_record_once_and_in_order(in_flight: int) -> None:
    run = Run("producer", in_flight=in_flight)
    run.port.run(1000)
    run.finish()
    oks = run.of(Ok)
    assert len(oks) == len(run.of(Invoke)) > 20
    assert run.log() == [value for ok in oks for value in ok.values]
    assert [ok.base_offset for ok in oks] == [ok.sequence for ok in oks]
    assert run.log() == [f"100:{sequence}" for sequence in range(len(run.log()))]


@pytest.mark.parametrize("in_flight", [1, 5])
def test_a_producer_sends_the_same_batches_until_they_are_acknowledged(in_flight: int) -> None:
    """Answers are lost, requests are lost, leaders refuse: nothing is written twice, nothing is missing."""
    random = Random(5)
    port = ClientPort()

    def answer(request: Any) -> Any:
        drawn = random.random()
        if drawn < 0.2:
            return None
        if drawn < 0.4:
            return port.refuse(random.choice(sorted(workload.RETRIABLE)))
        try:
            response = port.serve(request)
        except KreplogError as error:
            response = port.refuse(ErrorCode(error.kafka_code))
        return None if drawn > 0.8 else response

    port.answer = answer
    run = Run("producer", port, in_flight=in_flight)
    port.run(30_000)
    port.answer = port.serve
    run.finish()
    assert len(run.of(Invoke)) == len(run.of(Ok)) > 20
    assert run.log() == [f"100:{sequence}" for sequence in range(len(run.log()))]


def test_a_producer_starts_again_when_it_is_refused_for_good() -> None:
    port = ClientPort()
    run = Run("producer", port)
    port.run(200)
    port.answer = lambda _: port.refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    port.run(300)
    port.answer = port.serve
    port.run(400)
    run.finish()
    assert run.of(Fail)[0].error == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    later = [invoke for invoke in run.of(Invoke) if invoke.producer_id > 100]
    assert later[0].sequence == 0


def test_a_producer_gives_up_when_it_has_waited_long_enough() -> None:
    port = ClientPort()
    run = Run("producer", port, patience_ms=500)
    port.answer = lambda _: port.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    port.run(3000)
    given_up = run.of(Unknown)
    assert given_up
    assert {event.reason for event in given_up} == {"no response for patience_ms"}
    assert len({event.producer_id for event in run.of(Invoke)}) == len(run.of(Invoke))


def test_a_producer_numbers_a_topic_created_again_from_the_start() -> None:
    port = ClientPort()
    run = Run("producer", port)
    port.run(300)
    port.answer = lambda _: None
    port.run(1000)
    port.recreate_topic()
    port.answer = port.serve
    port.run(3000)
    run.finish()
    assert [event.reason for event in run.of(Unknown)] == ["the topic was created again"]
    recreated = [event for event in run.of(Invoke) if event.topic_id == "id1"]
    assert (recreated[0].producer_id, recreated[0].sequence) == (101, 0)
    assert run.log()[0] == "101:0"


def test_a_producer_lets_go_of_a_topic_that_is_gone() -> None:
    port = ClientPort()
    run = Run("producer", port)
    port.run(100)
    port.answer = lambda _: None
    port.run(150)
    port.known = False
    port.run(3000)
    run.switch.off = True
    port.known = True
    run.finish()
    assert all(event.reason == "the topic is deleted" for event in run.of(Unknown))


def test_acks_0_has_no_response() -> None:
    run = Run("producer", acks=0)
    run.port.run(500)
    run.finish()
    assert run.of(Ok) == []
    assert {event.reason for event in run.of(Unknown)} == {"acks=0"}
    assert len(run.log()) > 5


def test_a_consumer_reads_all_that_is_committed() -> None:
    port = ClientPort()
    producer = Run("producer", port)
    consumer = Run("consumer", port, fetch_bytes=1)
    port.run(2000)
    producer.finish()
    consumer.finish()
    reads = consumer.of(Read)
    assert [read.value for read in reads] == producer.log()
    assert [read.offset for read in reads] == list(range(len(reads)))
    assert [position.offset for position in consumer.of(Position)] == [0]
    assert consumer.of(Watermark)[-1].high_watermark == len(reads)


def test_a_consumer_can_begin_at_the_end() -> None:
    port = ClientPort()
    producer = Run("producer", port)
    port.run(500)
    end = port.log.high_watermark
    consumer = Run("consumer", port, from_end=True)
    port.run(1000)
    producer.finish()
    consumer.finish()
    first = consumer.of(Position)[0]
    assert first.reason == "latest"
    assert first.offset >= end > 0
    assert consumer.of(Read)[0].offset == first.offset


def test_a_consumer_that_is_out_of_range_begins_again() -> None:
    port = ClientPort()
    producer = Run("producer", port)
    consumer = Run("consumer", port)
    port.run(1000)
    producer.finish()
    port.run(port.now_ms + 1000)
    port.log.truncate_to(2)
    port.run(port.now_ms + 1000)
    consumer.finish()
    offsets = [position.offset for position in consumer.of(Position)]
    assert offsets == [0, -1, 0]
    assert consumer.of(Position)[1].reason.endswith("is out of range")


def test_histories_go_into_json() -> None:
    run = Run("producer")
    run.port.run(100)
    run.finish()
    event = run.history.as_json()[0]
    assert (event["event"], event["partition"], event["producer_id"]) == ("Invoke", "t-0", 100)


def test_the_same_seed_does_the_same() -> None:
    def events() -> list[Any]:
        run = Run("producer", in_flight=5)
        run.port.run(1000)
        return run.history.events

    assert events() == events()
    assert workload.draw(Random(3), "consumer") == workload.draw(Random(3), "consumer")
