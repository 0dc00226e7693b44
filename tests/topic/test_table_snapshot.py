"""Snapshots of tables: what is loaded from them, and what is read again. Kills: tests/faults/test_table_calls.py."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kreplog import LogConfig, Topic, errors
from kreplog._native.crc32c import crc32c
from kreplog._native.key_table import KeyTable
from kreplog.topic import table_snapshot
from kreplog.topic.table_snapshot import read_snapshot
from tests.faults.forked import result_of
from tests.topic.compacting import remove_tombstones

COMPACTED = LogConfig(cleanup_policy="compact", segment_bytes=1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "prices"


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    with Topic.open(path, 2) as opened:
        yield opened


@pytest.fixture
def snapshot(topic: Topic, tmp_path: Path) -> Path:
    """Of ten records in each partition, of which two keys are left in each."""
    for number in range(20):
        topic.append(b"%d" % number, b"k%d" % (number % 4), partition=number % 2)
    found = tmp_path / "snapshot"
    with topic.table(snapshot=found) as table:
        table.save()
    return found


def newest(topic: Topic) -> dict[bytes, bytes]:
    return {record.key: record.value for record in topic.read() if record.value is not None}


def damage(topic: Topic, partition: int) -> None:
    """From now, whoever reads the partition from its start fails."""
    segment = topic.log(partition).path
    with (Path(segment) / ("0" * 20 + ".log")).open("r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff")


def test_a_tombstone_that_compaction_has_removed_since(path: Path, tmp_path: Path) -> None:
    """The last batch that was applied stays as it was: it does not show that the log was compacted."""
    found = tmp_path / "snapshot"
    with Topic.open(path, 1, config=replace(COMPACTED, delete_retention_ms=0)) as topic:
        topic.append(b"v", b"deleted")
        topic.append(b"v", b"stays")
        with topic.table(snapshot=found) as table:
            table.save()
        topic.append(None, b"deleted")
        remove_tombstones(topic)
        assert newest(topic) == {record.key: record.value for record in topic.read()}, "the tombstone is gone"
        with topic.table(snapshot=found) as table:
            assert dict(table.items()) == newest(topic)


def test_only_what_comes_after_it_is_read(topic: Topic, snapshot: Path) -> None:
    topic.append(b"new", b"k0", partition=0)
    topic.append(None, b"k1", partition=1)
    topic.add_partitions(3)
    topic.append(b"added", b"other", partition=2)
    expected = newest(topic) | {b"k2": b"18"}
    del expected[b"k1"]
    damage(topic, 0)
    damage(topic, 1)
    with topic.table(snapshot=snapshot) as table:
        assert dict(table.items()) == expected and len(table) == 4
        assert table.offsets == {0: 11, 1: 11, 2: 1}
        entry = table.entry(b"k2")
        assert entry is not None and (entry.partition, entry.offset, entry.value) == (0, 9, b"18")
        table.save()
    with topic.table(snapshot=snapshot) as table:
        assert dict(table.items()) == expected
    with pytest.raises(errors.CorruptBatchError):
        topic.table()


def test_a_partition_that_was_truncated_since_is_read_again(topic: Topic, snapshot: Path) -> None:
    topic.log(0).truncate_to(5)
    assert topic.table(snapshot=snapshot)[b"k2"] == b"6"
    for _ in range(5):  # up to where the snapshot has come
        topic.append(b"again", b"k2", partition=0)
    damage(topic, 1)
    table = topic.table(snapshot=snapshot)
    assert table[b"k2"] == b"again" and table[b"k1"] == b"17", "the other is as in the snapshot"


@pytest.mark.parametrize("start", [9, 10])
def test_records_deleted_since_are_gone(topic: Topic, snapshot: Path, start: int) -> None:
    topic.log(0).delete_records_before(start)
    table = topic.table(snapshot=snapshot)
    assert dict(table.items()) == newest(topic) and (b"k2" in table) == (start == 9)


def test_a_log_that_was_compacted_since_is_read_again(path: Path, tmp_path: Path) -> None:
    with Topic.open(path, 1, config=COMPACTED) as topic:
        table = topic.table(snapshot=tmp_path / "snapshot")
        for number in range(300):
            topic.append(b"%d" % number, b"k%d" % (number % 7))
            if number % 100 == 50:
                table.refresh()
                table.save()
        topic.log(0).compact(force=True)
        assert dict(topic.table(snapshot=tmp_path / "snapshot").items()) == newest(topic)


def test_a_snapshot_of_another_topic_is_not_used(
    topic: Topic, snapshot: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic.close()
    shutil.rmtree(path.parent)
    with Topic.open(path, 2) as other:
        for number in range(12):
            other.append(b"%d" % number, b"other", partition=number % 2)
        assert dict(other.table(snapshot=snapshot).items()) == newest(other)
    assert "it is of the topic id" in caplog.text


def test_every_damaged_byte_is_noticed(topic: Topic, snapshot: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At every length and with every byte changed the table is that of the log."""
    sound = snapshot.read_bytes()
    topic_id = sound[8:30].decode()
    for position in range(len(sound)):
        for data in (sound[:position], sound[:position] + bytes([sound[position] ^ 0x40]) + sound[position + 1 :]):
            snapshot.write_bytes(data)
            native = KeyTable()
            with pytest.raises(errors.CorruptCheckpointError):
                read_snapshot(str(snapshot), topic_id, native)
            assert len(native) == 0
    expected = newest(topic)
    assert dict(topic.table(snapshot=snapshot).items()) == expected
    assert "is no snapshot of this topic, its checksum does not match: the topic is read again" in caplog.text


