"""Producer: Arrow rows to the partitions of a cluster, idempotent, without a Python object per record.

A bulk client: a call takes a table and returns when all of it is on all in-sync replicas. One record a call, acks other
than all, partitioners other than Kafka's own, TLS and SASL are left to the usual Kafka clients.
Transactions are transactional_producer.py's. Works with kreplog's brokers and with Apache Kafka.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kreplog._native.arrow_records import ArrowRows, BatchEncoder, arrow_pieces
from kreplog.client.bulk_connection import BulkConnection, close_quietly, wait_for
from kreplog.client.bulk_errors import BrokersUnreachableError, PartitionUnavailableError, ProduceError
from kreplog.client.cluster_connections import RETRY_BACKOFF_S, ClusterConnections, check_topic_id, unauthorized
from kreplog.client.produce_queue import MAX_IN_FLIGHT, PartitionQueue, QueuedBatch
from kreplog.client.security import ClientSecurity
from kreplog.closing import Closing
from kreplog.core.messages import ProducedPartition, ProducePartition, ProduceRequest
from kreplog.errors import ErrorCode, KreplogError, PeerProtocolError, UsageError
from kreplog.types import NO_LEADER, TopicPartition, check_partition_number, check_topic
from kreplog.wire import generic, produce
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_REQUEST_BYTES = 16 << 20
"""About the most of one Produce request; brokers take 100 MiB."""

MAX_PIECES = 8
"""Record batches of the caller's data that are taken before the rows of earlier ones are all batches."""

ALL_IN_SYNC = -1
LOOK_WITHIN_S = 5.0
LONG_PAUSE_S = 0.1
"""A reader that gives its rows sooner is not noticed in the age of batches."""


@dataclass(frozen=True, slots=True)
class AppendedRange:
    """Records of one call that stand together in a partition: offsets [first_offset, next_offset).

    -1, -1 where the broker only said that it had them before: written once, at offsets that it no longer knows.
    """

    partition: TopicPartition
    first_offset: int
    next_offset: int
    records: int


class _BrokerProduces:
    """The connection to one broker, and what its requests in flight hold, by correlation id."""

    def __init__(self, connection: BulkConnection) -> None:
        self.connection = connection
        self.in_flight: dict[int, dict[TopicPartition, QueuedBatch]] = {}
        self.sent_at: dict[int, float] = {}


