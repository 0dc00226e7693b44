"""Calls of Log, each on a log in a temporary directory. A call is checked for what it returns, or the log for what it
holds then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.data import Pool
from kreplog import Log, LogConfig
from kreplog._native import batch

ROWS = 100_000
POOL = Pool(100, ROWS, seed=1)
VALUES = POOL.slice(0, 1000)
TIMESTAMP_MS = 1_760_000_000_000
FETCHED_BYTES = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log.open(tmp_path / "empty-0") as log:
        yield log


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 100,000 records of 100 B, one each millisecond, in segments of 1 MiB."""
    path = tmp_path_factory.mktemp("micro") / "filled-0"
    with Log.open(path, LogConfig(segment_bytes=1 << 20)) as log:
        for first in range(0, ROWS, 1000):
            log.append_many(POOL.slice(first, 1000), timestamps_ms=range(first, first + 1000))
    return path


@pytest.fixture
def filled(path: Path) -> Iterator[Log]:
    with Log.open(path, read_only=True) as log:
        yield log


# Writing


def test_append(benchmark: BenchmarkFixture, log: Log) -> None:
    benchmark.group = "write one record of 100 B"
    assert benchmark(log.append, VALUES[0]) == log.log_end_offset - 1


def test_appender(benchmark: BenchmarkFixture, log: Log) -> None:
    benchmark.group = "write one record of 100 B"
    with log.appender() as appender:
        benchmark(appender.append, VALUES[0])
        appender.flush()
        assert set(log.values()) == {VALUES[0]}


def test_append_many(benchmark: BenchmarkFixture, log: Log) -> None:
    benchmark.group = "write 1,000 records of 100 B"
    benchmark(log.append_many, VALUES)
    assert list(log.values(log.log_end_offset - 1000)) == VALUES


def test_append_batches(benchmark: BenchmarkFixture, log: Log) -> None:
    benchmark.group = "write 1,000 records of 100 B"
    encoded = batch.build(VALUES, timestamps_ms=[TIMESTAMP_MS] * 1000)
    benchmark(log.append_batches, encoded)
    assert list(log.values(log.log_end_offset - 1000)) == VALUES


def test_roll(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Append a record that does not fit in the segment, which is rolled first."""
    benchmark.group = "change segments"
    with Log.open(tmp_path / "rolled-0", LogConfig(segment_bytes=256)) as log:
        calls = itertools.count(1)
        benchmark.pedantic(lambda: (next(calls), log.append(VALUES[0] * 2)), rounds=200)
        assert len(list((tmp_path / "rolled-0").glob("*.log"))) == next(calls) - 1


def test_truncate(benchmark: BenchmarkFixture, log: Log) -> None:
    """Drop the last of two batches."""
    benchmark.group = "change segments"
    log.append_many(VALUES)

    def append() -> None:
        log.append(VALUES[0])

    assert benchmark.pedantic(log.truncate_to, (1000,), setup=append, rounds=200) == log.log_end_offset == 1000


# Reading


def test_fetch(benchmark: BenchmarkFixture, filled: Log) -> None:
    benchmark.group = "read"
    fetched = benchmark(filled.fetch, ROWS // 2, FETCHED_BYTES)
    assert batch.validate(fetched.data).base_offset <= ROWS // 2


def test_seek(benchmark: BenchmarkFixture, filled: Log) -> None:
    """A record by its offset."""
    benchmark.group = "look up"
    offsets = itertools.cycle(range(7, ROWS, 9973))
    (value,) = benchmark(lambda: list(filled.values(offset := next(offsets), offset + 1)))
    assert value in POOL.slice(0, ROWS)


def test_offset_for_timestamp(benchmark: BenchmarkFixture, filled: Log) -> None:
    benchmark.group = "look up"
    assert benchmark(filled.offset_for_timestamp, ROWS // 2) == ROWS // 2


def test_values(benchmark: BenchmarkFixture, filled: Log) -> None:
    benchmark.group = "read"
    assert benchmark(lambda: list(filled.values(1000, 2000))) == POOL.slice(1000, 1000)


def test_arrow(benchmark: BenchmarkFixture, filled: Log) -> None:
    pytest.importorskip("pyarrow", reason="kreplog[arrow] is not installed")
    benchmark.group = "read"
    batches = benchmark(lambda: list(filled.to_arrow(1000, 2000)))
    assert [value for each in batches for value in each["value"].to_pylist()] == POOL.slice(1000, 1000)


# Opening


@pytest.mark.parametrize("read_only", [False, True])
def test_reopen(benchmark: BenchmarkFixture, path: Path, read_only: bool) -> None:
    """Open a log of ten segments that was closed, and close it."""
    benchmark.group = "open"

    def reopen() -> int:
        with Log.open(path, read_only=read_only) as log:
            return log.log_end_offset

    assert benchmark(reopen) == ROWS
