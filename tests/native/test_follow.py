"""Log.wait and Log.follow: a reader that waits sees records, and all that may end its wait."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kreplog import Follow, Log, LogConfig, Record, Topic
from kreplog._native import batch
from kreplog._native.crc32c import crc32c
from kreplog.boot import boot_id
from kreplog.errors import (
    ArgumentTypeError,
    LogClosedError,
    LogFailedError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    PartitionDeletedError,
    UsageError,
    WriterClosedError,
    WriterDiedError,
)
from tests.waiting import STATE, InThread, until, until_waiting, wake_at

WAKE_WORDS = range(576, 600)
SESSION = range(640, 656)
TRUNCATIONS = range(704, 704 + 16 * 24)
BOOT = range(1152, 1152 + 36)


def values(records: Any) -> list[bytes]:
    return [record.value for record in records]


def test_a_reader_that_waits_gets_each_record(writer: Log, log: Log, path: Path) -> None:
    records = log.follow()
    for i in range(20):
        waiting = InThread(lambda: next(records))
        until_waiting(path, i)
        assert waiting.running
        assert writer.append(b"%d" % i) == i
        record = waiting.result()
        assert (record.offset, record.value) == (i, b"%d" % i)


def test_a_wake_up_is_used_up(writer: Log, log: Log, path: Path) -> None:
    """Also that of a reader which has gone: the writer pays for it once."""
    waiting = InThread(lambda: log.wait(2))
    until_waiting(path, 2)
    writer.append(b"")
    writer.append(b"")
    assert wake_at(path) == 3, "nobody waits for these"
    writer.append(b"")
    assert waiting.result() is True
    assert wake_at(path) == 0


def test_the_log_of_the_writer_itself(writer: Log, path: Path) -> None:
    waiting = InThread(lambda: values(writer.follow()))
    until_waiting(path, 0)
    writer.append_many([b"a", b"b"])
    until_waiting(path, 2)
    writer.close()
    assert waiting.result() == [b"a", b"b"]


@pytest.mark.parametrize("own", [True, False])
def test_a_replicated_log_shows_what_is_committed(path: Path, own: bool) -> None:
    """The high watermark may lie within a batch: the rest of it comes later, and nothing twice."""
    with Log.open(path, LogConfig(replicated=True)) as writer, Log.open(path, read_only=True) as reader:
        records = (writer if own else reader).follow()
        writer.append_many([b"0", b"1", b"2", b"3"])
        for first, high_watermark in ((0, 1), (1, 3), (3, 4)):
            waiting = InThread(lambda: next(records).value)
            until_waiting(path, first)
            writer.advance_high_watermark(high_watermark)
            assert waiting.result() == b"%d" % first
            assert [next(records).offset for _ in range(first + 1, high_watermark)] == [
                *range(first + 1, high_watermark)
            ]


def test_across_segments(path: Path) -> None:
    """The writer rolls, allocates blocks ahead and trims them, while the reader is always at the end."""
    with Log.open(path, LogConfig(segment_bytes=2000)) as writer, Log.open(path, read_only=True) as reader:
        records = reader.follow()
        for i in range(300):
            writer.append(b"%d" % i * (i % 50))
            if i % 7:
                record = next(records)
                assert record.value == b"%d" % record.offset * (record.offset % 50)
        writer.close()
        assert len(values(records)) == sum(i % 7 == 0 for i in range(300))
        assert len(reader.segments) > 5


def test_lists_and_arrow(writer: Log, log: Log) -> None:
    writer.append_many([b"x"] * 25)
    assert [len(records) for records in log.follow_batches(timeout=0, max_records=10)] == [10, 10, 5]
    assert all(isinstance(record, Record) for record in next(log.follow_batches()))
    pieces = log.follow_arrow(20, 0, ["offset", "value"])
    assert next(pieces).to_pydict() == {"offset": [20, 21, 22, 23, 24], "value": [b"x"] * 5}
    writer.append(b"y")
    assert next(pieces).column("offset").to_pylist() == [25]
    assert list(pieces) == []
    assert isinstance(pieces, Follow)


def test_a_timeout_is_the_time_without_a_record(writer: Log, log: Log) -> None:
    writer.append(b"")
    assert log.wait(0, 0) is True
    assert log.wait(1, 0) is False
    assert log.wait(1, 0.001) is False
    records = log.follow(timeout=0.001)
    assert len(list(records)) == 1
    writer.append(b"")
    assert list(records) == [], "it has ended"
    assert list(writer.follow(2, timeout=0)) == []


def test_bad_arguments(writer: Log, log: Log) -> None:
    for timeout in (-1, float("nan")):
        with pytest.raises(UsageError, match="timeout"):
            log.wait(0, timeout)
    bad: Any
    for bad in ("1", True):
        with pytest.raises(ArgumentTypeError, match="timeout"):
            log.follow(timeout=bad)
    for offset in (-1, 1 << 63):
        with pytest.raises(UsageError):
            log.wait(offset, 0)
    with pytest.raises(UsageError, match="max_records"):
        log.follow_batches(max_records=0)
    with pytest.raises(ArgumentTypeError, match="max_records"):
        log.follow_batches(max_records=1.5)  # type: ignore[arg-type]
    with pytest.raises(OffsetOutOfRangeError):
        log.follow(1)


# The end of the writer


def test_a_clean_close(writer: Log, log: Log, path: Path) -> None:
    """Ends a follow after the last record, and fails a wait for one that does not come."""
    following = InThread(lambda: values(log.follow()))
    until_waiting(path, 0)
    waiting = InThread(lambda: log.wait(5))
    writer.append(b"last")
    writer.close()
    assert following.result() == [b"last"]
    with pytest.raises(WriterClosedError, match="t-0: no process has the log open for writing, and it ends") as caught:
        waiting.result()
    assert caught.value.offset == 5 and caught.value.path == str(path)
    assert values(log.follow()) == [b"last"], "one that begins later ends too"
    assert log.wait(0) is True


@pytest.mark.parametrize("own", [True, False])
def test_the_log_is_closed_in_this_process(path: Path, own: bool) -> None:
    with Log.open(path) as writer:
        log = writer if own else Log.open(path, read_only=True)
        following = InThread(lambda: values(log.follow()))
        until_waiting(path, 0)
        waiting = InThread(lambda: log.wait(0))
        log.close()
        assert following.result() == []
        with pytest.raises(LogClosedError):
            waiting.result()
        with pytest.raises(LogClosedError):
            log.wait(0)
        with pytest.raises(LogClosedError):
            log.follow()


def test_the_next_writer(path: Path) -> None:
    """A follow that goes on across writers waits for it; any other ends with the writer that it began with."""
    with Log.open(path) as writer, Log.open(path, read_only=True) as reader:
        ending = reader.follow()
        following = InThread(lambda: values(reader.follow(across_writers=True, timeout=None)))
        waiting = InThread(lambda: reader.wait(2, across_writers=True))
        writer.append(b"a")
        writer.close()
        with Log.open(path) as writer:
            writer.append(b"b")
            assert [next(ending).value, next(ending).value] == [b"a", b"b"]
            assert list(ending) == []
            until_waiting(path, 2)
            writer.append(b"c")
            assert waiting.result() is True
        until_waiting(path, 3)
        reader.close()
        assert following.result() == [b"a", b"b", b"c"]


def test_the_last_record_of_a_writer_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published after the reader's look at the high watermark, and before it saw that nobody has the lock any more."""
    with Topic.open(tmp_path / "of-a-killed" / "t", 1) as topic:
        topic.append(b"first")
        earlier = (tmp_path / "of-a-killed" / "t-0" / STATE).read_bytes()[128:384]
        topic.append(b"last")
        shutil.copytree(tmp_path / "of-a-killed", tmp_path / "left")
    path = tmp_path / "left" / "t-0"
    last = (path / STATE).read_bytes()[128:384]
    poke(path, 128, earlier)
    split = os.path.split

    def publish_and_split(name: str) -> tuple[str, str]:
        poke(path, 128, last)
        return split(name)

    with Log.open(path, read_only=True) as reader:
        assert reader.high_watermark == 1
        with monkeypatch.context() as patch:
            patch.setattr(os.path, "split", publish_and_split)
            assert reader.wait(1, 30) is True
        with pytest.raises(WriterDiedError):
            reader.wait(2, 30)


