"""The sink to brokers: each task sends its rows to the leaders of their partitions, by the bulk client of kreplog.

At least once. A producer is idempotent, so that no batch of a task is written twice by its retries; but a task that
Spark runs again, or a stream's batch after a restart, is another producer and writes its rows again, and the rows of a
job that fails are not taken back. See transactional_sink.py for the sink that writes once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql.datasource import WriterCommitMessage

from kreplog.bulk_append import NULL_HEADER
from kreplog.errors import ErrorCode, InvalidTopicError, KreplogError, RecordTooLargeError, UsageError
from kreplog.types import TopicPartition, check_topic
from pyspark_kreplog.kafka_options import client_module
from pyspark_kreplog.sink import Job
from pyspark_kreplog.sink_options import BATCH_BYTES, MAX_REQUEST_BYTES, BrokerSinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from kreplog.client.producer import Producer

COLUMNS = ("value", "key", "headers", "partition")
PENDING_BYTES = 16 << 20
"""Rows that name their topics are sent once a task has so many bytes of them, topic by topic."""

PURPOSE = "write to"

_log = logging.getLogger("pyspark_kreplog")


@dataclass
class Sent(WriterCommitMessage):
    """The records that one task has written; all in-sync replicas of their partitions have them."""

    records: int


class BrokerSink:
    """Plain values: connections are made where they are used, in the driver for a look at the topic, and in tasks."""

    def __init__(self, options: BrokerSinkOptions) -> None:
        self._options = options

    def prepare(self) -> None:
        """Brokers answer, and know the topic of the option. Raises KreplogError."""
        options = self._options
        with explained(options):
            require_topic(options)

    def write(self, job: Job, task: int, batches: Iterable[pa.RecordBatch]) -> Sent:
        """Raises UsageError for a row that cannot be written, and KreplogError, naming the topic or partition, for what
        the cluster refuses or does not acknowledge in time. Other rows of the task may be written then, but for topics
        that do not exist or may not be written among the first PENDING_BYTES: these are found before any is sent."""
        options = self._options
        rows = Rows(batches, options.topic)
        with explained(options), _producer(options) as producer:
            try:
                require = producer.require_writable
                for topic, data in by_topic(rows, require) if options.topic is None else of_topic(options.topic, rows):
                    producer.append_arrow(topic, data)
            except KreplogError:
                if rows.failure is not None:  # of which an Arrow stream reports the text alone
                    raise rows.failure from None
                raise
        return Sent(rows.count)

    def commit(self, messages: Sequence[WriterCommitMessage]) -> None:
        """Brokers have shown the records as they came."""
        count = sum(message.records for message in messages if isinstance(message, Sent))
        _log.info("%d records are written to the cluster at %s", count, self._options.bootstrap)

    def abort(self, job: Job | None, messages: Sequence[WriterCommitMessage]) -> None:
        """Records that brokers have acknowledged stay."""
        _log.warning(
            "a write to the cluster at %s has failed; the rows that its tasks have written stay, and the next attempt "
            "writes them again",
            self._options.bootstrap,
        )


def require_topic(options: BrokerSinkOptions) -> None:
    """Raises UnknownTopicError, TopicAuthorizationError where rows may not be written to the topic of the option."""
    connections = client_module("cluster_connections", PURPOSE).ClusterConnections(
        options.bootstrap,
        options.client_id,
        options.request_timeout_s,
        client_module("security", PURPOSE).ClientSecurity.of(options.security),
    )
    deadline = time.monotonic() + options.max_block_s
    try:
        if options.topic is None:
            connections.refresh([], deadline)
        else:
            connections.require([TopicPartition(options.topic, 0)], deadline)
            connections.require_writable([options.topic], deadline)
    finally:
        connections.close()


def producer_settings(options: BrokerSinkOptions) -> dict[str, Any]:
    return {
        "compression": options.compression,
        "batch_bytes": options.batch_bytes,
        "max_record_bytes": options.max_request_bytes,
        "request_timeout_s": options.request_timeout_s,
        "delivery_timeout_s": options.delivery_timeout_s,
        "max_block_s": options.max_block_s,
        "client_id": options.client_id,
        "security": options.security,
    }


def _producer(options: BrokerSinkOptions) -> Producer:
    producer: Producer = client_module("producer", PURPOSE).Producer(options.bootstrap, **producer_settings(options))
    return producer


@contextmanager
def explained(options: BrokerSinkOptions) -> Iterator[None]:
    """Errors of the bulk client with the option that mends them."""
    try:
        yield
    except RecordTooLargeError as error:
        raise RecordTooLargeError(
            f"{error}: raise option '{MAX_REQUEST_BYTES}', and the topic's max.message.bytes"
        ) from error
    except KreplogError as error:
        code = getattr(error, "code", error.kafka_code)
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UsageError(
                f"{error}: not in its metadata for {options.max_block_s * 1000:.0f} ms (option 'kafka.max.block.ms'); "
                "create the topic first"
            ) from error
        if code is ErrorCode.MESSAGE_TOO_LARGE:
            raise UsageError(
                f"{error}: lower option '{BATCH_BYTES}', now {options.batch_bytes}, or raise the topic's "
                "max.message.bytes"
            ) from error
        raise


# Rows


class Rows:
    """The rows of a task as batches with the columns that are written, and with `topic` where rows name theirs.

    topic: of all rows, None where they name theirs. count: rows that were taken. failure: what ended them early.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], topic: str | None) -> None:
        self._batches = iter(batches)
        self._topic = topic
        self._names = ("topic", *COLUMNS) if topic is None else COLUMNS
        self.count = 0
        self.failure: BaseException | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(batch for batch in self._batches if batch.num_rows)
            batch = batch.select([name for name in self._names if name in batch.schema.names])
            self._check(batch)
        except StopIteration:
            raise
        except BaseException as error:
            self.failure = error
            raise
        self.count += batch.num_rows
        return batch

    def _check(self, batch: pa.RecordBatch) -> None:
        """Raises UsageError, in the words of Spark's Kafka sink."""
        if "topic" in batch.schema.names and batch.column("topic").null_count:
            row = batch.column("topic").to_pylist().index(None)
            raise UsageError(
                f"row {self.count + row}: null topic present in the data. Use the topic option for setting a topic."
            )
        if "headers" in batch.schema.names:
            entries = batch.column("headers").flatten()
            if entries.null_count or entries.field(0).null_count:
                row = next(
                    row
                    for row, headers in enumerate(batch.column("headers").to_pylist())
                    if any(header is None or header["key"] is None for header in headers or ())
                )
                topic = self._topic or batch.column("topic")[row]
                raise UsageError(f"topic {topic}, row {self.count + row}: {NULL_HEADER}")


