"""ReplicaMoves: moves replicas between the log directories of a broker while it runs (AlterReplicaLogDirs, KIP-113).

A thread copies the log in pieces, which the event loop paces. Once the copy has caught up, the replication core lets it
take over between two of its steps, so that nothing is appended meanwhile. How a move survives a crash, and which step
of a copy is next, is kreplog.core.broker.future_replicas. A copy that cannot be finished is given up and deleted: the
replica goes on where it is. A start deletes the copies that it finds; nothing continues them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kreplog.core import effects
from kreplog.core.broker import future_replicas
from kreplog.core.broker.future_replicas import AtStart, Copy, CopyStep, MoveAction, Restart, Truncate
from kreplog.core.events import CopyCaughtUp
from kreplog.errors import ErrorCode, InvariantError, KreplogError, OffsetOutOfRangeError, StorageError, is_shortage
from kreplog.managed_log import ManagedLog, error_of
from kreplog.server.runtime.runners import InThread
from kreplog.server.storage.directories import DataDirectory, FutureReplica, fits_future, known_topic_id
from kreplog.server.storage.flusher import Flusher
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.log_cleaner import LogCleaner
from kreplog.server.storage.replica import Replica, ReplicaMove
from kreplog.syncing import sync_directory
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")

THREADS = 2

PIECE_BYTES = 1 << 20
"""Bytes of records that are copied in one go, at least one batch."""

FINAL_PIECES, FINAL_BYTES = 100, 8 << 20
"""Maximum of pieces, each of one segment, and of bytes that are copied while the replication core waits."""

NO_RATE = 2**63 - 1
"""The rate without a limit."""

MAX_STALLED = 1000
"""Steps of a copy without records copied after which it is given up: the replica changes too often, or is damaged."""

MAX_PREFERRED = 100_000
"""Partitions to be created for which a log directory is noted; the oldest are forgotten."""

RETRY_S = 0.02
"""Pause before a copy that could not take over tries again."""

MAX_RETRY_S = 1.0
"""The longest pause, where the replica is not in use, such as before the first LeaderAndIsr."""

RELEASE_S = 0.2
"""Time in which a copy that takes over waits, in its thread, for others that use the replica's log."""


class CopiedPiece(NamedTuple):
    """The outcome of a piece. copied: bytes. caught_up: the copy has all records that the replica had before it."""

    copied: int
    caught_up: bool


