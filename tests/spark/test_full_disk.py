"""The path sink and a full disk: a job that does not fit fails with one clear error, and nothing of it is visible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from kreplog import Log
from pyspark_kreplog.staging import FOLDER
from tests.integration.faults import cannot_mount, small_disk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CANNOT_MOUNT = cannot_mount()
pytestmark = [pytest.mark.spark, pytest.mark.skipif(bool(CANNOT_MOUNT), reason=CANNOT_MOUNT)]
DISK_MB = 16


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of DISK_MB."""
    with small_disk(tmp_path / "disk", DISK_MB):
        yield tmp_path / "disk"


def rows(spark: SparkSession, megabytes: int) -> DataFrame:
    """Records of 1 KiB in two partitions of topic "t"."""
    return spark.range(megabytes * 1024, numPartitions=2).selectExpr(
        "'t' topic",
        "cast(id % 2 as int) partition",
        "cast(substring(repeat(sha2(cast(id as string), 512), 8), 1, 1024) as binary) value",
    )


def save(frame: DataFrame, data: Path) -> None:
    frame.write.format("kreplog").mode("append").options(path=str(data), numPartitions=2, compression="none").save()


def record_count(data: Path) -> int:
    count = 0
    for partition in (0, 1):
        if (data / f"t-{partition}").is_dir():
            with Log.open(data / f"t-{partition}", read_only=True) as log:
                count += log.high_watermark - log.log_start_offset
    return count


def staged_files(data: Path) -> list[Path]:
    return list((data / FOLDER).rglob("*.batches"))


# 40 MiB fill the disk while they are staged, 10 MiB while they are copied into the logs.
@pytest.mark.parametrize("megabytes", [40, 10])
def test_a_job_that_does_not_fit(spark: SparkSession, disk: Path, megabytes: int) -> None:
    data = disk / "data"
    save(rows(spark, 1), data)
    with pytest.raises(PySparkException, match="No space left on device") as failed:
        save(rows(spark, megabytes), data)
    assert str(data) in str(failed.value)
    assert record_count(data) == 1024
    assert staged_files(data) == []
    save(rows(spark, 2), data)
    assert record_count(data) == 3 * 1024
