"""Fetcher: record batches of many partitions from their leaders, by pipelined fetches in sessions, without a thread.

Each broker has one connection and one fetch in flight. When its response has arrived, the next fetch is sent, from
behind the batches of that response, before any row of it is built: the broker reads while rows are built.

A partition whose leader moved, died or lags behind in its metadata is looked up again and fetched on from where it was;
after `retry_s` without success it fails. An error that retrying does not mend fails its partition at once. A partition
that failed is fetched no more; its error is raised when all that was fetched before has been handed over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kreplog._native.fetched import FetchedBatches
from kreplog.client.bulk_connection import BulkConnection, close_quietly, wait_for
from kreplog.client.bulk_errors import (
    BrokersUnreachableError,
    PartitionUnavailableError,
    TopicRecreatedError,
    UnknownTopicError,
)
from kreplog.client.cluster_connections import RETRY_BACKOFF_S, ClusterConnections, check_topic_id, unauthorized
from kreplog.client.fetch_session import FetchSession, is_lost
from kreplog.core.messages import READ_UNCOMMITTED, FetchedPartition, FetchPartition
from kreplog.errors import ErrorCode, KreplogError, LogTruncatedError, OffsetOutOfRangeError, PeerProtocolError
from kreplog.types import NO_EPOCH, NO_LEADER, TopicPartition
from kreplog.wire import fetch
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

FIRST_WITH_TOPIC_IDS = 13

REFETCHES = 2
"""How often a batch that arrived corrupt is fetched again before that is an error."""

METADATA_MAX_AGE_S = 60.0
"""How old metadata grow while all goes well; a leader that is silent about a topic made again is noticed by then."""

RETRY_WITHIN_S = 5.0
"""The most that looking for leaders may take at a time."""

MOVED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}
"""Errors after which the metadata are fetched again before the partition is tried again."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    request_timeout_s: float
    retry_s: float
    isolation_level: int = READ_UNCOMMITTED
    rack: str = ""


class PartitionFetch:
    """Where the fetches of one partition are. fetch_offset: of the next fetch. stop: nothing is fetched from there on.

    replica: the broker that the leader prefers for this client's rack (KIP-392), until replica_until; None: the leader.
    failing_since: of the first of the errors that no success has followed.
    """

    __slots__ = (
        "failing_since",
        "fetch_offset",
        "high_watermark",
        "last_epoch",
        "last_error",
        "log_start_offset",
        "partition",
        "refetches",
        "replica",
        "replica_until",
        "retry_at",
        "stop",
        "topic_id",
    )

    def __init__(self, partition: TopicPartition, topic_id: str, offset: int, stop: int) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.fetch_offset = offset
        self.stop = stop
        self.last_epoch = NO_EPOCH
        self.high_watermark = -1
        self.log_start_offset = -1
        self.failing_since: float | None = None
        self.last_error = ErrorCode.NONE
        self.retry_at = 0.0
        self.refetches = 0
        self.replica: int | None = None
        self.replica_until = 0.0

    @property
    def finished(self) -> bool:
        return self.fetch_offset >= self.stop


class _BrokerFetches:
    """The connection to one broker, its session, and the fetch in flight."""

    def __init__(self, connection: BulkConnection, session: FetchSession) -> None:
        self.connection = connection
        self.session = session
        self.sent_at = 0.0

    @property
    def in_flight(self) -> bool:
        return self.connection.in_flight > 0