class ReplicaMoves:
    """The moves of one broker. put: takes CopyCaughtUp events. fail: called with a directory that fails, and the error.
    write_checkpoints: writes the checkpoint files of a directory; blocks. rate: bytes by the second that all copies
    take together. All on the event loop."""

    def __init__(
        self,
        hosted: HostedReplicas,
        cleaner: LogCleaner,
        flusher: Flusher,
        put: Callable[[CopyCaughtUp], None],
        fail: Callable[[DataDirectory, StorageError], None],
        write_checkpoints: Callable[[DataDirectory], None],
    ) -> None:
        self.rate = NO_RATE
        self._hosted = hosted
        self._cleaner = cleaner
        self._flusher = flusher
        self._put = put
        self._fail = fail
        self._write_checkpoints = write_checkpoints
        self._pool = ThreadPoolExecutor(THREADS, "kreplog-moves")
        self._unsettled: dict[TopicPartition, tuple[ReplicaMove, Replica, Path]] = {}
        self._owed = 0.0  # bytes copied for which the time has not passed
        self._noted_s = time.monotonic()
        self._closed = False

    # Requests

    async def alter(self, partition: TopicPartition, path: str, configured: Iterable[str]) -> ErrorCode:
        """Move the replica of a partition to the log directory at `path`, or end its move. configured: paths of all log
        directories, also of those that could not be opened."""
        hosted = self._hosted
        path = os.path.abspath(path) if os.path.isabs(path) else path
        while self._is_ending(partition):
            await asyncio.sleep(RETRY_S)  # for a step of the core and a rename; a move can begin only after them
        move = hosted.moves.get(partition)
        replica = hosted.get(partition)
        found = next((each for each in hosted.directories if str(each.path) == path), None)
        action, error = future_replicas.requested(
            path,
            None if replica is None else str(replica.directory.path),
            None if move is None else str(move.directory.path),
            known=found is not None or path in {os.path.abspath(each) for each in configured},
            online=found is not None and not found.failed,
            current_online=replica is not None and not (replica.directory.failed or replica.log.failed),
            name_fits=fits_future(partition),
        )
        if action in (MoveAction.START, MoveAction.CANCEL) and move is not None:
            del hosted.moves[partition]
            move.ended = True
            _log.info("%s: its move to %s is cancelled", partition, move.directory.path)
        if action is MoveAction.PREFER and found is not None:
            hosted.preferred.pop(partition, None)
            hosted.preferred[partition] = found
            if len(hosted.preferred) > MAX_PREFERRED:
                del hosted.preferred[next(iter(hosted.preferred))]
        elif action is MoveAction.START and found is not None and replica is not None:
            return self._start(partition, replica, found)
        return error

    def _is_ending(self, partition: TopicPartition) -> bool:
        """Whether a copy is about to take over, or has, and its directory does not have the name of the replica yet."""
        move, unsettled = self._hosted.moves.get(partition), self._unsettled.get(partition)
        if unsettled is not None:
            _, new, _ = unsettled
            return not (new.removed or new.directory.failed or self._closed)
        return move is not None and move.replacing

    def _start(self, partition: TopicPartition, replica: Replica, directory: DataDirectory) -> ErrorCode:
        future: FutureReplica | None = None
        try:
            self._hosted.check_capacity(partition)
            future = directory.make_future(partition, replica.topic_id)
            log = ManagedLog.open_named(future.path, partition, replica.log.config)
        except (StorageError, OSError) as error:
            _log.error("%s cannot be moved to %s: %s", partition, directory.path, error)
            if future is not None:
                self._delete(directory, future)
            return ErrorCode.KAFKA_STORAGE_ERROR
        move = ReplicaMove(replica, directory, future, log)
        self._hosted.moves[partition] = move
        _log.info("%s is being moved from %s to %s", partition, replica.directory.path, directory.path)
        self._hosted.background.run_task(f"move of {partition}", self._run(move))
        return ErrorCode.NONE

    # The copy

    async def _run(self, move: ReplicaMove) -> None:
        try:
            await self._fill(move)
        except InvariantError:
            raise
        except (KreplogError, OSError) as error:
            self._give_up(move, error)
        except asyncio.CancelledError:  # the broker stops
            move.ended = True
            raise
        while move.replacing and not self._closed:
            await asyncio.sleep(RETRY_S)  # for the step of the core that has the copy in hand
        if not (move.took_over or self._closed):
            partition = move.future.partition
            if self._hosted.moves.get(partition) is move:
                del self._hosted.moves[partition]
            move.log.abandon()
            self._delete(move.directory, move.future)

    async def _fill(self, move: ReplicaMove) -> None:
        stalled, pause_s = 0, RETRY_S
        while self._goes_on(move):
            if move.replacing or move.replica in self._cleaner.queue.in_progress:
                await asyncio.sleep(RETRY_S)  # nobody else may change either log in the middle of that
                continue
            piece = await self._in_thread(move, _copy_piece)
            stalled = 0 if piece.copied or piece.caught_up else stalled + 1
            if stalled > MAX_STALLED:
                raise StorageError(
                    f"{move.future.partition}: nothing can be copied from offset {move.log.log_end_offset} on: check "
                    "the log with `kreplog log verify`"
                )
            if piece.caught_up and self._goes_on(move):
                await self._in_thread(move, _sync_copy)
                if self._goes_on(move):
                    self._put(CopyCaughtUp(move.future.partition))
                    pause_s = min(2 * pause_s, MAX_RETRY_S)
                    await asyncio.sleep(pause_s)  # for the core's answer, and before another attempt
            await self._throttle(piece.copied)

    def _goes_on(self, move: ReplicaMove) -> bool:
        return move.goes_on and not (move.took_over or self._closed)

    async def _in_thread(self, move: ReplicaMove, call: Callable[[ReplicaMove], CopiedPiece]) -> CopiedPiece:
        move.busy = True
        move.replica.threads += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, call, move)
        future.add_done_callback(partial(_released, move))
        return await asyncio.shield(future)

    async def _throttle(self, copied: int) -> None:
        """Pause as long as the bytes copied so far may take; another rate counts after a second."""
        self._note_time()
        self._owed += copied
        while self._owed > 0 and not self._closed:
            await asyncio.sleep(min(self._owed / max(1, self.rate), 1.0))  # the throttle itself
            self._note_time()

    def _note_time(self) -> None:
        now_s = time.monotonic()
        passed_s, self._noted_s = now_s - self._noted_s, now_s
        self._owed = 0.0 if self.rate == NO_RATE else max(0.0, self._owed - passed_s * self.rate)

    def _give_up(self, move: ReplicaMove, error: Exception) -> None:
        move.ended = True
        partition, target = move.future.partition, move.directory
        _log.error(
            "%s: its move to %s is given up, and the replica stays in %s: %s",
            partition,
            target.path,
            move.replica.directory.path,
            error,
        )
        if move.log.failed and isinstance(error, StorageError) and not is_shortage(error):
            self._fail(target, error)

    def _delete(self, directory: DataDirectory, future: FutureReplica) -> None:
        """Delete a copy; the next start does what fails."""
        if not directory.failed:
            try:
                self._hosted.background.run_in_thread(directory.remove, directory.mark_future_deleted(future))
            except StorageError as error:
                _log.error("%s", error)

    # The end of a move

    def replace(self, effect: effects.ReplaceLog) -> InThread | None:
        """Let a copy take over."""
        move = self._hosted.moves.get(effect.partition)
        if move is None or move.busy or move.replacing or not self._goes_on(move):
            return None
        move.replacing = True
        job = self._pool.submit(self._finish_copy, move)
        return InThread(job, partial(self._replaced, move, job))

    def _finish_copy(self, move: ReplicaMove) -> bool:
        """In a thread, while the replication core waits: whether the copy is complete and durable, its checkpoints too,
        and no thread uses the log of the replica."""
        current, copy = move.replica.log, move.log
        copied = 0
        for _ in range(FINAL_PIECES):
            piece = _copy_piece(move)
            copied += piece.copied
            if piece.caught_up or copied > FINAL_BYTES:
                break
        if not piece.caught_up:
            return False
        epochs = current.leader_epochs
        if epochs and epochs[-1:] != copy.leader_epochs[-1:]:  # the latest has no records yet
            copy.assign_leader_epoch(epochs[-1][0])
        _sync_copy(move)
        self._write_checkpoints(move.directory)
        copy.copy_cleaner_checkpoint(current)
        until_s = time.monotonic() + RELEASE_S
        while self._is_used(move.replica) and time.monotonic() < until_s:
            time.sleep(RETRY_S / 10)  # a flush or a read that ends has no event; RELEASE_S bounds it
        return True

    def _is_used(self, replica: Replica) -> bool:
        return replica.in_use or self._flusher.is_flushing(replica)

    def _replaced(self, move: ReplicaMove, job: Future[bool]) -> effects.LogState | None:
        """On the event loop, within the step of the core: the copy takes over, unless it cannot now."""
        move.replacing = False
        old, partition = move.replica, move.future.partition
        try:
            complete = job.result()
        except InvariantError:
            raise
        except (KreplogError, OSError) as error:
            self._give_up(move, error)
            return None
        if not (complete and self._goes_on(move)) or self._is_used(old) or not _is_equal(old.log, move.log):
            return None
        new = Replica(move.directory, old.topic_id, move.log)
        try:
            renamed = self._hosted.replace(move, new)
        except StorageError as error:
            self._give_up(move, error)
            return None
        move.took_over = True
        self._unsettled[partition] = move, new, renamed
        self._flusher.note_opened(new)
        self._flusher.set_flush_ms(new, old.flush_ms)
        return new.state

    def sync(self, effect: effects.SyncReplacement) -> InThread:
        """Make a commit durable, and name the directory of the copy after its replica. Its step waits for it: without
        it, a loss of power would bring the old replica back, without what is appended from now on."""
        move, _, renamed = self._unsettled[effect.partition]
        job = self._pool.submit(sync_directory, renamed.parent)

        def finish() -> None:
            try:
                job.result()
            except OSError as error:
                failure = error_of("cannot fsync", str(renamed.parent), error)
                self._fail(move.replica.directory, failure)
                raise failure from error
            self._settle(effect.partition)

        return InThread(job, finish)

    def _settle(self, partition: TopicPartition) -> None:
        """Name the directory of the copy after its replica once no thread uses its log, then delete the old replica. An
        end of the process before that leaves it to the next start, as does a deletion: without the old replica, a loss
        of power would make of the copy that of an unfinished move."""
        move, new, renamed = self._unsettled[partition]
        if self._closed or new.directory.failed:
            return
        if new.removed:
            del self._unsettled[partition]
            return
        if self._is_used(new):
            asyncio.get_running_loop().call_later(RETRY_S, self._settle, partition)
            return
        del self._unsettled[partition]
        try:
            new.log.follow_rename(new.directory.adopt(move.future))
        except StorageError as error:
            _log.error("%s", error)
            self._fail(new.directory, error)
            return
        _log.info("%s has moved from %s to %s", partition, renamed.parent, new.directory.path)
        self._hosted.background.run_task(f"end of the move of {partition}", self._clean_up(move, renamed))

    async def _clean_up(self, move: ReplicaMove, renamed: Path) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._pool, sync_directory, move.directory.path)
        except OSError as error:
            self._fail(move.directory, error_of("cannot fsync", str(move.directory.path), error))
            return
        if not self._closed:
            await loop.run_in_executor(self._pool, move.replica.directory.remove, renamed)

    def stop(self) -> None:
        """Let no copy take over any more."""
        self._closed = True

    def close(self) -> None:
        """End all moves; blocks until no thread uses the copies, which the next start deletes."""
        self.stop()
        self._pool.shutdown(cancel_futures=True)
        for move in self._hosted.moves.values():
            move.log.abandon()


