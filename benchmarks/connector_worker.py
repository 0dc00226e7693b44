"""A Spark session of its own that reads and writes by Spark's own Kafka connector, as it is bidden on standard input.

    connector_worker.py JARS

Run by an interpreter that has the connector's pyspark and nothing of kreplog. A line of standard input is one JSON
object: {"bootstrap", "topic", "query"} runs a query of QUERIES over the topic, {"bootstrap", "topic", "parquet"} writes
the rows of Parquet files to it. Each is answered by one line of JSON, {"answer"}, the first by {"answer": version}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}

QUERIES: dict[str, Callable[[DataFrame], object]] = {
    "count": lambda frame: frame.count(),
    # An aggregate without groups always has its one row; the stub of head() does not know that.
    "sum(length(value))": lambda frame: frame.agg(F.sum(F.length("value"))).head()[0],  # type: ignore[index]
    "noop": lambda frame: frame.write.format("noop").mode("overwrite").save(),
}


def serve(jars: str) -> None:
    builder = SparkSession.builder.master("local[*]").config("spark.jars", jars)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    _answer(spark.version)
    for line in sys.stdin:
        request = json.loads(line)
        brokers = {"kafka.bootstrap.servers": request["bootstrap"]}
        if "parquet" in request:
            rows = spark.read.parquet(request["parquet"]).write.format("kafka").options(**brokers)
            rows.option("topic", request["topic"]).save()
            _answer(None)
        else:
            frame = spark.read.format("kafka").options(**brokers).option("subscribe", request["topic"]).load()
            _answer(QUERIES[request["query"]](frame.select(*COLUMNS)))
    spark.stop()


def _answer(answer: object) -> None:
    print(json.dumps({"answer": answer}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
