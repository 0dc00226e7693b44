"""VirtualControlSender: what ends the wait of a controller for responses, as in the server's ControlSender."""

from __future__ import annotations

from kreplog.core.broker.control_channel import ControlChannels
from kreplog.core.effects import SendControl
from kreplog.core.messages import LeaderAndIsrRequest, LeaderAndIsrResponse
from kreplog.errors import ErrorCode
from kreplog.sim.brokers.control_channels import VirtualControlSender
from kreplog.sim.machines.network import Network
from kreplog.sim.machines.scheduler import MS, Scheduler

EPOCH = 7
MAX_MS = 60_000


class Controller:
    """A sender on host b1. drained: what its drains have returned."""

    def __init__(self) -> None:
        self.scheduler = Scheduler(1)
        self.network = Network(self.scheduler)
        self.channels = ControlChannels()
        self.drained: list[list[int]] = []
        self.sender = VirtualControlSender(
            *(self.channels, self.network, self.scheduler, "b1"),
            *(lambda: True, lambda channel, request: None, lambda event: None),
        )

    def send(self, broker: int) -> None:
        request = LeaderAndIsrRequest(1, 1, EPOCH, ())
        self.sender.put(SendControl(broker, EPOCH, request))

    def drain(self) -> None:
        self.sender.until_idle(MAX_MS, self.drained.append)


def serve(controller: Controller, broker: int) -> None:
    def handle(reply_to: int, request: object, channel: str) -> None:
        controller.network.reply(reply_to, LeaderAndIsrResponse(ErrorCode.NONE))

    controller.network.attach(f"b{broker}", handle)


def test_a_drain_ends_with_the_last_response() -> None:
    controller = Controller()
    serve(controller, 2)
    controller.send(2)
    controller.drain()
    assert controller.drained == []
    controller.scheduler.run_until(controller.scheduler.now_us + 500 * MS)
    assert controller.drained == [[]]


def test_a_drain_ends_when_the_channel_that_it_waits_for_ends() -> None:
    """Broker 3 never responds, and its registration ends."""
    controller = Controller()
    serve(controller, 2)
    controller.send(2)
    controller.send(3)
    controller.drain()
    controller.scheduler.run_until(controller.scheduler.now_us + 500 * MS)
    assert controller.drained == []
    assert controller.channels.retain({2: EPOCH}) == [3]
    controller.sender.channel_closed()
    assert controller.drained == [[]]


def test_a_drain_ends_after_its_time() -> None:
    controller = Controller()
    controller.send(3)
    controller.drain()
    controller.scheduler.run_until(controller.scheduler.now_us + MAX_MS * MS)
    assert controller.drained == [[]]
