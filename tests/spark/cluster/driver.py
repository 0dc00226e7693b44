"""The Spark program of `make spark-cluster`: source and sinks on the workers, of which some are killed in mid-stage.

    driver.py SETTINGS      a JSON object with the fields of Settings

Runs on a host of its own with an installed kreplog, and imports nothing of the checkout. Prints a line for each result
that was checked; exits with status 1 at the first difference.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kreplog
import pyspark_kreplog
from kreplog.client import Producer
from pyspark_kreplog import short_circuit
from pyspark_kreplog.options import parse_batch
from pyspark_kreplog.plan import Task, plan

TOPIC = "orders"
SENT = "sent"
PARTITIONS = 4
WITHIN_S = 180.0


@dataclass(frozen=True)
class Settings:
    """Settings of the program. local: a directory that is another disk on each host. shared: one that all hosts share.
    victim: the host whose Spark is killed whenever a task there says that it has arrived. log_dir: of the broker on
    each of replica_hosts."""

    bootstrap: str
    master: str
    rows: int
    workers: Sequence[str]
    victim: str
    replica_hosts: Sequence[str]
    log_dir: str
    local: str
    shared: str
    installed: str


class DifferenceError(Exception):
    """Something is not as it must be."""


def check(holds: bool, failure: str) -> None:
    if not holds:
        raise DifferenceError(failure)


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    check(kreplog.__file__.startswith(settings.installed), f"kreplog is {kreplog.__file__}, not the installed one")
    produce(settings)
    spark = pyspark_kreplog.session(
        "kreplog on many workers",
        settings.master,
        spark_ui_enabled=False,
        spark_log_level="ERROR",
        spark_driver_memory="1g",
        spark_executor_memory="700m",
        spark_sql_shuffle_partitions=len(settings.workers),
        spark_scheduler_minRegisteredResourcesRatio=1.0,
        spark_scheduler_maxRegisteredResourcesWaitingTime="120s",
        spark_cores_max=len(settings.workers),
    )
    try:
        for step in (
            read_batch,
            read_local_replicas,
            read_while_killed,
            write_while_killed,
            stream_while_killed,
            send_while_killed,
            write_to_no_shared_path,
        ):
            print(step(spark, settings), flush=True)
    finally:
        spark.stop()


# The rows: "<number> <CRC-32 of it>", keyed, so that each can be checked alone and all of them counted


def table(rows: int) -> pa.Table:
    numbers = [b"%d" % number for number in range(rows)]
    return pa.table(
        {"key": [number[-2:] for number in numbers], "value": [b"%s %d" % (n, zlib.crc32(n)) for n in numbers]}
    )


def check_rows(rows: DataFrame, expected: int, name: str) -> None:
    """Every row is there once, unchanged; offsets are without gap if there are any."""
    text = sf.split(sf.col("value").cast("string"), " ")
    words = rows.withColumn("number", text[0]).withColumn("crc", text[1])
    (found,) = words.agg(
        sf.count("*").alias("all"),
        sf.count_distinct("number").alias("distinct"),
        sf.max(sf.col("number").cast("bigint")).alias("highest"),
        sf.count_if(sf.crc32(sf.col("number").cast("binary")) != sf.col("crc").cast("bigint")).alias("changed"),
    ).collect()
    wanted = {"all": expected, "distinct": expected, "highest": expected - 1, "changed": 0}
    check(found.asDict() == wanted, f"{name}: found {found.asDict()}, not {wanted}")


def check_log(path: Path, topic: str, expected: int, name: str) -> None:
    """Likewise, by a reader that is not Spark."""
    found: list[bytes] = []
    for partition in range(PARTITIONS):
        with kreplog.Log.open(path / f"{topic}-{partition}", read_only=True) as log:
            found += [value for value in log.values() if value is not None]
    wanted = set(table(expected)["value"].to_pylist())
    check(len(found) == expected and set(found) == wanted, f"{name}: {len(found)} records, {len(set(found))} distinct")


def from_brokers(spark: SparkSession, settings: Settings, topic: str = TOPIC, **more: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": settings.bootstrap, "subscribe": topic, **more}
    return spark.read.format("kreplog").options(**options, maxRecordsPerPartition=str(settings.rows // 12)).load()


# A worker that is killed


def until_killed(settings: Settings, stage: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: each task passes on a batch and waits then until the victim has been killed, which a task there
    is waiting for."""
    arrived, killed = (Path(settings.shared, f"{event}-{stage}") for event in ("arrived", "killed"))
    victim = settings.victim

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            deadline = time.monotonic() + WITHIN_S
            while not killed.exists():
                if socket.gethostname() == victim:
                    arrived.touch()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{victim} was not killed in stage {stage}")
                time.sleep(0.05)  # another host's event comes by a file

    return wait