def finish_moves(hosted: HostedReplicas) -> set[Path]:
    """At the start, before logs are opened: finish the moves that are committed, and delete other copies. Returns the
    directories marked for deletion that must be kept, since a copy may need them."""
    retained: set[Path] = set()
    for directory in hosted.directories:
        for future in directory.futures():
            retained |= _finish_move(hosted, directory, future)
    if not hosted.complete:  # the copy of any of them may be in the directory that is missing
        retained.update(path for directory in hosted.directories for path in directory.leftovers())
    return retained


def _finish_move(hosted: HostedReplicas, directory: DataDirectory, future: FutureReplica) -> set[Path]:
    partition = future.partition
    places = [other.replaced(future) for other in hosted.directories]
    replaced = {path for path in places if path.is_dir() and not path.is_symlink()}
    action = future_replicas.at_start(
        has_replica=any(os.path.lexists(other.folder(partition)) for other in hosted.directories),
        is_committed=bool(replaced),
        complete=hosted.complete,
    )
    try:
        if action is AtStart.ADOPT:
            directory.adopt(future)
            sync_directory(directory.path)
            _log.warning("%s: its move to %s, which was interrupted, is finished", partition, directory.path)
            return set()
        if action is AtStart.DROP:
            directory.remove(directory.mark_future_deleted(future))
            return set()
        if replaced:
            _log.error("%s is in two directories: the copy %s is kept, and not used", partition, future.path)
    except (StorageError, OSError) as error:
        _log.error("%s: its move to %s cannot be finished: %s", partition, directory.path, error)
        topic_id = known_topic_id(future.path) or known_topic_id(directory.folder(partition))
        if action is AtStart.ADOPT and topic_id is not None:
            hosted.add_failed(partition, directory, topic_id, _storage_error(future, error))
    return replaced


