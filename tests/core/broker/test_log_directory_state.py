"""LogDirectoryState: all its replicas go offline, once, at a failure of the disk and not of the process."""

from __future__ import annotations

import errno

import pytest

from kreplog.core.broker.log_directory_state import (
    MAX_REQUIRED_BYTES,
    LogDirectoryState,
    checkpoint_fails_directory,
    directory_for_new_replica,
    directory_start,
    has_room,
    opens_again,
)
from kreplog.core.events import LogFailed
from kreplog.errors import DiskFullError, LogFailedError, ReplicaRefusedError, ResourceExhaustedError, StorageError
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


def test_nothing_is_opened_in_a_failed_directory() -> None:
    directory = LogDirectoryState()
    directory.check_online(REPLICAS[0], "/data")
    directory.fail(failure(OSError(errno.EIO, "Input/output error")), [])
    with pytest.raises(LogFailedError, match=r"u-3: the log directory /data has failed"):
        directory.check_online(REPLICAS[1], "/data")


def test_the_unclean_mark_stays_in_a_failed_directory() -> None:
    directory = LogDirectoryState()
    assert directory.may_clear_unclean()
    directory.fail(failure(OSError(errno.EIO, "Input/output error")), [])
    assert not directory.may_clear_unclean()


def test_a_new_replica_goes_to_the_online_directory_with_the_fewest() -> None:
    failed, full, few, as_few = directories = [LogDirectoryState() for _ in range(4)]
    replicas_in = {failed: 0, full: 9, few: 2, as_few: 2}.__getitem__
    failed.fail(failure(OSError(errno.EIO, "Input/output error")), [])
    assert directory_for_new_replica(REPLICAS[0], directories, replicas_in) is few
    assert directory_for_new_replica(REPLICAS[0], [full, failed], replicas_in) is full
    with pytest.raises(StorageError, match="t-0: every log directory has failed"):
        directory_for_new_replica(REPLICAS[0], [failed], replicas_in)


def test_no_replica_is_created_that_may_be_in_a_directory_that_is_missing() -> None:
    with pytest.raises(StorageError, match="t-0 is in none of the log directories"):
        directory_for_new_replica(REPLICAS[0], [LogDirectoryState()], lambda _: 0, complete=False)


def test_a_directory_that_fails_for_want_of_space_is_full_and_another_is_not() -> None:
    for number, is_full in ((errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)):
        directory = LogDirectoryState()
        directory.fail(failure(OSError(number, "write")), [])
        assert (directory.failed, directory.is_full) == (True, is_full)


def test_a_directory_in_which_a_replica_finds_no_space_is_full_before_it_fails() -> None:
    directory = LogDirectoryState()
    directory.note_if_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    directory.note_if_disk_full(OSError(errno.EIO, "Input/output error"))
    assert (directory.failed, directory.is_full) == (False, True)


def test_a_full_disk_has_room_again_with_a_twentieth_or_a_gibibyte_free() -> None:
    small, large = 1000, 1000 * MAX_REQUIRED_BYTES
    assert [has_room(free, small) for free in (0, 49, 50)] == [False, False, True]
    assert [has_room(free, large) for free in (MAX_REQUIRED_BYTES - 1, MAX_REQUIRED_BYTES)] == [False, True]


@pytest.mark.parametrize(
    ("cause", "fails"),
    [
        (OSError(errno.EIO, "Input/output error"), True),
        (OSError(errno.EROFS, "Read-only file system"), True),
        (DiskFullError("no space"), False),
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (ResourceExhaustedError("no descriptors"), False),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), False),
    ],
)
def test_a_checkpoint_fails_the_directory_unless_the_next_may_succeed(cause: Exception, fails: bool) -> None:
    assert checkpoint_fails_directory(failure(cause)) == fails


def test_what_failed_for_want_of_descriptors_or_memory_is_opened_again() -> None:
    for error in (ReplicaRefusedError("t-0: refused"), failure(ResourceExhaustedError("no descriptors"))):
        assert opens_again(error)
    for cause in (OSError(errno.EIO, "Input/output error"), DiskFullError("no space")):
        assert not opens_again(failure(cause))
    assert not opens_again(None)


@pytest.mark.parametrize(
    ("clean_mark", "boot_mark", "start", "may_have_lost"),
    [
        (False, None, (True, True, False), True),
        (True, None, (True, True, False), True),
        (True, "now", (True, False, False), False),
        (True, "earlier", (True, False, False), False),
        (False, "now", (False, False, False), False),
        (False, "earlier", (False, False, True), True),
        (False, "", (False, False, True), True),
    ],
)
def test_a_start_is_unclean_if_the_host_has_booted_since_a_crash(
    clean_mark: bool, boot_mark: str | None, start: tuple[bool, bool, bool], may_have_lost: bool
) -> None:
    """Flaw F35. In order: was_clean, is_new, unclean."""
    found = directory_start(clean_mark, boot_mark, "now")
    assert (tuple(found), found.may_have_lost) == (start, may_have_lost)


def test_a_directory_is_marked_clean_once_all_in_it_was_closed() -> None:
    directory = LogDirectoryState()
    cases = [(complete, closed) for complete in (True, False) for closed in (True, False)]
    marks = [directory.may_mark_clean(complete=complete, all_closed=closed) for complete, closed in cases]
    assert marks == [True, False, False, False]
    directory.fail(failure(OSError(errno.EIO, "Input/output error")), [])
    assert not directory.may_mark_clean(complete=True, all_closed=True)
