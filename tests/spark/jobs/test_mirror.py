"""The job `mirror`: directories and brokers, as source and as target, each step killed, and offsets that translate."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import kreplog
from flights.source import PARTITIONS, TOPIC
from kreplog.bulk_append import encode_arrow
from kreplog.client import Consumer, Producer
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import KreplogError, OffsetOutOfRangeError, UsageError
from kreplog.types import TopicPartition
from kreplog_jobs import job, mirror, mirror_target
from kreplog_jobs.mirror_target import BrokersTarget, DirectoryTarget, Target
from kreplog_jobs.offset_map import OffsetMap, map_path
from pyspark_kreplog import read as reader
from tests.integration.clusters import admin_of, eventually, wait_for_topic
from tests.reference import sent

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent.parent
T = TopicPartition("t", 0)

Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def append(directory: Path, *numbers: int, partition: int = 0) -> None:
    """One record for each number: keys and values null by turns, headers, times that go up and down."""
    with kreplog.Log.open(directory / f"t-{partition}") as log:
        for number in numbers:
            log.append(
                None if number % 5 == 0 else b"value %d" % number,
                key=None if number % 3 == 0 else b"key %d" % number,
                timestamp_ms=1_700_000_000_000 + number * 10 - number % 4 * 25,
                headers={"n": b"%d" % number} if number % 2 else {},
            )


def rows(directory: Path, partition: TopicPartition = T) -> list[Row]:
    with kreplog.Log.open(directory / str(partition), read_only=True) as log:
        return [(record.timestamp_ms, record.key, record.value, record.headers) for record in log.read()]


def rows_of_brokers(bootstrap: str, partition: TopicPartition = T) -> list[Row]:
    with Consumer(bootstrap) as consumer:
        ranges = {partition: (0, consumer.end_offsets([partition])[partition])}
        found = [row for piece in consumer.read_arrow(ranges) for row in piece.to_arrow().to_pylist()]
    return [
        (
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in found
    ]


def mirrored(
    capsys: pytest.CaptureFixture[str], source: object, target: object, checkpoint: Path, **options: Any
) -> int:
    """The number of records that a run has mirrored, by its output."""
    capsys.readouterr()
    mirror.main(str(source), str(target), checkpoint, **options)
    line = capsys.readouterr().out
    assert f"offsets are in {checkpoint}" in line
    return int(line.split(": ")[1].split(" records")[0].replace(",", ""))


def test_flights_to_a_directory(
    spark: SparkSession, topic: Path, flights: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mirrored(capsys, topic, tmp_path / "copy", tmp_path / "offsets") == len(flights)
    for partition in range(PARTITIONS):
        place = TopicPartition(TOPIC, partition)
        assert rows(tmp_path / "copy", place) == rows(topic, place)
    assert mirrored(capsys, topic, tmp_path / "copy", tmp_path / "offsets") == 0


def test_the_next_run_takes_what_is_new(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, checkpoint = tmp_path / "data", tmp_path / "copy", tmp_path / "offsets"
    append(source, *range(20))
    with kreplog.Log.open(source / "t-0") as log:
        log.delete_records_before(7)
    append(source, 1, 2, partition=2)
    assert mirrored(capsys, source, target, checkpoint) == 13 + 2
    append(source, *range(20, 25))
    append(source, 9, partition=1)
    assert mirrored(capsys, source, target, checkpoint) == 6
    for partition in range(3):
        assert rows(target, TopicPartition("t", partition)) == rows(source, TopicPartition("t", partition))
    (tmp_path / "group.csv").write_text('"t",0,8\nt,2,1\n')
    mirror.main(checkpoint=checkpoint, translate=["t:0:0", "t:0:7", "t:0:25"], translate_file=tmp_path / "group.csv")
    assert capsys.readouterr().out.split() == ["t,0,0", "t,0,0", "t,0,18", "t,0,1", "t,2,1"]
    with pytest.raises(OffsetOutOfRangeError, match="t-0: offset 26 is not in the target yet"):
        mirror.main(checkpoint=checkpoint, translate=["t:0:26"])
    with pytest.raises(UsageError, match="has no offsets of it"):
        mirror.main(checkpoint=checkpoint, translate=["u:0:26"])
    with pytest.raises(UsageError, match="write topic:partition:offset"):
        mirror.main(checkpoint=checkpoint, translate=["../t:0:26"])


# Kills: tasks are run here, without Spark, so that each of their steps can be the last


class Killed(BaseException):
    """Nothing of kreplog's handles it."""


