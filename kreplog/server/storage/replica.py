"""Replica: the log of one partition on this broker, its directory, the threads that use it, and its move to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kreplog.core import effects
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directories import DataDirectory, FutureReplica

NO_FLUSH_MS = 2**63 - 1
"""flush.ms of a topic whose logs are not fsynced by time."""


@dataclass(slots=True, eq=False)
class Replica:
    """The log of a partition on this broker, and its use by threads. flushing: a thread fsyncs the log for a Flush
    effect. threads: number of other threads that sync or read its files, or are about to. removed: deleted, or renamed
    as a stray; `on_released` is called once no thread uses the log. producers: number of idempotent producers that are
    charged to the memory account. flush_ms: its topic's flush.ms. flush_timer: runs while there are records that it is
    for."""

    directory: DataDirectory
    topic_id: str
    log: ManagedLog
    flushing: bool = False
    threads: int = 0
    removed: bool = False
    producers: int = 0
    flush_ms: int = NO_FLUSH_MS
    flush_timer: asyncio.TimerHandle | None = None
    on_released: Callable[[], None] | None = field(default=None)

    @property
    def state(self) -> effects.LogState:
        log = self.log
        return effects.LogState(
            log.log_end_offset, log.log_start_offset, tuple(log.leader_epochs), log.first_unstable_offset
        )

    @property
    def in_use(self) -> bool:
        """Whether a thread uses the log."""
        return self.flushing or self.threads > 0

    def release(self) -> None:
        """Close the log of a removed replica, and call `on_released`, unless a thread still uses it."""
        if self.removed and not self.in_use:
            if not self.log.closed:
                self.log.abandon()
            then, self.on_released = self.on_released, None
            if then is not None:
                then()


@dataclass(slots=True, eq=False)
class ReplicaMove:
    """The move of a replica to another log directory of its broker. directory: the target. future: the directory of the
    copy there. log: the copy. busy: a thread fills it. replacing: it is about to take over. took_over: it is the
    replica now. ended: it was cancelled, or its replica is gone, so that the copy is of no use."""

    replica: Replica
    directory: DataDirectory
    future: FutureReplica
    log: ManagedLog
    busy: bool = False
    replacing: bool = False
    took_over: bool = False
    ended: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the copy is still to be filled, and neither end of the move has gone."""
        return not (self.ended or self.replica.removed or self.replica.directory.failed or self.directory.failed)
