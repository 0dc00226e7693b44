"""Arrow rows to record batches: types, nulls, slices, headers, timestamps, partitions, sizes."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from kreplog import Record
from kreplog._native.arrow_records import ArrowRows, BatchEncoder, RowSelection, arrow_pieces
from kreplog._native.batch import decode, validate
from kreplog._native.partitioner import partition_for
from kreplog.errors import ArgumentTypeError, UsageError

STAMP = 1_700_000_000_123


def encode(data: object, max_bytes: int = 1_000_000, compression: str = "none") -> list[Record]:
    return [record for rows in arrow_pieces(data) for record in encode_rows(rows.whole(0), max_bytes, compression)]


def encode_rows(rows: RowSelection, max_bytes: int = 1_000_000, compression: str = "none") -> list[Record]:
    encoder = BatchEncoder(max_bytes, compression)
    records: list[Record] = []
    while rows.position < rows.length:
        batch, count = rows.next_batch(encoder, -1, -1, -1)
        found = decode(batch)
        assert [record.offset for record in found] == list(range(count))
        records += found
    return records


def table(**columns: Any) -> pa.Table:
    return pa.table({"timestamp": pa.array([STAMP] * len(next(iter(columns.values()))), pa.int64()), **columns})


VALUES = [b"", None, b"short", b"longer than twelve bytes", b"x" * 70_000, "ü".encode()]


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()],
    ids=str,
)
def test_bytes_of_every_layout_with_nulls_and_slices(kind: pa.DataType) -> None:
    values = pa.array(VALUES, pa.binary()).cast(kind)
    for start in range(len(VALUES)):
        part = table(value=values, key=values).slice(start)
        found = encode(part)
        assert [record.value for record in found] == VALUES[start:]
        assert [record.key for record in found] == VALUES[start:]


def test_a_sliced_record_batch_and_a_reader_of_several() -> None:
    batch = table(value=pa.array(VALUES, pa.binary())).to_batches()[0]
    assert [record.value for record in encode(batch.slice(2, 3))] == VALUES[2:5]
    reader = pa.RecordBatchReader.from_batches(batch.schema, [batch, batch.slice(4), batch.slice(0, 0)])
    assert [record.value for record in encode(reader)] == VALUES + VALUES[4:]


def test_a_polars_frame() -> None:
    frame = pl.DataFrame({"value": ["a", None, "a string that is no short one"], "key": [b"1", b"", None]})
    found = encode(frame)
    assert [record.value for record in found] == [b"a", None, b"a string that is no short one"]
    assert [record.key for record in found] == [b"1", b"", None]


@pytest.mark.parametrize("large", [False, True])
def test_headers_with_nulls_and_slices(large: bool) -> None:
    item = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kind = pa.large_list(item) if large else pa.list_(item)
    given = [[("a", b"1"), ("b", None)], None, [], [("", b""), ("ü", b"x" * 300)], [("c", b"2")] * 130]
    rows = [None if pairs is None else [{"key": key, "value": value} for key, value in pairs] for pairs in given]
    data = table(value=pa.array([b"v"] * len(rows)), headers=pa.array(rows, kind))
    for start in range(len(rows)):
        found = encode(data.slice(start))
        assert [record.headers for record in found] == [tuple(pairs or ()) for pairs in given[start:]]


@pytest.mark.parametrize(
    ("unit", "given"), [("s", STAMP // 1000), ("ms", STAMP), ("us", STAMP * 1000 + 999), ("ns", STAMP * 10**6 + 1)]
)
def test_timestamps_of_every_unit(unit: str, given: int) -> None:
    stamps = pa.array([given, 0], pa.timestamp(unit, "UTC"))
    found = encode(pa.table({"value": [b"a", b"b"], "timestamp": stamps}))
    assert [record.timestamp_ms for record in found] == [STAMP // 1000 * 1000 if unit == "s" else STAMP, 0]


def test_timestamps_that_are_absent_or_null_are_now() -> None:
    (absent,) = encode(pa.table({"value": [b"a"]}))
    null, given = encode(pa.table({"value": [b"a", b"b"], "timestamp": pa.array([None, 5], pa.int64())}))
    assert absent.timestamp_ms > STAMP and null.timestamp_ms > STAMP and given.timestamp_ms == 5


def test_batches_end_where_they_are_full_and_one_large_row_stands_alone() -> None:
    values = [b"x" * 100] * 50 + [b"y" * 5000] + [b"z" * 100] * 3
    (rows,) = arrow_pieces(table(value=values))
    selection = rows.whole(0)
    encoder = BatchEncoder(1100)
    sizes = []
    while selection.position < selection.length:
        batch, count = selection.next_batch(encoder, 7, 3, 11)
        info = validate(batch, deep=True)
        assert (info.record_count, info.producer_id, info.producer_epoch, info.base_sequence) == (count, 7, 3, 11)
        sizes.append((count, len(batch)))
    assert [count for count, _ in sizes] == [9] * 5 + [5, 1, 3]
    assert all(size <= 1100 or count == 1 for count, size in sizes)
    with pytest.raises(UsageError, match="encoded already"):
        selection.next_batch(encoder, 7, 3, 11)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(compression: str) -> None:
    values = [b"value-%d" % number * 10 for number in range(5000)]
    found = encode(table(value=values), 100_000, compression)
    assert [record.value for record in found] == values


def _by_partition(data: object, count: int, first: int = 0) -> dict[int, list[bytes | None]]:
    (rows,) = arrow_pieces(data)
    return {part.partition: [record.value for record in encode_rows(part)] for part in rows.by_partition(count, first)}


def test_rows_go_to_the_partition_of_their_key_in_order() -> None:
    keys = [b"key-%d" % (number % 40) for number in range(1000)]
    values = [b"%d" % number for number in range(1000)]
    found = _by_partition(table(value=values, key=keys), 7)
    for partition, rows in found.items():
        assert rows == [value for key, value in zip(keys, values, strict=True) if partition_for(key, 7) == partition]
    assert sum(map(len, found.values())) == 1000


def test_rows_without_a_key_are_dealt_in_long_runs_of_equal_length() -> None:
    values = [b"%d" % number for number in range(5000)]
    found = _by_partition(table(value=values), 2, 1)
    assert found == {1: values[:2500], 0: values[2500:]}
    assert _by_partition(table(value=values[:10]), 3, 2) == {2: values[:10]}


def test_a_partition_column_decides() -> None:
    found = _by_partition(pa.table({"value": [b"a", b"b", b"c"], "partition": pa.array([2, 0, 2], pa.int32())}), 3)
    assert found == {0: [b"b"], 2: [b"a", b"c"]}
    nulls = pa.array([None, 1, None], pa.int32())
    keys = [b"k", b"k", None]
    found = _by_partition(pa.table({"value": [b"a", b"b", b"c"], "key": keys, "partition": nulls}), 3)
    assert found == {partition_for(b"k", 3): [b"a"], 1: [b"b"], 0: [b"c"]}
    for wrong in (3, -1):
        data = pa.table({"value": [b"a", b"b"], "partition": pa.array([0, wrong], pa.int64())})
        with pytest.raises(UsageError, match="row 1: its partition"):
            _by_partition(data, 3)
    (rows,) = arrow_pieces(pa.table({"partition": pa.array([0], pa.int32())}))
    with pytest.raises(UsageError, match="leave the argument"):
        rows.whole(0)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ([b"a"], ArgumentTypeError, "Arrow PyCapsule interface"),
        (pa.array([b"a"]), ArgumentTypeError, "a table or record batch"),
        (pa.table({"valve": [b"a"]}), ArgumentTypeError, "column 'valve'"),
        (pa.table({"value": [1]}), ArgumentTypeError, "column 'value' is no Arrow binary"),
        (pa.table({"value": pa.array(["a"]).dictionary_encode()}), ArgumentTypeError, "dictionary"),
        (pa.table({"headers": [["a"]]}), ArgumentTypeError, "column 'headers'"),
        (pa.table({"timestamp": ["a"]}), ArgumentTypeError, "column 'timestamp'"),
        (pa.table({"timestamp": pa.array([5, -1], pa.int64())}), UsageError, "row 1: its timestamp"),
        (pa.table({"timestamp": pa.array([2**62], pa.timestamp("s"))}), UsageError, "row 0: its timestamp"),
        (pa.table({"partition": [1.5]}), ArgumentTypeError, "column 'partition'"),
    ],
)
def test_what_cannot_be_a_record_is_refused_by_name(data: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        encode(data)


def test_a_stream_that_fails_says_so() -> None:
    def batches() -> Any:
        yield table(value=[b"a"]).to_batches()[0]
        raise OSError("the disk is gone")

    schema = table(value=[b"a"]).schema
    pieces = arrow_pieces(pa.RecordBatchReader.from_batches(schema, batches()))
    assert isinstance(next(pieces), ArrowRows)
    with pytest.raises(ArgumentTypeError, match="the disk is gone"):
        next(pieces)
