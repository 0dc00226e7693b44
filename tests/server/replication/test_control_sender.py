"""ControlSender: the controller waits for responses, but not for ever."""

from __future__ import annotations

import asyncio

from kreplog.core.broker.control_channel import RETRY_BACKOFF_MS, ControlChannels
from kreplog.core.effects import SendControl
from kreplog.core.messages import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
)
from kreplog.errors import ErrorCode
from kreplog.server.network.internal import connect
from kreplog.server.replication.control_sender import ControlSender
from kreplog.types import LeaderAndIsr, TopicPartition
from tests.server.loop import run, run_in_virtual_time

OWN, EPOCH = 1, 7


def states(*numbers: int, leader_epoch: int = 1) -> tuple[PartitionState, ...]:
    return tuple(
        PartitionState(TopicPartition("t", number), "id", LeaderAndIsr(1, leader_epoch, (1,)), (1,))
        for number in numbers
    )


def leaders(sequence: int, *numbers: int, is_init: bool = False, controller_epoch: int = 1) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(OWN, controller_epoch, EPOCH, states(*numbers), is_init, sequence)


def test_answers_are_waited_for_but_not_forever() -> None:
    happened: list[str] = []

    async def work() -> None:
        free = asyncio.Event()

        async def apply(request: ControlRequest) -> ControlResponse:
            await free.wait()
            return LeaderAndIsrResponse(ErrorCode.NONE)

        channels = ControlChannels()
        sender = ControlSender(
            channels, "test", lambda broker: ("", 0), lambda _: happened.append("answered"), OWN, apply, connect
        )
        await sender.until_idle(3600, 0)
        sender.send(SendControl(OWN, EPOCH, leaders(1, 1, is_init=True)))
        sender.send(SendControl(OWN, EPOCH, leaders(2, 2)))
        await sender.until_idle(0.001, 0)
        happened.append("not yet")
        asyncio.get_running_loop().call_later(0.05, free.set)
        asyncio.get_running_loop().call_later(0.07, happened.append, "others")
        await sender.until_idle(3600, 0.04)
        happened.append("rested")
        free.clear()
        sender.send(SendControl(OWN, EPOCH, leaders(3, 3)))
        waiting = asyncio.ensure_future(sender.until_idle(3600, 0))
        await asyncio.sleep(0)  # so that it has begun to wait when the channel ends
        for broker in channels.retain({}):
            sender.close_channel(broker)
        await waiting

    run(work)
    assert happened == ["not yet", "answered", "answered", "others", "rested"]


def test_a_request_without_a_response_is_sent_again_after_the_backoff() -> None:
    """Also while others are queued behind it, and after a fault of this broker."""
    sent_at_ms: list[int] = []

    async def work() -> None:
        loop = asyncio.get_running_loop()

        async def apply(request: ControlRequest) -> ControlResponse:
            sent_at_ms.append(round(loop.time() * 1000))
            if len(sent_at_ms) == 2:
                raise ZeroDivisionError("a fault")
            lost = len(sent_at_ms) < 4
            return LeaderAndIsrResponse(ErrorCode.BROKER_NOT_AVAILABLE if lost else ErrorCode.NONE)

        sender = ControlSender(ControlChannels(), "test", lambda _: ("", 0), lambda _: None, OWN, apply, connect)
        sender.send(SendControl(OWN, EPOCH, leaders(1, 1)))
        loop.call_later(RETRY_BACKOFF_MS / 2000, sender.send, SendControl(OWN, EPOCH, leaders(2, 2)))
        await sender.until_idle(60, 0)

    run_in_virtual_time(work)
    assert sent_at_ms == [0, RETRY_BACKOFF_MS, 2 * RETRY_BACKOFF_MS, 3 * RETRY_BACKOFF_MS, 3 * RETRY_BACKOFF_MS]
