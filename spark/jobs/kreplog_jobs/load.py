"""Job `load`: rows of Parquet, CSV or JSON files into a topic of a directory or of brokers, partitioned by key.

    python -m kreplog_jobs.load flights.csv data --topic flights --key carrier --partitions 4
    python -m kreplog_jobs.load flights.csv broker-1:9092 --topic flights --key carrier --transactional-id load-flights

A row becomes a record: its key is the text of the column that --key names (none without it), its value the text or
bytes of the column that --value names, or the whole row as a JSON object. A row whose key is null has no key; a null
value is a tombstone. Into a directory, and to brokers in a transaction, go all rows or none, so that a job that was
killed can be run again; to brokers without a transaction at least once. CSV files need a header line; their columns
are text, so that 007 stays 007.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType

from kreplog.errors import UsageError
from kreplog.types import Codec
from kreplog_jobs import job

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Format(StrEnum):
    """The format of the input files."""

    parquet = "parquet"
    csv = "csv"
    json = "json"


def main(
    files: Annotated[str, typer.Argument(help="A file, a directory of files, or a pattern such as day-*.csv.")],
    target: Annotated[
        str,
        typer.Argument(
            help="The directory that holds, or will hold, the <topic>-<partition> folders, or brokers as "
            "host:port,host:port."
        ),
    ],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The topic to load into.")],
    key: Annotated[str | None, typer.Option(help="Column whose text is the key.")] = None,
    value: Annotated[str | None, typer.Option(help="Column that is the value [default: the row as JSON].")] = None,
    file_format: Annotated[
        Format | None, typer.Option("--format", help="Of the files [default: by the name's ending].")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Of a topic that is created in a directory [default: 1].")
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(help="To brokers: all rows or none, in a transaction with this id; the driver has all in memory."),
    ] = None,
    compression: Annotated[Codec, typer.Option(help="What record batches are compressed with.")] = Codec.lz4,
    command_config: job.CommandConfig = None,
    master: job.Master = None,
) -> None:
    """Load Parquet, CSV or JSON files into a topic, by key; all rows or none, to brokers with --transactional-id."""
    kind = file_format or _format_of(files)
    options = _target(target, topic, partitions, transactional_id, job.security_of(target, command_config))
    with job.session("load", master) as spark:
        reader = spark.read
        if kind is Format.csv:
            reader = reader.options(header="true")
        rows = to_records(reader.format(kind.value).load(files), key, value)
        with job.progress(spark, "load"):
            sink = rows.write.format("kreplog").mode("append").options(**options, topic=topic)
            sink.option("kafka.compression.type", compression.value).save()
    print(f"{files}: loaded into {topic} in {target}")


def _target(
    target: str, topic: str, partitions: int | None, transactional_id: str | None, security: Mapping[str, str]
) -> dict[str, str]:
    """The sink's options for a directory or brokers. Raises UsageError for an option that is of the other."""
    if not job.is_brokers(target):
        if transactional_id is not None:
            raise UsageError("--transactional-id is for brokers: a directory gets all rows or none without it")
        return job.place(target, security) | ({} if partitions is None else {"numPartitions": str(partitions)})
    if partitions is not None:
        raise UsageError(f"--partitions is for a directory: create {topic} on the brokers first, with its partitions")
    once = {} if transactional_id is None else {"kafka.transactional.id": transactional_id}
    return job.place(target, security) | once


def to_records(rows: DataFrame, key: str | None, value: str | None) -> DataFrame:
    """The columns key, where one is named, and value. Raises UsageError for a column that is not there."""
    for option, name in (("--key", key), ("--value", value)):
        if name is not None and name not in rows.columns:
            raise UsageError(f"{option} {name}: there is no such column; the files have {', '.join(rows.columns)}")
    whole = sf.to_json(sf.struct(*(sf.col(f"`{name}`") for name in rows.columns)), {"ignoreNullFields": "false"})
    columns = [(whole if value is None else _bytes_or_text(rows, value)).alias("value")]
    if key is not None:
        columns.append(_bytes_or_text(rows, key).alias("key"))
    return rows.select(*columns)


def _bytes_or_text(rows: DataFrame, name: str) -> Column:
    column = sf.col(f"`{name}`")
    return column if isinstance(rows.schema[name].dataType, BinaryType) else column.cast("string")


def _format_of(files: str) -> Format:
    for suffix in reversed(Path(files).suffixes):  # the last may be of a compression, as in .csv.gz
        if suffix.removeprefix(".") in list(Format):
            return Format(suffix.removeprefix("."))
    raise UsageError(f"{files}: its name ends in none of {', '.join(Format)}; say what it is with --format")


if __name__ == "__main__":
    job.run(main)
