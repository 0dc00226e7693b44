"""Compaction of transactions: committed records as any others, aborted ones go."""

from __future__ import annotations

import gzip
import random
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native.state import STATE_NAME
from kreplog.errors import CorruptCheckpointError
from tests.reference import CONTROL, HEADER, Batch, Rec, encode_around, encode_records, split

DAY = 86_400_000
TRANSACTIONAL, GZIP = 16, 1
CONFIG = LogConfig(
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0,
    replicated=True,
    delete_retention_ms=DAY,
    index_interval_bytes=0,
)


class Writer:
    """Appends batches, and knows the newest committed value of each key."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._newest: dict[bytes | None, Rec] = {}
        self.aborted: set[int] = set()
        self._open: dict[int, list[Rec]] = {}
        self._sequences: dict[int, int] = {}

    def write(self, rows: list[tuple[bytes, bytes | None]], producer: int = -1, attributes: int = 0) -> None:
        base = self.log.log_end_offset
        records = [Rec(base + number, 5, key, value) for number, (key, value) in enumerate(rows)]
        if producer < 0:
            self._take(records)
            self._append(Batch(tuple(records), base, 0, attributes))
            return
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + len(records)
        self._open.setdefault(producer, []).extend(records)
        self._append(Batch(tuple(records), base, 0, TRANSACTIONAL | attributes, 5, 5, producer, 0, sequence))

    def end(self, producer: int, committed: bool) -> None:
        marker = (Rec(self.log.log_end_offset, 5, b"\0\0\0" + bytes([committed]), bytes(6)),)
        self._append(Batch(marker, marker[0].offset, 0, TRANSACTIONAL | CONTROL, 5, 5, producer, 0))
        records = self._open.pop(producer)
        if not committed:
            self.aborted.update(record.offset for record in records)
            return
        self._take(records)

    @property
    def newest(self) -> dict[bytes | None, bytes]:
        return {key: record.value for key, record in self._newest.items() if record.value is not None}

    def _take(self, records: list[Rec]) -> None:
        for record in records:
            if record.key not in self._newest or self._newest[record.key].offset < record.offset:
                self._newest[record.key] = record

    def _append(self, batch: Batch) -> None:
        records = encode_records(batch)
        self.log.append_as_follower(
            encode_around(batch, gzip.compress(records) if batch.attributes & GZIP else records)
        )
        self.log.advance_high_watermark(self.log.log_end_offset)


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.read()]


def stable(log: Log) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in log.read(isolation="read_committed")}


def test_committed_records_are_compacted_as_any_others(tmp_path: Path) -> None:
    with Log.open(tmp_path / "topic-0", CONFIG) as log:
        writer = Writer(log)
        writer.write([(b"a", b"old")])
        writer.write([(b"a", b"new"), (b"b", b"1")], 7)
        writer.end(7, True)
        writer.write([(b"b", None), (b"c", b"1")], 7)
        writer.end(7, True)
        log.roll()
        report = log.compact(1000)
        assert report is not None and offsets(log) == [1, 4, 5]
        log.compact(1001 + DAY, force=True)
        assert offsets(log) == [1, 5] and stable(log) == {b"a": b"new", b"c": b"1"}


def test_markers_are_durable_before_what_their_transactions_supersede_goes(tmp_path: Path) -> None:
    """They may stand beyond what is compacted, and beyond what is durable."""
    path = tmp_path / "topic-0"
    with Log.open(path, CONFIG) as log:
        writer = Writer(log)
        writer.write([(b"k", b"old")])
        log.roll()
        writer.write([(b"k", b"new")], 7)
        log.roll()
        log.flush()
        writer.end(7, True)
        log.compact(1000, force=True)
        assert log.recovery_point == log.log_end_offset
        shutil.copytree(path, tmp_path / "lost-0")
        for segment in log.segments:
            if segment.base_offset >= log.recovery_point:
                (tmp_path / "lost-0" / f"{segment.base_offset:020}.log").write_bytes(b"")
    with Log.open(tmp_path / "lost-0", CONFIG) as log:
        log.advance_high_watermark(log.log_end_offset)
        assert stable(log) == {b"k": b"new"}


@pytest.mark.parametrize(
    "damage",
    [
        {"first": 0},
        {"last": 9},
        {"last": 6},
        {"producer": 8, "first": 0},
        {"producer": 8, "first": 0, "last": 9},
    ],
)
def test_a_damaged_transaction_index_deletes_nothing(tmp_path: Path, damage: dict[str, int]) -> None:
    path = tmp_path / "topic-0"
    with Log.open(path, CONFIG) as log:
        writer = Writer(log)
        for producer, committed in ((7, True), (8, True), (7, False), (8, True), (7, True)):
            writer.write([(b"%d" % log.log_end_offset, b"value")], producer)
            writer.end(producer, committed)
        log.roll()
        newest = stable(log)
    (index,) = path.glob("*.txnindex")
    entry = {"producer": 7, "first": 4, "last": 5}
    assert struct.unpack(">hqqqq", index.read_bytes())[1:4] == tuple(entry.values())
    index.write_bytes(struct.pack(">hqqqq", 0, *(entry | damage).values(), 10))
    with Log.open(path, CONFIG) as log:
        with pytest.raises(CorruptCheckpointError, match=r"topic-0: the transaction indexes .* delete .*nothing was"):
            log.compact(1000, force=True)
        assert len(offsets(log)) == 5
    index.unlink()
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()
    with Log.open(path, CONFIG) as log:
        log.compact(1000, force=True)
        assert stable(log) == newest


@pytest.mark.parametrize("attributes", [0, GZIP])
def test_aborted_records_go_and_take_no_ones_place(tmp_path: Path, attributes: int) -> None:
    with Log.open(tmp_path / "topic-0", CONFIG) as log:
        writer = Writer(log)
        writer.write([(b"a", b"old")])
        writer.write([(b"a", b"aborted"), (b"b", b"aborted")], 7, attributes)
        writer.write([(b"a", b"committed"), (b"d", b"1")], 8, attributes)
        writer.end(7, False)
        writer.write([(b"b", b"1")])
        writer.write([(b"c", b"aborted")], 7, attributes)
        writer.end(7, False)
        writer.end(8, True)
        log.roll()
        log.compact(1000)
        assert offsets(log) == [3, 4, 6]
        assert stable(log) == {b"a": b"committed", b"d": b"1", b"b": b"1"}
        data = (tmp_path / "topic-0" / ("0" * 20 + ".log")).read_bytes()
        headers = [HEADER.unpack_from(batch) for _, batch in split(data)]
        assert [(header[9], header[11]) for header in headers if header[12] == 0] == [(7, 2)], "its last sequence"
        assert [header[0] for header in headers if header[5] & CONTROL] == [5, 8, 9]
        writer.write([(b"e", b"1")], 7)


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_transactions(tmp_path: Path, seed: int) -> None:
    """Beside records without one, over several compactions, with memory for some keys only, and recovered after a loss
    of the state."""
    rng = random.Random(seed)
    keys = rng.choice([8, 100])
    path = tmp_path / "topic-0"
    config = replace(CONFIG, dedupe_buffer_size=rng.choice([1024, 1 << 20]))
    with Log.open(path, config) as log:
        writer = Writer(log)
        begun: set[int] = set()
        for _ in range(rng.randrange(40, 160)):
            producer = rng.choice([-1, 7, 8, 9])
            action = rng.random()
            if producer in begun and action < 0.4:
                begun.remove(producer)
                writer.end(producer, rng.random() < 0.5)
            elif action < 0.9:
                if producer >= 0:
                    begun.add(producer)
                rows = [
                    (b"%d" % rng.randrange(keys), rng.choice([None, b"%d" % rng.randrange(1000)]))
                    for _ in range(rng.randrange(1, 5))
                ]
                writer.write(rows, producer, rng.choice([0, GZIP]))
            else:
                log.roll()
                if rng.random() < 0.5:
                    log.compact(rng.choice([1000, 1001 + 2 * DAY]), force=True)
        for producer in sorted(begun):
            writer.end(producer, rng.random() < 0.5)
        log.roll()
        expected = writer.newest
        for now_ms in (1000, 1000, 1001 + 3 * DAY, 1001 + 6 * DAY):
            while (report := log.compact(now_ms, force=True)) is not None and report.end_offset < log.log_end_offset:
                pass
            found = stable(log)
            assert {key: value for key, value in found.items() if value is not None} == expected
            assert not writer.aborted & set(offsets(log))
        assert len(offsets(log)) == len(expected), "one record for each key"
        assert not log.verify().damages
        end = log.log_end_offset
    (path / STATE_NAME).unlink()
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()
    (tmp_path / "replication-offset-checkpoint").write_text(f"0\n1\ntopic 0 {end}\n")
    with Log.open(path, config) as log:
        log.advance_high_watermark(end)
        assert stable(log) == expected
