"""Load on a cluster by librdkafka: what every client did and saw, as the simulator's checkers take it.

Each producer numbers its records for each partition and sends the number in the value, so that the records are known by
what the clients sent; the producer ids and sequences in the batches belong to what is under test.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place

from kreplog.sim.history import Fail, History, Invoke, Ok, Position, Read, Unknown, Watermark
from kreplog.types import TopicPartition
from tests.integration.clusters import eventually

ALL = -1
UNKNOWN_OFFSET = -1
"""Of a record that was acknowledged as one that the leader has already, and more than five batches ago (error 45)."""
_SIZE = 100
_PAUSE_S = 0.02
_UNDER_WAY = 2000
QUICK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "socket.connection.setup.timeout.ms": 2000,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}
_ENDED = "its time was up"


def parse(value: bytes) -> tuple[int, int]:
    """(producer's number, the record's number in its partition) of a value; (-1, -1) of what no producer sent."""
    parts = value.split(b"/")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        return -1, -1


class Load:
    """Producers and consumers of a topic, from `with` to the end of it; then everything acknowledged has been read.

    history: theirs. acked: how many records were acknowledged. records_per_s: of all producers, while all goes well.
    tls: librdkafka's settings of it. connection: those of all clients.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        topic_id: str,
        partitions: int,
        *,
        producers: int = 3,
        consumers: int = 2,
        records_per_s: int = 900,
        tls: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        start = time.monotonic()
        self.at_once = max(1, round(records_per_s / producers * _PAUSE_S))
        self.history = History(lambda: int((time.monotonic() - start) * 1000))
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self.connection = {"bootstrap.servers": bootstrap, **tls, **QUICK}
        self._sending = threading.Event()
        self._reading = threading.Event()
        self._producers = [_Producing(self, number) for number in range(producers)]
        self._readers: list[_Reading | _Watching] = [_Reading(self, number) for number in range(consumers)]
        self._readers.append(_Watching(self))

    @property
    def acked(self) -> int:
        return sum(producer.acked for producer in self._producers)

    @property
    def sending(self) -> bool:
        return self._sending.is_set()

    @property
    def reading(self) -> bool:
        return self._reading.is_set()

    @property
    def ends(self) -> list[int]:
        """By partition: the offset after the last that was acknowledged."""
        return [max(producer.ends[number] for producer in self._producers) for number in range(len(self.partitions))]

    def __enter__(self) -> Self:
        self._sending.set()
        self._reading.set()
        for thread in (*self._producers, *self._readers):
            thread.start()
        return self

    def goes_on(self, count: int = 50, within_s: float = 60.0) -> None:
        """Wait until every producer has `count` more records acknowledged."""
        wanted = [producer.acked + count for producer in self._producers]
        eventually(
            lambda: all(producer.acked >= goal for producer, goal in zip(self._producers, wanted, strict=True)),
            lambda: f"the producers make no progress: {[(each.acked, each.troubles[-3:]) for each in self._producers]}",
            within_s,
        )

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._sending.clear()
        for producer in self._producers:
            producer.join()
        try:
            if kind is None:
                self._readers_are_done()
        finally:
            self._reading.clear()
            for reader in self._readers:
                reader.join()

    def _readers_are_done(self) -> None:
        eventually(
            lambda: all(reader.positions >= self.ends for reader in self._readers if isinstance(reader, _Reading)),
            lambda: (
                f"acknowledged below {self.ends}, "
                f"read {[reader.positions for reader in self._readers if isinstance(reader, _Reading)]}"
            ),
            60.0,
        )


