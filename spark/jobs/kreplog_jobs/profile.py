"""Job `profile`: how many records, bytes and keys a topic has, by partition and hour; skew, lateness and null values.

    python -m kreplog_jobs.profile data --output report

Reads records in parallel. Writes into the output directory the tables below, one PNG for each topic, and index.html,
which shows everything and needs no other file.

    profile.parquet   topic string, partition int, hour timestamp (UTC, of the records' own time), records, key_bytes,
                      value_bytes, null_keys, null_values long, keys long (distinct ones, estimated with a relative
                      standard deviation of 5 %), first_offset, last_offset long, late_ms long (how far the time of a
                      record lies behind an earlier one's of its partition, at most)
    keys.parquet      topic string, key binary, records long: the most frequent keys of each topic
    producers.parquet topic string, partition int, hour timestamp (of each batch's newest record), producer_id long (-1
                      for all that are not idempotent), batches, records, bytes long
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyspark.sql import Window
from pyspark.sql import functions as sf

import kreplog
from kreplog.errors import UsageError
from kreplog_jobs import job

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
_HOUR_MS = 3_600_000
_PRODUCERS = pa.schema(
    [
        *(("topic", pa.string()), ("partition", pa.int32()), ("hour", pa.timestamp("ms", "UTC"))),
        *((name, pa.int64()) for name in ("producer_id", "batches", "records", "bytes")),
    ]
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>kreplog profile</title>
<style>body {{ font: 15px system-ui, sans-serif; margin: 2rem; }} table {{ border-collapse: collapse; }}
td, th {{ padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }} img {{ max-width: 100%; }}</style>
</head><body><h1>Topics of {path}</h1>{body}</body></html>
"""


def main(
    path: job.Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write into; made if it is missing.")],
    subscribe: job.Topics = None,
    top_keys: Annotated[
        int, typer.Option(min=0, help="How many of the most frequent keys of each topic to list.")
    ] = 20,
    master: job.Master = None,
) -> None:
    """Profile topics: records, bytes, keys, skew and lateness by partition and hour, as tables, plots and a page."""
    with job.session("profile", master) as spark:
        rows = job.records(spark, path, subscribe, _SCHEMA)
        with job.progress(spark, "by partition and hour"):
            table = by_hour(rows).toArrow()
        if not table.num_rows:
            raise UsageError(f"{path}: there are no committed records to profile")
        with job.progress(spark, "keys"):
            keys = frequent_keys(rows, top_keys).toArrow()
        with job.progress(spark, "producers"):
            producers = producers_by_hour(
                spark,
                path,
                sorted({(row["topic"], row["partition"]) for row in table.select(["topic", "partition"]).to_pylist()}),
            )
    output.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, output / "profile.parquet")
    pq.write_table(keys, output / "keys.parquet")
    pq.write_table(producers, output / "producers.parquet")
    _write_page(output, path, table.to_pandas(), keys.to_pandas())
    print(f"{output / 'index.html'}: {table.num_rows} rows of partitions and hours")


def by_hour(rows: DataFrame) -> DataFrame:
    """One row for each topic, partition and hour; columns as at the head of this module."""
    before = Window.partitionBy("topic", "partition").orderBy("offset").rowsBetween(Window.unboundedPreceding, 0)
    behind = sf.max(sf.unix_millis("timestamp")).over(before) - sf.unix_millis("timestamp")
    return (
        rows.select(
            "topic",
            "partition",
            "offset",
            "key",
            sf.timestamp_millis(sf.floor(sf.unix_millis("timestamp") / _HOUR_MS) * _HOUR_MS).alias("hour"),
            sf.coalesce(sf.length("key"), sf.lit(0)).cast("long").alias("key_size"),
            sf.coalesce(sf.length("value"), sf.lit(0)).cast("long").alias("value_size"),
            sf.col("value").isNull().alias("is_tombstone"),
            behind.alias("behind_ms"),
        )
        .groupBy("topic", "partition", "hour")
        .agg(
            sf.count("*").alias("records"),
            sf.sum("key_size").alias("key_bytes"),
            sf.sum("value_size").alias("value_bytes"),
            sf.count_if(sf.col("key").isNull()).alias("null_keys"),
            sf.count_if("is_tombstone").alias("null_values"),
            sf.approx_count_distinct("key").alias("keys"),
            sf.min("offset").alias("first_offset"),
            sf.max("offset").alias("last_offset"),
            sf.max("behind_ms").alias("late_ms"),
        )
        .orderBy("topic", "partition", "hour")
    )


