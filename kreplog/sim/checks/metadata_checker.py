"""MetadataChecker: what the Metadata responses of one process say, and how it uses the store for want of a controller.

without source      a response lists all topics of a broker that has none, of a controller or the store
unlisted            a response leaves out a broker that was live less than LISTED_MS ago, or the starting broker itself
ended leader        a response names a leader that is not registered
suspected leader    a response names a leader that has just closed its connection, before the wait for another is over
own leadership      a broker names itself as a leader before a controller has sent it the LeaderAndIsr
store not read      a request is refused for want of metadata, although the store has not been read
store read early    the store is read again while what was read is fresh, or another read is under way
change not delayed  a request that changes the cluster goes by the store before a controller was waited for
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from kreplog.core.broker.metadata_waits import CHANGE_WAIT_MS, FRESH_MS
from kreplog.core.broker.recently_failed import LISTED_MS, SUSPECTED_MS
from kreplog.core.messages import LeaderAndIsrRequest, PartitionState
from kreplog.core.replication.metadata import MetadataCache
from kreplog.types import NO_EPOCH, NO_LEADER, TopicPartition


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks. true_ms: virtual time. now_ms: by the clock of the broker, which may run apart."""

    true_ms: Callable[[], int]
    now_ms: Callable[[], int]


class MetadataChecker:
    """Checks the Metadata responses of one process of a broker. violate: called with the kind of a violation and its
    text.

    arrived_ms: of a request, virtual time.
    """

    def __init__(self, broker: int, metadata: MetadataCache, clock: Clock, violate: Callable[[str, str], None]) -> None:
        self._broker = broker
        self._metadata = metadata
        self._clock = clock
        self._report = violate
        self._received: dict[TopicPartition, int] = {}
        self._live_ms: dict[int, int] = {}
        self._closed_ms: dict[int, int] = {}
        self._read_ms = -FRESH_MS
        self._began_ms = -FRESH_MS
        self._is_reading = False

    def leader_and_isr(self, request: LeaderAndIsrRequest) -> None:
        """A controller has sent this process a LeaderAndIsr, which it may not have applied yet."""
        for partition, _, state, *_ in request.partitions:
            self._received[partition] = max(state.leader_epoch, self._received.get(partition, NO_EPOCH))

    def changed(self) -> None:
        """The metadata may have changed."""
        self._live_ms |= dict.fromkeys(self._metadata.brokers, self._clock.now_ms())

    def connection_closed(self, broker: int) -> None:
        """Another broker has closed its connection with this one."""
        self._closed_ms[broker] = self._clock.now_ms()

    def reads(self) -> None:
        """A read of the store begins."""
        now_ms = self._clock.now_ms()
        if now_ms < self._read_ms + FRESH_MS:
            self._violate("store read early", f"reads the store {now_ms - self._read_ms} ms after the last read")
        if self._is_reading:
            self._violate("store read early", "begins to read the store while it reads it")
        self._began_ms = self._clock.true_ms()
        self._is_reading = True

    def has_read(self, succeeded: bool) -> None:
        """A read of the store has ended."""
        self._is_reading = False
        if succeeded:
            self._read_ms = self._clock.now_ms()

    def changes(self, arrived_ms: int) -> None:
        """A request that changes the cluster is carried out, which arrived as the process started."""
        waited_ms = self._clock.true_ms() - arrived_ms
        if not self._metadata.from_controller and waited_ms < CHANGE_WAIT_MS:
            self._violate("change not delayed", f"changes the cluster by the store, after {waited_ms} ms")

    def refused(self, arrived_ms: int) -> None:
        """A request gets no response, for want of metadata."""
        if self._began_ms < arrived_ms - FRESH_MS:
            self._violate("store not read", "refuses a Metadata request without a read of the store")

    def answered(self, arrived_ms: int, brokers: Container[int], states: Sequence[PartitionState]) -> None:
        """A request for all topics gets these brokers and partitions."""
        metadata, now_ms = self._metadata, self._clock.now_ms()
        if not (metadata.from_controller or metadata.from_store):
            self._violate("without source", "lists all topics, although it knows none")
        if not metadata.from_controller:
            self._check_own(states)
            if self._broker not in brokers:
                self._violate("unlisted", "leaves out itself")
        leaders = {state.state.leader for state in states} - {NO_LEADER}
        if ended := leaders - metadata.brokers.keys() - {self._broker}:
            self._violate("ended leader", f"names the leaders {sorted(ended)}, which are not registered")
        for broker, at_ms in self._live_ms.items():
            if now_ms < at_ms + LISTED_MS and broker not in brokers:
                self._violate("unlisted", f"leaves out broker {broker}, which was live {now_ms - at_ms} ms ago")
        if self._clock.true_ms() < arrived_ms + SUSPECTED_MS:
            for broker, at_ms in self._closed_ms.items():
                if now_ms < at_ms + SUSPECTED_MS and broker in leaders and broker in metadata.brokers:
                    text = f"names leader {broker}, which closed its connection {now_ms - at_ms} ms ago"
                    self._violate("suspected leader", text)

    def _check_own(self, states: Sequence[PartitionState]) -> None:
        for state in states:
            received = self._received.get(state.partition, NO_EPOCH)
            if state.state.leader == self._broker and received < state.state.leader_epoch:
                text = f"names itself as leader of {state.partition} in epoch {state.state.leader_epoch}"
                self._violate("own leadership", f"{text}, which no controller has made it")

    def _violate(self, kind: str, text: str) -> None:
        self._report(kind, f"broker {self._broker} {text}")
