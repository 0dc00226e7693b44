"""RequestQueues: the requests of one of a broker's cores to other brokers, of which one is in flight to each at a time.

What is queued meanwhile waits for the response, or for the time after which it counts as lost. The next request is made
of all that waits by then, oldest first, whether an earlier request had no place for it or it has come since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from kreplog.core.broker import add_partitions, write_markers
from kreplog.core.broker.add_partitions import CoalescedAddPartitions
from kreplog.core.broker.write_markers import CoalescedMarkers
from kreplog.core.effects import SendAddPartitions, SendMarkers

E = TypeVar("E")
R = TypeVar("R")


class RequestQueues(Generic[E, R]):
    """A queue to each broker. coalesce: removes the next request from what waits for one, oldest first."""

    def __init__(self, coalesce: Callable[[deque[E]], R]) -> None:
        self._coalesce = coalesce
        self._waiting: dict[int, deque[E]] = {}
        self._in_flight: set[int] = set()

    def put(self, broker: int, effect: E) -> None:
        """Queue an effect behind the others to that broker."""
        self._waiting.setdefault(broker, deque()).append(effect)

    def next_request(self, broker: int) -> R | None:
        """The request to send now, in flight until `replied`; None if nothing waits, or one is in flight."""
        waiting = self._waiting.get(broker)
        if not waiting or broker in self._in_flight:
            return None
        self._in_flight.add(broker)
        return self._coalesce(waiting)

    def replied(self, broker: int) -> None:
        """The request in flight is answered, or counts as lost."""
        self._in_flight.remove(broker)


def marker_queues() -> RequestQueues[SendMarkers, CoalescedMarkers]:
    """Queues of a coordinator of transactions to leaders."""
    return RequestQueues(write_markers.coalesce)


def add_partitions_queues() -> RequestQueues[SendAddPartitions, CoalescedAddPartitions]:
    """Queues of a leader to coordinators of transactions (KIP-890)."""
    return RequestQueues(add_partitions.coalesce)