# Truncation, deletion


def test_a_truncation_below_what_was_read(writer: Log, log: Log, path: Path) -> None:
    for _ in range(10):
        writer.append(b"old")
    records = log.follow(timeout=10)
    for _ in range(8):
        next(records)
    writer.truncate_to(5)
    with pytest.raises(LogTruncatedError, match="truncated to offset 5, below 8, up to which") as caught:
        next(records)
    assert (caught.value.offset, caught.value.partition) == (5, "t-0")


def test_a_truncation_is_seen_while_waiting(writer: Log, log: Log, path: Path) -> None:
    writer.append(b"")
    waiting = InThread(lambda: list(log.follow(timeout=10)))
    until_waiting(path, 1)
    writer.truncate_to(0)
    with pytest.raises(LogTruncatedError):
        waiting.result()


@pytest.mark.parametrize("own", [True, False])
def test_a_truncation_that_was_outgrown(writer: Log, log: Log, own: bool) -> None:
    """The log is as long as before, and longer, when the reader looks again."""
    writer.append_many([b"old"] * 10)
    records = (writer if own else log).follow(9, timeout=10)
    next(records)
    writer.truncate_to(0)
    writer.append_many([b"new"] * 30)
    with pytest.raises(LogTruncatedError, match="truncated to offset 0, below 10"):
        next(records)


