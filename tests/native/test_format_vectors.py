"""Kafka's format, byte for byte: kreplog against the independent writer and reader of tests/reference.py, both ways."""

from __future__ import annotations

import importlib.util
import re
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog import Log, LogConfig, TopicPartition, errors
from kreplog._native import batch, checkpoint, compression, producers
from kreplog.types import EpochEndOffset
from tests import reference
from tests.fuzz.records import batches, header_lists, payloads, records, timestamps
from tests.reference import Batch, Rec

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
PACKAGES = {"gzip": "zlib", "snappy": "cramjam", "lz4": "lz4", "zstd": "zstandard"}
NOW = 1_700_000_000_000

# Two records at offset 5 of leader epoch 9: key "k", value "hi", header ("h", null) at time 1000; then null key, null
# value, no headers at time 999 (delta -1).
BY_HAND = bytes.fromhex(
    "0000000000000005"  # base offset 5
    "00000045"  # length: 69 bytes follow
    "00000009"  # leader epoch 9
    "02"  # magic
    "64186a78"  # CRC-32C of all that follows
    "0000"  # attributes
    "00000001"  # last offset delta 1
    "00000000000003e8"  # base timestamp 1000
    "00000000000003e8"  # max timestamp 1000
    "0000000000001234"  # producer id
    "0007"  # producer epoch
    "00000064"  # base sequence 100
    "00000002"  # two records
    "18 00 00 00 02 6b 04 6869 02 02 68 01"  # length 12, attributes, deltas 0 and 0, key, value, one header
    "0c 00 01 02 01 01 00"  # length 6, attributes, deltas -1 and 1, null key, null value, no headers
)


def build(found: Batch, compression: str = "none") -> bytes:
    """`found` as kreplog's builder writes it."""
    return batch.build(
        [record.value for record in found.records],
        [record.key for record in found.records],
        [record.timestamp for record in found.records],
        [record.headers for record in found.records],
        base_offset=found.base_offset,
        leader_epoch=found.leader_epoch,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        base_sequence=found.base_sequence,
        compression=compression,
    )


def as_reference(decoded: list[batch.Record]) -> tuple[Rec, ...]:
    return tuple(Rec(r.offset, r.timestamp_ms, r.key, r.value, tuple(r.headers)) for r in decoded)


def test_written_by_hand() -> None:
    rows = (Rec(5, 1000, b"k", b"hi", (("h", None),)), Rec(6, 999, None, None))
    found = Batch(rows, 5, 9, producer_id=0x1234, producer_epoch=7, base_sequence=100)
    assert reference.seal(BY_HAND) == BY_HAND == reference.encode(found) == build(found)
    assert as_reference(batch.decode(BY_HAND)) == rows


@settings(max_examples=150)
@given(batches())
def test_build_and_decode(found: Batch) -> None:
    data = reference.encode(found)
    if found.attributes == 0:
        assert build(found) == data
    if found.attributes & reference.CONTROL:
        assert batch.decode(data) == [], "control batches are read past"
    else:
        assert as_reference(batch.decode(data)) == found.records
        assert batch.decode_values(data) == [record.value for record in found.records]
    info = batch.validate(data, deep=True)
    assert (info.base_offset, info.last_offset, info.size) == (found.base_offset, found.last_offset, len(data))
    assert batch.end_of(data) == EpochEndOffset(found.leader_epoch, found.last_offset + 1)
    assert (info.leader_epoch, info.attributes, info.record_count) == (
        found.leader_epoch,
        found.attributes,
        len(found.records),
    )
    assert (info.base_timestamp, info.max_timestamp) == (found.base_timestamp, found.max_timestamp)
    assert (info.producer_id, info.producer_epoch, info.base_sequence) == (
        found.producer_id,
        found.producer_epoch,
        found.base_sequence,
    )


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=25)
@given(rows=records())
def test_compressed(codec: str, rows: tuple[Rec, ...]) -> None:
    plain = Batch(rows)
    if importlib.util.find_spec(PACKAGES[codec]) is None:
        with pytest.raises(errors.UnsupportedCompressionError, match=rf"kreplog\[{codec}\]"):
            build(plain, codec)
        return
    data = build(plain, codec)
    payload = compression.decompress(CODECS[codec], data[reference.HEADER.size :], 1 << 20)
    assert payload == reference.encode_records(plain)
    found = reference.decode(data, payload)
    assert found.records == rows
    assert found.attributes == CODECS[codec]
    assert as_reference(batch.decode(data)) == rows


