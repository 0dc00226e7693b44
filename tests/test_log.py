"""What each call of `kreplog.Log` promises, one by one. Faults and damage have their own tests."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import kreplog
from kreplog import Log, LogConfig, errors
from kreplog._native import batch
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog._native.crc32c import crc32c
from kreplog.types import TopicPartition

NOW = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


def values(log: Log, start: int | None = None, stop: int | None = None) -> list[bytes | None]:
    return list(log.values(start, stop))


class TestAppend:
    def test_offsets_and_fields(self, path: Path) -> None:
        with Log.open(path) as log:
            assert log.append(b"a") == 0
            assert log.append(None, key=b"k", timestamp_ms=NOW, headers=[("h", b"x"), ("n", None)]) == 1
            assert log.append(memoryview(b"abc")[1:], bytearray(b"key")) == 2
            assert log.append_many([b"x", None], [b"k", None], [NOW + 1, NOW + 2]) == range(3, 5)
            assert next(tuple(record) for record in log.read(1)) == (1, NOW, b"k", None, (("h", b"x"), ("n", None)))
            assert values(log) == [b"a", None, b"bc", b"x", None]
            assert [record.timestamp_ms for record in log.read(3)] == [NOW + 1, NOW + 2]

    def test_timestamp_is_the_time_of_the_call(self, path: Path) -> None:
        with Log.open(path) as log:
            before = time.time_ns() // 1_000_000
            log.append(b"a")
            after = time.time_ns() // 1_000_000
            assert before <= next(log.read()).timestamp_ms <= after

    @pytest.mark.parametrize(
        "given",
        [
            (b"ab", b"cd", b"ef"),
            pa.array([b"ab", b"cd", b"ef"]),
            pa.array([b"xx", b"ab", b"cd", b"ef"])[1:],
            pa.array(["ab", "cd", "ef"], pa.large_string()),
            pa.chunked_array([[b"ab"], [b"cd", b"ef"]]),
            np.frombuffer(b"abcdef", np.uint8).reshape(3, 2),
            np.frombuffer(b"abcd..ef..", np.uint8)[:10].reshape(5, 2)[[0, 1, 3]],
        ],
        ids=["tuple", "binary", "sliced", "large string", "chunked", "rows", "picked rows"],
    )
    def test_what_append_many_takes(self, path: Path, given: object) -> None:
        with Log.open(path) as log:
            assert log.append_many(given, timestamps_ms=np.array([NOW, NOW, NOW])) == range(3)
            assert values(log) == [b"ab", b"cd", b"ef"]

    def test_nulls_of_an_arrow_array(self, path: Path) -> None:
        with Log.open(path) as log:
            log.append_many(pa.array([b"a", None, b""]))
            assert values(log) == [b"a", None, b""]

    def test_a_bad_item_far_down_writes_nothing(self, path: Path) -> None:
        with Log.open(path) as log:
            with pytest.raises(errors.ArgumentTypeError, match="encode it first"):
                log.append_many([b"x" * 100] * 50_000 + ["text"])
            with pytest.raises(errors.ArgumentTypeError, match="encode it first"):
                log.append_many([b"x" * 100] * 50_000, [b"k"] * 49_999 + ["text"])
            with pytest.raises(errors.RecordTooLargeError):
                log.append_many([b"x" * 100] * 50_000 + [b"x" * 2_000_000])
            assert log.log_end_offset == 0 and log.size == 0

    def test_other_bytes_than_bytes_far_down(self, path: Path) -> None:
        given = [b"%0100d" % number for number in range(50_000)]
        mixed = [*given[:30_000], *map(bytearray, given[30_000:])]
        with Log.open(path) as log:
            log.append_many(mixed, given)
            log.append_many(given, mixed)
            assert [(record.key, record.value) for record in log.read()] == [(item, item) for item in given] * 2

    def test_log_append_time(self, path: Path) -> None:
        with Log.open(path, LogConfig(message_timestamp_type="LogAppendTime")) as log:
            log.append(b"a", timestamp_ms=1)
            log.append_many([b"b"], timestamps_ms=[1])
            info = log.append_batches(batch.build([b"c"], timestamps_ms=[1]))
            with log.appender() as out:
                out.append(b"d", timestamp_ms=1)
            stamps = [record.timestamp_ms for record in log.read()]
            assert min(stamps) > NOW and info.log_append_time_ms == stamps[2]
            assert not log.verify().damages

    @pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "snappy", "zstd"])
    def test_compression(self, path: Path, compression: str) -> None:
        with Log.open(path, LogConfig(compression_type=compression)) as log:
            log.append_many([b"x" * 100] * 5000)
            with log.appender(compression=compression) as out:
                out.append(b"y" * 100)
            assert values(log) == [b"x" * 100] * 5000 + [b"y" * 100]
            assert batch.validate(log.fetch(0).data).codec == batch.codec_id(compression)
            assert (log.size < 100_000) == (compression != "none")

    def test_records_between_keys_and_bytes_of_all_kinds(self, path: Path) -> None:
        keys = [b"k", bytearray(b"l"), None]
        with Log.open(path) as log:
            log.append_many([b"a", None, b"c"], keys)
            log.append_many([b"a", memoryview(b"b"), None], [b"k", None, b"m"])
            assert [(record.key, record.value) for record in log.read()] == [
                (b"k", b"a"), (b"l", None), (None, b"c"), (b"k", b"a"), (None, b"b"), (b"m", None)
            ]  # fmt: skip


class TestAppender:
    def test_offsets_are_known_at_once_and_hold(self, path: Path) -> None:
        with Log.open(path) as log, log.appender(batch_bytes=1000, linger_ms=10_000) as out:
            offsets = [out.append(b"%d" % number) for number in range(500)]
            assert log.append(b"between") == 500
            offsets += [out.append(b"%d" % number) for number in range(501, 700)]
            out.flush()
            assert offsets == [*range(500), *range(501, 700)]
            assert values(log) == [b"between" if n == 500 else b"%d" % n for n in range(700)]

    def test_a_record_lingers_only_so_long(self, path: Path) -> None:
        with Log.open(path) as log, log.appender(linger_ms=1) as out:
            for number in range(3):
                out.append(b"%d" % number)
                give_up = time.monotonic() + 30
                while log.high_watermark <= number and time.monotonic() < give_up:
                    time.sleep(0.001)
                assert log.high_watermark == number + 1

    def test_threads_share_one(self, path: Path) -> None:
        with Log.open(path, SMALL) as log:
            given: dict[int, bytes] = {}

            def work(name: int) -> None:
                for number in range(2000):
                    value = b"%d-%d" % (name, number)
                    offset = log.append(value) if number % 50 == 0 else out.append(value)
                    given[offset] = value

            with log.appender(batch_bytes=300, linger_ms=1) as out:
                threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert len(given) == 8000
            assert values(log) == [given[offset] for offset in range(8000)]

    def test_closed(self, path: Path) -> None:
        with Log.open(path) as log:
            out = log.appender()
            out.append(b"a")
            out.close()
            out.close()
            assert values(log) == [b"a"]
            with pytest.raises(errors.LogClosedError):
                out.append(b"b")


class TestEncodedBatches:
    def test_an_idempotent_retry_gets_its_offsets_even_after_reopening(self, path: Path) -> None:
        sent = [batch.build([b"%d" % n], producer_id=7, producer_epoch=0, base_sequence=n) for n in range(7)]
        with Log.open(path) as log:
            for data in sent[:5]:
                assert not log.append_batches(data).duplicate
        with Log.open(path) as log:
            again = log.append_batches(sent[2])
            assert again.duplicate and (again.first_offset, again.last_offset) == (2, 2)
            with pytest.raises(errors.OutOfOrderSequenceError):
                log.append_batches(sent[6])
            log.append_batches(sent[5])
            log.append_batches(batch.build([b"new"], producer_id=7, producer_epoch=1, base_sequence=0))
            with pytest.raises(errors.ProducerFencedError):
                log.append_batches(sent[6])
            log.truncate_to(6)
            log.append_batches(sent[6])
            assert values(log) == [b"0", b"1", b"2", b"3", b"4", b"5", b"6"]

    def test_a_follower_keeps_what_the_leader_made(self, tmp_path: Path) -> None:
        config = LogConfig(replicated=True)
        with Log.open(tmp_path / "a" / "t-0", config) as leader, Log.open(tmp_path / "b" / "t-0", config) as follower:
            for epoch in (0, 3, 4):
                leader.assign_leader_epoch(epoch)
                leader.append_many([b"%d" % epoch] * 10)
            data = leader.fetch(0, isolation="log_end").data
            assert len(leader.fetch(0).data) == 0  # nothing is committed
            info = follower.append_as_follower(data)
            assert (info.first_offset, info.last_offset, info.records) == (0, 29, 30)
            assert bytes(follower.fetch(0, isolation="log_end").data) == bytes(data)
            assert follower.leader_epochs == leader.leader_epochs == [(0, 0), (3, 10), (4, 20)]
            assert follower.end_offset_for_epoch(3) == kreplog.EpochEndOffset(3, 20)
            with pytest.raises(errors.OffsetOutOfRangeError):
                follower.append_as_follower(data)
            with pytest.raises(errors.FencedLeaderEpochError):
                follower.append_as_follower(batch.build([b"old"], base_offset=30, leader_epoch=3))
            assert follower.truncate_to(15) == 10
            assert follower.leader_epochs == [(0, 0)]

    def test_a_follower_rolls_where_relative_offsets_overflow(self, path: Path) -> None:
        """Batches of a compacted log may span 2^31 offsets each; an index holds relative offsets of 31 bits (F38)."""

        def wide(base: int) -> bytes:
            data = bytearray(batch.build([b"%d" % base], base_offset=base))
            data[23:27] = (2**31 - 1).to_bytes(4)  # last offset delta
            data[17:21] = crc32c(bytes(data[21:])).to_bytes(4)
            return bytes(data)

        bases = [number << 31 for number in range(4)]
        with Log.open(path, LogConfig(index_interval_bytes=0)) as log:
            assert log.append_as_follower(wide(bases[0])).last_offset == (1 << 31) - 1
            info = log.append_as_follower(b"".join(wide(base) for base in bases[1:]))
            assert (info.first_offset, info.last_offset, info.records) == (1 << 31, (4 << 31) - 1, 3)
        for read_only in (False, True):
            with Log.open(path, read_only=read_only) as log:
                assert [segment.base_offset for segment in log.segments] == bases
                assert [record.offset for record in log.read()] == bases
                assert [next(log.read(base)).value for base in bases] == [b"%d" % base for base in bases]
                assert not log.verify().damages


class TestCommitted:
    def test_only_what_is_below_the_high_watermark_is_read(self, path: Path) -> None:
        with Log.open(path, LogConfig(replicated=True)) as log, Log.open(path, read_only=True) as reader:
            log.append_many([b"a", b"b"])
            log.append(b"c")
            for each in (log, reader):
                assert values(each) == [] and len(each.fetch(0).data) == 0 and each.log_end_offset == 3
            assert log.advance_high_watermark(1) == 1
            for each in (log, reader):
                assert values(each) == [b"a"]
                assert len(each.fetch(0).data) == 0  # batches are never split
            assert log.advance_high_watermark(3) == 3 and log.advance_high_watermark(2) == 3
            for each in (log, reader):
                assert values(each) == [b"a", b"b", b"c"] and each.fetch(0).next_offset == 3
            with pytest.raises(errors.OffsetOutOfRangeError):
                log.advance_high_watermark(4)

    def test_a_replica_reopens_with_its_own_high_watermark(self, path: Path) -> None:
        with Log.open(path, LogConfig(replicated=True)) as log:
            log.append_many([b"a", b"b"])
            log.append(b"c")
            log.advance_high_watermark(2)
        with Log.open(path, LogConfig(replicated=True)) as log:
            assert (log.high_watermark, log.log_end_offset) == (2, 3)
        with Log.open(path) as log:
            assert log.high_watermark == 3

    def test_another_process_sees_it_move(self, path: Path) -> None:
        program = (
            "import sys, kreplog\nlog = kreplog.Log.open(sys.argv[1], read_only=True)\n"
            "for line in sys.stdin: print(log.high_watermark, list(log.values(int(line))), flush=True)"
        )
        command = [sys.executable, "-c", program, str(path)]
        with (
            Log.open(path, SMALL) as log,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child,
        ):
            log.append(b"0")
            assert child.stdin and child.stdout
            for number in range(1, 60):
                log.append(b"%d" % number + b"." * 60)
                child.stdin.write(f"{number}\n")
                child.stdin.flush()
                assert child.stdout.readline() == f"{number + 1} {[b'%d' % number + b'.' * 60]}\n"
            assert len(log.segments) > 2
            child.stdin.close()

    def test_a_directory_that_kafka_wrote(self, path: Path) -> None:
        with Log.open(path) as log:
            log.append_many([b"a", b"b"])
            log.append(b"c")
        (path / "kreplog.state").unlink()
        checkpoint = OffsetCheckpoint(str(path.parent / "replication-offset-checkpoint"))
        checkpoint.write({TopicPartition("t", 0): 2})
        with Log.open(path, read_only=True) as log:
            assert (log.high_watermark, values(log)) == (2, [b"a", b"b"])
            checkpoint.write({TopicPartition("t", 0): 3})
            assert values(log) == [b"a", b"b", b"c"]
        assert not (path / "kreplog.state").exists()


class TestFetch:
    def test_pieces_and_regions(self, path: Path, tmp_path: Path) -> None:
        with Log.open(path, SMALL) as log, Log.open(path, read_only=True) as reader:
            for number in range(100):
                log.append(b"%d" % number)
            for each in (log, reader):
                seen, offset = [], 0
                while offset < each.high_watermark:
                    fetched = each.fetch(offset, max_bytes=300)
                    region = fetched.file_region
                    assert region.count == len(fetched.data) <= 300
                    assert os.pread(region.fd, region.count, region.position) == bytes(fetched.data)
                    assert fetched.data.readonly
                    seen += batch.decode_values(fetched.data)
                    offset = fetched.next_offset
                assert seen == [b"%d" % number for number in range(100)]
                assert len(each.fetch(100).data) == 0
                assert len(each.fetch(0, max_bytes=0).data) > 0  # one batch, however large
                with pytest.raises(errors.OffsetOutOfRangeError):
                    each.fetch(101)

    def test_bytes_outlive_truncation_and_close(self, path: Path) -> None:
        with Log.open(path, SMALL) as log:
            for number in range(100):
                log.append(b"%d" % number)
            pieces = [log.fetch(offset) for offset in (0, 30, 60, 99)]
            before = [bytes(piece.data) for piece in pieces]
            log.truncate_to(10)
            log.append_many([b"other"] * 100)
            log.truncate_fully_and_start_at(1000)
        assert [bytes(piece.data) for piece in pieces] == before


class TestFinding:
    def test_by_time(self, path: Path) -> None:
        times = [NOW + number * 10 for number in range(200)]
        times[100] = NOW + 5000  # out of order
        with Log.open(path, SMALL) as log:
            for number, stamp in enumerate(times):
                log.append(b"%d" % number, timestamp_ms=stamp)
        with Log.open(path, read_only=True) as log:
            assert len(log.segments) > 3
            for wanted in (0, NOW, NOW + 1, NOW + 995, NOW + 1500, NOW + 1990, NOW + 1991, NOW + 5000, NOW + 5001):
                expected = next((offset for offset, stamp in enumerate(times) if stamp >= wanted), None)
                assert log.offset_for_timestamp(wanted) == expected, wanted

    def test_ranges_cover_and_are_about_as_large_as_wanted(self, path: Path) -> None:
        with Log.open(path, SMALL) as log:
            for number in range(300):
                log.append(b"%d" % number)
            for start, stop in ((0, 300), (17, 290), (5, 6), (300, 300)):
                for size in (1, 500, 5000, 10**9):
                    ranges = log.offset_ranges(start, stop, size)
                    edges = [start, *(piece.stop for piece in ranges)]
                    assert [piece.start for piece in ranges] == edges[:-1] and edges[-1] == stop
                    assert all(piece.bytes < size + 700 for piece in ranges)

    def test_a_range_reports_whether_its_first_batch_is_compressed(self, path: Path) -> None:
        """Also in the middle of a segment, and where it begins with one."""
        with Log.open(path, dataclasses.replace(SMALL, batch_bytes=200)) as log:
            compressed = []
            for number in range(300):
                compressed.append(number // 50 % 2 == 1)
                codec = "lz4" if compressed[-1] else "none"
                log.configure(dataclasses.replace(SMALL, batch_bytes=200, compression_type=codec))
                log.append(b"%d" % number * 10)
            assert len(log.segments) > 3
            for start, size in ((0, 1), (0, 500), (17, 300), (0, 10**9), (60, 10**9), (100, 10**9)):
                for piece in log.offset_ranges(start, 300, size):
                    assert piece.compressed is compressed[piece.start]

    def test_the_size_from_an_offset_is_that_of_its_batch_and_all_behind_it(self, path: Path) -> None:
        """Also of what is not committed."""
        with Log.open(path, dataclasses.replace(SMALL, replicated=True)) as log:
            sizes = []
            for number in range(100):
                before = sum(segment.size for segment in log.segments)
                assert len(log.append_many([b"x" * number, b"y"])) == 2
                sizes.append(sum(segment.size for segment in log.segments) - before)
            assert log.high_watermark == 0 and len(log.segments) > 3
            for offset in range(200):
                assert log.size_from(offset) == sum(sizes[offset // 2 :])
            assert log.size_from(200) == 0
            for offset in (-1, 201):
                with pytest.raises(errors.OffsetOutOfRangeError):
                    log.size_from(offset)


class TestDeletion:
    def test_truncation_never_splits_a_batch(self, path: Path) -> None:
        with Log.open(path) as log:
            log.append_many([b"a"] * 10)
            log.append_many([b"b"] * 10)
            assert log.truncate_to(15) == 10 == log.log_end_offset == log.high_watermark
            assert log.append(b"c") == 10
            assert log.truncate_to(0) == 0 and values(log) == []

    def test_to_a_later_start(self, path: Path) -> None:
        with Log.open(path, SMALL) as log:
            log.append_many([b"a"] * 10)
            log.truncate_fully_and_start_at(1000)
            assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1000, 1000, 1000)
            assert log.append(b"b") == 1000
        with Log.open(path) as log:
            assert values(log) == [b"b"] and log.log_start_offset == 1000

    def test_records_before_an_offset(self, path: Path) -> None:
        with Log.open(path, SMALL) as log:
            for number in range(200):
                log.append(b"%d" % number)
            segments = log.segments
            middle = segments[2].base_offset + 3
            assert log.delete_records_before(middle) == middle
            assert log.segments[0].base_offset == segments[2].base_offset
            assert values(log)[0] == b"%d" % middle
            with pytest.raises(errors.OffsetOutOfRangeError):
                list(log.read(middle - 1))
            with pytest.raises(errors.OffsetOutOfRangeError):
                log.delete_records_before(201)
        with Log.open(path) as log:
            assert log.log_start_offset == middle
            assert log.delete_records_before(200) == 200 and values(log) == [] and log.append(b"next") == 200

    def test_retention(self, path: Path) -> None:
        def fill(config: LogConfig) -> Log:
            shutil.rmtree(path, ignore_errors=True)
            log = Log.open(path, config)
            for number in range(200):
                log.append(b"%d" % number, timestamp_ms=NOW + number)
            return log

        with fill(LogConfig(segment_bytes=2000)) as log:
            assert log.enforce_retention() == 0  # nothing is deleted unasked
        with fill(LogConfig(segment_bytes=2000, retention_ms=50)) as log:
            last = [segment.max_timestamp for segment in log.segments]
            assert log.enforce_retention(NOW + 160) == sum(stamp < NOW + 110 for stamp in last)
            assert log.log_start_offset == log.segments[0].base_offset > 0
            log.enforce_retention(NOW + 10_000)
            assert values(log) == [] and log.append(b"next") == 200
        with fill(LogConfig(segment_bytes=2000, retention_bytes=5000)) as log:
            log.enforce_retention()
            assert 5000 <= log.size < 7000
        with fill(LogConfig(segment_bytes=2000, retention_ms=0, replicated=True)) as log:
            assert log.enforce_retention() == 0  # nothing uncommitted is deleted

    def test_other_settings_hold_from_now_on(self, path: Path) -> None:
        with Log.open(path, LogConfig(segment_bytes=1000)) as log:
            for _ in range(20):
                log.append(b"x" * 100)
            before = log.segments
            config = LogConfig(segment_bytes=400, retention_bytes=1000, max_message_bytes=200)
            log.configure(config)
            assert log.config == config and log.segments == before
            with pytest.raises(errors.RecordTooLargeError):
                log.append(b"x" * 200)
            for _ in range(20):
                log.append(b"x" * 100)
            sizes = [segment.size for segment in log.segments]
            assert max(sizes[: len(before) - 1]) > 400 and max(sizes[len(before) :]) <= 400
            assert log.enforce_retention() > 0 and 1000 <= log.size < 1400
            with pytest.raises(errors.UsageError, match="replicated"):
                log.configure(LogConfig(replicated=True))
            assert log.config == config
        with Log.open(path, read_only=True) as reader, pytest.raises(errors.UsageError, match="read-only"):
            reader.configure(config)

    def test_settings_flushes_deletions_and_appends_at_the_same_time(self, path: Path) -> None:
        """F39: a flush meets segments that are deleted under it; segments change their size meanwhile."""
        log = Log.open(path, LogConfig(replicated=True, segment_bytes=3000))
        failures: list[BaseException] = []
        done = threading.Event()

        def until_done(work: Callable[[], object]) -> None:
            try:
                while not done.is_set():
                    work()
            except BaseException as error:
                failures.append(error)

        def configure() -> None:
            for size in (1000, 3000):
                log.configure(LogConfig(replicated=True, segment_bytes=size, retention_bytes=2 * size))

        works = (log.flush, log.enforce_retention, lambda: log.delete_records_before(log.high_watermark - 7), configure)
        threads = [threading.Thread(target=until_done, args=(work,)) for work in works]
        log.append_many([b"x"] * 10)
        log.advance_high_watermark(10)
        for thread in threads:
            thread.start()
        for _ in range(300):
            log.append_many([b"x" * 50] * 5)
            log.advance_high_watermark(log.log_end_offset)
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert log.log_end_offset == 1510 and log.verify().damages == ()
        log.close()
        with Log.open(path) as again:
            assert again.log_end_offset == 1510 and again.cuts == ()

    def test_retention_of_records_without_a_timestamp(self, path: Path) -> None:
        """They are as old as their file, as in Kafka."""
        with Log.open(path, LogConfig(segment_bytes=500, retention_ms=10_000)) as log:
            for _ in range(20):
                log.append_batches(batch.build([b"x" * 100], timestamps_ms=[-1]))
            count = len(log.segments)
            assert log.segments[0].max_timestamp == -1
            assert log.enforce_retention() == 0 and len(log.segments) == count > 3
            os.utime(log.segments[0].path, (1, 1))
            assert log.enforce_retention() == 1 and values(log, log.log_start_offset)[0] == b"x" * 100


class TestDurability:
    def test_flush_moves_the_recovery_point(self, path: Path) -> None:
        with Log.open(path, SMALL) as log:
            log.append_many([b"a"] * 100)
            assert log.recovery_point < 100
            log.flush()
            assert log.recovery_point == 100
        assert OffsetCheckpoint(str(path.parent / "recovery-point-offset-checkpoint")).read() == {
            TopicPartition("t", 0): 100
        }

    def test_every_append_durable_from_many_threads(self, path: Path) -> None:
        with Log.open(path, LogConfig(flush_messages=1)) as log:

            def work() -> None:
                for _ in range(50):
                    offset = log.append(b"x")
                    assert log.recovery_point > offset and log.high_watermark > offset

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert log.recovery_point == 400

    def test_the_topic_id_is_shared_by_partitions(self, tmp_path: Path) -> None:
        logs = [Log.open(tmp_path / name) for name in ("t-0", "t-1", "u-0")]
        first, second, other = (log.topic_id for log in logs)
        assert first is not None and first == second != other
        for log in logs:
            log.close()


def test_a_small_log_takes_little_room_while_it_is_open(tmp_path: Path) -> None:
    """Blocks are had ahead, as many as are in use, and 4 MiB at most: a broker may have ten thousand logs."""

    def room() -> int:
        return (tmp_path / "t-0" / f"{0:020d}.log").stat().st_blocks * 512

    with Log.open(tmp_path / "t-0") as log:
        log.append(b"a")
        assert room() <= 32 << 10
        for _ in range(10):
            log.append(b"v" * 1_000_000)
            used = log.size
            assert room() <= min(2 * used, used + (4 << 20)) + 8192
    assert room() <= used + 8192  # the indexes are counted in `used`


def test_a_follower_takes_what_is_over_its_limit_for_producers(path: Path) -> None:
    """The leader has accepted it under an earlier one."""
    sent = batch.build([bytes(500)])
    with Log.open(path, LogConfig(replicated=True, max_message_bytes=0)) as log:
        for append in (lambda: log.append(b""), lambda: log.append_many([b""]), lambda: log.append_batches(sent)):
            with pytest.raises(errors.RecordTooLargeError):
                append()
        assert log.append_as_follower(sent).last_offset == 0
