"""Producers and consumers of the simulator, without I/O: generators that yield effects and are resumed with answers.

A client yields `Call`, `Post`, `Sleep` or `Metadata`, and is resumed with the answer. A `ClientRunner` runs it on a
`ClientPort`, its only connection to the cluster. All that it observes goes into the history.

A producer is idempotent: it has a producer id for each partition (and another for a topic created again, or after it
gave up), numbers its records, and sends the same batches to the present leader until they are acknowledged or refused
with an error that is not retriable. As librdkafka does, it may send later batches to a new leader while earlier ones
are still on their way to the old leader, and considers these acknowledged when those are.

A consumer fetches from offset 0 or from the end, from the leader, in the latest leader epoch that it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from kreplog.core.broker.coordinator_lookup import find_coordinator
from kreplog.core.messages import (
    CONSUMER,
    EARLIEST,
    LATEST,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionState,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from kreplog.errors import ErrorCode
from kreplog.sim.faults import OWN_TOPICS
from kreplog.sim.history import Fail, History, Invoke, Ok, Position, Produce, Read, Unknown, Watermark
from kreplog.sim.machines.records import RecordCodec
from kreplog.types import NO_EPOCH, NO_LEADER, BrokerRegistration, TopicPartition


@dataclass(frozen=True, slots=True)
class Call:
    """Send requests to a broker, in this order over one connection. Answer: for each a response, or None if there
    was none within the time-out."""

    broker: int
    requests: tuple[Any, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Post:
    """Send a request that has no response. Answer: None, at once."""

    broker: int
    request: Any


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait in virtual time. Answer: None, after `ms`."""

    ms: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """Request a broker's metadata. Answer: (brokers, partitions) of its MetadataCache, or None."""

    broker: int
    timeout_ms: int


ClientEffect = Call | Post | Sleep | Metadata
Client = Generator[ClientEffect, Any, None]

RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
"""Errors that may resolve with fresh metadata."""

GONE_MS = 1500
"""A partition that was in no broker's metadata for this long is deleted."""


class ClientPort(Protocol):
    """The interface of a client to the cluster. Callbacks come later, never from inside the call."""

    def call(self, broker: int, request: Any, timeout_ms: int, on_reply: Callable[[Any], None]) -> None:
        """Calls on_reply(response), or on_reply(None) if there is none within the time-out."""

    def post(self, broker: int, request: Any) -> None: ...

    def metadata(self, broker: int, timeout_ms: int, on_reply: Callable[[Any], None]) -> None:
        """Calls on_reply((brokers, partitions)) with copies of the broker's MetadataCache, or on_reply(None)."""

    def after(self, ms: int, action: Callable[[], None]) -> None: ...


class ClientRunner:
    """Runs a client on a port. done: it has ended."""

    def __init__(self, client: Client, port: ClientPort) -> None:
        self.done = False
        self._client = client
        self._port = port

    def start(self) -> None:
        self._resume(None)

    def _resume(self, answer: Any) -> None:
        port = self._port
        while True:
            try:
                effect = self._client.send(answer)
            except StopIteration:
                self.done = True
                return
            match effect:
                case Post(broker, request):
                    port.post(broker, request)
                    answer = None
                case Sleep(ms):
                    port.after(ms, lambda: self._resume(None))
                    return
                case Metadata(broker, timeout_ms):
                    port.metadata(broker, timeout_ms, self._resume)
                    return
                case Call():
                    self._call(effect)
                    return

    def _call(self, effect: Call) -> None:
        answers: dict[int, Any] = {}

        def answered(index: int, response: Any) -> None:
            answers[index] = response
            if len(answers) == len(effect.requests):
                self._resume([answers[number] for number in range(len(effect.requests))])

        for index, request in enumerate(effect.requests):
            self._port.call(effect.broker, request, effect.timeout_ms, _with_index(answered, index))


