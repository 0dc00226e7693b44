"""Where the records of bench_spark lie: partition directories, brokers of kreplog and of a real Kafka, Parquet files.
And Spark's Kafka connector, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from kafka.admin import KafkaAdminClient, NewTopic

import kreplog
from benchmarks.clusters import KAFKA_JVM
from benchmarks.data import CHUNK, Pool
from kreplog.client import Consumer, Producer
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file
from kreplog.types import TopicPartition
from pyspark_kreplog.options import parse_batch
from pyspark_kreplog.plan import plan
from pyspark_kreplog.read import read
from tests.interop.connector_environment import environment, interpreter, jars
from tests.interop.jvm import Broker, Kafka

PARTITIONS = 2
START_MS = 1_760_000_000_000
BATCH_BYTES = 100_000
PARQUET_FILES = 4
TOPIC = "t"
_WORKER = Path(__file__).with_name("connector_worker.py")
_STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Brokers:
    """Brokers that serve. data: the directory of their partitions, where kreplog can read it."""

    name: str
    bootstrap: str
    pids: tuple[int, ...]
    data: Path | None = None

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])
        finally:
            admin.close()
        self.count(topic, partitions)

    def count(self, topic: str, partitions: int = PARTITIONS) -> int:
        """Records of the topic, which is waited for."""
        with Consumer(self.bootstrap, retry_timeout_s=_STOP_S) as consumer:
            numbers = consumer.end_offsets([TopicPartition(topic, number) for number in range(partitions)])
            return sum(numbers.values())

    def fill(self, tables: Sequence[pa.Table]) -> None:
        """The topic TOPIC, with one of `tables` in each partition."""
        self.create(TOPIC, len(tables))
        with Producer(self.bootstrap, batch_bytes=BATCH_BYTES) as producer:
            for partition, table in enumerate(tables):
                producer.append_arrow(TOPIC, table, partition=partition)


@contextmanager
def kreplog_broker(directory: Path) -> Iterator[Brokers]:
    cluster = LocalCluster.create(directory, [0], 0)
    cluster.start()
    try:
        home = cluster.home(0)
        yield Brokers("kreplog's broker", cluster.bootstrap(), (read_pid_file(home)[0],), home / "data")
    finally:
        cluster.stop()


@contextmanager
def kafka_broker(directory: Path) -> Iterator[Brokers]:
    """With the options that Kafka's own scripts give Java. Raises tests.interop.jvm.Unavailable."""
    directory.mkdir(parents=True)
    broker = Broker(Kafka(directory, jvm=KAFKA_JVM), directory)
    try:
        broker.start()
        yield Brokers("Kafka", broker.bootstrap, (broker.pid,))
    finally:
        broker.kill()


class Connector:
    """Spark's own connector, in a process with the PySpark that it is made for; a context manager, which ends it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.version = self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, **request: str) -> Any:
        """The answer to a request of connector_worker.py."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        stdout: IO[str] | None = self._process.stdout
        assert stdout is not None
        for line in stdout:
            if line.startswith("{"):
                return json.loads(line)["answer"]
        raise RuntimeError(f"the process of Spark's connector left with {self._process.wait()}")


@contextmanager
def connector() -> Iterator[Connector]:
    """Raises tests.interop.jvm.Unavailable."""
    python = interpreter()
    process = subprocess.Popen(
        [str(python), str(_WORKER), jars()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(python),
        text=True,
    )
    try:
        yield Connector(process)
    finally:
        with process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def tables(pool: Pool, records: int) -> list[pa.Table]:
    """Keys, values and times of the records of each partition."""
    keys = [b"key %08d" % number for number in range(CHUNK)]
    made = []
    for _ in range(PARTITIONS):
        chunks = pool.chunks(records // PARTITIONS)
        columns = {
            "key": pa.chunked_array([pa.array(keys[: len(chunk)], pa.binary()) for chunk in chunks]),
            "value": pa.chunked_array([pa.array(chunk, pa.binary()) for chunk in chunks]),
            "timestamp": pa.chunked_array(
                [pa.array([START_MS + number] * len(chunk), pa.timestamp("ms")) for number, chunk in enumerate(chunks)]
            ),
        }
        made.append(pa.table(columns).combine_chunks())
    return made


def write_parquet(directory: Path, made: Sequence[pa.Table]) -> None:
    """Keys and values, uncompressed, in PARQUET_FILES files."""
    directory.mkdir(parents=True)
    rows = pa.concat_tables(made).select(["key", "value"])
    step = -(-rows.num_rows // PARQUET_FILES)
    for number in range(PARQUET_FILES):
        pq.write_table(rows.slice(number * step, step), directory / f"{number}.parquet", compression="none")


def write_logs(where: Path, codec: str, pool: Pool, records: int, columns: Sequence[str]) -> None:
    """The topic in `where`/log, and what each of its tasks yields in a file of `where`/arrow."""
    config = kreplog.LogConfig(compression_type=codec)
    keys = [b"key %08d" % number for number in range(CHUNK)]
    for partition in range(PARTITIONS):
        with kreplog.Log.open(where / "log" / f"{TOPIC}-{partition}", config) as log:
            for number, chunk in enumerate(pool.chunks(records // PARTITIONS)):
                log.append_many(chunk, keys[: len(chunk)], [START_MS + number] * len(chunk))
    (where / "arrow").mkdir()
    for number, task in enumerate(plan(parse_batch(log_options(where)), os.cpu_count() or 1)):
        batches = read(task, columns)
        first = next(batches)
        with pa.ipc.new_file(str(where / "arrow" / f"{number:04}"), first.schema) as file:
            file.write_batch(first)
            for batch in batches:
                file.write_batch(batch)


def log_options(where: Path) -> dict[str, str]:
    return {"path": str(where / "log"), "subscribe": TOPIC}


def count_logs(directory: Path) -> int:
    """Records of all partitions in the directory."""
    total = 0
    for partition in directory.glob("*-[0-9]*"):
        with kreplog.Log.open(partition, read_only=True) as log:
            total += log.high_watermark
    return total
