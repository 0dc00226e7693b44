"""What Spark calls to write a DataFrame or a stream: jobs and tasks by Spark's names, handed on to a sink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kreplog.errors import UsageError
from pyspark_kreplog.shipping import Shipped
from pyspark_kreplog.sink import Job, Sink
from pyspark_kreplog.staging import driver_identity, new_job, stream_job

if TYPE_CHECKING:
    import pyarrow as pa


class BatchWriter(Shipped, DataSourceArrowWriter):
    """One df.write: to a path its rows are in the logs once the job has succeeded, and never a part of them."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._job = Job(new_job())
        sink.prepare()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(self._job, _task().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.commit(_given(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(self._job, _given(messages))


class StreamWriter(Shipped, DataSourceStreamArrowWriter):
    """A streaming query's sink: to a path each of its batches is in the logs once, however often Spark runs it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._driver = driver_identity()
        sink.prepare()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query_id = task.getLocalProperty("sql.streaming.queryId")
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise UsageError("Spark names neither query nor batch to this task, so that it cannot be written once")
        job = Job(stream_job(query_id, int(batch_id), self._driver), query_id, int(batch_id))
        return self._sink.write(job, task.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.commit(_given(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.abort(None, _given(messages))


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise UsageError("rows are written by Spark's tasks, and this is none")
    return context


def _given(messages: list[WriterCommitMessage | None]) -> list[WriterCommitMessage]:
    return [message for message in messages if message is not None]
