"""Appends of many batches that become visible together or not at all, and once per writer and sequence."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kreplog import Log, LogConfig, errors
from kreplog._native import batch, writable
from kreplog._native.ledger import WriterLedger, ledger_path
from kreplog.bulk_append import BulkAppend, last_sequence
from tests.faults.forked import result_of
from tests.waiting import InThread


def batches(*values: bytes) -> list[bytes]:
    return [batch.build([value]) for value in values]


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.read()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "bulk-0"


def test_append_once(path: Path) -> None:
    with Log.open(path, LogConfig(segment_bytes=300)) as log:
        log.append(b"before")
        assert log.append_once(batches(*[b"%d" % i for i in range(20)]), writer="w", sequence=5) == range(1, 21)
        assert len(log.segments) > 2, "the append spans segments"
        assert log.append_once(batches(b"again"), writer="w", sequence=5) is None
        assert log.append_once(batches(b"older"), writer="w", sequence=4) is None
        assert log.append_once(batches(b"other"), writer="v", sequence=0) == range(21, 22)
        assert log.append(b"after") == 22
    with Log.open(path) as log:
        assert last_sequence(log, "w") == 5 and last_sequence(log, "x") is None
        assert log.append_once(batches(b"again"), writer="w", sequence=5) is None
        assert values(log) == [b"before", *(b"%d" % i for i in range(20)), b"other", b"after"]


@pytest.mark.parametrize("call", [Log.flush, writable.flush_sealed, writable.sync_files, Log.close])
def test_a_log_that_is_abandoned_ends_the_waiting_of_other_threads(path: Path, call: Callable[[Log], None]) -> None:
    """A bulk append holds what each of these calls waits for."""
    log = Log.open(path)
    bulk = BulkAppend(log, "w", 0)
    entered = threading.Event()

    def waiting() -> None:
        entered.set()
        with suppress(errors.LogClosedError):
            call(log)

    thread = InThread(waiting)
    assert entered.wait(10)
    time.sleep(0.02)  # until the thread waits for the lock, which cannot be seen from outside
    assert thread.running
    writable.abandon(log)
    thread.result()
    with pytest.raises(errors.UsageError, match="has ended"):
        bulk.commit()


def test_readers_see_it_when_it_is_published(path: Path) -> None:
    """The high watermark stands through writes, rolls and fsyncs; also where every append is flushed."""
    for flush_messages in (1, 2**63 - 1):
        folder = path.with_name(f"bulk-{flush_messages % 7}")
        config = LogConfig(segment_bytes=300, flush_messages=flush_messages)
        with Log.open(folder, config) as log, Log.open(folder, read_only=True) as reader:
            log.append(b"before")
            with BulkAppend(log, "w", 0) as bulk:
                for encoded in batches(*[b"x" * 50] * 9):
                    bulk.append(encoded)
                    assert log.high_watermark == reader.high_watermark == 1
                bulk.flush()
                assert reader.high_watermark == 1
                bulk.commit()
                assert reader.high_watermark == 1
                bulk.publish()
            assert reader.high_watermark == reader.recovery_point == 10
            assert len(values(reader)) == 10


def test_aborted(path: Path) -> None:
    with Log.open(path, LogConfig(segment_bytes=300)) as log:
        log.append(b"before")
        with pytest.raises(ZeroDivisionError), BulkAppend(log, "w", 0) as bulk:
            bulk.append(b"".join(batches(*[b"x" * 100] * 9)))
            raise ZeroDivisionError
        assert values(log) == [b"before"] and log.log_end_offset == 1
        assert WriterLedger(ledger_path(str(path))).pending_start == -1
        assert log.append(b"after") == 1
        assert log.append_once(batches(b"now"), writer="w", sequence=0) == range(2, 3)


def broken_off(path: Path, step: str) -> None:
    log = Log.open(path, LogConfig(segment_bytes=300))
    log.append(b"before")
    bulk = BulkAppend(log, "w", 7)
    for encoded in batches(*[b"x" * 50] * 9):
        bulk.append(encoded)
    if step != "append":
        bulk.flush()
    if step == "commit":
        bulk.commit()
    os._exit(0)


@pytest.mark.parametrize("step", ["append", "flush", "commit"])
@pytest.mark.parametrize("opener", ["plain", "appender", "replicated"])
def test_broken_off(path: Path, step: str, opener: str, caplog: pytest.LogCaptureFixture) -> None:
    """Before the commit nothing of it is left for any writer, after it all; readers meanwhile see nothing."""
    pid = os.fork()
    if pid == 0:
        broken_off(path, step)
    os.waitpid(pid, 0)
    with Log.open(path, read_only=True) as reader:
        assert values(reader) == [b"before"]
    (path / "kreplog.state").rename(path / "state.away")  # as Kafka, or a copy without it, would leave the directory
    if step != "commit":
        with Log.open(path, read_only=True) as reader:
            assert values(reader) == [b"before"]
    (path / "state.away").rename(path / "kreplog.state")
    with caplog.at_level(logging.WARNING), Log.open(path, LogConfig(replicated=opener == "replicated")) as log:
        expected = 10 if step == "commit" else 1
        assert log.log_end_offset == expected
        assert ("broken off" in caplog.text) == (step != "commit")
        if opener == "appender":
            with log.appender() as appender:
                assert appender.append(b"next") == expected
        else:
            assert log.append(b"next") == expected
    with Log.open(path) as log:
        found = log.append_once(batches(b"repeated"), writer="w", sequence=7)
        assert (found is None) == (step == "commit")
        assert len(values(log)) == log.log_end_offset


def test_broken_off_without_a_state_file(path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        broken_off(path, "flush")
    os.waitpid(pid, 0)
    (path / "kreplog.state").unlink()
    with Log.open(path) as log:
        assert values(log) == [b"before"]
        assert log.append_once(batches(b"x"), writer="w", sequence=7) == range(1, 2)


def test_other_threads_wait_and_the_same_is_refused(path: Path) -> None:
    with Log.open(path) as log:
        appended: list[int] = []
        other = threading.Thread(target=lambda: appended.append(log.append(b"from another thread")))
        with BulkAppend(log, "w", 0) as bulk:
            other.start()
            for call in (lambda: log.append(b"x"), log.flush, log.close, lambda: log.truncate_to(0)):
                with pytest.raises(errors.UsageError, match="bulk append is under way"):
                    call()
            with pytest.raises(errors.UsageError, match="bulk append is under way"):
                log.append_once([], writer="v", sequence=0)
            bulk.append(batches(b"bulk")[0])
            assert not appended
            bulk.commit()
            bulk.publish()
        other.join(60)
        assert appended == [1]
        assert values(log) == [b"bulk", b"from another thread"]


def test_a_generator_that_fails_leaves_nothing(path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield from batches(b"a", b"b")
        raise ZeroDivisionError

    with Log.open(path) as log:
        with pytest.raises(ZeroDivisionError):
            log.append_once(failing(), writer="w", sequence=0)
        assert log.log_end_offset == 0
        assert log.append_once(batches(b"c"), writer="w", sequence=0) == range(1)


def test_bad_batches_leave_nothing(path: Path) -> None:
    good = batches(b"good")[0]
    damaged = bytearray(good)
    damaged[-1] ^= 1
    producer = batch.build([b"x"], producer_id=1, producer_epoch=0, base_sequence=0)
    large = batch.build([b"x" * 2000])
    with Log.open(path, LogConfig(max_message_bytes=1000)) as log:
        for bad, error in (
            (damaged, errors.CorruptBatchError),
            (good[:-1], errors.CorruptBatchError),
            (good[:20], errors.CorruptBatchError),
            (producer, errors.UsageError),
            (large, errors.RecordTooLargeError),
            (b"", errors.UsageError),
            ("text", errors.UsageError),
        ):
            with pytest.raises(error):
                log.append_once([good, bad], writer="w", sequence=0)  # type: ignore[list-item]
            assert log.log_end_offset == log.high_watermark == 0 and not log.failed
        assert log.append_once([good + good], writer="w", sequence=0) == range(2)


@pytest.mark.parametrize(
    ("writer", "sequence"), [("", 0), ("w" * 256, 0), ("\udc80", 0), (b"w", 0), ("w", -1), ("w", 1 << 63), ("w", "0")]
)
def test_bad_arguments(path: Path, writer: str, sequence: int) -> None:
    with Log.open(path) as log:
        with pytest.raises(errors.UsageError):
            log.append_once(batches(b"x"), writer=writer, sequence=sequence)
        assert log.append(b"still usable") == 0


def test_replicated_and_read_only_logs_refuse(path: Path) -> None:
    with Log.open(path, LogConfig(replicated=True)) as log, pytest.raises(errors.UsageError, match="not replicated"):
        log.append_once(batches(b"x"), writer="w", sequence=0)
    with Log.open(path, read_only=True) as log, pytest.raises(errors.UsageError, match="read-only"):
        log.append_once(batches(b"x"), writer="w", sequence=0)


def test_truncation_forgets_what_it_cuts(path: Path) -> None:
    """A writer whose records are gone may write them again; one of whose records some are left may not."""
    with Log.open(path) as log:
        log.append_once(batches(b"a", b"b"), writer="early", sequence=0)
        log.append_once(batches(b"c", b"d"), writer="late", sequence=0)
        log.truncate_to(3)
        assert last_sequence(log, "late") == 0
        log.truncate_to(2)
        assert (last_sequence(log, "early"), last_sequence(log, "late")) == (0, None)
        assert log.append_once(batches(b"c", b"d"), writer="late", sequence=0) == range(2, 4)
    with Log.open(path) as log:
        log.delete_records_before(4)
        assert log.append_once(batches(b"a"), writer="early", sequence=0) is None, "deleted, as nobody needs them"
        log.truncate_fully_and_start_at(9)
        assert log.append_once(batches(b"a"), writer="early", sequence=0) == range(9, 10)


def test_the_idlest_writers_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 60
    monkeypatch.setattr("kreplog._native.ledger.MAX_WRITERS", limit)
    ledger = WriterLedger(str(tmp_path / "kreplog.writers"))
    for number in range(limit + 3):
        ledger.begin(f"w{number}", 0, number)
        ledger.commit(number + 1, number)
        if number == limit // 2:
            ledger.begin("w0", 1, number + 1)
            ledger.commit(number + 1, number)
    ledger = WriterLedger(str(tmp_path / "kreplog.writers"))
    known = [number for number in range(limit + 3) if ledger.committed(f"w{number}") is not None]
    assert known == [0, *range(4, limit + 3)]


@pytest.mark.parametrize("latest", [3_600_000, 2**63 - 1])
def test_a_clock_that_steps_back_makes_no_writer_idle(
    tmp_path: Path, latest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer that commits is the last to be forgotten, whatever times the others have."""
    limit = 6
    monkeypatch.setattr("kreplog._native.ledger.MAX_WRITERS", limit)
    ledger = WriterLedger(str(tmp_path / "kreplog.writers"))
    for number in range(limit):
        ledger.begin(f"before{number}", 0, number)
        ledger.commit(number + 1, latest - limit + 1 + number)
    for number in range(3):
        ledger.begin(f"after{number}", 0, limit + number)
        ledger.commit(limit + number + 1, number)
        ledger = WriterLedger(ledger.path)
        assert ledger.committed(f"after{number}") == (0, limit + number, limit + number + 1)
    if latest < 2**63 - 1:
        assert [ledger.committed(f"after{number}") is not None for number in range(3)] == [True] * 3
        assert [ledger.committed(f"before{number}") is not None for number in range(4)] == [False] * 3 + [True]


