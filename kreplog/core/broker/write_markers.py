"""What a coordinator sends a leader of the markers that wait for it, in one WriteTxnMarkers request.

A leader that does not respond holds up none for longer than a lost response and the request after it. A producer stands
once in a request: that is how its outcome is found in the response.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from kreplog.core.broker import coordinator_log
from kreplog.core.effects import SendMarkers
from kreplog.core.events import MarkersReplied
from kreplog.core.messages import ProduceResponse, WriteMarkersRequest

MAX_PARTITIONS = 1000
"""The most partitions of a request that holds several transactions: its leader appends all of their markers in one
step."""


@dataclass(frozen=True, slots=True)
class CoalescedMarkers:
    """One request. effects: those that it carries out, in the order of its partitions."""

    request: WriteMarkersRequest
    effects: tuple[SendMarkers, ...]

    def replied(self, response: ProduceResponse | None) -> Iterator[MarkersReplied]:
        """The outcomes for the coordinator. response: of the request's partitions, in order; None if it is lost."""
        partitions = iter(() if response is None else response.partitions)
        for effect in self.effects:
            own = tuple(islice(partitions, len(effect.request.partitions)))
            yield coordinator_log.markers_replied(effect, ProduceResponse(own))


def coalesce(waiting: deque[SendMarkers]) -> CoalescedMarkers:
    """Remove the next request to a leader from what waits for it, oldest first."""
    effects: list[SendMarkers] = []
    others: deque[SendMarkers] = deque()
    producers: set[int] = set()
    count = 0
    while waiting and count < MAX_PARTITIONS:
        effect = waiting.popleft()
        partitions = effect.request.partitions
        producer: int = partitions[0].records.producer_id
        if producer in producers or (effects and count + len(partitions) > MAX_PARTITIONS):
            others.append(effect)
            continue
        producers.add(producer)
        effects.append(effect)
        count += len(partitions)
    waiting.extendleft(reversed(others))
    first = effects[0].request
    produced = tuple(each for effect in effects for each in effect.request.partitions)
    return CoalescedMarkers(WriteMarkersRequest(first.acks, first.timeout_ms, produced), tuple(effects))
