"""kreplog reads a log directory that a real Kafka writes: while it runs, after it stopped, after it was killed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaProducer

from kreplog import Log, Record
from kreplog.types import TopicPartition
from tests.integration.clusters import eventually
from tests.interop import clients
from tests.interop.clients import consumer_of, create, found_by_kreplog, messages, records, send, send_by, served
from tests.interop.jvm import Broker, Kafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.interop

CODECS = ("gzip", "snappy", "lz4", "zstd")
SMALL = {"segment_bytes": 20000, "index_interval_bytes": 500}


@dataclass
class Topics:
    """What the broker serves of each topic, and the offset behind its last record, control records included."""

    served: dict[str, list[Record]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)

    def learn(self, broker: Broker, kafka: Kafka, topic: str) -> None:
        with consumer_of(broker.bootstrap, topic) as (consumer, partition):
            self.ends[topic] = consumer.end_offsets([partition])[partition]
        if topic == "snappy":  # which kafka-python cannot decode without one more package
            self.served[topic] = clients.served_to_java(kafka, broker.bootstrap, topic, self.ends[topic])
        else:
            self.served[topic] = served(broker.bootstrap, topic)


def compress_at_the_broker(broker: Broker, codec: str) -> list[Record]:
    """What was sent is compressed by Kafka's own Java code: it recompresses for a topic that requires it."""
    create(broker.bootstrap, codec, compression_type=codec, segment_bytes=3000, index_interval_bytes=500)
    sent = messages(range(1000))
    send(broker.bootstrap, codec, sent, linger_ms=20)
    return records(sent)


def compress_at_the_client(broker: Broker) -> list[Record]:
    create(broker.bootstrap, "mixed", **SMALL)
    sent = messages(range(1000))
    for start, codec in zip(range(0, 1000, 200), (None, "gzip", "lz4", "zstd", None), strict=True):
        settings = {"linger_ms": 0 if start else 20, "enable_idempotence": start != 400}
        part = sent[start : start + 200]
        assert send(broker.bootstrap, "mixed", part, compression_type=codec, **settings)[0] == start
    return records(sent)


def transactions(broker: Broker) -> tuple[list[Record], list[Record]]:
    """All records, and the committed ones: the rest was aborted."""
    create(broker.bootstrap, "transactions", **SMALL)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id="interop")
    producer.init_transactions()
    everything: list[Record] = []
    committed: list[Record] = []
    for turn in range(12):
        producer.begin_transaction()
        sent = messages(range(turn * 50, turn * 50 + 50))
        offsets = send_by(producer, "transactions", sent)
        made = records(sent, offsets[0])
        assert offsets == [record.offset for record in made]
        everything += made
        if turn % 3 == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            committed += made
    producer.close()
    return everything, committed


def compaction(broker: Broker) -> None:
    """Until the cleaner has taken most of it away; the values of one key are numbered."""
    create(
        broker.bootstrap,
        "compacted",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=0,
        **SMALL,
    )
    sent = [
        clients.Message(1_700_000_000_000 + number, b"key-%d" % (number % 37), b"value-%d" % number * 20)
        for number in range(2000)
    ]
    send(broker.bootstrap, "compacted", sent, linger_ms=5)
    checkpoint = broker.data / "cleaner-offset-checkpoint"
    eventually(lambda: "compacted 0" in checkpoint.read_text(), "the cleaner does not come")
    eventually(lambda: len(served(broker.bootstrap, "compacted")) < 600, "nothing is cleaned")


@pytest.fixture(scope="module")
def topics(broker: Broker, kafka: Kafka) -> Topics:
    """Every topic filled, and what the broker serves of it checked against what was sent."""
    sent = {codec: compress_at_the_broker(broker, codec) for codec in CODECS}
    sent["mixed"] = compress_at_the_client(broker)
    sent["transactions"], committed = transactions(broker)
    compaction(broker)
    made = Topics()
    for topic in (*sent, "compacted"):
        made.learn(broker, kafka, topic)
    for topic, expected in sent.items():
        assert made.served[topic] == expected
    assert served(broker.bootstrap, "transactions", isolation_level="read_committed") == committed
    assert made.ends["transactions"] == len(sent["transactions"]) + 12
    return made


TOPICS = (*CODECS, "mixed", "transactions", "compacted")


def reads_the_same(broker: Broker, topics: Topics, names: Sequence[str] = TOPICS) -> None:
    for topic in names:
        assert found_by_kreplog(broker.partition(topic), topics.ends[topic]) == topics.served[topic], topic


