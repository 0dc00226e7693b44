"""Log.compact against plain models, and its rules one by one: of each key the newest record stays, at its offset."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, LogConfig, Record
from kreplog._native.batch import build
from kreplog._native.state import STATE_NAME
from kreplog._native.writable import abandon
from kreplog.errors import CorruptBatchError, LogClosedError, LogFailedError, UsageError
from tests.faults.forked import ends_by
from tests.reference import CONTROL, HEADER, Batch, Rec, decode, encode, offset_checkpoint, split

TRANSACTIONAL, DELETE_HORIZON = 16, 64
DAY = 24 * 3600 * 1000
CONFIG = LogConfig(
    cleanup_policy="compact", segment_bytes=2000, batch_bytes=300, index_interval_bytes=100, min_cleanable_dirty_ratio=0
)
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "topic-0"


def newest(records: list[Record]) -> list[Record]:
    """What compaction leaves of `records`."""
    last = {record.key: record.offset for record in records}
    return [record for record in records if last[record.key] == record.offset]


def batches_of(log: Log) -> list[bytes]:
    """The bytes of every batch, segment by segment."""
    return [data for segment in log.segments for _, data in split(Path(segment.path).read_bytes()[: segment.size])]


def rows(log: Log) -> list[tuple[Any, ...]]:
    return [(row["base_offset"], row["last_offset"]) for piece in log.batches() for row in piece]


def fill(log: Log, seed: int, count: int, keys: int) -> None:
    """Appends of all kinds, with tombstones."""
    rnd = random.Random(seed)
    while count > 0:
        size = rnd.choice([1, 1, 1, 5, 40])
        drawn = [b"key %d" % rnd.randrange(keys) for _ in range(size)]
        values = [None if rnd.random() < 0.1 else rnd.randbytes(rnd.randrange(60)) for _ in range(size)]
        if size == 1:
            log.append(values[0], drawn[0], timestamp_ms=rnd.randrange(1000), headers=[("name", b"%d" % count)])
        elif size == 5:
            log.append_batches(build(values, drawn, compression=rnd.choice(CODECS)))
        else:
            log.append_many(values, drawn)
        count -= size


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("keys", [1, 7, 300, 100_000])
def test_of_each_key_the_newest_record_stays(path: Path, codec: str, keys: int) -> None:
    config = replace(CONFIG, compression_type=codec)
    with Log.open(path, config) as log:
        for seed in range(4):
            fill(log, seed, 400, keys)
            log.roll()
            before = list(log.read())
            log.append(b"in the active segment", b"key 0")
            report = log.compact()
            assert report is not None and report.end_offset == log.segments[-1].base_offset
            active = before[-1].offset + 1
            assert list(log.read(stop=active)) == newest(before)
            assert log.verify().damages == ()
        everything = list(log.read())
        end = log.log_end_offset
    with Log.open(path, config) as log:
        assert list(log.read()) == everything and log.log_end_offset == end and not log.cuts


def test_batches_keep_their_offsets_and_those_that_lose_nothing_their_bytes(path: Path) -> None:
    with Log.open(path, CONFIG) as log:
        log.append_many([b"a1", b"b1", b"c1"], [b"a", b"b", b"c"])
        log.append_many([b"d1", b"e1"], [b"d", b"e"])
        log.append_many([b"a2", b"f1"], [b"a", b"f"])
        log.append_many([b"f2"], [b"f"])
        before = batches_of(log)
        log.roll()
        report = log.compact()
        assert report is not None and (report.records_dropped, report.keys) == (2, 6)
        after = batches_of(log)
        assert rows(log) == [(0, 2), (3, 4), (5, 6), (7, 7)]
        assert [after[1], after[3]] == [before[1], before[3]]
        assert [record.value for record in log.read()] == [b"b1", b"c1", b"d1", b"e1", b"a2", b"f2"]
        assert decode(after[0]).records == decode(before[0]).records[1:]
        assert log.compact(force=True) is not None and batches_of(log) == after


def test_a_segment_ends_where_the_next_begins(path: Path) -> None:
    with Log.open(path, CONFIG) as log:
        for _ in range(3):
            log.append(bytes(1500), b"key")
            log.roll()
        log.compact()
        sizes = [segment.size for segment in log.segments]
        assert sizes[:2] == [61, 61] and len(sizes) == 4
        assert [record.offset for record in log.read()] == [2]
        log.compact(force=True)
        assert [segment.base_offset for segment in log.segments] == [0, 3] and rows(log) == [(2, 2)]


def test_segments_are_merged_as_far_as_one_may_be_large(path: Path) -> None:
    with Log.open(path, CONFIG) as log:
        while len(log.segments) < 12:
            log.append(bytes(50), b"%d" % (log.log_end_offset % 30))
        assert [segment.size <= 2000 for segment in log.segments] == [True] * 12
        for _ in range(5):  # the empty batch at the end of a segment goes when that is merged
            log.compact(force=True)
        sizes = [segment.size for segment in log.segments]
        assert len(sizes) < 12 and all(size <= 2000 for size in sizes)
        assert all(size + following > 2000 for size, following in pairwise(sizes[:-1]))
        names = sorted(file.name for file in path.iterdir() if file.suffix in (".log", ".index", ".timeindex"))
        assert len(names) == 3 * len(sizes)
        assert not [file for file in path.iterdir() if file.suffix in (".cleaned", ".swap")]


def test_the_active_segment_and_uncommitted_records_stay(path: Path) -> None:
    with Log.open(path, replace(CONFIG, replicated=True)) as log:
        for _ in range(4):
            log.append_many([b"x", b"y"], [b"key", b"key"])
            log.roll()
        assert log.compact() is None
        log.advance_high_watermark(5)
        log.compact()
        assert [record.offset for record in log.read()] == [3, 4]
        log.advance_high_watermark(8)
        log.compact()
        assert [record.offset for record in log.read()] == [7]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("codec", CODECS)
def test_a_log_with_records_without_a_key_is_refused_unless_they_are_to_be_dropped(path: Path, codec: str) -> None:
    with Log.open(path, replace(CONFIG, cleanup_policy="delete")) as log:
        log.append_many([b"old", b"new"], [b"key", b"key"])
        log.append_batches(build([b"a", b"b", b"c", b"d"], keys=[b"x", None, b"key", None], compression=codec))
        log.roll()
        with pytest.raises(UsageError, match="cleanup_policy"):
            log.compact(drop_keyless=True)
        log.configure(CONFIG)
        before = contents(path.parent)
        for force in (False, True):
            with pytest.raises(
                UsageError, match=r"topic-0: the record at offset 3 has no key.*drop_keyless"
            ) as refused:
                log.compact(force=force)
            assert (refused.value.partition, refused.value.offset) == ("topic-0", 3)
        assert contents(path.parent) == before
        report = log.compact(drop_keyless=True)
        assert report is not None and report.records_dropped == 4
        assert [record.value for record in log.read()] == [b"a", b"c"]
        assert log.compact(force=True) is not None, "none is left"


def test_what_is_not_to_be_cleaned_may_have_records_without_a_key(path: Path) -> None:
    """In the newest segment, above the high watermark, in an aborted transaction, or where too little is dirty."""
    records = tuple(Rec(number, 5, None, b"aborted") for number in range(1, 3))
    with Log.open(path, replace(CONFIG, cleanup_policy="delete", replicated=True)) as log:
        log.append(b"a", b"key")
        log.append_as_follower(encode(Batch(records, 1, 0, TRANSACTIONAL, 5, 5, 7, 5, 0)))
        marker = (Rec(3, 5, bytes.fromhex("00000000"), bytes(6)),)
        log.append_as_follower(encode(Batch(marker, 3, 0, TRANSACTIONAL | CONTROL, 5, 5, 7, 5)))
        log.append(b"b", b"key")
        log.roll()
        log.advance_high_watermark(5)
        log.append(b"not committed")
        log.roll()
        log.append(b"newest")
        log.configure(replace(CONFIG, replicated=True))
        assert log.compact() is not None
        assert [record.offset for record in log.read()] == [4]
        log.configure(replace(CONFIG, replicated=True, min_cleanable_dirty_ratio=1))
        log.advance_high_watermark(7)
        assert log.compact() is None
        with pytest.raises(UsageError, match="offset 5 has no key"):
            log.compact(force=True)


def test_records_without_a_key_below_the_cleaner_checkpoint_stay(path: Path) -> None:
    """As in a directory that was put in the place of another: only `drop_keyless` drops any."""
    with Log.open(path, replace(CONFIG, cleanup_policy="delete")) as log:
        log.append_many([b"a", b"b", None], [None, b"key", None])
        log.roll()
    (path / STATE_NAME).unlink()
    (path.parent / "cleaner-offset-checkpoint").write_bytes(offset_checkpoint([("topic", 0, 3)]))
    with Log.open(path, CONFIG) as log:
        log.append(b"c", b"key")
        log.roll()
        report = log.compact(force=True)
        assert report is not None and (report.start_offset, report.records_dropped) == (3, 1)
        assert [record.value for record in log.read()] == [b"a", None, b"c"]
        log.compact(force=True, drop_keyless=True)
        assert [record.value for record in log.read()] == [b"c"]


def test_a_tombstone_stays_until_its_delete_horizon(path: Path) -> None:
    """KIP-534: the time counts from the first compaction that meets it, and stands in its batch."""
    with Log.open(path, CONFIG) as log:
        log.append(b"value", b"gone", timestamp_ms=5)
        log.append_many([None, b"other"], [b"gone", b"left"], [7, 8])
        log.roll()
        log.compact(1000)
        assert [(record.key, record.value, record.timestamp_ms) for record in log.read()] == [
            (b"gone", None, 7),
            (b"left", b"other", 8),
        ]
        retained = decode(batches_of(log)[-1])
        assert (
            retained.attributes & DELETE_HORIZON
            and retained.base_timestamp == 1000 + DAY
            and retained.max_timestamp == 8
        )
        unchanged = batches_of(log)
        log.compact(1000 + DAY - 1, force=True)
        assert batches_of(log) == unchanged
        log.compact(1000 + DAY, force=True)
        assert [record.key for record in log.read()] == [b"left"]
        assert rows(log) == [(1, 2)] and log.verify().damages == ()


@pytest.mark.parametrize("codec", CODECS)
def test_the_delete_horizon_in_compressed_batches_and_with_any_timestamps(path: Path, codec: str) -> None:
    stamps = [5, 2**63 - 1, 0, 1_700_000_000_000, 2**40]
    with Log.open(path, replace(CONFIG, compression_type=codec)) as log:
        log.append_many([None, b"b", None, b"d", b"x" * 99], [b"a", b"b", b"c", b"d", b"e"], stamps)
        log.roll()
        before = list(log.read())
        log.compact(1_800_000_000_000)
        assert list(log.read()) == before
        assert HEADER.unpack_from(batches_of(log)[0])[5] & DELETE_HORIZON


def test_the_newest_batch_of_a_producer_keeps_its_header(path: Path) -> None:
    def send(log: Log, producer: int, sequence: int, key: bytes) -> None:
        data = build([b"x", b"y"], [key, key], producer_id=producer, producer_epoch=0, base_sequence=sequence)
        log.append_batches(data, strict=False)

    with Log.open(path, CONFIG) as log:
        for sequence in (0, 2):
            send(log, 1, sequence, b"key")
        send(log, 2, 0, b"key")
        log.append(b"z", b"key")
        log.roll()
        log.compact()
        assert [
            tuple(int(row[name]) for name in ("base_offset", "last_offset", "record_count", "producer_id"))
            for piece in log.batches()
            for row in piece
        ] == [(2, 3, 0, 1), (4, 5, 0, 2), (6, 6, 1, -1)]
        for snapshot in path.glob("*.snapshot"):
            snapshot.unlink()
        abandon(log)
    with Log.open(path, CONFIG) as log:
        assert log.producer_count == 2
        again = log.append_batches(build([b"x", b"y"], [b"key"] * 2, producer_id=1, producer_epoch=0, base_sequence=2))
        assert again.duplicate and (again.first_offset, again.last_offset) == (2, 3)


def follower(path: Path, batches: list[Batch]) -> Log:
    log = Log.open(path, CONFIG)
    log.append_as_follower(b"".join(map(encode, batches)))
    log.roll()
    return log


def rec(offset: int, key: bytes, value: bytes | None) -> Rec:
    return Rec(offset, 5, key, value)


def test_nothing_is_compacted_from_an_open_transaction_on(path: Path) -> None:
    """A reader of stable records would see neither an older record nor the newer one that supersedes it."""
    with Log.open(path, CONFIG) as log:
        fill(log, 1, 50, 5)
        log.roll()
        begun = log.log_end_offset
        record = (Rec(begun, 5, b"key 1", b"open"),)
        log.append_as_follower(encode(Batch(record, begun, 0, TRANSACTIONAL, 5, 5, 7, 0, 0)))
        fill(log, 2, 50, 5)
        log.roll()
        assert log.last_stable_offset == begun
        report = log.compact()
        assert report is not None and report.end_offset == begun
        assert [record.offset for record in log.read() if record.offset >= begun] == list(
            range(begun, log.log_end_offset)
        )
        end = log.log_end_offset
        marker = (Rec(end, 5, bytes.fromhex("00000001"), bytes(6)),)
        log.append_as_follower(encode(Batch(marker, end, 0, TRANSACTIONAL | CONTROL, 5, 5, 7, 0)))
        assert (report := log.compact()) is not None and report.end_offset > begun


def test_what_has_its_own_time_keeps_it_under_log_append_time(path: Path) -> None:
    with Log.open(path, replace(CONFIG, message_timestamp_type="LogAppendTime")) as log:
        log.append_many([b"1", b"2", None], [b"a", b"a", b"b"], [1, 2, 3])
        log.roll()
        expected = [(record.offset, record.timestamp_ms) for record in log.read()][1:]
        log.compact()
        assert [(record.offset, record.timestamp_ms) for record in log.read()] == expected


def test_nothing_is_due_below_the_dirty_ratio(path: Path) -> None:
    with Log.open(path, replace(CONFIG, min_cleanable_dirty_ratio=0.5)) as log:
        log.append_many([bytes(100)] * 100, [b"%d" % number for number in range(100)])
        log.roll()
        assert log.compact() is not None
        log.append_many([bytes(100)] * 40, [b"%d" % number for number in range(40)])
        log.roll()
        assert log.compact() is None
        log.append_many([bytes(100)] * 70, [b"%d" % number for number in range(70)])
        log.roll()
        assert log.compact() is not None
        assert len(list(log.read())) == 100


def test_lags(path: Path) -> None:
    config = replace(CONFIG, min_compaction_lag_ms=100, max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1)
    with Log.open(path, config) as log:
        log.append(b"1", b"key", timestamp_ms=10)
        log.append(b"2", b"key", timestamp_ms=10)
        log.roll()
        log.append(b"3", b"key", timestamp_ms=500)
        log.append(b"4", b"key", timestamp_ms=500)
        assert log.compact(500) is None
        assert log.compact(109, force=True) is None
        assert log.compact(1010) is None
        assert log.compact(1011) is not None
        assert [record.value for record in log.read()] == [b"2", b"3", b"4"]
        assert log.compact(1501) is not None, "the active segment is rolled for it"
        assert [record.value for record in log.read()] == [b"4"]


def test_what_the_memory_does_not_reach_is_compacted_next(path: Path) -> None:
    config = replace(CONFIG, dedupe_buffer_size=1024)
    with Log.open(path, config) as log:
        for start in range(0, 200, 2):
            log.append_many([b"x", b"y"], [b"%d" % (start % 80), b"%d" % (start % 80 + 1)])
        log.roll()
        before = list(log.read())
        ends = []
        while (report := log.compact()) is not None:
            assert report.keys <= 1024 // 24
            ends.append(report.end_offset)
        assert len(ends) > 2 and ends == sorted(set(ends)) and ends[-1] == 200
        assert list(log.read()) == newest(before)
        log.append_many([b"x"] * 100, [b"%d" % number for number in range(100)])


def test_more_keys_in_a_batch_than_memory(path: Path) -> None:
    config = replace(CONFIG, dedupe_buffer_size=1024, batch_bytes=100_000, segment_bytes=1 << 20)
    with Log.open(path, config) as log:
        log.append_many([b"x"] * 100, [b"%d" % number for number in range(100)])
        log.roll()
        with pytest.raises(UsageError, match="raise it"):
            log.compact()
        log.configure(CONFIG)
        assert log.compact() is not None


def test_the_checkpoint_says_where_to_go_on(path: Path) -> None:
    with Log.open(path, CONFIG) as log:
        log.append_many([b"x"] * 10, [b"key"] * 10)
        log.roll()
        assert log.compact() is not None
        assert (path.parent / "cleaner-offset-checkpoint").read_bytes() == offset_checkpoint([("topic", 0, 10)])
        assert log.compact() is None
    with Log.open(path, CONFIG) as log:
        assert log.compact() is None
        log.append_many([b"x"] * 10, [b"key"] * 10)
        log.truncate_to(5)
        assert (path.parent / "cleaner-offset-checkpoint").read_bytes() == offset_checkpoint([("topic", 0, 0)])
        (path.parent / "cleaner-offset-checkpoint").write_text("damaged")
        log.append_many([b"x"] * 10, [b"key"] * 10)
        log.roll()
        assert log.compact() is not None and len(list(log.read())) == 1


def test_no_damaged_byte_of_the_checkpoint_loses_a_record(path: Path) -> None:
    """Nor does one bring back a key that was deleted: at most records are looked at again, or later."""
    sound = path.parent / "sound" / path.name
    with Log.open(sound, CONFIG) as log:
        for first in (b"deleted later", None):
            log.append(first, b"deleted")
            for number in range(59):
                log.append(b"%d" % number, b"key %d" % (number % 6))
            log.roll()
            if first is not None:
                log.compact(force=True)
        wanted = {record.key: record.value for record in log.read()}
    checkpoint = (sound.parent / "cleaner-offset-checkpoint").read_bytes()
    damaged = [checkpoint[:end] for end in range(len(checkpoint))]
    damaged += [
        checkpoint[:position] + bytes([other]) + checkpoint[position + 1 :]
        for position in range(len(checkpoint))
        for other in b"\x009\n\xff"
    ]
    for number, content in enumerate(damaged):
        copy = path.parent / str(number) / path.name
        shutil.copytree(sound, copy)
        (copy.parent / "cleaner-offset-checkpoint").write_bytes(content)
        with Log.open(copy, CONFIG) as log:
            log.roll()
            for now_ms in (None, 1 << 50):  # once every tombstone has expired, too
                log.compact(now_ms, force=True)
                found = {record.key: record.value for record in log.read()}
                assert found == {key: wanted[key] for key in found}, content
                assert {key for key, value in wanted.items() if value is not None} <= set(found), content
            assert not log.verify().damages
        shutil.rmtree(copy.parent)


def test_retention_needs_its_policy(path: Path) -> None:
    with Log.open(path, replace(CONFIG, retention_bytes=0)) as log:
        log.append(b"x", b"key")
        log.roll()
        assert log.enforce_retention() == 0
        log.configure(replace(CONFIG, retention_bytes=0, retention_ms=0, cleanup_policy=""))
        assert log.enforce_retention() == 0
        with pytest.raises(UsageError, match="its cleanup_policy is ''"):
            log.compact()
        log.configure(replace(CONFIG, retention_bytes=0, cleanup_policy="compact,delete"))
        assert log.enforce_retention() == 1


def test_a_partition_recreated_has_no_checkpoint(path: Path) -> None:
    path.parent.joinpath("cleaner-offset-checkpoint").write_bytes(offset_checkpoint([("other", 0, 1), ("topic", 0, 3)]))
    with Log.open(path, CONFIG) as log:
        log.append_many([b"x"] * 4, [b"a", b"a", b"b", b"b"])
        log.roll()
        log.compact()
        assert [record.offset for record in log.read()] == [1, 3]


@pytest.mark.parametrize("damaged", range(4))
def test_damage_stops_it_with_nothing_changed(path: Path, damaged: int) -> None:
    """A flip in the base offset, which no CRC covers, in the CRC, in a record, and bytes that are missing."""
    with Log.open(path, CONFIG) as log:
        for number in range(3):
            log.append_many([b"x", b"y"], [b"key", b"%d" % number])
        log.roll()
        file = Path(log.segments[0].path)
    data = bytearray(file.read_bytes())
    second = split(bytes(data))[1][0]
    if damaged == 3:
        del data[-1]
    else:
        data[second + [7, 17, 70][damaged]] ^= 1
    file.write_bytes(data)
    with Log.open(path, CONFIG) as log:
        with pytest.raises(CorruptBatchError) as caught:
            log.compact()
        assert (caught.value.path, caught.value.offset) == (str(file), 4 if damaged == 3 else 2)
        assert file.read_bytes() == data
        assert not log.failed and log.append(b"x", b"key") == 6
        assert not [name for name in path.iterdir() if name.suffix in (".cleaned", ".swap")]


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads that take turns ten times as often as usual, which shows a missing lock in a run or two of sixty."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 10)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("seed", range(20))
def test_compaction_and_retention_and_truncation_at_the_same_time(path: Path, seed: int) -> None:
    """Whichever comes first: what is deleted stays so, and of each key that is left the newest record is there."""
    config = replace(CONFIG, cleanup_policy="compact,delete", segment_bytes=1000)
    with Log.open(path, config) as log:
        done = threading.Event()
        errors: list[BaseException] = []

        def compact() -> None:
            try:
                while not done.is_set():
                    log.compact(force=True)
            except BaseException as error:
                errors.append(error)

        worker = threading.Thread(target=compact)
        worker.start()
        rnd = random.Random(seed)
        try:
            model: dict[int, tuple[bytes | None, bytes | None]] = {}
            for step in range(300):
                start = log.log_end_offset
                pairs = [(b"key %d" % rnd.randrange(50), b"%d %d" % (step, number)) for number in range(8)]
                log.append_many([value for _, value in pairs], [key for key, _ in pairs])
                model |= {start + number: pair for number, pair in enumerate(pairs)}
                if step % 20 == 7:
                    end = log.truncate_to(max(log.log_end_offset - rnd.randrange(200), log.log_start_offset))
                    assert end == log.log_end_offset
                    model = {record.offset: (record.key, record.value) for record in log.read()}
                if step % 30 == 9:
                    log.delete_records_before(min(log.log_start_offset + rnd.randrange(50), log.log_end_offset))
                found = [(record.offset, record.key, record.value) for record in log.read()]
                assert all(model[offset] == (key, value) for offset, key, value in found)
                last = {key: offset for offset, (key, _) in model.items()}
                offsets = {offset for offset, _, _ in found}
                first = log.log_start_offset
                assert all(offset in offsets for offset in last.values() if offset >= first)
        finally:
            done.set()
            worker.join()
        assert not errors, errors
        assert log.verify().damages == ()


@pytest.mark.parametrize(("log_start", "end"), [(0, 1), (3, 3)])
def test_a_truncation_into_a_gap_that_a_kill_ends_is_completed(path: Path, log_start: int, end: int) -> None:
    """To where it would have ended: not to the next batch, beyond offsets that would be missing then, so that nothing
    from there on could be read."""
    fill_with_gap(path, log_start)

    def killed() -> None:
        with Log.open(path, CONFIG) as log, pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "unlink", lambda _: os._exit(7))
            log.truncate_to(4)

    assert ends_by(killed)[0] == 7
    with Log.open(path, CONFIG) as log:
        assert (log.log_end_offset, log.cuts) == (end, ())
        assert log.append(b"d", b"d") == end
        assert [record.value for record in log.read()] == [b"a", b"d"][log_start > 0 :]
        assert log.verify().damages == ()


@pytest.mark.parametrize("log_start", [0, 3])
def test_a_truncation_into_a_gap_that_fails_makes_no_damage_of_the_gap(
    path: Path, log_start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_with_gap(path, log_start)

    def refuse(name: str) -> None:
        raise OSError(errno.EIO, "refused", name)

    log = Log.open(path, CONFIG)
    with monkeypatch.context() as patched, pytest.raises(LogFailedError):
        patched.setattr(os, "unlink", refuse)
        log.truncate_to(4)
    abandon(log)
    with Log.open(path, CONFIG) as log:
        assert (log.log_end_offset, log.cuts) == (7, ())
        assert log.append(b"d", b"d") == 7
        assert [record.offset for record in log.read()] == [0, 5, 6, 7][log_start > 0 :]
        assert log.verify().damages == ()


def fill_with_gap(path: Path, log_start: int) -> None:
    with Log.open(path, CONFIG) as log:
        for key in (b"a", b"b", b"b", b"b", b"b", b"b"):
            log.append(key, key)
        log.roll()
        log.append(b"c", b"c")
        log.compact(force=True)
        assert rows(log) == [(0, 0), (5, 5), (6, 6)]
        log.delete_records_before(log_start)


def test_close_ends_a_compaction(path: Path) -> None:
    log = Log.open(path, CONFIG)
    log.append_many([bytes(100)] * 100, [b"%d" % number for number in range(100)])
    log.roll()
    errors: list[BaseException] = []
    started = threading.Event()

    def compact() -> None:
        started.set()
        try:
            log.compact(max_bytes_per_second=1)
        except LogClosedError as error:
            errors.append(error)

    worker = threading.Thread(target=compact)
    worker.start()
    started.wait()
    log.close()
    worker.join()
    assert len(errors) == 1
    with Log.open(path, CONFIG) as log:
        assert len(list(log.read())) == 100


def read_from(log: Log, start: int) -> Iterator[tuple[int, bytes | None]]:
    return map(attrgetter("offset", "key"), log.read(start))


def test_readers_that_have_begun_go_on(path: Path) -> None:
    """Every reader sees each key's newest record once it is at the end, whatever was compacted under it."""
    with Log.open(path, CONFIG) as log, Log.open(path, CONFIG, read_only=True) as other:
        for number in range(200):
            log.append(b"x", b"%d" % (number % 60))
        log.roll()
        for reader in (log, other):
            for stop in range(0, 60, 7):
                records, end = read_from(reader, 0), log.log_end_offset
                seen = [next(records) for _ in range(stop)]
                log.append(b"x", b"%d" % stop)
                log.roll()
                log.compact(force=True)
                seen += [*records, *read_from(reader, end)]
                offsets = [offset for offset, _ in seen]
                assert offsets == sorted(set(offsets))
                assert {key for _, key in seen} == {b"%d" % number for number in range(60)}


