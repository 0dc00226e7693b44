"""LogCleaner: compacts the logs of topics whose cleanup.policy has compact, in threads of its own.

Leaders and followers compact alike, each by itself. What is compacted, and how it survives a kill, is
kreplog._native.compaction; which log is next is kreplog.core.broker.log_cleaning.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from kreplog.core.broker.log_cleaning import CleanerQueue, is_uncleanable
from kreplog.errors import KreplogError, LogClosedError, LogFailedError
from kreplog.server.clock import wall_clock_ms
from kreplog.server.settings import MAX_CLEANER_THREADS
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.replica import Replica
from kreplog.types import CompactionBacklog, CompactionReport, TopicPartition

_log = logging.getLogger("kreplog.server")

T = TypeVar("T")

KEY_BYTES = 24
"""Bytes of dedupe_buffer_size for each key: a slot of kreplog._native.key_map."""


class CleanerSettings(NamedTuple):
    """log.cleaner.threads, .backoff.ms and .io.max.bytes.per.second, None for no limit."""

    threads: int = 1
    backoff_ms: int = 15_000
    max_bytes_per_second: float | None = None


@dataclass(slots=True)
class CleanerStatistics:
    """The figures of Kafka's metrics of a cleaner. max_dirty_percent, max_delay_s: of the logs that were measured last,
    whose oldest dirty records are past max.compaction.lag.ms by so much. last_run_s: when that was, monotonic.
    clean_time_s, recopy_percent: duration of the last compaction, and the bytes that it left of those that it read.
    buffer_percent: share of its memory for keys that it used."""

    max_dirty_percent: int = 0
    max_delay_s: int = 0
    last_run_s: float = field(default_factory=time.monotonic)
    clean_time_s: float = 0.0
    recopy_percent: int = 0
    buffer_percent: int = 0


class LogCleaner:
    """Compacts logs in threads. log_failed: called with the partition and the error of a log that refuses writes.
    note_sealed: called with a replica whose active segment may have been rolled. settings: those in effect. All on the
    event loop."""

    def __init__(
        self,
        hosted: HostedReplicas,
        settings: CleanerSettings,
        log_failed: Callable[[TopicPartition, LogFailedError], None],
        note_sealed: Callable[[Replica], None],
    ) -> None:
        self.queue: CleanerQueue[Replica] = CleanerQueue()
        self.statistics = CleanerStatistics()
        self._hosted = hosted
        self._log_failed = log_failed
        self._note_sealed = note_sealed
        self.settings = settings
        self._configured = asyncio.Event()
        self._pool = ThreadPoolExecutor(MAX_CLEANER_THREADS, "kreplog-cleaner")  # each starts when it is first needed
        self._choosing = asyncio.Lock()

    @property
    def _rate(self) -> int | None:
        """The rate limit of one thread, in bytes per second."""
        threads, _, rate = self.settings
        return None if rate is None else max(1, int(min(rate, 2**62) / threads))

    def configure(self, settings: CleanerSettings) -> None:
        """Apply other settings: pauses end, and the next compactions have the new rate."""
        if settings == self.settings:
            return
        self.settings = settings
        configured, self._configured = self._configured, asyncio.Event()
        configured.set()

    async def run(self) -> None:
        """Compact what is due, until cancelled."""
        workers: dict[int, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                configured = self._configured
                for number in range(self.settings.threads):
                    if number not in workers or workers[number].done():
                        workers[number] = group.create_task(self._work(number))
                await configured.wait()

    async def _work(self, number: int) -> None:
        while number < self.settings.threads:
            configured = self._configured
            if not await self._clean_next():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(configured.wait(), self.settings.backoff_ms / 1000)

    async def _clean_next(self) -> bool:
        """Compact the log that is next; False if nothing is due, or nothing came of it."""
        async with self._choosing:
            replica = await self._choose()
        if replica is None:
            return False
        began_s = time.monotonic()
        report, error = await self._in_thread([replica], _compact, replica, self._rate)
        uncleanable = None if error is None else self._failure_of(replica, error)
        self.queue.finish(replica, uncleanable)
        if not replica.removed:
            self._note_sealed(replica)
        if report is not None:
            self._note_report(report, time.monotonic() - began_s, replica.log.config.dedupe_buffer_size)
        return uncleanable is not None or (report is not None and report.end_offset > report.start_offset)

    async def _choose(self) -> Replica | None:
        candidates = self.queue.candidates(self._compacting())
        backlogs, errors = await self._in_thread(candidates, _measure, candidates, wall_clock_ms())
        self.statistics.last_run_s = time.monotonic()
        self.statistics.max_dirty_percent = max(
            (int(100 * found.dirty_ratio) for found in backlogs.values()), default=0
        )
        self.statistics.max_delay_s = max((found.overdue_ms // 1000 for found in backlogs.values()), default=0)
        for replica in candidates:
            if not replica.removed:
                self._note_sealed(replica)  # max.compaction.lag.ms may have rolled it
        for replica, error in errors.items():
            if (uncleanable := self._failure_of(replica, error)) is not None:
                self.queue.finish(replica, uncleanable)
        present = set(self._compacting())
        return self.queue.begin({replica: backlog for replica, backlog in backlogs.items() if replica in present})

    def _note_report(self, report: CompactionReport, seconds: float, buffer_size: int) -> None:
        self.statistics.clean_time_s = seconds
        self.statistics.recopy_percent = 100 * report.bytes_after // max(1, report.bytes_before)
        self.statistics.buffer_percent = 100 * report.keys * KEY_BYTES // buffer_size
        _log.debug("compacted to offset %d in %.3f s: %s", report.end_offset, seconds, report)

    def uncleanable_bytes(self) -> int:
        """Bytes of the logs that are set aside."""
        return sum(replica.log.size for replica in self.queue.uncleanable if not replica.log.closed)

    def _compacting(self) -> list[Replica]:
        """Replicas whose policy has compact, in online directories. While one is copied to another directory, it is not
        compacted: the copy would keep records whose tombstone it does not get."""
        return [
            replica
            for partition, replica in self._hosted.items()
            if replica.log.config.compacts and not (replica.directory.failed or replica.log.closed)
            if partition not in self._hosted.moves
        ]

    async def _in_thread(self, used: Sequence[Replica], call: Callable[..., T], *arguments: Any) -> T:
        """Run a call that uses the logs of some replicas, which stay open until it has ended, even if this task is
        cancelled before."""
        for replica in used:
            replica.threads += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)
        future.add_done_callback(lambda _: _release(used))
        return await asyncio.shield(future)

    def _failure_of(self, replica: Replica, error: KreplogError) -> str | None:
        """The error with which a log is set aside; None if compaction is tried again."""
        partition = replica.log.topic_partition
        if isinstance(error, LogClosedError) or replica.removed or replica.directory.failed:
            return None
        if isinstance(error, LogFailedError):
            self._log_failed(partition, error)
            return None
        if not is_uncleanable(error):
            _log.warning("%s is not compacted now: %s", partition, error)
            return None
        _log.error("%s is set aside from compaction until the broker restarts: %s", partition, error)
        return str(error)

    def close(self) -> None:
        """End the compactions under way; blocks until they have."""
        for replica in self.queue.in_progress:
            replica.log.end_compaction()
        self._pool.shutdown(cancel_futures=True)


def _release(used: Sequence[Replica]) -> None:
    for replica in used:
        replica.threads -= 1
        replica.release()


def _measure(
    replicas: Sequence[Replica], now_ms: int
) -> tuple[dict[Replica, CompactionBacklog], dict[Replica, KreplogError]]:
    backlogs, errors = {}, {}
    for replica in replicas:
        try:
            backlogs[replica] = replica.log.compaction_backlog(now_ms)
        except KreplogError as error:
            errors[replica] = error
    return backlogs, errors


def _compact(replica: Replica, rate: int | None) -> tuple[CompactionReport | None, KreplogError | None]:
    try:
        # Those without a key are from before the policy had compact: Kafka's cleaner drops them
        return replica.log.compact(max_bytes_per_second=rate, drop_keyless=True), None
    except KreplogError as error:
        return None, error