def test_lz4_payload_is_one_frame_as_kafka_writes_it() -> None:
    """Version 1, independent blocks, no content size or checksums: Kafka's Lz4BlockOutputStream, FLG 0x60."""
    data = build(Batch((Rec(0, NOW, None, b"x" * 4000),)), "lz4")
    magic, flags, block = struct.unpack_from("<IBB", data, reference.HEADER.size)
    assert magic == 0x184D2204
    assert flags >> 6 == 1
    assert flags & 0b101 == 0, "no dictionary, no content checksum"
    assert flags & 0b100000, "blocks are independent"
    assert block >> 4 in (4, 5, 6, 7)


def test_foreign_gzip_is_read() -> None:
    plain = Batch((Rec(0, NOW, b"key", b"value" * 50), Rec(1, NOW, None, b"")), attributes=1)
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(reference.encode_records(plain)) + packer.flush()
    assert as_reference(batch.decode(reference.encode_around(plain, packed))) == plain.records


@settings(max_examples=40)
@given(value=payloads, key=payloads, stamp=timestamps.filter(lambda stamp: stamp >= 0), headers=header_lists)
def test_append_writes_the_reference_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    value: bytes | None,
    key: bytes | None,
    stamp: int,
    headers: tuple[tuple[str, bytes | None], ...],
) -> None:
    path = tmp_path_factory.mktemp("append") / "vectors-0"
    with Log.open(path) as log:
        log.append(value, key, stamp, headers)
        log.append_many([value, b"2"], [key, None], [stamp, stamp])
    first = reference.encode(Batch((Rec(0, stamp, key, value, headers),)))
    second = reference.encode(Batch((Rec(1, stamp, key, value), Rec(2, stamp, None, b"2")), 1))
    assert log_bytes(path) == first + second


def log_bytes(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))