def _with_index(answered: Callable[[int, Any], None], index: int) -> Callable[[Any], None]:
    return lambda response: answered(index, response)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a client. acks: 0, 1 or -1. pause_ms: at most, between two batches or polls. backoff_ms: before a
    retry. request_ms: time-out of a request. in_flight: batches under way at once. batch: records at most. patience_ms:
    time for which a producer retries a batch, 0 forever. from_end: a consumer starts at the end."""

    acks: int = -1
    pause_ms: int = 200
    backoff_ms: int = 100
    request_ms: int = 600
    in_flight: int = 1
    batch: int = 2
    patience_ms: int = 0
    from_end: bool = False
    fetch_bytes: int = 300


def draw(random: Random, kind: str) -> Settings:
    """Draw settings of a "producer" or "consumer"; most producers use acks=all, which has guarantees."""
    return Settings(
        acks=random.choice((-1, -1, -1, -1, 1, 0)) if kind == "producer" else -1,
        pause_ms=random.choice((30, 100, 300)),
        backoff_ms=random.choice((20, 100, 250)),
        request_ms=random.choice((250, 600, 1500)),
        in_flight=random.choice((1, 1, 2, 5)),
        batch=random.choice((1, 2, 3)),
        patience_ms=random.choice((0, 0, 2500)),
        from_end=random.random() < 0.3,
        fetch_bytes=random.choice((1, 300, 1 << 20)),
    )


ReaderFactory = Callable[["ClientMetadata", RecordCodec, TopicPartition, str], "PartitionReader"]


class Switch:
    """Signals clients to finish: a producer after its batches in flight, a consumer when it has read all records."""

    def __init__(self) -> None:
        self.off = False


@dataclass(frozen=True, slots=True)
class ClientContext:
    """The surroundings of a client. brokers: ids of those to request metadata of at first."""

    name: str
    settings: Settings
    history: History
    codec: RecordCodec
    random: Random
    brokers: Sequence[int]
    switch: Switch


class ClientMetadata:
    """A client's metadata: the newest known state of each partition. internal: also of internal topics. registered: the
    brokers that are, by id."""

    def __init__(self, context: ClientContext, *, internal: bool = False) -> None:
        self._internal = internal
        self.name = context.name
        self.history = context.history
        self.random = context.random
        self.settings = context.settings
        self.brokers = list(context.brokers)
        self.registered: Mapping[int, BrokerRegistration] = {}
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self._newest: dict[tuple[TopicPartition, str], PartitionState] = {}

    def refresh(self) -> Generator[ClientEffect, Any, None]:
        """Request metadata of random brokers until one responds, with a back-off in between."""
        while True:
            broker = self.random.choice(self.brokers)
            response = yield Metadata(broker, self.settings.request_ms)
            if response is not None:
                self._update(*response)
                return
            yield Sleep(self.settings.backoff_ms)

    def _update(
        self, brokers: Mapping[int, BrokerRegistration], partitions: Mapping[TopicPartition, PartitionState]
    ) -> None:
        self.registered = brokers
        for broker in sorted(brokers):
            if broker not in self.brokers:
                self.brokers.append(broker)
        self.partitions = {}
        for partition in sorted(partitions):
            if partition.topic in OWN_TOPICS and not self._internal:
                continue
            state = partitions[partition]
            # Metadata of another broker may be older: a known leader epoch is not replaced by an older one (KIP-320).
            held = self._newest.setdefault((partition, state.topic_id), state)
            if state.state.leader_epoch >= held.state.leader_epoch:
                held = self._newest[partition, state.topic_id] = state
            self.partitions[partition] = held

    def leader_of(self, partition: TopicPartition) -> int:
        """NO_LEADER for none."""
        known = self.partitions.get(partition)
        return NO_LEADER if known is None else known.state.leader

    def coordinator_of(self, topic: str, key: str) -> int:
        """The broker that coordinates a group or transactional id, by the rule of FindCoordinator; NO_LEADER for none.
        topic: the internal topic."""
        leaders = {each.partition: self.leader_of(each) for each in self.partitions if each.topic == topic}
        return find_coordinator(topic, key, leaders, self.registered).broker

    def now_ms(self) -> int:
        return self.history.now_ms()


@dataclass(slots=True)
class _ProducerSession:
    """A producer's id and next sequence for one partition of one topic id."""

    partition: TopicPartition
    topic_id: str
    producer_id: int
    sequence: int = 0


