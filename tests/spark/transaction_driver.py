"""A Spark driver in a process of its own, whose stream writes to brokers by transactions.

    python -m tests.spark.transaction_driver FOLDER BOOTSTRAP TOPIC last|first

FOLDER/source has the topic "in", which goes to TOPIC, also its transactional id. "last" copies what is left and ends
with the query; "first" starts the query again, whatever ends it, until the driver is killed. FOLDER is the directory
of stepped_sink's steps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from pyspark_kreplog import session
from pyspark_kreplog.source import KreplogDataSource
from tests.spark.stepped_sink import SteppedDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PER_BATCH = 60
TASKS = 2


def start_stream(
    spark: SparkSession, folder: Path, bootstrap: str, topic: str, rows: int = PER_BATCH, *, endless: bool = False
) -> StreamingQuery:
    source = spark.readStream.format("kreplog").option("path", str(folder / "source")).option("minPartitions", TASKS)
    source = source.options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=str(rows))
    sink = source.load().selectExpr("value", "value key").writeStream.format("kreplog-stepped")
    sink = sink.options(**{
        "steps": str(folder),
        "topic": topic,
        "kafka.bootstrap.servers": bootstrap,
        "kafka.transactional.id": topic,
        "checkpointLocation": str(folder / "checkpoint"),
    })  # fmt: skip
    return (sink if endless else sink.trigger(availableNow=True)).start()


def main(folder: Path, bootstrap: str, topic: str, *, last: bool) -> None:
    spark = session(
        "transaction driver",
        "local[2,8]",  # a task is tried eight times
        spark_ui_enabled=False,
        spark_python_worker_reuse=False,  # so that each worker that runs has a task
        spark_driver_memory="512m",
    )
    spark.sparkContext.setLogLevel("OFF")
    # Spark looks for formats once, in a worker: were that killed, the session would never find these.
    spark.dataSource.register(KreplogDataSource)
    spark.dataSource.register(SteppedDataSource)
    if last:
        start_stream(spark, folder, bootstrap, topic, 1_000_000).awaitTermination()
        return
    while True:
        try:
            start_stream(spark, folder, bootstrap, topic, endless=True).awaitTermination()
        except Exception as error:  # PySpark's or py4j's: what ran was broken off
            print(f"{type(error).__name__}: {str(error)[:4000]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], last=sys.argv[4] == "last")
    except PySparkException as failure:
        sys.exit(f"{type(failure).__name__}: {failure}")
