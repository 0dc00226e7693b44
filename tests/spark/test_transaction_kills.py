"""Processes of the sink by transactions are killed or paused at its steps: each row is committed once, in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from kreplog import Log
from kreplog.client.consumer import Consumer
from kreplog.cluster.local_cluster import LocalCluster
from pyspark_kreplog.sink import Job
from tests.client.brokers import make_topic
from tests.integration.clusters import eventually, kill
from tests.spark import sink_loop
from tests.spark.processes import group_of, is_alive, spark_driver, stat_of, workers_of
from tests.spark.sink_loop import number_in
from tests.spark.stepped_sink import SteppedDataSource, met, plan, stepped_sink
from tests.spark.transaction_driver import PER_BATCH, start_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def values(cluster: LocalCluster, topic: str, level: str = "read_committed") -> list[list[bytes]]:
    """Of each partition, in the order of its offsets."""
    with Consumer(cluster.bootstrap(), columns=["value"], isolation_level=level) as consumer:
        partitions = sorted(consumer.partitions(topic))
        found: dict[object, list[bytes]] = {at: [] for at in partitions}
        ends = consumer.end_offsets(partitions)
        for piece in consumer.read_arrow({at: (0, ends[at]) for at in partitions}):
            found[piece.partition] += piece.to_arrow()["value"].to_pylist()
        return list(found.values())


def committed_once(cluster: LocalCluster, topic: str, rows: int) -> None:
    """The numbers below `rows`, each once, ascending in each partition."""

    def found() -> list[list[int]]:
        return [[int(value) for value in partition] for partition in values(cluster, topic)]

    # The markers of the last transaction may still be on their way.
    eventually(lambda: sum(map(len, found())) >= rows, lambda: f"{sum(map(len, found()))} rows of {rows}")
    partitions = found()
    assert sorted(number for partition in partitions for number in partition) == list(range(rows))
    for partition in partitions:
        assert partition == sorted(partition)


def feed(folder: Path, rows: int) -> None:
    with Log.open(folder / "source" / "in-0") as log:
        for start in range(0, rows, 20):  # batches, at which Spark's tasks are cut
            log.append_many([b"%d" % number for number in range(start, start + 20)])


STEPS = (
    "staging",
    "after-INIT_PRODUCER_ID",
    "after-ADD_PARTITIONS_TO_TXN",
    "before-TXN_OFFSET_COMMIT",
    "before-END_TXN",
    "after-END_TXN",
)


@pytest.mark.parametrize("kills", [("after-END_TXN",), pytest.param(STEPS, marks=pytest.mark.long)])
def test_a_query_whose_processes_are_killed(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, kills: tuple[str, ...]
) -> None:
    """With all of a batch committed and Spark not notified, and a task; in the long one at each request."""
    topic = f"killed-{len(kills)}"
    make_topic(cluster, topic, 2)
    feed(tmp_path, 2 * PER_BATCH)
    spark.dataSource.register(SteppedDataSource)
    for step in kills:
        plan(tmp_path, step, signal.SIGKILL)
        with pytest.raises(PySparkException):
            start_stream(spark, tmp_path, cluster.bootstrap(), topic).awaitTermination(120)
        assert len(met(tmp_path, step)) == 1
    assert start_stream(spark, tmp_path, cluster.bootstrap(), topic).awaitTermination(120)
    committed_once(cluster, topic, 2 * PER_BATCH)
    aborted = sum(step in kills for step in ("before-TXN_OFFSET_COMMIT", "before-END_TXN"))  # with all rows sent
    assert sum(map(len, values(cluster, topic, "read_uncommitted"))) == (2 + aborted) * PER_BATCH


FENCED = "another producer has begun with this transactional id"
OVERTAKEN = "batches up to 1 have been committed"
ZOMBIES = {
    "before-INIT_PRODUCER_ID": OVERTAKEN,  # it is the successor then, and finds the next batch committed
    "after-INIT_PRODUCER_ID": OVERTAKEN,
    "before-ADD_PARTITIONS_TO_TXN": FENCED,
    "after-ADD_PARTITIONS_TO_TXN": FENCED,  # by the leader to which it sends its rows
    "before-TXN_OFFSET_COMMIT": FENCED,
    "before-END_TXN": FENCED,
}
"""Where the driver is paused, and why its commit fails."""


def test_a_driver_that_goes_on_after_its_successor_writes_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    """It is paused in its commit, while another commits the same batch and the next; then it goes on. (KIP-98)"""
    topics = {f"zombie-{step}": step for step in ZOMBIES}
    for topic, step in topics.items():
        make_topic(cluster, topic, 1)
        (tmp_path / topic).mkdir()
        plan(tmp_path / topic, step, signal.SIGSTOP)
    command = [sys.executable, "-m", "tests.spark.stepped_sink", str(tmp_path), cluster.bootstrap(), *topics]
    with group_of(command, tmp_path / "drivers.log") as drivers:
        for topic, step in topics.items():
            goes_on_after_its_successor(cluster, tmp_path, topic, step)
        assert drivers.wait(60) == 0


def goes_on_after_its_successor(cluster: LocalCluster, folder: Path, topic: str, step: str) -> None:
    eventually(lambda: met(folder / topic, step), f"{topic} does not come to its step")
    (zombie,) = met(folder / topic, step)
    eventually(lambda: stat_of(zombie)[0] == "T", f"{topic} does not stop")
    options = {"kafka.bootstrap.servers": cluster.bootstrap(), "kafka.transactional.id": topic, "topic": topic}
    successor = stepped_sink(folder, options)
    for batch, names in enumerate((["a", "b"], ["c"])):
        rows = pa.record_batch({"value": [name.encode() for name in names]})
        successor.commit([successor.write(Job(f"job {batch}", topic, batch), 0, [rows])])
    before = values(cluster, topic, "read_uncommitted")
    os.kill(zombie, signal.SIGCONT)
    eventually(lambda: not is_alive(zombie), f"{topic} does not end")
    error = (folder / topic / "error").read_text()
    reason = ZOMBIES[step]
    kind = "UsageError: " if reason is OVERTAKEN else "ProducerFencedError: "
    assert error.startswith(kind) and reason in error, error
    assert values(cluster, topic, "read_uncommitted") == before
    eventually(lambda: values(cluster, topic) == [[b"a", b"b", b"c"]], lambda: str(values(cluster, topic)))


LIFE_S = 600.0
KILLS = 300
KILLS_OF_BROKERS = 10


@pytest.mark.long
def test_the_process_that_commits_is_killed_many_times(
    cluster: LocalCluster, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """At a step, or at any time; a broker beside it now and then, also between the two ends of a commit."""
    make_topic(cluster, "many", 3)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    command = [sys.executable, "-m", "tests.spark.sink_loop", str(tmp_path), cluster.bootstrap(), "many"]
    with group_of(command, tmp_path / "loop.log") as process:
        killed = 0
        for number in range(KILLS):
            await_another(tmp_path / "worker", killed)
            if choose.random() < 0.5:
                killed = meet(tmp_path, choose.choice(STEPS), signal.SIGKILL, process)
            else:
                time.sleep(choose.random() / 2)  # so that the kill comes at any time of a commit
                killed = number_in(tmp_path / "worker")
                with suppress(ProcessLookupError):  # its commit has failed, and another process comes
                    os.kill(killed, signal.SIGKILL)
            if number % (KILLS // KILLS_OF_BROKERS) == 0:
                broker = choose.choice(cluster.brokers)
                kill(cluster, broker)
                cluster.start([broker], timeout_s=LIFE_S)
        (tmp_path / "end").touch()
        assert process.wait(LIFE_S) == 0, (tmp_path / "loop.log").read_text()[-4000:]
    rows = number_in(tmp_path / "committed") * sink_loop.ROWS
    committed_once(cluster, "many", rows)
    sent = sum(map(len, values(cluster, "many", "read_uncommitted")))
    assert sent > rows  # transactions were aborted with rows sent
    figure(
        f"{KILLS} kills of the process that commits, {KILLS_OF_BROKERS} of brokers: {sent} rows sent, {rows} committed"
    )


def await_another(worker: Path, killed: int) -> None:
    """Return when there is a process that commits, after the one that was killed."""
    eventually(lambda: number_in(worker) not in (0, killed), "no process commits", 60)


def driver(
    folder: Path, cluster: LocalCluster, topic: str, kind: str
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.spark.transaction_driver", str(folder), cluster.bootstrap(), topic, kind]
    return spark_driver(command, folder / "driver.log", kill_workers=True)


DRIVERS = 10
PER_DRIVER = 2
"""Kills of workers in the life of each driver: of any, and of those at a step."""


@pytest.mark.long
def test_drivers_workers_and_brokers_are_killed(
    cluster: LocalCluster, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    make_topic(cluster, "fire", 3)
    rows = 20 * PER_BATCH * DRIVERS  # more than the drivers write before the last: no step is met without rows
    feed(tmp_path, rows)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    at_steps = 0
    for _ in range(DRIVERS):
        with driver(tmp_path, cluster, "fire", "first") as process:
            for _ in range(PER_DRIVER):
                if choose.random() < 0.5:
                    meet(tmp_path, choose.choice(STEPS), signal.SIGKILL, process)
                    at_steps += 1
                else:
                    kill_worker(process, choose)
            meet(tmp_path, choose.choice(STEPS), signal.SIGSTOP, process)
            broker = choose.choice((0, 1, 2))
            kill(cluster, broker)
        cluster.start([broker], timeout_s=LIFE_S)
    with driver(tmp_path, cluster, "fire", "last") as process:
        assert process.wait(LIFE_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
    committed_once(cluster, "fire", rows)
    sent = sum(map(len, values(cluster, "fire", "read_uncommitted")))
    figure(
        f"killed: {DRIVERS} drivers, each with a broker, {DRIVERS * PER_DRIVER} workers, {at_steps} of them at a step; "
        f"{sent} rows sent, {rows} committed, each once"
    )


def meet(steps: Path, step: str, number: signal.Signals, process: subprocess.Popen[bytes]) -> int:
    """Wait until a worker comes to the step and gets the signal; return its process id."""
    before = set(met(steps, step))
    plan(steps, step, number)
    eventually(
        lambda: len(met(steps, step)) > len(before) or process.poll() is not None,
        lambda: "\n".join([f"no {step}", *(path.read_text()[-4000:] for path in steps.glob("*.log"))]),
        LIFE_S,
    )
    assert process.poll() is None, f"the driver ended with {process.returncode}"
    (pid,) = set(met(steps, step)) - before
    return pid


def kill_worker(process: subprocess.Popen[bytes], choose: random.Random) -> None:
    time.sleep(choose.random() / 2)  # so that the kill comes at any time of a worker's life
    eventually(lambda: workers_of(process.pid), "no workers to kill", LIFE_S)
    with suppress(ProcessLookupError, IndexError):  # it has ended by itself
        os.kill(choose.choice(workers_of(process.pid)), signal.SIGKILL)


@pytest.mark.long
def test_a_paused_driver_of_spark_is_fenced(cluster: LocalCluster, tmp_path: Path) -> None:
    """Its JVM and the worker that commits are paused, the next driver writes all, and both go on."""
    make_topic(cluster, "paused", 2)
    feed(tmp_path, 6 * PER_BATCH)
    with driver(tmp_path, cluster, "paused", "first") as process:
        zombie = meet(tmp_path, "before-END_TXN", signal.SIGSTOP, process)
        os.killpg(process.pid, signal.SIGSTOP)
        with driver(tmp_path, cluster, "paused", "last") as successor:
            assert successor.wait(LIFE_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]
        before = values(cluster, "paused", "read_uncommitted")
        os.killpg(process.pid, signal.SIGCONT)
        os.kill(zombie, signal.SIGCONT)
        log = tmp_path / "driver.log"
        eventually(lambda: "ProducerFencedError" in log.read_text(), lambda: log.read_text()[-4000:], LIFE_S)
        assert FENCED in log.read_text()
    committed_once(cluster, "paused", 6 * PER_BATCH)
    assert values(cluster, "paused", "read_uncommitted") == before