def producer(context: ClientContext, new_id: Callable[[ClientMetadata], Generator[ClientEffect, Any, int]]) -> Client:
    """Write to random partitions until the switch is off. new_id: steps that get a producer id which nobody has."""
    random, switch = context.random, context.switch
    metadata = ClientMetadata(context)
    sessions: dict[TopicPartition, _ProducerSession] = {}
    while True:
        yield Sleep(random.randint(0, context.settings.pause_ms))
        if not metadata.partitions or random.random() < 0.1:
            yield from metadata.refresh()
        if switch.off:
            return
        if not metadata.partitions:
            continue
        partition = random.choice(sorted(metadata.partitions))
        topic_id = metadata.partitions[partition].topic_id
        session = sessions.get(partition)
        if session is None or session.topic_id != topic_id:
            producer_id = yield from new_id(metadata)
            session = sessions[partition] = _ProducerSession(partition, topic_id, producer_id)
        if not (yield from _produce(metadata, session, context.codec, switch)):
            del sessions[partition]


@dataclass(slots=True)
class _Batch:
    """A batch of a producer, until it has an outcome. answer: of the last attempt, None for none. sent_epoch: the
    leader epoch in which it was last sent."""

    invoked: Invoke
    records: Any
    answer: ProducedPartition | None = None
    sent_epoch: int = NO_EPOCH


def _produce(
    metadata: ClientMetadata, session: _ProducerSession, codec: RecordCodec, switch: Switch
) -> Generator[ClientEffect, Any, bool]:
    """Write a few batches; return whether the sequence numbers continue after them."""
    settings, history = metadata.settings, metadata.history
    batches = _make(metadata, session, codec)
    for batch in batches:
        history.add(batch.invoked)
    if settings.acks == 0:
        leader = metadata.partitions[session.partition].state.leader
        for batch in batches:
            if leader != NO_LEADER:
                yield Post(leader, _request(settings, session, batch))
            history.add(_end(history, batch, Unknown, reason="acks=0"))
        # A lost batch leaves a gap, after which all batches are refused; without responses the producer never learns
        # it.
        return leader != NO_LEADER and metadata.random.random() < 0.8
    deadline_ms = metadata.now_ms() + settings.patience_ms
    seen_ms = metadata.now_ms()
    while batches:
        known = metadata.partitions.get(session.partition)
        if known is not None and known.topic_id != session.topic_id:
            return _give_up(history, batches, "the topic was created again")
        if settings.patience_ms and metadata.now_ms() > deadline_ms and not switch.off:
            return _give_up(history, batches, "no response for patience_ms")
        if known is not None:
            seen_ms = metadata.now_ms()
        elif switch.off or metadata.now_ms() > seen_ms + GONE_MS:
            return _give_up(history, batches, "the topic is deleted")
        if known is not None and known.state.leader != NO_LEADER:
            sent = batches[_count_elsewhere(metadata, batches, known.state.leader_epoch) :]
            for batch in sent:
                batch.sent_epoch = known.state.leader_epoch
            requests = tuple(_request(settings, session, batch) for batch in sent)
            answers: list[ProduceResponse | None] = yield Call(known.state.leader, requests, settings.request_ms)
            for batch, answer in zip(sent, answers, strict=True):
                batch.answer = None if answer is None else answer.partitions[0]
            refused = _complete(history, batches)
            if refused is not None:
                return _give_up(history, batches, f"an earlier batch got {refused.name}")
            if not batches:
                return True
        yield Sleep(settings.backoff_ms)
        yield from metadata.refresh()
    return True


def _make(metadata: ClientMetadata, session: _ProducerSession, codec: RecordCodec) -> list[_Batch]:
    settings, batches = metadata.settings, []
    for _ in range(metadata.random.randint(1, settings.in_flight)):
        count = metadata.random.randint(1, settings.batch)
        values = tuple(f"{session.producer_id}:{session.sequence + index}" for index in range(count))
        now_ms = metadata.now_ms()
        invoked = Invoke(
            now_ms,
            session.partition,
            session.topic_id,
            metadata.name,
            settings.acks,
            session.producer_id,
            session.sequence,
            values,
        )
        encoded = [value.encode() for value in values]
        batches.append(_Batch(invoked, codec.encode(session.producer_id, 0, session.sequence, encoded, now_ms)))
        session.sequence += count
    return batches