def test_a_damaged_ledger(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log opens and takes records; a bulk append, which may be a repetition, is refused with what to do."""
    with Log.open(path) as log:
        log.append_once(batches(b"a"), writer="w", sequence=0)
    file = path / "kreplog.writers"
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(errors.CorruptCheckpointError, match="cannot be believed"):
            WriterLedger(str(file))
        file.write_bytes(whole[:at])
        with pytest.raises(errors.CorruptCheckpointError, match="cannot be believed"):
            WriterLedger(str(file))
    with Log.open(path) as log:
        assert "cannot be believed" in caplog.text
        assert log.append(b"b") == 1
        with pytest.raises(errors.CorruptCheckpointError, match="delete it"):
            log.append_once(batches(b"a"), writer="w", sequence=0)
        file.unlink()
        assert log.append_once(batches(b"a"), writer="w", sequence=0) == range(2, 3)


def test_a_forked_child_forgets_it(path: Path) -> None:
    with Log.open(path) as log:
        bulk = BulkAppend(log, "w", 0)
        assert result_of(lambda: log.closed) is True
        bulk.append(batches(b"x")[0])
        bulk.commit()
        bulk.publish()
        assert values(log) == [b"x"]


@pytest.mark.parametrize("call", ["abort", "append", "flush", "commit", "publish"])
@pytest.mark.parametrize("committed", [False, True])
def test_a_forked_child_leaves_the_append_of_its_parent_alone(path: Path, call: str, committed: bool) -> None:
    """Whatever the child calls before it unwinds: the parent goes on, and nothing that it commits is lost."""

    def unwind() -> None:
        if call in ("append", "flush", "commit"):
            with pytest.raises(errors.UsageError, match="has ended"):
                getattr(bulk, call)(*(batches(b"of the child") if call == "append" else ()))
        elif call == "publish":
            bulk.publish()
        bulk.__exit__(None, None, None)

    with Log.open(path) as log, Log.open(path, read_only=True) as reader:
        log.append(b"before")
        with BulkAppend(log, "w", 0) as bulk:
            bulk.append(batches(b"a")[0])
            if not committed:
                result_of(unwind)
                bulk.append(batches(b"b")[0])
            bulk.commit()
            if committed:
                result_of(unwind)
                assert reader.high_watermark == 1
            bulk.publish()
        expected = [b"before", b"a"] if committed else [b"before", b"a", b"b"]
        assert values(log) == values(reader) == expected
        assert log.append(b"after") == len(expected)
    with Log.open(path) as log:
        assert values(log) == [*expected, b"after"] and last_sequence(log, "w") == 0


def test_calls_of_another_thread_are_refused(path: Path) -> None:
    """The thread that began an append ends it: a call of another one would race with it."""
    refused: list[str] = []

    def call_all() -> None:
        for call in (lambda: bulk.append(batches(b"x")[0]), bulk.flush, bulk.commit, bulk.publish, bulk.abort):
            with pytest.raises(errors.UsageError, match="by the thread that began it"):
                call()
            refused.append("refused")

    with Log.open(path) as log:
        with BulkAppend(log, "w", 0) as bulk:
            bulk.append(batches(b"a")[0])
            for _ in range(2):
                other = threading.Thread(target=call_all)
                other.start()
                other.join(60)
                bulk.flush()
            assert len(refused) == 10
            bulk.commit()
            bulk.publish()
        ended = threading.Thread(target=lambda: refused.append(f"abort: {bulk.abort()}"))  # type: ignore[func-returns-value]
        ended.start()
        ended.join(60)
        assert refused[-1] == "abort: None", "of one that has ended it does nothing, in any thread"
        assert values(log) == [b"a"]


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("cyclic", [False, True])
def test_an_append_that_was_dropped_ends(path: Path, committed: bool, cyclic: bool) -> None:
    """It is collected, with a warning, and aborted unless it is committed; no thread waits for ever."""

    def drop() -> None:
        bulk = BulkAppend(log, "w", 0)
        bulk.append(batches(b"x")[0])
        if committed:
            bulk.commit()
        if cyclic:
            cycle: list[object] = [bulk]
            cycle.append(cycle)

    with Log.open(path) as log:
        log.append(b"before")
        for _ in range(3):
            with pytest.warns(ResourceWarning, match="bulk-0: a bulk append was dropped"):
                drop()
                gc.collect()
            other = threading.Thread(target=lambda: log.append(b"of another thread"))
            other.start()
            log.append(b"of this thread")
            other.join(60)
            assert not other.is_alive()
            expected = [b"before", b"x"] if committed else [b"before"]
            assert values(log)[: len(expected)] == expected
            assert len(values(log)) == len(expected) + 2
            log.truncate_to(1)
        assert log.append_once(batches(b"now"), writer="w", sequence=0) == range(1, 2)


def test_an_append_that_was_dropped_in_a_forked_child(path: Path) -> None:
    def drop() -> None:
        held.clear()
        gc.collect()

    with Log.open(path) as log:
        held = [BulkAppend(log, "w", 0)]
        held[0].append(batches(b"x")[0])
        result_of(drop)
        held[0].commit()
        held[0].publish()
        assert values(log) == [b"x"]


def test_an_append_that_is_dropped_as_the_interpreter_ends(path: Path) -> None:
    """Whether it is aborted then or by the next opening: the process ends, and nothing of it is left."""
    program = """
import sys
from kreplog import Log
from kreplog._native import batch, writable
from kreplog.bulk_append import BulkAppend
log = Log.open(sys.argv[1])
log.append(b"before")
bulk = BulkAppend(log, "w", 0)
bulk.append(batch.build([b"x"]))
"""
    subprocess.run([sys.executable, "-c", program, str(path)], check=True, timeout=60)
    with Log.open(path) as log:
        assert values(log) == [b"before"]
