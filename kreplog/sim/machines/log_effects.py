"""Log effects on a simulated disk: what each does, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplog.core import effects
from kreplog.errors import ResourceExhaustedError, check
from kreplog.sim.machines.disk import Disk, DiskLog
from kreplog.types import TopicPartition


def _open_log(disk: Disk, effect: effects.OpenLog) -> effects.OpenedLog:
    opened = disk.open(effect.partition, effect.topic_id)
    return effects.OpenedLog(opened.state, opened.high_watermark)


def _on(disk: Disk, partition: TopicPartition) -> DiskLog:
    log = disk.log(partition)
    check(log is not None, f"{partition}: a core uses a log that is not open")
    assert log is not None
    return log


def _size_from(disk: Disk, effect: effects.SizeFrom) -> int:
    """A failure counts for its position from then on: that of one follower says nothing of another one there."""
    try:
        disk.check_resources(effect.partition)
    except ResourceExhaustedError:
        disk.sizes_not_read.add((effect.partition, effect.offset))
        raise
    return _on(disk, effect.partition).size_from(effect.offset)


def _read_log(disk: Disk, effect: effects.ReadLog) -> Any:
    disk.check_resources(effect.partition)
    return _on(disk, effect.partition).read(effect.offset, effect.limit, effect.max_bytes)


def _read_stable(disk: Disk, effect: effects.ReadStable) -> Any:
    disk.check_resources(effect.partition)
    return _on(disk, effect.partition).read_stable(effect.offset, effect.limit, effect.max_bytes)


LOG_EFFECTS: dict[type, Callable[[Disk, Any], Any]] = {
    effects.OpenLog: _open_log,
    effects.AppendAsLeader: lambda disk, e: _on(disk, e.partition).append_as_leader(
        e.records, e.leader_epoch, e.strict, e.transactional, e.sequenced, e.verified_by
    ),
    effects.AppendMarker: lambda disk, e: _on(disk, e.partition).append_marker(e.marker, e.leader_epoch),
    effects.AppendAsFollower: lambda disk, e: _on(disk, e.partition).append_as_follower(e.records),
    effects.AssignLeaderEpoch: lambda disk, e: _on(disk, e.partition).assign_leader_epoch(e.leader_epoch),
    effects.TruncateTo: lambda disk, e: _on(disk, e.partition).truncate_to(e.offset),
    effects.TruncateFullyAndStartAt: lambda disk, e: _on(disk, e.partition).truncate_fully_and_start_at(e.offset),
    effects.DeleteRecordsBefore: lambda disk, e: _on(disk, e.partition).delete_records_before(e.offset),
    effects.EnforceRetention: lambda disk, e: _on(disk, e.partition).enforce_retention(),
    effects.ReadLog: _read_log,
    effects.ReadStable: _read_stable,
    effects.SizeFrom: _size_from,
    effects.DeleteLog: lambda disk, e: disk.delete(e.partition),
}
