"""Flusher: schedules the fsyncs of a broker's logs, in threads.

Each Flush effect ends with a Flushed event; effects that arrive during a log's fsync share the next one. Sealed
segments, what flush.ms is over for, and replicas that were created or truncated, are synced in the background; all
logs, where descriptors run out.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from functools import partial

from kreplog.core import events
from kreplog.core.broker.file_syncs import FileSync, FileSyncs
from kreplog.core.broker.flush_queue import EXHAUSTED_RETRY_MS, FlushQueue, is_retried
from kreplog.errors import LogClosedError, StorageError
from kreplog.managed_log import ManagedLog, exceeds_open_limit
from kreplog.server.storage.background import BackgroundTasks
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.replica import NO_FLUSH_MS, Replica
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")

MAX_CONCURRENT_SYNCS = 4
"""Maximum of concurrent background fsyncs; the other threads of the pool serve Flush effects, whose callers wait."""


class Flusher:
    """Schedules fsyncs. replicas: those that are open. put: takes the Flushed events. fail: called with a directory in
    which an fsync failed, and the error. All on the event loop."""

    def __init__(
        self,
        pool: Executor,
        replicas: Callable[[], Iterable[Replica]],
        put: Callable[[events.Event], None],
        fail: Callable[[DataDirectory, StorageError], None],
        background: BackgroundTasks,
    ) -> None:
        self._pool = pool
        self._replicas = replicas
        self._put = put
        self._fail = fail
        self._background = background
        self._flushes = FlushQueue()
        self._file_syncs: FileSyncs[Replica] = FileSyncs()
        self._truncated: dict[Replica, None] = {}
        self._sealed: dict[Replica, None] = {}
        self._flushing_sealed = False
        self._overdue: dict[Replica, None] = {}
        self._flushing_overdue = False
        self._releasing = False

    # Flush effects

    def flush(self, partition: TopicPartition, replica: Replica) -> None:
        """Fsync all that the log contains now; a Flushed event follows."""
        if self._flushes.request(replica):
            self._begin_flush(partition, replica)

    def is_flushing(self, replica: Replica) -> bool:
        """Whether a Flushed event for it is to follow."""
        return replica in self._flushes

    def _begin_flush(self, partition: TopicPartition, replica: Replica) -> None:
        replica.flushing = True
        future = asyncio.get_running_loop().run_in_executor(self._pool, _flush_log, replica.log)
        future.add_done_callback(partial(self._flushed, partition, replica))

    def _flushed(self, partition: TopicPartition, replica: Replica, done: asyncio.Future[int]) -> None:
        replica.flushing = False
        error = done.exception()
        if replica.removed or isinstance(error, LogClosedError):
            self._flushes.forget(replica)
            replica.release()
        elif error is None:
            event, again = self._flushes.finished(replica, partition, done.result())
            self._put(event)
            if again:
                self._retry_flush(partition, replica)
        elif not isinstance(error, StorageError):
            self._background.fail(f"fsync of {partition}", error)
        elif self._flushes.failed(replica, error):
            delay_s = EXHAUSTED_RETRY_MS / 1000
            asyncio.get_running_loop().call_later(delay_s, self._retry_flush, partition, replica)
        else:
            _log.error("%s: fsync failed: %s", partition, error)
            self._fail(replica.directory, error)

    def _retry_flush(self, partition: TopicPartition, replica: Replica) -> None:
        if replica.removed or replica.directory.failed or replica.log.closed:
            self._flushes.forget(replica)
        else:
            self._begin_flush(partition, replica)

    # Sealed segments

    def note_sealed(self, replica: Replica) -> None:
        """Fsync the log's sealed segments and leader epochs in the background, if any are not durable yet."""
        if replica.log.has_unflushed_segments:
            self._sealed[replica] = None
            if not self._flushing_sealed:
                self._flushing_sealed = True
                self._background.run_task("fsync of sealed segments", self._flush_sealed())
            if exceeds_open_limit():
                self.release_descriptors()

    def drop_sealed(self) -> None:
        """Forget the sealed segments: the logs are about to be closed, which syncs everything."""
        self._sealed.clear()

    async def _flush_sealed(self) -> None:
        """Sync in rounds until no log has sealed segments that are not durable.

        Segments that are sealed during a round are synced in the next, so that at most the appends of two rounds are
        not durable. On a slower disk the kernel blocks appends once too much of its page cache is dirty."""
        try:
            while self._sealed:
                due, self._sealed = list(self._sealed), {}
                await self._sync(ManagedLog.flush_sealed, due)
        finally:
            self._flushing_sealed = False

    # flush.ms

    def set_flush_ms(self, replica: Replica, flush_ms: int) -> None:
        """Apply another flush.ms, also to what has been appended already."""
        if flush_ms == replica.flush_ms:
            return
        replica.flush_ms = flush_ms
        if replica.flush_timer is not None:
            replica.flush_timer.cancel()
            replica.flush_timer = None
        if replica.log.recovery_point < replica.log.log_end_offset:
            self.note_appended(replica)

    def note_appended(self, replica: Replica) -> None:
        """Records were appended, which are fsynced in flush.ms at the latest."""
        if replica.flush_ms < NO_FLUSH_MS and replica.flush_timer is None:
            delay_s = replica.flush_ms / 1000
            replica.flush_timer = asyncio.get_running_loop().call_later(delay_s, self._flush_ms_over, replica)

    def _flush_ms_over(self, replica: Replica) -> None:
        replica.flush_timer = None
        self._overdue[replica] = None
        self._begin_flush_overdue()

    def _begin_flush_overdue(self) -> None:
        if not self._flushing_overdue:
            self._flushing_overdue = True
            self._background.run_task("fsync by flush.ms", self._flush_overdue())

    async def _flush_overdue(self) -> None:
        """Fsync in rounds, so that a slow disk takes no more threads from those who wait for a Flush effect."""
        try:
            while self._overdue:
                due, self._overdue = list(self._overdue), {}
                await self._sync(ManagedLog.flush, due)
        finally:
            self._flushing_overdue = self._releasing = False

    # Descriptors

    def release_descriptors(self) -> None:
        """Fsync every log: a segment with records that are not durable holds a descriptor, the active one and each that
        was sealed since the last fsync. Without effect while that is under way."""
        if not self._releasing:
            for replica in self._replicas():
                log = replica.log
                if not (log.closed or log.failed) and log.recovery_point < log.log_end_offset:
                    self._overdue[replica] = None
            if self._overdue:
                self._releasing = True
                self._begin_flush_overdue()

    # Opened and truncated logs

    def note_opened(self, replica: Replica) -> None:
        """A replica's directory is new, or may be that of a process that was killed: the next `sync_files` makes it
        durable."""
        self._file_syncs.opened(replica)

    def note_truncated(self, replica: Replica) -> None:
        """A log was truncated: the next `sync_files` makes that durable."""
        self._truncated[replica] = None

    def sync_files(self, then: Callable[[], None]) -> None:
        """Fsync what was opened and truncated since the last call; calls `then()` once all that was ever opened is
        durable (FileSyncs).

        `then()` does not wait for truncations and leader epochs: they survive the end of this process, and
        _flush_sealed makes epochs durable before their records. After a crash of the host the broker registers as
        unclean, so the controller does not rely on its logs.
        """
        sync = self._file_syncs.begin(then)
        truncated, self._truncated = list(self._truncated), {}
        if sync.logs:
            finished = partial(self._files_synced, sync)
            self._background.run_task(
                "fsync of new replicas", self._sync(ManagedLog.sync_files, list(sync.logs), finished)
            )
        else:
            self._files_synced(sync)
        if truncated:
            self._background.run_task("fsync of truncated logs", self._sync(ManagedLog.sync_files, truncated))

    def _files_synced(self, sync: FileSync[Replica]) -> None:
        for done in self._file_syncs.finished(sync):
            done.then()

    async def _sync(
        self, call: Callable[[ManagedLog], None], replicas: list[Replica], then: Callable[[], None] = lambda: None
    ) -> None:
        loop = asyncio.get_running_loop()
        due = deque(replica for replica in replicas if not replica.removed and not replica.directory.failed)
        used = list(due)
        for replica in used:
            replica.threads += 1
        threads = [
            loop.run_in_executor(self._pool, _sync_each, call, due) for _ in range(min(MAX_CONCURRENT_SYNCS, len(due)))
        ]
        failed = await asyncio.gather(*threads)
        for replica in used:
            replica.threads -= 1
            replica.release()
        retried = []
        for replica, error in itertools.chain.from_iterable(failed):
            if replica.removed:  # its directory was renamed meanwhile
                continue
            if is_retried(error):
                retried.append(replica)
            else:
                _log.error("%s", error)
                self._fail(replica.directory, error)
        if retried:
            await asyncio.sleep(EXHAUSTED_RETRY_MS / 1000)
            await self._sync(call, retried, then)
        else:
            then()


def _flush_log(log: ManagedLog) -> int:
    log.flush()
    return log.recovery_point


def _sync_each(call: Callable[[ManagedLog], None], due: deque[Replica]) -> list[tuple[Replica, StorageError]]:
    """Take replicas from `due`, which other threads take from as well, and `call` each; returns those that failed."""
    failed: list[tuple[Replica, StorageError]] = []
    while True:
        try:
            replica = due.popleft()
        except IndexError:
            return failed
        if replica.removed:
            continue
        try:
            call(replica.log)
        except LogClosedError:  # the broker has stopped meanwhile
            continue
        except StorageError as error:
            failed.append((replica, error))
