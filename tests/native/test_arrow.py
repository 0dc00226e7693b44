"""ArrowBuilder: what the reference encodes comes out as Arrow columns, and hostile bytes leave no trace."""

from __future__ import annotations

import ctypes
import gc
import mmap
import random
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog._native.arrow import COLUMNS, ArrowBuilder
from kreplog._native.batch import build
from kreplog._native.crc32c import crc32c
from kreplog.errors import CorruptBatchError, KreplogError, UnsupportedFormatError, UsageError
from tests.fuzz.records import batches
from tests.reference import (
    BODY_AT,
    CONTROL,
    CRC_AT,
    HEADER,
    LOG_APPEND_TIME,
    Batch,
    Rec,
    encode,
    encode_around,
    seal,
    varint,
)

NOW = 1_700_000_000_000


def columns_of(
    data: bytes, columns: Sequence[str] = COLUMNS, unit: str = "ms", start: int = 0, stop: int = 2**63 - 1
) -> pa.RecordBatch:
    builder = ArrowBuilder(columns, unit)
    builder.add_batches(data, start, stop)
    out = pa.record_batch(builder.finish())
    out.validate(full=True)
    return out


def expected(found: Sequence[tuple[Batch, Rec]]) -> dict[str, list[Any]]:
    return {
        "offset": [record.offset for _, record in found],
        "timestamp": [record.timestamp for _, record in found],
        "timestampType": [int(batch.attributes & LOG_APPEND_TIME > 0) for batch, _ in found],
        "key": [record.key for _, record in found],
        "value": [record.value for _, record in found],
        "headers": [[{"key": k, "value": v} for k, v in record.headers] or None for _, record in found],
    }


def as_dict(table: pa.RecordBatch) -> dict[str, list[Any]]:
    names = table.schema.names
    whole = {"timestamp": pa.int64()}
    return {name: table.column(name).cast(whole.get(name, table.column(name).type)).to_pylist() for name in names}


def simple(count: int, base_offset: int = 0, value_size: int = 20) -> bytes:
    values = [b"%d " % (base_offset + i) * value_size for i in range(count)]
    return build([value[:value_size] for value in values], timestamps_ms=[NOW] * count, base_offset=base_offset)


# What comes out


