"""Batches in memory, checksums and codecs. Each call is checked for what it returns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import ceiling
from benchmarks.data import Pool
from kreplog._native import batch, compression, crc32c

RECORDS = 1000
TIMESTAMP_MS = 1_760_000_000_000
VALUES = Pool(100, RECORDS, seed=1).slice(0, RECORDS)
ENCODED = batch.build(VALUES, timestamps_ms=[TIMESTAMP_MS] * RECORDS)


@pytest.mark.parametrize("size", [64, 4096, 65536, 1 << 20])
@pytest.mark.parametrize("checksum", [crc32c.crc32c, ceiling.crc32c], ids=["kreplog", "ceiling"])
def test_crc32c(benchmark: BenchmarkFixture, checksum: Callable[[bytes], int], size: int) -> None:
    benchmark.group = f"crc32c of {size} B"
    data = random.Random(size).randbytes(size)
    assert benchmark(checksum, data) == crc32c.crc32c_with("crcmod", data)


def test_build(benchmark: BenchmarkFixture) -> None:
    benchmark.group = f"batch of {RECORDS} x 100 B"
    timestamps = [TIMESTAMP_MS] * RECORDS
    assert benchmark(lambda: batch.build(VALUES, timestamps_ms=timestamps)) == ENCODED


def test_decode(benchmark: BenchmarkFixture) -> None:
    benchmark.group = f"batch of {RECORDS} x 100 B"
    assert [record.value for record in benchmark(batch.decode, ENCODED)] == VALUES


def test_decode_values(benchmark: BenchmarkFixture) -> None:
    benchmark.group = f"batch of {RECORDS} x 100 B"
    assert benchmark(batch.decode_values, ENCODED) == VALUES


@pytest.mark.parametrize("deep", [False, True], ids=["header and CRC", "every varint"])
def test_validate(benchmark: BenchmarkFixture, deep: bool) -> None:
    benchmark.group = f"batch of {RECORDS} x 100 B"
    assert benchmark(lambda: batch.validate(ENCODED, deep=deep)).record_count == RECORDS


@pytest.mark.parametrize("codec", [name for name in compression.CODECS if name != "none"])
def test_compress(benchmark: BenchmarkFixture, codec: str) -> None:
    benchmark.group = f"compress {len(ENCODED)} B"
    number = compression.CODECS[codec]
    packed = benchmark(compression.compress, number, ENCODED)
    assert compression.decompress(number, packed, len(ENCODED)) == ENCODED


@pytest.mark.parametrize("codec", [name for name in compression.CODECS if name != "none"])
def test_decompress(benchmark: BenchmarkFixture, codec: str) -> None:
    benchmark.group = f"decompress {len(ENCODED)} B"
    number = compression.CODECS[codec]
    packed = compression.compress(number, ENCODED)
    assert benchmark(compression.decompress, number, packed, len(ENCODED)) == ENCODED