class Fetcher:
    """Fetches record batches of many partitions from their leaders. positions: the first offset of each partition.
    stops: where a partition ends, for those that do. topic_ids: the ids that the topics must have, where they are
    known.

    Raises UnknownTopicError, TopicRecreatedError, BrokersUnreachableError.
    """

    def __init__(
        self,
        cluster: ClusterConnections,
        settings: FetchSettings,
        positions: Mapping[TopicPartition, int],
        stops: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str],
        deadline: float,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._brokers: dict[int, _BrokerFetches] = {}
        self._failures: deque[KreplogError] = deque()
        self._refresh_at = 0.0
        self._expires_at = time.monotonic() + METADATA_MAX_AGE_S
        self._fetches: dict[TopicPartition, PartitionFetch] = {}
        self.ready: deque[tuple[PartitionFetch, FetchedBatches]] = deque()
        metadata = cluster.require(positions, deadline)
        for partition, offset in positions.items():
            check_topic_id(metadata, partition, topic_ids.get(partition.topic, ""))
            topic_id = metadata.partitions[partition].topic_id
            self._fetches[partition] = PartitionFetch(partition, topic_id, offset, stops.get(partition, 2**63 - 1))

    @property
    def finished(self) -> bool:
        """Whether no partition is left to fetch, nothing is ready, and no error is left to raise."""
        return not self.ready and not self._failures and all(fetch.finished for fetch in self._fetches.values())

    def poll(self, deadline: float) -> bool:
        """Whether something is `ready` by `deadline`; fetches go on meanwhile, and one is sent ahead.

        Raises what failed a partition, once nothing is ready; and PeerProtocolError, UnsupportedBrokerError."""
        while True:
            self._send_fetches(time.monotonic())
            if self.ready:
                return True
            if self._failures:
                raise self._failures.popleft()
            now = time.monotonic()
            if now >= deadline or all(fetching.finished for fetching in self._fetches.values()):
                return False
            self._receive(min(deadline, self._next_retry(now)))

    def rewind(self, partition: TopicPartition, offset: int) -> bool:
        """Fetch `partition` from `offset` again, if that has not been done REFETCHES times without a row in between."""
        fetching = self._fetches.get(partition)
        if fetching is None or fetching.refetches == REFETCHES:
            return False
        fetching.refetches += 1
        fetching.fetch_offset = offset
        fetching.last_epoch = NO_EPOCH
        fetching.retry_at = time.monotonic() + RETRY_BACKOFF_S
        self.ready = deque((other, batches) for other, batches in self.ready if other is not fetching)
        return True

    def forget(self, partition: TopicPartition) -> None:
        """Fetch `partition` no more."""
        self._fetches.pop(partition, None)
        self.ready = deque((other, batches) for other, batches in self.ready if other.partition != partition)

    def close(self) -> None:
        for broker in self._brokers.values():
            close_quietly(broker.connection)
        self._brokers.clear()

    # Sending

    def _send_fetches(self, now: float) -> None:
        self._expire(now)
        self._find_leaders(now)
        led: dict[int, dict[TopicPartition, FetchPartition]] = {}
        metadata = self._cluster.metadata
        waiting = {broker_id for broker_id, broker in self._brokers.items() if broker.in_flight}
        for fetching in self._fetches.values():
            source = self._source_of(fetching, now)
            if source in waiting:
                continue
            if source != NO_LEADER and not fetching.finished and fetching.retry_at <= now:
                epoch = metadata.partitions[fetching.partition].leader_epoch
                led.setdefault(source, {})[fetching.partition] = FetchPartition(
                    fetching.partition,
                    fetching.topic_id,
                    epoch,
                    fetching.fetch_offset,
                    fetching.last_epoch,
                    -1,
                    self._settings.partition_max_bytes,
                )
        for broker_id, wanted in led.items():
            self._send_fetch(broker_id, wanted, now)

    def _send_fetch(self, broker_id: int, wanted: dict[TopicPartition, FetchPartition], now: float) -> None:
        settings = self._settings
        deadline = now + settings.request_timeout_s
        try:
            broker = self._brokers.get(broker_id)
            if broker is None:
                broker = self._brokers[broker_id] = _BrokerFetches(
                    self._cluster.connect(broker_id, deadline), FetchSession(settings.isolation_level, settings.rack)
                )
            if broker.connection.version(ApiKey.FETCH) >= FIRST_WITH_TOPIC_IDS:
                without = next((request for request in wanted.values() if not request.topic_id), None)
                if without is not None:
                    raise PeerProtocolError(f"{without.partition}: the broker fetches by topic id, and has given none")
            session = broker.session
            request = session.next_request(wanted, settings.max_wait_ms, settings.min_bytes, settings.max_bytes)
            broker.connection.send(
                ApiKey.FETCH, lambda header: fetch.encode_request(request, header, session.topic_id_of), deadline
            )
            broker.sent_at = now
        except OSError:
            self._lose(broker_id, wanted, now)

    def _lose(self, broker_id: int, partitions: Mapping[TopicPartition, object], now: float) -> None:
        """The connection is gone: look up the leaders of its partitions again."""
        broker = self._brokers.pop(broker_id, None)
        if broker is not None:
            close_quietly(broker.connection)
        for partition in partitions:
            self._retry(self._fetches[partition], ErrorCode.BROKER_NOT_AVAILABLE, now)

    def _expire(self, now: float) -> None:
        """Give up connections whose broker is silent for longer than request_timeout_s."""
        for broker_id, broker in list(self._brokers.items()):
            if broker.in_flight and now - broker.sent_at > self._settings.request_timeout_s:
                self._lose(broker_id, self._fetched_from(broker_id, now), now)

    def _fetched_from(self, broker_id: int, now: float) -> dict[TopicPartition, PartitionFetch]:
        return {at: fetching for at, fetching in self._fetches.items() if self._source_of(fetching, now) == broker_id}

    def _source_of(self, fetching: PartitionFetch, now: float) -> int:
        """The broker to fetch from: the replica that the leader prefers, if there is one, else the leader."""
        leader = self._cluster.metadata.leader_of(fetching.partition)
        if fetching.replica is None or leader == NO_LEADER:
            return leader
        if now >= fetching.replica_until or fetching.replica not in self._cluster.metadata.brokers:
            fetching.replica = None
            return leader
        return fetching.replica

    # Leaders

    def _find_leaders(self, now: float) -> None:
        metadata = self._cluster.metadata
        lost = [
            fetching
            for at, fetching in self._fetches.items()
            if not fetching.finished and metadata.leader_of(at) == NO_LEADER
        ]
        if now >= self._expires_at:
            lost = [fetching for fetching in self._fetches.values() if not fetching.finished]
        if not lost or now < self._refresh_at:
            return
        self._refresh_at = now + RETRY_BACKOFF_S
        self._expires_at = now + METADATA_MAX_AGE_S
        try:
            metadata = self._cluster.refresh({fetching.partition.topic for fetching in lost}, now + RETRY_WITHIN_S)
        except BrokersUnreachableError as error:
            for fetching in lost:
                self._retry(fetching, ErrorCode.BROKER_NOT_AVAILABLE, now, error)
            return
        for fetching in lost:
            self._check_leader(fetching, now)

    def _check_leader(self, fetching: PartitionFetch, now: float) -> None:
        metadata = self._cluster.metadata
        try:
            check_topic_id(metadata, fetching.partition, fetching.topic_id)
        except TopicRecreatedError as error:
            self._fail(fetching, error)
            return
        if metadata.denies(fetching.partition.topic):
            self._fail(fetching, unauthorized(fetching.partition))
        elif metadata.leader_of(fetching.partition) == NO_LEADER:
            known = fetching.partition in metadata.partitions
            code = ErrorCode.LEADER_NOT_AVAILABLE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            self._retry(fetching, code, now)

    def _retry(self, fetching: PartitionFetch, error: ErrorCode, now: float, cause: KreplogError | None = None) -> None:
        """Try the leader after a while, with metadata looked up again; fail if that has gone on for retry_s."""
        at = fetching.partition
        if fetching.replica is not None:
            fetching.replica = None
        elif error in MOVED or error is ErrorCode.BROKER_NOT_AVAILABLE:
            self._cluster.metadata = self._cluster.metadata.without_leader(at)
        fetching.retry_at = now + RETRY_BACKOFF_S
        fetching.last_error = error
        if fetching.failing_since is None:
            fetching.failing_since = now
        elif now - fetching.failing_since > self._settings.retry_s:
            if cause is not None:
                self._fail(fetching, cause)
            elif error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._fail(
                    fetching, UnknownTopicError(f"{at}: the cluster has no such topic or partition", partition=str(at))
                )
            else:
                self._fail(
                    fetching,
                    PartitionUnavailableError(
                        f"{at}: no leader serves offset {fetching.fetch_offset} for {self._settings.retry_s:g} s "
                        f"({error.name})",
                        partition=str(at),
                        code=error,
                    ),
                )

    def _fail(self, fetching: PartitionFetch, error: KreplogError) -> None:
        del self._fetches[fetching.partition]
        self._failures.append(error)

    def _next_retry(self, now: float) -> float:
        """When something other than a response is to be done next."""
        waiting = [fetching.retry_at for fetching in self._fetches.values() if fetching.retry_at > now]
        expiring = [
            broker.sent_at + self._settings.request_timeout_s for broker in self._brokers.values() if broker.in_flight
        ]
        return min([*waiting, *expiring, now + RETRY_WITHIN_S])

    # Receiving

    def _receive(self, deadline: float) -> None:
        waiting = {broker.connection: broker_id for broker_id, broker in self._brokers.items() if broker.in_flight}
        if not waiting:
            time.sleep(max(0.0, deadline - time.monotonic()))  # until a partition is tried again
            return
        for connection in wait_for(list(waiting), deadline):
            now = time.monotonic()
            broker_id = waiting[connection]
            try:
                for header, frame in connection.receive():
                    self._on_response(broker_id, header, frame)
            except OSError:
                self._lose(broker_id, self._fetched_from(broker_id, now), now)

    def _on_response(self, broker_id: int, header: RequestHeader, frame: Buffer) -> None:
        broker = self._brokers[broker_id]
        session = broker.session
        unknown_ids: list[str] = []

        def topic_of(topic_id: str) -> str | None:
            topic = session.topic_of(topic_id)
            if topic is None:
                unknown_ids.append(topic_id)
            return topic

        try:
            response = fetch.decode_response(frame, header, topic_of)
        except PeerProtocolError:
            self._lose(broker_id, {}, time.monotonic())
            raise
        now = time.monotonic()
        held = session.partitions()
        if not session.on_response(response):
            if not is_lost(response):
                self._retry_all(held, response.error, now)
            return
        reported = {fetched.partition for fetched in response.partitions}
        if unknown_ids:  # a topic was made again under its name, and the broker's session went on with the new one
            session.reset()
            self._retry_all([at for at in held if at not in reported], ErrorCode.UNKNOWN_TOPIC_ID, now)
        else:
            self._succeed([at for at in held if at not in reported])
        for fetched in response.partitions:
            fetching = self._fetches.get(fetched.partition)
            requested = held.get(fetched.partition)
            if fetching is None or requested is None or requested.fetch_offset != fetching.fetch_offset:
                continue  # not requested; or the partition has been rewound, or served by its new leader, since
            self._on_partition(fetching, fetched, now)

    def _retry_all(self, partitions: Iterable[TopicPartition], error: ErrorCode, now: float) -> None:
        for at in partitions:
            fetching = self._fetches.get(at)
            if fetching is not None:
                self._retry(fetching, error, now)

    def _succeed(self, partitions: Iterable[TopicPartition]) -> None:
        """The leader has nothing new of these, and no error."""
        for at in partitions:
            fetching = self._fetches.get(at)
            if fetching is not None:
                fetching.failing_since = None

    def _on_partition(self, fetching: PartitionFetch, fetched: FetchedPartition, now: float) -> None:
        at = fetching.partition
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE and fetching.replica is not None:
            self._retry(fetching, fetched.error, now)  # a follower may lag behind
        elif fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._fail(
                fetching,
                OffsetOutOfRangeError(
                    f"{at}: offset {fetching.fetch_offset} is outside the leader's log, which begins at "
                    f"{fetched.log_start_offset} with a high watermark of {fetched.high_watermark}",
                    partition=str(at),
                    offset=fetching.fetch_offset,
                ),
            )
        elif fetched.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._fail(fetching, unauthorized(at))
        elif fetched.error is not ErrorCode.NONE:
            self._retry(fetching, fetched.error, now)
        elif fetched.diverging is not None:
            self._fail(
                fetching,
                LogTruncatedError(
                    f"{at}: the leader's log parts from what was read at offset {fetched.diverging.end_offset}, after "
                    f"leader epoch {fetched.diverging.leader_epoch}: records were lost in an unclean election",
                    partition=str(at),
                    offset=fetched.diverging.end_offset,
                ),
            )
        else:
            fetching.high_watermark = fetched.high_watermark
            fetching.log_start_offset = fetched.log_start_offset
            if fetched.preferred_read_replica < 0:
                fetching.failing_since = None
            elif fetched.preferred_read_replica not in self._cluster.metadata.brokers:
                self._expires_at = now
                self._retry(fetching, ErrorCode.BROKER_NOT_AVAILABLE, now)
                return
            elif fetching.replica is None:
                fetching.replica = fetched.preferred_read_replica
                fetching.replica_until = now + METADATA_MAX_AGE_S
            batches = FetchedBatches(fetched.records, fetching.fetch_offset, fetching.stop, fetched.aborted)
            if batches.end_offset > fetching.fetch_offset:
                fetching.fetch_offset = batches.end_offset
                fetching.last_epoch = batches.last_epoch
            if not batches.exhausted:
                self.ready.append((fetching, batches))