def _count_elsewhere(metadata: ClientMetadata, batches: list[_Batch], leader_epoch: int) -> int:
    """The number of first batches that may still be on their way to an earlier leader, and are not sent to this one."""
    limit = 0
    while limit < len(batches) - 1 and NO_EPOCH < batches[limit].sent_epoch < leader_epoch:
        limit += 1
    return metadata.random.randint(0, limit) if limit and metadata.random.random() < 0.5 else 0


def _request(settings: Settings, session: _ProducerSession, batch: _Batch) -> ProduceRequest:
    timeout_ms = settings.request_ms * 3 // 4
    return ProduceRequest(settings.acks, timeout_ms, (ProducePartition(session.partition, batch.records),))


def _complete(history: History, batches: list[_Batch]) -> ErrorCode | None:
    """Remove acknowledged batches; also remove the first batch if its error is not retriable, and return that error.

    A batch after an unwritten one is out of order until the first is sent again, so only the first can be refused
    finally. All batches before an acknowledged one are acknowledged too.
    """
    answers = [batch.answer for batch in batches]
    written = [at for at, answer in enumerate(answers) if answer is not None and answer.error is ErrorCode.NONE]
    left: list[_Batch] = []
    refused = None
    for at, (batch, answer) in enumerate(zip(batches, answers, strict=True)):
        if written and at <= written[-1]:
            offset = answer.base_offset if answer is not None and at in written else -1
            history.add(_end(history, batch, Ok, base_offset=offset))
        elif answer is not None and answer.error not in RETRIABLE and not left and refused is None:
            history.add(_end(history, batch, Fail, error=answer.error.name))
            refused = answer.error
        else:
            left.append(batch)
    batches[:] = left
    return refused


def _give_up(history: History, batches: list[_Batch], reason: str) -> bool:
    for batch in batches:
        history.add(_end(history, batch, Unknown, reason=reason))
    batches.clear()
    return False


def _end(history: History, batch: _Batch, kind: type[Produce], **facts: Any) -> Produce:
    invoked = batch.invoked
    return kind(
        history.now_ms(),
        invoked.partition,
        invoked.topic_id,
        invoked.client,
        invoked.acks,
        invoked.producer_id,
        invoked.sequence,
        invoked.values,
        **facts,
    )


def consumer(context: ClientContext, reader_of: ReaderFactory | None = None) -> Client:
    """Read all partitions in turn, until the switch is off and all records committed by then have been read."""
    settings, random, make_reader = context.settings, context.random, reader_of or PartitionReader
    metadata = ClientMetadata(context)
    readers: dict[TopicPartition, PartitionReader] = {}
    finished = False
    while True:
        last = context.switch.off
        if last or not finished or random.random() < 0.2:
            yield from metadata.refresh()
        finished = True
        for partition in sorted(metadata.partitions):
            partition_state = metadata.partitions[partition]
            reader = readers.get(partition)
            if reader is None or reader.topic_id != partition_state.topic_id:
                topic_id = partition_state.topic_id
                reader = readers[partition] = make_reader(metadata, context.codec, partition, topic_id)
            finished = (yield from reader.poll(partition_state, last)) and finished
        if last and finished:
            return
        yield Sleep(random.randint(1, settings.pause_ms) if finished else settings.backoff_ms)