def test_a_truncation_of_what_was_not_read(writer: Log, log: Log) -> None:
    """It reads what is in the log now."""
    for _ in range(10):
        writer.append(b"old")
    records = log.follow(timeout=10)
    assert values([next(records) for _ in range(4)]) == [b"old"] * 4
    writer.truncate_to(4)
    writer.append_many([b"new"] * 10)
    writer.close()
    assert values(records) == [b"new"] * 10


@pytest.mark.parametrize("count", [16, 17])
def test_more_truncations_than_are_noted(writer: Log, log: Log, count: int) -> None:
    writer.append(b"")
    records = log.follow(timeout=10)
    next(records)
    for _ in range(count):
        writer.append(b"")
        writer.truncate_to(1)
    if count <= 16:
        writer.append(b"after")
        assert next(records).value == b"after"
    else:
        with pytest.raises(LogTruncatedError, match="more often than is noted since offset 1") as caught:
            next(records)
        assert caught.value.offset is None


def test_a_recovery_that_drops_committed_records(path: Path) -> None:
    """Damage in what was not flushed: the next writer cuts it, and a reader that goes on has read it."""
    with Log.open(path) as writer:
        writer.append(b"a")
        writer.flush()
        writer.append(b"damaged")
        shutil.copytree(path, path.parent / "copy" / "t-0")
    path = path.parent / "copy" / "t-0"
    with Log.open(path, read_only=True) as reader:
        records = reader.follow(across_writers=True, timeout=10)
        assert values([next(records), next(records)]) == [b"a", b"damaged"]
        segment = path / "00000000000000000000.log"
        content = segment.read_bytes()
        with segment.open("r+b") as file:
            file.seek(content.index(b"damaged"))
            file.write(b"D")
        with Log.open(path) as writer:
            assert writer.log_end_offset == 1
            writer.append_many([b"b", b"c"])
            with pytest.raises(LogTruncatedError, match="truncated to offset 1, below 2"):
                next(records)


def test_deleted_records(writer: Log, log: Log) -> None:
    for _ in range(3):
        writer.append(b"")
        writer.roll()
    records = log.follow(timeout=10)
    next(records)
    writer.delete_records_before(2)
    with pytest.raises(OffsetOutOfRangeError, match="its records were deleted"):
        list(records)


@pytest.mark.parametrize("again", [True, False])
def test_the_directory_is_deleted(writer: Log, log: Log, path: Path, again: bool) -> None:
    waiting = InThread(lambda: log.wait(0))
    following = InThread(lambda: list(log.follow(across_writers=True)))
    until_waiting(path, 0)
    shutil.rmtree(path)
    if again:
        Log.open(path).close()
    for call in (waiting, following):
        with pytest.raises(PartitionDeletedError, match="was deleted"):
            call.result()
    with suppress(LogFailedError):
        writer.close()


# Signals, files


def test_an_interrupt_ends_a_wait(writer: Log, log: Log, path: Path) -> None:
    def interrupt() -> None:
        until_waiting(path, 0)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        log.wait(0, 30)
    thread.join()


def test_one_iterator_in_two_threads(writer: Log, log: Log, path: Path) -> None:
    records = log.follow()
    waiting = InThread(lambda: next(records))
    until_waiting(path, 0)
    with pytest.raises(UsageError, match="in use in another thread"):
        next(records)
    writer.append(b"")
    assert waiting.result().offset == 0


