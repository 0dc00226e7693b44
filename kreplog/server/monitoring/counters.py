"""Counters of a broker: plain numbers that requests add to on the event loop, and that metrics.py reads.

They cost a request one look at the clock and an addition or two; what can be computed from the broker's state is
computed by metrics.py during a scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from time import monotonic

from kreplog.core.messages import FetchedPartition, FetchResponse, ProducedPartition, ProduceResponse
from kreplog.errors import ErrorCode

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of request times; there is one more above the last."""

_FOLLOWER = 1 << 16


class Times:
    """Histogram of the times of one kind of request. buckets: counts. total_s: sum."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0


class Requests:
    """Times of requests from arrival to response, by API key; fetches of followers apart."""

    def __init__(self) -> None:
        self._times: dict[int, Times] = {}

    @property
    def times(self) -> dict[tuple[int, bool], Times]:
        """Request times by (API key, whether it is a follower's fetch)."""
        return {(key & 0xFFFF, key > 0xFFFF): times for key, times in self._times.items()}

    def answered(self, api_key: int, follower: bool, began: float) -> None:
        """A request got its response. began: its arrival, by time.monotonic()."""
        took = monotonic() - began
        key = api_key | _FOLLOWER if follower else api_key
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = Times()
        times.buckets[bisect_left(BOUNDS_S, took)] += 1
        times.total_s += took


class Counts:
    """Traffic of a topic, or of all. Bytes are of encoded batches; in, out: of clients; *_replicas: of leaders and
    followers. produces, fetches: partitions of requests; failed_*: those with an error."""

    __slots__ = (
        "bytes_in",
        "bytes_in_replicas",
        "bytes_out",
        "bytes_out_replicas",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
    )

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.bytes_in_replicas = self.bytes_out_replicas = 0
        self.messages_in = self.produces = self.fetches = self.failed_produces = self.failed_fetches = 0


class Traffic:
    """Counters of records and bytes, in all and by topic. total: counts of all topics, deleted ones included. topics:
    counts of each topic with replicas here."""

    def __init__(self) -> None:
        self.total = Counts()
        self.topics: dict[str, Counts] = {}

    def appended(self, topic: str, size: int, records: int) -> None:
        """A producer's batches were appended. size: bytes."""
        for counts in (self.total, self._of(topic)):
            counts.bytes_in += size
            counts.messages_in += records

    def replicated(self, topic: str, size: int) -> None:
        """A leader's batches were appended. size: bytes."""
        for counts in (self.total, self._of(topic)):
            counts.bytes_in_replicas += size

    def produced(self, response: ProduceResponse) -> None:
        """A produce response is sent."""
        for partition in response.partitions:
            failed = partition.error is not ErrorCode.NONE
            for counts in self._counts_of(partition):
                counts.produces += 1
                counts.failed_produces += failed

    def fetched(self, response: FetchResponse, follower: bool) -> None:
        """A fetch response is sent."""
        for partition in response.partitions:
            failed = partition.error is not ErrorCode.NONE
            size = len(partition.records)
            for counts in self._counts_of(partition):
                counts.fetches += 1
                counts.failed_fetches += failed
                if follower:
                    counts.bytes_out_replicas += size
                else:
                    counts.bytes_out += size

    def forget_others(self, topics: Collection[str]) -> None:
        """Remove the counts of all topics but these."""
        for topic in self.topics.keys() - set(topics):
            del self.topics[topic]

    def _of(self, topic: str) -> Counts:
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = Counts()
        return counts

    def _counts_of(self, response: ProducedPartition | FetchedPartition) -> tuple[Counts, ...]:
        """The counts of a partition's topic; only the total for an unknown topic, whose name may be anything."""
        topic = response.partition.topic
        if response.error is not ErrorCode.NONE and topic not in self.topics:
            return (self.total,)
        return self.total, self._of(topic)


class EventCounters:
    """Rare events: ISR changes by leaders of this broker, unclean elections by its controller, lost sessions with the
    store."""

    __slots__ = ("expired", "isr_expands", "isr_failures", "isr_shrinks", "unclean_elections")

    def __init__(self) -> None:
        self.isr_shrinks = self.isr_expands = self.isr_failures = self.unclean_elections = self.expired = 0

    def isr_changed(self, before: Collection[int], after: Collection[int], failed: bool) -> None:
        """The store has replied to a leader's ISR change. failed: it refused."""
        self.isr_shrinks += bool(set(before) - set(after))
        self.isr_expands += bool(set(after) - set(before))
        self.isr_failures += failed
