"""Running out of descriptors is not a failing disk: what waits waits, what does not fit is refused, nothing is lost."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native.segment import close_idle_files, keep_open
from kreplog.errors import LogFailedError, ResourceExhaustedError
from tests.faults.forked import result_of
from tests.reference import sent

CONFIG = LogConfig(segment_bytes=600)
VALUE = b"v" * 50


def open_descriptors() -> int:
    """0 where the system does not list them."""
    return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0


@contextmanager
def no_descriptors() -> Iterator[list[int]]:
    """Every descriptor that this process may have is in use meanwhile: those yielded are to spare.

    Run it in a forked process: the limit stays."""
    limit = open_descriptors() + 60  # this process may have inherited many from tests before
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    close_idle_files()  # those of logs that this process has from elsewhere
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        yield held
    finally:
        for file in held:
            os.close(file)


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


def append_until_refused(log: Log) -> int:
    """Appends until a descriptor is needed; so many were taken."""
    for taken in range(1000):
        try:
            log.append(VALUE + b"%d" % log.log_end_offset)
        except ResourceExhaustedError:
            return taken
    raise AssertionError("no append needed a descriptor")


@pytest.mark.parametrize("replicated", [False, True])
def test_a_log_whose_roll_finds_no_descriptor_goes_on(folder: Path, replicated: bool) -> None:
    config = LogConfig(segment_bytes=600, replicated=replicated)

    def run() -> int:
        with Log.open(folder / "t-0", config) as log:
            log.append(VALUE + b"0")
            with no_descriptors():
                append_until_refused(log)
                end = log.log_end_offset
                with pytest.raises(ResourceExhaustedError):
                    log.append(VALUE)
                assert not log.failed
                assert log.log_end_offset == end, "what was refused is not in the log"
            for _ in range(50):
                log.append(VALUE + b"%d" % log.log_end_offset)
            log.flush()
            return int(log.log_end_offset)

    end = result_of(run)
    with Log.open(folder / "t-0", config) as log:
        log.advance_high_watermark(end)
        assert values(log) == [VALUE + b"%d" % offset for offset in range(end)]
        assert len(log.segments) > 3
        assert not log.verify().damages


def test_a_flush_needs_no_descriptor_but_those_of_the_segments(folder: Path) -> None:
    """Once they are synced they are closed, which leaves room for the directory and the index of aborted transactions.
    The latter is opened: it is missed where it was deleted."""

    def run() -> None:
        with pytest.raises(LogFailedError, match="not made durable"), Log.open(folder / "t-0", CONFIG) as log:
            for _ in range(40):
                log.append(VALUE)
            log.append_batches(sent(7, 0, VALUE), 0, transactional=True)
            log.append_transaction_marker(7, 0, committed=False, coordinator_epoch=0)
            end = log.log_end_offset
            with no_descriptors():
                log.flush()
            assert log.recovery_point == end
            log.append_batches(sent(7, 1, VALUE), 0, transactional=True)
            log.append_transaction_marker(7, 0, committed=False, coordinator_epoch=0)
            for index in (folder / "t-0").glob("*.txnindex"):
                index.unlink()
            with no_descriptors(), pytest.raises(LogFailedError):
                log.flush()

    result_of(run)


def left_by_a_killed_process(path: Path) -> int:
    """A log of several segments, none of which is flushed; its end."""

    def run() -> int:
        log = Log.open(path, CONFIG)
        for _ in range(40):
            log.append(VALUE * 6)
        return int(log.log_end_offset)

    return result_of(run)


def test_a_flush_that_finds_no_descriptor_is_made_later(folder: Path) -> None:
    """No segment of a log that was just opened has its file open yet."""
    end = left_by_a_killed_process(folder / "t-0")

    def run() -> None:
        with Log.open(folder / "t-0", CONFIG) as log:
            with no_descriptors():
                with pytest.raises(ResourceExhaustedError):
                    log.flush()
                assert log.recovery_point < end, "it was not flushed"
            assert not log.failed
            log.flush()
            assert log.recovery_point == end

    result_of(run)


def test_an_epoch_that_finds_no_descriptor_has_not_begun(folder: Path) -> None:
    def run() -> None:
        with Log.open(folder / "t-0", LogConfig(replicated=True)) as log:
            log.assign_leader_epoch(3)
            log.append(VALUE)
            with no_descriptors(), pytest.raises(ResourceExhaustedError):
                log.assign_leader_epoch(4)
            assert list(log.leader_epochs) == [(3, 0)]
            log.assign_leader_epoch(4)
            assert list(log.leader_epochs) == [(3, 0), (4, 1)]
            with no_descriptors(), pytest.raises(ResourceExhaustedError):
                log.assign_leader_epoch(5)
            log.append(VALUE)
            assert list(log.leader_epochs) == [(3, 0), (4, 1)]
        with Log.open(folder / "t-0", LogConfig(replicated=True)) as log:
            assert list(log.leader_epochs) == [(3, 0), (4, 1)]

    result_of(run)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_log_of_more_segments_than_descriptors_is_read(folder: Path, read_only: bool) -> None:
    with Log.open(folder / "t-0", CONFIG) as log:
        while len(log.segments) < 200:
            log.append(VALUE)
        count = log.log_end_offset

    def run() -> tuple[int, int]:
        inherited = open_descriptors()  # of the tests that ran before in this process
        limit = inherited + 60
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        keep_open(-1)  # of this limit, no longer of the parent's
        with Log.open(folder / "t-0", CONFIG, read_only=read_only) as log:
            assert len(values(log)) == count
            for offset in range(0, count, 5):
                assert len(log.fetch(offset, 1).data)
            if not read_only:
                log.append(VALUE)
            return open_descriptors() - inherited, limit

    opened, limit = result_of(run)
    assert opened <= limit // 2 + 4


def test_an_appender_keeps_what_found_no_descriptor(folder: Path) -> None:
    """Their offsets were given to the caller, so no other records may come to stand there."""

    def run() -> None:
        with Log.open(folder / "t-0", CONFIG) as log:
            with log.appender(batch_bytes=200, linger_ms=1) as out:
                offsets = [out.append(VALUE + b"0")]
                with no_descriptors():
                    refused = 0
                    while not refused:
                        try:
                            offsets.append(out.append(VALUE + b"%d" % len(offsets)))
                        except ResourceExhaustedError:
                            refused += 1
                    with pytest.raises(ResourceExhaustedError):
                        out.flush()
                offsets += [out.append(VALUE + b"%d" % len(offsets)) for _ in range(1)]
            assert offsets == list(range(len(offsets)))
            assert values(log) == [VALUE + b"%d" % offset for offset in offsets]

    result_of(run)


def test_what_an_append_wrote_and_could_not_sync_is_not_called_refused(folder: Path) -> None:
    """It finds the descriptor that it needs, the fsync after it one too few: an append made again would be a second
    one."""
    end = left_by_a_killed_process(folder / "t-0")

    def run() -> None:
        log = Log.open(folder / "t-0", LogConfig(segment_bytes=100_000, flush_messages=1))
        with no_descriptors() as held:
            with pytest.raises(ResourceExhaustedError):
                log.append(VALUE)
            assert log.log_end_offset == end and not log.failed
            os.close(held.pop())
            with pytest.raises(LogFailedError):
                log.append(VALUE)
            assert log.log_end_offset == end + 1

    result_of(run)
    with Log.open(folder / "t-0") as log:
        assert values(log) == [VALUE * 6] * end + [VALUE]
        log.append(VALUE)


def test_threads_share_files_that_others_close(folder: Path) -> None:
    """Threads append to some logs, and read others, while each has the idle files of all of them closed."""

    def run() -> list[str]:
        sys.setswitchinterval(1e-6)
        keep_open(1)
        logs = [Log.open(folder / f"t-{number}", LogConfig(segment_bytes=4096)) for number in range(4)]
        for log in logs:
            log.append_many([VALUE * 20] * 100)
            log.flush()
        failures: list[str] = []

        def work(log: Log, appends: bool) -> None:
            try:
                for turn in range(3000):
                    if appends:
                        log.append(VALUE * 20)
                        log.flush()
                    else:
                        log.fetch(turn % 100, max_bytes=1)
                        close_idle_files()
            except BaseException as error:
                failures.append(repr(error))

        threads = [threading.Thread(target=work, args=(log, appends)) for log in logs for appends in (True, False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failures

    assert result_of(run) == []