def frequent_keys(rows: DataFrame, count: int) -> DataFrame:
    """The `count` most frequent keys of each topic, with how many records each has."""
    rank = sf.row_number().over(Window.partitionBy("topic").orderBy(sf.desc("records"), "key"))
    counted = rows.where(sf.col("key").isNotNull()).groupBy("topic", "key").agg(sf.count("*").alias("records"))
    ranked = counted.withColumn("rank", rank).where(sf.col("rank") <= count)
    return ranked.orderBy("topic", "rank").select("topic", "key", "records")


def producers_by_hour(spark: SparkSession, path: Path, partitions: Sequence[tuple[str, int]]) -> pa.Table:
    """The batches, records and bytes of each producer, by partition and hour, from batch headers alone."""

    def counted(topic_partition: tuple[str, int]) -> list[dict[str, object]]:
        topic, partition = topic_partition
        totals: dict[tuple[int, int], list[int]] = {}
        with kreplog.Log.open(path / f"{topic}-{partition}", read_only=True) as log:
            for rows in log.batches():
                hours = rows["max_timestamp"] // _HOUR_MS
                for hour, producer, records, size in zip(
                    *(column.tolist() for column in (hours, rows["producer_id"], rows["record_count"], rows["size"])),
                    strict=True,
                ):
                    total = totals.setdefault((hour, producer), [0, 0, 0])
                    total[:] = total[0] + 1, total[1] + records, total[2] + size
        return [
            dict(zip(_PRODUCERS.names, (topic, partition, hour * _HOUR_MS, producer, *total), strict=True))
            for (hour, producer), total in sorted(totals.items())
        ]

    found = spark.sparkContext.parallelize(partitions, len(partitions)).flatMap(counted).collect()
    return pa.Table.from_pylist(found, _PRODUCERS)


def _write_page(output: Path, path: Path, profile: pd.DataFrame, keys: pd.DataFrame) -> None:
    sections = []
    for topic, rows in profile.groupby("topic"):
        picture = _plot(str(topic), rows)
        (output / f"{topic}.png").write_bytes(picture)
        columns = ["records", "key_bytes", "value_bytes", "null_keys", "null_values"]
        totals = rows.groupby("partition")[columns].sum().reset_index()
        totals["late_ms"] = rows.groupby("partition")["late_ms"].max().to_numpy()
        skew = totals["records"].max() / max(totals["records"].mean(), 1)
        shown = keys[keys["topic"] == topic].assign(key=lambda table: table["key"].map(_text))
        sections.append(
            f"<h2>{html.escape(str(topic))}</h2><p>{totals['records'].sum():,} records in {len(totals)} partitions; "
            f"the largest has {skew:.2f} times the mean.</p>"
            f'<img alt="records by hour and bytes by partition" '
            f'src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
            + totals.to_html(index=False, border=0)
            + (f"<h3>Most frequent keys</h3>{shown.to_html(index=False, border=0)}" if len(shown) else "")
        )
    page = _PAGE.format(path=html.escape(str(path)), body="".join(sections))
    (output / "index.html").write_text(page, encoding="utf-8")


def _text(key: bytes) -> str:
    return bytes(key).decode("utf-8", errors="backslashreplace")


def _plot(topic: str, rows: pd.DataFrame) -> bytes:
    """Records by hour, a line for each partition, and bytes by partition, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for partition, hours in rows.groupby("partition"):
        left.plot(hours["hour"], hours["records"], marker=".", label=str(partition))
    left.set_title("records by hour")
    left.tick_params(axis="x", rotation=30)
    if rows["partition"].nunique() <= 12:
        left.legend(title="partition")
    sizes = rows.assign(bytes=rows["key_bytes"] + rows["value_bytes"]).groupby("partition")["bytes"].sum()
    right.bar(sizes.index.astype(str), sizes.to_numpy(), color="tab:orange")
    right.set_title("bytes of keys and values by partition")
    figure.suptitle(topic)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    return out.getvalue()


if __name__ == "__main__":
    job.run(main)
