"""Brokers that have just failed: suspected for a moment, and still listed for a while."""

from __future__ import annotations

from kreplog.core.broker.recently_failed import LISTED_MS, SUSPECTED_MS, RecentlyFailedBrokers
from kreplog.core.replication.metadata import MetadataCache
from kreplog.types import BrokerRegistration


class World:
    """Two live brokers, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.now_ms = 100_000
        self.metadata = MetadataCache()
        self.metadata.brokers = {broker: BrokerRegistration(broker, 1, "host", 9092 + broker) for broker in (1, 2)}
        self.recently_failed = RecentlyFailedBrokers(self.metadata)

    def replace(self, *brokers: BrokerRegistration) -> None:
        self.metadata.brokers = {broker.id: broker for broker in brokers}
        self.recently_failed.metadata_changed(self.now_ms)

    def forget(self, broker_id: int) -> None:
        self.replace(*(broker for broker in self.metadata.brokers.values() if broker.id != broker_id))

    def suspected(self) -> set[int]:
        return self.recently_failed.suspected(self.now_ms)

    def listed(self) -> list[int]:
        return [broker.id for broker in self.recently_failed.listed(self.now_ms)]


def test_a_broker_that_closes_a_connection_is_suspected_for_a_moment() -> None:
    world = World()
    assert world.suspected() == set()
    world.recently_failed.connection_closed(1, world.now_ms)
    world.now_ms += SUSPECTED_MS - 1
    assert world.suspected() == {1}
    world.now_ms += 1
    assert world.suspected() == set()


def test_a_failed_broker_is_not_suspected() -> None:
    world = World()
    world.recently_failed.connection_closed(1, world.now_ms)
    world.forget(1)
    assert world.suspected() == set()


def test_a_failed_broker_stays_listed_for_a_while() -> None:
    world = World()
    world.forget(1)
    assert world.listed() == [1]
    world.now_ms += LISTED_MS - 1
    world.recently_failed.metadata_changed(world.now_ms)
    assert world.listed() == [1]
    world.now_ms += 1
    assert world.listed() == []


def test_a_broker_that_registers_again_is_listed_once() -> None:
    world = World()
    world.forget(1)
    world.replace(*world.metadata.brokers.values(), BrokerRegistration(1, 2, "host", 9999))
    assert world.listed() == []
    world.forget(1)
    assert [broker.port for broker in world.recently_failed.listed(world.now_ms)] == [9999]
