"""Control requests of a controller epoch that a broker does not know: held until the store confirms it, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.core import nodes
from kreplog.core.effects import Effect, Reply, SubmitRead
from kreplog.core.events import Received, StoreReplied
from kreplog.core.messages import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from kreplog.errors import ConnectionLossError, ErrorCode
from kreplog.types import BrokerRegistration, Node, NodeStat
from tests.core.replication.test_leader import leader
from tests.core.shell import Shell


@pytest.mark.parametrize("kind", [LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest])
def test_a_controller_epoch_without_an_election_is_refused(kind: Any) -> None:
    """And the requests of the real controller after it are not."""
    shell = leader()
    shell.elected = 1
    assert shell.response_to(kind(9, 7, shell.epoch, ())).error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert shell.manager.controller_epoch == 1 and shell.manager.metadata.controller_epoch == 1
    assert shell.leader_and_isr(1, 2).error is ErrorCode.NONE
    shell.elected = 7
    assert shell.response_to(kind(9, 7, shell.epoch, ())).error is ErrorCode.NONE
    assert shell.leader_and_isr(1, 3).error is ErrorCode.STALE_CONTROLLER_EPOCH


def test_requests_of_a_new_controller_are_held_in_order_until_the_store_confirms_its_epoch() -> None:
    shell = leader()
    reads = []
    for number, (epoch, live) in enumerate([(2, 2), (2, 3), (3, 4)]):
        brokers = tuple(BrokerRegistration(broker, 1) for broker in range(1, live + 1))
        waiting = received(shell, number, UpdateMetadataRequest(9, epoch, shell.epoch, brokers, sequence=number + 1))
        reads += [read for read in waiting if isinstance(read, SubmitRead)]
    assert [read.paths for read in reads] == [(nodes.CONTROLLER_EPOCH,)], "one read for all that wait"
    (read,) = reads
    effects = list(shell.manager.step(StoreReplied(read.tag, (epoch_node(2),)), shell.now_ms))
    assert [reply.reply_to for reply in effects if isinstance(reply, Reply)] == [0, 1]
    assert sorted(shell.manager.metadata.brokers) == [1, 2, 3], "what was sent last counts"
    (read,) = [read for read in effects if isinstance(read, SubmitRead)]
    effects = list(shell.manager.step(StoreReplied(read.tag, (epoch_node(3),)), shell.now_ms))
    assert [(reply.reply_to, reply.response) for reply in effects if isinstance(reply, Reply)] == [
        (2, UpdateMetadataResponse(ErrorCode.NONE))
    ]


@pytest.mark.parametrize("answer", [ConnectionLossError("lost"), None, b"x"])
def test_without_the_stores_response_the_controller_has_to_retry(answer: Any) -> None:
    shell = leader()
    (read,) = [
        read
        for read in received(shell, "sent", UpdateMetadataRequest(9, 2, shell.epoch, ()))
        if isinstance(read, SubmitRead)
    ]
    error = answer if isinstance(answer, ConnectionLossError) else None
    node = None if answer is None else Node(b"x", NodeStat(0, 0, 0))
    effects = list(shell.manager.step(StoreReplied(read.tag, () if error else (node,), error), shell.now_ms))
    (reply,) = [reply for reply in effects if isinstance(reply, Reply)]
    expected = ErrorCode.STALE_CONTROLLER_EPOCH if answer is None else ErrorCode.BROKER_NOT_AVAILABLE
    assert isinstance(reply.response, UpdateMetadataResponse) and reply.response.error is expected
    assert shell.manager.controller_epoch == 1


def received(shell: Shell, reply_to: Any, request: Any) -> list[Effect]:
    """The effects of a request before any response of the store."""
    return list(shell.manager.step(Received(reply_to, request), shell.now_ms))


def epoch_node(epoch: int) -> Node:
    return Node(str(epoch).encode(), NodeStat(0, 0, 0))
