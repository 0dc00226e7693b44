"""A fetch session against a real broker while a topic that it holds is deleted and created again (KIP-227, KIP-516)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from kafka.errors import TopicAlreadyExistsError

from kreplog.client.broker_client import BrokerClient
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH
from kreplog.wire import fetch
from kreplog.wire.versions import ApiKey
from tests.client.brokers import TIMEOUT_S, Topic, make_topic
from tests.integration import clusters

VERSION = 15

Fetched = list[tuple[str, ErrorCode, int]]
"""(topic id, error, bytes of records) of each partition of a response."""


class Session:
    """A consumer's fetch session with one broker, on one connection. No partition is named but by `full`."""

    def __init__(self, runner: asyncio.Runner, address: tuple[str, int]) -> None:
        self._runner = runner
        self._address = address
        self._client = runner.run(self._connect())
        self._id = self._epoch = 0

    async def _connect(self) -> BrokerClient:
        return BrokerClient(self._address, TIMEOUT_S)

    def full(self, partitions: Sequence[FetchPartition]) -> Fetched:
        return self._runner.run(self._fetch(tuple(partitions)))

    def incremental(self) -> Fetched:
        return self._runner.run(self._fetch(()))

    async def _fetch(self, partitions: tuple[FetchPartition, ...]) -> Fetched:
        header = self._client.header(ApiKey.FETCH, VERSION)
        request = FetchRequest(CONSUMER, -1, 100, 1, 1 << 20, partitions, (), self._id, self._epoch)
        frame = await self._client.send(fetch.encode_request(request, header))
        response = fetch.decode_response(frame, header, lambda topic_id: topic_id)
        assert response.error is ErrorCode.NONE and response.session_id
        self._id, self._epoch = response.session_id, self._epoch + 1
        return [(fetched.partition.topic, fetched.error, len(fetched.records)) for fetched in response.partitions]

    def close(self) -> None:
        self._client.close()


def test_a_session_is_not_continued_with_a_topic_of_the_same_name(cluster: LocalCluster) -> None:
    """On every replica: the id in the response is the requested one, whether the leader changes or not."""
    topic = make_topic(cluster, "session-recreated", 1)
    at = topic.partitions[0]
    topic.append([b"old"])
    with topic.consumer() as consumer:
        metadata = consumer.partitions(topic.name)[at]
        address = consumer._cluster.address_of(metadata.leader)
    old = metadata.topic_id
    with asyncio.Runner() as runner:
        session = Session(runner, address)
        try:
            assert session.full([FetchPartition(at, old, NO_EPOCH, 1)]) == [(old, ErrorCode.NONE, 0)]
            with clusters.admin_of(cluster.bootstrap()) as admin:
                admin.delete_topics([topic.name])
            deleted = [(old, ErrorCode.UNKNOWN_TOPIC_ID, 0)]
            clusters.eventually(lambda: session.incremental() == deleted, "the deleted topic is known")
            recreated = _recreate(cluster, topic.name)
            recreated.append([b"new", b"newer"])
            inconsistent = [(old, ErrorCode.INCONSISTENT_TOPIC_ID, 0)]
            clusters.eventually(lambda: session.incremental() == inconsistent, "the session took the new topic")
            assert [session.incremental() for _ in range(3)] == [inconsistent] * 3
        finally:
            session.close()


def _recreate(cluster: LocalCluster, name: str) -> Topic:
    """Once its deletion has ended."""
    created: list[Topic] = []

    def is_created() -> bool:
        with suppress(TopicAlreadyExistsError):
            created.append(make_topic(cluster, name, 1))
        return bool(created)

    clusters.eventually(is_created, f"{name} is not deleted")
    return created[0]
