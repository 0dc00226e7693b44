"""Bytes made to harm: every parser answers them with a typed error, before any large allocation, and writes nothing."""

from __future__ import annotations

import importlib.util
import resource
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog import Log, LogConfig, errors
from kreplog._native import batch
from tests import reference
from tests.fuzz.records import batches
from tests.reference import Batch, Rec, varint

NOW = 1_700_000_000_000
GOOD = Batch(
    (
        Rec(0, NOW, b"key", b"value", (("name", b"content"), ("null", None))),
        Rec(1, NOW - 3, None, b"v" * 100),
        Rec(2, NOW + 9, b"", None),
    )
)
REFUSALS = (
    errors.CorruptBatchError,
    errors.UnsupportedFormatError,
    errors.UnsupportedCompressionError,
    errors.RecordTooLargeError,
)
EXTRA_MEMORY = 160 << 20  # what may be decompressed at most, 64 MiB, and its growing buffer
BOMB_BYTES = 256 << 20

Field = tuple[str, int]
FIELDS: dict[str, Field] = {
    "base_offset": (">q", 0),
    "length": (">i", 8),
    "magic": (">b", 16),
    "attributes": (">h", 21),
    "last_offset_delta": (">i", 23),
    "record_count": (">i", 57),
}


@contextmanager
def little_memory() -> Iterator[None]:
    """Allocations beyond EXTRA_MEMORY fail inside, so that an allocation of too much shows as MemoryError."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + EXTRA_MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def with_field(name: str, value: int) -> bytes:
    layout, at = FIELDS[name]
    data = bytearray(reference.encode(GOOD))
    struct.pack_into(layout, data, at, value)
    return reference.seal(bytes(data))


def with_record(body: bytes, length: int | None = None) -> bytes:
    """A batch of one record whose bytes after the length are `body`."""
    batch = Batch((Rec(0, NOW, None, None),))
    return reference.encode_around(batch, varint(len(body) if length is None else length) + body)


def with_records(*bodies: bytes) -> bytes:
    several = Batch(tuple(Rec(offset, NOW, None, None) for offset in range(len(bodies))))
    return reference.encode_around(several, b"".join(varint(len(body)) + body for body in bodies))


def with_codec(codec: int, payload: bytes) -> bytes:
    return reference.encode_around(Batch(GOOD.records, attributes=codec), payload)


def gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(data) + packer.flush()


WIDE = b"\xff" * 4 + b"\x7f"  # a varint of 35 bits
ENDLESS = b"\x80" * 12
LAST = b"\0" + varint(0) + varint(0)  # attributes, timestamp delta, offset delta

HOSTILE: dict[str, Callable[[], bytes]] = {
    "length -1": lambda: with_field("length", -1),
    "length 0": lambda: with_field("length", 0),
    "length below a header": lambda: with_field("length", 48),
    "length 2^31-1": lambda: with_field("length", 2**31 - 1),
    "length -2^31": lambda: with_field("length", -(2**31)),
    "length one less": lambda: with_field("length", len(reference.encode(GOOD)) - 13),
    "length one more": lambda: with_field("length", len(reference.encode(GOOD)) - 11),
    "magic 0": lambda: with_field("magic", 0),
    "magic 1": lambda: with_field("magic", 1),
    "magic 3": lambda: with_field("magic", 3),
    "magic -1": lambda: with_field("magic", -1),
    "codec 5": lambda: with_field("attributes", 5),
    "codec 7": lambda: with_field("attributes", 7),
    "count 0": lambda: with_field("record_count", 0),
    "count -1": lambda: with_field("record_count", -1),
    "count 2^31-1": lambda: with_field("record_count", 2**31 - 1),
    "count one less": lambda: with_field("record_count", 2),
    "count one more": lambda: with_field("record_count", 4),
    "last offset delta -1": lambda: with_field("last_offset_delta", -1),
    "last offset delta 2^31-1": lambda: with_field("last_offset_delta", 2**31 - 1),
    "last offset delta one less": lambda: with_field("last_offset_delta", 1),
    "base offset at the end of all": lambda: with_field("base_offset", 2**63 - 1),
    "no records but a count": lambda: reference.encode_around(GOOD, b""),
    "bytes left over": lambda: reference.encode_around(GOOD, reference.encode_records(GOOD) + b"\0"),
    "records cut": lambda: reference.encode_around(GOOD, reference.encode_records(GOOD)[:-1]),
    "wrong crc": lambda: reference.encode(GOOD)[:17] + b"\0\0\0\0" + reference.encode(GOOD)[21:],
    "record length -1": lambda: with_record(LAST + varint(-1) * 2 + varint(0), -1),
    "record length too short": lambda: with_record(LAST + varint(-1) * 2 + varint(0), 4),
    "record length past the end": lambda: with_record(LAST + varint(-1) * 2 + varint(0), 4000),
    "record length 2^31-1": lambda: with_record(LAST + varint(-1) * 2 + varint(0), 2**31 - 1),
    "record length wide": lambda: reference.encode_around(Batch((Rec(0, 0, None, None),)), WIDE + bytes(30)),
    "record length endless": lambda: reference.encode_around(Batch((Rec(0, 0, None, None),)), ENDLESS + bytes(30)),
    "timestamp delta endless": lambda: with_record(b"\0" + ENDLESS + varint(0) + varint(-1) * 2 + varint(0)),
    "offset delta wide": lambda: with_record(b"\0" + varint(0) + WIDE + varint(-1) * 2 + varint(0)),
    "offset delta negative": lambda: with_record(b"\0" + varint(0) + varint(-1) + varint(-1) * 2 + varint(0)),
    "offset delta beyond the last": lambda: with_record(b"\0" + varint(0) + varint(9) + varint(-1) * 2 + varint(0)),
    "offset deltas equal": lambda: with_records(*[LAST + varint(-1) * 2 + varint(0)] * 2),
    "offset deltas falling": lambda: with_records(
        *(b"\0" + varint(0) + varint(delta) + varint(-1) * 2 + varint(0) for delta in (1, 0))
    ),
    "key length -2": lambda: with_record(LAST + varint(-2) + varint(-1) + varint(0)),
    "key length past the record": lambda: with_record(LAST + varint(3) + b"k" + varint(-1) + varint(0)),
    "key length 2^31-1": lambda: with_record(LAST + varint(2**31 - 1) + varint(-1) + varint(0)),
    "value length -2": lambda: with_record(LAST + varint(-1) + varint(-2) + varint(0)),
    "value length past the record": lambda: with_record(LAST + varint(-1) + varint(2) + b"v" + varint(0)),
    "value length 2^31-1": lambda: with_record(LAST + varint(-1) + varint(2**31 - 1) + varint(0)),
    "value reaches into the next record": lambda: with_records(
        LAST + varint(-1) + varint(12) + b"v", b"\0" + varint(0) + varint(1) + varint(-1) * 2 + varint(0)
    ),
    "header count -1": lambda: with_record(LAST + varint(-1) * 2 + varint(-1)),
    "header count 2^31-1": lambda: with_record(LAST + varint(-1) * 2 + varint(2**31 - 1)),
    "header count endless": lambda: with_record(LAST + varint(-1) * 2 + ENDLESS),
    "header count one more": lambda: with_record(LAST + varint(-1) * 2 + varint(2) + varint(1) + b"h" + varint(-1)),
    "header key null": lambda: with_record(LAST + varint(-1) * 2 + varint(1) + varint(-1) + varint(-1)),
    "header key past the record": lambda: with_record(
        LAST + varint(-1) * 2 + varint(1) + varint(9) + b"h" + varint(-1)
    ),
    "header value length -2": lambda: with_record(LAST + varint(-1) * 2 + varint(1) + varint(1) + b"h" + varint(-2)),
    "header value 2^31-1": lambda: with_record(
        LAST + varint(-1) * 2 + varint(1) + varint(1) + b"h" + varint(2**31 - 1)
    ),
    "gzip of nothing": lambda: with_codec(1, b""),
    "gzip garbage": lambda: with_codec(1, b"\x1f\x8b garbage"),
    "gzip cut": lambda: with_codec(1, gzip(reference.encode_records(GOOD))[:-9]),
    "gzip bomb": lambda: with_codec(1, gzip(bytes(BOMB_BYTES))),
    "gzip bomb in members": lambda: with_codec(1, gzip(bytes(1 << 20)) * 256),
    "lz4 of nothing": lambda: with_codec(3, b""),
    "lz4 garbage": lambda: with_codec(3, b"\x04\x22\x4d\x18 garbage"),
    "lz4 cut": lambda: with_codec(3, lz4.frame.compress(reference.encode_records(GOOD))[:-9]),
    "lz4 bomb": lambda: with_codec(3, lz4.frame.compress(bytes(BOMB_BYTES), store_size=False)),
    "lz4 bomb that says its size": lambda: with_codec(3, lz4.frame.compress(bytes(BOMB_BYTES), store_size=True)),
    "lz4 that claims 2^60 bytes": lambda: with_codec(3, _lz4_claiming(1 << 60)),
    "lz4 that claims too little": lambda: with_codec(3, _lz4_claiming(3)),
    "lz4 frame after the frame": lambda: with_codec(3, lz4.frame.compress(reference.encode_records(GOOD)) + b"more"),
    "zstd garbage": lambda: with_codec(4, b"\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
    "snappy that claims 2^32-1 bytes": lambda: with_codec(2, b"\xff\xff\xff\xff\x0f" + b"\0" * 20),
    "snappy frames of length -1": lambda: with_codec(2, b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01\xff\xff\xff\xff" + bytes(9)),
    "compressed count 2^31-1": lambda: reference.encode_around(
        Batch(GOOD.records, attributes=3), lz4.frame.compress(b"\0"), record_count=2**31 - 1, last_delta=2**31 - 2
    ),
}


# A leader sets the base offset itself, and in a compacted log the last records of a batch may be gone.
ALLOWED = {
    "base offset at the end of all": {"append_batches", "append_batches after a good one"},
    "last offset delta 2^31-1": {"validate", "decode", "decode_values", "append_as_follower", "arrow"},
}


def _lz4_claiming(size: int) -> bytes:
    """A frame whose header gives `size` as its content's; the header's check byte is right."""
    packed = bytearray(lz4.frame.compress(reference.encode_records(GOOD), store_size=True))
    struct.pack_into("<Q", packed, 6, size)
    packed[14] = _xxh32(bytes(packed[4:14])) >> 8 & 0xFF
    return bytes(packed)


def _xxh32(data: bytes) -> int:
    """xxHash32 of fewer than 16 bytes, seed 0: what the lz4 frame header is checked with."""
    mask, primes = 0xFFFFFFFF, (2654435761, 2246822519, 3266489917, 668265263, 374761393)
    total, at = (primes[4] + len(data)) & mask, 0
    while at + 4 <= len(data):
        total = (total + int.from_bytes(data[at : at + 4], "little") * primes[2]) & mask
        total = ((total << 17 | total >> 15) & mask) * primes[3] & mask
        at += 4
    for byte in data[at:]:
        total = (total + byte * primes[4]) & mask
        total = ((total << 11 | total >> 21) & mask) * primes[0] & mask
    total = (total ^ total >> 15) * primes[1] & mask
    total = (total ^ total >> 13) * primes[2] & mask
    return total ^ total >> 16


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("*.log")}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_batch(tmp_path: Path, case: str) -> None:
    data = HOSTILE[case]()
    before_it = reference.encode(Batch((Rec(0, NOW, None, b"before"),)))
    with Log.open(tmp_path / "hostile-0", LogConfig(max_message_bytes=8 << 20)) as log:
        log.append(b"first")
        parsers: dict[str, Callable[[], object]] = {
            "validate": lambda: batch.validate(data, deep=True),
            "decode": lambda: batch.decode(data),
            "decode_values": lambda: batch.decode_values(data),
            "append_batches": lambda: log.append_batches(data),
            "append_batches after a good one": lambda: log.append_batches(before_it + data),
            "append_as_follower": lambda: log.append_as_follower(data),
        }
        for name in parsers.keys() - ALLOWED.get(case, set()):
            with little_memory(), pytest.raises((*REFUSALS, errors.UsageError)):
                parsers[name]()
                pytest.fail(f"{name} takes {case}")
        assert (log.log_end_offset, len(list(log.read())), log.failed) == (1, 1, None)
        assert log.append(b"second") == 1
    assert len(reference.split(b"".join(files_of(tmp_path / "hostile-0").values()))) == 2


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_batch_to_arrow(case: str) -> None:
    from kreplog._native import arrow

    data = HOSTILE[case]()
    if "arrow" in ALLOWED.get(case, set()):
        return
    builder = arrow.ArrowBuilder(["offset", "key", "value", "headers"])
    with little_memory(), pytest.raises(REFUSALS):
        builder.add_batches(data, 0, 2**62)


@pytest.mark.parametrize("size", [0, 1, 11, 12, 16, 17, 60, 61, 62, 1000])
@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"\x7f"])
def test_no_batch_at_all(tmp_path: Path, size: int, filler: bytes) -> None:
    with Log.open(tmp_path / "hostile-0") as log:
        for call in (log.append_batches, log.append_as_follower, batch.validate):
            with pytest.raises((*REFUSALS, errors.UsageError)):
                call(filler * size)
        assert batch.end_of(filler * size) is None
        assert log.log_end_offset == 0


def test_every_prefix_of_a_produce_request_is_refused(tmp_path: Path) -> None:
    data = reference.encode(GOOD) + reference.encode(Batch(GOOD.records, producer_id=-1))
    ends = {reference.batch_size(data), len(data)}
    with Log.open(tmp_path / "hostile-0") as log:
        for cut in set(range(1, len(data))) - ends:
            with pytest.raises(errors.CorruptBatchError):
                log.append_batches(data[:cut])
            assert batch.end_of(data[:cut]) is None
        assert log.log_end_offset == 0 and log.size == 0


def test_control_batches_are_not_for_producers(tmp_path: Path) -> None:
    control = Batch(
        (Rec(0, NOW, b"\0\0\0\0", b"\0\0\0\0\0\0"),), attributes=reference.CONTROL, producer_id=1, producer_epoch=0
    )
    with Log.open(tmp_path / "hostile-0") as log, pytest.raises(errors.KreplogError):
        log.append_batches(reference.encode(control))


def test_a_header_name_that_is_no_text_is_refused_or_read(tmp_path: Path) -> None:
    """A producer must not be able to write what readers then stumble over."""
    data = with_record(LAST + varint(-1) * 2 + varint(1) + varint(2) + b"\xff\xfe" + varint(-1))
    with Log.open(tmp_path / "hostile-0") as log:
        try:
            log.append_batches(data)
        except errors.CorruptBatchError:
            assert log.log_end_offset == 0
        else:
            assert len(list(log.read())) == 1


@pytest.mark.parametrize("lie", [NOW + 10**12, 5, -1])
def test_a_max_timestamp_that_lies_does_not_mislead_lookups(tmp_path: Path, lie: int) -> None:
    """Either refused or set right: the time index must not follow it."""
    with Log.open(tmp_path / "hostile-0", LogConfig(index_interval_bytes=0)) as log:
        for number in range(5):
            log.append(b"before", timestamp_ms=NOW - 100 + number)
        try:
            log.append_batches(reference.encode(Batch(GOOD.records, max_timestamp=lie)))
        except errors.KreplogError:
            return
        for number in range(5):
            log.append(b"after", timestamp_ms=NOW + 100 + number)
        assert log.offset_for_timestamp(NOW + 9) == 7
        assert log.offset_for_timestamp(NOW + 100) == 8
        assert log.offset_for_timestamp(NOW + 10**6) is None


@pytest.mark.parametrize("field", ["base_offset", "leader_epoch", "gap", "overlap"])
def test_a_follower_checks_what_no_crc_covers(tmp_path: Path, field: str) -> None:
    """Offsets must follow the log's end and epochs must not fall, or the batch is refused."""
    with Log.open(tmp_path / "hostile-0", LogConfig(replicated=True)) as log:
        log.append_as_follower(reference.encode(Batch(GOOD.records, leader_epoch=5)))
        base, epoch = {"base_offset": (-3, 5), "leader_epoch": (3, 4), "gap": (4, 5), "overlap": (2, 5)}[field]
        rows = tuple(Rec(base + record.offset, record.timestamp, None, b"") for record in GOOD.records)
        with pytest.raises(errors.KreplogError):
            log.append_as_follower(reference.encode(Batch(rows, base, epoch)))
        assert log.log_end_offset == 3


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "varint", "header"]),
        st.integers(0, 2**16),
        st.integers(0, 255),
        st.sampled_from([-(2**31), -2, -1, 0, 1, 63, 64, 2**31 - 1, 2**35, 2**63 - 1]),
    ),
    min_size=1,
    max_size=4,
)


