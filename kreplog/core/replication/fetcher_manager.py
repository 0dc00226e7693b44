"""ReplicaFetcherManager: the fetchers of one broker, and which of them fetches a partition.

num.replica.fetchers may change while they fetch. A partition whose fetcher is another one then is removed from the
former, which drops what a response in flight has for it, and added to the latter, which fetches from the end of the
log: no record is appended twice, and none is left out.
Source: Kafka's AbstractFetcherManager.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from kreplog.config import ReplicationConfig
from kreplog.core.effects import Steps
from kreplog.core.events import FetchReplied
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.replica_fetcher import ReplicaFetcher
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.types import TopicPartition


class ReplicaFetcherManager:
    """The fetchers of a broker. fetchers: by leader and index, in that order, at most num.replica.fetchers a leader.
    quota: of what all of them fetch."""

    def __init__(self, broker_id: int, config: ReplicationConfig, quota: ReplicationQuota) -> None:
        self._quota = quota
        self.fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._broker_id = broker_id
        self._config = config
        self._fetched: dict[TopicPartition, tuple[Partition, ReplicaFetcher]] = {}
        self._correlations = itertools.count(1)

    def start(self, partition: Partition, now_ms: int) -> None:
        """Fetch a partition from its leader; to be called for every new leader epoch."""
        index = fetcher_index(partition.topic_partition, self._config.num_replica_fetchers)
        key = (partition.leader, index)
        if key not in self.fetchers:
            self.fetchers[key] = ReplicaFetcher(
                self._broker_id, partition.leader, self._config, self._correlations, self._quota, index
            )
            self.fetchers = dict(sorted(self.fetchers.items()))
        self.fetchers[key].add(partition, now_ms)
        self._fetched[partition.topic_partition] = partition, self.fetchers[key]

    def stop(self, topic_partition: TopicPartition) -> None:
        """Fetch a partition no more, if it is fetched."""
        if topic_partition in self._fetched:
            _, fetcher = self._fetched.pop(topic_partition)
            fetcher.remove(topic_partition)

    def resize(self, num_replica_fetchers: int, now_ms: int) -> None:
        """Distribute the partitions over another number of fetchers for each leader."""
        self._config = replace(self._config, num_replica_fetchers=num_replica_fetchers)
        for topic_partition, (partition, fetcher) in list(self._fetched.items()):
            if fetcher.index != fetcher_index(topic_partition, num_replica_fetchers):
                self.stop(topic_partition)
                self.start(partition, now_ms)
        self.fetchers = {key: fetcher for key, fetcher in self.fetchers.items() if key[1] < num_replica_fetchers}

    def resume(self, topic_partition: TopicPartition) -> None:
        """The flush that a partition waits for is done."""
        if topic_partition in self._fetched:
            self._fetched[topic_partition][1].resume(topic_partition)

    def moved(self, topic_partition: TopicPartition) -> None:
        """Retention has moved the log start of a partition."""
        if topic_partition in self._fetched:
            self._fetched[topic_partition][1].moved(topic_partition)

    def on_fetched(self, event: FetchReplied, now_ms: int, broker_epoch: int) -> Steps[None]:
        """Give a leader's response to the fetcher that awaits it, if it is still in use."""
        for (leader, _), fetcher in self.fetchers.items():
            if leader == event.leader:
                yield from fetcher.on_fetched(event, now_ms, broker_epoch)

    def poll(self, now_ms: int, broker_epoch: int) -> Steps[None]:
        """Send the next requests of all fetchers that have none in flight."""
        for fetcher in self.fetchers.values():
            yield from fetcher.poll(now_ms, broker_epoch)

    def next_wakeup(self, now_ms: int) -> int | None:
        """When poll is next due; None if only an event can make it so."""
        earliest = None
        for fetcher in self.fetchers.values():
            time = fetcher.next_wakeup(now_ms)
            if time is not None and (earliest is None or time < earliest):
                earliest = time
        return earliest


def fetcher_index(topic_partition: TopicPartition, num_replica_fetchers: int) -> int:
    """Which of the fetchers from a partition's leader fetches it, the same in every process: round-robin over the
    partitions of a topic."""
    return (sum(topic_partition.topic.encode()) + topic_partition.partition) % num_replica_fetchers