def run_tasks(source: object, target: Target, checkpoint: Path, *, append: bool = False) -> None:
    options = mirror.source_options(str(source), "t", skip_lost=False)
    with mirror.locked(checkpoint) as identity:
        partitions = mirror.snapshots(options)
        for task in mirror.prepare(identity, checkpoint, options, partitions, target, append=append):
            mirror.copy(task)


def killed_at(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int, after: bool) -> None:
    """Have that call of the function end the task, before or after its work."""
    right: Callable[..., Any] = getattr(owner, name)
    calls: list[str] = []

    def wrong(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) != call:
            return right(*arguments, **options)
        if after:
            right(*arguments, **options)
        raise Killed(name)

    patch.setattr(owner, name, wrong)


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks have three records."""
    right, join = reader.read, mirror.chunks

    def read(*arguments: Any) -> Iterator[pa.RecordBatch]:
        for batch in right(*arguments):
            yield from (batch.slice(start, 3) for start in range(0, batch.num_rows, 3))

    monkeypatch.setattr("kreplog_jobs.mirror.read", read)
    monkeypatch.setattr(mirror, "chunks", lambda batches: join(batches, 1))


STEPS: list[tuple[Any, str]] = [
    *((OffsetMap, name) for name in ("create", "append", "commit", "resolve", "_rewrite")),
    (kreplog.Log, "append_once"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("owner, name", STEPS, ids=[name for _, name in STEPS])
def test_a_directory_has_each_record_once_whatever_step_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool
) -> None:
    cut_small(monkeypatch)
    source, copy = tmp_path / "data", tmp_path / "copy"
    target = DirectoryTarget(str(copy), "none")
    killed = 0
    for call in range(1, 4):
        append(source, *range(call * 10, call * 10 + 8))
        with monkeypatch.context() as patch:
            killed_at(patch, owner, name, call, after)
            try:
                run_tasks(source, target, tmp_path / "offsets")
            except Killed:
                killed += 1
        if call == 2:  # another writer's record takes the offset at which the killed task may have wanted to go on
            with kreplog.Log.open(copy / "t-0") as log:
                log.append(b"another's")
    assert killed
    run_tasks(source, target, tmp_path / "offsets")
    found, wanted = rows(copy), rows(source)
    assert [row for row in found if row[2] != b"another's"] == wanted
    offsets = OffsetMap(map_path(tmp_path / "offsets", T))
    assert [found[offsets.translate(offset)] for offset in range(len(wanted))] == wanted
    assert offsets.translate(len(wanted)) == len(found)


def test_a_kill_in_the_middle_of_an_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log drops the batches, and the map the runs that announced them."""
    cut_small(monkeypatch)
    append(tmp_path / "data", *range(10))
    right, target = encode_arrow, DirectoryTarget(str(tmp_path / "copy"), "none")

    def interrupted(*arguments: Any, **options: Any) -> Iterator[bytes]:
        yield from right(*arguments, **options)
        raise Killed

    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(mirror_target, "encode_arrow", interrupted)
            run_tasks(tmp_path / "data", target, tmp_path / "offsets")
        assert OffsetMap(map_path(tmp_path / "offsets", T)).pending
    run_tasks(tmp_path / "data", target, tmp_path / "offsets")
    assert rows(tmp_path / "copy") == rows(tmp_path / "data")