@pytest.mark.parametrize(
    "wrong",
    [
        {"cleanup_policy": "compacted"},
        {"min_cleanable_dirty_ratio": 1.1},
        {"min_cleanable_dirty_ratio": "0.5"},
        {"dedupe_buffer_size": 0},
        {"delete_retention_ms": -1},
    ],
)
def test_settings_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises((UsageError, TypeError), match=next(iter(wrong))):
        LogConfig(**wrong)


@pytest.mark.parametrize("leader_compacts", [False, True])
def test_a_follower_that_was_compacted_further_is_truncated_and_follows_on(folder: Path, leader_compacts: bool) -> None:
    """At every offset, also in a gap; the leader may be compacted between two fetches."""
    with Log.open(folder / "leader-0", CONFIG) as leader:
        fill(leader, 1, 300, 20)
        leader.roll()
        end, expected = leader.log_end_offset, {record.key: tuple(record) for record in leader.read()}
        for offset in range(0, end, 7):
            path = folder / f"follower-{offset}"
            with Log.open(path, replace(CONFIG, replicated=True)) as log:
                follow(log, leader, 0)
                log.advance_high_watermark(end)
                log.roll()
                log.compact(force=True)
                assert log.truncate_to(offset) <= offset
                if leader_compacts and offset > end / 2:
                    leader.compact(force=True)
                follow(log, leader, log.log_end_offset)
                log.advance_high_watermark(end)
                log.compact(force=True)
                assert log.log_end_offset == end
                assert {record.key: tuple(record) for record in log.read()} == expected


def follow(log: Log, leader: Log, offset: int) -> None:
    while offset < leader.log_end_offset:
        fetched = leader.fetch(offset, 500)
        log.append_as_follower(fetched.data)
        offset = fetched.next_offset