class PartitionReader:
    """A consumer's position in one partition of one topic id, -1 when it has none yet."""

    def __init__(self, metadata: ClientMetadata, codec: RecordCodec, partition: TopicPartition, topic_id: str) -> None:
        self.topic_id = topic_id
        self._view = metadata
        self._codec = codec
        self._partition = partition
        self.position = -1
        self._reset = LATEST if metadata.settings.from_end else EARLIEST

    def poll(self, partition_state: PartitionState, hurried: bool) -> Generator[ClientEffect, Any, bool]:
        """Fetch once, or list an offset; return whether all records are read. hurried: large fetches without
        waiting."""
        if partition_state.state.leader == NO_LEADER:
            return False
        if self.position < 0:
            yield from self.list_reset(partition_state)
            return False
        if self._view.random.random() < 0.1:
            yield from self.list_offset(partition_state, LATEST, move=False)
        return (yield from self._fetch(partition_state, hurried))

    def list_reset(self, partition_state: PartitionState) -> Generator[ClientEffect, Any, None]:
        """Move to the offset where a reader without a position begins."""
        yield from self.list_offset(partition_state, self._reset)

    def list_offset(
        self, partition_state: PartitionState, timestamp: int, move: bool = True
    ) -> Generator[ClientEffect, Any, None]:
        requested = ListOffsetsPartition(self._partition, partition_state.state.leader_epoch, timestamp)
        answers: list[ListOffsetsResponse | None] = yield Call(
            partition_state.state.leader, (ListOffsetsRequest((requested,)),), self._view.settings.request_ms
        )
        found: ListedOffset | None = None if answers[0] is None else answers[0].partitions[0]
        if found is None or found.error is not ErrorCode.NONE:
            return
        if timestamp == LATEST:
            self._watermark(partition_state.state.leader, found.leader_epoch, found.offset, "list")
        if move:
            self._move(found.offset, "earliest" if timestamp == EARLIEST else "latest")

    def _fetch(self, partition_state: PartitionState, hurried: bool) -> Generator[ClientEffect, Any, bool]:
        leader = partition_state.state.leader
        found = yield from self._fetch_from(leader, partition_state, hurried)
        return found is not None and self.fetched(found, leader)

    def _fetch_from(
        self, broker: int, partition_state: PartitionState, hurried: bool, rack: str = ""
    ) -> Generator[ClientEffect, Any, FetchedPartition | None]:
        """None if there is no response."""
        settings = self._view.settings
        fetch = self.fetch_of(partition_state, hurried)
        wait_ms = 0 if hurried else self._view.random.choice((0, settings.request_ms // 4))
        request = FetchRequest(CONSUMER, -1, wait_ms, 1, 1 << 20, (fetch,), rack=rack)
        answers: list[FetchResponse | None] = yield Call(broker, (request,), settings.request_ms)
        response = answers[0]
        if response is None or response.error is not ErrorCode.NONE or not response.partitions:
            return None
        return response.partitions[0]

    def fetch_of(self, partition_state: PartitionState, hurried: bool) -> FetchPartition:
        """The partition's entry in a fetch from its position on."""
        return FetchPartition(
            self._partition,
            self.topic_id,
            partition_state.state.leader_epoch,
            self.position,
            max_bytes=1 << 20 if hurried else self._view.settings.fetch_bytes,
        )

    def fetched(self, found: FetchedPartition, broker: int, source: str = "fetch") -> bool:
        """Its entry in the response of a broker has come; whether all records are read, and this was known before.
        source: of the high watermark."""
        if found.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._move(-1, f"{self.position} is out of range")
            self._reset = EARLIEST
            return False
        if found.error is not ErrorCode.NONE:
            return False
        return self._take(found, broker, source)

    def _take(self, found: FetchedPartition, broker: int, source: str) -> bool:
        history = self._view.history
        if found.high_watermark >= 0:
            self._watermark(broker, found.leader_epoch, found.high_watermark, source)
        progress = False
        for record in self._codec.decode(found.records):
            if record.offset < self.position:
                continue
            progress = True
            self.position = record.offset + 1
            history.add(
                Read(
                    history.now_ms(),
                    self._partition,
                    self.topic_id,
                    self._view.name,
                    broker,
                    found.leader_epoch,
                    record.offset,
                    record.leader_epoch,
                    record.producer_id,
                    record.sequence,
                    record.value.decode(),
                )
            )
        return not progress and self.position >= found.high_watermark >= 0

    def _watermark(self, broker: int, leader_epoch: int, offset: int, source: str) -> None:
        history = self._view.history
        history.add(
            Watermark(
                history.now_ms(),
                self._partition,
                self.topic_id,
                self._view.name,
                broker,
                leader_epoch,
                offset,
                source,
            )
        )

    def _move(self, offset: int, reason: str) -> None:
        history = self._view.history
        self.position = offset
        history.add(Position(history.now_ms(), self._partition, self.topic_id, self._view.name, offset, reason))