def test_gaps_of_the_source(tmp_path: Path) -> None:
    """As compaction and the markers of transactions leave them."""
    append(tmp_path / "data", 1)
    target = DirectoryTarget(str(tmp_path / "copy"), "lz4")
    target.create({"t": 1})
    sources = [3, 4, 8, 20, 21]
    table = pa.table(
        {
            "offset": pa.array(sources, pa.int64()),
            "timestamp": pa.array([number * 1000 for number in sources], pa.timestamp("us", "UTC")),
            "key": pa.array([b"k"] * 5),
            "value": pa.array([b"%d" % number for number in sources]),
            "headers": pa.nulls(5, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
    )
    with OffsetMap.locked(tmp_path, T) as offsets, target.open("m", T) as opened:
        offsets.create(None, opened.topic_id)
        opened.append(offsets, table, 22)
        offsets.commit(25)
        expected = {3: 0, 4: 1, 5: 2, 8: 2, 9: 3, 20: 3, 21: 4, 22: 5, 25: 5}
        assert {offset: offsets.translate(offset) for offset in expected} == expected
    with OffsetMap.locked(tmp_path, T) as offsets, target.open("m", T) as opened:
        opened.resume(offsets)
        assert offsets.position == 25


def test_records_without_a_timestamp_get_the_time_of_the_copy(tmp_path: Path) -> None:
    batch = pa.record_batch({"offset": [1, 2], "timestamp": pa.array([-1000, 5000], pa.timestamp("us", "UTC"))})
    (table,) = mirror.chunks([batch.slice(0, 0), batch])
    assert table["timestamp"].is_null().to_pylist() == [True, False]


# What is refused


def test_what_would_double_or_mix_records_is_refused(tmp_path: Path) -> None:
    source, copy, checkpoint = tmp_path / "data", tmp_path / "copy", tmp_path / "offsets"
    target = DirectoryTarget(str(copy), "none")
    append(source, *range(10))
    append(copy, 1)
    with pytest.raises(UsageError, match="t-0: the target has records that this mirror did not write"):
        run_tasks(source, target, checkpoint)
    run_tasks(source, target, checkpoint, append=True)
    assert rows(copy)[1:] == rows(source)
    with pytest.raises(UsageError, match="source and target are the same topic"):
        run_tasks(copy, target, tmp_path / "others", append=True)
    for place, message in ((source, "deleted and created again in the source"), (copy, "not that of the checkpoint")):
        moved = place.rename(tmp_path / "moved")
        append(place, *range(20))
        with pytest.raises(UsageError, match=message):
            run_tasks(source, target, checkpoint)
        for path in sorted(place.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        place.rmdir()
        moved.rename(place)
    with mirror.locked(checkpoint), pytest.raises(UsageError, match="another mirror runs with it"):
        run_tasks(source, target, checkpoint)


def test_records_that_are_lost_are_named(tmp_path: Path) -> None:
    source, target, checkpoint = (
        tmp_path / "data",
        DirectoryTarget(str(tmp_path / "copy"), "none"),
        tmp_path / "offsets",
    )
    append(source, *range(10))
    run_tasks(source, target, checkpoint)
    append(source, *range(10, 20))
    with kreplog.Log.open(source / "t-0") as log:
        log.delete_records_before(14)
    with pytest.raises(OffsetOutOfRangeError, match="t-0: offsets 10 to 14 were deleted in the source"):
        run_tasks(source, target, checkpoint)
    options = mirror.source_options(str(source), None, skip_lost=True)
    with mirror.locked(checkpoint) as identity:
        partitions = mirror.snapshots(options)
        (task,) = mirror.prepare(identity, checkpoint, options, partitions, target, append=False)
        assert mirror.copy(task) == 6
    assert OffsetMap(map_path(checkpoint, T)).translate(12) == OffsetMap(map_path(checkpoint, T)).translate(14) == 10
    with kreplog.Log.open(source / "t-0") as log:
        log.truncate_to(15)
    with pytest.raises(OffsetOutOfRangeError, match="below 20 are mirrored, and the source ends at 15"):
        run_tasks(source, target, checkpoint)
    append(source, *range(10))
    with kreplog.Log.open(tmp_path / "copy" / "t-0") as log:
        log.truncate_to(12)
    with pytest.raises(KreplogError, match="the target has lost records of this mirror"):
        run_tasks(source, target, checkpoint)


def test_a_directory_without_aborted_and_open_transactions(spark: SparkSession, tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with kreplog.Log.open(data / "t-0") as log:
        for producer, value in enumerate((b"committed", b"aborted", b"open")):
            log.append_batches(sent(producer, 0, value), transactional=True)
        log.append_transaction_marker(0, 0, committed=True, coordinator_epoch=0)
        log.append_transaction_marker(1, 0, committed=False, coordinator_epoch=0)
    mirror.main(str(data), str(copy), tmp_path / "offsets", read_committed=True)
    assert [value for _, _, value, _ in rows(copy)] == [b"committed"]


def test_wrong_usage(tmp_path: Path) -> None:
    append(tmp_path / "data", 1)
    data, checkpoint = str(tmp_path / "data"), tmp_path / "offsets"
    with pytest.raises(UsageError, match="with --checkpoint"):
        mirror.main(data, str(tmp_path / "copy"))
    with pytest.raises(UsageError, match="name SOURCE and TARGET"):
        mirror.main(data, checkpoint=checkpoint)
    with pytest.raises(UsageError, match="leave SOURCE and TARGET out"):
        mirror.main(data, data, checkpoint, translate=["t:0:0"])
    with pytest.raises(UsageError, match="is what is read"):
        mirror.main(data, data, checkpoint)
    with pytest.raises(UsageError, match="there is no topic u"):
        mirror.main(data, str(tmp_path / "copy"), checkpoint, subscribe="u")
    assert job.is_brokers("[::1]:9092,kafka-1:9092")
    assert not job.is_brokers("./kafka:9092") and not job.is_brokers("data")


# Brokers


def create(cluster: LocalCluster, topic: str, partitions: int) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 3}}, wait_for_metadata=True)
    wait_for_topic(cluster, topic, partitions)


def delete(cluster: LocalCluster, topic: str) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics(), f"{topic} has not been deleted")