class _Producing(threading.Thread):
    """One idempotent producer. ends: by partition, after the last acknowledged. troubles: errors that it reported."""

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(name=f"producer-{number}", daemon=True)
        self.acked = 0
        self.ends = [0] * len(load.partitions)
        self.troubles: list[str] = []
        self._load = load
        self._number = number
        self._under_way = 0
        self._producer = Producer(
            {
                **load.connection,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.size": 50_000,  # what has waited for a broker must fit in a segment of faults.SHORT
                "message.timeout.ms": 180_000,
                "request.timeout.ms": 5000,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 100,
                "error_cb": lambda error: self.troubles.append(str(error)),
            }
        )

    def run(self) -> None:
        numbers = itertools.count()
        due = time.monotonic()
        while self._load.sending:
            due = max(due + _PAUSE_S, time.monotonic())
            for _ in range(self._load.at_once if self._under_way < _UNDER_WAY else 0):
                number = next(numbers)
                self._send(number % len(self.ends), number // len(self.ends))
            while (pause := due - time.monotonic()) > 0:
                self._producer.poll(pause)  # returns whenever something was acknowledged
        self._producer.flush(180)

    def _send(self, partition: int, sequence: int) -> None:
        text = f"{self._number}/{sequence}/"
        value = text.ljust(_SIZE, "x")
        history = self._load.history
        history.add(Invoke(**self._event_fields(partition, sequence, value)))
        self._under_way += 1
        done: Callable[[KafkaError | None, Message], None] = lambda error, message: self._done(  # noqa: E731
            partition, sequence, value, error, message
        )
        self._producer.produce(self._load.topic, value.encode(), partition=partition, on_delivery=done)

    def _event_fields(self, partition: int, sequence: int, value: str) -> dict[str, Any]:
        load = self._load
        return {
            "at_ms": load.history.now_ms(),
            "partition": load.partitions[partition],
            "topic_id": load.topic_id,
            "client": self.name,
            "acks": ALL,
            "producer_id": self._number,
            "sequence": sequence,
            "values": (value,),
        }

    def _done(self, partition: int, sequence: int, value: str, error: KafkaError | None, message: Message) -> None:
        self._under_way -= 1
        result = self._event_fields(partition, sequence, value)
        if error is None:
            offset = message.offset()
            offset = UNKNOWN_OFFSET if offset is None else offset
            self._load.history.add(Ok(**result, base_offset=offset))
            self.acked += 1
            self.ends[partition] = max(self.ends[partition], offset + 1)
        elif error.code() == KafkaError._MSG_TIMED_OUT:
            self._load.history.add(Unknown(**result, reason=_ENDED))
        else:
            self._load.history.add(Fail(**result, error=str(error)))


class _Reading(threading.Thread):
    """One consumer of all partitions, from their beginning. positions: where it stands in each."""

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(name=f"consumer-{number}", daemon=True)
        self.positions = [0] * len(load.partitions)
        self._watermarks = [-1] * len(load.partitions)
        self._load = load
        self._consumer = _consumer(load)

    def run(self) -> None:
        load = self._load
        for partition in load.partitions:
            load.history.add(Position(load.history.now_ms(), partition, load.topic_id, self.name, 0, "earliest"))
        # An offset, not the beginning: librdkafka may look up the beginning twice, and starts over when the leader
        # has changed between the two responses.
        places = [Place(load.topic, partition.partition, 0) for partition in load.partitions]
        self._consumer.assign(places)
        while load.reading:
            for message in self._consumer.consume(1000, 0.1):
                self._take(message)
            for partition, place in zip(load.partitions, places, strict=True):
                _, high_watermark = self._consumer.get_watermark_offsets(place, cached=True)
                # A lower value proves nothing: librdkafka also stores the high watermark of a late response, such
                # as of a former leader that was stopped while it sent it. The watcher awaits each response, and
                # so detects a high watermark that falls.
                if high_watermark > self._watermarks[partition.partition]:
                    self._watermarks[partition.partition] = high_watermark
                    _add_watermark(load, partition, self.name, high_watermark, "fetch")
        self._consumer.close()

    def _take(self, message: Message) -> None:
        load = self._load
        at_ms = load.history.now_ms()
        error = message.error()
        if error is not None:
            if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                partition = load.partitions[message.partition() or 0]
                load.history.add(Position(at_ms, partition, load.topic_id, self.name, -1, str(error)))
            return
        number, offset, value = message.partition(), message.offset(), message.value()
        assert number is not None and offset is not None and value is not None
        producer, sequence = parse(value)
        epoch = message.leader_epoch()
        epoch = -1 if epoch is None else epoch
        self.positions[number] = offset + 1
        partition, text = load.partitions[number], value.decode(errors="replace")
        load.history.add(
            Read(at_ms, partition, load.topic_id, self.name, -1, epoch, offset, epoch, producer, sequence, text)
        )


class _Watching(threading.Thread):
    """Requests the end offsets of one partition after the other."""

    def __init__(self, load: Load) -> None:
        super().__init__(name="watcher", daemon=True)
        self._load = load
        self._consumer = _consumer(load)

    def run(self) -> None:
        load = self._load
        for partition in itertools.cycle(load.partitions):
            if not load.reading:
                break
            time.sleep(0.02)  # between two lookups: it waits for nothing, and must not be the load itself
            try:
                result = self._consumer.get_watermark_offsets(Place(load.topic, partition.partition), 2.0, cached=False)
            except KafkaException:
                continue
            if result is not None:
                _add_watermark(load, partition, self.name, result[1], "list")
        self._consumer.close()


def _add_watermark(load: Load, partition: TopicPartition, client: str, offset: int, source: str) -> None:
    """Add a Watermark event. librdkafka does not report which leader sent it, so it must never fall."""
    load.history.add(Watermark(load.history.now_ms(), partition, load.topic_id, client, -1, 0, offset, source))


def _consumer(load: Load) -> Consumer:
    return Consumer(
        {
            **load.connection,
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 20,
        }
    )
