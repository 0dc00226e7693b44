"""Logs with gaps, made by hand as Kafka's compaction leaves them: reading works from every offset."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native.writable import abandon
from kreplog.errors import OffsetOutOfRangeError
from tests.reference import Batch, Rec, encode, encode_around, epoch_checkpoint, indexes, offset_checkpoint

END = 100
HELD = [2, 3, 7, 12, 20, 23, 29, 52, 70, 71, 72, 90, 91, 92]
"""The offsets that are left. Of 30 to 49 nothing is: one segment is empty, as is the end of the one before."""
COMPACTED = LogConfig(cleanup_policy="compact", index_interval_bytes=0)


def record(offset: int) -> Rec:
    return Rec(offset, 1000 + offset, b"key", b"value %d" % offset)


def batch(offsets: list[int], base: int, last: int, epoch: int) -> bytes:
    """A batch whose offsets were [base, last], of whose records these are left."""
    if not offsets:
        return encode_around(Batch((record(base),), base, epoch), b"", record_count=0, last_delta=last - base)
    content = Batch(tuple(map(record, offsets)), base, epoch)
    whole = encode(content)
    return encode_around(content, whole[61:], last_delta=last - base)


SEGMENTS = {
    0: [batch([2, 3], 1, 4, 0), batch([7], 7, 8, 0), batch([12], 10, 14, 2)],
    20: [batch([20], 20, 20, 2), batch([23], 22, 24, 2), batch([29], 29, 29, 2)],
    30: [],
    40: [],
    50: [batch([52], 51, 53, 5), batch([], 60, 64, 5)],
    70: [batch([70, 71, 72], 70, 72, 6), batch([90], 90, 90, 6), batch([91, 92], 91, 99, 6)],
}
EPOCHS = [(0, 0), (1, 9), (2, 10), (3, 30), (5, 45), (6, 65)]


def gapped(root: Path) -> Path:
    path = root / "topic-0"
    path.mkdir()
    for base, batches in SEGMENTS.items():
        content = b"".join(batches)
        (path / f"{base:020d}.log").write_bytes(content)
        offsets, times = indexes(content, base, 0)
        (path / f"{base:020d}.index").write_bytes(offsets)
        (path / f"{base:020d}.timeindex").write_bytes(times)
    (path / "leader-epoch-checkpoint").write_bytes(epoch_checkpoint(EPOCHS))
    for name in ("replication", "recovery-point"):
        (root / f"{name}-offset-checkpoint").write_bytes(offset_checkpoint([("topic", 0, END)]))
    return path


@pytest.fixture(params=["bare", "writer", "reopened", "reader", "killed"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Log]:
    path = gapped(tmp_path)
    if request.param in ("reopened", "reader"):
        Log.open(path, COMPACTED).close()
    if request.param == "killed":
        killed = Log.open(path, COMPACTED)
        abandon(killed)
    with Log.open(path, COMPACTED, read_only=request.param in ("bare", "reader")) as opened:
        yield opened


def fetched_from(log: Log, offset: int, max_bytes: int) -> list[int]:
    """The base offsets of all batches that a consumer gets from there on."""
    found = []
    while offset < log.high_watermark:
        fetched = log.fetch(offset, max_bytes)
        assert fetched.next_offset > offset
        for rows in log.batches(offset, fetched.next_offset):
            found += rows["base_offset"].tolist()
        offset = fetched.next_offset
    return list(dict.fromkeys(found))


def test_every_offset_can_be_read_from(log: Log) -> None:
    assert log.log_end_offset == END and not log.cuts
    assert [record.offset for record in log.read()] == HELD
    for start in range(END + 1):
        assert [record.offset for record in log.read(start)] == [offset for offset in HELD if offset >= start]
        for stop in (start, start + 1, start + 11, END):
            expected = [offset for offset in HELD if start <= offset < stop]
            assert [record.offset for record in log.read(start, stop)] == expected


@pytest.mark.parametrize("max_bytes", [0, 200, 1 << 20])
def test_a_consumer_comes_to_the_end_from_every_offset(log: Log, max_bytes: int) -> None:
    bases = [1, 7, 10, 20, 22, 29, 51, 60, 70, 90, 91]
    lasts = [4, 8, 14, 20, 24, 29, 53, 64, 72, 90, 99]
    for start in range(END):
        expected = [base for base, last in zip(bases, lasts, strict=True) if last >= start]
        assert fetched_from(log, start, max_bytes) == expected


def test_pieces_for_parallel_readers_have_every_record(log: Log) -> None:
    for start in range(0, END, 3):
        for stop in range(start, END + 1, 7):
            pieces = log.offset_ranges(start, stop, 100)
            assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
            found = [record.offset for piece in pieces for record in log.read(piece.start, piece.stop)]
            assert found == [offset for offset in HELD if start <= offset < stop]
            assert not any(piece.compressed for piece in pieces)


def test_bytes_of_a_range_that_ends_in_a_gap(log: Log) -> None:
    sizes = {base: sum(map(len, batches)) for base, batches in SEGMENTS.items()}
    assert sum(piece.bytes for piece in log.offset_ranges(0, 20, 1 << 30)) == sizes[0]
    assert sum(piece.bytes for piece in log.offset_ranges(0, 17, 1 << 30)) == sizes[0]
    assert sum(piece.bytes for piece in log.offset_ranges(0, 9, 1 << 30)) == sum(map(len, SEGMENTS[0][:2]))
    assert log.size_from(15) == log.size - sizes[0]


def test_times_are_found(log: Log) -> None:
    for offset in range(END):
        found = log.record_for_timestamp(1000 + offset)
        later = [held for held in HELD if held >= offset]
        assert found == ((later[0], 1000 + later[0]) if later else None)


def test_nothing_counts_as_damage(log: Log) -> None:
    report = log.verify()
    assert report.damages == () and report.records == len(HELD)
    assert log.leader_epochs == EPOCHS


@pytest.mark.parametrize("offset", range(0, END + 1, 3))
def test_truncation_in_a_gap_ends_at_or_below_the_offset(tmp_path: Path, offset: int) -> None:
    path = gapped(tmp_path)
    with Log.open(path, COMPACTED) as log:
        end = log.truncate_to(offset)
        held = [record.offset for record in log.read()]
        assert end <= offset
        assert held == [held_offset for held_offset in HELD if held_offset < end]
        assert log.append(b"value", b"key") == end
        abandon(log)
    with Log.open(path, COMPACTED) as log:
        assert [record.offset for record in log.read()] == [*held, end]


def test_what_kafka_has_compacted_is_compacted_again(tmp_path: Path) -> None:
    with Log.open(gapped(tmp_path), replace(COMPACTED, segment_bytes=300)) as log:
        log.roll()
        assert log.compact() is not None
        assert [record.offset for record in log.read()] == HELD[-1:]
        assert log.verify().damages == () and log.log_end_offset == END
        assert log.leader_epochs == EPOCHS
        abandon(log)
    with Log.open(tmp_path / "topic-0", COMPACTED) as log:
        assert [record.offset for record in log.read()] == HELD[-1:] and not log.cuts


def copied(root: Path, log: Log, config: LogConfig) -> Log:
    """A follower that has fetched all of `log`."""
    follower = Log.open(root / "follower" / "topic-0", config)
    while follower.log_end_offset < log.log_end_offset:
        follower.append_as_follower(bytes(log.fetch(follower.log_end_offset, 200).data))
    return follower


def test_a_follower_takes_over_the_gaps(tmp_path: Path, log: Log) -> None:
    config = LogConfig(cleanup_policy="compact", segment_bytes=300)
    with copied(tmp_path, log, config) as follower:
        assert list(follower.read()) == list(log.read())
        assert follower.verify().damages == ()
        follower.flush()
        (tmp_path / "cut" / "topic-0").parent.mkdir()
        shutil.copytree(follower.path, tmp_path / "cut" / "topic-0")
    for directory in ("follower", "cut"):
        with Log.open(tmp_path / directory / "topic-0", config) as follower:
            assert not follower.cuts and list(follower.read()) == list(log.read())


def test_a_gap_is_refused_where_nothing_is_compacted(tmp_path: Path, log: Log) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="nothing written"):
        copied(tmp_path, log, LogConfig())
