"""LogDirectoryState: all its replicas go offline, once, at a failure of the disk and not of the process."""

from __future__ import annotations

import errno

from kreplog.core.broker.log_directory_state import LogDirectoryState
from kreplog.core.events import LogFailed
from kreplog.errors import LogFailedError, ResourceExhaustedError
from kreplog.types import TopicPartition

REPLICAS = [TopicPartition("t", 0), TopicPartition("u", 3)]


def failure(cause: Exception) -> LogFailedError:
    error = LogFailedError("t-0: fsync failed")
    error.__cause__ = cause
    return error


def test_every_replica_goes_offline_once() -> None:
    directory = LogDirectoryState()
    error = failure(OSError(errno.EIO, "Input/output error"))
    assert directory.fail(error, REPLICAS) == [LogFailed(REPLICAS[0]), LogFailed(REPLICAS[1])]
    assert directory.failed
    assert directory.fail(error, REPLICAS) is None


def test_an_empty_directory_fails_too() -> None:
    directory = LogDirectoryState()
    assert directory.fail(failure(OSError(errno.EIO, "Input/output error")), []) == []
    assert directory.failed


def test_a_want_of_descriptors_or_memory_fails_no_disk() -> None:
    directory = LogDirectoryState()
    for cause in (ResourceExhaustedError("no descriptors"), OSError(errno.ENOMEM, "Cannot allocate memory")):
        assert directory.fail(failure(cause), REPLICAS) is None
    assert not directory.failed


def test_replicas_are_walked_at_the_first_failure_alone() -> None:
    """There may be thousands, and each of their logs fails."""

    def walk(partition: TopicPartition) -> TopicPartition:
        raise AssertionError(f"walked to {partition}")

    directory = LogDirectoryState()
    assert directory.fail(failure(ResourceExhaustedError("no descriptors")), map(walk, REPLICAS)) is None
    directory.fail(failure(OSError(errno.EIO, "Input/output error")), REPLICAS)
    assert directory.fail(failure(OSError(errno.EIO, "Input/output error")), map(walk, REPLICAS)) is None