def was_killed(settings: Settings, stage: str) -> str:
    check(Path(settings.shared, f"killed-{stage}").exists(), f"{settings.victim} was not killed in stage {stage}")
    return f"Spark on {settings.victim} was killed in mid-stage"


# What is done, one after the other; each returns what it has proved


def produce(settings: Settings) -> None:
    with Producer(settings.bootstrap, compression="lz4") as producer:
        appended = producer.append_arrow(TOPIC, table(settings.rows))
    ranges = {at.partition for at in appended}
    print(f"Produce: {settings.rows:,} rows to {len(ranges)} partitions on two brokers", flush=True)


def read_batch(spark: SparkSession, settings: Settings) -> str:
    rows = from_brokers(spark, settings)
    check_rows(rows, settings.rows, "read from brokers")
    (offsets,) = rows.agg(sf.count_distinct("partition", "offset").alias("offsets")).collect()
    check(offsets.offsets == settings.rows, f"read from brokers: {offsets.offsets} offsets")
    hosts = sorted(set(rows.rdd.mapPartitions(lambda _: [socket.gethostname()]).collect()))
    check(set(hosts) <= set(settings.workers), f"tasks ran on {', '.join(hosts)}")
    return f"Network source, batch: {settings.rows:,} rows, each once; tasks ran on {', '.join(hosts)}"


def read_local_replicas(spark: SparkSession, settings: Settings) -> str:
    """What the files on each host alone serve of the planned records, and then the read as a whole."""
    options = {"kafka.bootstrap.servers": settings.bootstrap, "subscribe": TOPIC, "localLogDirs": settings.log_dir}
    tasks = plan(parse_batch(options), len(settings.workers))
    workers = spark.sparkContext.parallelize(settings.workers, len(settings.workers)).barrier()
    expected = settings.rows

    def serve(_: Iterable[str]) -> Iterator[tuple[str, int]]:
        BarrierTaskContext.get().barrier()
        deadline = time.monotonic() + 30
        found = rows_in_files(tasks)
        while 0 < found < expected and time.monotonic() < deadline:
            time.sleep(0.2)  # a follower hears of the high watermark with its next fetch
            found = rows_in_files(tasks)
        yield socket.gethostname(), found

    found = dict(workers.mapPartitions(serve).collect())
    wanted = {host: expected if host in settings.replica_hosts else 0 for host in settings.workers}
    check(found == wanted, f"files on the hosts serve {found}, not {wanted}")
    check_rows(from_brokers(spark, settings, localLogDirs=settings.log_dir), expected, "read with localLogDirs")
    hosts = ", ".join(settings.replica_hosts)
    return f"Network source, short-circuit: on {hosts} files serve all rows, elsewhere the leader; each row once"


def rows_in_files(tasks: Sequence[Task]) -> int:
    """Of the tasks' records, those that replicas on this host serve."""
    pieces = (rows for task in tasks for rows, _ in short_circuit.read(task, ["offset"]))
    return sum(rows.num_rows for rows in pieces if rows is not None)