@settings(max_examples=40)
@given(st.data())
def test_follower_keeps_every_byte_and_leader_assigns_offset_and_epoch(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A follower's file is the leader's; a leader changes base offset and leader epoch alone, which no CRC covers."""
    base, expected, given_to_leader, epoch = 0, b"", b"", 0
    for _ in range(data.draw(st.integers(1, 4))):
        found = data.draw(batches(base))
        epoch = max(epoch, found.leader_epoch % 1000)
        found = Batch(found.records, base, epoch, found.attributes & ~8, producer_id=-1)
        expected += reference.encode(found)
        moved = tuple(Rec(r.offset - base, r.timestamp, r.key, r.value, r.headers) for r in found.records)
        if not found.attributes & reference.CONTROL:
            given_to_leader += reference.encode(Batch(moved, 0, -1))
        base = found.last_offset + 1
    folder = tmp_path_factory.mktemp("follower")
    with Log.open(folder / "vectors-0", LogConfig(replicated=True)) as follower:
        info = follower.append_as_follower(expected)
        assert (info.first_offset, info.last_offset) == (0, base - 1)
    assert log_bytes(folder / "vectors-0") == expected
    if given_to_leader:
        with Log.open(folder / "vectors-1") as leader:
            leader.assign_leader_epoch(77)
            leader.append_batches(given_to_leader)
        at = 0
        for (_, was), (_, now) in zip(
            reference.split(given_to_leader), reference.split(log_bytes(folder / "vectors-1")), strict=True
        ):
            assert struct.unpack_from(">qiib", now) == (at, len(was) - 12, 77, 2)
            assert now[reference.CRC_AT :] == was[reference.CRC_AT :]
            at = reference.decode(now).last_offset + 1


@pytest.mark.parametrize("interval", [0, 300, 4096])
def test_index_files(tmp_path: Path, interval: int) -> None:
    path = tmp_path / "vectors-0"
    config = LogConfig(index_interval_bytes=interval, segment_bytes=20_000)
    with Log.open(path, config) as log:
        for number in range(700):
            log.append(b"v" * (number % 90), timestamp_ms=NOW + (number * 37) % 1000)
    files = sorted(path.glob("*.log"))
    assert len(files) > 2
    for file in files:
        offsets, times = reference.indexes(file.read_bytes(), int(file.stem), interval)
        assert file.with_suffix(".index").read_bytes() == offsets, file
        assert file.with_suffix(".timeindex").read_bytes() == times, file


def test_log_directory_names(tmp_path: Path) -> None:
    """File names are 20 digits, and only Kafka's files and kreplog's own state lie beside them."""
    path = tmp_path / "vectors-0"
    with Log.open(path, LogConfig(segment_bytes=500)) as log:
        for _ in range(30):
            log.append(b"v" * 100)
    allowed = re.compile(
        r"\d{20}\.(log|index|timeindex|snapshot)|leader-epoch-checkpoint|partition\.metadata|kreplog\.\w+|\.lock"
    )
    names = [file.name for file in path.iterdir()]
    assert all(allowed.fullmatch(name) for name in names), names


def test_partition_metadata(tmp_path: Path) -> None:
    """`version: 0`, then the topic id as 22 characters of URL-safe base64, no line end: read, and left as it is."""
    path = tmp_path / "vectors-0"
    path.mkdir()
    text = "version: 0\ntopic_id: AAAAAAAAQACAAAAAAAAAAQ"
    (path / "partition.metadata").write_text(text)
    with Log.open(path) as log:
        log.append(b"x")
        assert str(log.topic_id) == "00000000-0000-4000-8000-000000000001"
    assert (path / "partition.metadata").read_text() == text


def test_offset_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    written = checkpoint.OffsetCheckpoint(str(path))
    written.write({TopicPartition("flights", 0): 12, TopicPartition("a.b_c-d", 10): 2**63 - 1})
    expected = [("flights", 0, 12), ("a.b_c-d", 10, 2**63 - 1)]
    assert path.read_bytes() in (
        reference.offset_checkpoint(expected),
        reference.offset_checkpoint(expected[::-1]),
    )
    path.write_bytes(reference.offset_checkpoint([("x", 3, 4)]))
    assert written.read() == {TopicPartition("x", 3): 4}
    written.update(TopicPartition("y-0", 0), 0)
    assert path.read_bytes() == reference.offset_checkpoint([("x", 3, 4), ("y-0", 0, 0)])


def test_epoch_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    cache = checkpoint.EpochCache(str(path))
    cache.assign(0, 0)
    cache.assign(7, 123456789012)
    cache.flush()
    assert path.read_bytes() == reference.epoch_checkpoint([(0, 0), (7, 123456789012)])
    assert checkpoint.EpochCache(str(path)).entries == [(0, 0), (7, 123456789012)]


def test_producer_snapshot(tmp_path: Path) -> None:
    state = producers.ProducerState()
    state.update(4001, 3, 100, 10, 14, NOW)
    state.update(4001, 3, 105, 15, 15, NOW + 5)
    state.update(9, 0, 0, 16, 18, NOW + 9)
    rows = [(9, 0, 2, 18, 2, NOW + 9), (4001, 3, 104, 14, 4, NOW), (4001, 3, 105, 15, 0, NOW + 5)]
    assert state.snapshot() == reference.snapshot(rows), "the last of a producer's entries is the one Kafka keeps"
    loaded = producers.ProducerState()
    loaded.load(reference.snapshot(rows))
    assert loaded.check(4001, 3, 105, 1) == (15, 15)
    assert loaded.check(9, 0, 3, 10) is None
    with pytest.raises(errors.OutOfOrderSequenceError):
        loaded.check(9, 0, 4, 1)
