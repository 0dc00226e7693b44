"""ReplicationQuota: how many bytes by the second a broker sends as leader, or fetches as follower, of the replicas that
topics list as throttled (KIP-73).

All bytes of a listed replica count. Those of one in the ISR are never held up, so that no throttle takes it out of the
ISR: what they use, replicas that catch up do not get. A replica that is not in the ISR gets no records once the rate is
above the quota: of a leader it gets responses without any, and a follower leaves it out of its requests.
Source: Kafka's ReplicationQuotaManager, ReplicaManager.shouldLeaderThrottle, ReplicaFetcherThread.
"""

from __future__ import annotations

from typing import Protocol

from kreplog.config import TopicConfig
from kreplog.core.quota_windows import QuotaWindow, SimpleRate
from kreplog.core.throttled_replicas import is_throttled
from kreplog.types import TopicPartition

_ALMOST_NONE = 1e-9
"""For a quota of 0, by which nothing can be divided."""


class ThrottledPartition(Protocol):
    """A partition as a quota looks at it."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def config(self) -> TopicConfig: ...


class ReplicationQuota:
    """The quota of one broker as leader, or as follower. bytes_per_second: the quota, which may be changed at any time.
    setting: the topics' list of the replicas for which it holds."""

    def __init__(self, broker_id: int, setting: str, bytes_per_second: int, window: QuotaWindow) -> None:
        self.bytes_per_second = bytes_per_second
        self._broker_id = broker_id
        self._setting = setting
        self._window = window
        self._rate = SimpleRate()

    def is_listed(self, partition: ThrottledPartition) -> bool:
        """Whether the quota holds for this broker's replica of the partition."""
        return is_throttled(partition.config, self._setting, partition.topic_partition.partition, self._broker_id)

    def record(self, size: int, now_ms: int) -> None:
        """Count bytes of replicas that are listed."""
        self._rate.record(size, self._window, now_ms)

    def rate(self, now_ms: int) -> float:
        """Bytes by the second, over the last windows."""
        return self._rate.rate(self._window, now_ms)

    def throttle_ms(self, now_ms: int) -> int:
        """After what time without any bytes the rate is no longer above the quota; 0 if it is not."""
        bound = self.bytes_per_second
        if not self._rate.value or self.rate(now_ms) <= bound:  # mostly no replica is listed
            return 0
        return max(1, self._rate.throttle_ms(max(_ALMOST_NONE, bound), self._window, now_ms))

    def throttles(self, partition: ThrottledPartition, in_sync: bool, now_ms: int) -> bool:
        """Whether a replica gets no records now. in_sync: it is in the ISR."""
        return not in_sync and self.is_listed(partition) and self.throttle_ms(now_ms) > 0