def of_topic(topic: str, rows: Rows) -> Iterator[tuple[str, pa.RecordBatchReader]]:
    """The topic with all rows, which are taken while they are sent; nothing where there is no row."""
    import pyarrow as pa

    for first in rows:
        yield topic, pa.RecordBatchReader.from_batches(first.schema, chain([first], rows))


def by_topic(rows: Rows, require: Callable[[list[str]], None] = lambda topics: None) -> Iterator[tuple[str, pa.Table]]:
    """Each topic with rows, in their order; the same topic comes again with later rows. require: called with topics
    that are new, before rows that came with these are yielded."""
    import pyarrow as pa

    seen: set[str] = set()
    pending: list[pa.RecordBatch] = []
    size = 0
    while True:
        batch = next(rows, None)
        if batch is not None:
            pending.append(batch)
            size += batch.nbytes
        if pending and (batch is None or size >= PENDING_BYTES):
            pieces = dict(_split(pa.Table.from_batches(pending)))
            if not pieces.keys() <= seen:
                require(sorted(pieces.keys() - seen))
                seen |= pieces.keys()
            yield from pieces.items()
            pending, size = [], 0
        if batch is None:
            return


def _split(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    import pyarrow.compute as pc

    topics = table.column("topic").combine_chunks().dictionary_encode()
    by_topic = table.drop_columns("topic").take(pc.array_sort_indices(topics.indices))  # a stable sort
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(topics.indices).to_pylist()}
    start = 0
    for number, topic in enumerate(topics.dictionary.to_pylist()):
        count = counts[number]
        yield _checked(topic), by_topic.slice(start, count)
        start += count


def _checked(topic: str) -> str:
    try:
        return check_topic(topic)
    except InvalidTopicError as error:
        raise UsageError(f"column topic: {error}") from error
