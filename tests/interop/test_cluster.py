"""Kafka's own console and performance programs, unmodified, against a cluster of kreplog's broker processes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplog import Log
from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.scenarios import wait_for_replicas
from tests.integration.clusters import FAST, START_S, admin_of, end, eventually, running
from tests.integration.faults import set_log_dirs
from tests.interop.clients import found_by_kreplog, served_to_java
from tests.interop.jvm import (
    CONFIGS,
    CONSOLE_PRODUCER,
    CONSUMER_PERF,
    DELETE_RECORDS,
    GET_OFFSETS,
    PRODUCER_PERF,
    REASSIGN,
    Kafka,
)

pytestmark = pytest.mark.interop

COUNT = 5000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def create(cluster: LocalCluster, topic: str) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 3}}, wait_for_metadata=True)


def replicas(cluster: LocalCluster, topic: str) -> list[Path]:
    return [cluster.home(broker) / "data" / f"{topic}-0" for broker in cluster.brokers]


@pytest.mark.parametrize(
    "acks, codec", [("all", "none"), ("all", "gzip"), ("all", "snappy"), ("all", "lz4"), ("all", "zstd"), ("1", "lz4")]
)
def test_console_producer_and_consumer(kafka: Kafka, cluster: LocalCluster, acks: str, codec: str) -> None:
    topic = f"console-{acks}-{codec}"
    create(cluster, topic)
    sent = [(b"key-%d" % number, b"value %d " % number * 5) for number in range(500)]
    kafka.run(
        CONSOLE_PRODUCER,
        *("--bootstrap-server", cluster.bootstrap(), "--topic", topic, "--compression-codec", codec),
        *("--request-required-acks", acks, "--property", "parse.key=true", "--property", "parse.headers=true"),
        given=b"".join(b"a:1,b:2\t%s\t%s\n" % pair for pair in sent),
    )
    found = served_to_java(kafka, cluster.bootstrap(), topic, len(sent))
    assert [(record.offset, record.key, record.value, record.headers) for record in found] == [
        (offset, key, value, (("a", b"1"), ("b", b"2"))) for offset, (key, value) in enumerate(sent)
    ]


@pytest.mark.parametrize("acks, codec", [("all", "none"), ("all", "lz4"), ("1", "lz4")])
def test_producer_performance(kafka: Kafka, cluster: LocalCluster, acks: str, codec: str) -> None:
    topic = f"performance-{acks}-{codec}"
    create(cluster, topic)
    output = kafka.run(
        PRODUCER_PERF,
        *("--topic", topic, "--num-records", str(COUNT), "--record-size", "100", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap()}", f"acks={acks}", f"compression.type={codec}"),
    )
    assert re.search(rf"^{COUNT} records sent, ", output, re.MULTILINE), output
    found = [found_by_kreplog(replica, COUNT) for replica in replicas(cluster, topic)]
    assert [len(record.value or b"") for record in found[0]] == [100] * COUNT
    assert found[1] == found[0] and found[2] == found[0]


def test_consumer_performance(kafka: Kafka, cluster: LocalCluster) -> None:
    create(cluster, "consumed")
    kafka.run(
        PRODUCER_PERF,
        *("--topic", "consumed", "--num-records", str(COUNT), "--record-size", "100", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap()}"),
    )
    output = kafka.run(
        CONSUMER_PERF,
        *("--bootstrap-server", cluster.bootstrap(), "--topic", "consumed", "--messages", str(COUNT)),
        *("--timeout", "8000"),
    )
    assert output.splitlines()[-1].split(", ")[4] == str(COUNT), output


def test_kafkas_tools_delete_records_and_change_settings(kafka: Kafka, cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "tended")
    kafka.run(
        CONSOLE_PRODUCER,
        *("--bootstrap-server", cluster.bootstrap(), "--topic", "tended"),
        given=b"".join(b"%d\n" % number for number in range(10)),
    )
    wanted = tmp_path / "offsets.json"
    wanted.write_text('{"partitions":[{"topic":"tended","partition":0,"offset":4}],"version":1}')
    output = kafka.run(DELETE_RECORDS, "--bootstrap-server", cluster.bootstrap(), "--offset-json-file", wanted)
    assert "low_watermark: 4" in output, output
    for time, offset in (("-2", "4"), ("-1", "10"), ("-4", "4")):
        output = kafka.run(
            GET_OFFSETS, *("--bootstrap-server", cluster.bootstrap(), "--topic", "tended", "--time", time)
        )
        assert f"tended:0:{offset}" in output, output
    topic = ("--bootstrap-server", cluster.bootstrap(), "--entity-type", "topics", "--entity-name", "tended")
    kafka.run(CONFIGS, *topic, "--alter", "--add-config", "retention.ms=1000000,min.insync.replicas=3")
    kafka.run(CONFIGS, *topic, "--alter", "--delete-config", "min.insync.replicas")
    output = kafka.run(CONFIGS, *topic, "--describe")
    assert "retention.ms=1000000" in output and "min.insync.replicas" not in output, output


def test_kafkas_tool_changes_settings_of_brokers(kafka: Kafka, cluster: LocalCluster) -> None:
    first = str(next(iter(cluster.brokers)))
    brokers = ("--bootstrap-server", cluster.bootstrap(), "--entity-type", "brokers")
    own, default = (*brokers, "--entity-name", first), (*brokers, "--entity-default")
    kafka.run(CONFIGS, *default, "--alter", "--add-config", "log.retention.ms=1000000,message.max.bytes=900000")
    kafka.run(CONFIGS, *own, "--alter", "--add-config", "log.retention.ms=2000000")
    output = kafka.run(CONFIGS, *own, "--describe")
    assert (
        "log.retention.ms=2000000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=2000000, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=1000000, DEFAULT_CONFIG:log.retention.ms=-1}"
    ) in output
    output = kafka.run(CONFIGS, *default, "--describe")
    assert "log.retention.ms=1000000" in output and "message.max.bytes=900000" in output, output
    output = kafka.run(CONFIGS, *own, "--describe", "--all")
    assert f"broker.id={first} sensitive=false synonyms={{STATIC_BROKER_CONFIG:broker.id={first}}}" in output
    kafka.run(CONFIGS, *own, "--alter", "--delete-config", "log.retention.ms")
    kafka.run(CONFIGS, *default, "--alter", "--delete-config", "log.retention.ms,message.max.bytes")
    for entity in (own, default):
        assert "log.retention.ms" not in kafka.run(CONFIGS, *entity, "--describe")
    with pytest.raises(AssertionError, match=r"broker\.id cannot be changed while a broker runs"):
        kafka.run(CONFIGS, *own, "--alter", "--add-config", "broker.id=7")


def test_kafkas_tool_moves_a_partition_with_a_throttle_and_verifies_it(
    kafka: Kafka, cluster: LocalCluster, tmp_path: Path
) -> None:
    """KIP-73: the new replica gets one response of 4 MiB in eleven seconds, until a higher throttle replaces that."""
    replica, target = list(cluster.brokers)[:2]
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({"moved": {"assignments": {0: [replica]}}}, wait_for_metadata=True)
    kafka.run(
        PRODUCER_PERF,
        *("--topic", "moved", "--num-records", "40000", "--record-size", "1000", "--throughput", "-1"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap()}"),
    )
    plan = tmp_path / "plan.json"
    plan.write_text(f'{{"version":1,"partitions":[{{"topic":"moved","partition":0,"replicas":[{target}]}}]}}')
    given = ("--bootstrap-server", cluster.bootstrap(), "--reassignment-json-file", plan)
    topics = ("--bootstrap-server", cluster.bootstrap(), "--entity-type", "topics", "--entity-name", "moved")
    brokers = ("--bootstrap-server", cluster.bootstrap(), "--entity-type", "brokers", "--entity-name", str(target))
    kafka.run(REASSIGN, *given, "--execute", "--throttle", "1")
    output = kafka.run(CONFIGS, *topics, "--describe")
    assert f"leader.replication.throttled.replicas=0:{replica}" in output, output
    assert f"follower.replication.throttled.replicas=0:{target}" in output, output
    output = kafka.run(CONFIGS, *brokers, "--describe")
    assert "leader.replication.throttled.rate=1 " in output and "follower.replication.throttled.rate=1 " in output
    output = kafka.run(REASSIGN, *given, "--verify")
    assert "Reassignment of partition moved-0 is still in progress" in output, output
    kafka.run(REASSIGN, *given, "--execute", "--additional", "--throttle", "1000000000")
    wait_for_replicas(cluster, "moved", [target])
    output = kafka.run(REASSIGN, *given, "--verify")
    assert "Reassignment of partition moved-0 is completed" in output, output
    for entity in (topics, brokers):
        assert "throttled" not in kafka.run(CONFIGS, *entity, "--describe")


def test_kafkas_tool_moves_a_replica_to_another_log_directory(kafka: Kafka, tmp_path: Path) -> None:
    """KIP-113: slowly, until a higher throttle replaces the first one."""
    made = LocalCluster.create(tmp_path / "cluster", (0,), 0, FAST)
    data, other = made.home(0) / "data", made.home(0) / "other"
    set_log_dirs(made, 0, [data, other])
    try:
        made.start(timeout_s=START_S)
        with admin_of(made.bootstrap()) as admin:
            admin.create_topics({"moved": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        kafka.run(
            PRODUCER_PERF,
            *("--topic", "moved", "--num-records", "20000", "--record-size", "1000", "--throughput", "-1"),
            *("--producer-props", f"bootstrap.servers={made.bootstrap()}"),
        )
        source, target = (data, other) if (data / "moved-0").exists() else (other, data)
        plan = tmp_path / "plan.json"
        partition = {"topic": "moved", "partition": 0, "replicas": [0], "log_dirs": [str(target)]}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        given = ("--bootstrap-server", made.bootstrap(), "--reassignment-json-file", plan)
        throttle = "--replica-alter-log-dirs-throttle"
        output = kafka.run(REASSIGN, *given, "--execute", throttle, "1000")
        assert f"Successfully started moving log directory to {target} for replica moved-0 with broker 0" in output, (
            output
        )
        output = kafka.run(REASSIGN, *given, "--verify")
        assert "Reassignment of replica moved-0-0 is still in progress" in output, output
        kafka.run(REASSIGN, *given, "--execute", "--additional", throttle, "1000000000")
        eventually(lambda: not (source / "moved-0").exists() and (target / "moved-0").exists(), "moved-0 moves")
        output = kafka.run(REASSIGN, *given, "--verify")
        assert "Reassignment of replica moved-0-0 completed successfully." in output, output
        assert "moved:0:20000" in kafka.run(GET_OFFSETS, "--bootstrap-server", made.bootstrap(), "--topic", "moved")
        made.stop()
        with Log.open(target / "moved-0", read_only=True) as log:
            assert sum(1 for _ in log.read()) == 20_000
    finally:
        end(made)
