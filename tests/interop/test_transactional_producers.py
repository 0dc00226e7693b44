"""Kafka's own producers commit transactions over kreplog's brokers, by the second version of the protocol (KIP-890)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from kreplog import Log, LogConfig
from kreplog.client import Consumer
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.types import TopicPartition
from kreplog.wire import transaction_records
from tests.integration.clusters import FAST, admin_of, eventually, running
from tests.interop.jvm import NEWEST, PRODUCER_PERF, Kafka
from tests.reference import TRANSACTIONAL, Batch, Rec, encode

pytestmark = pytest.mark.interop

RECORDS = 2000
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (*FAST, '"offsets.topic.num.partitions" = 1', '"transaction.state.log.num.partitions" = 1')
    with running(tmp_path_factory.mktemp("cluster"), settings) as made:
        yield made


@pytest.mark.parametrize("version", ["pom", NEWEST])
def test_kip_664_kafkas_tool_lists_and_describes_transactions(
    kafka: Kafka, newest: Kafka, cluster: LocalCluster, version: str
) -> None:
    tools, name = newest if version == NEWEST else kafka, f"listed-by-{version}"
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 3}}, wait_for_metadata=True)
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap(), "transactional.id": name})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(name, b"x")
    producer.flush(TIMEOUT_S)
    tool = ("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", cluster.bootstrap())
    listed = tools.run(*tool, "list")
    assert re.search(rf"^{re.escape(name)}\s+\d+\s+\d+\s+Ongoing", listed, re.MULTILINE), listed
    described = tools.run(*tool, "describe", "--transactional-id", name)
    assert re.search(rf"\sOngoing\s.*{re.escape(name)}-0", described), described
    producers = tools.run(*tool, "describe-producers", "--topic", name, "--partition", "0")
    assert re.search(r"^\d+\s+0\s+-1\s+0\s+\d+\s+0", producers, re.MULTILINE), producers
    producer.commit_transaction(TIMEOUT_S)
    eventually(
        lambda: "CompleteCommit" in tools.run(*tool, "describe", "--transactional-id", name), "it is not complete"
    )


@pytest.mark.parametrize("version", ["pom", NEWEST])
def test_kip_664_kafkas_tool_finds_and_ends_a_hanging_transaction(
    kafka: Kafka, newest: Kafka, cluster: LocalCluster, version: str
) -> None:
    """One that no coordinator knows, as brokers without KIP-890 left them."""
    tools, name = newest if version == NEWEST else kafka, f"hanging-{version}"
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 3}}, wait_for_metadata=True)
    cluster.stop()
    now_ms = time.time_ns() // 1_000_000
    records = (Rec(0, now_ms - 3_600_000, b"key", b"value"),)
    batch = Batch(records, attributes=TRANSACTIONAL, producer_id=999_999, producer_epoch=3, base_sequence=0)
    for broker in cluster.brokers:
        with Log.open(cluster.home(broker) / "data" / f"{name}-0", LogConfig(replicated=True)) as log:
            log.append_batches(encode(batch), log.leader_epoch, transactional=True)
    cluster.start()
    tool = ("org.apache.kafka.tools.TransactionsCommand", "--bootstrap-server", cluster.bootstrap())
    found = tools.run(*tool, "find-hanging", "--broker-id", "0")
    hanging = re.search(rf"^{re.escape(name)}\s+0\s+999999\s+3\s+\S+\s+(\d+)\s", found, re.MULTILINE)
    assert hanging, found
    tools.run(*tool, "abort", "--topic", name, "--partition", "0", "--start-offset", hanging[1])
    found = tools.run(*tool, "find-hanging", "--broker-id", "0")
    assert name not in found, found
    at = TopicPartition(name, 0)
    with Consumer(cluster.bootstrap(), isolation_level="read_committed") as consumer:
        assert consumer.end_offsets([at]) == {at: 2}, "nobody waits for the transaction any more"


def test_kip_890_a_java_producer_gets_another_epoch_with_each_transaction(newest: Kafka, cluster: LocalCluster) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({"java": {"num_partitions": 3, "replication_factor": 3}}, wait_for_metadata=True)
    newest.run(
        PRODUCER_PERF,
        *("--topic", "java", "--num-records", str(RECORDS), "--record-size", "10", "--throughput", "1000"),
        *("--producer-props", f"bootstrap.servers={cluster.bootstrap()}"),
        *("--transactional-id", "perf", "--transaction-duration-ms", "100"),
    )
    count = 0
    with Consumer(cluster.bootstrap(), isolation_level="read_committed") as consumer:
        for number in range(3):
            at = TopicPartition("java", number)
            end = consumer.end_offsets([at])[at]
            count += sum(piece.to_arrow().num_rows for piece in consumer.read_arrow({at: (0, end)}))
    assert count == RECORDS
    cluster.stop()
    (segment,) = (cluster.home(0) / "data" / "__transaction_state-0").glob("*.log")
    records = [record for _, record in transaction_records.decode_batches(segment.read_bytes(), 0)]
    values = [record.value for record in records if record.transactional_id == "perf" and record.value is not None]
    assert {value.client_version for value in values if value.partitions} == {2}
    epochs = [value.producer_epoch for value in values]
    assert epochs == sorted(epochs) and epochs[-1] >= 5, "one for each transaction"
    assert len({value.producer_id for value in values}) == 1
    dumped = newest.run("org.apache.kafka.tools.DumpLogSegments", "--transaction-log-decoder", "--files", str(segment))
    assert f"producerEpoch={epochs[-1]}" in dumped or f'"producerEpoch":{epochs[-1]}' in dumped, dumped[-2000:]