def read_while_killed(spark: SparkSession, settings: Settings) -> str:
    rows = from_brokers(spark, settings).select("value")
    check_rows(rows.mapInArrow(until_killed(settings, "read"), rows.schema), settings.rows, "read, a worker killed")
    return f"Network source, batch: {was_killed(settings, 'read')}; {settings.rows:,} rows, each once"


def write_while_killed(spark: SparkSession, settings: Settings) -> str:
    path = Path(settings.shared, "logs")
    rows = from_brokers(spark, settings).select("key", "value")
    rows = rows.mapInArrow(until_killed(settings, "write"), rows.schema)
    sink = rows.write.format("kreplog").mode("append").options(path=str(path), topic="batch", numPartitions=PARTITIONS)
    sink.save()
    check_log(path, "batch", settings.rows, "batch write to a path")
    return f"Path sink, batch: {was_killed(settings, 'write')}; {settings.rows:,} rows, each once"


def stream_while_killed(spark: SparkSession, settings: Settings) -> str:
    path = Path(settings.shared, "logs")
    options = {"kafka.bootstrap.servers": settings.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"}
    limits = {"maxOffsetsPerTrigger": settings.rows // 3 + 1, "maxRecordsPerPartition": settings.rows // 24}
    rows = spark.readStream.format("kreplog").options(**options, **limits).load().select("key", "value")
    rows = rows.mapInArrow(until_killed(settings, "stream"), rows.schema)
    sink = rows.writeStream.format("kreplog").options(path=str(path), topic="streamed", numPartitions=PARTITIONS)
    query = sink.option("checkpointLocation", f"{settings.shared}/checkpoint").trigger(availableNow=True).start()
    try:
        check(bool(query.awaitTermination(int(WITHIN_S))), "the stream has not ended")
    finally:
        query.stop()
    check_log(path, "streamed", settings.rows, "stream to a path")
    count = len(query.recentProgress)
    killed = was_killed(settings, "stream")
    return f"Stream, network to path sink, {count} batches: {killed}; {settings.rows:,} rows, each once"


def send_while_killed(spark: SparkSession, settings: Settings) -> str:
    rows = from_brokers(spark, settings).select("key", "value")
    rows = rows.mapInArrow(until_killed(settings, "send"), rows.schema)
    options = {"kafka.bootstrap.servers": settings.bootstrap, "topic": SENT}
    rows.write.format("kreplog").mode("append").options(**options).save()
    found = from_brokers(spark, settings, SENT)
    check_rows(found.select("value").distinct(), settings.rows, "write to brokers")
    more = found.count() - settings.rows
    killed = was_killed(settings, "send")
    return f"Sink to brokers: {killed}; {settings.rows:,} rows, none lost, {more:,} sent twice by tasks that ran again"


def write_to_no_shared_path(spark: SparkSession, settings: Settings) -> str:
    path = Path(settings.local, "logs")
    rows = from_brokers(spark, settings).select("key", "value")
    try:
        rows.write.format("kreplog").mode("append").options(path=str(path), topic="nowhere", numPartitions=4).save()
    except PySparkException as error:
        message = next((line for line in str(error).splitlines() if "kreplog.errors." in line), str(error))
    else:
        raise DifferenceError(f"a write to {path}, another disk on each host, succeeded")
    check("not shared" in message and str(path) in message, f"a write to {path} failed by {message}")
    with suppress(FileNotFoundError):
        left = [name for name in os.listdir(path) if not name.startswith(".")]
        check(not left, f"a write to {path} has failed and left {', '.join(left)}")
    return (
        f"Path sink, a path that is not shared: nothing is written, and the error is\n    {message.partition(': ')[2]}"
    )


if __name__ == "__main__":
    try:
        main()
    except (DifferenceError, PySparkException, kreplog.errors.KreplogError) as error:
        print(f"Difference: {error}", flush=True)
        sys.exit(1)
