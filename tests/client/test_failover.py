"""Leaders that die while the bulk client reads and writes: every acknowledged row once, in order, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kreplog.client import (
    BrokersUnreachableError,
    Consumer,
    PartitionUnavailableError,
    ProduceError,
    Producer,
)
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.types import TopicPartition
from tests.client.brokers import Topic, make_topic, read_all, table
from tests.integration import clusters
from tests.integration.faults import SHORT, stopped

CALLS = 40
ROWS = 3000
KILLS = 3


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("failover"), SHORT) as made:
        yield made


def leader_of(topic: Topic, at: TopicPartition) -> int:
    with topic.consumer() as consumer:
        return consumer.partitions(topic.name)[at].leader


class Writer(threading.Thread):
    """Numbers, by one producer, call after call; each partition gets its own row of numbers."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.calls = 0
        self.error: BaseException | None = None

    def wait_for(self, calls: int) -> None:
        clusters.eventually(lambda: self.calls >= calls or self.error, "the producer is stuck", 60)

    def run(self) -> None:
        try:
            with Producer(self.topic.cluster.bootstrap(), batch_bytes=4000, request_timeout_s=5) as producer:
                for call in range(CALLS):
                    numbers = range(call * ROWS, (call + 1) * ROWS)
                    partitions = pa.array([number % 3 for number in numbers], pa.int32())
                    data = pa.table({"value": [b"%d" % number for number in numbers], "partition": partitions})
                    appended = producer.append_arrow(self.topic.name, data)
                    assert sum(piece.records for piece in appended) == ROWS
                    self.calls = call + 1
        except BaseException as error:
            self.error = error


def test_killed_leaders_neither_double_nor_reorder_nor_lose_what_a_producer_writes(own_cluster: LocalCluster) -> None:
    topic = make_topic(own_cluster, "survives", 3)
    writer = Writer(topic)
    writer.start()
    for turn in range(KILLS):
        writer.wait_for((turn + 1) * CALLS // (KILLS + 2))
        victim = leader_of(topic, topic.partitions[turn])
        clusters.kill(own_cluster, victim)
        own_cluster.start([victim])
    writer.join(60)
    assert writer.error is None and writer.calls == CALLS
    with topic.consumer() as consumer:
        ends = consumer.end_offsets(topic.partitions)
        for at in topic.partitions:
            pieces = list(consumer.read_arrow({at: (0, ends[at])}))
            numbers = [int(value) for value in table(pieces)["value"].to_pylist()]
            assert numbers == list(range(at.partition, CALLS * ROWS, 3))


def test_a_consumer_follows_leaders_that_die(own_cluster: LocalCluster) -> None:
    topic = make_topic(own_cluster, "followed", 3)
    numbers: dict[TopicPartition, list[int]] = {at: [] for at in topic.partitions}
    with topic.consumer(piece_bytes=10_000, request_timeout_s=5) as consumer:
        consumer.assign(dict.fromkeys(topic.partitions, 0))
        for turn in range(3):
            with Producer(own_cluster.bootstrap()) as producer:
                for at in topic.partitions:
                    values = [b"%d" % number for number in range(turn * 5000, (turn + 1) * 5000)]
                    producer.append_arrow(topic.name, pa.table({"value": values}), partition=at.partition)
            piece = consumer.fetch_arrow(20)  # so that fetches and half a response are on their way
            victim = leader_of(topic, topic.partitions[turn])
            clusters.kill(own_cluster, victim)
            expected = 3 * 5000 * (turn + 1) - sum(map(len, numbers.values()))
            assert piece is not None
            for found in [piece, *read_all(consumer, expected - len(piece))]:
                numbers[found.partition] += [int(value) for value in table([found])["value"].to_pylist()]
            own_cluster.start([victim])
            clusters.wait_for_topic(own_cluster, topic.name, 3)
    assert numbers == {at: list(range(15_000)) for at in topic.partitions}


@pytest.mark.long
def test_a_suspended_leader_is_given_up_after_the_request_timeout(own_cluster: LocalCluster) -> None:
    """It holds its connections open and answers nothing: no wait may hang on it."""
    topic = make_topic(own_cluster, "suspended", 1)
    at = topic.partitions[0]
    topic.append([b"a"])
    with topic.consumer(request_timeout_s=1) as consumer:
        consumer.assign({at: 0})
        read_all(consumer, 1)
        victim = leader_of(topic, at)
        with stopped(own_cluster, victim):
            with Producer(own_cluster.bootstrap(), request_timeout_s=1) as producer:
                producer.append_arrow(topic.name, pa.table({"value": [b"b"]}), partition=0)
            assert table(read_all(consumer, 1))["value"].to_pylist() == [b"b"]
    own_cluster.start()  # waits until it serves again


def test_with_every_broker_gone_calls_end_with_an_error(own_cluster: LocalCluster) -> None:
    topic = make_topic(own_cluster, "gone", 1)
    at = topic.partitions[0]
    topic.append([b"a"])
    consumer = topic.consumer(retry_timeout_s=1)
    producer = Producer(own_cluster.bootstrap(), delivery_timeout_s=1)
    consumer.assign({at: 0})
    read_all(consumer, 1)
    data = pa.table({"value": [b"b"]})
    producer.append_arrow(topic.name, data)
    read_all(consumer, 1)
    clusters.end(own_cluster)
    with pytest.raises((BrokersUnreachableError, PartitionUnavailableError)):
        for _ in range(10):
            consumer.fetch_arrow(5)
    with pytest.raises((BrokersUnreachableError, ProduceError, PartitionUnavailableError)):
        producer.append_arrow(topic.name, data)
    with pytest.raises(BrokersUnreachableError, match="are they running"):
        Consumer(own_cluster.bootstrap(), retry_timeout_s=1).end_offsets([at])
    consumer.close()
    producer.close()