def mutate(data: bytes, mutations: list[tuple[str, int, int, int]]) -> bytes:
    """Mutate `data`, then set its length and CRC right, so that the damage reaches the record parser."""
    out = bytearray(data)
    for kind, where, byte, number in mutations:
        at = reference.HEADER.size + where % (len(out) - reference.HEADER.size + 1)
        if kind == "set" and at < len(out):
            out[at] = byte
        elif kind == "insert":
            out.insert(at, byte)
        elif kind == "delete":
            del out[at : at + 1 + byte % 8]
        elif kind == "varint":
            out[at : at + 1] = varint(number)
        elif kind == "header":
            at = 21 + where % (reference.HEADER.size - 21)
            out[at] = byte
    struct.pack_into(">i", out, 8, len(out) - 12)
    return reference.seal(bytes(out))


@settings(max_examples=700)
@given(batches(base_offset=0), MUTATIONS)
def test_mutated_batches_are_refused_or_read_right(found: Batch, mutations: list[tuple[str, int, int, int]]) -> None:
    """What the parser accepts, the reference reads the same way; all else is a typed refusal."""
    data = mutate(reference.encode(found), mutations)
    try:
        records = batch.decode(data)
        batch.validate(data, deep=True)
    except REFUSALS:
        return
    header = reference.HEADER.unpack_from(data)
    if header[5] & 7:
        return
    if header[5] & reference.CONTROL:
        assert records == []
    else:
        assert [Rec(*fields) for fields in records] == list(reference.decode(data).records)


@settings(max_examples=250)
@given(st.lists(st.tuples(batches(base_offset=0), MUTATIONS), min_size=1, max_size=3), st.booleans())
def test_mutated_batches_appended(
    tmp_path_factory: pytest.TempPathFactory,
    several: list[tuple[Batch, list[tuple[str, int, int, int]]]],
    follower: bool,
) -> None:
    """All or nothing of a buffer is appended; what is in the log reads and verifies."""
    buffer = b"".join(mutate(reference.encode(found), mutations) for found, mutations in several)
    path = tmp_path_factory.mktemp("mutated") / "hostile-0"
    with Log.open(path) as log:
        end = log.log_end_offset
        try:
            (log.append_as_follower if follower else log.append_batches)(buffer)
        except errors.KreplogError:
            assert log.log_end_offset == end and log.size == 0 and not log.failed
        assert not log.verify().damages
        assert all(record.offset < log.log_end_offset for record in log.read())
