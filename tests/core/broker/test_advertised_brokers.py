"""What clients get of a broker's metadata."""

from __future__ import annotations

import pytest

from kreplog.core.broker.advertised_brokers import AdvertisedBrokers, advertised_brokers
from kreplog.core.broker.recently_failed import LISTED_MS, RecentlyFailedBrokers
from kreplog.core.messages import PartitionState, UpdateMetadataRequest
from kreplog.core.replication.metadata import MetadataCache
from kreplog.types import NO_LEADER, BrokerRegistration, LeaderAndIsr, TopicPartition

FIRST, SECOND = BrokerRegistration(1, 5), BrokerRegistration(2, 6)


def state(leader: int) -> PartitionState:
    return PartitionState(TopicPartition("topic", 0), "id", LeaderAndIsr(leader, 3, (1, 2)), (1, 2))


def test_a_broker_that_has_just_failed_is_listed_but_leads_nothing() -> None:
    cache, now_ms = MetadataCache(), 100_000
    failed = RecentlyFailedBrokers(cache)
    for brokers in ((FIRST, SECOND), (SECOND,)):
        cache.apply(UpdateMetadataRequest(2, 1, 6, brokers, (state(1),)))
        failed.metadata_changed(now_ms)
    found = advertised_brokers(cache, failed, lambda: SECOND, now_ms)
    assert (found.live, set(found.listed)) == ({2: SECOND}, {FIRST, SECOND})
    assert found.leader_of(state(1)) == NO_LEADER
    assert advertised_brokers(cache, failed, lambda: SECOND, now_ms + LISTED_MS).listed == (SECOND,)


def test_this_broker_is_listed_before_any_metadata_have_it() -> None:
    cache = MetadataCache()
    found = advertised_brokers(cache, RecentlyFailedBrokers(cache), lambda: SECOND, 0)
    assert (found.live, found.listed) == ({2: SECOND}, (SECOND,))


@pytest.mark.parametrize(
    ("live", "leaders", "offline"), [({1, 2}, [1, NO_LEADER], []), ({2}, [NO_LEADER, NO_LEADER], [1])]
)
def test_leaders_are_live_and_other_replicas_offline(live: set[int], leaders: list[int], offline: list[int]) -> None:
    found = AdvertisedBrokers({broker.id: broker for broker in (FIRST, SECOND) if broker.id in live}, ())
    assert [found.leader_of(state(leader)) for leader in (1, NO_LEADER)] == leaders
    assert found.offline_replicas(state(1)) == offline
