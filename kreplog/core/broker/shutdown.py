"""ControlledShutdown: when a broker may exit after its leaders have been moved.

It sends ControlledShutdown to the controller until no leader remains here, no other broker could lead, or
`controlled.shutdown.max.wait.ms` is over; leaders that were not moved then stop with the broker.
Source: Kafka's controlled shutdown (KafkaServer.controlledShutdown, KIP-841).
"""

from __future__ import annotations

from kreplog.core import nodes
from kreplog.core.effects import Exit, SendShutdown, StateChange, Steps, SubmitRead
from kreplog.core.events import ControlledShutdownReplied, Event, Stopping, StoreReplied, Tick
from kreplog.core.messages import ControlledShutdownRequest, ControlledShutdownResponse
from kreplog.core.registration import Registration
from kreplog.core.replication.metadata import MetadataCache
from kreplog.errors import CoordinationError, ErrorCode
from kreplog.types import Node

RETRY_MS = 200
"""Delay before the request is sent again: no event says when a leader can be moved after all."""


class ControlledShutdown:
    """The state machine of a broker's controlled shutdown. max_wait_ms: maximum from Stopping to Exit. done: Exit has
    been yielded."""

    def __init__(self, broker_id: int, registration: Registration, metadata: MetadataCache, max_wait_ms: int) -> None:
        self.broker_id = broker_id
        self.done = False
        self._registration = registration
        self._metadata = metadata
        self._max_wait_ms = max_wait_ms
        self._deadline_ms: int | None = None
        self._retry_ms: int | None = None
        self._attempt = 0

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        """Handles Stopping, StoreReplied, ControlledShutdownReplied and Tick."""
        if isinstance(event, Stopping) and self._deadline_ms is None:
            self._deadline_ms = now_ms + self._max_wait_ms
            yield from self._begin_attempt()
        if self._deadline_ms is None or self.done:
            return
        if isinstance(event, StoreReplied) and event.tag == self._tag:
            yield from self._controller_found(event, now_ms)
        elif isinstance(event, ControlledShutdownReplied) and event.attempt == self._attempt:
            if self._may_exit(event.response):
                yield from self._exit(all_moved=event.response is not None and not event.response.remaining)
            else:
                self._retry_ms = now_ms + RETRY_MS
        elif isinstance(event, Tick):
            if now_ms >= self._deadline_ms:
                text = f"broker {self.broker_id} stops: not all its leaders were moved within {self._max_wait_ms} ms"
                yield StateChange("warning", text)
                yield from self._exit(all_moved=False)
            elif self._retry_ms is not None and now_ms >= self._retry_ms:
                yield from self._begin_attempt()

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the next Tick is due; None for never."""
        if self._deadline_ms is None or self.done:
            return None
        return min(self._deadline_ms, self._retry_ms or self._deadline_ms)

    @property
    def _tag(self) -> tuple[str, int]:
        return "controlled shutdown", self._attempt

    def _begin_attempt(self) -> Steps[None]:
        """Read the controller's id. A broker that is not registered has no leaders that could be moved."""
        self._retry_ms = None
        if self._registration.registered is None:
            yield from self._exit(all_moved=False)
            return
        self._attempt += 1
        yield SubmitRead(self._tag, (nodes.CONTROLLER,))

    def _controller_found(self, event: StoreReplied, now_ms: int) -> Steps[None]:
        try:
            controller_id = None if event.error is not None else self._controller_id(event.results[0])
        except CoordinationError as error:
            yield StateChange("error", f"controlled shutdown: {error}")
            controller_id = None
        if controller_id is None:
            self._retry_ms = now_ms + RETRY_MS
        else:
            request = ControlledShutdownRequest(self.broker_id, self._registration.broker_epoch)
            yield SendShutdown(self._attempt, controller_id, request)

    def _controller_id(self, node: Node | None) -> int | None:
        return None if node is None else nodes.decode_controller(node)

    def _may_exit(self, response: ControlledShutdownResponse | None) -> bool:
        if response is None or response.error is not ErrorCode.NONE:
            return False
        return not response.remaining or not self._has_successor()

    def _has_successor(self) -> bool:
        """Whether leaders could be moved to another broker."""
        brokers = self._metadata.brokers.values()
        return any(broker.id != self.broker_id and not broker.stopping for broker in brokers)

    def _exit(self, all_moved: bool) -> Steps[None]:
        self.done = True
        yield Exit(all_moved)
