"""Any bytes in place of a response: the errors that are documented, no other, and no row that a CRC does not cover."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from kreplog._native.arrow import ArrowBuilder
from kreplog._native.batch import build
from kreplog._native.fetched import FetchedBatches
from kreplog.client.cluster_metadata import ClusterMetadata
from kreplog.errors import CorruptBatchError, PeerProtocolError, UnsupportedCompressionError, UsageError
from kreplog.wire import fetch, generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.client.fake_broker import TOPIC, fetched, metadata

COLUMNS = ("offset", "timestamp", "key", "value", "headers")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "none")
BATCHES = [
    build(
        [b"value-%d" % number * 5 for number in range(at, at + 4)],
        keys=[None, b"k", b"", b"key"],
        headers=[(("a", b"1"),), (), (("b", None), ("c", b"")), ()],
        timestamps_ms=[1, 2, 3, 4],
        base_offset=at,
        leader_epoch=3 + at // 8,
        compression=codec,
    )
    for at, codec in zip(range(0, 24, 4), CODECS, strict=True)
]
ALLOWED = (CorruptBatchError, UnsupportedCompressionError, UsageError)


def rows_of(records: bytes, start: int, stop: int = 2**63 - 1, max_bytes: int = 1 << 20) -> tuple[list[Any], Any]:
    """The rows, and the error that ended them or None."""
    batches = FetchedBatches(records, start, stop)
    builder = ArrowBuilder(COLUMNS)
    rows: list[Any] = []
    while not batches.exhausted:
        before = batches.next_offset
        try:
            batches.add_to(builder, max_bytes)
        except ALLOWED as error:
            assert builder.rows == 0
            return rows, error
        added = pa.record_batch(builder.finish()).to_pylist()
        rows += added
        assert added or batches.next_offset > before or batches.exhausted, "no progress"
    return rows, None


WHOLE, _ = rows_of(b"".join(BATCHES), 0)


def test_sound_batches_of_every_codec() -> None:
    assert [row["offset"] for row in WHOLE] == list(range(24))
    assert [row["value"] for row in WHOLE] == [b"value-%d" % number * 5 for number in range(24)]


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_every_start_and_stop_clips_and_no_piece_changes_the_rows(max_bytes: int) -> None:
    records = b"".join(BATCHES)
    for start in range(24):
        first = start // 4
        for stop in range(start, 26):
            rows, error = rows_of(b"".join(BATCHES[first:]), start, stop, max_bytes)
            assert rows == WHOLE[start:stop] and error is None
    assert FetchedBatches(records, 0).end_offset == 24
    assert FetchedBatches(records, 0).last_epoch == 5


def test_a_response_cut_at_every_byte_gives_its_whole_batches() -> None:
    records = b"".join(BATCHES)
    ends = [sum(map(len, BATCHES[:count])) for count in range(len(BATCHES) + 1)]
    for size in range(len(records)):
        whole = max(count for count, end in enumerate(ends) if end <= size)
        batches = FetchedBatches(records[:size], 0)
        assert batches.end_offset == 4 * whole
        rows, error = rows_of(records[:size], 0)
        assert rows == WHOLE[: 4 * whole] and error is None


def test_no_flipped_byte_changes_a_row() -> None:
    """Bytes before the CRC change where a batch lies; those may move offsets up, as compaction does, and never down."""
    records = b"".join(BATCHES)
    ends = [sum(map(len, BATCHES[: count + 1])) for count in range(len(BATCHES))]
    for at in range(len(records)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(records)
            damaged[at] ^= flip
            number = next(count for count, end in enumerate(ends) if at < end)
            inside = at - (ends[number] - len(BATCHES[number]))
            rows, error = rows_of(bytes(damaged), 0)
            sound = WHOLE[: 4 * number]
            assert rows[: len(sound)] == sound
            if inside >= 17:
                assert rows == sound and error is not None, (at, flip)
            elif 8 <= inside < 12 or inside == 16:
                assert rows == sound, (at, flip)
            offsets = [row["offset"] for row in rows]
            assert offsets == sorted(set(offsets))


def _mutations(data: bytes, count: int, seed: int) -> Sequence[bytes]:
    random_bytes = random.Random(seed)
    found = []
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(random_bytes.randrange(1, 4)):
            kind = random_bytes.randrange(4)
            at = random_bytes.randrange(len(changed))
            if kind == 0:
                changed[at] = random_bytes.randrange(256)
            elif kind == 1:
                changed[at : at + 4] = random_bytes.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0"])
            elif kind == 2:
                del changed[at : at + random_bytes.randrange(1, 20)]
            else:
                changed[at:at] = random_bytes.randbytes(random_bytes.randrange(1, 20))
            if not changed:
                changed = bytearray(b"\0")
        found.append(bytes(changed))
    return found


@pytest.mark.parametrize("version", [4, 7, 11, 12, 13, 17])
def test_changed_fetch_responses_raise_what_is_documented(version: int) -> None:
    header = RequestHeader(ApiKey.FETCH, version, 1, "test")
    frame = b"".join(bytes(part) for part in fetched(b"".join(BATCHES))(header, b""))[4:]
    sound = 0
    for changed in [frame, *_mutations(frame, 2000, version)]:
        try:
            response = fetch.decode_response(changed, header, lambda _: TOPIC)
        except PeerProtocolError:
            continue
        for partition in response.partitions:
            rows, error = rows_of(bytes(partition.records), 0, max_bytes=100)
            sound += error is None and rows == WHOLE
    assert sound


@pytest.mark.parametrize("version", [1, 7, 9, 12])
def test_changed_metadata_raise_what_is_documented(version: int) -> None:
    header = RequestHeader(ApiKey.METADATA, version, 1, "test")
    frame = b"".join(bytes(part) for part in metadata(9092)(header, b""))[4:]
    sound = 0
    for changed in [frame, *_mutations(frame, 2000, version)]:
        try:
            known = ClusterMetadata().updated(generic.decode_response(changed, header))
        except PeerProtocolError:
            continue
        sound += TOPIC in {at.topic for at in known.partitions}
    assert sound


@pytest.mark.parametrize("records", [b"", b"\0", b"\0" * 60, b"\0" * 61, b"\xff" * 61, b"\0" * 5000, BATCHES[0][:61]])
def test_bytes_that_are_no_batch(records: bytes) -> None:
    rows, error = rows_of(records, 0)
    assert rows == [] and (error is None or isinstance(error, CorruptBatchError))


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError, match="start = -1"):
        FetchedBatches(b"", -1)
    with pytest.raises(TypeError):
        FetchedBatches(None, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        FetchedBatches(BATCHES[0], 0).add_to(None, 1)  # type: ignore[arg-type]