@given(st.lists(batches(base_offset=0), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_any_batches_any_range_any_columns(drawn: list[Batch], rng: random.Random) -> None:
    """Batches laid end to end with gaps between; a control batch is passed over."""
    placed, at = [], 0
    for each in drawn:
        at += rng.choice((0, 0, 3))
        moved = tuple(Rec(at + i, r.timestamp, r.key, r.value, r.headers) for i, r in enumerate(each.records))
        placed.append(Batch(moved, at, 0, each.attributes, moved[0].timestamp, each.max_timestamp))
        at += len(moved)
    start, stop = sorted((rng.randrange(at + 2), rng.randrange(at + 2)))
    wanted = rng.sample(COLUMNS, rng.randrange(1, len(COLUMNS) + 1))
    table = columns_of(b"".join(map(encode, placed)), wanted, start=start, stop=stop)
    records = [(b, r) for b in placed for r in b.records if start <= r.offset < stop and not b.attributes & CONTROL]
    assert table.schema.names == wanted
    assert as_dict(table) == {name: expected(records)[name] for name in wanted}


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_types_are_what_spark_requires(unit: str) -> None:
    schema = columns_of(b"", unit=unit).schema
    header = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
    types = [pa.int64(), pa.timestamp(unit, "UTC"), pa.int32(), pa.binary(), pa.binary(), header]
    assert schema.equals(pa.schema([pa.field(name, kind) for name, kind in zip(COLUMNS, types, strict=True)]))
    assert all(field.nullable for field in schema)


def test_microseconds() -> None:
    table = columns_of(simple(3), ["timestamp"], "us")
    assert table.column(0).cast(pa.int64()).to_pylist() == [NOW * 1000] * 3


@pytest.mark.parametrize("ms", [2**63 // 1000 + 1, -(2**63) // 1000 - 1])
def test_timestamp_past_microseconds_is_refused_where_it_is_wanted(ms: int) -> None:
    data = encode(Batch((Rec(7, ms, None, b"v"),), base_offset=7))
    with pytest.raises(UsageError, match="offset 7 does not fit microseconds") as caught:
        columns_of(data, unit="us")
    assert caught.value.offset == 7
    assert as_dict(columns_of(data, ["offset", "value"], "us")) == {"offset": [7], "value": [b"v"]}
    assert as_dict(columns_of(data, ["timestamp"], "ms")) == {"timestamp": [ms]}


def test_late_first_null_and_growth() -> None:
    """The first null comes after thousands of rows, and the columns grow after it."""
    values: list[bytes | None] = [b"v%d" % i for i in range(5000)]
    values[3000] = None
    values[4999] = b""
    builder = ArrowBuilder(["value"])
    for at in range(0, 5000, 100):
        builder.add_batches(build(values[at : at + 100], base_offset=at))
    table = pa.record_batch(builder.finish())
    table.validate(full=True)
    assert table.column("value").to_pylist() == values
    assert table.column("value").null_count == 1


def test_builder_starts_again_after_finish() -> None:
    """Memory that was let go is filled again, without the nulls it held; memory still in use is left alone."""
    builder = ArrowBuilder(["key", "value"])
    exported = []
    for turn in range(20):
        value = b"%d" % turn
        builder.add_batches(build([value, None] if turn % 2 else [value, value], [None, value]))
        table = pa.record_batch(builder.finish())
        assert builder.rows == 0
        assert table.column("value").to_pylist() == ([value, None] if turn % 2 else [value, value])
        if turn % 3 == 0:
            exported.append((value, table))
        del table
    for value, table in exported:
        assert table.column("key").to_pylist() == [None, value]
        assert table.column("value").to_pylist()[0] == value


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_compressed_batches(codec: str) -> None:
    pytest.importorskip({"snappy": "cramjam", "zstd": "zstandard"}.get(codec, codec))
    values = [b"value %d " % i * 20 for i in range(500)]
    mixed = simple(3) + build(values, base_offset=3, compression=codec) + simple(3, 503)
    table = columns_of(mixed, ["offset", "value"], start=1, stop=504)
    assert table.column("offset").to_pylist() == list(range(1, 504))
    assert table.column("value").to_pylist()[2:-1] == values


@pytest.mark.parametrize("attributes", [0, LOG_APPEND_TIME, 2, LOG_APPEND_TIME | 2])
def test_what_the_header_determines_is_not_decoded(attributes: int) -> None:
    """The records are noise under a right CRC, plain or under a codec (2, snappy): what needs them refuses them."""
    batch = Batch(tuple(Rec(40 + i, 7, None, b"v" * 9) for i in range(5)), 40, 0, attributes, 7, 9)
    data = simple(2, 38) + encode_around(batch, b"\xff" * 60) + simple(2, 45)
    wanted = ["timestampType", "offset"]
    kinds = [0] * 2 + [int(attributes & LOG_APPEND_TIME > 0)] * 5 + [0] * 2
    assert as_dict(columns_of(data, wanted)) == {"timestampType": kinds, "offset": list(range(38, 47))}
    assert as_dict(columns_of(data, ["offset"], start=39, stop=42)) == {"offset": [39, 40, 41]}
    assert as_dict(columns_of(data, ["offset"], start=43, stop=46)) == {"offset": [43, 44, 45]}
    assert len(columns_of(data, ["offset"], start=43, stop=41)) == 0
    for column in ("key", "value", "headers") if attributes & LOG_APPEND_TIME else ("timestamp", "key"):
        with pytest.raises(CorruptBatchError):
            columns_of(data, [column])
    if attributes & LOG_APPEND_TIME:
        times = [NOW * 1000, NOW * 1000, *[9000] * 5, NOW * 1000, NOW * 1000]
        assert as_dict(columns_of(data, ["timestamp"], "us")) == {"timestamp": times}


def test_log_append_time_past_microseconds() -> None:
    batch = Batch((Rec(7, 1, None, b"v"),), 7, 0, LOG_APPEND_TIME, 1, 2**63 // 1000 + 1)
    with pytest.raises(UsageError, match="offset 7 does not fit microseconds"):
        columns_of(encode(batch), ["timestamp"], "us")


def test_offsets_with_gaps_are_those_of_the_records() -> None:
    data = encode(Batch((Rec(3, 5, None, b"a"), Rec(6, 5, None, b"b")), base_offset=3))
    assert as_dict(columns_of(data, ["offset"])) == {"offset": [3, 6]}


@pytest.mark.parametrize("attributes", [0, 2])
def test_a_count_that_lies_costs_no_memory_for_offsets_alone(attributes: int) -> None:
    batch = Batch((Rec(0, 0, None, None),), 0, 0, attributes)
    data = encode_around(batch, b"", record_count=1 << 24, last_delta=(1 << 24) - 1)
    before = resident_bytes()
    with pytest.raises(CorruptBatchError):
        columns_of(data, ["offset"])
    assert resident_bytes() - before < 16 << 20


def test_header_key_that_is_no_utf8_reads_as_in_java() -> None:
    """Any client may have written it, so one such key must not hide the rest of the log."""
    record = b"\0" + varint(0) * 2 + varint(-1) * 2 + varint(1) + varint(3) + b"a\xff\xc3" + varint(-1)
    data = encode_around(Batch((Rec(0, 0, None, None),)), varint(len(record)) + record)
    assert columns_of(data, ["headers"]).column(0).to_pylist() == [[{"key": "a\ufffd\ufffd", "value": None}]]


@given(st.binary(max_size=8))
def test_every_header_key_is_valid_utf8(key: bytes) -> None:
    record = b"\0" + varint(0) * 2 + varint(-1) * 2 + varint(1) + varint(len(key)) + key + varint(0)
    data = encode_around(Batch((Rec(0, 0, None, None),)), varint(len(record)) + record)
    (headers,) = columns_of(data, ["headers"]).column(0).to_pylist()
    assert headers == [{"key": key.decode(errors="replace"), "value": b""}]


def test_no_rows() -> None:
    assert columns_of(b"").num_rows == 0
    assert columns_of(simple(4, 10), stop=10).num_rows == 0
    assert columns_of(encode_around(Batch((Rec(0, 0, None, None),)), b"", record_count=0)).num_rows == 0


# What is refused


@pytest.mark.parametrize("columns", [[], ["offset", "offset"], ["nothing"], "offset", ["offset", "Key"]])
def test_bad_columns(columns: Sequence[str]) -> None:
    with pytest.raises(UsageError, match="name one or more of offset, timestamp"):
        ArrowBuilder(columns)


def test_bad_unit() -> None:
    with pytest.raises(UsageError, match="choose 'ms' or 'us'"):
        ArrowBuilder(["offset"], "ns")


def test_corrupt_batch_leaves_what_came_before() -> None:
    """Of the bad batch nothing is delivered, not even the nulls and headers it had begun with."""
    good = encode(Batch((Rec(0, 5, b"k", b"v", (("h", b"x"),)), Rec(1, 6, None, None))))
    bad = Batch((Rec(2, 7, None, None, (("h", None),)), Rec(3, 8, None, b"w")), base_offset=2)
    after = encode(Batch((Rec(4, 9, b"K", b"V", (("H", b"X"),)),), base_offset=4))
    payload = encode(bad)[HEADER.size :]
    builder = ArrowBuilder(COLUMNS)
    builder.add_batches(good)
    for hostile in (encode_around(bad, payload[:-1] + b"\x7f"), encode_around(bad, payload + b"\0")):
        with pytest.raises(CorruptBatchError):
            builder.add_batches(hostile)
    builder.add_batches(after)
    table = pa.record_batch(builder.finish())
    table.validate(full=True)
    assert as_dict(table) == {
        "offset": [0, 1, 4],
        "timestamp": [5, 6, 9],
        "timestampType": [0, 0, 0],
        "key": [b"k", None, b"K"],
        "value": [b"v", None, b"V"],
        "headers": [[{"key": "h", "value": b"x"}], None, [{"key": "H", "value": b"X"}]],
    }


@pytest.mark.parametrize("start", [0, 1, 2])
def test_every_bit_flip_past_the_leader_epoch_is_found(start: int) -> None:
    """Also one that turns the batch into a control batch, or moves its last offset below the range."""
    data = encode(Batch((Rec(0, 5, b"key", b"value", (("h", b"x"),)), Rec(1, 6, None, None))))
    for bit in range(16 * 8, len(data) * 8):  # before it: base offset, length, leader epoch, which the log checks
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptBatchError, UnsupportedFormatError)):
            columns_of(bytes(flipped), start=start)


def test_every_prefix_is_refused() -> None:
    data = simple(5)
    for length in range(1, len(data)):
        with pytest.raises(CorruptBatchError, match="cut short"):
            columns_of(data[:length])


@given(st.binary(max_size=120), st.integers(0, 2**31 - 1), st.integers(-1, 2**31 - 1))
def test_hostile_records_under_a_right_crc(payload: bytes, count: int, delta: int) -> None:
    data = encode_around(Batch((Rec(0, 0, None, None),)), payload, record_count=count, last_delta=delta)
    builder = ArrowBuilder(COLUMNS)
    try:
        builder.add_batches(data)
    except KreplogError:
        assert builder.rows == 0
    else:
        assert builder.rows == count
    pa.record_batch(builder.finish()).validate(full=True)


def test_a_count_that_lies_costs_no_memory() -> None:
    data = encode_around(Batch((Rec(0, 0, None, None),)), b"", record_count=2**31 - 1, last_delta=2**31 - 1)
    before = resident_bytes()
    with pytest.raises(CorruptBatchError):
        columns_of(data)
    assert resident_bytes() - before < 16 << 20


@pytest.mark.slow
def test_past_two_gigabytes_is_refused_before_it_is_copied() -> None:
    """One record of over 1 GiB of zeros, of which no page exists, added twice."""
    size = (1 << 30) + (1 << 20)
    body = b"\0" + varint(0) * 2 + varint(-1) + varint(size)
    payload = varint(len(body) + size + 1) + body
    data = mmap.mmap(-1, HEADER.size + len(payload) + size + 1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    head = encode_around(Batch((Rec(0, 0, None, None),)), payload)
    data[: len(head)] = head
    struct.pack_into(">i", data, 8, len(data) - 12)
    with memoryview(data) as whole:
        struct.pack_into(">I", data, CRC_AT, crc32c(whole[BODY_AT:]))
        builder = ArrowBuilder(["value"])
        builder.add_batches(whole)
        with pytest.raises(UsageError, match="finish\\(\\) what was collected"):
            builder.add_batches(whole)
        assert builder.rows == 1
        assert len(builder.finish()) == 1
        builder.add_batches(whole)
    data.close()


def test_one_builder_is_not_for_two_threads() -> None:
    """Whichever loses is refused; what is delivered is whole batches."""
    data = b"".join(simple(1000, at, 200) for at in range(0, 20_000, 1000))
    builder = ArrowBuilder(["offset", "value"])
    refused = []

    def add() -> None:
        for _ in range(10):
            try:
                builder.add_batches(data)
            except UsageError as error:
                refused.append(error)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert builder.rows == 20_000 * (40 - len(refused))
    assert all("in use by another thread" in str(error) for error in refused)
    pa.record_batch(builder.finish()).validate(full=True)


# Memory


class CArray(ctypes.Structure):
    """ArrowArray of the C data interface."""


CArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(CArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(CArray))),
    ("private_data", ctypes.c_void_p),
]

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_child_outlives_its_parent() -> None:
    """The C data interface lets a consumer move a child out and release the parent first."""
    builder = ArrowBuilder(COLUMNS)
    builder.add_batches(simple(1000))
    _, capsule = builder.finish().__arrow_c_array__()
    del builder
    root = CArray.from_address(pointer_of(capsule, b"arrow_array"))
    assert [root.children[i].contents.n_buffers for i in range(6)] == [2, 2, 2, 3, 3, 2]
    moved = CArray.from_buffer_copy(root.children[0].contents)
    nothing = type(root.release)(0)
    root.children[0].contents.release = nothing
    root.release(ctypes.byref(root))
    assert not root.release
    offsets = (ctypes.c_int64 * moved.length).from_address(moved.buffers[1])
    assert list(offsets) == list(range(1000))
    assert moved.buffers[1] % 64 == 0
    moved.release(ctypes.byref(moved))
    assert not moved.release


def test_memory_is_given_back() -> None:
    """Exported never, once, twice, and one column kept after the rest: nothing stays."""
    data = b"".join(simple(1000, at, 1000) for at in range(0, 4000, 1000))

    def turn() -> None:
        builder = ArrowBuilder(COLUMNS)
        for export in range(4):
            builder.add_batches(data)
            columns = builder.finish()
            assert columns.nbytes > 4_000_000
            tables = [pa.record_batch(columns) for _ in range(export)]
            if export == 3:
                columns.__arrow_c_array__()  # capsules that nobody takes
                column = tables[0].column("value")
                del tables, columns, builder
                gc.collect()
                assert column[3999].as_py()[:4] == b"3999"

    for _ in range(3):
        turn()
    before = resident_bytes()
    for _ in range(15):
        turn()
    assert resident_bytes() - before < 32 << 20  # one turn holds 16 MB, so a leak would show as 240


def test_a_faulty_batch_leaks_nothing() -> None:
    data = bytearray(simple(1000, value_size=1000))
    struct.pack_into(">i", data, 57, 999)
    hostile = seal(bytes(data))
    for attempt in range(300):
        if attempt == 10:
            before = resident_bytes()
        with pytest.raises(CorruptBatchError):
            columns_of(hostile)
    assert resident_bytes() - before < 32 << 20
