"""Kafka's dump-log tool, and the classes its broker reads checkpoints with, on files that kreplog wrote.

The tool checks every CRC, every record and every index entry against the log; what it complains of fails `parse`. What
it shows must be what kreplog says, and kreplog must say what was appended.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from kreplog import Log, LogConfig, Record
from kreplog._native import batch
from kreplog._native.compression import CODECS
from tests.interop.dump import Dumped, DumpedBatch, DumpedProducer, DumpedRecord, parse
from tests.interop.jvm import Kafka
from tests.reference import batch_size

pytestmark = pytest.mark.interop

SMALL = LogConfig(segment_bytes=6000, index_interval_bytes=300)
START_MS = 1_700_000_000_000
CHECKPOINTS = Path(__file__).with_name("Checkpoints.java")
CODEC_NAMES = {number: name for name, number in CODECS.items()}


def record(number: int, offset: int | None = None) -> Record:
    """Null keys, null values, empty ones, and no, one or two headers, by turns; times go up and down."""
    key = None if number % 3 == 0 else b"" if number % 11 == 0 else b"key-%d" % number
    value = None if number % 7 == 0 else b"" if number % 13 == 0 else b"value-%d " % number * (number % 5 + 1)
    headers = (("a", b"1"), ("b", None))[: number % 3]
    return Record(number if offset is None else offset, START_MS + number * 10 - number % 4 * 25, key, value, headers)


def append(log: Log, numbers: Sequence[int]) -> list[Record]:
    """One batch each."""
    made = [record(number, log.log_end_offset + index) for index, number in enumerate(numbers)]
    for made_record in made:
        assert (
            log.append(made_record.value, made_record.key, made_record.timestamp_ms, made_record.headers)
            == made_record.offset
        )
    return made


def append_many(log: Log, numbers: Sequence[int]) -> list[Record]:
    """Batches of several, without headers."""
    made = [record(number, log.log_end_offset + index) for index, number in enumerate(numbers)]
    log.append_many(
        [made_record.value for made_record in made],
        [made_record.key for made_record in made],
        [made_record.timestamp_ms for made_record in made],
    )
    return [
        Record(made_record.offset, made_record.timestamp_ms, made_record.key, made_record.value) for made_record in made
    ]


def one_by_one(path: Path) -> list[Record]:
    with Log.open(path, SMALL) as log:
        return append(log, range(300))


def without_index_entries(path: Path) -> list[Record]:
    with Log.open(path) as log:
        return append(log, range(5))


def empty(path: Path) -> list[Record]:
    Log.open(path).close()
    return []


def compressed(codec: str) -> Callable[[Path], list[Record]]:
    def build(path: Path) -> list[Record]:
        made = []
        with Log.open(path, LogConfig(segment_bytes=6000, index_interval_bytes=300, compression_type=codec)) as log:
            for start in range(0, 2000, 40):
                made += append_many(log, range(start, start + 40))
            made += append(log, range(2000, 2020))
            with log.appender(batch_bytes=1024) as out:
                for number in range(2020, 2200):
                    made_record = record(number, log.log_end_offset if number == 2020 else made[-1].offset + 1)
                    out.append(made_record.value, made_record.key, made_record.timestamp_ms)
                    made.append(
                        Record(made_record.offset, made_record.timestamp_ms, made_record.key, made_record.value)
                    )
        return made

    return build


def truncated(path: Path) -> list[Record]:
    """Within a segment, to an earlier segment, then written on."""
    with Log.open(path, SMALL) as log:
        made = append(log, range(300))
        assert log.truncate_to(290) == 290
        made = made[:290] + append(log, range(400, 420))
        assert len(log.segments) > 3
        cut = log.segments[1].base_offset + 7
        assert log.truncate_to(cut) == cut
        return made[:cut] + append(log, range(500, 640))


def log_start_moved(path: Path) -> list[Record]:
    with Log.open(path, SMALL) as log:
        made = append(log, range(300))
        log.delete_records_before(150)
        return made[150:]


def far_offsets(path: Path) -> list[Record]:
    with Log.open(path, SMALL) as log:
        log.truncate_fully_and_start_at(5_000_000_000)
        return append(log, range(200))


def leader_epochs(path: Path) -> list[Record]:
    with Log.open(path, SMALL) as log:
        made = append(log, range(50))
        for epoch in (3, 4, 9):
            log.assign_leader_epoch(epoch)
            made += append(log, range(epoch * 100, epoch * 100 + 30))
        return made


def crashed(path: Path) -> list[Record]:
    """The writer is killed in the middle of what it does; what comes after it recovers and goes on."""
    made = [record(number) for number in range(250)]
    child = os.fork()
    if child == 0:
        try:
            append(Log.open(path, SMALL), range(250))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    with Log.open(path, read_only=True) as log:
        last = log.segments[-1]
    with open(last.path, "r+b") as file:  # a torn write, as power loss leaves it
        file.seek(last.size)
        file.write(os.urandom(200))
    with Log.open(path, SMALL) as log:
        return made + append(log, range(250, 300))


def idempotent(path: Path) -> list[Record]:
    """Three producers, one of which begins a second epoch; some batches come twice."""
    made: list[Record] = []
    sequences = {1000: 0, 1001: 0, 2**40: 0}
    config = LogConfig(segment_bytes=6000, index_interval_bytes=300, producer_id_expiration_ms=2**62)
    with Log.open(path, config) as log:
        for turn in range(60):
            producer = list(sequences)[turn % 3]
            epoch = 1 if producer == 1001 and turn > 30 else 0
            if producer == 1001 and turn == 31:
                sequences[producer] = 0
            new = [record(turn * 4 + index, log.log_end_offset + index) for index in range(4)]
            data = batch.build(
                [sent.value for sent in new],
                [sent.key for sent in new],
                [sent.timestamp_ms for sent in new],
                [sent.headers for sent in new],
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=sequences[producer],
            )
            assert not log.append_batches(data).duplicate
            assert turn % 5 or log.append_batches(data).duplicate
            sequences[producer] += 4
            made += new
    return made


def log_append_time(path: Path) -> list[Record]:
    config = LogConfig(segment_bytes=6000, index_interval_bytes=300, message_timestamp_type="LogAppendTime")
    with Log.open(path, config) as log:
        made = append(log, range(200))
        times = [sent.timestamp_ms for sent in log.read()]
    assert min(times) > START_MS
    return [
        Record(sent.offset, time, sent.key, sent.value, sent.headers) for sent, time in zip(made, times, strict=True)
    ]


def following(path: Path) -> list[Record]:
    """A follower's copy, epochs and offsets as the leader gave them."""
    leader = path.parent / "leader-0"
    made = leader_epochs(leader)
    with Log.open(leader, read_only=True) as source, Log.open(path, SMALL) as log:
        offset = 0
        while offset < source.log_end_offset:
            fetched = source.fetch(offset, 2000)
            log.append_as_follower(fetched.data)
            offset = fetched.next_offset
    return made


