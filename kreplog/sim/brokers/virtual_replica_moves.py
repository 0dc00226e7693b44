"""VirtualReplicaMoves: moves the replicas of one process to other log directories, in virtual time.

A disk of the simulator has one directory: a move ends with the replica's files replaced by those of its copy. What a
copy does next is kreplog.core.broker.future_replicas; when it takes over, kreplog.core.replication.local_replica. A
process that ends drops its copy, as the next start does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from kreplog.core.broker import future_replicas
from kreplog.core.broker.future_replicas import Copy, CopyStep, Restart, Truncate
from kreplog.core.effects import LogState, ReplaceLog, SyncReplacement
from kreplog.core.events import CopyCaughtUp
from kreplog.sim.machines.disk import Disk, DiskLog
from kreplog.sim.machines.replica_log import LogFiles
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.types import TopicPartition

PIECE_BYTES = 300
"""Bytes of records that are copied at once, at least a batch."""

MAX_PAUSE_MS = 150
"""Between two pieces, so that the replica changes meanwhile."""

IN_USE = 0.9
"""How often others use the log, so that the copy cannot take over yet and follows the replica."""

FINAL_PIECES = 100
"""Maximum of pieces that are copied while the replication core waits."""


@dataclass(slots=True)
class _Move:
    """A replica, and its copy."""

    log: DiskLog
    copy: LogFiles


class VirtualReplicaMoves:
    """The moves of one process, one at a time. runs: whether the process is alive, and not paused; None once it has
    ended. put: takes CopyCaughtUp events."""

    def __init__(
        self,
        scheduler: Scheduler,
        disk: Disk,
        random: Random,
        runs: Callable[[], bool | None],
        put: Callable[[CopyCaughtUp], None],
    ) -> None:
        self._scheduler = scheduler
        self._disk = disk
        self._random = random
        self._runs = runs
        self._put = put
        self._move: _Move | None = None

    def go_on_later(self) -> None:
        """Begin a move, or copy the next piece."""
        self._scheduler.after(self._random.randint(1, MAX_PAUSE_MS) * MS, self._go_on)

    def _go_on(self) -> None:
        runs = self._runs()
        if runs is None:
            return
        if runs:
            move = self._move = self._present() or self._begin()
            if move is not None and _copy_piece(move):
                self._put(CopyCaughtUp(move.log.partition))
        self.go_on_later()

    def _begin(self) -> _Move | None:
        logs = [log for partition in self._disk.open_replicas() if (log := self._usable(partition)) is not None]
        if not logs:
            return None
        log = self._random.choice(logs)
        return _Move(log, self._disk.make_copy(log.partition))

    def _usable(self, partition: TopicPartition) -> DiskLog | None:
        log = self._disk.log(partition)
        return None if log is None or log.failed else log

    def _present(self) -> _Move | None:
        """The move under way, unless its replica has been closed, or its log has failed."""
        move = self._move
        return move if move is not None and self._usable(move.log.partition) is move.log else None

    def replace(self, disk: Disk, effect: ReplaceLog) -> LogState | None:
        """Let a copy take over, within a step of the core."""
        move = self._present()
        if move is None or move.log.partition != effect.partition or self._random.random() < IN_USE:
            return None
        caught_up = any(_copy_piece(move) for _ in range(FINAL_PIECES))
        current, copy = move.log.state(), move.copy
        if current.epochs and current.epochs[-1:] != copy.epochs[-1:]:  # the latest has no records yet
            copy.assign_leader_epoch(current.epochs[-1][0])
        ends = current.log_start, move.log.high_watermark, current.leo
        if not caught_up or ends != (copy.log_start, copy.high_watermark, copy.leo):
            return None
        self._move = None
        return disk.replace_files(effect.partition, copy)

    def sync(self, disk: Disk, effect: SyncReplacement) -> None:
        disk.sync_replacement(effect.partition)


def _copy_piece(move: _Move) -> bool:
    """Carry out the next step of a copy; whether it has all records of the replica."""
    copy, target = move.copy, move.log.state()
    state = LogState(copy.leo, copy.log_start, copy.epochs)
    step = future_replicas.next_copy_step(target, state)
    if isinstance(step, Copy):
        records = move.log.read(step.offset, target.leo, PIECE_BYTES)
        misfit = future_replicas.after_misfit(state, records.batches[0].base_offset)
        if misfit is not None:
            _cut(copy, misfit)
        if not isinstance(misfit, Truncate):
            copy.append_as_follower(records)
    elif step is not None:
        _cut(copy, step)
    copy.advance_high_watermark(min(move.log.high_watermark, copy.leo))
    if copy.log_start < target.log_start <= copy.high_watermark:
        copy.delete_records_before(target.log_start)
    return step is None or (isinstance(step, Copy) and copy.leo >= target.leo)


def _cut(copy: LogFiles, step: CopyStep) -> None:
    if isinstance(step, Restart):
        copy.truncate_fully_and_start_at(step.offset)
    else:
        copy.truncate_to(step.offset)
