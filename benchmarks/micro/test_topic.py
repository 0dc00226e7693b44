"""Calls of Topic, cursors and tables, on a topic of four partitions in a temporary directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.data import Pool
from kreplog import Topic

ROWS = 20_000
VALUES = Pool(100, ROWS, seed=1).slice(0, ROWS)
KEYS = [b"key-%06d" % (row % (ROWS // 2)) for row in range(ROWS)]


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with Topic.open(tmp_path / "orders", 4) as topic:
        yield topic


@pytest.fixture
def filled(topic: Topic) -> Topic:
    """20,000 records of 10,000 keys."""
    topic.append_many(VALUES, KEYS)
    return topic


def test_append(benchmark: BenchmarkFixture, topic: Topic) -> None:
    benchmark.group = "append to a topic"
    number, offset = benchmark(topic.append, VALUES[0], KEYS[0])
    assert topic.offsets()[number].stop == offset + 1


def test_append_many(benchmark: BenchmarkFixture, topic: Topic) -> None:
    benchmark.group = "append to a topic"
    benchmark(topic.append_many, VALUES[:1000], KEYS[:1000])
    assert sum(offsets.stop for offsets in topic.offsets().values()) % 1000 == 0


@pytest.mark.parametrize("durable", [False, True], ids=["", "durable"])
def test_cursor_commit(benchmark: BenchmarkFixture, filled: Topic, durable: bool) -> None:
    benchmark.group = "commit a position"
    with filled.cursor("billing") as cursor:
        records = iter(cursor)

        def commit() -> None:
            next(records)
            cursor.commit(durable=durable)

        benchmark.pedantic(commit, rounds=200)
        assert cursor.committed == cursor.positions and sum(cursor.committed.values()) > 0


def test_table_load(benchmark: BenchmarkFixture, filled: Topic) -> None:
    benchmark.group = "table"
    table = benchmark(filled.table)
    assert len(table) == ROWS // 2 and table[KEYS[-1]] == VALUES[-1]


def test_table_get(benchmark: BenchmarkFixture, filled: Topic) -> None:
    benchmark.group = "table"
    assert benchmark(filled.table().get, KEYS[-1]) == VALUES[-1]
