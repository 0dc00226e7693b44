"""A controller's queues to the brokers: strictly in order, one message in flight, the same one repeated until answered;
what has waited meanwhile is told together.

A queue belongs to one registration of a broker; a message for a newer one drops the queue of the older whole (F30).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kreplog.core.controller.requests import take_together
from kreplog.core.effects import SendControl
from kreplog.core.events import ControlReplied
from kreplog.core.messages import ControlRequest, ControlResponse
from kreplog.errors import ErrorCode
from kreplog.sim.network import Network
from kreplog.sim.scheduler import MS, Scheduler

RETRY_US = 300 * MS
TIMEOUT_US = 800 * MS


class ControlChannels:
    """The queues of one controller. `put_back(event)` hands an answer to it; `close` when it controls no more."""

    def __init__(
        self,
        network: Network,
        scheduler: Scheduler,
        host: str,
        may_send: Callable[[], bool],
        put_back: Callable[[ControlReplied], None],
    ) -> None:
        self._network = network
        self._scheduler = scheduler
        self._host = host
        self._may_send = may_send
        self._put_back = put_back
        self._queues: dict[int, _Queue] = {}

    def put(self, effect: SendControl) -> None:
        queue = self._queues.get(effect.broker)
        if queue is None or queue.broker_epoch != effect.broker_epoch:
            queue = self._queues[effect.broker] = _Queue(effect.broker_epoch)
        queue.waiting.append(effect.request)
        if not queue.in_flight:
            self._send_next(effect.broker, queue)

    def keep(self, live: dict[int, int]) -> None:
        """Drop the queues of registrations that are not among `live` (broker id: broker epoch) any more."""
        for broker, queue in list(self._queues.items()):
            if live.get(broker) != queue.broker_epoch:
                del self._queues[broker]

    def close(self) -> None:
        self._queues.clear()

    def resume(self) -> None:
        """After a pause: send what was held back."""
        for broker, queue in list(self._queues.items()):
            if not queue.in_flight:
                self._send_next(broker, queue)

    @property
    def idle(self) -> bool:
        return all(queue.request is None and not queue.waiting for queue in self._queues.values())

    def _send_next(self, broker: int, queue: _Queue) -> None:
        queue.in_flight = False
        if self._queues.get(broker) is not queue or not self._may_send():
            return
        if queue.request is None and queue.waiting:
            queue.request = take_together(queue.waiting)
        request = queue.request
        if request is None:
            return
        queue.in_flight = True

        def answered(response: ControlResponse | None) -> None:
            if self._queues.get(broker) is not queue:
                return
            if response is None or response.error is ErrorCode.BROKER_NOT_AVAILABLE:
                self._scheduler.after(RETRY_US, self._send_next, broker, queue)
                return
            queue.request = None
            self._put_back(ControlReplied(broker, queue.broker_epoch, request, response))
            if self._queues.get(broker) is queue:
                self._send_next(broker, queue)

        self._network.call(self._host, f"b{broker}", "control", request, answered, TIMEOUT_US)


class _Queue:
    """request: the one under way, until it is answered."""

    def __init__(self, broker_epoch: int) -> None:
        self.broker_epoch = broker_epoch
        self.waiting: deque[ControlRequest] = deque()
        self.request: ControlRequest | None = None
        self.in_flight = False
