"""VirtualControlSender: sends the requests that core.broker.control_channel queues, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from kreplog.core.broker.control_channel import ControlChannel, ControlChannels
from kreplog.core.effects import SendControl
from kreplog.core.events import ControlReplied
from kreplog.core.messages import ControlRequest, ControlResponse
from kreplog.sim.machines.network import Network
from kreplog.sim.machines.scheduler import MS, Scheduler

TIMEOUT_US = 800 * MS


class VirtualControlSender:
    """The simulator's sender of control requests. put_back: called with the response for the controller. may_send: the
    process is neither dead nor paused. on_send: called before a request is sent."""

    def __init__(
        self,
        channels: ControlChannels,
        network: Network,
        scheduler: Scheduler,
        host: str,
        may_send: Callable[[], bool],
        on_send: Callable[[ControlChannel, ControlRequest], None],
        put_back: Callable[[ControlReplied], None],
    ) -> None:
        self._channels = channels
        self._network = network
        self._scheduler = scheduler
        self._host = host
        self._may_send = may_send
        self._on_send = on_send
        self._put_back = put_back
        self._sending: set[ControlChannel] = set()  # channels that a response, or a retry, will continue
        self._drained: Callable[[list[int]], None] | None = None

    def put(self, effect: SendControl) -> None:
        channel = self._channels.put(effect)
        if channel not in self._sending:
            self._send_next(channel)

    def resume(self) -> None:
        """After a pause: send the requests that were held back."""
        for channel in self._channels.open:
            if channel not in self._sending:
                self._send_next(channel)

    def until_idle(self, max_ms: int, then: Callable[[list[int]], None]) -> None:
        """Call `then` once the channels are idle, with the brokers that have not responded nevertheless; with none
        after `max_ms`."""
        self._drained = then
        self._scheduler.after(max_ms * MS, self._end_drain, then, [])
        self._check_idle()

    def channel_closed(self) -> None:
        """A channel has ended with its registration: the drain waits for it no longer."""
        self._check_idle()

    def _check_idle(self) -> None:
        if self._drained is not None and self._channels.idle:
            unanswered = [channel.broker for channel in self._sending if self._channels.is_open(channel)]
            self._end_drain(self._drained, sorted(unanswered))

    def _end_drain(self, then: Callable[[list[int]], None], unanswered: list[int]) -> None:
        if self._drained is then:
            self._drained = None
            then(unanswered)

    def _send_next(self, channel: ControlChannel) -> None:
        self._sending.discard(channel)
        request = self._channels.next_request(channel, self._scheduler.now_ms) if self._may_send() else None
        if request is None:
            return
        self._sending.add(channel)
        self._on_send(channel, request)

        def replied(response: ControlResponse | None) -> None:
            event = self._channels.replied(channel, response, self._scheduler.now_ms)
            if event is None:
                wait_ms = max(0, channel.retry_ms - self._scheduler.now_ms)
                self._scheduler.after(wait_ms * MS, self._send_next, channel)
                return
            self._put_back(event)
            self._send_next(channel)
            self._check_idle()

        self._network.call(self._host, f"b{channel.broker}", "control", request, replied, TIMEOUT_US)
