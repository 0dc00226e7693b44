"""Topic.append_many: columns of every kind, split among the partitions; and nothing written where a row is wrong."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog import LogConfig, Topic, errors
from kreplog._native.partitioner import partition_for

NOW = 1_700_000_000_000
KEYS: list[bytes | None] = [b"k%d" % (number % 13) for number in range(200)]
VALUES: list[bytes | None] = [None if number % 50 == 7 else b"v%d" % number * (number % 5) for number in range(200)]
TIMES = [NOW + number for number in range(200)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


def table() -> pa.Table:
    return pa.table(
        {
            "key": pa.array(KEYS, pa.binary()),
            "value": pa.array(VALUES, pa.binary()),
            "timestamp": pa.array(TIMES, pa.timestamp("ms", "UTC")),
        }
    )


def chunked() -> pa.Table:
    return pa.concat_tables([table().slice(at, 30) for at in range(0, 200, 30)])


TABLES: dict[str, Callable[[], Any]] = {
    "pyarrow": table,
    "chunks": chunked,
    "record batch": lambda: table().combine_chunks().to_batches()[0],
    "reader": lambda: chunked().to_reader(),
    "pandas": lambda: table().to_pandas(),
    "polars": lambda: pl.from_arrow(table()),
    "duckdb": lambda: duckdb.from_arrow(table()),
}
COLUMNS: dict[str, Callable[[list[bytes | None]], Any]] = {
    "list": list,
    "tuple": tuple,
    "memoryviews": lambda items: [None if item is None else memoryview(item) for item in items],
    "array": lambda items: pa.array(items, pa.binary()),
    "large array": lambda items: pa.array(items, pa.large_binary()),
    "view array": lambda items: pa.array(items, pa.binary_view()),
    "chunked array": lambda items: pa.chunked_array(
        [pa.array(items[:70], pa.binary()), pa.array(items[70:], pa.binary())]
    ),
    "polars series": lambda items: pl.Series("x", items, pl.Binary),
}


def expect(topic: Topic, appended: dict[int, range], partitions: int) -> None:
    """Each row where its key belongs, in order."""
    rows = list(zip(KEYS, VALUES, TIMES, strict=True))
    for number in range(partitions):
        wanted = [row for row in rows if partition_for(row[0] or b"", partitions) == number]
        assert [(r.key, r.value, r.timestamp_ms) for r in topic.read(number)] == wanted
        assert appended.get(number, range(0)) == range(len(wanted))


@pytest.mark.parametrize("kind", TABLES)
def test_tables(path: Path, kind: str) -> None:
    with Topic.open(path, 4) as topic:
        expect(topic, topic.append_many(TABLES[kind]()), 4)


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns(path: Path, kind: str) -> None:
    with Topic.open(path, 4) as topic:
        expect(topic, topic.append_many(COLUMNS[kind](VALUES), COLUMNS[kind](KEYS), np.array(TIMES)), 4)


def test_numpy_rows(path: Path) -> None:
    rows = np.arange(40, dtype=np.uint8).reshape(10, 4)
    with Topic.open(path, 2) as topic:
        topic.append_many(rows, [b"%d" % number for number in range(10)])
        topic.append_many(np.arange(5, dtype="<f8"), partition=1)
        found = {record.key: record.value for record in topic.read() if record.key is not None}
        assert found == {b"%d" % number: rows[number].tobytes() for number in range(10)}
        assert [r.value for r in topic.read(1) if r.key is None] == [np.float64(i).tobytes() for i in range(5)]


def test_headers_and_partitions_of_a_table(path: Path) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    data = pa.table(
        {
            "value": pa.array([b"a", b"b", b"c"]),
            "partition": pa.array([2, 0, None], pa.int32()),
            "key": pa.array([b"x", b"x", b"21"]),
            "headers": pa.array([[{"key": "h", "value": b"1"}], None, []], kind),
        }
    )
    with Topic.open(path, 3) as topic:
        appended = topic.append_many(data)
        by_key = partition_for(b"21", 3)
        assert {number: len(offsets) for number, offsets in appended.items()} == Counter([2, 0, by_key])
        assert next(topic.read(2)).headers == (("h", b"1"),)


def test_one_partition_for_all(path: Path) -> None:
    with Topic.open(path, 4) as topic:
        assert topic.append_many(VALUES, KEYS, partition=3) == {3: range(200)}
        assert topic.append_many([b"x"], partition=3) == {3: range(200, 201)}
        assert topic.append_many([]) == topic.append_many([], partition=1) == {}


def test_rows_without_a_key_go_in_long_runs_to_all_partitions(path: Path) -> None:
    with Topic.open(path, 4) as topic:
        assert sorted(len(offsets) for offsets in topic.append_many([b"x"] * 8000).values()) == [2000] * 4
        assert len(topic.append_many([b"x"] * 900)) == 1, "and few stay together"


def test_batches_are_large_and_segments_roll(path: Path) -> None:
    config = LogConfig(segment_bytes=5000, batch_bytes=1000, compression_type="lz4")
    with Topic.open(path, 2, config=config) as topic:
        topic.append_many([b"%d" % number * 10 for number in range(5000)], partition=0)
        headers = np.concatenate(list(topic.log(0).batches()))
        assert headers["record_count"].sum() == 5000 and 5 < headers["record_count"].mean() < 100
        assert len(topic.log(0).segments) > 3
        assert [r.value for r in topic.read(0)] == [b"%d" % number * 10 for number in range(5000)]


WRONG: dict[str, tuple[Callable[[], tuple[Any, ...]], type[Exception]]] = {
    "a large value": (lambda: ([b"x"] * 5000 + [bytes(5000)],), errors.RecordTooLargeError),
    "a large key": (lambda: ([b"x"] * 5000, [b"k"] * 4999 + [bytes(5000)]), errors.RecordTooLargeError),
    "a large row": (
        lambda: (pa.table({"value": pa.array([b"x"] * 5000 + [bytes(5000)])}),),
        errors.RecordTooLargeError,
    ),
    "text": (lambda: ([b"x"] * 5000 + ["text"],), errors.ArgumentTypeError),
    "fewer keys": (lambda: ([b"x"] * 5000, [b"k"]), errors.UsageError),
    "a time before 1970": (lambda: ([b"x"] * 5000, None, [1] * 4999 + [-1]), errors.UsageError),
    "numbers": (lambda: (pa.array(range(5000)),), errors.ArgumentTypeError),
    "a column too many": (lambda: (pa.table({"value": [b"x"], "more": [1]}),), errors.ArgumentTypeError),
    "a partition too many": (
        lambda: (pa.table({"value": [b"x"] * 2, "partition": pa.array([0, 2], pa.int32())}),),
        errors.UsageError,
    ),
    "a wrong second chunk": (
        lambda: (pa.concat_tables([pa.table({"value": [b"x"] * 9}), pa.table({"value": [bytes(5000)]})]),),
        errors.RecordTooLargeError,
    ),
    "bytes": (lambda: (b"abc",), errors.ArgumentTypeError),
    "a number": (lambda: (5,), errors.ArgumentTypeError),
    "dictionaries": (lambda: (pa.array([b"x"]).dictionary_encode(),), errors.ArgumentTypeError),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_row_anywhere_writes_nothing(path: Path, case: str) -> None:
    arguments, error = WRONG[case]
    with Topic.open(path, 2, config=LogConfig(max_message_bytes=4000)) as topic:
        with pytest.raises(error):
            topic.append_many(*arguments())
        assert topic.offsets() == {0: range(0), 1: range(0)}
        topic.append_many([b"x"])


def test_a_reader_and_a_closed_topic(path: Path) -> None:
    topic = Topic.open(path, 1)
    with Topic.open(path, read_only=True) as reader, pytest.raises(errors.UsageError, match="read-only"):
        reader.append_many([b"x"])
    topic.append(b"x")
    topic.close()
    with pytest.raises(errors.LogClosedError):
        topic.append_many([b"x"])


def test_threads_append_whole_calls(path: Path) -> None:
    """Records of one call to one partition stand together."""
    with Topic.open(path, 3) as topic:
        threads = [
            threading.Thread(target=lambda n=n: [topic.append_many([b"%d" % n] * 50, partition=1) for _ in range(20)])
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        values = [record.value for record in topic.read(1)]
    assert len(values) == 4 * 20 * 50
    assert all(len(set(values[at : at + 50])) == 1 for at in range(0, len(values), 50))


RECORDS = st.lists(
    st.tuples(st.none() | st.binary(max_size=300), st.none() | st.binary(max_size=20), st.integers(0, 2**40)),
    max_size=60,
)


@settings(max_examples=60)
@given(calls=st.lists(RECORDS, max_size=4), partitions=st.integers(1, 5), as_table=st.booleans())
def test_against_a_plain_model(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Any], partitions: int, as_table: bool
) -> None:
    """Whatever is appended is there, keyed records where Kafka puts them, each partition in the order of the calls."""
    path = tmp_path_factory.mktemp("model") / "t"
    config = LogConfig(segment_bytes=1500, batch_bytes=500)
    wanted: list[list[Any]] = [[] for _ in range(partitions)]
    with Topic.open(path, partitions, config=config) as topic:
        for call in calls:
            values, keys, times = ([row[at] for row in call] for at in range(3))
            if as_table:
                columns = [pa.array(values, pa.binary()), pa.array(keys, pa.binary()), pa.array(times, pa.int64())]
                data = pa.table(columns, ["value", "key", "timestamp"])
                appended = topic.append_many(data)
            else:
                appended = topic.append_many(values, keys, times)
            assert sum(map(len, appended.values())) == len(call)
            for value, key, time in call:
                if key is not None:
                    wanted[partition_for(key, partitions)].append((key, value, time))
        for number in range(partitions):
            found = [(r.key, r.value, r.timestamp_ms) for r in topic.read(number) if r.key is not None]
            assert found == wanted[number]
        every = sorted((r.value or b"", r.timestamp_ms) for r in topic.read())
    assert every == sorted((value or b"", time) for call in calls for value, _, time in call)


def test_a_compacted_topic_needs_keys(path: Path) -> None:
    with Topic.open(path, 2, config=LogConfig(cleanup_policy="compact")) as topic:
        with pytest.raises(errors.InvalidRecordError, match="without a key"):
            topic.append_many([b"a", b"b", b"c"], [b"k", b"l", None])
        assert topic.offsets() == {0: range(0), 1: range(0)}
        topic.append_many([b"a", b"b"], [b"k", b"l"])