def verifies_all(broker: Broker) -> None:
    """Every partition in the directory, Kafka's own among them, but for those that it is about to delete."""
    entries = [entry for entry in broker.data.iterdir() if entry.is_dir()]
    names = sorted(entry.name for entry in entries if not entry.name.endswith("-delete"))
    assert {"__cluster_metadata-0", "__transaction_state-0", "mixed-0", "transactions-0"} <= set(names)
    for name in names:
        clients.undamaged(broker.data / str(TopicPartition.parse(name)))


@pytest.mark.parametrize("topic", TOPICS)
def test_the_same_records_while_it_runs(broker: Broker, topics: Topics, topic: str) -> None:
    broker.start()
    assert len(list(broker.partition(topic).glob("*.log"))) > 1
    reads_the_same(broker, topics, [topic])


def test_no_damage_while_it_runs(broker: Broker, topics: Topics) -> None:
    broker.start()
    verifies_all(broker)


@pytest.mark.parametrize("topic", ["mixed", "transactions", "lz4", "compacted"])
def test_offsets_by_time(broker: Broker, topics: Topics, topic: str) -> None:
    """kreplog's offset_for_timestamp against the broker's ListOffsets.

    Not of the compacted topic: a segment that the cleaner has emptied counts as if it held records of the time it was
    emptied, and the broker, finding none, answers that there are none at all.
    """
    broker.start()
    times = sorted({record.timestamp_ms for record in topics.served[topic]})
    wanted = sorted(
        {time + around for time in times[:: len(times) // 30] for around in (-1, 0, 1)} | {0, times[-1] + 1}
    )
    with (
        Log.open(broker.partition(topic), read_only=True) as log,
        consumer_of(broker.bootstrap, topic) as (consumer, partition),
    ):
        for time in wanted:
            found = log.offset_for_timestamp(time)
            if topic == "compacted":
                after = (record.offset for record in topics.served[topic] if record.timestamp_ms >= time)
                assert found == next(after, None), time
            else:
                listed = consumer.offsets_for_times({partition: time})[partition]
                assert found == (listed and listed.offset), time


def test_a_reader_follows_the_broker(broker: Broker, topics: Topics) -> None:
    """One read-only log, kept open while records come and segments roll: always a prefix, at last everything.

    At every roll the broker cuts its indexes, which it made larger than they need to be.
    """
    broker.start()
    create(broker.bootstrap, "followed", segment_bytes=4000, index_interval_bytes=100)
    sent = messages(range(3000))
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type="lz4")

    def write() -> None:
        for start in range(0, len(sent), 20):
            send_by(producer, "followed", sent[start : start + 20])

    thread = threading.Thread(target=write)
    thread.start()
    found: list[Record] = []
    looks = 0
    try:
        with Log.open(broker.partition("followed"), read_only=True) as log:

            def look() -> bool:
                nonlocal looks
                new = list(log.read(len(found)))
                looks += bool(new)
                found.extend(new)
                return len(found) == len(sent)

            eventually(look, "it does not see the end")
            assert len(log.segments) > 10
    finally:
        thread.join()
        producer.close()
    assert found == records(sent)
    assert looks > 2


@pytest.mark.spark
def test_spark_reads_it(spark: SparkSession, broker: Broker, topics: Topics) -> None:
    broker.start()
    frame = (
        spark.read.format("kreplog")
        .option("path", str(broker.data))
        .option("subscribe", ",".join(TOPICS))
        .option("includeHeaders", "true")
        .load()
    )
    rows: list[Any] = frame.collect()
    found: dict[str, list[Record]] = {topic: [] for topic in TOPICS}
    for row in rows:
        headers = tuple((header.key, _bytes(header.value)) for header in row.headers or ())
        time = int(row.timestamp.timestamp() * 1000 + 0.5)
        found[row.topic].append(Record(row.offset, time, _bytes(row.key), _bytes(row.value), headers))
    for topic in TOPICS:
        assert sorted(found[topic], key=lambda record: record.offset) == topics.served[topic], topic


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_the_same_records_after_a_kill_and_after_a_stop(broker: Broker, topics: Topics) -> None:
    """Killed it leaves its indexes with zeros at their ends, and its checkpoints as they were a moment before."""
    broker.start()
    send(broker.bootstrap, "mixed", messages(range(50)))
    topics.served["mixed"] += records(messages(range(50)), 1000)
    topics.ends["mixed"] += 50
    reads_the_same(broker, topics)
    broker.kill()
    index = max(broker.partition("mixed").glob("*.index"))
    assert index.stat().st_size > 1 << 20
    reads_the_same(broker, topics)
    verifies_all(broker)
    broker.start()
    reads_the_same(broker, topics)
    broker.stop()
    assert index.stat().st_size < 1 << 20
    reads_the_same(broker, topics)
    verifies_all(broker)
