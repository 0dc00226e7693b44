"""The sink to brokers by transactions: tasks return their rows to the driver, which writes all in one transaction.

Kafka's transactions have one producer, whose batches are in sequence for each partition: many tasks cannot share one
and be run again. So a job's rows pass through the driver. A stream's transaction also commits, for a group named after
the query, the number of the next batch as the offset of partition 0 of each topic; a batch below that is a replay.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from kreplog.errors import UsageError
from kreplog.types import TopicPartition
from pyspark_kreplog.broker_sink import (
    PURPOSE,
    Rows,
    by_topic,
    explained,
    of_topic,
    producer_settings,
    require_topic,
)
from pyspark_kreplog.kafka_options import client_module
from pyspark_kreplog.sink import Job
from pyspark_kreplog.sink_options import BrokerSinkOptions
from pyspark_kreplog.staging import is_replay

if TYPE_CHECKING:
    import pyarrow as pa

    from kreplog.client.transactional_producer import TransactionalProducer

MAX_TASK_BYTES = 1 << 30
"""Maximum of the rows of one task, compressed. Spark hands over messages of less than 2 GiB."""

_log = logging.getLogger("pyspark_kreplog")


@dataclass
class ReturnedRows(WriterCommitMessage):
    """The rows of one task: topics with Arrow streams, in the order of the rows."""

    job: Job
    records: int = 0
    pieces: list[tuple[str, bytes]] = field(default_factory=list)


class TransactionalSink:
    """Plain values, like BrokerSink."""

    def __init__(self, options: BrokerSinkOptions) -> None:
        self._options = options

    def prepare(self) -> None:
        """Brokers answer, have transactions, and know the topic of the option. Raises KreplogError."""
        with explained(self._options):
            with self._producer() as producer:
                producer.require_transactions()
            require_topic(self._options)

    def write(self, job: Job, task: int, batches: Iterable[pa.RecordBatch]) -> ReturnedRows:
        """Raises UsageError for a row that cannot be written, or too many rows."""
        import pyarrow as pa

        topic = self._options.topic
        rows = Rows(batches, topic)
        returned = ReturnedRows(job)
        compressed = pa.ipc.IpcWriteOptions(compression="lz4")
        size = 0
        for name, data in by_topic(rows) if topic is None else of_topic(topic, rows):
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, data.schema, options=compressed) as writer:
                for batch in data.to_batches() if isinstance(data, pa.Table) else data:
                    writer.write_batch(batch)
                    if size + stream.tell() > MAX_TASK_BYTES:
                        raise UsageError(
                            f"a task has more than {MAX_TASK_BYTES} bytes of rows for one transaction: write in more "
                            "partitions or smaller batches, or without 'kafka.transactional.id'"
                        )
            returned.pieces.append((name, stream.getvalue().to_pybytes()))
            size += len(returned.pieces[-1][1])
        returned.records = rows.count
        return returned

    def commit(self, messages: Sequence[WriterCommitMessage]) -> None:
        """Raises KreplogError: nothing is written, unless the message says that it is not known."""
        returned = [message for message in messages if isinstance(message, ReturnedRows) and message.pieces]
        if not returned:
            return
        job = returned[0].job
        with explained(self._options), self._producer() as producer:
            producer.require_writable(sorted({topic for message in returned for topic, _ in message.pieces}))
            producer.begin()
            if job.query_id is not None and job.batch_id is not None and _is_replay(producer, job):
                _log.info("batch %d of query %s has been committed before", job.batch_id, job.query_id)
                return
            try:
                self._write(producer, job, returned)
            except BaseException:
                producer.abort()
                raise
        _log.info("%d records are committed to the cluster at %s", sum(message.records for message in returned),
                  self._options.bootstrap)  # fmt: skip

    def abort(self, job: Job | None, messages: Sequence[WriterCommitMessage]) -> None:
        """Tasks have written nothing, and a commit that fails aborts its transaction."""

    def _write(self, producer: TransactionalProducer, job: Job, returned: Sequence[ReturnedRows]) -> None:
        import pyarrow as pa

        topics = set()
        for message in returned:
            for topic, stream in message.pieces:
                producer.append_arrow(topic, pa.ipc.open_stream(stream))
                topics.add(topic)
        if job.query_id is None or job.batch_id is None:
            producer.commit()
        else:
            producer.commit(group_of(job.query_id), {TopicPartition(topic, 0): job.batch_id + 1 for topic in topics})

    def _producer(self) -> TransactionalProducer:
        options = self._options
        producer: TransactionalProducer = client_module("transactional_producer", PURPOSE).TransactionalProducer(
            options.bootstrap, options.transactional_id, options.transaction_timeout_s, **producer_settings(options)
        )
        return producer


def group_of(query_id: str) -> str:
    """The group whose offsets say which batches of a query are committed."""
    return f"kreplog-spark-{query_id}"


def _is_replay(producer: TransactionalProducer, job: Job) -> bool:
    """Raises UsageError."""
    assert job.query_id is not None and job.batch_id is not None
    following = max(producer.committed_offsets(group_of(job.query_id)).values(), default=0)
    return is_replay(job.query_id, job.batch_id, following - 1)
