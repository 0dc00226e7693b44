"""What a writer needs of a sink, whether it is a directory of logs or a cluster of brokers.

A job is one df.write, or one batch of a stream. Its tasks write; then the driver commits what they report, or aborts.
The sink to a path makes rows visible in its commit, which names the job durably, and so writes each job once. The sink
to brokers has written them before its commit, but for that by transactions, whose commit writes what tasks return.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import WriterCommitMessage

from kreplog.errors import StorageError
from pyspark_kreplog.commit import SinkDirectory, check_no_broker
from pyspark_kreplog.shared_path import mark, require_mark
from pyspark_kreplog.sink_options import SinkOptions
from pyspark_kreplog.staging import Staged, partition_count, partition_counts, stage

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Job:
    """A write to a sink. name: unique. query_id, batch_id: of a stream's batch, the same whenever it runs again; else
    None."""

    name: str
    query_id: str | None = None
    batch_id: int | None = None


class Sink(Protocol):
    """Goes to tasks by pickle. All but `write` run in the driver."""

    def prepare(self) -> None:
        """Before the first task. Raises KreplogError where nothing can be written."""

    def write(self, job: Job, task: int, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """The rows of one task of the job; what it returns goes to commit or abort."""

    def commit(self, messages: Sequence[WriterCommitMessage]) -> None:
        """All tasks have succeeded. Raises KreplogError."""

    def abort(self, job: Job | None, messages: Sequence[WriterCommitMessage]) -> None:
        """A task has failed; of the tasks that ran beside it, `messages` has those that had succeeded. job: None of a
        stream, whose driver knows its jobs from the messages alone."""


class DirectorySink:
    """The sink to a path: staged by tasks, see staging.py, and committed by the driver, see commit.py."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._mark = ""

    def prepare(self) -> None:
        """The directory is there and ours to write to, and an earlier job in it is complete."""
        options = self._options
        try:
            os.makedirs(options.path, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"option 'path' = {options.path!r}: the directory cannot be made: {error.strerror}; give another, or "
                "make it for the user of the driver and of the workers",
                path=options.path,
            ) from error
        check_no_broker(options.path)
        if options.topic is not None:
            partition_count(options.topic, partition_counts(options.path), options)
        self._directory().recover()
        self._mark = mark(options.path)

    def write(self, job: Job, task: int, batches: Iterable[pa.RecordBatch]) -> Staged:
        require_mark(self._options.path, self._mark)
        return stage(self._options, Staged(job.name, job.query_id, job.batch_id), task, batches)

    def commit(self, messages: Sequence[WriterCommitMessage]) -> None:
        self._directory().commit(_staged(messages))

    def abort(self, job: Job | None, messages: Sequence[WriterCommitMessage]) -> None:
        names = {message.job for message in _staged(messages)} | ({job.name} if job is not None else set())
        for name in sorted(names):
            self._directory().abort(name)

    def _directory(self) -> SinkDirectory:
        return SinkDirectory(self._options.path, self._options.max_message_bytes)


def _staged(messages: Sequence[WriterCommitMessage]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]
