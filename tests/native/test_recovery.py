"""Recovery and detection: cut files, flipped bits, zeroed ranges, and lost or damaged files beside the log.

Each test makes one sound directory, then opens thousands of damaged copies of it. What is compared is always the
records, as they were before the damage: a log may know less only where the damage is, and never knows wrong.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from kreplog import Log, LogConfig, Record, errors
from kreplog._native import batch
from kreplog._native.checkpoint import offsets_by_partition
from kreplog.types import TopicPartition
from tests import reference
from tests.faults.forked import result_of

NOW = 1_700_000_000_000
CONFIG = LogConfig(index_interval_bytes=0)
DAMAGED = (errors.CorruptBatchError, errors.UnsupportedFormatError)  # the latter where a bit of the magic byte flipped
NAME = "recovery-0"
LOG_FILE = "0" * 20 + ".log"
LEADER_EPOCH_AT = 12


@dataclass(frozen=True)
class Sound:
    """A closed, sound partition directory and what is in it; beside it the same as a kill would have left it."""

    path: Path
    records: list[Record]
    batches: list[tuple[int, bytes]]

    def copy(self, to: Path, *, killed: bool = False) -> Path:
        """A fresh copy of the data directory, or of that of a killed writer; returns the partition directory in it."""
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(killed_of(self.path.parent) if killed else self.path.parent, to)
        return to / NAME

    def bounds(self) -> list[tuple[int, int, int, int]]:
        """Per batch: position, end, first offset, offset after it."""
        out = []
        for at, data in self.batches:
            header = reference.HEADER.unpack_from(data)
            out.append((at, at + len(data), header[0], header[0] + header[6] + 1))
        return out


def killed_of(data_directory: Path) -> Path:
    return data_directory.with_name(data_directory.name + "-killed")


def make(
    path: Path, batches: int, per_batch: int, config: LogConfig = CONFIG, work: Callable[[Log], None] | None = None
) -> Sound:
    """A log of `batches` batches under three leader epochs; batches of one to `per_batch` records."""
    with Log.open(path, config) as log:
        for number in range(batches):
            log.assign_leader_epoch(number * 3 // batches)
            count = 1 + number % per_batch
            first = log.log_end_offset
            log.append_many(
                [b"%d" % offset for offset in range(first, first + count)],
                [None if offset % 3 else b"k" for offset in range(first, first + count)],
                [NOW + offset for offset in range(first, first + count)],
            )
        if config.replicated:
            log.advance_high_watermark(log.log_end_offset)
        if work:
            work(log)
        records = list(log.read())
        shutil.copytree(path.parent, killed_of(path.parent))
    data = b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))
    return Sound(path, records, reference.split(data))


def test_every_prefix_of_the_log_file(folder: Path) -> None:
    """Cut at any byte, the log reopens with the whole batches before the cut, and takes records again."""
    sound = make(folder / "sound" / NAME, batches=25, per_batch=15)
    data = (sound.path / LOG_FILE).read_bytes()
    partition = folder / "cut" / NAME
    partition.mkdir(parents=True)
    ends = [0, *(end for _, end, _, _ in sound.bounds())]
    stops = [0, *(stop for _, _, _, stop in sound.bounds())]
    for cut in range(len(data) + 1):
        shutil.rmtree(partition.parent)
        partition.mkdir(parents=True)
        (partition / LOG_FILE).write_bytes(data[:cut])
        whole = max(number for number, end in enumerate(ends) if end <= cut)
        with Log.open(partition, CONFIG) as log:
            assert log.log_end_offset == stops[whole], f"cut at {cut}"
            assert log.append(b"next", timestamp_ms=NOW) == stops[whole]
            assert list(log.read())[:-1] == sound.records[: stops[whole]], f"cut at {cut}"
        written = (partition / LOG_FILE).read_bytes()
        assert written[: ends[whole]] == data[: ends[whole]]
        assert len(reference.split(written[ends[whole] :])) == 1


def test_cut_with_all_other_files_in_place(folder: Path) -> None:
    """The same with indexes, checkpoints and state that speak of more than is there, and in earlier segments."""
    config = replace(CONFIG, segment_bytes=1400)
    sound = make(folder / "sound" / NAME, batches=40, per_batch=9, config=config)
    files = sorted(sound.path.glob("*.log"))
    assert len(files) >= 3
    for file in (files[0], files[1], files[-1]):
        data = file.read_bytes()
        whole = reference.split(data)
        for cut in range(0, len(data), 11):
            whole_batches = [part for at, part in whole if at + len(part) <= cut]
            end = reference.decode(whole_batches[-1]).last_offset + 1 if whole_batches else int(file.stem)
            for killed in (True, False):
                partition = sound.copy(folder / "cut", killed=killed)
                (partition / file.name).write_bytes(data[:cut])
                reads_without_wrong_records(partition, sound, config, at_least=end)


def reads_without_wrong_records(partition: Path, sound: Sound, config: LogConfig, at_least: int) -> None:
    """Open for writing; every record it gives is right, and those below `at_least` are all there."""
    with Log.open(partition, config) as log:
        seen: list[Record] = []
        try:
            seen.extend(log.read())
        except errors.CorruptBatchError as error:
            assert error.path is not None and error.position is not None and error.offset is not None
        assert seen == sound.records[: len(seen)]
        assert len(seen) >= at_least, f"{len(seen)} records are left, {at_least} were whole"


def flips(data: bytes, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    for bit in range(start * 8, stop * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 128 >> bit % 8
        yield bit, bytes(damaged)


def test_every_flipped_bit_is_detected_and_costs_one_batch(folder: Path) -> None:
    """A flip anywhere, the 17 bytes outside the CRC included: found by read and by verify, and only there."""
    sound = make(folder / "sound" / NAME, batches=5, per_batch=3)
    file = sound.path / LOG_FILE
    data = file.read_bytes()
    for number, (at, end, first, stop) in enumerate(sound.bounds()):
        for bit, damaged in flips(data, at, end):
            where = f"bit {bit}, byte {bit // 8 - at} of batch {number}"
            with open(file, "r+b") as out:
                out.write(damaged)
            with Log.open(sound.path, CONFIG, read_only=True) as log:
                for start in range(stop):
                    before, error = read_until_error(log, start)
                    assert before == sound.records[start : max(start, first)], f"{where}, read from {start}"
                    assert error is not None, f"{where}: not detected by read from {start}"
                    assert (error.path, error.position) == (str(file), at), where
                    assert error.offset in (first, start), where
                assert read_until_error(log, stop) == (sound.records[stop:], None), f"{where}: later batches are lost"
                report = log.verify()
                assert [(d.path, d.position, d.offset) for d in report.damages] == [(str(file), at, first)], where
                assert report.batches == len(sound.batches) - 1, where
    file.write_bytes(data)
    with Log.open(sound.path, CONFIG, read_only=True) as log:
        assert not log.verify().damages


def read_until_error(log: Log, start: int) -> tuple[list[Record], errors.KreplogError | None]:
    seen: list[Record] = []
    try:
        seen.extend(log.read(start))
    except DAMAGED as error:
        return seen, error
    return seen, None


def test_every_way_of_reading_detects_a_flip(folder: Path) -> None:
    """values(), fetch() with decode, offset_for_timestamp and to_arrow stop at the damaged batch as read() does."""
    sound = make(folder / "sound" / NAME, batches=5, per_batch=3)
    file = sound.path / LOG_FILE
    data = file.read_bytes()
    at, end, first, _ = sound.bounds()[2]
    for bit, damaged in flips(data, at, end):
        if LEADER_EPOCH_AT <= bit // 8 - at < LEADER_EPOCH_AT + 4:
            continue  # what is fetched goes to a replica, which checks epochs itself
        file.write_bytes(damaged)
        with Log.open(sound.path, CONFIG, read_only=True) as log:
            with pytest.raises(DAMAGED):
                list(log.values())
            with pytest.raises(DAMAGED):
                fetch_all(log)
            try:
                found = log.offset_for_timestamp(NOW + first)
            except DAMAGED:
                found = first
            assert found == first, f"bit {bit}, byte {bit // 8 - at}"


def fetch_all(log: Log) -> list[Record]:
    seen: list[Record] = []
    while len(seen) < log.high_watermark:
        more = batch.decode(log.fetch(len(seen), max_bytes=80).data)
        assert more and more[0].offset == len(seen), f"fetch at {len(seen)} gives {more}"
        seen.extend(more)
    return seen


def test_flipped_bit_past_the_recovery_point(folder: Path) -> None:
    """After an unclean stop recovery ends before the damaged batch; what is before it is whole."""
    sound = make(folder / "sound" / NAME, batches=4, per_batch=3)
    data = (sound.path / LOG_FILE).read_bytes()
    bounds = sound.bounds()
    for at, end, first, _ in bounds:
        for bit, damaged in flips(data, at, end):
            partition = sound.copy(folder / "flipped", killed=True)
            (partition / LOG_FILE).write_bytes(damaged)
            with Log.open(partition, CONFIG) as log:
                assert list(log.read()) == sound.records[:first], f"bit {bit}"
                assert log.append(b"next") == first


def test_flip_below_the_recovery_point_is_not_cut_away(folder: Path) -> None:
    """Damage in what was flushed is reported when read; opening for writing must not throw the rest away."""
    sound = make(folder / "sound" / NAME, batches=6, per_batch=3)
    data = (sound.path / LOG_FILE).read_bytes()
    at, end, first, stop = sound.bounds()[2]
    for bit, damaged in flips(data, at, end):
        partition = sound.copy(folder / "flipped")
        (partition / LOG_FILE).write_bytes(damaged)
        with Log.open(partition, CONFIG) as log:
            before, error = read_until_error(log, 0)
            assert before == sound.records[:first] and error is not None, f"bit {bit}"
            assert read_until_error(log, stop) == (sound.records[stop:], None), f"bit {bit}"


def test_zeroed_and_random_ranges(folder: Path) -> None:
    """Power loss leaves blocks of zeros or of old bytes: recovery ends at or before the first that changed anything."""
    rng = random.Random(7)
    sound = make(folder / "sound" / NAME, batches=40, per_batch=9)
    data = (sound.path / LOG_FILE).read_bytes()
    for trial in range(300):
        start = rng.randrange(len(data))
        count = rng.randrange(1, len(data) - start + 1)
        filler = bytes(count) if trial % 3 else rng.randbytes(count)
        damaged = data[:start] + filler + data[start + count :]
        if damaged == data:
            continue
        partition = sound.copy(folder / "zeroed", killed=True)
        (partition / LOG_FILE).write_bytes(damaged)
        changed = next(i for i in range(len(data)) if data[i] != damaged[i])
        first = next(first for at, end, first, _ in sound.bounds() if at <= changed < end)
        with Log.open(partition, CONFIG) as log:
            assert list(log.read()) == sound.records[:first], f"zeroed {start} to {start + count}"


def test_zeros_after_the_end(folder: Path) -> None:
    """A preallocated or grown tail of zeros is no damage."""
    sound = make(folder / "sound" / NAME, batches=4, per_batch=3)
    for size in (1, 11, 12, 60, 61, 4096, 70_000):
        partition = sound.copy(folder / "grown", killed=True)
        with open(partition / LOG_FILE, "ab") as out:
            out.write(bytes(size))
        with Log.open(partition, CONFIG) as log:
            assert list(log.read()) == sound.records
            log.append(b"next")
            assert not log.verify().damages


def variants(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Every way a small file goes wrong: gone, cut at any byte, any bit flipped, filled with nonsense, grown."""
    yield "missing", None
    step = max(1, len(content) // 200)
    for cut in range(0, len(content), step):
        yield f"cut at {cut}", content[:cut]
    rng = random.Random(len(content))
    for bit in sorted(rng.sample(range(len(content) * 8), min(len(content) * 8, 160))):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 128 >> bit % 8
        yield f"bit {bit} flipped", bytes(damaged)
    yield "zeroed", bytes(len(content))
    yield "random", rng.randbytes(max(len(content), 30))
    yield "ones", b"\xff" * max(len(content), 24)
    yield "grown", content + b"\x01\x02\x03"
    yield "text", b"no such thing\n"


def other_files(root: Path) -> list[str]:
    """All files of the data directory but the log files, relative to it."""
    files = [str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()]
    return sorted(name for name in files if not name.endswith((".log", ".lock", ".kafka_cleanshutdown")))


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_missing_torn_and_wrong_files(folder: Path, clean: bool) -> None:
    """Each file beside the log, damaged every way: rebuilt or mended, no record lost, none hidden, none wrong (F38)."""
    config = replace(CONFIG, segment_bytes=1200)
    sound = make(folder / "sound" / NAME, batches=30, per_batch=9, config=config, work=write_as_producer)
    with Log.open(sound.path, config) as log:
        epochs = [log.end_offset_for_epoch(epoch) for epoch in range(4)]
    root = sound.path.parent if clean else killed_of(sound.path.parent)
    names = other_files(root)
    for kind in (".index", ".timeindex", ".snapshot", "epoch-checkpoint", "offset-checkpoint", "kreplog.state"):
        assert any(name.endswith(kind) for name in names) or not clean, f"no {kind} in {names}"
    of_one_segment = {max(name for name in names if name.endswith(kind)) for kind in (".index", ".timeindex")}
    of_one_segment |= {min(name for name in names if name.endswith(kind)) for kind in (".index", ".timeindex")}
    for name in names:
        if name.endswith((".index", ".timeindex")) and name not in of_one_segment:
            continue
        for case, content in variants((root / name).read_bytes()):
            partition = sound.copy(folder / "damaged", killed=not clean)
            damage(partition.parent / name, content)
            with Log.open(partition, config) as log:
                where = f"{name} {case}"
                assert (log.log_start_offset, log.log_end_offset) == (0, len(sound.records)), where
                assert log.high_watermark == log.log_end_offset, where
                assert list(log.read()) == sound.records, where
                assert not log.verify().damages, where
                for record in sound.records[::17]:
                    assert next(iter(log.read(record.offset))) == record, where
                    assert log.offset_for_timestamp(record.timestamp_ms) == record.offset, where
                assert [log.end_offset_for_epoch(epoch) for epoch in range(4)] == epochs, where
                assert log.append_batches(producer_batch(3)).duplicate, f"{where}: the producer is forgotten"
                assert not log.append_batches(producer_batch(4)).duplicate, where


def producer_batch(number: int) -> bytes:
    return batch.build(
        [b"p%d" % number], timestamps_ms=[NOW + 500], producer_id=7, producer_epoch=0, base_sequence=number
    )


def write_as_producer(log: Log) -> None:
    for number in range(4):
        log.append_batches(producer_batch(number))


def damage(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.mark.parametrize(
    "kind", [".index", ".timeindex", "leader-epoch-checkpoint", "replication-offset-checkpoint", ".snapshot"]
)
def test_a_damaged_file_is_warned_about(folder: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    config = replace(CONFIG, segment_bytes=1200)
    sound = make(folder / "sound" / NAME, batches=30, per_batch=9, config=config, work=write_as_producer)
    name = max(name for name in other_files(sound.path.parent) if name.endswith(kind))
    size = (sound.path.parent / name).stat().st_size
    for content in (b"\xff" * max(size, 24), b"no such thing\n"):
        partition = sound.copy(folder / "damaged")
        damage(partition.parent / name, content)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "kreplog"), Log.open(partition, config) as log:
            assert list(log.read()) == sound.records
            log.offset_for_timestamp(NOW + 3)
        assert any(Path(name).name in record.getMessage() for record in caplog.records), f"no warning names {name}"


def test_all_other_files_missing(folder: Path) -> None:
    config = replace(CONFIG, segment_bytes=1200)
    sound = make(folder / "sound" / NAME, batches=30, per_batch=9, config=config)
    partition = sound.copy(folder / "bare")
    for name in other_files(sound.path.parent):
        (partition.parent / name).unlink()
    with Log.open(partition, config) as log:
        assert list(log.read()) == sound.records
        assert log.end_offset_for_epoch(1).end_offset > 0


@pytest.mark.parametrize("name", ["replication-offset-checkpoint", "kreplog.state"])
def test_wrong_high_watermark_never_shows_uncommitted_records(folder: Path, name: str) -> None:
    """Of the two places that hold it, one damaged any way: the high watermark may fall back, never rise."""
    config = LogConfig(replicated=True)
    path = folder / "sound" / NAME
    with Log.open(path, config) as log:
        for number in range(100):
            log.append(b"%d" % number)
        log.advance_high_watermark(60)
    sound = Sound(path, [], [])
    target = path / name if name == "kreplog.state" else path.parent / name
    content = target.read_bytes()
    text = content if len(content) < 100 else b""
    digits = [text[:at] + b"%d" % digit + text[at + 1 :] for at in range(len(text)) for digit in range(10)]
    for case, damaged in [*variants(content), *((f"digit {n}", text) for n, text in enumerate(digits))]:
        partition = sound.copy(folder / "damaged")
        damage(partition / name if name == "kreplog.state" else partition.parent / name, damaged)
        for read_only in (True, False):
            with Log.open(partition, config, read_only=read_only) as log:
                assert log.high_watermark <= 60, f"{name} {case}, read_only={read_only}"
                assert sum(1 for _ in log.read()) == log.high_watermark - log.log_start_offset
                assert log.log_end_offset == 100 or read_only


def test_wrong_log_start_hides_and_revives_nothing(folder: Path) -> None:
    path = folder / "sound" / NAME
    with Log.open(path, CONFIG) as log:
        for number in range(100):
            log.append(b"%d" % number)
        log.delete_records_before(40)
    sound = Sound(path, [], [])
    content = (path.parent / "log-start-offset-checkpoint").read_bytes()
    for case, damaged in variants(content):
        partition = sound.copy(folder / "damaged")
        damage(partition.parent / "log-start-offset-checkpoint", damaged)
        with Log.open(partition, CONFIG) as log:
            assert log.log_start_offset == 40, case
            assert [record.offset for record in log.read()] == list(range(40, 100))


def test_recovery_point_that_claims_too_much(folder: Path) -> None:
    """A recovery point changed to the log end, and a torn tail: a prefix is kept, nothing wrong is read."""
    sound = make(folder / "sound" / NAME, batches=20, per_batch=5)
    data = (sound.path / LOG_FILE).read_bytes()
    for cut in range(len(data) - 200, len(data), 3):
        partition = sound.copy(folder / "torn", killed=True)
        (partition / "kreplog.state").unlink()
        text = reference.offset_checkpoint([("recovery", 0, len(sound.records))])
        (partition.parent / "recovery-point-offset-checkpoint").write_bytes(text)
        (partition / LOG_FILE).write_bytes(data[:cut])
        whole = max((stop for _, end, _, stop in sound.bounds() if end <= cut), default=0)
        with Log.open(partition, CONFIG) as log:
            assert list(log.read()) == sound.records[:whole]


def test_leftovers_are_no_segments(folder: Path) -> None:
    """Temporary, deleted, swapped and strange files, and an empty segment at the end: nothing is taken for data."""
    sound = make(folder / "sound" / NAME, batches=10, per_batch=3)
    end = len(sound.records)
    for name in ("replication-offset-checkpoint.tmp", f"{NAME}/leader-epoch-checkpoint.tmp", f"{NAME}/{end:020}.log",
                 f"{NAME}/{LOG_FILE}.deleted", f"{NAME}/{LOG_FILE}.swap", f"{NAME}/notes.log", f"{NAME}/7.index",
                 f"{NAME}/{99:020}.index", f"{NAME}/{99:020}.snapshot"):  # fmt: skip
        partition = sound.copy(folder / "leftover")
        (partition.parent / name).write_bytes(b"" if name.endswith(f"{end:020}.log") else b"half a file")
        with Log.open(partition, CONFIG) as log:
            assert list(log.read()) == sound.records, name
            assert log.append(b"next") == end, name


def test_a_swap_that_nothing_proves_is_refused(folder: Path) -> None:
    """F40: it may be all that is left of the segments that it replaces."""
    sound = make(folder / "sound" / NAME, batches=10, per_batch=3)
    swap = sound.path / f"{3:020}.log.swap"
    swap.write_bytes(b"half a file")
    with pytest.raises(errors.CorruptBatchError, match=r"damaged at byte 0\. Nothing was deleted") as caught:
        Log.open(sound.path, CONFIG)
    assert caught.value.path == str(swap) and swap.exists()
    swap.unlink()
    with Log.open(sound.path, CONFIG) as log:
        assert list(log.read()) == sound.records


def test_missing_segment_in_the_middle(folder: Path) -> None:
    """A hole between segments is named, not skipped: readers never pass from one side to the other in silence."""
    config = replace(CONFIG, segment_bytes=1200)
    sound = make(folder / "sound" / NAME, batches=40, per_batch=9, config=config)
    files = sorted(sound.path.glob("*.log"))
    assert len(files) >= 3
    for clean in (True, False):
        partition = sound.copy(folder / "hole", killed=not clean)
        (partition / files[1].name).unlink()
        try:
            with Log.open(partition, config) as log:
                seen, _ = read_until_error(log, 0)
        except errors.StorageError as error:
            assert error.path is not None
        else:
            assert seen == sound.records[: len(seen)] and len(seen) <= int(files[1].stem)


def test_a_reader_outlives_a_broker_that_cuts_its_indexes(tmp_path: Path) -> None:
    """A running Kafka makes an index of 10 MiB, mostly zeros, and cuts it when the segment is full: no SIGBUS, and
    none of the zeros taken for entries.
    """
    path = tmp_path / NAME
    with Log.open(path, CONFIG) as log:
        for number in range(500):
            log.append(b"value-%d" % number, timestamp_ms=NOW + number)
    (path / "kreplog.state").unlink()
    for index in path.glob("*index"):
        with open(index, "r+b") as file:
            file.truncate(10 << 20)

    def read() -> list[bytes | None]:
        with Log.open(path, read_only=True) as log:
            assert log.offset_for_timestamp(NOW + 300) == 300
            for index in path.glob("*index"):
                os.truncate(index, 0)
            assert log.offset_for_timestamp(NOW + 400) == 400
            return list(log.values(250))

    assert result_of(read) == [b"value-%d" % number for number in range(250, 500)]


def test_a_reader_takes_no_entries_of_bytes_it_has_not_looked_at_for_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a writer at work the index may be newer than the end that the reader knows; to make it again from the
    log would cost each reader a pass over the segment."""
    path, copy = tmp_path / NAME, tmp_path / "copy" / NAME
    with Log.open(path, CONFIG) as log:
        for number in range(2000):
            log.append(b"value", timestamp_ms=NOW + number)
        shutil.copytree(path, copy)
        for number in range(2000, 4000):
            log.append(b"value", timestamp_ms=NOW + number)
        for index in path.glob("*index"):
            shutil.copy(index, copy)
    with Log.open(copy, read_only=True) as log:
        assert [record.offset for record in log.read(start=1997)] == [1997, 1998, 1999]
        assert log.offset_for_timestamp(NOW + 1500) == 1500
    assert not caplog.records, caplog.text


def test_the_logs_of_a_data_directory_read_its_checkpoint_once(tmp_path: Path) -> None:
    """Else opening them takes a time that grows with the square of their number. Rewritten, it is read again."""
    path = tmp_path / "replication-offset-checkpoint"
    long_ago = 1_000_000_000
    for number in (1, 2):
        path.write_bytes(reference.offset_checkpoint([("t", 0, number)]))
        os.utime(path, ns=(long_ago + number, long_ago + number))
        read = offsets_by_partition(str(path), "t-0", False)
        assert read == {TopicPartition("t", 0): number}
        with (
            Log.open(tmp_path / "t-0", LogConfig(replicated=True)),
            Log.open(tmp_path / "t-1"),
            Log.open(tmp_path / "t-2"),
        ):
            assert offsets_by_partition(str(path), "t-0", False) is read
        path.unlink()


@pytest.mark.parametrize("left", [None, b"", b"0\n0\n"])
def test_epochs_that_a_loss_of_power_took_are_found_in_the_batches(folder: Path, left: bytes | None) -> None:
    """The name of a newer epochs file may be durable without its content, and the state be as old as the log."""
    path = folder / "power-0"
    with Log.open(path) as log:
        state = (path / "kreplog.state").read_bytes()
        log.assign_leader_epoch(1)
        log.append_many([b"value"] * 10)
        log.assign_leader_epoch(2)
        log.append(b"last")
    (path / "kreplog.state").write_bytes(state)
    (path / "leader-epoch-checkpoint").unlink()
    if left is not None:
        (path / "leader-epoch-checkpoint").write_bytes(left)
    with Log.open(path) as log:
        assert (log.log_end_offset, log.leader_epochs) == (11, [(1, 0), (2, 10)])


def test_indexes_and_log_damaged_together_kill_no_reader(folder: Path) -> None:
    """A look that rebuilds the indexes may end in damage of the log: an index entry that is gone then was used."""
    sound = make(folder / "sound" / NAME, batches=20, per_batch=3, config=replace(CONFIG, segment_bytes=900))
    target = folder / "damaged"

    def look(seed: int) -> None:
        rng = random.Random(seed)
        path = sound.copy(target)
        for file in sorted(path.glob("0*")):
            if rng.random() < 0.6:
                file.write_bytes(damaged(file, rng))
        config = LogConfig(index_interval_bytes=rng.choice([0, 4096]))
        ways: list[Callable[[Log], object]] = [
            lambda log: log.offset_for_timestamp(NOW + rng.randrange(40)),
            lambda log: log.segments,
            lambda log: list(log.read(rng.randrange(40))),
            lambda log: log.fetch(rng.randrange(40)),
            lambda log: log.offset_ranges(0, log.log_end_offset, 200),
            lambda log: log.verify(),
        ]
        for read_only in (True, False):
            try:
                with Log.open(path, config, read_only=read_only) as log:
                    for way in rng.sample(ways, len(ways)):
                        with contextlib.suppress(errors.KreplogError):
                            way(log)
            except errors.KreplogError:
                pass

    def damaged(file: Path, rng: random.Random) -> bytes:
        data = bytearray(file.read_bytes())
        if file.suffix == ".log":
            if data and rng.random() < 0.7:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.2 else data)
        positions = sorted(rng.sample([at for at, _ in sound.batches if at < 900], rng.randint(0, 4)))
        offsets = sorted(rng.sample(range(40), len(positions)))
        if file.suffix == ".index":
            return b"".join(struct.pack(">ii", *entry) for entry in zip(offsets, positions, strict=True))
        return b"".join(struct.pack(">qi", NOW + rng.randrange(40), entry) for entry in offsets)

    def all_of(first: int) -> None:
        logging.disable(logging.CRITICAL)
        for seed in range(first, first + 200):
            look(seed)

    for first in range(0, 1000, 200):
        result_of(partial(all_of, first))


def test_recovered_segments_have_whole_indexes(folder: Path) -> None:
    """What is checked again is indexed again, to the last entry: else each lookup would walk the segment."""
    config = replace(CONFIG, segment_bytes=900)
    sound = make(folder / "sound" / NAME, batches=40, per_batch=3, config=config)

    def indexes(path: Path) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in path.glob("*index")}

    expected = indexes(sound.path)
    assert len(expected) > 6 and all(expected.values())
    path = sound.copy(folder / "killed", killed=True)
    Log.open(path, config).close()
    assert indexes(path) == expected
    path.joinpath("kreplog.state").unlink()
    (path.parent / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    Log.open(path, config).close()
    assert indexes(path) == expected


def test_what_progress_raises_ends_the_opening(folder: Path) -> None:
    sound = make(folder / "sound" / NAME, batches=4, per_batch=1)
    path = sound.copy(folder / "killed", killed=True)

    def progress(_done: int, _size: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError) as raised:
        Log.open(path, progress=progress)
    assert raised.value.__traceback__ is not None, "which holds the log"
    with Log.open(path) as log:
        assert list(log.read()) == sound.records


@pytest.mark.parametrize("written", [8, 12, 16, 40, 57])
def test_a_header_that_was_not_written_whole_is_cut_short(folder: Path, written: int) -> None:
    """Zeros follow it, blocks allocated ahead: none of its fields that is zero is named as the reason."""
    sound = make(folder / "data" / NAME, 4, 1)
    copy = sound.copy(folder / "copy", killed=True)
    *_, (_, end, _, _) = sound.bounds()
    header = bytearray(producer_batch(1)[:written])
    struct.pack_into(">q", header, 0, 4)
    log_file = copy / LOG_FILE
    log_file.write_bytes(log_file.read_bytes()[:end] + bytes(header) + bytes(4096))
    with Log.open(copy, CONFIG) as log:
        assert log.log_end_offset == 4
        (cut,) = log.cuts
    assert (cut.position, cut.reason) == (end, "the batch is cut short")


def test_a_new_log_whose_old_checkpoint_cannot_be_removed_is_not_created(folder: Path) -> None:
    """Else the next start would take the entry of an earlier partition for that of this one."""
    path = folder / NAME
    checkpoint = folder / "cleaner-offset-checkpoint"
    checkpoint.mkdir()
    with pytest.raises(errors.StorageError, match="cleaner-offset-checkpoint"):
        Log.open(path)
    checkpoint.rmdir()
    checkpoint.write_bytes(reference.offset_checkpoint([("recovery", 0, 3)]))
    with Log.open(path):
        assert checkpoint.read_bytes() == reference.offset_checkpoint([])