CASES: dict[str, Callable[[Path], list[Record]]] = {
    "one-by-one": one_by_one,
    "no-index-entries": without_index_entries,
    "empty": empty,
    "truncated": truncated,
    "log-start-moved": log_start_moved,
    "far-offsets": far_offsets,
    "leader-epochs": leader_epochs,
    "crashed": crashed,
    "idempotent": idempotent,
    "log-append-time": log_append_time,
    "following": following,
    **{codec: compressed(codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")},
}
ROLLED = CASES.keys() - {"no-index-entries", "empty"}


@dataclass(frozen=True)
class Written:
    """What the cases wrote, and all that Kafka's programs say of it."""

    data: Path
    appended: dict[str, list[Record]]
    dumped: dict[Path, Dumped]
    checked: dict[Path, Dumped]
    checkpoints: set[str]

    def files(self, case: str, suffix: str) -> list[Path]:
        return sorted(self.data.joinpath(f"{case}-0").glob(f"*.{suffix}"))


@pytest.fixture(scope="module")
def written(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """One run of each program over the files of all cases: starting them costs more than what they do."""
    data = tmp_path_factory.mktemp("written")
    appended = {case: build(data / f"{case}-0") for case, build in CASES.items()}
    places = [data / f"{case}-0" for case in CASES]
    logs = ",".join(str(file) for place in places for file in (*place.glob("*.log"), *place.glob("*.snapshot")))
    indexes = ",".join(str(file) for place in places for file in place.glob("*index"))
    dumped = parse(kafka.dump("--deep-iteration", "--print-data-log", "--files", f"{logs},{indexes}"))
    parse(kafka.dump("--verify-index-only", "--files", indexes))
    checked = parse(kafka.dump("--index-sanity-check", "--files", indexes))
    checkpoints = set(kafka.run(CHECKPOINTS, data, *places).splitlines())
    return Written(data, appended, dumped, checked, checkpoints)


class Batch(NamedTuple):
    position: int
    info: batch.BatchInfo
    crc: int


def batches_of(segment: Path) -> Iterator[Batch]:
    """As kreplog finds them in one segment, below the log start as well."""
    data = segment.read_bytes()
    position = 0
    while position < len(data):
        info = batch.validate(data[position : position + batch_size(data, position)], deep=True)
        yield Batch(position, info, int.from_bytes(data[position + 17 : position + 21], "big"))
        position += info.size


@pytest.mark.parametrize("case", CASES)
def test_every_batch_is_dumped_as_kreplog_says(written: Written, case: str) -> None:
    segments = written.files(case, "log")
    assert (len(segments) > 2) == (case in ROLLED)
    with Log.open(written.data / f"{case}-0", read_only=True) as log:
        assert [Path(segment.path) for segment in log.segments] == segments
        for segment in segments:
            expected = [
                DumpedBatch(
                    info.base_offset,
                    info.last_offset,
                    info.record_count,
                    info.base_sequence,
                    info.producer_id,
                    info.producer_epoch,
                    info.leader_epoch,
                    info.is_control,
                    position,
                    info.is_log_append_time,
                    info.max_timestamp,
                    info.size,
                    CODEC_NAMES[info.codec],
                    crc,
                )
                for position, info, crc in batches_of(segment)
            ]
            assert written.dumped[segment].batches == expected


@pytest.mark.parametrize("case", CASES)
def test_every_record_is_dumped_as_it_was_appended(written: Written, case: str) -> None:
    with Log.open(written.data / f"{case}-0", read_only=True) as log:
        assert list(log.read()) == written.appended[case]
        start = log.log_start_offset
    dumped = [
        dumped_record for segment in written.files(case, "log") for dumped_record in written.dumped[segment].records
    ]
    assert [dumped_record for dumped_record in dumped if dumped_record.offset >= start] == [
        DumpedRecord(
            appended.offset,
            appended.timestamp_ms,
            appended.key,
            appended.value,
            tuple(name for name, _ in appended.headers),
        )
        for appended in written.appended[case]
    ]


@pytest.mark.parametrize("case", CASES)
def test_indexes_are_sane_and_point_at_batches(written: Written, case: str) -> None:
    for segment in written.files(case, "log"):
        batches = {batch.last_offset: batch for batch in written.dumped[segment].batches}
        offsets = written.dumped[segment.with_suffix(".index")].entries
        times = written.dumped[segment.with_suffix(".timeindex")].entries
        assert written.checked[segment.with_suffix(".index")].sane or not offsets
        assert written.checked[segment.with_suffix(".timeindex")].sane or not times
        assert all(batches[offset].position == position for offset, position in offsets)
        assert all(batches[offset].timestamp == timestamp for timestamp, offset in times)
        assert times == sorted(set(times))
        if batches:
            assert times[-1][0] == max(batch.timestamp for batch in batches.values())
        if case in ROLLED and segment != written.files(case, "log")[-1]:
            assert len(offsets) > 1 and (len(times) > 1 or case == "log-append-time")


def test_producer_snapshots(written: Written) -> None:
    """One at each roll and one at the end: the last batch of every producer below its offset, oldest to newest."""
    batches = [
        dumped_batch
        for segment in written.files("idempotent", "log")
        for dumped_batch in written.dumped[segment].batches
    ]
    snapshots = written.files("idempotent", "snapshot")
    rolls = [int(segment.stem) for segment in written.files("idempotent", "log")][1:]
    assert [int(path.stem) for path in snapshots] == [*rolls, batches[-1].last_offset + 1]
    for path in snapshots:
        newest: dict[int, DumpedBatch] = {}
        for dumped_batch in batches:
            if dumped_batch.last_offset < int(path.stem):
                newest[dumped_batch.producer_id] = dumped_batch
        producers = {dumped_batch.producer_id: dumped_batch for dumped_batch in written.dumped[path].producers}
        assert producers == {
            dumped_batch.producer_id: DumpedProducer(
                dumped_batch.producer_id,
                dumped_batch.producer_epoch,
                dumped_batch.base_sequence,
                dumped_batch.base_sequence + dumped_batch.count - 1,
                dumped_batch.last_offset,
                dumped_batch.timestamp,
            )
            for dumped_batch in newest.values()
        }


@pytest.mark.parametrize("case", CASES)
def test_checkpoints_are_read_by_kafkas_own_classes(written: Written, case: str) -> None:
    lines = {line for line in written.checkpoints if line.split()[1] == f"{case}-0"}
    with Log.open(written.data / f"{case}-0", read_only=True) as log:
        moved = log.log_start_offset > log.segments[0].base_offset
        topic_id = next(line.split()[2] for line in lines if line.startswith("topic "))
        text = written.data.joinpath(f"{case}-0", "partition.metadata").read_text()
        assert re.search(r"topic_id: (\S+)", text)[1] == topic_id  # type: ignore[index]
        assert lines == {
            f"topic {case}-0 {topic_id}",
            f"replication {case}-0 {log.high_watermark}",
            f"recovery-point {case}-0 {log.log_end_offset}",
            *(f"epoch {case}-0 {epoch} {start}" for epoch, start in log.leader_epochs),
            *([f"log-start {case}-0 {log.log_start_offset}"] if moved else []),
        }
        if case in ("leader-epochs", "following"):
            assert [epoch for epoch, _ in log.leader_epochs] == [0, 3, 4, 9]
        assert moved == (case == "log-start-moved")
