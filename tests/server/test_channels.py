"""Channels: one message in flight to each broker, in order; what has waited is told together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kreplog.core.controller.requests import TOGETHER
from kreplog.core.effects import SendControl
from kreplog.core.events import ControlReplied
from kreplog.core.messages import (
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.errors import ErrorCode
from kreplog.server.channels import Channels
from kreplog.server.internal import connect
from kreplog.types import Broker, LeaderAndIsr, TopicPartition
from tests.server.loop import run

OWN, EPOCH = 1, 7


def states(*numbers: int, leader_epoch: int = 1) -> tuple[PartitionState, ...]:
    return tuple(
        PartitionState(TopicPartition("t", number), "id", LeaderAndIsr(1, leader_epoch, (1,)), (1,))
        for number in numbers
    )


def leaders(sequence: int, *numbers: int, is_init: bool = False, controller_epoch: int = 1) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(OWN, controller_epoch, EPOCH, states(*numbers), is_init, sequence)


def metadata(sequence: int, *numbers: int, deleted: int | None = None) -> UpdateMetadataRequest:
    gone = () if deleted is None else (TopicPartition("t", deleted),)
    return UpdateMetadataRequest(OWN, 1, EPOCH, (Broker(sequence, EPOCH),), states(*numbers), gone, sequence)


def heard(requests: Sequence[ControlRequest]) -> list[ControlRequest]:
    """What a broker hears of these, put in while it is busy with another one; each is answered for what it says."""
    told: list[ControlRequest] = []
    answered: list[ControlReplied] = []

    async def work() -> None:
        free = asyncio.Event()

        async def obey(request: ControlRequest) -> ControlResponse:
            told.append(request)
            await free.wait()
            return LeaderAndIsrResponse(ErrorCode.NONE)

        channels = Channels("test", lambda broker: ("", 0), answered.append, OWN, obey, connect)
        channels.send(SendControl(OWN, EPOCH, StopReplicaRequest(OWN, 1, EPOCH, (), 0)))
        while not told:
            await asyncio.sleep(0)  # the channel has its turn
        for request in requests:
            channels.send(SendControl(OWN, EPOCH, request))
        free.set()
        while len(answered) < len(told) or answered[-1].request.sequence < requests[-1].sequence:
            await asyncio.sleep(0)  # the channel has its turn, and hands the answers over
        channels.close()

    run(work)
    assert [one.request for one in answered] == told
    return told[1:]


def test_what_has_waited_is_told_together_in_order() -> None:
    later = LeaderAndIsrRequest(OWN, 1, EPOCH, states(1, leader_epoch=2), False, 3)
    assert heard([leaders(1, 1, 2), leaders(2, 3), later]) == [
        LeaderAndIsrRequest(OWN, 1, EPOCH, (*states(1, 2, 3), *states(1, leader_epoch=2)), False, 3)
    ]
    assert heard([metadata(1, 1, deleted=9), metadata(2, 2), metadata(3)]) == [
        UpdateMetadataRequest(OWN, 1, EPOCH, (Broker(3, EPOCH),), states(1, 2), (TopicPartition("t", 9),), 3)
    ]


def test_what_must_not_be_mixed_is_told_one_after_the_other() -> None:
    stop = StopReplicaRequest(OWN, 1, EPOCH, (StopReplica(TopicPartition("t", 1), "id", 1, True),), 3)
    unlike: list[list[ControlRequest]] = [
        [leaders(1, 1, is_init=True), leaders(2, 2)],
        [leaders(1, 1), leaders(2, 2, is_init=True)],
        [leaders(1, 1), metadata(2, 1), leaders(3, 2)],
        [leaders(1, 1), stop, leaders(4, 1)],
        [metadata(1, 1), metadata(2, deleted=1)],
        [leaders(1, 1), leaders(2, 2, controller_epoch=2)],
        [leaders(1, *range(TOGETHER)), leaders(2, TOGETHER)],
    ]
    for requests in unlike:
        assert heard(requests) == requests


def test_answers_are_waited_for_but_not_forever() -> None:
    happened: list[str] = []

    async def work() -> None:
        free = asyncio.Event()

        async def obey(request: ControlRequest) -> ControlResponse:
            await free.wait()
            return LeaderAndIsrResponse(ErrorCode.NONE)

        channels = Channels("test", lambda broker: ("", 0), lambda _: happened.append("answered"), OWN, obey, connect)
        await channels.until_idle(3600, 0)
        channels.send(SendControl(OWN, EPOCH, leaders(1, 1, is_init=True)))
        channels.send(SendControl(OWN, EPOCH, leaders(2, 2)))
        await channels.until_idle(0.001, 0)
        happened.append("not yet")
        free.set()
        asyncio.get_running_loop().call_later(0.02, happened.append, "others")
        await channels.until_idle(3600, 0.04)
        happened.append("rested")
        free.clear()
        channels.send(SendControl(OWN, EPOCH, leaders(3, 3)))
        waiting = asyncio.ensure_future(channels.until_idle(3600, 0))
        await asyncio.sleep(0)  # so that it has begun to wait when the channel ends
        channels.keep({})
        await waiting

    run(work)
    assert happened == ["not yet", "answered", "answered", "others", "rested"]
