"""The sink: what Spark calls to write a DataFrame or a stream, handed on to staging.py in tasks and commit.py in the
driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kreplog.errors import UsageError
from pyspark_kreplog.commit import SinkDirectory, check_no_broker
from pyspark_kreplog.sink_options import SinkOptions
from pyspark_kreplog.staging import (
    Staged,
    driver_identity,
    new_job,
    partition_count,
    partition_counts,
    stage,
    stream_job,
)

if TYPE_CHECKING:
    import pyarrow as pa


class BatchWriter(DataSourceArrowWriter):
    """One df.write: its rows are in the logs once the job has succeeded, and never a part of them."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = new_job()
        _prepare_directory(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, Staged(self._job), _task().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _directory(self._options).commit(_staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _directory(self._options).abort(self._job)


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's sink: each of its batches is in the logs once, however often Spark runs it."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._driver = driver_identity()
        _prepare_directory(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = _task()
        query_id = task.getLocalProperty("sql.streaming.queryId")
        batch_id = task.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise UsageError("Spark names neither query nor batch to this task, so that it cannot be written once")
        job = stream_job(query_id, int(batch_id), self._driver)
        return stage(self._options, Staged(job, query_id, int(batch_id)), task.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _directory(self._options).commit(_staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for job in {message.job for message in _staged(messages)}:
            _directory(self._options).abort(job)


def _prepare_directory(options: SinkOptions) -> None:
    """Before the first task: the directory is there and ours to write to, and an earlier job in it is complete."""
    os.makedirs(options.path, exist_ok=True)
    check_no_broker(options.path)
    if options.topic is not None:
        partition_count(options.topic, partition_counts(options.path), options)
    _directory(options).recover()


def _directory(options: SinkOptions) -> SinkDirectory:
    return SinkDirectory(options.path, options.max_message_bytes)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise UsageError("rows are written by Spark's tasks, and this is none")
    return context


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]
