"""A Spark job that knows Spark's own Kafka connector alone: batches and streams, into and out of topics.

    job.py BOOTSTRAP JARS FOLDER

Run by an interpreter that has pyspark and nothing of kreplog. The topics "written" (2 partitions) and "streamed" are
there. Prints what it read as one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array, col, expr, lit, struct

FIRST, SECOND = 3000, 500


def records(spark: SparkSession, start: int, stop: int) -> DataFrame:
    """Every tenth key is null; value and a header hold the number, which chooses the partition as well."""
    header = struct(lit("number").alias("key"), col("id").cast("string").cast("binary").alias("value"))
    return spark.range(start, stop, numPartitions=2).select(
        expr("IF(id % 10 = 0, NULL, CAST(CONCAT('key-', id % 7) AS BINARY))").alias("key"),
        expr("CAST(CONCAT('value-', id) AS BINARY)").alias("value"),
        expr("CAST(id % 2 AS INT)").alias("partition"),
        array(header).alias("headers"),
    )


def main(bootstrap: str, jars: str, folder: str) -> dict[str, Any]:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")

    def write(rows: DataFrame) -> None:
        rows.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", "written").save()

    def read(topic: str, **options: str) -> DataFrame:
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
        return reader.option("includeHeaders", "true").options(**options).load()

    def stream() -> list[int]:
        """Copy "written" to "streamed" from where the checkpoint stands; the rows of each batch that had any."""
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        source = source.option("subscribe", "written").option("startingOffsets", "earliest")
        rows = source.option("maxOffsetsPerTrigger", "1000").option("includeHeaders", "true").load()
        sink = rows.select("key", "value", "headers").writeStream.format("kafka")
        sink = sink.option("kafka.bootstrap.servers", bootstrap).option("topic", "streamed")
        query = sink.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        if not query.awaitTermination(120):
            raise TimeoutError("the stream has not ended within 120 s")
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def values(rows: DataFrame) -> list[str]:
        return sorted(row["v"] for row in rows.select(col("value").cast("string").alias("v")).collect())

    write(records(spark, 0, FIRST))
    first_batches = stream()
    written = read("written")
    newest = written.agg({"timestamp": "max"}).collect()[0][0]
    write(records(spark, FIRST, FIRST + SECOND))
    second_batches = stream()
    tail = read("written", startingOffsets=json.dumps({"written": {"0": FIRST // 2, "1": FIRST // 2}}))
    later = read("written", startingTimestamp=str(int(newest.timestamp() * 1000) + 1))
    columns = written.selectExpr(
        "CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset", "CAST(headers[0].value AS STRING) AS h"
    )
    result = {
        "rows": [list(row) for row in columns.orderBy("partition", "offset").collect()],
        "first_batches": first_batches,
        "second_batches": second_batches,
        "tail": values(tail),
        "later": values(later),
        "streamed": values(read("streamed")),
    }
    spark.stop()
    return result


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
