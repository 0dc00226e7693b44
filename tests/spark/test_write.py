"""df.write to a path: columns, options and errors of Spark's Kafka sink, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kreplog import Log
from kreplog.bulk_append import murmur2, partition_for
from pyspark_kreplog.staging import FOLDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Save = Callable[..., None]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """save(frame, option=...): append the frame to the logs below tmp_path."""

    def save(frame: DataFrame, mode: str | None = "append", **options: str) -> None:
        writer = frame.write.format("kreplog").option("path", str(tmp_path)).options(**options)
        (writer if mode is None else writer.mode(mode)).save()

    return save


def records(path: Path) -> list[tuple[bytes | None, bytes | None]]:
    with Log.open(path, read_only=True) as log:
        return [(record.key, record.value) for record in log.read()]


def staged(path: Path) -> list[str]:
    return sorted(entry.name for entry in (path / FOLDER).iterdir())


def test_write_and_read_back(save: Save, spark: SparkSession, tmp_path: Path) -> None:
    columns = ["cast(id as string) key", "cast(cast(id as string) as binary) value", "id ignored"]
    frame = spark.range(1000).selectExpr(*columns)
    save(frame, topic="t", numPartitions="3")
    save(frame, topic="t")
    found = [records(tmp_path / f"t-{partition}") for partition in range(3)]
    for partition, content in enumerate(found):
        assert content and all(key is not None and partition_for(key, 3) == partition for key, _ in content)
    assert sorted(key for content in found for key, _ in content if key) == sorted(
        str(number).encode() for number in range(1000) for _ in range(2)
    )
    back = spark.read.format("kreplog").option("path", str(tmp_path)).option("subscribe", "t").load()
    assert back.count() == 2000
    assert staged(tmp_path) == ["lock"]


def test_kafkas_murmur2() -> None:
    """The vectors of Kafka's UtilsTest."""
    for key, expected in (
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ):
        assert murmur2(key) == expected
        assert partition_for(key, 7) == (expected & 0x7FFFFFFF) % 7