class Producer(Closing):
    """Appends rows of Arrow tables to the partitions of a cluster, as idempotent batches.

    bootstrap: "host:port,host:port", or a list. Connects when first used. For one thread at a time.

    compression: "none", "gzip", "snappy", "lz4" or "zstd". batch_bytes: of a batch before compression; a topic's
    max.message.bytes must allow it. max_record_bytes: of one record. request_timeout_s: how long a broker may take for
    a response before its connection is given up. delivery_timeout_s: how long a batch is tried before the producer
    fails. max_block_s: how long a call looks for its topic in the metadata; by default delivery_timeout_s. security:
    Kafka's settings security.protocol, ssl.* and sasl.* of a client, by name; and the callable oauth_cb.
    """

    _transactional_id: str | None = None

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        compression: str = "none",
        batch_bytes: int = 1_000_000,
        max_record_bytes: int = 1 << 30,
        request_timeout_s: float = 30.0,
        delivery_timeout_s: float = 120.0,
        max_block_s: float | None = None,
        client_id: str = "kreplog",
        security: Mapping[str, Any] | None = None,
    ) -> None:
        if max_block_s is None:
            max_block_s = delivery_timeout_s
        if not request_timeout_s > 0 or not delivery_timeout_s > 0 or not max_block_s > 0:
            raise UsageError("request_timeout_s, delivery_timeout_s and max_block_s are above 0")
        transactional = self._transactional_id is not None
        self._encoder = BatchEncoder(batch_bytes, compression, max_record_bytes, transactional)
        self._request_timeout_s = request_timeout_s
        self._delivery_timeout_s = delivery_timeout_s
        self._max_block_s = max_block_s
        self._cluster = ClusterConnections(bootstrap, client_id, request_timeout_s, ClientSecurity.of(security))
        self._brokers: dict[int, _BrokerProduces] = {}
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._topic_ids: dict[str, str] = {}
        self._identity: tuple[int, int] | None = None
        self._runs = 0  # of rows without a key: where the next begins
        self._refresh_at = 0.0
        self._leaderless_since = 0.0
        self._busy = threading.Lock()
        self._failure: KreplogError | None = None
        self._closed = False

    def close(self) -> None:
        with self._alone(closing=True):
            self._closed = True
            self._disconnect()
            self._cluster.close()

    def append_arrow(self, topic: str, data: object, *, partition: int | None = None) -> tuple[AppendedRange, ...]:
        """Write all rows of `data`; return where they are, once all in-sync replicas have them.

        data: a table, record batch, reader or DataFrame that exports the Arrow PyCapsule interface, with the columns
        value, key (binary or string), timestamp, headers and partition, all optional; see _native/arrow_records.
        partition: for all rows. Without it, and where that column is null, the key decides, as Kafka's clients do. Rows
        of a partition keep their order. A reader is consumed while it is sent.

        Leaders that move or die are followed and batches sent again, by sequence numbers that have brokers write each
        once. Raises UsageError and ArgumentTypeError for what cannot be a record (after rows before it, which may be
        written), UnknownTopicError, TopicRecreatedError, BrokersUnreachableError, PeerProtocolError; ProduceError for
        what a broker refuses, and for delivery_timeout_s: it may or may not be written. A failure after the first row
        was sent ends the producer: it is not known what the broker has seen, so make a new one.
        """
        check_topic(topic)
        if partition is not None:
            check_partition_number(partition)
        pieces = arrow_pieces(data)
        with self._alone():
            deadline = time.monotonic() + self._max_block_s
            metadata = self._cluster.require([TopicPartition(topic, partition or 0)], deadline)
            known = metadata.partitions[TopicPartition(topic, partition or 0)]
            self._topic_ids.setdefault(topic, known.topic_id)
            check_topic_id(metadata, TopicPartition(topic, partition or 0), self._topic_ids[topic])
            if self._identity is None:
                self._identity = self._init_producer_id(deadline)
            self._leaderless_since = time.monotonic()
            try:
                self._write(topic, pieces, partition)
            except BaseException as error:
                if self._active:
                    self._failure = error if isinstance(error, KreplogError) else None
                    self._fail(error)
                raise
            return self._take_appended()

    def require_writable(self, topics: Iterable[str]) -> None:
        """Raise UnknownTopicError for one of `topics` that the cluster does not have, and TopicAuthorizationError for
        one that this client may not write, unless the brokers are too old to report that (before Kafka 2.3). Raises
        BrokersUnreachableError."""
        topics = list(topics)
        with self._alone():
            deadline = time.monotonic() + self._max_block_s
            self._cluster.require([TopicPartition(topic, 0) for topic in topics], deadline)
            self._cluster.require_writable(topics, deadline)

    # The loop

    def _write(self, topic: str, pieces: Iterator[ArrowRows], partition: int | None) -> None:
        exhausted = False
        while True:
            now = time.monotonic()
            sent = self._send_produces(now)
            loaded = sum(queue.waiting > 0 for queue in self._active.values())
            if not exhausted and not sent and self._wants_rows(loaded):
                rows = next(pieces, None)
                self._extend(time.monotonic() - now)
                exhausted = rows is None
                if rows is not None:
                    self._add(topic, rows, partition)
                continue
            if exhausted and all(queue.idle for queue in self._active.values()):
                return
            if not sent:
                self._expire(now)
                self._find_leaders(now)
                self._receive(now + RETRY_BACKOFF_S)

    def _wants_rows(self, loaded: int) -> bool:
        """Whether a broker may be idle for want of rows, and not too many wait for others."""
        waiting = sum(queue.waiting for queue in self._active.values())
        return waiting < MAX_PIECES * max(1, loaded) and (
            not loaded or any(len(broker.in_flight) < MAX_IN_FLIGHT for broker in self._brokers.values())
        )

    def _add(self, topic: str, rows: ArrowRows, partition: int | None) -> None:
        if partition is not None:
            selections = [rows.whole(partition)] if rows.length else []
        else:
            count = sum(at.topic == topic for at in self._cluster.metadata.partitions)
            try:
                selections = rows.by_partition(count, self._runs % count)
            except UsageError as error:
                raise UsageError(
                    f"topic {topic}: {error}: give a partition that the topic has, or null to have the key choose it"
                ) from None
            self._runs += 1
        self._admit([TopicPartition(topic, selection.partition) for selection in selections])
        for selection in selections:
            at = TopicPartition(topic, selection.partition)
            queue = self._queues.get(at)
            if queue is None:
                queue = self._queues[at] = PartitionQueue(at)
            self._active[at] = queue
            queue.add(selection)

    def _admit(self, partitions: Sequence[TopicPartition]) -> None:
        """Called before rows of these partitions are sent; a producer without transactions has nothing to do."""

    def _take_appended(self) -> tuple[AppendedRange, ...]:
        """The ranges acknowledged since the last call, neighbours merged."""
        ranges: list[AppendedRange] = []
        for at, queue in sorted(self._active.items()):
            acked, queue.acked = queue.acked, []
            for batch in acked:
                first = batch.base_offset
                stop = first + batch.records if first >= 0 else -1
                last = ranges[-1] if ranges else None
                if last is not None and last.partition == at and last.next_offset == first:
                    ranges[-1] = AppendedRange(at, last.first_offset, stop, last.records + batch.records)
                else:
                    ranges.append(AppendedRange(at, first, stop, batch.records))
        self._active.clear()
        return tuple(ranges)

    # Sending

    def _send_produces(self, now: float) -> bool:
        """One request to each broker that has room for one and something to be sent; whether there was any."""
        metadata = self._cluster.metadata
        led: dict[int, list[PartitionQueue]] = {}
        for at, queue in self._active.items():
            leader = metadata.leader_of(at)
            if leader != NO_LEADER and queue.retry_at <= now:
                led.setdefault(leader, []).append(queue)
        sent = False
        for broker_id, queues in led.items():
            broker = self._brokers.get(broker_id)
            if broker is None or len(broker.in_flight) < MAX_IN_FLIGHT:
                sent = self._send_produce(broker_id, queues, now) or sent
        return sent

    def _send_produce(self, broker_id: int, queues: list[PartitionQueue], now: float) -> bool:
        assert self._identity is not None
        producer_id, producer_epoch = self._identity
        batches: dict[TopicPartition, QueuedBatch] = {}
        size = 0
        for queue in queues:
            batch = (
                queue.next_batch(self._encoder, producer_id, producer_epoch, now) if size < MAX_REQUEST_BYTES else None
            )
            if batch is not None:
                batches[queue.partition] = batch
                size += len(batch.data)
        if not batches:
            return False
        deadline = now + self._request_timeout_s
        partitions = tuple(ProducePartition(at, batch.data) for at, batch in sorted(batches.items()))
        request = ProduceRequest(ALL_IN_SYNC, int(self._request_timeout_s * 900), partitions)
        try:
            broker = self._brokers.get(broker_id)
            if broker is None:
                broker = self._brokers[broker_id] = _BrokerProduces(self._cluster.connect(broker_id, deadline))
            header = broker.connection.send(
                ApiKey.PRODUCE,
                lambda header: produce.encode_request(request, header, self._transactional_id),
                deadline,
            )
            broker.in_flight[header.correlation_id] = batches
            broker.sent_at[header.correlation_id] = now
        except OSError:
            self._lost(batches, now)
            self._lose(broker_id, now)
        return True

    def _lose(self, broker_id: int, now: float) -> None:
        """The connection is gone: all that was in flight is sent again, wherever its leader is then."""
        broker = self._brokers.pop(broker_id, None)
        if broker is not None:
            close_quietly(broker.connection)
            for batches in broker.in_flight.values():
                self._lost(batches, now)

    def _lost(self, batches: dict[TopicPartition, QueuedBatch], now: float) -> None:
        for at, batch in batches.items():
            self._queues[at].on_lost([batch])
            self._forget_leader(self._queues[at], now)

    def _forget_leader(self, queue: PartitionQueue, now: float) -> None:
        queue.retry_at = now + RETRY_BACKOFF_S
        self._cluster.metadata = self._cluster.metadata.without_leader(queue.partition)

    # Time

    def _extend(self, pause_s: float) -> None:
        """Extend the delivery time-outs by the caller's own pause between two rows."""
        if pause_s < LONG_PAUSE_S:
            return
        for queue in self._active.values():
            queue.extend(pause_s)
        for broker in self._brokers.values():
            broker.sent_at = {number: sent_at + pause_s for number, sent_at in broker.sent_at.items()}
        self._leaderless_since += pause_s

    def _expire(self, now: float) -> None:
        for broker_id, broker in list(self._brokers.items()):
            if any(now - sent_at > self._request_timeout_s for sent_at in broker.sent_at.values()):
                self._lose(broker_id, now)
        for at, queue in self._active.items():
            oldest = queue.oldest()
            if oldest is not None and now - oldest > self._delivery_timeout_s:
                code = queue.last_error or ErrorCode.REQUEST_TIMED_OUT
                raise ProduceError(
                    f"{at}: records are not acknowledged for {self._delivery_timeout_s:g} s ({code.name}); it is not "
                    "known whether they are written",
                    partition=str(at),
                    code=code,
                )

    def _find_leaders(self, now: float) -> None:
        lost = [at for at, queue in self._active.items() if not queue.idle and self._is_lost(at)]
        if not lost:
            self._leaderless_since = now
            return
        if now < self._refresh_at:
            return
        self._refresh_at = now + RETRY_BACKOFF_S
        at = lost[0]
        if now - self._leaderless_since > self._delivery_timeout_s:
            raise PartitionUnavailableError(f"{at}: no leader for {self._delivery_timeout_s:g} s", partition=str(at))
        try:
            metadata = self._cluster.refresh({at.topic for at in lost}, now + LOOK_WITHIN_S)
        except BrokersUnreachableError:
            if now - self._leaderless_since > self._delivery_timeout_s / 2:
                raise
            return
        for at in lost:
            check_topic_id(metadata, at, self._topic_ids[at.topic])
            if metadata.denies(at.topic):
                raise unauthorized(at)

    def _is_lost(self, at: TopicPartition) -> bool:
        return self._cluster.metadata.leader_of(at) == NO_LEADER

    # Receiving

    def _receive(self, deadline: float) -> None:
        waiting = {broker.connection: broker_id for broker_id, broker in self._brokers.items() if broker.in_flight}
        if not waiting:
            time.sleep(max(0.0, min(deadline - time.monotonic(), RETRY_BACKOFF_S)))  # until a batch is tried again
            return
        for connection in wait_for(list(waiting), deadline):
            broker_id = waiting[connection]
            try:
                for header, frame in connection.receive():
                    self._on_response(broker_id, header, frame)
            except OSError:
                self._lose(broker_id, time.monotonic())

    def _on_response(self, broker_id: int, header: RequestHeader, frame: Buffer) -> None:
        broker = self._brokers[broker_id]
        batches = broker.in_flight.pop(header.correlation_id)
        del broker.sent_at[header.correlation_id]
        produced = {found.partition: found for found in produce.decode_response(frame, header).partitions}
        if produced.keys() != batches.keys():
            raise PeerProtocolError("the broker's response to a produce is about other partitions than the request")
        now = time.monotonic()
        for at, batch in batches.items():
            self._on_partition(self._queues[at], batch, produced[at], now)

    def _on_partition(self, queue: PartitionQueue, batch: QueuedBatch, found: ProducedPartition, now: float) -> None:
        acknowledged = queue.on_response(batch, found.error, found.base_offset, found.log_append_time_ms, found.message)
        if not acknowledged:
            self._forget_leader(queue, now)

    # Identity and end

    def _init_producer_id(self, deadline: float) -> tuple[int, int]:
        """A producer id of our own, with its epoch, from any broker."""
        while True:
            for broker_id in self._cluster.metadata.brokers:
                try:
                    response = self._cluster.call_leader(
                        broker_id,
                        ApiKey.INIT_PRODUCER_ID,
                        deadline,
                        transactional_id=None,
                        transaction_timeout_ms=60_000,
                        producer_id=-1,
                        producer_epoch=-1,
                    )
                except OSError:
                    continue
                error = generic.error_of(response.error_code)
                if error is ErrorCode.NONE and response.producer_id >= 0 <= response.producer_epoch:
                    return response.producer_id, response.producer_epoch
            if time.monotonic() + RETRY_BACKOFF_S >= deadline:
                raise BrokersUnreachableError("no broker gives a producer id: are they running?")
            time.sleep(RETRY_BACKOFF_S)  # before the request is sent again to a broker that may be restarting
            self._cluster.refresh(None, deadline)

    def _fail(self, error: BaseException) -> None:
        """Nothing is known of what was in flight: this producer's sequences are of no more use."""
        self._disconnect()
        appended = self._take_appended()
        if isinstance(error, ProduceError):
            error.appended = appended
        if self._failure is None:
            self._failure = KreplogError(f"an append was interrupted by {type(error).__name__}")

    def _disconnect(self) -> None:
        for broker in self._brokers.values():
            close_quietly(broker.connection)
        self._brokers.clear()

    @contextmanager
    def _alone(self, *, closing: bool = False) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise UsageError("this Producer is in use by another thread: make one for each")
        try:
            if self._closed and not closing:
                raise UsageError("this Producer is closed")
            if self._failure is not None and not closing:
                raise UsageError(f"this Producer has failed: make a new one ({self._failure})") from self._failure
            yield
        finally:
            self._busy.release()
