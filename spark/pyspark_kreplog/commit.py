"""The commit of staged jobs: all of a job's batches become visible together or not at all, and a stream's batch once.

    <path>/.kreplog-writes/lock        held by whoever commits, aborts or cleans up
                           commit      the job that is committed and not yet complete; its rename is the commit
                           completed   the name of the latest job that all partitions show
                           queries     the latest batch of each streaming query
                           <job>/      staged files

A commit has these steps; whoever finds it broken off goes by the last one that was reached:

    1. prepare    every log has the job's batches, durable, above its high watermark: the next to open it cuts them off
    2. commit     `commit` names the job, its files and, for each partition, a writer and a sequence
    3. complete   each log commits and shows the batches; those that were cut off are appended from the staged files
    4. clean      `queries` names the batch, `completed` the job; `commit` and the staged files go
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kreplog import Log
from kreplog.bulk_append import BulkAppend, atomic_write, last_sequence
from kreplog.config import LogConfig
from kreplog.errors import (
    CorruptBatchError,
    KreplogError,
    LogLockedError,
    StorageError,
    UsageError,
)
from kreplog.types import TopicPartition
from pyspark_kreplog.commit_record import (
    COMMIT_NAME,
    COMPLETED_NAME,
    CommitRecord,
    PartitionAppend,
    decode,
    encode_to,
    read_file,
)
from pyspark_kreplog.open_log_limit import allow_open_logs
from pyspark_kreplog.staging import FOLDER, Extent, Staged, is_abandoned, is_replay, partition_counts, sync_folder

BATCH_JOBS = "spark-batch-jobs"
MAX_QUERIES = 1000
LOCK_TIMEOUT_S = 600.0

_BROKER_FILE = "meta.properties"
_LOCK_POLL_S = 0.02

_log = logging.getLogger("pyspark_kreplog")


class SinkDirectory:
    """The directory of logs that jobs are committed to. Plain values, so that it can go to another process."""

    def __init__(self, path: str, max_message_bytes: int) -> None:
        self._path = Path(path)
        self._root = self._path / FOLDER
        self._config = LogConfig(max_message_bytes=max_message_bytes)

    # What a driver calls

    def recover(self) -> None:
        """Complete what a killed driver has committed, and delete what none will commit. Raises StorageError."""
        if self._root.is_dir():
            with self._locked():
                self._complete()
                self._clean()

    def commit(self, staged: Iterable[Staged | None]) -> None:
        """Commit one job, whose tasks have staged all of `staged`; a stream's batch that has been committed is only
        cleaned up. Raises UsageError, StorageError: nothing is committed, unless the error says otherwise."""
        messages = [message for message in staged if message is not None]
        if not messages:
            return
        job, query_id, batch_id = messages[0].job, messages[0].query_id, messages[0].batch_id
        self._root.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._complete()
            if query_id is None or batch_id is None:
                self._commit(job, None, None, messages)
            elif is_replay(query_id, batch_id, self._queries().get(query_id, -1)):
                _log.info(
                    "batch %d of query %s has been committed before; its rows are not written", batch_id, query_id
                )
            else:
                self._commit(job, query_id, batch_id, messages)
            if self._record() is None:
                self._delete(job)
            self._clean()

    def abort(self, job: str) -> None:
        """Delete what the job has staged, unless it is committed. Raises StorageError."""
        if self._root.is_dir():
            with self._locked():
                record = self._record()
                if record is None or record.job != job:
                    self._delete(job)

    # Steps

    def _commit(self, job: str, query_id: str | None, batch_id: int | None, messages: list[Staged]) -> None:
        self._check_counts(messages)
        extents: dict[TopicPartition, list[Extent]] = {}
        for message in messages:
            for partition, pieces in message.extents.items():
                extents.setdefault(partition, []).extend(pieces)
        allow_open_logs(len(extents), str(self._path))
        with contextlib.ExitStack() as open_logs:
            logs = self._open_topics(messages, extents, open_logs)
            appends = [
                PartitionAppend(
                    partition.topic,
                    partition.partition,
                    BATCH_JOBS if query_id is None else f"spark-query-{query_id}",
                    _next_sequence(logs[partition]) if batch_id is None else batch_id,
                    pieces,
                )
                for partition, pieces in sorted(extents.items())
            ]
            record = CommitRecord(job, query_id, batch_id, self._config.max_message_bytes, appends)
            with contextlib.ExitStack() as stack:
                prepared = [stack.enter_context(self._prepare(logs, record, append)) for append in appends]
                self._write_record(record)
                failure = _complete_prepared(prepared)
        self._finish(record, failure)

    def _finish(self, record: CommitRecord, failure: Exception | None) -> None:
        """Steps 3 and 4 as far as they can be done now. A committed job has succeeded: were its error raised, its
        writer would write it again. The next write or restart completes it."""
        try:
            if failure is None:
                self._forget(record)
            else:
                _log.warning("job %s is committed; completing it is tried again after: %s", record.job, failure)
                self._complete()
        except (KreplogError, OSError) as error:
            _log.error(
                "job %s is committed, and not complete yet; the next write to %s, or a restart of the query, completes "
                "it: do not write it again. %s",
                record.job,
                self._path,
                error,
            )

    def _prepare(self, logs: dict[TopicPartition, Log], record: CommitRecord, append: PartitionAppend) -> BulkAppend:
        """Step 1 for one partition. Raises UsageError, StorageError: the log is as it was."""
        bulk = BulkAppend(logs[TopicPartition(append.topic, append.partition)], append.writer, append.sequence)
        if not bulk.duplicate:
            try:
                self._copy(record.job, append, bulk)
                bulk.flush()
            except BaseException:
                bulk.abort()
                raise
        return bulk

    def _copy(self, job: str, append: PartitionAppend, bulk: BulkAppend, *, committed: bool = False) -> None:
        """Append the staged batches of one partition. Raises CorruptBatchError unless all of them are there.

        committed: whether the job is, so that writing it again would double its rows."""
        remedy = "the job is committed, so restore the file; do not write again" if committed else "write again"
        file, name = None, ""
        try:
            for extent in append.extents:
                if file is None or extent.file != name:
                    if file is not None:
                        file.close()
                    name, file = extent.file, open(self._root / job / extent.file, "rb")  # noqa: SIM115
                file.seek(extent.position)
                data = file.read(extent.length)
                if len(data) != extent.length or bulk.append(data, inspect=False) != extent.length:
                    raise CorruptBatchError(
                        f"staged file {self._root / job / name} is damaged at byte {extent.position}: {remedy}",
                        path=str(self._root / job / name),
                    )
        except OSError as error:
            raise StorageError(f"cannot read staged file {self._root / job / name}: {error.strerror}") from error
        finally:
            if file is not None:
                file.close()
        if bulk.end_offset - bulk.first_offset != append.records:
            raise CorruptBatchError(f"the staged files of {append.name} do not hold {append.records} records: {remedy}")

    def _complete(self) -> None:
        """Steps 3 and 4 of a job that is committed and not complete. Raises StorageError."""
        record = self._record()
        if record is None:
            return
        _log.info("completing job %s, which was committed before its driver ended", record.job)
        for append in record.appends:
            with (
                self._open(append.name, committed=record) as log,
                BulkAppend(log, append.writer, append.sequence) as bulk,
            ):
                if not bulk.duplicate:
                    self._copy(record.job, append, bulk, committed=True)
                    bulk.commit()
                    bulk.publish()
        self._forget(record)

    def _forget(self, record: CommitRecord) -> None:
        if record.query_id is not None and record.batch_id is not None:
            self._write_query(record.query_id, record.batch_id)
        # For plans that are under way, so not durable: see whole_jobs.py.
        atomic_write(str(self._root / COMPLETED_NAME), record.job.encode(), durable=False)
        (self._root / COMMIT_NAME).unlink()
        sync_folder(self._root)
        self._delete(record.job)

    def _delete(self, job: str) -> None:
        shutil.rmtree(self._root / job, ignore_errors=True)

    def _clean(self) -> None:
        for folder in self._root.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if folder.is_dir() and is_abandoned(folder):
                    _log.info("deleting %s, which a killed driver has left", folder)
                    self._delete(folder.name)

    # Logs and topics

    def _check_counts(self, messages: list[Staged]) -> None:
        """Rows were placed by the number of partitions that a topic still has. Raises UsageError."""
        present = partition_counts(str(self._path))
        wanted: dict[str, int] = {}
        for message in messages:
            for topic, count in message.topics.items():
                if wanted.setdefault(topic, count) != count or present.get(topic, count) != count:
                    raise UsageError(
                        f"topic {topic} in {self._path} had {count} partitions when rows were placed, and has "
                        f"{present.get(topic, wanted[topic])} now: write again"
                    )

    def _open_topics(
        self, messages: list[Staged], extents: dict[TopicPartition, list[Extent]], stack: contextlib.ExitStack
    ) -> dict[TopicPartition, Log]:
        """The logs that get records; the partitions that their topics lack are created."""
        counts = {topic: count for message in messages for topic, count in message.topics.items()}
        for topic, count in sorted(counts.items()):
            # The highest first: it says how many partitions the topic has, also after a kill in between.
            for name in (f"{topic}-{partition}" for partition in reversed(range(count))):
                if not (self._path / name).is_dir():
                    self._open(name).close()
        return {partition: stack.enter_context(self._open(str(partition))) for partition in sorted(extents)}

    def _open(self, name: str, *, committed: CommitRecord | None = None) -> Log:
        """The log of a partition, open for writing.

        committed: the job that is to be completed. Raises LogLockedError where another process has the log,
        StorageError."""
        config = self._config
        if committed is not None and committed.max_message_bytes > config.max_message_bytes:
            config = replace(config, max_message_bytes=committed.max_message_bytes)
        try:
            return Log.open(self._path / name, config)
        except LogLockedError as error:
            state = (
                "nothing is committed"
                if committed is None
                else f"job {committed.job} is committed, and completed by the next write: do not write it again"
            )
            raise LogLockedError(f"{state}: {error}", partition=name, path=str(self._path / name)) from error

    # Files

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The lock of all sinks in this directory. Raises StorageError after LOCK_TIMEOUT_S."""
        try:
            descriptor = os.open(self._root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"{self._root / 'lock'} cannot be opened ({error.strerror}): only the user who wrote to {self._path} "
                "first may write there",
                path=str(self._root / "lock"),
            ) from error
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StorageError(
                            f"process {os.pread(descriptor, 20, 0).decode() or 'unknown'} has been committing to "
                            f"{self._path} for {LOCK_TIMEOUT_S:.0f} s; nothing is committed, write again later"
                        ) from None
                    time.sleep(_LOCK_POLL_S)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _record(self) -> CommitRecord | None:
        content = self._read(COMMIT_NAME)
        return None if content is None else CommitRecord.from_json(content)

    def _write_record(self, record: CommitRecord) -> None:
        """Step 2. Raises StorageError: the job is not committed, unless the message says otherwise."""
        try:
            encode_to(self._root / COMMIT_NAME, record.to_json())
        except (StorageError, OSError) as error:
            self._withdraw(record, error)
            raise

    def _withdraw(self, record: CommitRecord, cause: Exception) -> None:
        """Take back a record whose rename may have happened although writing it failed."""
        try:
            written = self._record()
            if written is not None and written.job == record.job:
                (self._root / COMMIT_NAME).unlink()
                sync_folder(self._root)
        except (StorageError, OSError) as error:
            raise StorageError(
                f"job {record.job} may be committed, so do not write it again before {self._root / 'commit'} can be "
                f"read: {cause}; then {error}",
                path=str(self._root / COMMIT_NAME),
            ) from cause

    def _queries(self) -> dict[str, int]:
        return {query: batch for query, batch, _ in self._read("queries") or ()}

    def _write_query(self, query_id: str, batch_id: int) -> None:
        entries = [entry for entry in self._read("queries") or () if entry[0] != query_id]
        entries.append([query_id, batch_id, int(time.time())])
        encode_to(self._root / "queries", sorted(entries, key=lambda entry: entry[2])[-MAX_QUERIES:])

    def _read(self, name: str) -> Any:
        """The content of one of our files, None where there is none. Raises CorruptCheckpointError."""
        data = read_file(self._root / name)
        return None if data is None else decode(self._root / name, data)


def _next_sequence(log: Log) -> int:
    latest = last_sequence(log, BATCH_JOBS)
    return 0 if latest is None else latest + 1


def _complete_prepared(prepared: list[BulkAppend]) -> Exception | None:
    """Step 3 after step 2: all commit before the first is shown, so that readers see the job at once, all but. Returns
    the first error; what it hit is completed from the staged files."""
    failure = None
    for bulk in prepared:
        try:
            if not bulk.duplicate:
                bulk.commit()
        except StorageError as error:
            failure = failure or error
    for bulk in prepared:
        try:
            bulk.abort()
        except StorageError as error:
            failure = failure or error
    return failure


def check_no_broker(path: str) -> None:
    """Raise UsageError where the data directory is a broker's, running or not: only replication may append to its
    logs, and opening one as a log without replicas would commit what is not."""
    if os.path.exists(os.path.join(path, _BROKER_FILE)):
        raise UsageError(
            f"option 'path' = {path!r}: a broker's data directory, as its {_BROKER_FILE} says, whose logs only brokers "
            "write: write to another directory, or produce to the brokers",
            path=path,
        )