def test_to_brokers_and_back(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, bootstrap = tmp_path / "data", cluster.bootstrap()
    for partition in range(3):
        append(source, *range(partition * 100, partition * 100 + 100), partition=partition)
    assert mirrored(capsys, source, bootstrap, tmp_path / "to", replication_factor=3) == 300
    append(source, *range(7), partition=1)
    assert mirrored(capsys, source, bootstrap, tmp_path / "to") == 7
    assert mirrored(capsys, bootstrap, tmp_path / "back", tmp_path / "from", subscribe="t") == 307
    for partition in range(3):
        place = TopicPartition("t", partition)
        wanted = rows(source, place)
        assert rows_of_brokers(bootstrap, place) == rows(tmp_path / "back", place) == wanted
        for checkpoint in ("to", "from"):
            offsets = OffsetMap(map_path(tmp_path / checkpoint, place))
            assert [offsets.translate(offset) for offset in range(len(wanted) + 1)] == [*range(len(wanted) + 1)]
    with pytest.raises(UsageError, match="t-0: source and target are the same topic"):
        mirror.main(bootstrap, f"{bootstrap.split(',')[0]}", tmp_path / "same", subscribe="t", append=True)
    append(source, 1, partition=3)
    with pytest.raises(UsageError, match="t has 4 partitions in the source and 3 at"):
        mirror.main(str(source), bootstrap, tmp_path / "to")
    delete(cluster, "t")


@pytest.mark.parametrize("name, after", [("commit", False), ("commit", True), ("sync", False), ("create", True)])
def test_brokers_have_each_record_once_or_more_after_a_kill(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: bool
) -> None:
    cut_small(monkeypatch)
    topic = TopicPartition(f"{name}-{after}", 0)
    source, target = tmp_path / "data", BrokersTarget(cluster.bootstrap(), "lz4", 3)
    with kreplog.Log.open(source / str(topic)) as log:
        log.append_many([b"%d" % number for number in range(30)])
    options = mirror.source_options(str(source), topic.topic, skip_lost=False)
    for call in (1, 3, 0):
        with monkeypatch.context() as patch, suppress(Killed):
            killed_at(patch, OffsetMap, name, call, after)
            with mirror.locked(tmp_path / "offsets") as identity:
                partitions = mirror.snapshots(options)
                for task in mirror.prepare(
                    identity, tmp_path / "offsets", options, partitions, target, append=call > 1
                ):
                    mirror.copy(task)
    values = [int(row[2] or b"-1") for row in rows_of_brokers(cluster.bootstrap(), topic)]
    assert sorted(set(values)) == [*range(30)]
    assert len(values) <= 30 + 2 * 3
    offsets = OffsetMap(map_path(tmp_path / "offsets", topic))
    for offset in range(30):
        assert set(range(offset, 30)) <= set(values[offsets.translate(offset) :])
        assert values[offsets.translate(offset)] == offset


def test_a_target_that_others_write_to(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)
    create(cluster, "mixed", 1)
    place = TopicPartition("mixed", 0)
    with kreplog.Log.open(tmp_path / "data" / "mixed-0") as log:
        log.append_many([b"%d" % number for number in range(10)])
    options = mirror.source_options(str(tmp_path / "data"), "mixed", skip_lost=False)
    target = BrokersTarget(cluster.bootstrap(), "none")
    right = OffsetMap.commit
    with Producer(cluster.bootstrap()) as producer:

        def interfere(*arguments: Any, **named: Any) -> None:
            producer.append_arrow("mixed", pa.table({"value": [b"another's"]}), partition=0)
            right(*arguments, **named)

        monkeypatch.setattr(OffsetMap, "commit", interfere)
        with mirror.locked(tmp_path / "offsets") as identity:
            partitions = mirror.snapshots(options)
            (task,) = mirror.prepare(identity, tmp_path / "offsets", options, partitions, target, append=False)
            assert mirror.copy(task) == 10
    found = rows_of_brokers(cluster.bootstrap(), place)
    offsets = OffsetMap(map_path(tmp_path / "offsets", place))
    assert [found[offsets.translate(offset)][2] for offset in range(10)] == [b"%d" % number for number in range(10)]


@pytest.mark.long
def test_killed_runs_are_made_up_for(topic: Path, flights: Any, tmp_path: Path) -> None:
    """kill -9 of driver, Java and workers at ever later moments, by what is in the map, until a run gets through."""
    source, copy, checkpoint = tmp_path / "data", tmp_path / "copy", tmp_path / "offsets"
    command = [sys.executable, "-m", "kreplog_jobs.mirror", str(source), str(copy), "--checkpoint", str(checkpoint)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "spark", ROOT / "spark/jobs")))}
    wanted: dict[int, list[Row]] = {}
    killed = 0
    for run in range(12):
        for partition in range(PARTITIONS):
            with (
                kreplog.Log.open(topic / f"{TOPIC}-{partition}", read_only=True) as full,
                kreplog.Log.open(source / f"{TOPIC}-{partition}") as log,
            ):
                for piece in full.to_arrow():
                    log.append_once(encode_arrow(piece), writer="test", sequence=run)
            wanted[partition] = rows(source, TopicPartition(TOPIC, partition))
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, env=environment,
        )  # fmt: skip
        size = sum(file.stat().st_size for file in checkpoint.glob("*.offsets"))

        def moved(process: subprocess.Popen[bytes] = process, size: int = size) -> bool:
            grown = sum(file.stat().st_size for file in checkpoint.glob("*.offsets")) - size
            return process.poll() is not None or grown > 0

        eventually(moved, "the run neither mirrors nor ends", within_s=120)
        killed += process.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert killed > 6
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    for partition, expected in wanted.items():
        place = TopicPartition(TOPIC, partition)
        assert rows(copy, place) == expected
        offsets = OffsetMap(map_path(checkpoint, place))
        assert [offsets.translate(offset) for offset in range(len(expected) + 1)] == [*range(len(expected) + 1)]
