"""Flusher: when the files of a broker's replicas are made durable, in threads.

A flush that a core asks for is answered by a Flushed event; requests for a log whose fsync is under way share the next
one. Segments that were sealed, and what was made or cut without records, are synced beside the appends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

from kreplog.core import events
from kreplog.core.broker.flush_queue import EXHAUSTED_RETRY_MS, FlushQueue
from kreplog.errors import LogClosedError, StorageError, is_exhaustion
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.replica import Replica
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")

SYNCS_AT_ONCE = 4
"""So many threads sync files that nobody may be waiting for; the others are there for those who wait."""


class Flusher:
    """`put` takes the Flushed events; `fail` a directory whose disk refused an fsync, and the error; `run_task` runs a
    coroutine for which nobody waits. All on the event loop."""

    def __init__(
        self,
        pool: Executor,
        put: Callable[[events.Event], None],
        fail: Callable[[DataDirectory, Exception], None],
        run_task: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._pool = pool
        self._put = put
        self._fail = fail
        self._run_task = run_task
        self._flushes = FlushQueue()
        self._made: dict[Replica, None] = {}
        self._cut: dict[Replica, None] = {}
        self._sealed: dict[Replica, None] = {}
        self._flushing_sealed = False

    # What a core asks for

    def flush(self, partition: TopicPartition, replica: Replica) -> None:
        """Make durable what its log holds now; Flushed says so."""
        if self._flushes.request(replica):
            self._begin_flush(partition, replica)

    def _begin_flush(self, partition: TopicPartition, replica: Replica) -> None:
        replica.flushing = True
        future = asyncio.get_running_loop().run_in_executor(self._pool, _flush_log, replica.log)
        future.add_done_callback(lambda done: self._flushed(partition, replica, done))

    def _flushed(self, partition: TopicPartition, replica: Replica, done: asyncio.Future[int]) -> None:
        replica.flushing = False
        error = done.exception()
        if replica.gone or isinstance(error, LogClosedError):
            self._flushes.forget(replica)
            replica.settle()
        elif error is None:
            event, again = self._flushes.finished(replica, partition, done.result())
            self._put(event)
            if again:
                self._retry_flush(partition, replica)
        elif not isinstance(error, StorageError):
            raise error
        elif self._flushes.failed(replica, error):
            delay_s = EXHAUSTED_RETRY_MS / 1000
            asyncio.get_running_loop().call_later(delay_s, self._retry_flush, partition, replica)
        else:
            _log.error("%s: fsync failed: %s", partition, error)
            self._fail(replica.directory, error)

    def _retry_flush(self, partition: TopicPartition, replica: Replica) -> None:
        if replica.gone or replica.directory.failed or replica.log.closed:
            self._flushes.forget(replica)
        else:
            self._begin_flush(partition, replica)

    # Sealed segments

    def note_sealed(self, replica: Replica) -> None:
        """Where a segment was sealed, or an epoch begun: have those before it, and the epochs, made durable while
        appends go on."""
        if replica.log.has_unflushed_segments:
            self._sealed[replica] = None
            if not self._flushing_sealed:
                self._flushing_sealed = True
                self._run_task(self._flush_sealed())

    def drop_sealed(self) -> None:
        """The logs are about to be closed, which syncs everything."""
        self._sealed.clear()

    async def _flush_sealed(self) -> None:
        """Round after round, until nothing is due. What becomes so during one is due in the next, so what is not yet
        durable is at most what came in during two rounds; where the disk is slower than that, the kernel blocks the
        appends once too much of its page cache is dirty."""
        try:
            while self._sealed:
                due, self._sealed = list(self._sealed), {}
                await self._sync(ManagedLog.flush_sealed, due)
        finally:
            self._flushing_sealed = False

    # What was made and cut

    def made(self, replica: Replica) -> None:
        """Its directory is new: the next `sync_files` makes it durable."""
        self._made[replica] = None

    def cut(self, replica: Replica) -> None:
        """Its log was truncated: the next `sync_files` makes that durable."""
        self._cut[replica] = None

    def sync_files(self, then: Callable[[], None]) -> None:
        """Make durable what was made and cut since the last call; `then()` once what was made is.

        Nobody waits for the epochs: the end of this process takes none of them, and those that have records are made
        durable as _flush_sealed comes to them, and before these are. A host that was booted since trusts nothing of
        this broker's before the controller has dealt with it.
        """
        made, self._made = list(self._made), {}
        cut, self._cut = list(self._cut), {}
        if made:
            self._run_task(self._sync(ManagedLog.sync_files, made, then))
        else:
            then()
        if cut:
            self._run_task(self._sync(ManagedLog.sync_files, cut))

    async def _sync(
        self, call: Callable[[ManagedLog], None], replicas: list[Replica], then: Callable[[], None] = lambda: None
    ) -> None:
        loop = asyncio.get_running_loop()
        due = deque(replica for replica in replicas if not replica.gone and not replica.directory.failed)
        taken = list(due)
        for replica in taken:
            replica.syncing += 1
        threads = [loop.run_in_executor(self._pool, _sync_each, call, due) for _ in range(min(SYNCS_AT_ONCE, len(due)))]
        failed = await asyncio.gather(*threads)
        for replica in taken:
            replica.syncing -= 1
            replica.settle()
        again = []
        for replica, error in itertools.chain.from_iterable(failed):
            if replica.gone:  # meanwhile its folder was moved
                continue
            if is_exhaustion(error):
                again.append(replica)
            else:
                _log.error("%s", error)
                self._fail(replica.directory, error)
        if again:
            await asyncio.sleep(EXHAUSTED_RETRY_MS / 1000)
            await self._sync(call, again, then)
        else:
            then()


def _flush_log(log: ManagedLog) -> int:
    log.flush()
    return log.recovery_point


def _sync_each(call: Callable[[ManagedLog], None], due: deque[Replica]) -> list[tuple[Replica, StorageError]]:
    """`call` for each of those that other threads leave; the ones that failed."""
    failed: list[tuple[Replica, StorageError]] = []
    while True:
        try:
            replica = due.popleft()
        except IndexError:
            return failed
        if replica.gone:
            continue
        try:
            call(replica.log)
        except LogClosedError:  # meanwhile the broker has stopped
            continue
        except StorageError as error:
            failed.append((replica, error))
