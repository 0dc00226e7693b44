"""The job `audit`: replicas that agree, planted differences, damage, and a cluster of real brokers while it runs."""

from __future__ import annotations

import json
import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import typer
from pyspark.sql import SparkSession

import kreplog
from flights.source import TOPIC
from kreplog._native.crc32c import crc32c
from kreplog.errors import UsageError
from kreplog.types import TopicPartition
from kreplog_jobs import audit, audit_plan, audit_replicas
from kreplog_jobs.on_hosts import LogDirectory, RunOnHosts
from tests.integration.clusters import admin_of, eventually, kill, running

pytestmark = pytest.mark.spark


@pytest.fixture
def replicas(topic: Path, tmp_path: Path) -> dict[int, Path]:
    """Three copies of the flights."""
    return {broker: Path(shutil.copytree(topic, tmp_path / f"broker-{broker}" / "data")) for broker in (1, 2, 3)}


def audited(capsys: pytest.CaptureFixture[str], code: int, **options: Any) -> dict[str, Any]:
    capsys.readouterr()
    found = 0
    try:
        audit.main(as_json=True, **options)
    except typer.Exit as end:
        found = end.exit_code
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found == code, report
    return report


def batch_of(path: Path, offset: int) -> tuple[Path, int, int, int]:
    """File, position, size and base offset of the batch that holds `offset`."""
    with kreplog.Log.open(path, read_only=True) as log:
        segment = next(part for part in log.segments if part.base_offset <= offset < part.next_offset)
        before = [batch for rows in log.batches(segment.base_offset, segment.next_offset) for batch in rows]
    position = 0
    for batch in before:
        if batch["last_offset"] >= offset:
            return Path(segment.path), position, int(batch["size"]), int(batch["base_offset"])
        position += int(batch["size"])
    raise AssertionError(f"{path} has no offset {offset}")


def changed(path: Path, offset: int, byte: int, with_crc: bool) -> None:
    """Flip a bit of that byte of the batch that holds `offset`; with_crc: and make its CRC fit."""
    file, position, size, _ = batch_of(path, offset)
    data = bytearray(file.read_bytes())
    data[position + byte] ^= 1
    if with_crc:
        data[position + 17 : position + 21] = crc32c(bytes(data[position + 21 : position + size])).to_bytes(4, "big")
    file.write_bytes(data)


def test_equal_replicas(
    spark: SparkSession, replicas: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], flights: Any
) -> None:
    report = audited(capsys, 0, cluster=tmp_path)
    assert (report["findings"], report["partitions"], report["gaps"]) == ([], 4, 0)
    assert report["records"] == 3 * len(flights)


def test_a_damaged_byte_is_named(
    spark: SparkSession, replicas: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = batch_of(replicas[2] / f"{TOPIC}-1", 700)[3]
    changed(replicas[2] / f"{TOPIC}-1", 700, 100, with_crc=False)
    (finding,) = audited(capsys, 1, cluster=tmp_path)["findings"]
    assert (finding["topic_partition"], finding["offset"], finding["broker"]) == (f"{TOPIC}-1", base, 2)
    assert "CRC" in finding["fault"]


@pytest.mark.parametrize("byte", [15, 46], ids=["leader epoch, outside the CRC", "producer id, with a CRC that fits"])
def test_a_batch_that_differs_in_one_byte_is_named(
    spark: SparkSession, replicas: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], byte: int
) -> None:
    with kreplog.Log.open(replicas[3] / f"{TOPIC}-3", read_only=True) as log:
        last = log.high_watermark - 1
    offset = last if byte == 15 else 900  # an epoch that rises at the end falls nowhere
    base = batch_of(replicas[3] / f"{TOPIC}-3", offset)[3]
    changed(replicas[3] / f"{TOPIC}-3", offset, byte, with_crc=byte >= 21)
    (finding,) = audited(capsys, 1, cluster=tmp_path)["findings"]
    assert (finding["topic_partition"], finding["offset"], finding["broker"]) == (f"{TOPIC}-3", base, 3)
    assert "differs from brokers 1, 2" in finding["fault"]


