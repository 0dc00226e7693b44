"""Brokers that have just failed: Metadata wait for new leaders, and still list the failed broker for a while."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core.messages import UpdateMetadataRequest
from kreplog.core.replication.metadata import MetadataCache
from kreplog.server.replication.recently_failed import LISTED_S, SUSPECTED_S, RecentlyFailedBrokers
from kreplog.types import BrokerRegistration
from kreplog.wire.versions import ApiKey
from tests.server.test_broker import Client, with_broker


class World:
    """Two live brokers, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.metadata = MetadataCache()
        self.metadata.brokers = {broker: BrokerRegistration(broker, 1, "host", 9092 + broker) for broker in (1, 2)}
        self.recently_failed = RecentlyFailedBrokers(self.metadata, lambda: self.now)

    def forget(self, broker: int) -> None:
        del self.metadata.brokers[broker]
        self.recently_failed.metadata_changed()

    def listed(self) -> list[int]:
        return [broker.id for broker in self.recently_failed.listed()]


def test_a_broker_that_closes_a_connection_is_suspected_for_a_moment() -> None:
    world = World()
    assert world.recently_failed.suspected() == set()
    world.recently_failed.connection_closed(1)
    assert world.recently_failed.suspected() == {1}
    world.now += SUSPECTED_S
    assert world.recently_failed.suspected() == set()


def test_a_failed_broker_is_not_suspected() -> None:
    world = World()
    world.recently_failed.connection_closed(1)
    world.forget(1)
    assert world.recently_failed.suspected() == set()


def test_a_failed_broker_stays_listed_for_a_while() -> None:
    world = World()
    world.forget(1)
    assert world.listed() == [1]
    world.recently_failed.metadata_changed()
    assert world.listed() == [1]
    world.now += LISTED_S
    assert world.listed() == []


def test_a_broker_that_registers_again_is_listed_once() -> None:
    world = World()
    world.forget(1)
    world.metadata.brokers[1] = BrokerRegistration(1, 2, "host", 9999)
    world.recently_failed.metadata_changed()
    assert world.listed() == []
    world.forget(1)
    assert [broker.port for broker in world.recently_failed.listed()] == [9999]


def test_metadata_of_a_suspected_leader_waits_for_the_election(tmp_path: Path) -> None:
    """The broker suspects itself here. Metadata of what it leads waits for the next update, others do not."""

    async def work(client: Client) -> None:
        broker, other = client.broker, Client(client.broker)
        assert await client.create("led") == 0
        recently_failed = broker.recently_failed
        recently_failed._now = lambda: 100.0
        recently_failed.connection_closed(broker.id)
        topics = [{"topic_id": None, "name": "led"}]
        pending = asyncio.create_task(client.call(ApiKey.METADATA, 9, topics=topics))
        for nothing_led in ([], [{"topic_id": None, "name": "unknown"}]):
            await other.call(ApiKey.METADATA, 9, topics=nothing_led)
        assert not pending.done()
        recently_failed._now = lambda: 200.0
        broker.topics.changed(UpdateMetadataRequest(broker.id, 1, 1, ()))
        (result,) = (await pending).topics
        assert result.partitions[0].leader_id == broker.id
        other.peer.close()

    with_broker(tmp_path, work)