def test_bytes_with_a_checksum_that_holds_are_not_believed(topic: Topic, snapshot: Path) -> None:
    """Lengths and counts are checked; whatever else is in it, no byte outside of the file is read."""
    sound = snapshot.read_bytes()
    topic_id = sound[8:30].decode()
    draw = random.Random(3)
    refused = 0
    for _ in range(2000):
        data = bytearray(sound[:-4])
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.choice([0, 1, 0x7F, 0x80, 0xFF])
        if draw.random() < 0.3:
            del data[draw.randrange(len(data)) :]
        snapshot.write_bytes(data + struct.pack(">I", crc32c(data)))
        native = KeyTable()
        try:
            read_snapshot(str(snapshot), topic_id, native)
        except errors.CorruptCheckpointError:
            refused += 1
            assert len(native) == native.nbytes == 0
        else:
            (entries,) = struct.unpack_from(">Q", data, 34)
            assert entries == 0 or 0 < native.entries <= entries
    assert refused > 500


def test_what_cannot_be_saved(topic: Topic, snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.UsageError, match="no snapshot"):
        topic.table().save()
    with pytest.raises(errors.UsageError, match="leave out `at`"):
        topic.table(at={0: 1}, snapshot=snapshot)
    number: Any = 5
    with pytest.raises(errors.ArgumentTypeError, match="snapshot is a str"):
        topic.table(snapshot=number)
    nowhere = tmp_path / "no folder" / "snapshot"
    with pytest.raises(errors.StorageError, match="no folder") as refused:
        topic.table(snapshot=nowhere).save()
    assert refused.value.path == f"{nowhere}.part"
    before = snapshot.read_bytes()
    pieces = table_snapshot._pieces

    def save_meanwhile() -> str:
        try:
            with Topic.open(topic.path, read_only=True) as reader, reader.table(snapshot=snapshot) as table:
                table.save()
        except errors.StorageError as error:
            return str(error)
        return ""

    def interrupted(*arguments: Any) -> Iterator[bytes]:
        assert "another process writes this snapshot" in result_of(save_meanwhile)
        yield from pieces(*arguments)

    with topic.table(snapshot=snapshot) as table, monkeypatch.context() as patch:
        patch.setattr(table_snapshot, "_pieces", interrupted)
        table.save()
    assert snapshot.read_bytes()[:64] == before[:64] and result_of(save_meanwhile) == ""


def test_many_entries(topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, of which an entry may be larger than one."""
    monkeypatch.setattr(table_snapshot, "PIECE", 1000)
    draw = random.Random(8)
    values = [draw.randbytes(draw.choice([0, 10, 3000])) for _ in range(2000)]
    topic.append_many(values, [b"%d" % number for number in range(2000)])
    topic.table(snapshot=tmp_path / "snapshot").save()
    with topic.table(snapshot=tmp_path / "snapshot") as table:
        topic.table(snapshot=tmp_path / "snapshot").save()
        assert dict(table.items()) == {b"%d" % number: value for number, value in enumerate(values)}


def test_a_child_does_not_have_the_lock(topic: Topic, snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a snapshot that failed, with a fork meanwhile."""
    children = []

    def failing(_file: int) -> None:
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
        children.append(child)
        raise OSError(errno.ENOSPC, "full")

    with topic.table(snapshot=snapshot) as table:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(errors.DiskFullError):
                table.save()
        try:
            table.save()
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
