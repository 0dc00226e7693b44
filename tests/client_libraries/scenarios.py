"""What every client does: one set of tests, which the module of each client runs through its own `Client`.

What a client has sent is read by the same client, and is looked at in the files of the brokers: that it was compressed,
and that it was idempotent, shows only there.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaConnectionError

import kreplog
from kreplog import Record
from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import admin_of, eventually, kill, wait_for_topic
from tests.reference import HEADER

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MEGABYTE = 1_000_000

_numbers = itertools.count()


class Message(NamedTuple):
    """What is sent."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0


KINDS = {
    "key": Message(b"value", b"key"),
    "headers": Message(b"value", b"key", (("one", b"1"), ("two", b"22"), ("one", b"again"))),
    "no-key": Message(b"value"),
    "no-value": Message(None, b"key"),
    "nothing": Message(None),
    "empty": Message(b"", b""),
    "empty-header": Message(b"value", None, (("empty", b""),)),
    "megabyte": Message(b"0123456789" * (MEGABYTE // 10), b"key"),
}


class Sender(Protocol):
    def __call__(self, topic: str, messages: Sequence[Message]) -> None:
        """Send them, and wait until all are acknowledged; with acks=0 until they have left."""


class Client(Protocol):
    """One client program or library, as the tests of this folder use it."""

    def producer(self, acks: str = "all", idempotent: bool = False, codec: str = "none") -> AbstractContextManager[Any]:
        """Gives a Sender."""

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int | None = None, since_ms: int | None = None
    ) -> list[Record]:
        """So many records by assignment: from that offset, else from the first of that time, else from the beginning.

        Fails the test where they do not come within WITHIN_S."""


class Scenarios:
    """A subclass has the fixture `client`, and says which kinds of messages its client cannot send."""

    unable: frozenset[str] = frozenset()
    round = 200
    """Messages that are under way together while a broker is killed."""

    @pytest.mark.parametrize("acks, idempotent", [("0", False), ("1", False), ("all", False), ("all", True)])
    def test_acks(self, cluster: LocalCluster, client: Client, acks: str, idempotent: bool) -> None:
        topic = made(cluster)
        sent = [Message(b"%d" % number) for number in range(500)]
        with client.producer(acks, idempotent) as send:
            send(topic, sent)
        assert messages_of(client.read(topic, len(sent))) == sent
        assert all((batch.producer_id >= 0) == idempotent for batch in batches(cluster, topic))

    @pytest.mark.parametrize("codec", CODECS)
    def test_codecs(self, cluster: LocalCluster, client: Client, codec: str) -> None:
        topic = made(cluster)
        sent = [Message(b"the same again and again %d" % (number // 100)) for number in range(1000)]
        with client.producer(codec=codec) as send:
            send(topic, sent)
        assert messages_of(client.read(topic, len(sent))) == sent
        # A batch that compression would not make smaller goes as it is, with librdkafka.
        assert CODECS.index(codec) in {batch.codec for batch in batches(cluster, topic)}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "kind" in metafunc.fixturenames:
            metafunc.parametrize("kind", [kind for kind in KINDS if kind not in self.unable])

    def test_kinds_of_records(self, cluster: LocalCluster, client: Client, kind: str) -> None:
        topic = made(cluster)
        with client.producer() as send:
            send(topic, [KINDS[kind]])
        assert messages_of(client.read(topic, 1)) == [KINDS[kind]]

    def test_consuming_from_an_offset_a_time_and_the_beginning(self, cluster: LocalCluster, client: Client) -> None:
        topic = made(cluster)
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap().split(","), batch_size=500, compression_type="lz4"
        )
        for number in range(1000):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=10_000 + number * 10)
        producer.close()
        assert [record.offset for record in client.read(topic, 1000)] == list(range(1000))
        found = client.read(topic, 1000 - 777, offset=777)
        assert [(record.offset, record.value) for record in found] == [
            (number, b"%d" % number) for number in range(777, 1000)
        ]
        assert [record.timestamp_ms for record in client.read(topic, 3, since_ms=15_555)] == [15_560, 15_570, 15_580]

    def test_the_leader_is_killed_and_comes_back(self, cluster: LocalCluster, client: Client) -> None:
        """Nothing acknowledged is lost, nothing is there twice, and each partition keeps its order."""
        topic = made(cluster, partitions=2)
        leader = states(cluster, topic)[0]["leader_id"]
        with Writer(client, topic, 2, self.round) as writer:
            eventually(lambda: writer.acknowledged > self.round, "nothing is acknowledged")
            try:
                kill(cluster, leader)
                killed_at = writer.acknowledged
                eventually(lambda: writer.acknowledged > killed_at + 2 * self.round, "the producer does not go on")
                eventually(
                    lambda: leader not in {state["leader_id"] for state in states(cluster, topic)}, "it still leads"
                )
            finally:
                cluster.start([leader])
            eventually(
                lambda: all(len(state["isr_nodes"]) == 3 for state in states(cluster, topic)), "it does not rejoin"
            )
        for partition in range(2):
            sent = [message for message in writer.sent if message.partition == partition]
            assert end_offset(cluster, topic, partition) == len(sent)
            assert messages_of(client.read(topic, len(sent), partition=partition), partition) == sent


class Writer(threading.Thread):
    """An idempotent producer of one round after the other, spread over the partitions, until the end of the block.

    sent: all messages, in order. acknowledged: how many of them are."""

    def __init__(self, client: Client, topic: str, partitions: int, round: int) -> None:
        super().__init__()
        self._client = client
        self._topic = topic
        self._partitions = partitions
        self._round = round
        self._stop_now = threading.Event()
        self._error: BaseException | None = None
        self.sent: list[Message] = []
        self.acknowledged = 0

    def run(self) -> None:
        try:
            with self._client.producer("all", True, "lz4") as send:
                while not self._stop_now.is_set():
                    first = len(self.sent)
                    self.sent += [
                        Message(b"%d" % number, partition=number % self._partitions)
                        for number in range(first, first + self._round)
                    ]
                    send(self._topic, self.sent[first:])
                    self.acknowledged = len(self.sent)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_now.set()
        self.join()
        if self._error is not None:
            raise self._error


# The cluster, as kafka-python and the files show it


def made(cluster: LocalCluster, partitions: int = 1, replicas: int = 3) -> str:
    """A new topic."""
    topic = f"topic-{next(_numbers)}"
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": replicas}})
    wait_for_topic(cluster, topic, partitions)
    return topic


def states(cluster: LocalCluster, topic: str) -> list[dict[str, Any]]:
    """The topic's partitions as Metadata describe them; retried while these list a broker that was just killed."""
    found: list[dict[str, Any]] = []

    def described() -> bool:
        try:
            with admin_of(cluster.bootstrap()) as admin:
                found[:] = admin.describe_topics([topic])[0]["partitions"]
        except KafkaConnectionError:
            return False
        return True

    eventually(described, "no broker responds")
    return sorted(found, key=lambda partition: int(partition["partition_index"]))


def end_offset(cluster: LocalCluster, topic: str, partition: int) -> int:
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap().split(","))
    here = TopicPartition(topic, partition)
    try:
        return int(consumer.end_offsets([here])[here])
    finally:
        consumer.close()


def messages_of(found: Sequence[Record], partition: int = 0) -> list[Message]:
    """Records without offsets and timestamps; the offsets must have no gaps."""
    assert [record.offset for record in found] == list(range(found[0].offset, found[0].offset + len(found)))
    return [Message(record.value, record.key, record.headers, partition) for record in found]


class Stored(NamedTuple):
    codec: int
    producer_id: int


def batches(cluster: LocalCluster, topic: str) -> Iterator[Stored]:
    """Codec and producer id of all batches of partition 0, read from the files of a running broker."""
    path: Path = cluster.home(cluster.brokers[0]) / "data" / f"{topic}-0"
    with kreplog.Log.open(path, read_only=True) as log:
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            fetched = log.fetch(offset, isolation="log_end")
            data, at = bytes(fetched.data), 0
            while at < len(data):
                header = HEADER.unpack_from(data, at)
                yield Stored(header[5] & 7, header[9])
                at += 12 + header[1]
            offset = fetched.next_offset


def wait_for_leaders(cluster: LocalCluster, topic: str, leaders: list[int]) -> None:
    eventually(
        lambda: [state["leader_id"] for state in states(cluster, topic)] == leaders, f"{topic}: not led by {leaders}"
    )


def wait_for_replicas(cluster: LocalCluster, topic: str, replicas: list[int]) -> None:
    """Wait until partition 0 has these replicas, all in sync."""
    eventually(
        lambda: (
            states(cluster, topic)[0]["replica_nodes"] == replicas
            and set(states(cluster, topic)[0]["isr_nodes"]) == set(replicas)
        ),
        f"not on {replicas}",
    )
