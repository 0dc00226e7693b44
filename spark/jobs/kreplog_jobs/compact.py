"""Job `compact`: the newest value of each key of a topic, as Parquet; a null value (a tombstone) removes its key.

    python -m kreplog_jobs.compact data --topic accounts --output accounts.parquet

The rows are key binary, value binary, partition int, offset long, timestamp timestamp. Newest is the highest offset
within a partition, as in Kafka's log compaction: a key that producers have sent to several partitions has a row in
each. Nothing is written unless everything is: Spark commits the directory at its end.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.sql import functions as sf

from kreplog.errors import UsageError
from kreplog_jobs import job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"


class NullKeys(StrEnum):
    """What to do with records that have no key."""

    fail = "fail"
    drop = "drop"


def main(
    path: job.Source,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic to compact.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Parquet directory to write; it must not exist yet.")],
    keep_tombstones: Annotated[
        bool, typer.Option("--keep-tombstones", help="Keep keys whose newest value is null.")
    ] = False,
    null_keys: Annotated[
        NullKeys, typer.Option(help="Records without a key: fail, as Kafka does, or drop.")
    ] = NullKeys.fail,
    master: job.Master = None,
) -> None:
    """Write the newest value of each key of a topic to Parquet; keys whose newest value is null are left out."""
    if output.exists():
        raise UsageError(f"{output} exists: give another --output, or delete it first", path=str(output))
    with job.session("compact", master) as spark:
        rows = job.records(spark, path, topic, _SCHEMA)
        if null_keys is NullKeys.fail:
            first = rows.where(sf.col("key").isNull()).select("partition", "offset").limit(1).collect()
            if first:
                raise UsageError(
                    f"{topic}-{first[0].partition}: the record at offset {first[0].offset} has no key, so it cannot be "
                    "compacted; --null-keys drop leaves such records out",
                    partition=f"{topic}-{first[0].partition}",
                    offset=first[0].offset,
                )
        with job.progress(spark, "compact"):
            newest_by_key(rows, keep_tombstones).write.parquet(str(output), mode="error")
        print(f"{output}: {spark.read.parquet(str(output)).count():,} keys of {topic}")


def newest_by_key(rows: DataFrame, keep_tombstones: bool) -> DataFrame:
    """The last record of each key and partition; those whose value is null only with `keep_tombstones`."""
    newest = (
        rows.where(sf.col("key").isNotNull())
        .groupBy("partition", "key")
        .agg(sf.max_by(sf.struct("value", "offset", "timestamp"), "offset").alias("newest"))
        .select("key", "newest.value", "partition", "newest.offset", "newest.timestamp")
    )
    return newest if keep_tombstones else newest.where(sf.col("value").isNotNull())


if __name__ == "__main__":
    job.run(main)
