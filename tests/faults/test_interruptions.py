"""Calls interrupted, raced or made too late: nothing acknowledged is lost, nobody crashes, and errors are reported.

Each test is a fault that a review once reproduced.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import lz4.block
import pytest

from kreplog import Log, LogConfig, Table, errors
from kreplog._native import batch
from kreplog.closing import Closing
from kreplog.errors import StorageError
from tests.faults.forked import result_of


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "t-0"


def together(*calls: Callable[[], object]) -> list[BaseException]:
    """Run the calls in threads of their own; what they raised."""
    raised: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # reported to the test, whatever it is
            raised.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_closing_from_several_threads(path: Path) -> None:
    for _ in range(100):
        log = Log.open(path)
        log.append(b"x")
        assert together(*[log.close] * 4) == []
    with Log.open(path) as log:
        assert log.log_end_offset == 100


def test_flushing_and_appending_beside_close(path: Path) -> None:
    acknowledged: list[int] = []

    def append(log: Log) -> None:
        while True:
            acknowledged.append(log.append(b"x" * 10_000))

    def flush(log: Log) -> None:
        while True:
            log.flush()

    for _ in range(10):
        log = Log.open(path)
        timer = threading.Timer(0.02, log.close)
        timer.start()
        raised = together(lambda log=log: append(log), lambda log=log: flush(log))  # type: ignore[misc]
        timer.join()
        assert all(isinstance(error, errors.LogClosedError) for error in raised), raised
    with Log.open(path) as log:
        assert log.log_end_offset == max(acknowledged) + 1


def test_an_interrupt_is_not_replaced_by_what_a_close_raises() -> None:
    class Failing(Closing):
        def close(self) -> None:
            raise StorageError("the disk is full")

    with pytest.raises(KeyboardInterrupt) as raised, Failing():
        raise KeyboardInterrupt
    assert "the disk is full" in raised.value.__notes__[0]
    with pytest.raises(StorageError), Failing():
        raise ValueError


class _Interrupted(Exception):
    """Raised by the handler of a signal."""


def is_interrupted(call: Callable[[], object], is_begun: Callable[[], bool]) -> bool:
    """Send a signal whose handler raises while a call has begun; whether that came before its end."""
    main, ended = threading.get_ident(), threading.Event()

    def send() -> None:
        while not is_begun():
            if ended.wait(0.0005):
                return
        signal.pthread_kill(main, signal.SIGUSR1)

    def interrupt(*_arguments: object) -> None:
        raise _Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        call()
        ended.set()
        sender.join()
    except _Interrupted:
        return True
    finally:
        signal.signal(signal.SIGUSR1, before)
        ended.set()
        sender.join()
    return False


def test_a_signal_ends_the_loading_of_a_table(path: Path) -> None:
    """Ctrl-C, between two batches; not once all has been loaded."""
    with Log.open(path) as log, Table.of(log) as table:
        stopped = 0
        for _ in range(20):  # where the signal comes too late, once more
            start = log.log_end_offset
            log.append_many([b"x" * 100] * 300_000, keys=[b"%d" % number for number in range(300_000)])
            if is_interrupted(table.refresh, lambda start=start: table.offsets[0] > start):  # type: ignore[misc]
                stopped = table.offsets[0]
                if stopped < log.log_end_offset:
                    break
        assert 0 < stopped < log.log_end_offset
        table.refresh()
        assert table.offsets[0] == log.log_end_offset and len(table) == 300_000


def test_an_interrupted_truncation_takes_no_more_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    log = Log.open(path)
    for number in range(100):
        log.append(b"old%d" % number)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.truncate_to(50)
    with pytest.raises(errors.LogFailedError):
        log.append(b"new")
    log.close()
    with Log.open(path) as log:
        first = log.append(b"new")
        assert list(log.values())[first] == b"new" and list(log.values())[:50] == [b"old%d" % n for n in range(50)]


def test_a_codec_that_fails_keeps_the_buffered_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_settings: object) -> bytes:
        raise MemoryError

    with Log.open(path) as log, log.appender(compression="lz4", linger_ms=60_000) as out:
        assert out.append(b"a") == 0
        with monkeypatch.context() as patch:
            patch.setattr(lz4.block, "compress", fail)
            with pytest.raises(MemoryError):
                out.flush()
        assert out.append(b"b") == 1
        out.flush()
        assert list(log.values()) == [b"a", b"b"]


@pytest.mark.parametrize("change", [lambda values: values.clear(), lambda values: values.__setitem__(slice(None), [1])])
def test_a_list_changed_while_it_is_appended_is_reported(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[list[object]], None]
) -> None:
    values: list[object] = [b"%0100d" % number for number in range(5000)]
    real: Callable[..., bytes] = lz4.block.compress

    def changing(*arguments: object, **settings: object) -> bytes:
        change(values)
        return real(*arguments, **settings)

    with Log.open(path, LogConfig(compression_type="lz4")) as log:
        with monkeypatch.context() as patch:
            patch.setattr(lz4.block, "compress", changing)
            with pytest.raises(errors.UsageError, match="changed by another thread"):
                log.append_many(values)
        assert log.append(b"after") == 0
        assert list(log.values()) == [b"after"]


@pytest.mark.parametrize("item", [bytes(70_000), 1], ids=["too large", "not bytes"])
@pytest.mark.parametrize("written", [False, True])
def test_items_that_turn_bad_while_they_are_appended_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, item: object, written: bool
) -> None:
    values: list[object] = [b"%0100d" % number for number in range(5000)]
    real: Callable[..., bytes] = lz4.block.compress
    packed = 0

    def turning(*arguments: object, **settings: object) -> bytes:
        nonlocal packed
        packed += 1
        if packed == (2 if written else 1):  # with segments of one batch, the first is written before the second
            values[:] = [item] * 5000
        return real(*arguments, **settings)

    config = LogConfig(compression_type="lz4", max_message_bytes=65_536, segment_bytes=65_536)
    with Log.open(path, config) as log:
        with monkeypatch.context() as patch:
            patch.setattr(lz4.block, "compress", turning)
            with pytest.raises(errors.UsageError) as caught:
                log.append_many(values)
        assert ("changed by another thread" in str(caught.value)) == written
        assert (log.log_end_offset > 0) == written
        log.append(b"after")
        assert list(log.values())[:-1] == [b"%0100d" % number for number in range(log.log_end_offset - 1)]


def test_an_appender_that_nobody_keeps_is_written_and_goes(path: Path) -> None:
    before = set(threading.enumerate())

    def lingering() -> bool:
        return bool(set(threading.enumerate()) - before)

    with Log.open(path) as log:
        log.appender(linger_ms=60_000).append(b"a")  # only the log knows it now
        assert lingering()
        log.append(b"b")
        assert list(log.values()) == [b"a", b"b"]
    give_up = time.monotonic() + 10
    while lingering() and time.monotonic() < give_up:
        time.sleep(0.01)
    assert not lingering()


def test_an_appender_outlived_by_its_log_says_so(path: Path) -> None:
    log = Log.open(path)
    out = log.appender(linger_ms=60_000)
    assert out.append(b"a") == 0
    log.close()
    with pytest.raises(errors.LogClosedError):
        out.append(b"b")
    with Log.open(path) as log:
        assert list(log.values()) == [b"a"]


def test_a_leader_epoch_is_never_forgotten(path: Path) -> None:
    with Log.open(path) as log:
        log.append(b"x")
        log.assign_leader_epoch(7)
    for _ in range(3):
        with Log.open(path) as log:
            assert (log.leader_epoch, log.leader_epochs) == (7, [(0, 0), (7, 1)])
            with pytest.raises(errors.FencedLeaderEpochError):
                log.append_batches(batch.build([b"y"]), leader_epoch=3)


def test_a_reader_learns_new_epochs(path: Path) -> None:
    with Log.open(path) as log, Log.open(path, read_only=True) as reader:
        log.append(b"x")
        log.assign_leader_epoch(5)
        log.append(b"y")
        assert reader.leader_epochs == log.leader_epochs == [(0, 0), (5, 1)]
        assert reader.end_offset_for_epoch(5) == log.end_offset_for_epoch(5)


def test_a_new_start_forgets_producers(path: Path) -> None:
    def sent(sequence: int) -> bytes:
        return batch.build([b"a"], producer_id=1, producer_epoch=0, base_sequence=sequence)

    with Log.open(path) as log:
        log.append_batches(sent(0))
        log.roll()
        log.append(b"z")
        log.truncate_fully_and_start_at(1000)
        info = log.append_batches(sent(0))
        assert (info.first_offset, info.duplicate) == (1000, False)


def test_a_first_segment_that_is_gone(path: Path) -> None:
    with Log.open(path) as log:
        for _ in range(3):
            log.append(b"x")
            log.roll()
    (path / ("0" * 20 + ".log")).unlink()
    with Log.open(path, read_only=True) as reader:
        with pytest.raises(errors.OffsetOutOfRangeError):
            reader.fetch(0)
        with pytest.raises(errors.OffsetOutOfRangeError):
            reader.offset_ranges(0, 3, 1 << 20)
        with pytest.raises(errors.OffsetOutOfRangeError):
            list(reader.values())
        assert [damage.offset for damage in reader.verify().damages] == [0]
        assert list(reader.values(1)) == [b"x", b"x"]


def test_an_iterator_shared_by_threads(path: Path) -> None:
    with Log.open(path, LogConfig(segment_bytes=1 << 20)) as log:
        for _ in range(50):
            log.append_many([b"x" * 1000] * 100)
    with Log.open(path, read_only=True) as reader:
        for pieces in (reader.to_arrow(max_bytes=10_000), reader.read()):
            raised = together(*[lambda pieces=pieces: [None for _ in pieces]] * 4)
            assert all(type(error) is errors.UsageError for error in raised), raised


def test_reopening_after_a_kill_rolls_nothing(path: Path, folder: Path) -> None:
    for number in range(3):
        child = os.fork()
        if child == 0:
            Log.open(path).append(b"%d" % number)
            os._exit(0)
        os.waitpid(child, 0)
    with Log.open(path) as log:
        log.append(b"last")
        assert len(log.segments) == 1 and list(log.values()) == [b"0", b"1", b"2", b"last"]


def test_a_segment_that_grew_and_was_sealed_beside_a_reader(path: Path) -> None:
    with Log.open(path) as log, Log.open(path, read_only=True) as reader:
        log.append(b"a", timestamp_ms=1000)
        assert reader.offset_for_timestamp(500) == 0
        log.append(b"b", timestamp_ms=5000)
        log.roll()
        log.append(b"c", timestamp_ms=1500)
        assert reader.offset_for_timestamp(4000) == 1


def killed_at(call: str, ending: str, work: Callable[[], object]) -> None:
    """Run `work` in a child that dies, without any clean-up, before it calls os.<call> for a path that ends so."""
    real: Callable[..., object] = getattr(os, call)

    def dying(*paths: str) -> object:
        return os._exit(9) if paths[-1].endswith(ending) else real(*paths)

    pid = os.fork()
    if pid == 0:
        setattr(os, call, dying)
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_a_mapping_outlives_the_recovery_of_a_cut(path: Path) -> None:
    """Killed between the deletion of later segments and the cut of one that a reader has mapped.

    That one is then the last, but shrinking it in place would be the reader's SIGBUS.
    """
    with Log.open(path) as log:
        for start in (0, 100):
            log.append_many([b"%01000d" % number for number in range(start, start + 100)])
        log.roll()
        log.append(b"last")
    reader = Log.open(path, read_only=True)
    fetched = reader.fetch(0, 1 << 20)
    before = bytes(fetched.data)
    killed_at("replace", ".log", lambda: Log.open(path).truncate_to(50))
    assert not (path / f"{200:020d}.log").exists() and len(before) == os.path.getsize(path / f"{0:020d}.log")
    with Log.open(path) as log:
        assert log.log_end_offset < 50 and log.size < len(before)
        assert result_of(lambda: bytes(fetched.data)) == before
        assert list(reader.values()) == list(log.values())
    reader.close()


def test_a_file_that_another_program_cuts_in_place(path: Path) -> None:
    """Kafka truncates a segment's file itself, so a reader of its directory must not have it mapped."""
    expected = [b"%01000d" % number for number in range(900)]
    with Log.open(path) as log:
        for start in range(0, 900, 300):
            log.append_many(expected[start : start + 300])
            log.roll()
    (path / "kreplog.state").unlink()

    def read() -> tuple[list[bytes | None], int]:
        with Log.open(path, read_only=True) as reader:
            values = reader.values()
            fetched = reader.fetch(0, 1 << 20)
            seen = [next(values) for _ in range(10)]
            os.truncate(path / f"{0:020d}.log", 0)
            with contextlib.suppress(errors.CorruptBatchError):
                seen += list(values)
            return seen, len(bytes(fetched.data))

    seen, fetched_bytes = result_of(read)
    assert seen[:10] == expected[:10] and [*filter(seen.__contains__, expected)] == seen and fetched_bytes > 300_000


