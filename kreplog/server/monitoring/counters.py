"""What is counted while requests are served: plain numbers, added to on the event loop and read by whoever tells them.

On the way of a request this costs a look at the clock and an addition or two; everything that can be worked out from
what the broker knows anyway is worked out when somebody asks, in metrics.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from time import monotonic

from kreplog.core.messages import FetchedPartition, FetchResponse, ProducedPartition, ProduceResponse
from kreplog.errors import ErrorCode

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the classes into which the times of requests fall; above the last there is one more."""

_FOLLOWER = 1 << 16


class Times:
    """How long requests of one kind took: how many fell in each class, and seconds altogether."""

    __slots__ = ("classes", "total_s")

    def __init__(self) -> None:
        self.classes = [0] * (len(BOUNDS_S) + 1)
        self.total_s = 0.0


class Requests:
    """Requests answered, by API key, those of followers apart; from their arrival until the answer was given."""

    def __init__(self) -> None:
        self._times: dict[int, Times] = {}

    @property
    def times(self) -> dict[tuple[int, bool], Times]:
        """By API key, and whether it was a follower that asked."""
        return {(key & 0xFFFF, key > 0xFFFF): times for key, times in self._times.items()}

    def answered(self, api_key: int, follower: bool, began: float) -> None:
        """One more. began: when it came, by time.monotonic()."""
        took = monotonic() - began
        key = api_key | _FOLLOWER if follower else api_key
        times = self._times.get(key)
        if times is None:
            times = self._times[key] = Times()
        times.classes[bisect_left(BOUNDS_S, took)] += 1
        times.total_s += took


class Counts:
    """Records that came and went; bytes of batches as they are sent and stored. in, out: of clients; *_replicas: of
    leaders and followers. produces, fetches: partitions of requests; failed_*: those answered with an error."""

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
    """What comes and goes. total: of all topics there ever were. topics: of each that has replicas here."""

    def __init__(self) -> None:
        self.total = Counts()
        self.topics: dict[str, Counts] = {}

    def appended(self, topic: str, size: int, records: int) -> None:
        """What a producer sent was taken. size: in bytes."""
        for counts in (self.total, self._of(topic)):
            counts.bytes_in += size
            counts.messages_in += records

    def replicated(self, topic: str, size: int) -> None:
        """What a leader sent was taken. size: in bytes."""
        for counts in (self.total, self._of(topic)):
            counts.bytes_in_replicas += size

    def produced(self, response: ProduceResponse) -> None:
        """A produce is answered."""
        for partition in response.partitions:
            failed = partition.error is not ErrorCode.NONE
            for counts in self._counts_of(partition):
                counts.produces += 1
                counts.failed_produces += failed

    def fetched(self, response: FetchResponse, follower: bool) -> None:
        """A fetch is answered."""
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
        """Only these still exist."""
        for topic in self.topics.keys() - set(topics):
            del self.topics[topic]

    def _of(self, topic: str) -> Counts:
        counts = self.topics.get(topic)
        if counts is None:
            counts = self.topics[topic] = Counts()
        return counts

    def _counts_of(self, answer: ProducedPartition | FetchedPartition) -> tuple[Counts, ...]:
        """A name that may not be that of a topic is counted for none."""
        topic = answer.partition.topic
        if answer.error is not ErrorCode.NONE and topic not in self.topics:
            return (self.total,)
        return self.total, self._of(topic)


class EventCounters:
    """What is rare: changes of ISRs that leaders here brought about, unclean elections of the controller here, sessions
    with the store that were lost."""

    __slots__ = ("expired", "isr_expands", "isr_failures", "isr_shrinks", "unclean_elections")

    def __init__(self) -> None:
        self.isr_shrinks = self.isr_expands = self.isr_failures = self.unclean_elections = self.expired = 0

    def isr_changed(self, before: Collection[int], after: Collection[int], failed: bool) -> None:
        """The store has answered a leader. failed: it refused."""
        self.isr_shrinks += bool(set(before) - set(after))
        self.isr_expands += bool(set(after) - set(before))
        self.isr_failures += failed
