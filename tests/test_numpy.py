"""NumPy arrays in and out: append_many of fixed-size items, Log.to_numpy, Log.batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kreplog import Log, LogConfig
from kreplog._native import batch
from kreplog.errors import ArgumentTypeError, CorruptBatchError, OffsetOutOfRangeError, UsageError

POINT = np.dtype([("x", "<f8"), ("id", "<i4"), ("name", "S3")])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "points-0") as log:
        yield log


@pytest.mark.parametrize("dtype", ["<f8", ">i4", "<u2", "S7", "U3", "M8[ms]", POINT], ids=str)
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_items_of_a_fixed_size_come_back_as_they_went_in(tmp_path: Path, dtype: Any, compression: str) -> None:
    dtype = np.dtype(dtype)
    items = np.frombuffer(np.random.default_rng(1).bytes(1000 * dtype.itemsize), dtype)
    with Log.open(tmp_path / "points-0", LogConfig(compression_type=compression, segment_bytes=4096)) as log:
        stored = items if dtype.kind != "M" else items.view("<i8")
        assert log.append_many(stored, timestamps_ms=np.arange(1000)) == range(1000)
        pieces = list(log.to_numpy(10, 990, dtype, max_bytes=1000))
    assert len(pieces) > 1
    assert np.concatenate([piece.offsets for piece in pieces]).tolist() == list(range(10, 990))
    assert np.concatenate([piece.timestamps_ms for piece in pieces]).tolist() == list(range(10, 990))
    assert b"".join(piece.values.tobytes() for piece in pieces if piece.values is not None) == items[10:990].tobytes()
    assert all(piece.values is not None and piece.values.dtype == dtype for piece in pieces)


def test_every_second_item_of_an_array_is_appended_by_its_stride(log: Log) -> None:
    log.append_many(np.arange(10, dtype="<i8")[::-2])
    (columns,) = log.to_numpy(value_dtype="<i8")
    assert columns.values is not None
    assert columns.values.tolist() == [9, 7, 5, 3, 1]


def test_without_a_dtype_values_of_any_size_are_left_out(log: Log) -> None:
    log.append_many([b"a", b"", None, b"long"], timestamps_ms=[4, 3, 2, 1])
    (columns,) = log.to_numpy()
    assert (columns.offsets.tolist(), columns.timestamps_ms.tolist()) == ([0, 1, 2, 3], [4, 3, 2, 1])
    assert columns.values is None


def test_the_arrays_outlive_the_log_and_cannot_be_written_to(tmp_path: Path) -> None:
    with Log.open(tmp_path / "points-0") as log:
        log.append_many(np.arange(5000, dtype="<i8"))
        pieces = list(log.to_numpy(value_dtype="<i8", max_bytes=4000))
    gc.collect()
    for piece in pieces:
        assert piece.values is not None
        assert piece.values.tolist() == piece.offsets.tolist()
        with pytest.raises(ValueError, match="read-only"):
            piece.values[0] = 1
    assert sum(len(piece.offsets) for piece in pieces) == 5000


@pytest.mark.parametrize(
    ("value", "found"),
    [(b"1234567", "a value of 7 bytes"), (b"123456789", "9 bytes"), (b"", "0 bytes"), (None, "no value")],
)
def test_a_value_of_another_size_is_named_by_its_offset(log: Log, value: bytes | None, found: str) -> None:
    log.append_many([b"12345678", b"12345678", value, b"12345678"])
    with pytest.raises(UsageError, match=f"at offset 2 has .*{found}.*takes 8 bytes") as caught:
        list(log.to_numpy(value_dtype="<f8"))
    assert caught.value.offset == 2
    assert len(next(log.to_numpy(3, value_dtype="<f8")).offsets) == 1


def test_sizes_that_even_out_are_distinguished(log: Log) -> None:
    log.append_many([b"1234", b"123", b"12345"])
    with pytest.raises(UsageError, match="at offset 1 "):
        list(log.to_numpy(value_dtype="<i4"))


@pytest.mark.parametrize("dtype", [object, np.dtype([("a", object)]), "S", "U", "V0"])
def test_a_dtype_without_a_size_in_bytes_is_refused(log: Log, dtype: Any) -> None:
    with pytest.raises(UsageError, match="no fixed size"):
        log.to_numpy(value_dtype=dtype)


def test_what_is_no_dtype_is_refused(log: Log) -> None:
    with pytest.raises(ArgumentTypeError, match="is no NumPy dtype"):
        log.to_numpy(value_dtype="float-ish")


@pytest.mark.parametrize("dtype", [np.dtype(object), np.dtype([("a", object), ("b", "i8")])], ids=str)
def test_arrays_of_python_objects_are_no_bytes(log: Log, dtype: np.dtype[Any]) -> None:
    with pytest.raises(ArgumentTypeError, match="Python objects"):
        log.append_many(np.zeros(2, dtype))
    assert log.log_end_offset == 0


def test_an_array_of_single_bytes_is_not_taken_for_a_record_a_byte(log: Log) -> None:
    with pytest.raises(ArgumentTypeError, match="2-D uint8"):
        log.append_many(np.zeros(10, np.uint8))
    assert log.log_end_offset == 0


def test_ranges_and_damage_are_those_of_read(tmp_path: Path) -> None:
    with Log.open(tmp_path / "points-0") as log:
        log.append_many(np.arange(10, dtype="<i8"))
        with pytest.raises(OffsetOutOfRangeError):
            log.to_numpy(11)
        assert list(log.to_numpy(4, 4)) == []
        log.flush()
        (segment,) = (tmp_path / "points-0").glob("*.log")
        with segment.open("r+b") as file:
            file.seek(70)
            file.write(b"\xff")
        with pytest.raises(CorruptBatchError):
            list(log.to_numpy(value_dtype="<i8"))


def test_headers_of_batches_are_those_that_were_written(tmp_path: Path) -> None:
    with Log.open(tmp_path / "points-0", LogConfig(segment_bytes=300)) as log:
        for number in range(20):
            values = [b"v"] * (number % 3 + 1)
            log.append_batches(
                batch.build(
                    values,
                    timestamps_ms=[number] * len(values),
                    producer_id=7,
                    producer_epoch=2,
                    base_sequence=sum(earlier % 3 + 1 for earlier in range(number)),
                )
            )
        pieces = list(log.batches(max_bytes=200))
        assert len(pieces) > 1
        rows = np.concatenate(pieces)
        fetched: list[batch.BatchInfo] = []
        offset = 0
        while offset < log.high_watermark:
            data = log.fetch(offset, max_bytes=1).data
            fetched.append(batch.validate(data))
            assert rows["crc"][len(fetched) - 1] == int.from_bytes(data[17:21], "big")
            offset = fetched[-1].last_offset + 1
        for name in (
            "base_offset",
            "last_offset",
            "max_timestamp",
            "producer_id",
            "size",
            "leader_epoch",
            "record_count",
            "base_sequence",
            "attributes",
            "producer_epoch",
        ):
            assert rows[name].tolist() == [getattr(info, name) for info in fetched], name
        inner = np.concatenate(list(log.batches(int(rows["last_offset"][2]), int(rows["base_offset"][9]))))
        assert inner.tolist() == rows[2:9].tolist()
        assert list(log.batches(log.high_watermark)) == []
        with pytest.raises(OffsetOutOfRangeError):
            next(log.batches(-1))


def test_a_damaged_batch_is_named_by_its_offset(tmp_path: Path) -> None:
    with Log.open(tmp_path / "points-0") as log:
        log.append_many([b"a" * 100, b"b"])
        log.append_many([b"c" * 100])
        path = Path(log.segments[0].path)
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"c" * 50)] ^= 1
    path.write_bytes(damaged)
    with Log.open(tmp_path / "points-0", read_only=True) as log, pytest.raises(CorruptBatchError) as error:
        list(log.batches())
    assert (error.value.offset, error.value.partition) == (2, "points-0")
