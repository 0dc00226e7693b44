"""Job `compact`: the newest value of each key of a topic, as Parquet or into another topic; a null value (a tombstone)
removes its key.

    python -m kreplog_jobs.compact data --topic accounts --output accounts.parquet
    python -m kreplog_jobs.compact data --topic accounts --into compacted --into-topic accounts

The rows of Parquet are key binary, value binary, partition int, offset long, timestamp timestamp. Newest is the highest
offset within a partition, as in Kafka's log compaction: a key that producers have sent to several partitions has a row
in each. In a topic they are records with key and value. Into a topic of a directory go all or none, to brokers each at
least once; a directory of Parquet is complete once it has Spark's _SUCCESS.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.sql import functions as sf

from kreplog.errors import UsageError
from kreplog.types import check_topic
from kreplog_jobs import job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"


class NullKeys(StrEnum):
    """The treatment of records that have no key."""

    fail = "fail"
    drop = "drop"


def main(
    path: job.Source,
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic to compact.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Parquet directory to write; it must not exist yet.")
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(help="Directory, or brokers as host:port,host:port, with the topic to write into."),
    ] = None,
    into_topic: Annotated[str | None, typer.Option(help="The topic to write into [default: the same name].")] = None,
    keep_tombstones: Annotated[
        bool, typer.Option("--keep-tombstones", help="Keep keys whose newest value is null.")
    ] = False,
    null_keys: Annotated[
        NullKeys, typer.Option(help="Records without a key: fail, as Kafka does, or drop.")
    ] = NullKeys.fail,
    command_config: job.CommandConfig = None,
    master: job.Master = None,
) -> None:
    """Write the newest value of each key of a topic; keys whose newest value is null are left out."""
    check_topic(topic)
    if (output is None) == (into is None):
        raise UsageError(
            "write to one of --output, a Parquet directory, and --into, a directory or brokers with a topic"
        )
    if into is not None and (Path(into) / (into_topic or topic)).resolve() == (path / topic).resolve():
        raise UsageError(f"{topic} in {path} is what is read: choose another --into or --into-topic")
    target = {} if into is None else job.place(into, job.security_of(into, command_config))
    if into is None and command_config is not None:
        raise UsageError("--command-config is of connections to brokers: name them with --into")
    if output is not None and output.exists():
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
        newest = newest_by_key(rows, keep_tombstones)
        with job.progress(spark, "compact"):
            if output is not None:
                newest.write.parquet(str(output), mode="error")
            else:
                sink = newest.select("key", "value").write.format("kreplog").mode("append")
                sink.options(**target, topic=into_topic or topic).save()
    print(f"{topic}: the newest values are in {output or into}")


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
