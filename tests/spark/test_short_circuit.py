"""Short-circuit reads: tasks that read the files of a replica on their host, and fetch whatever those do not hold."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

import kreplog
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import KreplogError, UsageError
from pyspark_kreplog import explain, short_circuit
from pyspark_kreplog.options import LOCAL_LOG_DIRS, parse_batch, parse_stream
from pyspark_kreplog.plan import ReplicaFence, Task, plan
from pyspark_kreplog.read import read
from pyspark_kreplog.stream_planner import StreamPlanner
from tests.integration.clusters import eventually, pid_of, running
from tests.spark.test_network import create, from_brokers, produce, rows

pytestmark = pytest.mark.spark

COUNT = 1000
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        create(made, "t", 2)
        produce(made, "t", COUNT, batch_size=1000)
        eventually(
            lambda: all(_high_watermark(made, number) == COUNT // 2 for number in (0, 1)), "broker 0 lags behind"
        )
        yield made


def _high_watermark(cluster: LocalCluster, number: int) -> int:
    with kreplog.Log.open(data(cluster) / f"t-{number}", read_only=True) as log:
        return log.high_watermark


def data(cluster: LocalCluster) -> Path:
    return cluster.home(0) / "data"


def tasks(cluster: LocalCluster, directory: Path, **options: str) -> list[Task]:
    given = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "t", "localLogDirs": str(directory)}
    return plan(parse_batch(given | options), 2)


@pytest.fixture
def task(cluster: LocalCluster, tmp_path: Path) -> Task:
    """Of partition 0, with a copy of its replica in tmp_path as the one on this host."""
    shutil.copytree(data(cluster) / "t-0", tmp_path / "t-0")
    return tasks(cluster, tmp_path)[0]


def found(task: Task, columns: list[str] = COLUMNS) -> list[Any]:
    return [row for batch in read(task, columns) for row in batch.to_pylist()]


def from_leader(task: Task) -> list[Any]:
    return found(task._replace(fence=None))


def unreachable(task: Task) -> Task:
    """One whose rows can come from files alone."""
    return task._replace(bootstrap=NOWHERE)


def test_rows_of_the_files_are_those_of_the_leader(spark: SparkSession, cluster: LocalCluster) -> None:
    for planned in tasks(cluster, data(cluster), maxRecordsPerPartition="200"):
        assert found(unreachable(planned)) == from_leader(planned)
    local = from_brokers(spark, cluster, localLogDirs=f"/nonexistent,{data(cluster)}")
    assert rows(local) == rows(from_brokers(spark, cluster))


def test_a_job_reads_on_while_no_broker_answers(spark: SparkSession, cluster: LocalCluster) -> None:
    expected = rows(from_brokers(spark, cluster))
    frame = from_brokers(spark, cluster, localLogDirs=str(data(cluster)))
    assert frame.count() == COUNT  # the plan is made at the first action
    brokers = [pid_of(cluster, broker) for broker in cluster.brokers]
    for pid in brokers:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert rows(frame) == expected
    finally:
        for pid in brokers:
            os.kill(pid, signal.SIGCONT)


def test_columns_without_the_offset(task: Task) -> None:
    values = found(unreachable(task), ["value"])
    assert values == [{"value": row["value"]} for row in from_leader(task)]
    assert found(unreachable(task), ["topic"]) == [{"topic": "t"}] * (COUNT // 2)


def test_directories_of_the_worker_come_from_its_environment(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = tasks(cluster, tmp_path)[0]
    monkeypatch.setenv(LOCAL_LOG_DIRS, f"/nonexistent,{data(cluster)}")
    assert len(found(unreachable(planned))) == COUNT // 2
    given = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "t"}
    assert plan(parse_batch(given), 2)[0].fence is not None
    monkeypatch.delenv(LOCAL_LOG_DIRS)
    assert plan(parse_batch(given), 2)[0].fence is None
    with pytest.raises(UsageError, match="'localLogDirs' names 'data': give absolute paths"):
        parse_batch(given | {"localLogDirs": "data"})


def test_read_committed_of_brokers_and_of_replicas(cluster: LocalCluster, spark: SparkSession) -> None:
    """Offsets 0 plain, 1 committed, 2 its marker, 3 aborted, 4 its marker, 5 of a transaction that is open."""
    create(cluster, "x", 1)
    produce(cluster, "x", 1)
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), transactional_id="x")
    producer.init_transactions()
    for finish in (producer.commit_transaction, producer.abort_transaction, None):
        producer.begin_transaction()
        producer.send("x", b"in a transaction", partition=0).get(30)
        if finish is not None:
            finish()
    path = data(cluster) / "x-0"

    def in_step() -> bool:
        with kreplog.Log.open(path, read_only=True) as log:
            return (log.last_stable_offset, log.high_watermark) == (5, 6)

    eventually(in_step, "broker 0 lags behind")
    given = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "x", "localLogDirs": str(data(cluster))}
    committed = given | {"isolationLevel": "read_committed"}
    ends = {}
    for options, stop, wanted in ((given, 6, [0, 1, 3, 5]), (committed, 5, [0, 1])):
        (planned,) = plan(parse_batch(options), 2)
        assert planned.stop == stop and short_circuit.usable_replica(planned) == str(path)
        assert [row["offset"] for row in found(unreachable(planned))] == wanted
        assert from_leader(planned) == found(unreachable(planned))
        frame = spark.read.format("kreplog").options(**options).load()
        assert sorted(row.offset for row in frame.collect()) == wanted
        planner = StreamPlanner(parse_stream(options | {"startingOffsets": "earliest"}))
        first = planner.end_of_batch(planner.initial_offset(), unlimited=True)
        (batch,) = planner.tasks(planner.initial_offset(), first, 2)
        assert (first["x"], [row["offset"] for row in found(batch)]) == ({"0": stop}, wanted)
        planner.close()
        ends[stop] = first
    with closing(StreamPlanner(parse_stream(committed | {"startingOffsets": "earliest"}))) as planner:
        assert planner.end_of_batch(ends[6], unlimited=True) == ends[6], "a checkpoint past the open transaction"
        with pytest.raises(
            KreplogError, match="x-0: the batch ends at offset 6, past the oldest open transaction, at 5"
        ):
            planner.tasks(planner.initial_offset(), ends[6], 2)
    producer.abort_transaction()
    producer.close()


def another_topic(path: Path) -> str:
    metadata = path / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    return "its topic id is 00000000-0000-0000-0000-000000000001"


def diverged(path: Path) -> str:
    """Half of the records, and then others, of a leader that was elected unclean and replaced since."""
    with kreplog.Log.open(path, kreplog.LogConfig(replicated=True)) as log:
        log.truncate_to(COUNT // 4)
        log.assign_leader_epoch(log.leader_epoch + 1)
        log.append_many([b"diverged"] * COUNT)
        log.advance_high_watermark(log.log_end_offset)
    return "the leader epoch before offset 500 is 1 in the replica and 0"


def never_led(path: Path) -> str:
    (path / "leader-epoch-checkpoint").unlink()
    return "the leader epoch before offset 500 is None in the replica and 0"


def damaged(path: Path) -> str:
    (segment,) = path.glob("*.log")
    with open(segment, "r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 20)
    return "CRC"


def unreadable(path: Path) -> str:
    (path / "partition.metadata").unlink()
    os.mkfifo(path / "other")
    (path / "partition.metadata").mkdir()
    return "Is a directory"


@pytest.mark.parametrize("change", [another_topic, diverged, never_led, damaged, unreadable])
def test_a_replica_that_is_not_the_planned_one_is_not_read(
    task: Task, tmp_path: Path, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reason = change(tmp_path / "t-0")
    with caplog.at_level(logging.INFO, "pyspark_kreplog"):
        assert found(task) == from_leader(task)
    assert "t-0: offsets from 0 on are not read from" in caplog.text and reason in caplog.text
    assert "were read from" not in caplog.text


def test_a_directory_that_no_broker_writes_to_is_not_read(
    task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t-0" / "kreplog.state").unlink()
    with caplog.at_level(logging.DEBUG, "pyspark_kreplog"):
        assert found(task) == from_leader(task)
    assert f"no broker of kreplog writes to {tmp_path}/t-0" in caplog.text and "were read from" not in caplog.text


def test_what_a_lagging_replica_lacks_is_fetched(task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with kreplog.Log.open(tmp_path / "t-0", kreplog.LogConfig(replicated=True)) as log:
        end = log.truncate_to(COUNT // 4)
    assert 0 < end <= COUNT // 4
    with caplog.at_level(logging.INFO, "pyspark_kreplog"):
        assert found(task) == from_leader(task)
    assert f"t-0: offsets 0 to {end} were read from" in caplog.text


def test_what_a_replica_appends_after_it_was_checked_is_not_read(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election makes a lagging replica the leader between the check of its epochs and the read."""
    config = kreplog.LogConfig(replicated=True)
    with kreplog.Log.open(tmp_path / "t-0", config) as log:
        end = log.truncate_to(COUNT // 4)
    check = short_circuit._end_of_planned_records

    def checked(*arguments: Any) -> int:
        found = check(*arguments)
        with kreplog.Log.open(tmp_path / "t-0", config) as log:
            log.assign_leader_epoch(log.leader_epoch + 1)
            log.append_many([b"of another leader"] * COUNT)
            log.advance_high_watermark(log.log_end_offset)
        return found

    monkeypatch.setattr(short_circuit, "_end_of_planned_records", checked)
    assert 0 < end < COUNT // 2
    assert found(task) == from_leader(task)


def test_a_replica_whose_start_was_deleted_is_not_read(task: Task, tmp_path: Path) -> None:
    with kreplog.Log.open(tmp_path / "t-0", kreplog.LogConfig(replicated=True)) as log:
        log.delete_records_before(10)
    assert found(task) == from_leader(task)


@pytest.mark.parametrize("change", ["truncated", "created again"])
def test_a_change_during_the_read_is_noticed(
    task: Task, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(short_circuit, "PIECE_BYTES", 1000)
    batches = read(task, COLUMNS)
    taken = next(batches).to_pylist()
    assert 0 < len(taken) < COUNT // 2
    path = tmp_path / "t-0"
    if change == "truncated":
        diverged(path)
    else:
        shutil.copytree(path, tmp_path / "new")
        shutil.move(path, tmp_path / "old")
        shutil.move(tmp_path / "new", path)
    taken += [row for batch in batches for row in batch.to_pylist()]
    assert taken == from_leader(task)
    assert change in caplog.text


def test_a_task_of_an_older_fence_is_fetched(task: Task) -> None:
    assert task.fence == ReplicaFence(0, COUNT // 2)
    assert len(found(task._replace(fence=ReplicaFence(5, COUNT // 2)))) == COUNT // 2


def test_explain_names_where_each_task_finds_its_records(cluster: LocalCluster, tmp_path: Path) -> None:
    options = {"kafka.bootstrap.servers": cluster.bootstrap(), "subscribe": "t", "localLogDirs": str(data(cluster))}
    leader = r"127\.0\.0\.1:[0-9]+"
    lines = explain(options, 2).splitlines()
    assert len(lines) == 2
    for number, line in enumerate(lines):
        here = re.escape(str(data(cluster) / f"t-{number}"))
        assert re.fullmatch(
            rf"t-{number} \[0, 500\): files on 127\.0\.0\.1, else the leader, {leader}; files of {here} on this host",
            line,
        )
    assert explain(options | {"localLogDirs": str(tmp_path)}, 2).count("; fetched on this host") == 2
    del options["localLogDirs"]
    assert re.fullmatch(rf"t-0 \[0, 500\): fetched from the leader, {leader}", explain(options, 2).splitlines()[0])
    files = {"path": str(data(cluster)), "subscribe": "t"}
    assert explain(files, 2).splitlines()[1] == f"t-1 [0, 500): files of {data(cluster)}/t-1"
