"""Topics whose settings change and whose records go, on three broker processes, as administrators' clients do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.errors import OffsetOutOfRangeError

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import clusters
from tests.integration.clusters import WITHIN_S, admin_of, eventually, wait_for_topic


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (*clusters.FAST, '"log.retention.check.interval.ms" = 100')
    with clusters.running(tmp_path_factory.mktemp("cluster"), settings) as made:
        yield made


def create(cluster: LocalCluster, name: str, **configs: Any) -> TopicPartition:
    with admin_of(cluster.bootstrap()) as admin:
        result = {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 3, "configs": result}})
    wait_for_topic(cluster, name)
    return TopicPartition(name, 0)


def produce(cluster: LocalCluster, topic: str, count: int, **more: Any) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), acks="all", linger_ms=0)
    for number in range(count):
        producer.send(topic, b"%d" % number * 20, partition=0, **more).get(WITHIN_S)
    producer.close()


def starts(cluster: LocalCluster, partition: TopicPartition) -> set[int]:
    """The log starts of all replicas, on disk."""
    found = set()
    for broker in cluster.brokers:
        for folder in cluster.home(broker).rglob(f"{partition.topic}-{partition.partition}"):
            names = [int(path.stem) for path in folder.glob("*.log")]
            found.add(min(names))
    return found


def settings_of(cluster: LocalCluster, topic: str) -> dict[str, Any]:
    with admin_of(cluster.bootstrap()) as admin:
        (result,) = admin.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")["topic"].values()
    return dict(result)


def earliest(cluster: LocalCluster, partition: TopicPartition) -> int:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap().split(","))
    try:
        return int(consumer.beginning_offsets([partition])[partition])
    finally:
        consumer.close()


def test_records_are_deleted_on_every_replica_before_it_is_answered(cluster: LocalCluster) -> None:
    partition = create(cluster, "deleted")
    produce(cluster, "deleted", 10)
    with admin_of(cluster.bootstrap()) as admin:
        result = admin.delete_records({partition: 4}, timeout_ms=10_000)
    assert result[partition]["low_watermark"] == 4
    assert earliest(cluster, partition) == 4
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap().split(","), auto_offset_reset="none")
    consumer.assign([partition])
    consumer.seek(partition, 2)
    with pytest.raises(OffsetOutOfRangeError):
        consumer.poll(WITHIN_S * 1000)
    consumer.close()


def test_confluent_kafka_deletes_records(cluster: LocalCluster) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    confluent_admin: Any = pytest.importorskip("confluent_kafka.admin")
    create(cluster, "purged")
    produce(cluster, "purged", 5)
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap()})
    everything = confluent.TopicPartition("purged", 0, confluent.OFFSET_END)
    (future,) = admin.delete_records([everything]).values()
    assert future.result(WITHIN_S).low_watermark == 5
    (refused,) = admin.delete_records([confluent.TopicPartition("purged", 0, 6)]).values()
    with pytest.raises(confluent.KafkaException, match="OFFSET_OUT_OF_RANGE"):
        refused.result(WITHIN_S)


def test_retention_deletes_what_is_too_much_on_every_broker(cluster: LocalCluster) -> None:
    partition = create(cluster, "bounded", segment_bytes=1000)
    produce(cluster, "bounded", 40)
    assert starts(cluster, partition) == {0}
    with admin_of(cluster.bootstrap()) as admin:
        admin.alter_configs([ConfigResource("TOPIC", "bounded", configs={"retention.bytes": "2000"})])
    eventually(lambda: min(starts(cluster, partition)) > 0, "retention has not deleted everywhere")
    eventually(lambda: earliest(cluster, partition) > 0, "the leader has not moved its log start")
    assert earliest(cluster, partition) < 40


def test_retention_by_time(cluster: LocalCluster) -> None:
    partition = create(cluster, "old", retention_ms=1000)
    produce(cluster, "old", 5, timestamp_ms=1_600_000_000_000)
    eventually(lambda: earliest(cluster, partition) == 5, "what is old has not been deleted")


def test_settings_are_changed_and_described(cluster: LocalCluster) -> None:
    create(cluster, "changing", retention_ms=86_400_000)
    found = settings_of(cluster, "changing")
    assert found["retention.ms"]["value"] == "86400000" and not found["retention.ms"]["read_only"]
    assert found["retention.ms"]["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    assert found["min.insync.replicas"]["config_source"] == "STATIC_BROKER_CONFIG"
    assert found["segment.bytes"]["config_source"] == "DEFAULT_CONFIG"
    with admin_of(cluster.bootstrap()) as admin:
        changes = {"min.insync.replicas": "3", "max.message.bytes": "2000"}
        admin.alter_configs([ConfigResource("TOPIC", "changing", configs=changes)], incremental=True)
    found = settings_of(cluster, "changing")
    assert {name: found[name]["value"] for name in changes} == changes
    assert found["retention.ms"]["value"] == "86400000"
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","), acks="all", max_request_size=10**6)
    producer.send("changing", b"x" * 1000, partition=0).get(WITHIN_S)
    with pytest.raises(Exception, match=r"(?i)too.*large"):
        producer.send("changing", b"x" * 3000, partition=0).get(WITHIN_S)
    producer.close()
    with admin_of(cluster.bootstrap()) as admin:
        admin.reset_configs([ConfigResource("TOPIC", "changing", configs=["max.message.bytes"])])
    found = settings_of(cluster, "changing")
    assert found["max.message.bytes"]["config_source"] == "DEFAULT_CONFIG"
    assert found["min.insync.replicas"]["value"] == "3"


def test_all_settings_are_replaced(cluster: LocalCluster) -> None:
    """AlterConfigs: what is not given is as in a new topic."""
    confluent_admin: Any = pytest.importorskip("confluent_kafka.admin")
    create(cluster, "replaced", retention_ms=86_400_000, min_insync_replicas=3)
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap()})
    wanted = confluent_admin.ConfigResource(
        confluent_admin.ResourceType.TOPIC, "replaced", set_config={"retention.bytes": "5000"}
    )
    (future,) = admin.alter_configs([wanted]).values()
    future.result(WITHIN_S)
    found = settings_of(cluster, "replaced")
    assert found["retention.bytes"]["value"] == "5000" and found["retention.ms"]["config_source"] == "DEFAULT_CONFIG"
    assert found["min.insync.replicas"]["value"] == "2"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("min.insync.replicas", "4", "min.insync.replicas = 4 with 3 replicas cannot be met"),
        ("min.insync.replicas", "two", "min.insync.replicas = two: must be an integer from 1 to"),
        ("retention.ms", "-2", "retention.ms = -2: must be an integer from -1 to"),
        ("cleanup.policy", "compress", "cleanup.policy = compress: choose one of delete, compact"),
        ("message.timestamp.type", "Never", "message.timestamp.type = Never"),
        ("colour", "red", "colour is not a setting of a topic: the settings are cleanup.policy"),
    ],
)
def test_a_setting_that_is_wrong_is_named(cluster: LocalCluster, name: str, value: str, expected: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    confluent_admin: Any = pytest.importorskip("confluent_kafka.admin")
    if (
        "changed"
        not in (admin := confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap()}))
        .list_topics(timeout=WITHIN_S)
        .topics
    ):
        create(cluster, "changed")
    wanted = confluent_admin.ConfigResource(
        confluent_admin.ResourceType.TOPIC,
        "changed",
        incremental_configs=[
            confluent_admin.ConfigEntry(name, value, incremental_operation=confluent_admin.AlterConfigOpType.SET)
        ],
    )
    (future,) = admin.incremental_alter_configs([wanted]).values()
    with pytest.raises(confluent.KafkaException) as refused:
        future.result(WITHIN_S)
    assert refused.value.args[0].name() == "INVALID_CONFIG" and expected in refused.value.args[0].str()
    new = confluent_admin.NewTopic("never", 1, 3, config={name: value})
    (future,) = admin.create_topics([new]).values()
    with pytest.raises(confluent.KafkaException) as refused:
        future.result(WITHIN_S)
    assert refused.value.args[0].name() == "INVALID_CONFIG" and expected in refused.value.args[0].str()


def test_a_static_setting_of_a_broker_is_not_changed_while_it_runs(cluster: LocalCluster) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    confluent_admin: Any = pytest.importorskip("confluent_kafka.admin")
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap()})
    wanted = confluent_admin.ConfigResource(
        confluent_admin.ResourceType.BROKER, "0", set_config={"log.dirs": "/elsewhere"}
    )
    (future,) = admin.alter_configs([wanted]).values()
    with pytest.raises(confluent.KafkaException) as refused:
        future.result(WITHIN_S)
    assert "restart it" in refused.value.args[0].str()


def test_the_latest_record_by_time(cluster: LocalCluster) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    confluent_admin: Any = pytest.importorskip("confluent_kafka.admin")
    create(cluster, "stamped")
    for stamp in (1000, 3000, 2000):
        produce(cluster, "stamped", 1, timestamp_ms=stamp)
    admin = confluent_admin.AdminClient({"bootstrap.servers": cluster.bootstrap()})
    here = confluent.TopicPartition("stamped", 0)
    for spec, offset, timestamp in (
        (confluent_admin.OffsetSpec.max_timestamp(), 1, 3000),
        (confluent_admin.OffsetSpec.for_timestamp(1500), 1, 3000),
    ):
        (future,) = admin.list_offsets({here: spec}).values()
        assert (future.result(WITHIN_S).offset, future.result(WITHIN_S).timestamp) == (offset, timestamp)