def _storage_error(future: FutureReplica, error: StorageError | OSError) -> StorageError:
    return error if isinstance(error, StorageError) else error_of("cannot fsync the name of", str(future.path), error)


def _copy_piece(move: ReplicaMove) -> CopiedPiece:
    """In a thread: the next step of a copy."""
    current, copy = move.replica.log, move.log
    if copy.config != current.config:
        copy.configure(current.config)
    state = effects.LogState(copy.log_end_offset, copy.log_start_offset, tuple(copy.leader_epochs))
    target = move.replica.state
    step = future_replicas.next_copy_step(target, state)
    copied = 0
    if isinstance(step, Copy):
        try:
            data = current.fetch(step.offset, PIECE_BYTES, "log_end").data
        except OffsetOutOfRangeError:  # the log has changed since
            return CopiedPiece(0, False)
        if len(data):
            misfit = future_replicas.after_misfit(state, int.from_bytes(data[:8], "big"))
            if misfit is not None:
                _cut(copy, misfit)
            if not isinstance(misfit, Truncate):
                copy.append_as_follower(data)
                copied = len(data)
    elif step is not None:
        _cut(copy, step)
    watermark = min(current.high_watermark, copy.log_end_offset)
    if watermark > copy.high_watermark:
        copy.advance_high_watermark(watermark)
    start = current.log_start_offset
    if copy.log_start_offset < start <= copy.high_watermark:
        copy.delete_records_before(start)
    return CopiedPiece(copied, step is None or (copied > 0 and copy.log_end_offset >= target.leo))


def _cut(copy: ManagedLog, step: CopyStep) -> None:
    if isinstance(step, Restart):
        copy.truncate_fully_and_start_at(step.offset)
    else:
        copy.truncate_to(step.offset)


def _sync_copy(move: ReplicaMove) -> CopiedPiece:
    """In a thread: make all of a copy durable, its name too."""
    move.log.flush()
    move.log.sync_files()
    sync_directory(move.directory.path)
    return CopiedPiece(0, True)


def _is_equal(current: ManagedLog, copy: ManagedLog) -> bool:
    return (current.log_start_offset, current.high_watermark, current.log_end_offset) == (
        copy.log_start_offset,
        copy.high_watermark,
        copy.log_end_offset,
    )


def _released(move: ReplicaMove, done: asyncio.Future[Any]) -> None:
    move.busy = False
    move.replica.threads -= 1
    move.replica.release()
    if not done.cancelled():
        done.exception()  # whoever waits for it has it too, unless the broker stops
