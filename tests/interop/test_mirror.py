"""The job `mirror` with a real Kafka as source and as target, and a consumer group that moves with Kafka's own tool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from kafka.structs import OffsetAndMetadata
from pyspark.sql import SparkSession

import kreplog
from kreplog.types import TopicPartition
from kreplog_jobs import mirror
from kreplog_jobs.offset_map import OffsetMap, map_path
from tests.integration.clusters import eventually
from tests.interop.clients import Message, create, messages, send, served, served_to_java
from tests.interop.jvm import NEWEST, Broker, Kafka, skipped_where_unavailable

pytestmark = pytest.mark.interop

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
COUNT = 3000


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kafka, Broker]]:
    """A second broker, of the newest release."""
    folder = tmp_path_factory.mktemp("newest")
    with skipped_where_unavailable():
        kafka = Kafka(folder, NEWEST)
        made = Broker(kafka, folder)
    try:
        made.start()
        yield kafka, made
    finally:
        made.kill()


def without_offsets(records: list[kreplog.Record]) -> list[Message]:
    return [Message(record.timestamp_ms, record.key, record.value, record.headers) for record in records]


def rows(path: Path) -> list[kreplog.Record]:
    with kreplog.Log.open(path, read_only=True) as log:
        return list(log.read())


def test_out_of_kafka_into_a_directory_and_into_another_kafka(
    spark: SparkSession, kafka: Kafka, broker: Broker, newest: tuple[Kafka, Broker], tmp_path: Path
) -> None:
    _, other = newest
    sent = messages(range(COUNT))
    create(broker.bootstrap, "mirrored")
    send(broker.bootstrap, "mirrored", sent[:2000], compression_type="gzip")
    for more in (sent[2000:], []):
        mirror.main(broker.bootstrap, str(tmp_path / "copy"), tmp_path / "one", subscribe="mirrored")
        mirror.main(broker.bootstrap, other.bootstrap, tmp_path / "two", subscribe="mirrored")
        send(broker.bootstrap, "mirrored", more)
    assert without_offsets(rows(tmp_path / "copy" / "mirrored-0")) == sent
    assert without_offsets(served(other.bootstrap, "mirrored")) == sent
    assert without_offsets(served_to_java(kafka, other.bootstrap, "mirrored", COUNT)) == sent


def test_out_of_a_directory_into_kafka(
    spark: SparkSession, kafka: Kafka, newest: tuple[Kafka, Broker], tmp_path: Path
) -> None:
    _, other = newest
    sent = messages(range(500))
    with kreplog.Log.open(tmp_path / "data" / "from-files-0") as log:
        for message in sent:
            log.append(message.value, key=message.key, timestamp_ms=message.timestamp_ms, headers=message.headers)
    mirror.main(str(tmp_path / "data"), other.bootstrap, tmp_path / "offsets")
    assert without_offsets(served_to_java(kafka, other.bootstrap, "from-files", 500)) == sent


def test_a_group_moves_past_the_gaps_of_transactions(
    spark: SparkSession,
    kafka: Kafka,
    broker: Broker,
    newest: tuple[Kafka, Broker],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The markers of transactions take offsets in the source and none in the target. The group has read up to the
    middle of the third transaction; in the target it goes on with the record that follows."""
    newer, other = newest
    create(broker.bootstrap, "moved")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="t", acks="all")
    producer.init_transactions()
    for transaction in range(5):
        producer.begin_transaction()
        for number in range(4):
            producer.send("moved", b"%d" % (transaction * 4 + number), partition=0)
        producer.commit_transaction()
    producer.begin_transaction()
    producer.send("moved", b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction()
    producer.close()
    place = KafkaPartition("moved", 0)
    committed = 2 * 5 + 2
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id="movers", enable_auto_commit=False)
    consumer.assign([place])
    consumer.commit({place: OffsetAndMetadata(committed, "", -1)})
    consumer.close()

    mirror.main(broker.bootstrap, str(tmp_path / "copy"), tmp_path / "all", subscribe="moved")
    assert [record.value for record in rows(tmp_path / "copy" / "moved-0")][20:] == [b"aborted"]
    mirror.main(broker.bootstrap, other.bootstrap, tmp_path / "offsets", subscribe="moved", read_committed=True)
    assert len(served(other.bootstrap, "moved")) == 20
    offsets = OffsetMap(map_path(tmp_path / "offsets", TopicPartition("moved", 0)))
    assert offsets.position == 27 and offsets.translate(committed) == 2 * 4 + 2

    common = ("--group", "movers", "--reset-offsets")
    exported = kafka.run(
        GROUPS, "--bootstrap-server", broker.bootstrap, *common, "--to-current", "--all-topics", "--export"
    )
    (tmp_path / "old.csv").write_text(exported)
    capsys.readouterr()
    mirror.main(checkpoint=tmp_path / "offsets", translate_file=tmp_path / "old.csv")
    translated = capsys.readouterr().out
    assert translated == "moved,0,10\n"
    (tmp_path / "new.csv").write_text(translated)
    newer.run(
        GROUPS, "--bootstrap-server", other.bootstrap, *common, "--from-file", str(tmp_path / "new.csv"), "--execute"
    )
    consumer = KafkaConsumer(bootstrap_servers=other.bootstrap, group_id="movers", enable_auto_commit=False)
    consumer.assign([place])
    values: list[bytes] = []

    def read() -> bool:
        values.extend(found.value for found in consumer.poll(200).get(place, ()))
        return len(values) >= 10

    eventually(read, lambda: f"the group has read {values}")
    consumer.close()
    assert values == [b"%d" % number for number in range(10, 20)]
