"""aiokafka, unmodified."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kreplog import Record
from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.scenarios import Client, Message, Scenarios, Sender, made
from tests.integration.clusters import WITHIN_S, eventually, wait_for_topic

aiokafka: Any = pytest.importorskip("aiokafka")
library: Any = pytest.importorskip("aiokafka.admin")


class AioKafka:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    @contextmanager
    def producer(self, acks: str = "all", idempotent: bool = False, codec: str = "none") -> Iterator[Sender]:
        async def begin() -> Any:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                acks=acks if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                compression_type=None if codec == "none" else codec,
                max_batch_size=2000,
                retry_backoff_ms=20,
            )
            await producer.start()
            return producer

        with asyncio.Runner() as runner:
            producer = runner.run(begin())

            async def deliver(topic: str, messages: Sequence[Message]) -> None:
                sent = [
                    await producer.send(
                        topic, message.value, message.key, partition=message.partition, headers=list(message.headers)
                    )
                    for message in messages
                ]
                await asyncio.wait_for(asyncio.gather(*sent), WITHIN_S)

            try:
                yield lambda topic, messages: runner.run(deliver(topic, messages))
            finally:
                runner.run(producer.stop())

    def read(
        self, topic: str, count: int, *, partition: int = 0, offset: int | None = None, since_ms: int | None = None
    ) -> list[Record]:
        here = aiokafka.TopicPartition(topic, partition)

        async def run() -> list[Record]:
            async with aiokafka.AIOKafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None) as consumer:
                consumer.assign([here])
                if offset is not None:
                    consumer.seek(here, offset)
                elif since_ms is not None:
                    consumer.seek(here, (await consumer.offsets_for_times({here: since_ms}))[here].offset)
                else:
                    await consumer.seek_to_beginning(here)
                found = [await consumer.getone() for _ in range(count)]
                return [
                    Record(record.offset, record.timestamp, record.key, record.value, record.headers)
                    for record in found
                ]

        return asyncio.run(asyncio.wait_for(run(), WITHIN_S))


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> Client:
    return AioKafka(cluster.bootstrap())


Administer = Callable[[Callable[[Any], Awaitable[Any]]], Any]


@pytest.fixture
def administer(cluster: LocalCluster) -> Administer:
    """Runs a function with an admin client, and returns its result."""

    async def run(work: Callable[[Any], Awaitable[Any]]) -> Any:
        admin = library.AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap())
        await admin.start()
        try:
            return await work(admin)
        finally:
            await admin.close()

    return lambda work: asyncio.run(asyncio.wait_for(run(work), WITHIN_S))


class TestAioKafka(Scenarios):
    unable = frozenset({"nothing"})


def test_topics_are_made_described_grown_and_deleted(cluster: LocalCluster, administer: Administer) -> None:
    answer = administer(lambda admin: admin.create_topics([library.NewTopic("aio", 2, 2)]))
    assert [topic_error[:2] for topic_error in answer.topic_errors] == [("aio", 0)]
    wait_for_topic(cluster, "aio", 2)
    assert "aio" in administer(lambda admin: admin.list_topics())
    (result,) = administer(lambda admin: admin.describe_topics(["aio"]))
    assert (result["topic"], result["error_code"], len(result["partitions"])) == ("aio", 0, 2)
    administer(lambda admin: admin.create_partitions({"aio": library.NewPartitions(5)}))
    wait_for_topic(cluster, "aio", 5)
    answer = administer(lambda admin: admin.delete_topics(["aio"]))
    assert list(answer.topic_error_codes) == [("aio", 0)]
    eventually(lambda: "aio" not in administer(lambda admin: admin.list_topics()), "nor of the topic's end")


def test_the_cluster_is_described(administer: Administer) -> None:
    result = administer(lambda admin: admin.describe_cluster())
    assert sorted(broker["node_id"] for broker in result["brokers"]) == [0, 1, 2]
    assert result["controller_id"] in (0, 1, 2)
    assert len(result["cluster_id"]) == 22


def test_records_are_deleted(cluster: LocalCluster, client: Client, administer: Administer) -> None:
    topic = made(cluster)
    with client.producer() as send:
        send(topic, [Message(b"%d" % number) for number in range(100)])
    here = aiokafka.TopicPartition(topic, 0)
    before = {here: library.RecordsToDelete(before_offset=60)}
    assert administer(lambda admin: admin.delete_records(before)) == {here: 60}
    assert [record.value for record in client.read(topic, 40)] == [b"%d" % number for number in range(60, 100)]


def test_settings_of_a_topic_are_described_and_altered(cluster: LocalCluster, administer: Administer) -> None:
    topic = made(cluster)
    configs = library.config_resource

    def resource(changes: dict[str, str] | None = None) -> list[Any]:
        return [configs.ConfigResource(configs.ConfigResourceType.TOPIC, topic, changes)]

    def settings() -> dict[str, str]:
        (answer,) = administer(lambda admin: admin.describe_configs(resource()))
        ((code, _, _, _, found),) = answer.resources
        assert code == 0
        return {entry[0]: entry[1] for entry in found}

    before = settings()
    changes = {"retention.ms": "3600000", "min.insync.replicas": "1"}
    (answer,) = administer(lambda admin: admin.alter_configs(resource(changes)))
    assert [resource[0] for resource in answer.resources] == [0]
    eventually(lambda: settings() == {**before, **changes}, "the settings do not change")
