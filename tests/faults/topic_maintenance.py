"""Driver: the background thread of a topic meets a failed fsync or a full disk in one partition.

Arguments: directory, "fsync" (EIO, once) or "full" (ENOSPC at every write of a compaction). Needs the shim. What must
hold: the other partition is flushed or compacted, the failure is in maintenance_errors, and a partition whose fsync
failed refuses its next append.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from kreplog import LogConfig, MaintenanceConfig, Topic, errors
from tests.faults import shim as faults
from tests.waiting import until

SEGMENT = 1000


def fail_fsync(path: Path) -> None:
    shim = faults.Shim()
    topic = Topic.open(path, 2, maintenance=MaintenanceConfig(flush_ms=1))
    for number in range(2):
        topic.append(b"first", partition=number)
    until(lambda: topic.log(0).recovery_point == 1 and topic.log(1).recovery_point == 1)
    shim.arm(faults.SYNC, f"{path}-0/", 1, errno.EIO)
    topic.append(b"second", partition=0)
    until(lambda: bool(topic.maintenance_errors))
    (failure,) = topic.maintenance_errors
    assert (failure.task, failure.partition) == ("flush", 0), failure
    assert isinstance(failure.error, errors.LogFailedError), failure
    try:
        topic.append(b"third", partition=0)
    except errors.LogFailedError:
        print("refused")
    topic.append(b"second", partition=1)
    until(lambda: topic.log(1).recovery_point == 2)
    assert len(topic.maintenance_errors) == 1
    try:
        topic.close()
    except errors.LogFailedError:
        print("close says so")


def fill_disk(path: Path) -> None:
    """The disk is full for one partition; when there is room again, it is compacted too."""
    config = LogConfig(segment_bytes=SEGMENT, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
    with Topic.open(path, 3, config=config) as topic:
        for number in range(300):
            topic.append(b"%040d" % number, b"k", partition=number % 3)
    shim = faults.Shim()
    shim.arm(faults.WRITE | faults.OPEN, f"{path}-0/{0:020d}.log.cleaned", 1, errno.ENOSPC, faults.FAIL_FROM_HERE_ON)
    with Topic.open(path, config=config, maintenance=MaintenanceConfig(cleaner_backoff_ms=1)) as topic:
        until(lambda: all(len(list(topic.read(number))) < 60 for number in (1, 2)))
        until(lambda: bool(topic.maintenance_errors))
        (failure,) = topic.maintenance_errors
        assert (failure.task, failure.partition) == ("compaction", 0), failure
        assert errors.is_disk_full(failure.error), failure
        print("others are compacted")
        shim.disarm()
        until(lambda: not topic.maintenance_errors)
        assert len(list(topic.read(0))) < 60
        print("and then it")


def main(directory: Path, failure: str) -> None:
    (fail_fsync if failure == "fsync" else fill_disk)(directory / "orders")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
