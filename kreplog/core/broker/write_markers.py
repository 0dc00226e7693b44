"""What a coordinator sends a leader of the markers that wait for it, in one WriteTxnMarkers request.

One by one, each would wait for the responses to all before it, which a leader that is paused does not send. A producer
occurs at most once in a request: that is how the outcome of its markers is found in the response.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kreplog.core.broker import coordinator_log
from kreplog.core.effects import SendMarkers
from kreplog.core.events import MarkersReplied
from kreplog.core.messages import ProduceResponse, WriteMarkersRequest

MAX_ENTRIES = 1000
"""The most entries of a request that joins several transactions: each transaction, each of its topics and each of its
partitions is one. A leader takes so many in a cluster of any size, and more of one transaction if there are as many
partitions."""


@dataclass(frozen=True, slots=True)
class CoalescedMarkers:
    """One request. effects: those that it carries out, in the order of its partitions."""

    request: WriteMarkersRequest
    effects: tuple[SendMarkers, ...]

    def replied(self, response: ProduceResponse | None) -> Iterator[MarkersReplied]:
        """The outcomes for the coordinator. response: of the request's partitions, in order; None if it is lost."""
        partitions = () if response is None else response.partitions
        start = 0
        for effect in self.effects:
            end = start + len(effect.request.partitions)
            yield coordinator_log.markers_replied(effect, partitions[start:end])
            start = end


def coalesce(waiting: deque[SendMarkers]) -> CoalescedMarkers:
    """Remove the next request to a leader from what waits for it: the oldest, as many as it has room for."""
    effects: list[SendMarkers] = []
    producers: set[int] = set()
    entries = 0
    while waiting:
        partitions = waiting[0].request.partitions
        producer: int = partitions[0].records.producer_id
        entries += 1 + len({produced.partition.topic for produced in partitions}) + len(partitions)
        if effects and (entries > MAX_ENTRIES or producer in producers):
            break
        producers.add(producer)
        effects.append(waiting.popleft())
    produced = tuple(each for effect in effects for each in effect.request.partitions)
    return CoalescedMarkers(replace(effects[0].request, partitions=produced), tuple(effects))
