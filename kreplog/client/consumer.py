"""Consumer: records of a cluster's partitions as Arrow columns, without a Python object per record.

A bulk client: the caller says which partitions it reads and from which offsets, and holds on to its positions itself.
Membership of consumer groups is left to the usual Kafka clients.
Works with kreplog's brokers and with Apache Kafka.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kreplog._native.arrow import ArrowBuilder
from kreplog._native.arrow_export import ArrowColumns
from kreplog._native.fetched import FetchedBatches
from kreplog.client.bulk_errors import FetchTimeoutError
from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.cluster_metadata import PartitionMetadata
from kreplog.client.epoch_history import EpochHistory
from kreplog.client.fetcher import Fetcher, FetchSettings, PartitionFetch
from kreplog.client.group_offsets import commit_offsets
from kreplog.client.offset_lookup import OffsetAndTimestamp, list_offsets
from kreplog.client.security import ClientSecurity
from kreplog.closing import Closing
from kreplog.core.messages import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from kreplog.errors import (
    ArgumentTypeError,
    CorruptBatchError,
    KreplogError,
    UnsupportedCompressionError,
    UnsupportedFormatError,
    UsageError,
)
from kreplog.types import TopicPartition, check_partition, check_topic

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value", "headers")
MAX_PIECE_BYTES = 1 << 30
ISOLATION_LEVELS = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


@dataclass(frozen=True, slots=True)
class FetchedArrow:
    """Rows of one partition, in order of their offsets; exports the Arrow PyCapsule interface.

    next_offset: where reading goes on; offsets below it that are no row here are control records, or were compacted
    away. high_watermark, log_start_offset: as the leader reported them with these rows; -1 for unknown.
    """

    partition: TopicPartition
    columns: ArrowColumns
    next_offset: int
    high_watermark: int
    log_start_offset: int

    def __len__(self) -> int:
        return len(self.columns)

    def __arrow_c_schema__(self) -> object:
        return self.columns.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.columns.__arrow_c_array__(requested_schema)

    def to_arrow(self) -> pa.RecordBatch:
        """As a pyarrow.RecordBatch, nothing copied. Needs pyarrow (`pip install 'kreplog[arrow]'`), else UsageError."""
        try:
            import pyarrow as pa
        except ImportError as error:
            raise UsageError("to_arrow needs pyarrow, which is not installed: pip install 'kreplog[arrow]'") from error
        return pa.record_batch(self.columns)


class Consumer(Closing):
    """Reads committed records of many partitions, from their leaders, as Arrow columns.

    bootstrap: "host:port,host:port", or a list. Connects when first used. For one thread at a time.

    columns: of DEFAULT_COLUMNS and "timestampType", in the order wanted; columns left out are not decoded.
    timestamp_unit: "ms" or "us". piece_bytes: about how many bytes of columns one FetchedArrow holds at most.
    max_wait_ms, min_bytes: how long a broker waits for so many bytes before it answers. max_bytes,
    partition_max_bytes: of one response, and of one partition in it; a larger batch is returned nevertheless.
    request_timeout_s: how long a broker may take for a response before its connection is given up.
    retry_timeout_s: how long leaders are looked for, and brokers tried, before that is an error.
    isolation_level: "read_committed" leaves out records of aborted transactions, and reads no further than the first
    open one (KIP-98). rack: the client's, as broker.rack has it: where brokers select replicas by rack, records come
    from one there (KIP-392). security: Kafka's settings security.protocol, ssl.* and
    sasl.* of a client, by name; and the callable oauth_cb.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        columns: Sequence[str] = DEFAULT_COLUMNS,
        *,
        timestamp_unit: str = "ms",
        piece_bytes: int = 16 << 20,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 16 << 20,
        partition_max_bytes: int = 4 << 20,
        request_timeout_s: float = 30.0,
        retry_timeout_s: float = 60.0,
        client_id: str = "kreplog",
        isolation_level: str = "read_uncommitted",
        rack: str = "",
        security: Mapping[str, Any] | None = None,
    ) -> None:
        if not 0 < piece_bytes <= MAX_PIECE_BYTES:
            raise UsageError(f"piece_bytes = {piece_bytes}: 1 to {MAX_PIECE_BYTES} are possible")
        if min(max_bytes, partition_max_bytes) < 1 or min(max_wait_ms, min_bytes) < 0 or max_bytes > 64 << 20:
            raise UsageError(
                "max_bytes is 1 to 64 MiB, partition_max_bytes above 0, max_wait_ms and min_bytes 0 or more"
            )
        if not request_timeout_s > 0 or not retry_timeout_s > 0:
            raise UsageError("request_timeout_s and retry_timeout_s are above 0")
        if max_wait_ms / 1000 >= request_timeout_s:
            raise UsageError(f"max_wait_ms = {max_wait_ms} is not below request_timeout_s = {request_timeout_s:g} s")
        self._builder = ArrowBuilder(columns, timestamp_unit)
        self._piece_bytes = piece_bytes
        self._settings = FetchSettings(
            max_wait_ms,
            min_bytes,
            max_bytes,
            partition_max_bytes,
            request_timeout_s,
            retry_timeout_s,
            _isolation_level(isolation_level),
            rack,
        )
        self._cluster = ClusterConnections(bootstrap, client_id, request_timeout_s, ClientSecurity.of(security))
        self._epochs = EpochHistory(self._cluster)
        self._busy = threading.Lock()
        self._fetcher: Fetcher | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._closed = False

    def close(self) -> None:
        """Close every connection; pieces that were handed over stay valid."""
        with self._alone(closing=True):
            self._closed = True
            if self._fetcher is not None:
                self._fetcher.close()
            self._cluster.close()

    # What there is

    def topics(self) -> list[str]:
        """The names of all topics, sorted. Raises BrokersUnreachableError."""
        with self._alone():
            return sorted({at.topic for at in self._cluster.refresh(None, self._deadline()).partitions})

    def partitions(self, topic: str) -> dict[TopicPartition, PartitionMetadata]:
        """The partitions of `topic` now, in order. Raises UnknownTopicError, BrokersUnreachableError."""
        check_topic(topic)
        with self._alone():
            self._cluster.refresh({topic}, self._deadline())
            metadata = self._cluster.require([TopicPartition(topic, 0)], self._deadline())
            return {at: known for at, known in sorted(metadata.partitions.items()) if at.topic == topic}

    def require_readable(self, topics: Iterable[str]) -> None:
        """Raise TopicAuthorizationError for one of `topics` that this client may not read, unless the brokers are too
        old to report that (before Kafka 2.3); nothing for topics that do not exist. Raises BrokersUnreachableError."""
        with self._alone():
            self._cluster.require_readable(topics, self._deadline())

    @property
    def brokers(self) -> dict[int, tuple[str, int]]:
        """Host and port of the live brokers by id, as the last metadata name them; `topics` and `partitions` refresh
        these."""
        return dict(self._cluster.metadata.brokers)

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after `timestamp_ms` by partition, None where there is none.

        Leaders that move meanwhile are looked up again until retry_timeout_s. Raises UnknownTopicError,
        PartitionUnavailableError, BrokersUnreachableError."""
        if timestamp_ms < 0:
            raise UsageError(f"timestamp_ms = {timestamp_ms}: milliseconds since 1970, 0 or more")
        return self._list_offsets(partitions, timestamp_ms)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each. Raises as list_offsets."""
        return {at: found.offset for at, found in self._list_offsets(partitions, EARLIEST).items() if found is not None}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, isolation_level: str | None = None
    ) -> dict[TopicPartition, int]:
        """The high watermark of each, below which records are committed; under read_committed the last stable offset.

        isolation_level: None for the consumer's. Raises as list_offsets, and UsageError for another level."""
        found = self._list_offsets(partitions, LATEST, isolation_level)
        return {at: entry.offset for at, entry in found.items() if entry is not None}

    def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[tuple[int, int], ...]]:
        """(leader epoch, start offset) of the epochs in each leader's log by partition, oldest first, as Log has them.

        By them another copy of the log is compared with the leader's (KIP-101, KIP-320). Empty from a broker that
        reports no epochs. Raises as list_offsets, and UnsupportedBrokerError for a broker older than Kafka 2.1."""
        wanted = [_partition(at) for at in partitions]
        with self._alone():
            return self._epochs.entries(wanted, self._deadline())

    def commit_offsets(
        self,
        group: str,
        positions: Mapping[TopicPartition, int],
        leader_epochs: Mapping[TopicPartition, int] | None = None,
        *,
        timeout_s: float = 10.0,
    ) -> None:
        """Commit positions, each the offset of the next record, under the name of a consumer group without members.

        For tools that report the lag of groups; this consumer itself reads no committed offsets. leader_epochs: of the
        record before each. Raises OffsetCommitError, BrokersUnreachableError, and UnsupportedBrokerError where brokers
        have no groups, as kreplog's.
        """
        checked = {_partition(at): _offset(at, offset) for at, offset in positions.items()}
        with self._alone():
            commit_offsets(self._cluster, group, checked, leader_epochs or {}, time.monotonic() + timeout_s)

    # Reading on and on

    def assign(self, positions: Mapping[TopicPartition, int], *, topic_ids: Mapping[str, str] | None = None) -> None:
        """Read these partitions, each from its offset, and no others.

        topic_ids: by name the id that a topic must have, for positions that were stored (PartitionMetadata.topic_id).
        Raises UnknownTopicError, TopicRecreatedError, BrokersUnreachableError.
        """
        checked = {_partition(at): _offset(at, offset) for at, offset in positions.items()}
        with self._alone():
            if self._fetcher is not None:
                self._fetcher.close()
            self._fetcher, self._positions = None, {}
            self._fetcher = self._make_fetcher(checked, {}, topic_ids or {})
            self._positions = checked

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of the next row that fetch_arrow will return, by assigned partition."""
        return dict(self._positions)

    def fetch_arrow(self, timeout_s: float = 1.0) -> FetchedArrow | None:
        """The next rows of one assigned partition, whichever has some; None where there are none in `timeout_s`.

        Raises what makes a partition unreadable, and reads the others on: OffsetOutOfRangeError, CorruptBatchError
        (after it was fetched again), TopicRecreatedError, LogTruncatedError, UnknownTopicError,
        PartitionUnavailableError, BrokersUnreachableError (after retry_timeout_s), UnsupportedCompressionError. The
        partition is read again once it is assigned again. PeerProtocolError: a broker breaks Kafka's protocol.
        """
        deadline = time.monotonic() + timeout_s
        with self._alone():
            if self._fetcher is None:
                raise UsageError("nothing is assigned: assign() partitions with their offsets first")
            return self._next(self._fetcher, deadline, self._positions)

    # Reading ranges

    def read_arrow(
        self,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        *,
        timeout_s: float = 60.0,
        topic_ids: Mapping[str, str] | None = None,
    ) -> Iterator[FetchedArrow]:
        """All rows of the ranges [start, stop) of offsets; each partition in order, several interleaved.

        Beside what is assigned, on connections of its own, which are closed with the iterator. Raises as fetch_arrow,
        FetchTimeoutError when nothing arrives for timeout_s: `stop` is past the high watermark.
        """
        checked = {_partition(at): (_offset(at, start), _offset(at, stop)) for at, (start, stop) in ranges.items()}
        for at, (start, stop) in checked.items():
            if stop < start:
                raise UsageError(f"{at}: stop = {stop} lies before start = {start}")
        return self._read_arrow(
            {at: bounds for at, bounds in checked.items() if bounds[0] < bounds[1]}, timeout_s, topic_ids or {}
        )

    def _read_arrow(
        self, ranges: dict[TopicPartition, tuple[int, int]], timeout_s: float, topic_ids: Mapping[str, str]
    ) -> Iterator[FetchedArrow]:
        positions = {at: start for at, (start, _) in ranges.items()}
        with self._alone():
            fetcher = self._make_fetcher(positions, {at: stop for at, (_, stop) in ranges.items()}, topic_ids)
        try:
            while True:
                before = dict(positions)
                with self._alone():
                    fetched = self._next(fetcher, time.monotonic() + timeout_s, positions)
                if fetched is not None:
                    yield fetched
                elif fetcher.finished:
                    return
                elif positions == before:
                    at = next(at for at, (_, stop) in ranges.items() if positions[at] < stop)
                    raise FetchTimeoutError(
                        f"{at}: no record at offset {positions[at]} for {timeout_s:g} s, of a range that ends at "
                        f"{ranges[at][1]}: is all of it committed?",
                        partition=str(at),
                        offset=positions[at],
                    )
        finally:
            fetcher.close()

    # Within

    def _next(self, fetcher: Fetcher, deadline: float, positions: dict[TopicPartition, int]) -> FetchedArrow | None:
        while fetcher.poll(deadline):
            fetching, batches = fetcher.ready[0]
            self._add(fetcher, fetching, batches)
            if batches.exhausted and fetcher.ready and fetcher.ready[0][1] is batches:
                fetcher.ready.popleft()
            positions[fetching.partition] = min(batches.next_offset, fetching.stop)
            columns = self._builder.finish()
            if len(columns):
                fetching.refetches = 0
                return FetchedArrow(
                    fetching.partition,
                    columns,
                    positions[fetching.partition],
                    fetching.high_watermark,
                    fetching.log_start_offset,
                )
        return None

    def _add(self, fetcher: Fetcher, fetching: PartitionFetch, batches: FetchedBatches) -> None:
        """Build rows; a corrupt batch is fetched again. Raises what that did not mend, with the partition's name."""
        at = fetching.partition
        try:
            batches.add_to(self._builder, self._piece_bytes)
        except (CorruptBatchError, UnsupportedCompressionError, UsageError) as error:
            damaged = isinstance(error, CorruptBatchError) and not isinstance(error, UnsupportedFormatError)
            if damaged and fetcher.rewind(at, batches.next_offset):
                return
            fetcher.forget(at)
            raise _located(error, at, batches.next_offset) from error

    def _make_fetcher(
        self, positions: Mapping[TopicPartition, int], stops: Mapping[TopicPartition, int], topic_ids: Mapping[str, str]
    ) -> Fetcher:
        return Fetcher(self._cluster, self._settings, positions, stops, topic_ids, self._deadline())

    def _list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, isolation_level: str | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The offset of each partition by time, None where there is none. isolation_level: None for the consumer's."""
        level = self._settings.isolation_level if isolation_level is None else _isolation_level(isolation_level)
        wanted = [_partition(at) for at in partitions]
        with self._alone():
            return list_offsets(self._cluster, wanted, timestamp, self._deadline(), level)

    def _deadline(self) -> float:
        return time.monotonic() + self._settings.retry_s

    @contextmanager
    def _alone(self, *, closing: bool = False) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise UsageError("this Consumer is in use by another thread: make one for each")
        try:
            if self._closed and not closing:
                raise UsageError("this Consumer is closed")
            yield
        finally:
            self._busy.release()


def _isolation_level(name: str) -> int:
    if name not in ISOLATION_LEVELS:
        raise UsageError(f"isolation_level = {name!r}: {' and '.join(ISOLATION_LEVELS)} are possible")
    return ISOLATION_LEVELS[name]


def _partition(at: Any) -> TopicPartition:
    try:
        topic, number = at
        return check_partition(TopicPartition(topic, number))
    except (TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise ArgumentTypeError(f"a partition is a TopicPartition, topic and number, not {at!r}") from None


def _offset(at: TopicPartition, offset: Any) -> int:
    if not isinstance(offset, int):
        raise ArgumentTypeError(f"{at}: an offset is an int, not {type(offset).__name__}")
    if not 0 <= offset < 2**63:
        raise UsageError(f"{at}: offset {offset} is no offset: 0 or more, below 2**63")
    return offset


def _located(error: KreplogError, at: TopicPartition, offset: int) -> KreplogError:
    return type(error)(f"{at}: {error}, from offset {offset} on", partition=str(at), offset=offset)
