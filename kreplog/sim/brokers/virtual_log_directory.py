"""VirtualLogDirectory: what a broker process does with its one log directory, in virtual time.

The effects on logs, the fsyncs, the failure of the directory, strays, the unclean mark, and the periodic checkpoint of
high watermarks.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from kreplog.core import effects, events
from kreplog.core import messages as m
from kreplog.core.broker import stray_retention
from kreplog.core.broker.file_syncs import FileSync, FileSyncs
from kreplog.core.broker.log_directory_state import LogDirectoryState
from kreplog.errors import KreplogError, LogFailedError, ResourceExhaustedError, StorageError
from kreplog.sim.brokers.core_runner import AWAITED, CoreRunner
from kreplog.sim.brokers.virtual_replica_moves import VirtualReplicaMoves
from kreplog.sim.machines.disk import Disk, DiskLog
from kreplog.sim.machines.fsyncs import VirtualFlusher
from kreplog.sim.machines.log_effects import LOG_EFFECTS
from kreplog.sim.machines.scheduler import MS
from kreplog.types import TopicPartition

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

CHECKPOINT_MS = 700

_ON_NAMES = effects.OpenLog | effects.RestoreStray | effects.SetAsideStray | effects.DeleteStrays | effects.DeleteLog
"""Effects that open, rename or delete the directory of a replica or stray."""


class VirtualLogDirectory:
    """The log directory of one process, from its start to its end. effects: the handlers of the effects on it. moves:
    of its replicas."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._broker = process.id
        self._scheduler = process.cluster.scheduler
        self._checkers = process.cluster.checkers
        self._disk = process.disk
        self._state = LogDirectoryState()
        self._flusher = VirtualFlusher(
            self._scheduler,
            self._disk,
            lambda: process.alive,
            process.replicas.put,
            self._fail,
            self._check_retried,
        )
        self.moves = VirtualReplicaMoves(
            self._scheduler,
            self._disk,
            Random(f"{process.cluster.plan.seed}-moves-{process.id}"),
            lambda: not process.paused if process.alive else None,
            process.replicas.put,
        )
        self._has_init = False
        self._file_syncs: FileSyncs[DiskLog] = FileSyncs()
        self._created_by_init: list[DiskLog] = []
        self._operations: dict[type, Callable[[Disk, Any], Any]] = {
            **LOG_EFFECTS,
            effects.SetAsideStray: self._set_aside,
            effects.RestoreStray: self._restore,
            effects.DeleteStrays: self._delete_strays,
            effects.ReplaceLog: self.moves.replace,
            effects.SyncReplacement: self.moves.sync,
        }
        self.effects: dict[type, Callable[[CoreRunner, Any], Any]] = {
            **dict.fromkeys(self._operations, self._log),
            effects.AdvanceHighWatermark: self._advance_high_watermark,
            effects.Flush: lambda _, effect: self._flusher.flush(effect.partition),
            effects.OffsetForTimestamp: self._offset_for_timestamp,
            effects.LeaderAndIsrApplied: self._leader_and_isr_applied,
            effects.SyncFiles: self._sync_files,
            effects.ClearUncleanMark: self._clear_unclean_mark,
        }

    def _log(self, runner: CoreRunner, effect: Any) -> Any:
        """A write happens at once, and on a slow disk its answer comes later: a crash in between leaves it on the
        disk."""
        answer: Any = None
        error: KreplogError | None = None
        if isinstance(effect, effects.DeleteLog):
            self._checkers.deleting(self._broker, effect.partition, _is_named(effect.partition, runner.event))
        try:
            if isinstance(effect, _ON_NAMES):
                self._state.check_online(effect.partition, f"of broker {self._broker}")
                self._check_unused(f"carries out {type(effect).__name__} for {effect.partition}")
            answer = self._operations[type(effect)](self._disk, effect)
            if isinstance(effect, effects.OpenLog):
                self._note_opened(effect.partition)
        except KreplogError as failed:
            error = failed
        slow_ms, delay_us = self._disk.slow_ms, 0
        if slow_ms:
            delay_us = int(slow_ms * MS * (0.5 + self._scheduler.random.random()))
            self._scheduler.after(delay_us, self._process.resume_step, runner, answer, error)
        if isinstance(error, LogFailedError) and self._disk.log(effect.partition) is not None:
            self._scheduler.after(delay_us, self._fail, error)
        if slow_ms:
            return AWAITED
        if error is not None:
            raise error
        return answer

    def _fail(self, error: StorageError) -> None:
        """After the step of the core in which a write failed, and when an fsync has."""
        failures = self._state.fail(error, self._disk.open_replicas()) if self._process.alive else None
        if failures is not None:
            for failure in failures:
                self._process.replicas.put(failure)
            if self._process.replicas.idle:
                self._checkers.directory_failed(self._broker, self._process.manager)

    # Strays

    def _set_aside(self, disk: Disk, effect: effects.SetAsideStray) -> None:
        topic_id, now_ms = disk.on_disk().get(effect.partition), self._scheduler.now_ms
        disk.set_aside(effect.partition, now_ms)
        if topic_id is not None:
            self._checkers.strays.set_aside(self._broker, effect.partition, topic_id, now_ms)

    def _restore(self, disk: Disk, effect: effects.RestoreStray) -> bool:
        restored = disk.restore(effect.partition, effect.topic_id)
        replica = self._broker, effect.partition, effect.topic_id
        self._checkers.strays.assigned_again(*replica, self._scheduler.now_ms, restored=restored)
        return restored

    def _delete_strays(self, disk: Disk, effect: effects.DeleteStrays) -> None:
        disk.delete_stray(effect.partition, effect.topic_id)
        self._checkers.strays.deleted(self._broker, effect.partition, effect.topic_id)

    def _remove_expired_strays(self) -> None:
        now_ms, retention_ms = self._scheduler.now_ms, stray_retention.DEFAULT_RETENTION_MS
        for (partition, topic_id), since_ms in self._disk.strays_since().items():
            if not self._state.failed and stray_retention.is_expired(since_ms, now_ms, retention_ms):
                self._disk.delete_stray(partition, topic_id)
                self._process.cluster.trace.note(self._process.host, f"deletes the expired stray {partition}")
        self._checkers.strays.on_disk(self._broker, self._disk.strays, now_ms)

    # Checks

    def _check_unused(self, use: str) -> None:
        """A log directory that has failed is not used any more (F37)."""
        if self._state.failed:
            text = f"broker {self._broker} {use}, although its log directory has failed"
            self._checkers.violate("failed but used", text, None)

    def _check_retried(self, error: StorageError) -> None:
        """The kernel may have dropped what an fsync that failed has not written (F37). A log that refuses writes since
        an operation was broken off for want of descriptors has lost nothing, and refuses the retry."""
        if isinstance(error, LogFailedError) and not isinstance(error.__cause__, ResourceExhaustedError):
            self._checkers.violate("fsync retried", f"broker {self._broker} tries again: {error}", None)

    def _note_opened(self, partition: TopicPartition) -> None:
        log = self._disk.log(partition)
        if log is not None and not log.files_durable:  # else its fsync takes no time
            self._file_syncs.opened(log)

    def _advance_high_watermark(self, _runner: CoreRunner, effect: effects.AdvanceHighWatermark) -> int | None:
        log = self._disk.log(effect.partition)
        return None if log is None else log.advance_high_watermark(effect.offset)

    def _offset_for_timestamp(self, _runner: CoreRunner, effect: effects.OffsetForTimestamp) -> None:
        log = self._disk.log(effect.partition)
        found = (-1, -1) if log is None else log.offset_for_timestamp(effect.timestamp)
        self._process.replicas.put(events.OffsetFound(effect.tag, *found))

    def _leader_and_isr_applied(self, _runner: CoreRunner, effect: effects.LeaderAndIsrApplied) -> None:
        if effect.request.is_init:
            self._has_init = True
            self._created_by_init = self._disk.not_durable()
        self._process.apply_all(self._process.cores.applied(effect))

    def _sync_files(self, _runner: CoreRunner, effect: effects.SyncFiles) -> None:
        created = self._created_by_init

        def synced() -> None:
            self._created_by_init = created  # another INIT may have come since
            self._process.apply_all(self._process.cores.files_synced(effect.applied))

        sync = self._file_syncs.begin(synced)
        if not sync.logs:
            self._files_synced(sync)
            return
        slow_ms = self._disk.slow_ms + self._process.cluster.plan.file_sync_ms
        delay_us = int((500 + 4000 * self._scheduler.random.random()) + slow_ms * MS)
        self._scheduler.after(delay_us, self._files_synced, sync)

    def _files_synced(self, sync: FileSync[DiskLog]) -> None:
        if not self._process.alive:
            return
        for log in sync.logs:
            if not self._state.failed:
                try:
                    log.sync_files()
                except LogFailedError as error:
                    self._fail(error)
        for done in self._file_syncs.finished(sync):
            done.then()

    def _clear_unclean_mark(self, _runner: CoreRunner, _effect: effects.ClearUncleanMark) -> None:
        if not self._state.may_clear_unclean():
            return
        self._check_unused("clears its unclean mark")
        if self._disk.failed:
            return  # the mark cannot be written
        not_durable = [log.topic_id for log in self._created_by_init if not log.files_durable]
        unknown = (self._disk.unclean or self._process.machine.new_disk) and not self._has_init
        self._checkers.unclean_mark_cleared(self._broker, not_durable, unknown)
        self._disk.unclean = self._process.machine.new_disk = False

    def checkpoint_later(self) -> None:
        """Begin the periodic checkpoints of the high watermarks, and the removal of expired strays."""
        self._scheduler.after(CHECKPOINT_MS * MS, self._checkpoint)

    def _checkpoint(self) -> None:
        if self._process.alive:
            if not self._process.paused:
                self._disk.checkpoint_high_watermarks()
                self._remove_expired_strays()
            self.checkpoint_later()


def _is_named(partition: TopicPartition, event: events.Event | None) -> bool:
    """Whether the event is a StopReplica that deletes this replica."""
    return (
        isinstance(event, events.Received)
        and isinstance(event.request, m.StopReplicaRequest)
        and any(stop.partition == partition and stop.delete for stop in event.request.partitions)
    )
