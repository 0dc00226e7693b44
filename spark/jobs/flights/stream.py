"""The streaming job: flights from the brokers, departures by hour and airport into a topic, that topic into Parquet.

    topic flights ─► windows of an hour, watermark of a day ─► topic departures ─► Parquet
     (brokers)             (query "departures")                (a directory)      (query "parquet")

    python -m flights.stream BOOTSTRAP DIRECTORY

It may be killed at any moment: started again with the same directory, it continues from its checkpoints. When its
standard input ends, it processes what the topics contain and exits.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from flights.source import TOPIC
from pyspark_kreplog import session

RESULT = "departures"
RESULT_PARTITIONS = 3
WATERMARK = "1 day"

FLIGHT = "origin string, dep_delay double"
HOUR = "hour timestamp, origin string, flights bigint, departures bigint, mean_delay double"


def main(bootstrap: str, directory: Path) -> None:
    spark = session(
        "flights",
        spark_log_level="ERROR",
        spark_local_dir=directory / "tmp",
        spark_driver_extraJavaOptions=f"-Djava.io.tmpdir={directory / 'tmp'}",
        spark_sql_session_timeZone="UTC",
        spark_sql_shuffle_partitions=2,
        spark_ui_enabled=False,
        spark_ui_showConsoleProgress=False,
    )
    hours = departures_by_hour(flights_of_brokers(spark, bootstrap))
    queries = [into_topic(hours, directory), into_parquet(hours_of_topic(spark, directory), directory)]
    while not select.select([sys.stdin], [], [], 0)[0]:
        spark.streams.awaitAnyTermination(1)  # raises the error of a query that failed
    for query in queries:
        query.processAllAvailable()
    spark.stop()


def flights_of_brokers(spark: SparkSession, bootstrap: str) -> DataFrame:
    stream = spark.readStream.format("kreplog").option("kafka.bootstrap.servers", bootstrap)
    records = stream.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    flight = sf.from_json(sf.col("value").cast("string"), FLIGHT)
    return records.select("timestamp", flight.alias("flight")).select("timestamp", "flight.*")


def departures_by_hour(flights: DataFrame) -> DataFrame:
    """A row for each scheduled hour and airport, when the watermark has passed the end of the hour.

    A flight without a delay is one that was cancelled."""
    windows = flights.withWatermark("timestamp", WATERMARK).groupBy(sf.window("timestamp", "1 hour"), "origin")
    totals = windows.agg(
        sf.count("*").alias("flights"),
        sf.count("dep_delay").alias("departures"),
        sf.avg("dep_delay").alias("mean_delay"),
    )
    return totals.select(sf.col("window.start").alias("hour"), "origin", "flights", "departures", "mean_delay")


def into_topic(hours: DataFrame, directory: Path) -> StreamingQuery:
    """Exactly once: the sink recognises a batch that Spark repeats."""
    records = hours.select(sf.col("origin").alias("key"), sf.to_json(sf.struct("*")).alias("value"))
    return (
        records.writeStream.format("kreplog")
        .option("path", str(directory / "data"))
        .option("topic", RESULT)
        .option("numPartitions", RESULT_PARTITIONS)
        .option("checkpointLocation", str(checkpoint(directory, "departures")))
        .start()
    )


def hours_of_topic(spark: SparkSession, directory: Path) -> DataFrame:
    stream = spark.readStream.format("kreplog").option("path", str(directory / "data"))
    records = stream.option("subscribe", RESULT).option("startingOffsets", "earliest").load()
    return records.select(sf.from_json(sf.col("value").cast("string"), HOUR).alias("hour")).select("hour.*")


def into_parquet(hours: DataFrame, directory: Path) -> StreamingQuery:
    """Exactly once, for any reader: a batch that Spark repeats overwrites its own files."""

    def write(rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(str(directory / "parquet" / f"batch={batch}"))

    query = hours.writeStream.foreachBatch(write)
    return query.option("checkpointLocation", str(checkpoint(directory, "parquet"))).start()


def checkpoint(directory: Path, query: str) -> Path:
    return directory / "checkpoints" / query


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
