"""ControlledShutdown: a broker stops once its leaders have been moved, or its time is over (KIP-841)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kreplog.core import nodes
from kreplog.core.broker.shutdown import RETRY_MS, ControlledShutdown
from kreplog.core.effects import Effect, Exit, SendShutdown, StateChange, SubmitRead
from kreplog.core.events import ControlledShutdownReplied, Event, Registered, Stopping, StoreReplied, Tick
from kreplog.core.messages import ControlledShutdownRequest, ControlledShutdownResponse, UpdateMetadataRequest
from kreplog.core.registration import Registration
from kreplog.core.replication.metadata import MetadataCache
from kreplog.errors import ConnectionLossError, ErrorCode
from kreplog.types import BrokerRegistration, Node, NodeStat, TopicPartition

OWN, CONTROLLER, EPOCH, WAIT_MS = 1, 2, 7, 10_000
MOVED = ControlledShutdownResponse(ErrorCode.NONE)
LEADS = ControlledShutdownResponse(ErrorCode.NONE, (TopicPartition("t", 0),))
NODE = Node(json.dumps({"broker_id": CONTROLLER}).encode(), NodeStat(0, 0, 0))


class Stopped:
    """A broker that has just begun to stop at 0 ms."""

    def __init__(self, registered: bool = True) -> None:
        self.registration = Registration(BrokerRegistration(OWN, -1))
        self.registration.broker_epoch = EPOCH
        self.registration.registered = Registered(EPOCH, 1) if registered else None
        self.metadata = MetadataCache()
        self.brokers(BrokerRegistration(OWN, EPOCH), BrokerRegistration(CONTROLLER, 1))
        self.now_ms = 0
        self.core = ControlledShutdown(OWN, self.registration, self.metadata, WAIT_MS)
        assert self.core.next_wakeup(0) is None and self.step(Tick()) == []

    def brokers(self, *brokers: BrokerRegistration) -> None:
        self.metadata.apply(UpdateMetadataRequest(CONTROLLER, 1, EPOCH, brokers))

    def step(self, event: Event) -> list[Effect]:
        return list(self.core.step(event, self.now_ms))

    def sends_request(self, attempt: int) -> None:
        """The controller has been found, and gets the request."""
        tag = ("controlled shutdown", attempt)
        request = ControlledShutdownRequest(OWN, EPOCH)
        assert self.step(StoreReplied(tag, (NODE,))) == [SendShutdown(attempt, CONTROLLER, request)]

    def tries_again(self, attempt: int) -> None:
        wakeup_ms = self.core.next_wakeup(self.now_ms)
        assert wakeup_ms == self.now_ms + RETRY_MS
        assert self.step(Tick()) == [], "not before it is due"
        self.now_ms = wakeup_ms
        assert self.step(Tick()) == [SubmitRead(("controlled shutdown", attempt), (nodes.CONTROLLER,))]


def begun() -> Stopped:
    broker = Stopped()
    assert broker.step(Stopping()) == [SubmitRead(("controlled shutdown", 1), (nodes.CONTROLLER,))]
    assert broker.step(Stopping()) == [], "it is stopping already"
    assert broker.core.next_wakeup(0) == WAIT_MS
    return broker


def test_it_stops_once_its_leaders_are_moved() -> None:
    broker = begun()
    broker.sends_request(1)
    assert broker.step(ControlledShutdownReplied(1, LEADS)) == []
    broker.tries_again(2)
    broker.sends_request(2)
    assert broker.step(ControlledShutdownReplied(1, MOVED)) == [], "the answer to an earlier attempt"
    assert broker.step(ControlledShutdownReplied(2, MOVED)) == [Exit(all_moved=True)]
    assert broker.core.done and broker.core.next_wakeup(broker.now_ms) is None
    assert broker.step(Tick()) == broker.step(ControlledShutdownReplied(2, MOVED)) == []


@pytest.mark.parametrize("found", [StoreReplied(("controlled shutdown", 1), (None,)), "lost"])
def test_it_retries_without_a_controller(found: Any) -> None:
    broker = begun()
    if found == "lost":
        found = StoreReplied(("controlled shutdown", 1), (), ConnectionLossError("no answer", path="/"))
    assert broker.step(found) == []
    broker.tries_again(2)


def test_a_damaged_controller_node_is_read_again() -> None:
    broker = begun()
    (said,) = broker.step(StoreReplied(("controlled shutdown", 1), (Node(b"?", NodeStat(0, 0, 0)),)))
    assert isinstance(said, StateChange) and "/controller" in said.text
    broker.tries_again(2)


@pytest.mark.parametrize("response", [None, ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH)])
def test_it_retries_when_it_is_refused(response: ControlledShutdownResponse | None) -> None:
    broker = begun()
    broker.sends_request(1)
    assert broker.step(ControlledShutdownReplied(1, response)) == []
    broker.tries_again(2)


def test_it_stops_at_once_without_a_successor() -> None:
    for others in ((), (BrokerRegistration(CONTROLLER, 1, stopping=True),)):
        broker = begun()
        broker.brokers(BrokerRegistration(OWN, EPOCH), *others)
        broker.sends_request(1)
        assert broker.step(ControlledShutdownReplied(1, LEADS)) == [Exit(all_moved=False)]


def test_it_stops_at_once_when_it_is_not_registered() -> None:
    assert Stopped(registered=False).step(Stopping()) == [Exit(all_moved=False)]


def test_it_waits_no_longer_than_it_may() -> None:
    broker = begun()
    broker.sends_request(1)
    broker.now_ms = WAIT_MS
    said, ended = broker.step(Tick())
    assert isinstance(said, StateChange) and "within 10000 ms" in said.text
    assert ended == Exit(all_moved=False)