def test_a_record_that_differs_in_one_byte_is_named(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker in (1, 2):
        with kreplog.Log.open(tmp_path / f"broker-{broker}" / "data" / "t-0") as log:
            log.append_many([b"%d" % number for number in range(100)], timestamps_ms=[1] * 100)
            values = [b"x" if broker == 2 and number == 57 else b"%d" % (number % 10) for number in range(100)]
            log.append_many(values, timestamps_ms=[2] * 100)
    findings = audited(capsys, 1, cluster=tmp_path)["findings"]
    assert [(finding["topic_partition"], finding["offset"], finding["broker"]) for finding in findings] == [
        ("t-0", 157, 1),
        ("t-0", 157, 2),
    ]


@pytest.mark.parametrize("lost", [None, b"9"])
def test_replicas_that_are_compacted_are_compared_by_the_newest_record_of_each_key(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: bytes | None
) -> None:
    """One of them was compacted to its end, one in part, one not at all; perhaps one has lost a record."""
    config = kreplog.LogConfig(cleanup_policy="compact", segment_bytes=1000, batch_bytes=200, delete_retention_ms=0)
    for broker in (1, 2, 3):
        with kreplog.Log.open(tmp_path / f"broker-{broker}" / "data" / "t-0", config) as log:
            for turn in range(20):
                keys = [b"%d" % number for number in range(10)]
                values = [None if number == 3 else b"%d %d" % (turn, number) for number in range(10)]
                if turn == 19 and broker == 2 and lost is not None:
                    keys[int(lost)], values[int(lost)] = b"0", b"19 0"
                log.append_many(values, keys, [turn] * 10)
                if broker == turn // 10 + 1:
                    log.compact(force=True)
    findings = audited(capsys, 0 if lost is None else 1, cluster=tmp_path)["findings"]
    assert [finding["broker"] for finding in findings] == ([] if lost is None else [2])


def emptied(path: Path, how: str) -> None:
    if how == "directory":
        shutil.rmtree(path)
    elif how in ("files", "segments", "log files"):
        pattern = {"files": "*", "segments": "0*", "log files": "*.log"}[how]
        for file in path.glob(pattern):
            file.unlink()
    elif how == "zero bytes":
        for file in path.glob("*.log"):
            os.truncate(file, 0)
    else:
        with kreplog.Log.open(path) as log:
            if how == "truncated":
                log.truncate_to(0)
            else:
                log.truncate_fully_and_start_at(log.log_end_offset)


EMPTIED = {
    "directory": "its replica is missing",
    "files": "its replica cannot be opened",
    "segments": "has no segment with this offset, although its log starts at offset 0",
    "log files": "has no segment with this offset, although its log starts at offset 0",
    "zero bytes": "",
    "truncated": "ends here, and lacks committed records up to offset 11, as broker 1 has them",
    "started at its end": "is empty, while broker 1 has records from offset 0 on",
}


def test_emptied_replicas_are_named_and_hide_no_difference(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Broker 2's replicas are emptied; broker 3's differ from broker 1's in the second batch."""
    topics = {how: how.replace(" ", "-") for how in EMPTIED}
    for topic, broker, partition in product(topics.values(), (1, 2, 3), (0, 1)):
        with kreplog.Log.open(tmp_path / f"broker-{broker}" / "data" / f"{topic}-{partition}") as log:
            log.append_many([b"%d" % number for number in range(10)], timestamps_ms=[1] * 10)
            log.append_many([b"x" if (broker, partition) == (3, 1) else b"y"], timestamps_ms=[2])
    for how, topic in topics.items():
        emptied(tmp_path / "broker-2" / "data" / f"{topic}-1", how)
    found = {
        (finding["topic_partition"], finding["broker"]): finding
        for finding in audited(capsys, 1, cluster=tmp_path)["findings"]
    }
    assert found.keys() == {(f"{topic}-1", broker) for topic in topics.values() for broker in (1, 2, 3)}
    for how, topic in topics.items():
        assert EMPTIED[how] in found[f"{topic}-1", 2]["fault"]
        assert [found[f"{topic}-1", broker]["offset"] for broker in (1, 3)] == [10, 10]


def test_a_replica_that_is_too_short_is_named_with_its_end(
    spark: SparkSession, replicas: dict[int, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kreplog.Log.open(replicas[1] / f"{TOPIC}-0", read_only=True) as log:
        whole = log.high_watermark
    with kreplog.Log.open(replicas[3] / f"{TOPIC}-0") as log:
        end = log.truncate_to(700)
    changed(replicas[2] / f"{TOPIC}-0", whole - 1, 46, with_crc=True)
    findings = audited(capsys, 1, cluster=tmp_path)["findings"]
    assert {(finding["topic_partition"], finding["broker"]) for finding in findings} == {
        (f"{TOPIC}-0", broker) for broker in (1, 2, 3)
    }
    (short,) = (finding for finding in findings if finding["broker"] == 3)
    assert short["offset"] == end and f"up to offset {whole}" in short["fault"]


def test_replicas_that_are_missing_by_their_topic_or_by_metadata(tmp_path: Path) -> None:
    for broker, partitions in {1: (0, 1, 3), 2: (1, 3), 3: (0,)}.items():
        for partition in partitions:
            with kreplog.Log.open(tmp_path / str(broker) / f"t-{partition}") as log:
                log.append(b"x")
    directories = [LogDirectory(broker, str(tmp_path / str(broker))) for broker in (1, 2, 3)]
    (finding,) = audit_plan.plan(directories, None).findings
    assert (finding.topic_partition, finding.broker) == ("t-2", audit_plan.ANY_BROKER)
    assert "it is missing on 2 of brokers 1, 2, 3" in finding.fault
    places = {0: (1, 3), 1: (2, 1), 2: (3, 1), 3: (1, 2, 4), 4: (4, 5)}
    assigned = {TopicPartition("t", partition): brokers for partition, brokers in places.items()}
    assert {
        (finding.topic_partition, finding.broker) for finding in audit_plan.plan(directories, None, assigned).findings
    } == {
        *(("t-2", 3), ("t-2", 1)),
    }
    assigned[TopicPartition("t", 0)] = (1, 2, 3)
    (finding, *_) = audit_plan.plan(directories, ["t"], assigned).findings
    assert (finding.topic_partition, finding.broker, finding.fault[:21]) == ("t-0", 2, "its replica is missin")


def test_running_brokers(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kafka import KafkaProducer

    with running(tmp_path / "cluster") as cluster:
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics({"t": {"num_partitions": 2, "replication_factor": 3}}, wait_for_metadata=True)
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), acks="all")
        for number in range(1000):
            producer.send("t", b"value %d" % number, partition=number % 2)
        producer.flush(20)

        def compared() -> int:
            report = audited(capsys, 0, cluster=tmp_path / "cluster", subscribe="t", bootstrap=cluster.bootstrap())
            assert report["findings"] == []
            return int(report["records"])

        eventually(lambda: compared() == 3000, "not all records were compared")
        by_brokers: dict[str, Any] = {"subscribe": "t", "bootstrap": cluster.bootstrap()}
        assert audited(capsys, 0, **by_brokers)["records"] == 3000
        lost, data = cluster.brokers[1], cluster.home(cluster.brokers[1]) / "data"
        kill(cluster, lost)
        for path in data.glob("t-*"):
            shutil.rmtree(path)
        findings = audited(capsys, 1, cluster=tmp_path / "cluster", bootstrap=cluster.bootstrap())["findings"]
        assert {(finding["topic_partition"], finding["broker"]) for finding in findings} == {
            ("t-0", lost),
            ("t-1", lost),
        }
        findings = audited(capsys, 1, **by_brokers)["findings"]
        assert [(finding["topic_partition"], finding["broker"]) for finding in findings] == [
            ("t-0", lost),
            ("t-1", lost),
        ]
        assert {finding["fault"] for finding in findings} == {
            "its replica is not compared: the broker does not respond"
        }
        producer.close()


def test_nothing_to_compare_is_no_success(replicas: dict[int, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no topic trains"):
        audit.main(cluster=tmp_path, subscribe=f"{TOPIC}, trains")
    with pytest.raises(UsageError, match="nothing to compare: of 4 partitions none"):
        audit.main(replicas=[f"1={replicas[1]}"])


def test_a_range_that_retention_deletes_after_it_was_compared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker in (1, 2):
        with kreplog.Log.open(tmp_path / f"broker-{broker}" / "data" / "t-0") as log:
            log.append_many([b"x" if broker == 1 else b"y"] * 10, timestamps_ms=[1] * 10)
    right = audit.judge

    def late(run: RunOnHosts, results: Any) -> Any:
        with kreplog.Log.open(tmp_path / "broker-1" / "data" / "t-0") as log:
            log.delete_records_before(10)
        return right(run, results)

    monkeypatch.setattr(audit, "judge", late)
    findings = audited(capsys, 1, cluster=tmp_path)["findings"]
    assert {finding["broker"] for finding in findings} == {1, 2}


def test_directories_with_hosts() -> None:
    named = ["1=host-1:/srv/data", "2=[fd00::2]:/srv/data", "10=10.0.0.3:/srv/a:b=c", "3=host-1:data", "4=./host:/data"]
    found = [*audit.log_directories(None, named[:3], None)]
    assert found == [
        LogDirectory(1, "/srv/data", "host-1"),
        LogDirectory(2, "/srv/data", "[fd00::2]"),
        LogDirectory(10, "/srv/a:b=c", "10.0.0.3"),
    ]
    for text in named[3:]:  # without a slash after the colon, or with one before it, it is a name of this host
        with pytest.raises(UsageError, match=f"{text[2:]} is no directory"):
            audit.log_directories(None, [text], None)


def test_a_range_that_retention_deletes_while_the_audit_is_planned(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for broker in (1, 2):
        with kreplog.Log.open(tmp_path / f"broker-{broker}" / "data" / "t-0") as log:
            log.append_many([b"x"] * 10)
            log.append_many([b"y"] * 10)
    right = audit_replicas.ranges

    def late(request: Any) -> Any:
        for broker in (1, 2):
            with kreplog.Log.open(tmp_path / f"broker-{broker}" / "data" / "t-0") as log:
                log.delete_records_before(10)
        return right(request)

    monkeypatch.setattr(audit_plan, "ranges", late)
    assert audited(capsys, 0, cluster=tmp_path)["deleted_ranges"] == 2


def test_what_to_audit_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name what to audit"):
        audit.main()
    with pytest.raises(UsageError, match="holds no broker"):
        audit.main(cluster=tmp_path)
    with pytest.raises(UsageError, match="write ID=DIRECTORY"):
        audit.main(replicas=["one"])
    with pytest.raises(UsageError, match="is no directory"):
        audit.main(replicas=[f"1={tmp_path}/nothing"])
