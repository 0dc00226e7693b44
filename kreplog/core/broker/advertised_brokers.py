"""AdvertisedBrokers: the brokers that clients get in a broker's metadata, and by these the leaders of partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kreplog.core.broker.recently_failed import RecentlyFailedBrokers
from kreplog.core.messages import PartitionState
from kreplog.core.replication.metadata import MetadataCache
from kreplog.types import NO_LEADER, BrokerRegistration


@dataclass(frozen=True, slots=True)
class AdvertisedBrokers:
    """The brokers that clients get at one time. live: by id, as of MetadataCache.listed_brokers. listed: those, and the
    ones that have failed in the last seconds."""

    live: Mapping[int, BrokerRegistration]
    listed: tuple[BrokerRegistration, ...]

    def leader_of(self, state: PartitionState) -> int:
        """The leader of a partition: NO_LEADER, until the next election, if it is not registered any more."""
        return state.state.leader if state.state.leader in self.live else NO_LEADER

    def offline_replicas(self, state: PartitionState) -> list[int]:
        """The replicas on brokers that are not live. The simulator does not run this rule: its clients need leaders
        alone."""
        return [replica for replica in state.replicas if replica not in self.live]


def advertised_brokers(
    metadata: MetadataCache, failed: RecentlyFailedBrokers, own: Callable[[], BrokerRegistration], now_ms: int
) -> AdvertisedBrokers:
    """Brokers that live, and with them those that failed recently. own: as for MetadataCache.listed_brokers."""
    live = metadata.listed_brokers(own)
    return AdvertisedBrokers(live, (*live.values(), *failed.listed(now_ms)))