@pytest.mark.parametrize("killed", ["", ".log", ".index", ".timeindex"])
def test_truncation_inside_the_batch_that_holds_the_log_start(path: Path, killed: str) -> None:
    with Log.open(path) as log:
        log.append_many([b"%d" % number for number in range(10)])
        log.append_many([b"%d" % number for number in range(10, 20)])
        log.delete_records_before(5)
        if not killed:
            assert log.truncate_to(7) == 5
            assert (log.log_start_offset, log.log_end_offset, list(log.values())) == (5, 5, [])
    if killed:
        killed_at("unlink", killed, lambda: Log.open(path).truncate_to(7))
    with Log.open(path) as log:
        assert (log.log_start_offset, log.log_end_offset, list(log.values())) == (5, 5, [])
        assert log.append(b"on") == 5 and list(log.values()) == [b"on"]
    with Log.open(path, read_only=True) as log:
        assert log.verify().damages == ()


def test_readers_do_not_wait_for_a_writer_that_has_died_cutting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log.open(path) as log:
        for number in range(20):
            log.append(b"%d" % number)
            log.roll()
    killed_at("unlink", ".log", lambda: Log.open(path).truncate_to(5))
    pauses: list[float] = []
    with Log.open(path, read_only=True) as log, monkeypatch.context() as patch:
        assert log.generation % 2 == 1
        patch.setattr(time, "sleep", pauses.append)
        assert list(log.values()) == [b"0", b"1", b"2", b"3", b"4"]
    assert 0 < len(pauses) < 100


def test_a_timestamp_is_not_looked_up_past_a_missing_segment(path: Path) -> None:
    with Log.open(path) as log:
        for number in range(3):
            log.append(b"x", timestamp_ms=1000 * number)
            log.roll()
    (path / f"{0:020d}.log").unlink()
    with Log.open(path, read_only=True) as reader, pytest.raises(errors.StorageError, match="missing"):
        reader.offset_for_timestamp(0)
    with Log.open(path) as log:
        assert log.offset_for_timestamp(0) == 1


def test_a_reader_knows_the_leader_epoch(path: Path) -> None:
    with Log.open(path) as log, Log.open(path, read_only=True) as reader:
        assert reader.leader_epoch == 0
        log.append(b"x")
        log.assign_leader_epoch(7)
        assert reader.leader_epoch == 7
    (path / "kreplog.state").unlink()
    with Log.open(path, read_only=True) as reader:
        assert reader.leader_epoch == 7
