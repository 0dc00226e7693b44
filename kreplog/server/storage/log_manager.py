"""LogManager: the native logs of all replicas of one broker, and the answers to what the cores ask of them.

Everything here runs on the broker's event loop, but for what blocks: recovery at the start, fsync, the deletion of
files, the writing of checkpoints and the closing at the end, each in a pool of threads. A log that fails takes its
directory with it: every replica there is reported as failed, and nothing there is opened again in this life (F37).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kreplog.config import LogConfig, TopicConfig
from kreplog.core import effects, events
from kreplog.core import messages as m
from kreplog.core.memory import MemoryAccount
from kreplog.errors import (
    LogClosedError,
    LogFailedError,
    OffsetOutOfRangeError,
    ReplicaRefusedError,
    ResourceExhaustedError,
    StorageError,
    check,
    is_disk_full,
    is_exhaustion,
)
from kreplog.managed_log import ManagedLog, end_of, error_of
from kreplog.server.storage.directories import DataDirectory, Offsets
from kreplog.server.storage.flusher import Flusher
from kreplog.server.storage.open_files import OpenFiles
from kreplog.server.storage.replica import Replica
from kreplog.server.storage.strays import Strays
from kreplog.types import AppendInfo, TopicPartition

_log = logging.getLogger("kreplog.server")

LOG_EFFECTS = frozenset(
    {
        effects.OpenLog,
        effects.AppendAsLeader,
        effects.AppendAsFollower,
        effects.EndOfRecords,
        effects.AssignLeaderEpoch,
        effects.TruncateTo,
        effects.TruncateFullyAndStartAt,
        effects.DeleteRecordsBefore,
        effects.EnforceRetention,
        effects.ConfigureLog,
        effects.ReadLog,
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
"""What LogManager.answer takes."""

LOOKUPS_AT_ONCE = 2
"""Threads that look for offsets by time; of their own, so that no number of such requests holds up an fsync."""

PRODUCERS = "producer_ids"
PRODUCER_BYTES = 440
"""What each idempotent producer that a log remembers is charged; a quarter of the account may be theirs."""

HELD_FILES = 32
"""So many segments are deleted without a pause for everybody else."""

Progress = Callable[[int, int, int], None]
"""Called with (replicas opened, replicas to open, bytes that recovery has read so far)."""


class LogManager:
    """See the module. `put` takes the events Flushed, OffsetFound and LogFailed, on the event loop.

    memory: what idempotent producers are charged to.
    complete: no directory was missing at the start. Without one a replica that is on no disk may have been lost with
    it, so none is made from nothing then. stray_retention_ms: log.stray.retention.ms, -1: strays stay for ever.
    files: what replicas beyond it do not fit in is refused.
    """

    def __init__(
        self,
        directories: Sequence[DataDirectory],
        config: LogConfig,
        put: Callable[[events.Event], None],
        pool: Executor,
        *,
        complete: bool = True,
        stray_retention_ms: int = -1,
        files: OpenFiles | None = None,
        memory: MemoryAccount | None = None,
    ) -> None:
        self._memory = memory or MemoryAccount()
        self.directories = tuple(directories)
        self._config = config
        self._put = put
        self._pool = pool
        self._files = files or OpenFiles()
        self._lookup_pool = ThreadPoolExecutor(LOOKUPS_AT_ONCE, "kreplog-lookups")
        self._complete = complete
        self._replicas: dict[TopicPartition, Replica] = {}
        self._nameless: dict[TopicPartition, DataDirectory] = {}
        self._broken: dict[TopicPartition, tuple[DataDirectory, str, StorageError]] = {}
        self.strays = Strays(stray_retention_ms, self._run)
        self._in_hand: set[Path] = set()
        self._held: Counter[DataDirectory] = Counter()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._flusher = Flusher(pool, put, self._fail, self._run_task)
        self._answers: dict[type, Callable[[Any], Any]] = {
            effects.OpenLog: self._open,
            effects.AppendAsLeader: self._append_as_leader,
            effects.AppendAsFollower: self._append_as_follower,
            effects.EndOfRecords: lambda effect: end_of(effect.records),
            effects.AssignLeaderEpoch: self._assign_leader_epoch,
            effects.TruncateTo: self._truncate_to,
            effects.TruncateFullyAndStartAt: self._truncate_fully,
            effects.DeleteRecordsBefore: self._delete_records,
            effects.EnforceRetention: self._enforce_retention,
            effects.ConfigureLog: self._configure,
            effects.ReadLog: self._read,
            effects.SizeFrom: self._size_from,
            effects.OffsetForTimestamp: self._offset_for_timestamp,
            effects.AdvanceHighWatermark: self._advance_high_watermark,
            effects.Flush: lambda effect: self._flusher.flush(effect.partition, self._of(effect.partition)),
            effects.SetAsideStray: self._set_aside,
            effects.RestoreStray: self._restore,
            effects.DeleteStrays: self._delete_strays,
            effects.DeleteLog: self._delete,
        }

    # Start

    def load(self, threads_per_directory: int, progress: Progress | None = None) -> None:
        """Open, and recover, every replica there is; blocks. One that cannot be opened fails when it is asked for."""
        found: list[tuple[DataDirectory, TopicPartition, str]] = []
        for directory in self.directories:
            directory.remove_leftovers()
            self.strays.load(directory)
            for partition, topic_id in sorted(directory.replicas().items()):
                if topic_id is None:
                    self._nameless[partition] = directory
                else:
                    found.append((directory, partition, topic_id))
        for directory, partition, topic_id in found[self._files.replicas :]:
            self._broken[partition] = directory, topic_id, self._refusal(partition)
            _log.error("%s", self._broken[partition][2])
        del found[self._files.replicas :]
        recovery = _Recovery(len(found), progress)
        with ThreadPoolExecutor(max(1, threads_per_directory * len(self.directories)), "kreplog-recovery") as pool:
            opening = {
                pool.submit(
                    ManagedLog.open, directory.folder(partition), self._config, progress=recovery.of(partition)
                ): (directory, partition, topic_id)
                for directory, partition, topic_id in found
            }
            for future in as_completed(opening):
                directory, partition, topic_id = opening[future]
                try:
                    self._add(partition, Replica(directory, topic_id, future.result()))
                except StorageError as error:
                    _log.error("%s cannot be opened: %s", partition, error)
                    self._broken[partition] = directory, topic_id, error
                recovery.opened(partition, self.size_of(partition))

    def _add(self, partition: TopicPartition, replica: Replica) -> None:
        other = self._replicas.get(partition)
        if other is not None:
            replica.log.close()
            raise StorageError(
                f"{partition} is in two directories, {other.directory.path} and {replica.directory.path}: move one away"
            )
        self._replicas[partition] = replica
        self._held[replica.directory] += 1
        self._count_producers(replica)
        for cut in replica.log.cuts:
            _log.warning("%s: %d bytes cut from byte %d on: %s", cut.path, cut.bytes, cut.position, cut.reason)

    def on_disk(self) -> dict[TopicPartition, str]:
        """Topic id of every replica that has one, by partition in order."""
        ids = {partition: replica.topic_id for partition, replica in self._replicas.items()}
        ids.update((partition, topic_id) for partition, (_, topic_id, _) in self._broken.items())
        return dict(sorted(ids.items()))

    # Effects

    def answer(self, effect: effects.Effect) -> Any:
        """Carry out one effect on a log; its answer. Throws what the effect's docstring says."""
        try:
            return self._answers[type(effect)](effect)
        except LogFailedError as error:
            self._fail_directory(effect, error)
            raise
        except OSError as error:
            raise error_of("cannot use the files of", str(getattr(effect, "partition", "")), error) from error

    def _of(self, partition: TopicPartition) -> Replica:
        replica = self._replicas.get(partition)
        check(replica is not None, f"{partition}: a core asks for a log that is not open")
        assert replica is not None
        return replica

    def _open(self, effect: effects.OpenLog) -> effects.OpenedLog:
        partition = effect.partition
        if partition in self._broken:
            self._open_broken(partition)
        replica = self._replicas.get(partition)
        if replica is None:
            replica = self._make(partition, effect.topic_id)
        check(replica.topic_id == effect.topic_id, f"{partition} is of topic id {replica.topic_id}, not set aside")
        if replica.directory.failed:
            raise LogFailedError(f"{partition}: the log directory {replica.directory.path} has failed")
        if replica.log.failed and is_exhaustion(replica.log.cause):
            self._open_anew(partition, replica)
        self._apply(replica, effect.config)
        return effects.OpenedLog(replica.state, replica.log.high_watermark)

    def _open_broken(self, partition: TopicPartition) -> None:
        """Once more, where it was not the disk that kept it from being opened."""
        directory, topic_id, error = self._broken[partition]
        if not isinstance(error, ReplicaRefusedError) and not is_exhaustion(error):
            raise error
        self._check_room(partition)
        log = ManagedLog.open(directory.folder(partition), self._config)
        del self._broken[partition]
        self._add(partition, Replica(directory, topic_id, log))

    def _open_anew(self, partition: TopicPartition, replica: Replica) -> None:
        """A log that takes no more only because a change was interrupted for want of descriptors or memory."""
        if replica.flushing or replica.syncing:
            raise ResourceExhaustedError(
                f"{partition}: a thread still has its log in hand; it is opened anew after that"
            )
        log = ManagedLog.open(replica.directory.folder(partition), self._config)
        replica.log.abandon()
        replica.log = log
        _log.warning(
            "%s is opened anew after a change that was interrupted, and ends at %d", log.path, log.log_end_offset
        )

    def _check_room(self, partition: TopicPartition) -> None:
        if len(self._replicas) >= self._files.replicas:
            raise self._refusal(partition)

    def _refusal(self, partition: TopicPartition) -> ReplicaRefusedError:
        return ReplicaRefusedError(
            f"{partition}: no room: the limit on open files, {self._files.limit}, leaves descriptors for "
            f"{self._files.replicas} replicas: raise it (ulimit -n, or LimitNOFILE= of the service) and start the "
            "broker anew, add brokers, or delete topics",
            partition=str(partition),
        )

    def _make(self, partition: TopicPartition, topic_id: str) -> Replica:
        """A replica from nothing, in the directory that has the fewest."""
        if not self._complete:
            raise StorageError(
                f"{partition} is in none of the log directories that could be opened; it may be in one that could not"
            )
        live = [directory for directory in self.directories if not directory.failed]
        if not live:
            raise StorageError(f"{partition}: every log directory has failed")
        self._check_room(partition)
        directory = min(live, key=self._held.__getitem__)
        self._set_nameless_aside(partition)
        try:
            folder = directory.make(partition, topic_id)
            replica = Replica(directory, topic_id, ManagedLog.open(folder, self._config))
        except BaseException as error:  # half made it must not be found, here or beside one that is made elsewhere
            directory.is_full = directory.is_full or is_disk_full(error)
            with suppress(StorageError):
                self._run(directory.remove, directory.mark_deleted(partition))
            raise
        self._add(partition, replica)
        self._flusher.made(replica)
        return replica

    def _append_as_leader(self, effect: effects.AppendAsLeader) -> tuple[AppendInfo, effects.LogState]:
        replica = self._of(effect.partition)
        log = replica.log
        info = log.append_batches(
            effect.records, effect.leader_epoch, strict=effect.strict, new_producers=self._has_producer_room
        )
        if log.producer_count != replica.producers:
            self._count_producers(replica)
        self._flusher.note_sealed(replica)
        return info, replica.state

    def _append_as_follower(self, effect: effects.AppendAsFollower) -> effects.LogState:
        replica = self._of(effect.partition)
        replica.log.append_as_follower(effect.records)
        if replica.log.producer_count != replica.producers:
            self._count_producers(replica)
        self._flusher.note_sealed(replica)
        return replica.state

    @property
    def _has_producer_room(self) -> bool:
        return self._memory.held[PRODUCERS] < self._memory.limit // 4

    def _count_producers(self, replica: Replica) -> None:
        """They are charged as they are, for what is in the log has to be remembered; new ones of clients are refused
        before they are too many."""
        before, replica.producers = replica.producers, 0 if replica.gone else replica.log.producer_count
        self._memory.held[PRODUCERS] += (replica.producers - before) * PRODUCER_BYTES

    async def expire_producers(self) -> None:
        """Forget the idle ones of all logs, with others' turns between."""
        for replica in list(self._replicas.values()):
            if not replica.gone and not replica.directory.failed and replica.producers:
                with suppress(StorageError, LogClosedError):  # whoever writes to it next finds out
                    replica.log.expire_producers(int(time.time() * 1000))
                self._count_producers(replica)
                await asyncio.sleep(0)  # a turn of the loop for whatever else is due

    def _assign_leader_epoch(self, effect: effects.AssignLeaderEpoch) -> effects.LogState:
        replica = self._of(effect.partition)
        replica.log.assign_leader_epoch(effect.leader_epoch)
        return replica.state

    def _truncate_to(self, effect: effects.TruncateTo) -> effects.LogState:
        replica = self._of(effect.partition)
        replica.log.truncate_to(effect.offset)
        self._flusher.cut(replica)
        return replica.state

    def _truncate_fully(self, effect: effects.TruncateFullyAndStartAt) -> effects.LogState:
        replica = self._of(effect.partition)
        replica.log.truncate_fully_and_start_at(effect.offset)
        return replica.state

    def _delete_records(self, effect: effects.DeleteRecordsBefore) -> effects.LogState:
        replica = self._of(effect.partition)
        with self._held_files(replica.log):
            replica.log.delete_records_before(effect.offset)
        return replica.state

    def _enforce_retention(self, effect: effects.EnforceRetention) -> effects.LogState:
        replica = self._of(effect.partition)
        with self._held_files(replica.log):
            replica.log.enforce_retention()
        self._flusher.note_sealed(replica)
        return replica.state

    @contextmanager
    def _held_files(self, log: ManagedLog) -> Iterator[None]:
        """Holds the oldest segments' files: one that is deleted meanwhile takes its time, tenths of a second for each
        GiB, only when the last has let go of it, and that is a thread."""
        held: list[int] = []
        with suppress(OSError):  # out of descriptors, say: then it takes its time here
            held.extend(os.open(one.path, os.O_RDONLY | os.O_CLOEXEC) for one in log.segments[:-1][:HELD_FILES])
        try:
            yield
        finally:
            if held:
                self._pool.submit(_close_all, held)

    def _configure(self, effect: effects.ConfigureLog) -> None:
        try:
            self._apply(self._of(effect.partition), effect.config)
        except (StorageError, LogClosedError) as error:  # a log that has failed is reported as such by whoever finds it
            _log.warning("%s keeps its settings: %s", effect.partition, error)

    def _apply(self, replica: Replica, config: TopicConfig) -> None:
        wanted = config.log_config(self._config)
        if replica.log.config != wanted:
            replica.log.configure(wanted)

    def limited(self) -> list[TopicPartition]:
        """The replicas that keep not everything."""
        return [
            partition
            for partition, replica in self._replicas.items()
            if not replica.directory.failed
            and (replica.log.config.retention_ms >= 0 or replica.log.config.retention_bytes >= 0)
        ]

    def _read(self, effect: effects.ReadLog) -> memoryview:
        """A view of the mapped segment, which lives as long as the view does; a cut replaces the file under it."""
        log = self._of(effect.partition).log
        isolation = "log_end" if effect.limit >= log.log_end_offset else "committed"
        try:
            fetched = log.fetch(effect.offset, max(effect.max_bytes, 0), isolation)
        except OffsetOutOfRangeError as error:
            raise StorageError(f"{effect.partition}: offset {effect.offset} is gone: {error}") from error
        check(fetched.next_offset <= effect.limit, f"{effect.partition}: read past {effect.limit}")
        return fetched.data

    def _size_from(self, effect: effects.SizeFrom) -> int:
        try:
            return self._of(effect.partition).log.size_from(effect.offset)
        except OffsetOutOfRangeError as error:
            raise StorageError(f"{effect.partition}: offset {effect.offset} is gone: {error}") from error

    def _offset_for_timestamp(self, effect: effects.OffsetForTimestamp) -> None:
        """In a thread: the batch that is found may have to be decompressed."""
        replica = self._of(effect.partition)
        replica.syncing += 1
        future = asyncio.get_running_loop().run_in_executor(
            self._lookup_pool, _find_offset, replica.log, effect.partition, effect.timestamp
        )
        future.add_done_callback(lambda done: self._offset_found(replica, effect.tag, done))

    def _offset_found(self, replica: Replica, tag: tuple[int, int], done: asyncio.Future[tuple[int, int]]) -> None:
        replica.syncing -= 1
        replica.settle()
        if not done.cancelled():
            self._put(events.OffsetFound(tag, *done.result()))

    def _advance_high_watermark(self, effect: effects.AdvanceHighWatermark) -> None:
        try:
            self._of(effect.partition).log.advance_high_watermark(effect.offset)
        except LogFailedError as error:  # what is committed is so, whatever becomes of this replica
            self._fail_directory(effect, error)

    # Strays

    def _set_aside(self, effect: effects.SetAsideStray) -> None:
        partition = effect.partition
        if partition in self._broken:
            directory, topic_id, _ = self._broken[partition]
            path = directory.set_stray(partition)
            del self._broken[partition]
        elif (replica := self._replicas.get(partition)) is not None:
            directory, topic_id = replica.directory, replica.topic_id
            path = self._let_go(partition, replica, directory.set_stray)
            if replica.flushing or replica.syncing:
                self._in_hand.add(path)
                replica.when_still = lambda: self._in_hand.discard(path)
        else:
            return
        self.strays.add(directory, path, topic_id, partition)

    def _restore(self, effect: effects.RestoreStray) -> bool:
        partition = effect.partition
        found = self.strays.find(partition, effect.topic_id)
        if not found:
            return False
        directory, stray = found[-1]
        if stray.path in self._in_hand:
            raise StorageError(
                f"{partition}: {stray.path} is still being synced; a restart of the broker takes it back"
            )
        self._check_room(partition)
        self._set_nameless_aside(partition)
        folder = self.strays.restore(found[-1], partition)
        try:
            self._add(partition, Replica(directory, effect.topic_id, ManagedLog.open(folder, self._config)))
        except StorageError as error:
            self._broken[partition] = directory, effect.topic_id, error
            raise
        return True

    def _set_nameless_aside(self, partition: TopicPartition) -> None:
        nameless = self._nameless.pop(partition, None)
        if nameless is not None:
            nameless.set_aside(partition)

    def _delete_strays(self, effect: effects.DeleteStrays) -> None:
        for found in self.strays.find(effect.partition, effect.topic_id):
            self.strays.delete(found)

    def _delete(self, effect: effects.DeleteLog) -> None:
        partition = effect.partition
        if partition in self._broken:
            directory = self._broken[partition][0]
            moved = directory.mark_deleted(partition)
            del self._broken[partition]
            self._run(directory.remove, moved)
            return
        replica = self._replicas.get(partition)
        if replica is not None:
            moved = self._let_go(partition, replica, replica.directory.mark_deleted)
            replica.when_still = lambda: self._run(replica.directory.remove, moved)
            replica.settle()

    def _let_go(self, partition: TopicPartition, replica: Replica, move: Callable[[TopicPartition], Path]) -> Path:
        """The replica is no longer one of ours, its folder moved. Raises StorageError, and nothing has changed."""
        replica.log.expect_failure()
        moved = move(partition)
        del self._replicas[partition]
        self._held[replica.directory] -= 1
        replica.gone = True
        self._count_producers(replica)
        replica.settle()
        return moved

    def sync_files(self, then: Callable[[], None]) -> None:
        """Make durable what was made and cut since the last call; `then()` once what was made is."""
        self._flusher.sync_files(then)

    # Failure

    def _fail_directory(self, effect: Any, error: LogFailedError) -> None:
        """A log has failed; not so where the process alone was short of descriptors or memory: it is opened anew."""
        replica = self._replicas.get(effect.partition)
        if replica is not None and not is_exhaustion(error):
            asyncio.get_running_loop().call_soon(self._fail, replica.directory, error)

    def _fail(self, directory: DataDirectory, error: Exception) -> None:
        if directory.failed:
            return
        directory.failed = True
        directory.is_full = directory.is_full or is_disk_full(error)
        until = "there is disk space again" if directory.is_full else "the broker is restarted"
        _log.error("the log directory %s has failed: its replicas go offline until %s", directory.path, until)
        for partition, replica in list(self._replicas.items()):
            if replica.directory is directory:
                self._put(events.LogFailed(partition))

    # Checkpoints, and the end

    async def write_checkpoints(self) -> None:
        """The offsets of now, in every directory that works. A directory that takes no more writes has failed."""
        loop = asyncio.get_running_loop()
        for directory in self.directories:
            if directory.failed:
                continue
            try:
                await loop.run_in_executor(self._pool, self._write_checkpoints, directory)
            except StorageError as error:
                _log.error("%s: %s", directory.path, error)
                if not (is_exhaustion(error) or is_disk_full(error)):  # else the next ones may be written
                    self._fail(directory, error)

    def _write_checkpoints(self, directory: DataDirectory) -> None:
        directory.write_checkpoints(lambda: dict(self._offsets(directory)))

    def _offsets(self, directory: DataDirectory) -> Iterator[tuple[TopicPartition, Offsets]]:
        """What the checkpoints are to say; of the log starts they hold all, Kafka's only those within a segment."""
        for partition, replica in list(self._replicas.items()):
            if replica.directory is directory and not replica.gone:
                log = replica.log
                yield partition, (log.recovery_point, log.high_watermark, log.log_start_offset)

    def close(self, *, mark: bool = True) -> bool:
        """Close every log, many at a time, and let go of the directories; blocks. Whether all of it was clean. What
        was clean in a directory is marked there, if `mark`, whatever became of the other directories."""
        self._flusher.drop_sealed()  # closing syncs everything
        self._lookup_pool.shutdown(cancel_futures=True)
        with ThreadPoolExecutor(8, "kreplog-close") as pool:
            closed = dict(zip(self._replicas, pool.map(_close_quietly, self._replicas.values()), strict=True))
        unclean = {self._replicas[partition].directory for partition, offsets in closed.items() if offsets is None}
        for directory in self.directories:
            if not directory.failed:
                offsets = {
                    partition: at
                    for partition, at in closed.items()
                    if at is not None and self._replicas[partition].directory is directory
                }
                try:
                    directory.write_checkpoints(offsets.copy)
                except StorageError as error:
                    _log.error("%s: %s", directory.path, error)
                    unclean.add(directory)
            directory.close(mark and self._complete and directory not in unclean)
        return mark and self._complete and not unclean

    def _run_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _run(self, call: Callable[..., None], *arguments: Any) -> None:
        """In a thread, with nobody waiting for it."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    def size_of(self, partition: TopicPartition) -> int:
        """Bytes of its segments, 0 when it is not open."""
        replica = self._replicas.get(partition)
        return 0 if replica is None or replica.log.closed else replica.log.size

    def in_directory(self, directory: DataDirectory) -> list[tuple[TopicPartition, ManagedLog]]:
        """The open logs there, by partition, for those who only look."""
        return sorted((one, held.log) for one, held in self._replicas.items() if held.directory is directory)


class _Recovery:
    """How far the opening of many logs is, which run in threads of their own."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total = 0, total
        self._bytes: dict[TopicPartition, int] = {}
        self._progress = progress

    def opened(self, partition: TopicPartition, size: int) -> None:
        """One is; `size` bytes were in it, whatever room behind them was looked through."""
        self._done += 1
        self._bytes[partition] = min(self._bytes.get(partition, 0), size)
        self._tell()

    def of(self, partition: TopicPartition) -> Callable[[int, int], None]:
        """Takes the progress of one log's recovery."""

        def checked(done: int, _: int) -> None:
            self._bytes[partition] = done
            self._tell()

        return checked

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total, sum(list(self._bytes.values())))


def _close_all(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _find_offset(log: ManagedLog, partition: TopicPartition, timestamp: int) -> tuple[int, int]:
    """(offset, timestamp), (-1, -1) for none; none too for what no record has: a time below 0, with which newer Kafkas
    mean other questions."""
    try:
        if timestamp == m.MAX_TIMESTAMP:
            timestamp = max(segment.max_timestamp for segment in log.segments)
        found = log.record_for_timestamp(timestamp) if timestamp >= 0 else None
    except LogClosedError:  # the replica was deleted meanwhile, or the broker has stopped
        return -1, -1
    except (StorageError, OffsetOutOfRangeError) as error:
        _log.error("%s: no offset for timestamp %d: %s", partition, timestamp, error)
        return -1, -1
    return found or (-1, -1)


def _close_quietly(replica: Replica) -> Offsets | None:
    """What the checkpoints are to say of it, None where it was not closed cleanly."""
    log = replica.log
    if replica.directory.failed:
        if not replica.flushing and not replica.syncing:  # a thread that waits for its turn there would wait for ever
            log.abandon()
        return None
    try:
        offsets = log.log_end_offset, log.high_watermark, log.log_start_offset
        log.close()
    except StorageError as error:
        _log.error("%s", error)
        return None
    return offsets
