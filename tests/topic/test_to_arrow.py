"""Topic.to_arrow: a partition, all of them, and all of them merged by time, beside Topic.read."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kreplog import LogConfig, Topic, errors
from kreplog.topic import arrow_merge
from tests.reference import sent

NOW = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A topic of four partitions, the last of them empty, with times that fall now and then."""
    path = tmp_path / "orders"
    draw = random.Random(3)
    with Topic.open(path, 4, config=LogConfig(batch_bytes=400)) as topic:
        for number in range(3):
            rows = range(100 * number + 50)
            times = [NOW + row // (number + 1) + draw.randrange(40) for row in rows]
            topic.append_many([b"%d" % row for row in rows], [b"k"] * len(rows), times, partition=number)
        topic.append(b"x", partition=1, headers=[("h", b"1")], timestamp_ms=NOW)
    return path


def rows_of(batches: Any) -> list[tuple[Any, ...]]:
    table = pa.Table.from_batches(list(batches))
    columns = [table["partition"], table["offset"], table["timestamp"].cast("int64"), table["key"], table["value"]]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.mark.parametrize("order", ["partition", "time"])
@pytest.mark.parametrize("max_bytes", [1, 100_000_000])
def test_it_is_what_read_returns(path: Path, order: str, max_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kreplog.topic.LEAST_PIECE", 1)
    with Topic.open(path, read_only=True) as topic:
        wanted = [record[:5] for record in topic.read(order=order)]
        batches = list(topic.to_arrow(order=order, max_bytes=max_bytes))
        assert rows_of(batches) == wanted
        assert batches[0].schema.names == ["partition", "offset", "timestamp", "key", "value", "headers"]
        assert batches[0].schema.field("partition").type == pa.int32()
        assert [record[:5] for record in topic.read(1, 50, 60)] == rows_of(topic.to_arrow(1, 50, 60, order=order))


@pytest.mark.parametrize("order", ["partition", "time"])
def test_read_committed(path: Path, order: str) -> None:
    with Topic.open(path) as topic:
        before = rows_of(topic.to_arrow(order=order))
        topic.log(3).append_batches(sent(7, 0, b"in it"), transactional=True)
        assert rows_of(topic.to_arrow(order=order, isolation="read_committed")) == before
        topic.log(3).append_transaction_marker(7, 0, committed=True, coordinator_epoch=0)
        assert len(rows_of(topic.to_arrow(order=order, isolation="read_committed"))) == len(before) + 1


def test_a_merge_of_small_pieces(path: Path) -> None:
    """As if the batches were cut anywhere."""
    draw = random.Random(5)
    with Topic.open(path, read_only=True) as topic:
        wanted = [record[:5] for record in topic.read(order="time")]

        def cut(number: int) -> Any:
            for batch in topic.log(number).to_arrow():
                at = 0
                while at < len(batch):
                    size = draw.randrange(0, 7)
                    yield batch.slice(at, size)
                    at += size

        assert rows_of(arrow_merge.by_time([(number, cut(number)) for number in (2, 0, 3, 1)])) == wanted


def test_columns(path: Path) -> None:
    with Topic.open(path, read_only=True) as topic:
        for order in ("partition", "time"):
            for columns in (["value"], ["partition"], ["value", "partition", "timestamp"]):
                (batch, *_) = topic.to_arrow(columns=columns, order=order)
                assert batch.schema.names == columns and len(batch)
        times = next(topic.to_arrow(timestamp_unit="us", order="time")).schema.field("timestamp").type
        assert times == pa.timestamp("us", "UTC")
        with pytest.raises(errors.UsageError):
            topic.to_arrow(order="size")
        with pytest.raises(errors.UsageError):
            topic.to_arrow(columns=["colour"])
        with pytest.raises(errors.UsageError):
            topic.to_arrow(7)


def test_rows_that_were_read_can_be_appended(path: Path, tmp_path: Path) -> None:
    """The partition column says where, so that a topic is copied as it is."""
    with Topic.open(path, read_only=True) as topic, Topic.open(tmp_path / "copy", 4) as copy:
        for batch in topic.to_arrow():
            copy.append_many(batch)
        assert list(copy.read()) == list(topic.read())


def test_an_empty_topic(tmp_path: Path) -> None:
    with Topic.open(tmp_path / "t", 2) as topic:
        assert list(topic.to_arrow()) == list(topic.to_arrow(order="time")) == []
