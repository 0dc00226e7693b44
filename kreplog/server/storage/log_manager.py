"""LogManager: carries out the replication core's effects on the logs of one broker.

Everything runs on the event loop except what blocks: fsync, deletion of files, checkpoints, lookups by timestamp, and
appends of much that a follower has fetched run in threads. A log that fails takes its directory offline: see
kreplog.server.storage.directory_failure.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from kreplog.config import LogConfig, TopicConfig
from kreplog.core import effects, events
from kreplog.errors import (
    LogClosedError,
    LogFailedError,
    OffsetOutOfRangeError,
    ResourceExhaustedError,
    StorageError,
    check,
    is_exhaustion,
)
from kreplog.managed_log import CheckedBatches, Fetched, ManagedLog, end_of, error_of
from kreplog.server.runtime.runners import InThread
from kreplog.server.storage.checkpoint_writer import CheckpointWriter
from kreplog.server.storage.directory_failure import DirectoryFailureHandler
from kreplog.server.storage.flusher import Flusher
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.log_cleaner import CleanerSettings, LogCleaner
from kreplog.server.storage.replica import Replica
from kreplog.server.storage.replica_moves import ReplicaMoves
from kreplog.server.storage.timestamp_lookups import TimestampLookups
from kreplog.types import AppendInfo, TopicPartition

_log = logging.getLogger("kreplog.server")

LOG_EFFECTS = frozenset(
    {
        effects.OpenLog,
        effects.AppendAsLeader,
        effects.AppendMarker,
        effects.AppendAsFollower,
        effects.EndOfRecords,
        effects.AssignLeaderEpoch,
        effects.TruncateTo,
        effects.TruncateFullyAndStartAt,
        effects.DeleteRecordsBefore,
        effects.EnforceRetention,
        effects.ReplaceLog,
        effects.SyncReplacement,
        effects.ConfigureLog,
        effects.ReadLog,
        effects.ReadStable,
        effects.SizeFrom,
        effects.OffsetForTimestamp,
        effects.AdvanceHighWatermark,
        effects.Flush,
        effects.SetAsideStray,
        effects.RestoreStray,
        effects.DeleteStrays,
        effects.DeleteLog,
    }
)
"""The effects that LogManager.execute takes."""

APPEND_BYTES = 512 << 10
"""Bytes of records from which on a thread appends them: of fewer, the way there and back takes as long as the write."""

MAX_HELD_FILES = 32
"""Maximum of segment files that are held open while segments are deleted."""


class LogManager:
    """Carries out the replication core's effects on logs. hosted: the broker's replicas, loaded. put: takes the events
    Flushed, OffsetFound and LogFailed, on the event loop. pool: threads for fsyncs and checkpoints. cleaner: without
    effect unless it is run."""

    def __init__(
        self,
        hosted: HostedReplicas,
        put: Callable[[events.Event], None],
        pool: Executor,
        cleaning: CleanerSettings | None = None,
    ) -> None:
        self.hosted = hosted
        self._pool = pool
        self._appends = ThreadPoolExecutor(1, "kreplog-appends")
        self._failures = DirectoryFailureHandler(hosted, put)
        self._flusher = Flusher(pool, hosted.replicas, put, self._failures.fail, hosted.background)
        self._lookups = TimestampLookups(put, hosted.background)
        self.cleaner = LogCleaner(
            hosted, cleaning or CleanerSettings(), self._failures.log_failed, self._flusher.note_sealed
        )
        self._configs: dict[TopicConfig, LogConfig] = {}
        self._configs_under = hosted.config
        self._checkpoints = CheckpointWriter(hosted, pool, self._failures.fail)
        self.moves = ReplicaMoves(
            hosted, self.cleaner, self._flusher, put, self._failures.fail, self._checkpoints.write_now
        )
        self._operations: dict[type, Callable[[Any], Any]] = {
            effects.OpenLog: self._open,
            effects.AppendAsLeader: self._append_as_leader,
            effects.AppendMarker: self._append_marker,
            effects.AppendAsFollower: self._append_as_follower,
            effects.EndOfRecords: lambda effect: end_of(effect.records),
            effects.AssignLeaderEpoch: self._assign_leader_epoch,
            effects.TruncateTo: self._truncate_to,
            effects.TruncateFullyAndStartAt: self._truncate_fully,
            effects.DeleteRecordsBefore: self._delete_records,
            effects.EnforceRetention: self._enforce_retention,
            effects.ReplaceLog: self.moves.replace,
            effects.SyncReplacement: self.moves.sync,
            effects.ConfigureLog: self._configure,
            effects.ReadLog: self._read,
            effects.ReadStable: self._read_stable,
            effects.SizeFrom: self._size_from,
            effects.OffsetForTimestamp: self._offset_for_timestamp,
            effects.AdvanceHighWatermark: self._advance_high_watermark,
            effects.Flush: lambda effect: self._flusher.flush(effect.partition, hosted.of(effect.partition)),
            effects.SetAsideStray: lambda effect: hosted.set_stray(effect.partition),
            effects.RestoreStray: lambda effect: hosted.restore_stray(effect.partition, effect.topic_id),
            effects.DeleteStrays: lambda effect: hosted.delete_strays(effect.partition, effect.topic_id),
            effects.DeleteLog: lambda effect: hosted.delete(effect.partition),
        }

    def execute(self, effect: effects.Effect) -> Any:
        """Carry out one effect; returns its answer, or InThread. Raises what the effect's docstring says."""
        operation = self._operations[type(effect)]
        if type(effect) is effects.AppendAsFollower and is_for_thread(effect.records):
            operation = self._append_in_thread
        return self._carry_out(effect, operation)

    def _carry_out(self, effect: effects.Effect, operation: Callable[[Any], Any]) -> Any:
        try:
            return operation(effect)
        except (LogFailedError, ResourceExhaustedError) as error:
            if is_exhaustion(error):
                self._flusher.release_descriptors()
            if isinstance(error, LogFailedError):
                self._failures.log_failed(_partition_of(effect), error)
            raise
        except OSError as error:
            raise error_of("cannot use the files of", str(getattr(effect, "partition", "")), error) from error

    # Effects

    def _open(self, effect: effects.OpenLog) -> effects.OpenedLog:
        replica = self.hosted.open(effect.partition, effect.topic_id)
        if replica is None:
            replica = self.hosted.create(effect.partition, effect.topic_id)
        self._flusher.note_opened(replica)
        self._set_config(replica, effect.config)
        return effects.OpenedLog(replica.state, replica.log.high_watermark)

    def _append_as_leader(self, effect: effects.AppendAsLeader) -> tuple[AppendInfo, effects.LogState]:
        replica, producers = self.hosted.of(effect.partition), self.hosted.producers
        info = replica.log.append_batches(
            effect.records,
            effect.leader_epoch,
            strict=effect.strict,
            new_producers=producers.has_room,
            transactional=effect.transactional,
            sequenced=effect.sequenced,
            verified_by=effect.verified_by,
        )
        if replica.log.producer_count != replica.producers:
            producers.update(replica)
        self._flusher.note_appended(replica)
        self._flusher.note_sealed(replica)
        return info, replica.state

    def _append_marker(self, effect: effects.AppendMarker) -> tuple[AppendInfo, effects.LogState]:
        replica, marker = self.hosted.of(effect.partition), effect.marker
        info = replica.log.append_transaction_marker(
            marker.producer_id,
            marker.producer_epoch,
            committed=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            leader_epoch=effect.leader_epoch,
        )
        self._flusher.note_appended(replica)
        self._flusher.note_sealed(replica)
        return info, replica.state

    def _append_as_follower(self, effect: effects.AppendAsFollower) -> effects.LogState:
        replica = self.hosted.of(effect.partition)
        replica.log.append_as_follower(effect.records)
        return self._followed(replica)

    def _append_in_thread(self, effect: effects.AppendAsFollower) -> InThread:
        """The event loop goes on while the batches, which are checked already, are written."""
        replica = self.hosted.of(effect.partition)
        future = self._appends.submit(replica.log.append_as_follower, effect.records)
        replica.threads += 1

        def finish(_: effects.AppendAsFollower) -> effects.LogState:
            replica.threads -= 1
            replica.release()
            future.result()
            return self._followed(replica)

        return InThread(future, partial(self._carry_out, effect, finish))

    def _followed(self, replica: Replica) -> effects.LogState:
        if replica.log.producer_count != replica.producers:
            self.hosted.producers.update(replica)
        self._flusher.note_appended(replica)
        self._flusher.note_sealed(replica)
        return replica.state

    def _assign_leader_epoch(self, effect: effects.AssignLeaderEpoch) -> effects.LogState:
        replica = self.hosted.of(effect.partition)
        replica.log.assign_leader_epoch(effect.leader_epoch)
        return replica.state

    def _truncate_to(self, effect: effects.TruncateTo) -> effects.LogState:
        replica = self.hosted.of(effect.partition)
        replica.log.truncate_to(effect.offset)
        self._flusher.note_truncated(replica)
        return replica.state

    def _truncate_fully(self, effect: effects.TruncateFullyAndStartAt) -> effects.LogState:
        replica = self.hosted.of(effect.partition)
        replica.log.truncate_fully_and_start_at(effect.offset)
        return replica.state

    def _delete_records(self, effect: effects.DeleteRecordsBefore) -> effects.LogState:
        replica = self.hosted.of(effect.partition)
        with self._holding_files(replica.log):
            replica.log.delete_records_before(effect.offset)
        return replica.state

    def _enforce_retention(self, effect: effects.EnforceRetention) -> effects.LogState:
        replica = self.hosted.of(effect.partition)
        with self._holding_files(replica.log):
            replica.log.enforce_retention()
        self._flusher.note_sealed(replica)
        return replica.state

    @contextmanager
    def _holding_files(self, log: ManagedLog) -> Iterator[None]:
        """Hold the oldest segments' files open, and close them in a thread: the kernel frees a deleted file's blocks at
        its last close, which takes tenths of a second for each GiB."""
        held: list[int] = []
        with suppress(OSError):  # out of descriptors: then the event loop pays for the deletion
            held.extend(
                os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC) for segment in log.segments[:-1][:MAX_HELD_FILES]
            )
        try:
            yield
        finally:
            if held:
                self._pool.submit(_close_all, held)

    def _configure(self, effect: effects.ConfigureLog) -> None:
        try:
            self._set_config(self.hosted.of(effect.partition), effect.config)
        except (StorageError, LogClosedError) as error:  # a failed log is reported by its next use
            _log.warning("%s keeps its settings: %s", effect.partition, error)

    def _set_config(self, replica: Replica, topic: TopicConfig) -> None:
        config = self._log_config(topic)
        if replica.log.config != config:
            replica.log.configure(config)
        self._flusher.set_flush_ms(replica, topic.flush_ms)

    def _log_config(self, topic: TopicConfig) -> LogConfig:
        if self._configs_under is not self.hosted.config:
            self._configs_under = self.hosted.config
            self._configs.clear()
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = topic.log_config(self.hosted.config)
        return config

    def _read(self, effect: effects.ReadLog) -> memoryview:
        """A view of the mapped segment, valid for as long as it is referenced: truncation replaces the file, never cuts
        it."""
        log_end = self.hosted.of(effect.partition).log.log_end_offset
        return self._fetch(effect, "log_end" if effect.limit >= log_end else "committed").data

    def _read_stable(self, effect: effects.ReadStable) -> tuple[memoryview, tuple[tuple[int, int], ...]]:
        fetched = self._fetch(effect, "last_stable")
        return fetched.data, tuple(fetched.aborted)

    def _fetch(self, effect: effects.ReadLog | effects.ReadStable, isolation: str) -> Fetched:
        try:
            fetched = self.hosted.of(effect.partition).log.fetch(effect.offset, max(effect.max_bytes, 0), isolation)
        except OffsetOutOfRangeError as error:
            raise StorageError(f"{effect.partition}: offset {effect.offset} is gone: {error}") from error
        check(fetched.next_offset <= effect.limit, f"{effect.partition}: read past {effect.limit}")
        return fetched

    def _size_from(self, effect: effects.SizeFrom) -> int:
        try:
            return self.hosted.of(effect.partition).log.size_from(effect.offset)
        except OffsetOutOfRangeError as error:
            raise StorageError(f"{effect.partition}: offset {effect.offset} is gone: {error}") from error

    def _offset_for_timestamp(self, effect: effects.OffsetForTimestamp) -> None:
        self._lookups.start(self.hosted.of(effect.partition), effect.partition, effect.timestamp, effect.tag)

    def _advance_high_watermark(self, effect: effects.AdvanceHighWatermark) -> int | None:
        log = self.hosted.of(effect.partition).log
        try:
            log.advance_high_watermark(effect.offset)
        except LogFailedError as error:  # the records are committed whatever happens to this replica
            self._failures.log_failed(effect.partition, error)
        return log.first_unstable_offset

    # Periodic work

    def partitions_with_retention(self) -> list[TopicPartition]:
        """Partitions with a retention limit, in online directories."""
        return [
            partition
            for partition, replica in self.hosted.items()
            if not replica.directory.failed and replica.log.config.has_retention_limit
        ]

    async def expire_producers(self) -> None:
        """Remove idle producer ids from all logs."""
        await self.hosted.producers.expire([replica for _, replica in self.hosted.items()])

    def sync_files(self, then: Callable[[], None]) -> None:
        """Fsync what was opened and truncated since the last call; calls `then()` once all that was ever opened is
        durable."""
        self._flusher.sync_files(then)

    async def write_checkpoints(self) -> None:
        """Write the checkpoint files of every online directory."""
        await self._checkpoints.write()

    # Stop

    def close(self, *, mark: bool = True) -> bool:
        """Close every log, and unlock the directories; blocks. Returns whether all directories were closed cleanly.

        mark: write the clean shutdown mark into each directory that was."""
        self._appends.shutdown()
        self.moves.close()
        self._flusher.drop_sealed()  # closing a log syncs all of it
        self._lookups.close()
        self.cleaner.close()
        return self._checkpoints.close_all(mark=mark)


def is_for_thread(records: Any) -> bool:
    """Whether a thread appends these, which a follower has fetched."""
    return type(records) is CheckedBatches and len(records) >= APPEND_BYTES


def _partition_of(effect: Any) -> TopicPartition:
    partition: TopicPartition = effect.partition
    return partition


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