def poke(path: Path, position: int, data: bytes) -> None:
    """Change the mapped page, as damage would."""
    with (path / STATE).open("r+b") as file:
        file.seek(position)
        file.write(data)


def test_a_writer_that_notes_no_session(writer: Log, log: Log, path: Path) -> None:
    """An older kreplog wakes nobody: the reader looks again by itself."""
    poke(path, SESSION.start, bytes(len(SESSION)))
    following = InThread(lambda: [next(records).value for records in [log.follow()] for _ in range(3)])
    until(lambda: wake_at(path) == 1)
    for i in range(3):
        writer.append(b"%d" % i)
        poke(path, WAKE_WORDS.start, bytes(len(WAKE_WORDS)))
    assert following.result() == [b"0", b"1", b"2"]


def test_a_log_that_is_just_being_made(writer: Log, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state file has no position yet: the reader waits for it, and does not go by the checkpoint from then on."""
    positions = (path / STATE).read_bytes()[128:384]
    poke(path, 128, bytes(256))

    def publish(_: float) -> None:
        poke(path, 128, positions)

    with monkeypatch.context() as patch:
        patch.setattr(time, "sleep", publish)
        reader = Log.open(path, read_only=True)
    with reader:
        waiting = InThread(lambda: reader.wait(0, 30))
        until_waiting(path, 0)
        writer.append(b"")
        assert waiting.result() is True


def test_a_directory_of_another_program(path: Path) -> None:
    with Log.open(path) as writer:
        writer.append(b"a")
    (path / STATE).unlink()
    (path.parent / "replication-offset-checkpoint").unlink()
    with Log.open(path, read_only=True) as reader:
        records = reader.follow()
        assert next(records).value == b"a"
        waiting = InThread(lambda: next(records).value)
        with (path / "00000000000000000000.log").open("ab") as file:
            file.write(batch.build([b"b"], timestamps_ms=[1], base_offset=1, leader_epoch=0))
        assert waiting.result() == b"b"


@pytest.mark.parametrize("damage", [b"\xff", b"\x00", b"\x80", None])
def test_any_damaged_byte_of_what_readers_wait_by(writer: Log, log: Log, path: Path, damage: bytes | None) -> None:
    """The next record comes all the same, a reader never hangs, and it ends with the writer."""
    records = log.follow(0)
    writer.append(b"first")
    next(records)
    state = (path / STATE).read_bytes()
    for position in (*WAKE_WORDS, *SESSION, *range(TRUNCATIONS.start, TRUNCATIONS.start + 48)):
        flipped = bytes([state[position] ^ 1])
        poke(path, position, flipped if damage is None else damage)
        offset = writer.append(b"%d" % position)
        assert next(log.follow(offset)).value == b"%d" % position
        assert next(records).value == b"%d" % position
    following = InThread(lambda: list(records))
    writer.close()
    assert following.result() == []


def test_a_damaged_note_of_a_truncation(writer: Log, log: Log, path: Path) -> None:
    """The reader cannot know what it cost, and says so."""
    writer.append(b"")
    records = log.follow()
    next(records)
    writer.append(b"")
    writer.truncate_to(1)
    poke(path, TRUNCATIONS.start + 24 + 8, struct.pack("<q", 7))
    with pytest.raises(LogTruncatedError, match="more often than is noted"):
        next(records)


def test_the_layout(path: Path) -> None:
    """As the head of state.pxd has it: other versions go by it."""
    with Log.open(path) as writer:
        writer.append_many([b""] * 3)
        writer.truncate_to(0)
        state = (path / STATE).read_bytes()
    number, flags, crc = struct.unpack_from("<QII", state, SESSION.start)
    assert number == 1 and flags & 0xFF == 1 and crc == crc32c(state[640:652])
    assert struct.unpack_from("<qqI", state, TRUNCATIONS.start + 24)[:2] == (2, 0)
    state = (path / STATE).read_bytes()
    assert struct.unpack_from("<QI", state, SESSION.start) == (1, 2)
    Log.open(path).close()
    assert struct.unpack_from("<QI", (path / STATE).read_bytes(), SESSION.start) == (2, 2)
    assert state[BOOT.start : BOOT.stop].rstrip(b"\0") == boot_id().encode()
    assert not any(state[TRUNCATIONS.stop : BOOT.start]) and not any(state[BOOT.stop :])
