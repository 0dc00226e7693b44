"""A Spark driver in a process of its own that writes to a path: a stream and, beside it, one batch job after the other.

    python sink_driver.py FOLDER LIFE TASK_KILLS

    FOLDER/source    the topic "in", which the stream copies to "out" in FOLDER/data
    FOLDER/tasks     a file for each task attempt that runs, by which tasks are killed, TASK_KILLS of them
    FOLDER/done      a file for each batch job that has succeeded; its rows are in the topic "jobs"
    FOLDER/killed    a file for each task that was killed

LIFE is part of the names of jobs. A negative LIFE copies what is left of "in", writes one more job, and ends; any other
writes until it is killed. What is killed in between fails the query or the job, which is then started again.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.errors import PySparkException

from pyspark_kreplog import session
from pyspark_kreplog.source import KreplogDataSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

JOB_ROWS = 600
STREAM_ROWS = 300
_PAUSE_S = 0.03


def main(folder: Path, life: int, task_kills: int) -> None:
    spark = session(
        "sink driver",
        "local[2,8]",  # a task is tried eight times
        spark_ui_enabled=False,
        spark_python_worker_reuse=False,  # so that each worker that runs has a task
        spark_sql_execution_arrow_maxRecordsPerBatch=50 if life >= 0 else 10_000,
        spark_driver_memory="512m",
    )
    spark.sparkContext.setLogLevel("OFF")
    # Spark looks for formats once, in a worker: were that killed, the session would never find this one.
    spark.dataSource.register(KreplogDataSource)
    if life < 0:
        start_stream(spark, folder, rows=1_000_000).awaitTermination()
        write_job(spark, folder, "last")
        return
    threading.Thread(target=kill_tasks, args=(spark, folder, task_kills), daemon=True).start()
    query, number = None, 0
    while True:
        try:
            if query is None or not query.isActive:
                query = start_stream(spark, folder)
            write_job(spark, folder, f"{life}.{number}")
        except Exception as error:  # PySpark's or py4j's: what ran was broken off
            print(f"job {life}.{number}: {type(error).__name__}: {str(error)[:2000]}", file=sys.stderr, flush=True)
        number += 1


def start_stream(spark: SparkSession, folder: Path, rows: int = STREAM_ROWS) -> StreamingQuery:
    source = spark.readStream.format("kreplog").option("path", str(folder / "source"))
    source = source.options(subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=str(rows))
    slow = source.load().select("value").mapInArrow(slowed(folder), "value binary")
    sink = slow.writeStream.format("kreplog").options(path=str(folder / "data"), topic="out", numPartitions="3")
    sink = sink.option("checkpointLocation", str(folder / "checkpoint"))
    return (sink.trigger(availableNow=True) if rows > STREAM_ROWS else sink).start()


def write_job(spark: SparkSession, folder: Path, name: str) -> None:
    frame = spark.range(0, JOB_ROWS, numPartitions=2).selectExpr(f"cast(concat('{name}-', id) as binary) value")
    sink = frame.mapInArrow(slowed(folder), "value binary").write.format("kreplog").mode("append")
    sink.options(path=str(folder / "data"), topic="jobs", numPartitions="2").save()
    (folder / "done" / name).touch()


def slowed(folder: Path):  # type: ignore[no-untyped-def]
    """Passes rows on, slowly enough for a task to be killed before, between and after them."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        running = folder / "tasks" / str(task.taskAttemptId())
        running.touch()
        for batch in batches:
            time.sleep(_PAUSE_S)  # else the task is over before anyone can kill it
            yield batch
        running.unlink(missing_ok=True)

    return run


def kill_tasks(spark: SparkSession, folder: Path, count: int) -> None:
    """Kills tasks that run, as Spark does with one that it no longer needs."""
    context = spark.sparkContext._jsc.sc()
    killed = 0
    while killed < count:
        time.sleep(random.random() / 4)
        for path in (folder / "tasks").iterdir():
            path.unlink(missing_ok=True)
            if killed < count and context.killTaskAttempt(int(path.name), True, "a task that is killed"):
                killed += 1
                (folder / "killed" / f"{time.time_ns()}").touch()
                break


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    except PySparkException as failure:
        sys.exit(f"{type(failure).__name__}: {failure}")
