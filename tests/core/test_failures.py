"""A broker's failure detector, over the store in memory: what is evidence, what a majority of it does, and what refutes
it."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.coord.memory import MemorySession, MemoryStore
from kreplog.core import nodes
from kreplog.core.effects import ConnectPeer, DisconnectPeer, Effect, GetChildren, GetNodes, Multi
from kreplog.core.events import (
    Event,
    PeerConnected,
    PeerDisconnected,
    PeersChanged,
    PeerUnreachable,
    Registered,
    Tick,
)
from kreplog.core.failures import RECONNECT_MS, RETRY_MS, FailureDetector, is_majority
from kreplog.errors import ConnectionLossError, CoordinationError
from kreplog.types import BrokerRegistration, Create, SetData

EPOCH = 1
"""The broker epoch of all of them."""


class Cluster:
    """Brokers that are registered in one store; `dead` names one whose session stands."""

    def __init__(self, *brokers: int, dead: int = 1, stopping: bool = False) -> None:
        self.store = MemoryStore()
        self.dead = dead
        self.sessions = {broker: self.store.connect(10_000) for broker in brokers}
        self.brokers = {
            broker: BrokerRegistration(broker, EPOCH, stopping=stopping and broker == dead) for broker in brokers
        }
        any_session = next(iter(self.sessions.values()))
        any_session.multi([*map(Create, nodes.PERSISTENT), Create(nodes.CONTROLLER_EPOCH, b"0")])
        for broker, session in self.sessions.items():
            self.register(broker, session)
        self.shells = {broker: Shell(self, broker) for broker in brokers if broker != dead}

    def register(self, broker: int, session: MemorySession) -> None:
        epoch = nodes.broker_epoch(broker)
        if self.store.peek(epoch) is None:
            session.create(epoch)
        content = nodes.encode_broker(BrokerRegistration(broker, EPOCH))
        session.multi([Create(nodes.broker(broker), content, ephemeral=True), SetData(epoch, b"")])

    def is_registered(self, broker: int) -> bool:
        return self.store.peek(nodes.broker(broker)) is not None

    def notes(self) -> list[str]:
        return self.sessions[self.dead].children(nodes.BROKER_FAILURES)


class Shell:
    """One broker's detector, connected to all others."""

    def __init__(self, cluster: Cluster, broker: int) -> None:
        self.cluster = cluster
        self.core = FailureDetector(broker)
        self.session = cluster.sessions[broker]
        self.now_ms = 1000
        self.effects: list[Effect] = []
        self.failing = self.loses_replies = False
        self.step(Registered(EPOCH, self.session.id))
        self.step(PeersChanged(cluster.brokers))
        assert self.connected_to() == [other for other in cluster.brokers if other != broker]
        for other in self.connected_to():
            self.step(PeerConnected(other, EPOCH))
        self.effects.clear()
        self.now_ms += RECONNECT_MS

    def connected_to(self) -> list[int]:
        return [effect.broker.id for effect in self.effects if isinstance(effect, ConnectPeer)]

    def step(self, event: Event) -> None:
        steps = self.core.step(event, self.now_ms)
        answer: Any = None
        error: CoordinationError | None = None
        while True:
            try:
                effect = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                return
            answer = error = None
            self.effects.append(effect)
            try:
                answer = self._apply(effect)
            except CoordinationError as raised:
                error = raised

    def _apply(self, effect: Effect) -> Any:
        if self.failing and isinstance(effect, Multi | GetNodes | GetChildren):
            raise ConnectionLossError("no answer")
        match effect:
            case Multi(operations):
                results = self.session.multi(operations)
                if self.loses_replies:
                    raise ConnectionLossError("the reply was lost")
                return results
            case GetNodes(paths):
                return self.session.get_many(paths)
            case GetChildren(path):
                return self.session.children(path)
        return None

    def tick(self, ms: int = RETRY_MS) -> None:
        self.now_ms += ms
        self.step(Tick())

    def lose(self, refused: bool = True) -> None:
        """The dead one's end closes the connection, and then the next attempt fails."""
        dead = self.cluster.dead
        self.effects.clear()
        self.step(PeerDisconnected(dead, EPOCH))
        assert self.connected_to() == [dead]
        self.step(PeerUnreachable(dead, EPOCH, refused))


@pytest.mark.parametrize(
    ("registered", "needed"), [({1, 2}, 1), ({1, 2, 3}, 2), ({1, 2, 3, 4}, 2), ({1, 2, 3, 4, 5}, 3)]
)
def test_a_majority_is_of_the_other_registered_brokers(registered: set[int], needed: int) -> None:
    others = sorted(registered - {1})
    for count in range(len(others) + 1):
        assert is_majority(others[:count], registered, 1) is (count >= needed)
        assert is_majority({1, 9, *others[:count]}, registered, 1) is (count >= needed)
    assert not is_majority({1}, {1}, 1)


def test_the_last_of_a_majority_ends_the_registration() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.shells[2].lose()
    assert cluster.is_registered(1)
    assert cluster.notes() == [f"1-{EPOCH}-2"]
    cluster.shells[3].lose()
    assert not cluster.is_registered(1)
    assert not cluster.sessions[1].expired
    for shell in cluster.shells.values():
        shell.step(PeersChanged({other: broker for other, broker in cluster.brokers.items() if other != 1}))
        assert DisconnectPeer(1) in shell.effects
    assert cluster.notes() == []


def test_of_two_brokers_the_other_one_is_enough() -> None:
    cluster = Cluster(1, 2)
    cluster.shells[2].lose()
    assert not cluster.is_registered(1)


@pytest.mark.parametrize("controls", [False, True])
def test_a_dead_controllers_node_goes_too(controls: bool) -> None:
    cluster = Cluster(1, 2)
    cluster.sessions[1 if controls else 2].create(nodes.CONTROLLER, ephemeral=True)
    cluster.shells[2].lose()
    assert (cluster.store.peek(nodes.CONTROLLER) is None) is controls


def test_silence_is_no_evidence() -> None:
    cluster = Cluster(1, 2)
    shell = cluster.shells[2]
    shell.lose(refused=False)
    for _ in range(3):
        shell.tick()
        shell.step(PeerUnreachable(1, EPOCH, refused=False))
    assert cluster.is_registered(1)
    assert not any(isinstance(effect, Multi) for effect in shell.effects)
    shell.tick()
    shell.step(PeerUnreachable(1, EPOCH, refused=True))  # the connection was closed, and now the host answers
    assert not cluster.is_registered(1)


def test_a_refusal_alone_is_no_evidence() -> None:
    """No connection to that registration ever succeeded: it may not listen yet, or elsewhere."""
    cluster = Cluster(1, 2)
    shell = cluster.shells[2]
    shell.step(PeersChanged({}))
    shell.step(PeersChanged(cluster.brokers))
    for _ in range(3):
        shell.step(PeerUnreachable(1, EPOCH, refused=True))
        shell.tick()
    assert cluster.is_registered(1)
    assert len(shell.connected_to()) == 4


def test_a_closed_connection_that_can_be_made_again_is_no_evidence() -> None:
    cluster = Cluster(1, 2)
    shell = cluster.shells[2]
    for pause_ms in (RECONNECT_MS, 1, 1):
        shell.now_ms += pause_ms
        shell.step(PeerDisconnected(1, EPOCH))
        if pause_ms == 1:  # it accepts and hangs up at once, as when it has no descriptors left
            shell.tick(RECONNECT_MS)
        shell.step(PeerConnected(1, EPOCH))
    assert len(shell.connected_to()) == 3
    assert shell.core.suspects() == []
    assert cluster.is_registered(1)


def test_a_connection_that_is_made_after_all_refutes_the_evidence() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.shells[2].lose()
    assert cluster.shells[2].core.suspects() == [1]
    cluster.shells[2].step(PeerConnected(1, EPOCH))
    assert cluster.notes() == []
    cluster.shells[3].lose()
    assert cluster.is_registered(1)


def test_evidence_about_an_earlier_registration_says_nothing() -> None:
    cluster = Cluster(1, 2)
    cluster.sessions[1].delete(nodes.broker(1))
    cluster.register(1, cluster.sessions[1])
    cluster.shells[2].lose()
    assert cluster.is_registered(1)
    assert cluster.notes() == []


def test_events_of_an_earlier_registration_are_ignored() -> None:
    cluster = Cluster(1, 2)
    shell = cluster.shells[2]
    shell.step(PeersChanged({**cluster.brokers, 1: BrokerRegistration(1, EPOCH + 1)}))
    shell.step(PeerDisconnected(1, EPOCH))
    shell.step(PeerUnreachable(1, EPOCH, refused=True))
    assert shell.core.suspects() == []
    assert shell.core.next_wakeup(shell.now_ms) is None


def test_a_broker_that_stops_is_left_to_itself() -> None:
    cluster = Cluster(1, 2, stopping=True)
    cluster.shells[2].lose()
    assert cluster.is_registered(1)
    assert cluster.notes() == []


def test_a_report_of_a_broker_that_is_not_registered_does_not_count() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.shells[2].session.delete(nodes.broker(2))
    cluster.shells[2].lose()
    assert cluster.is_registered(1)
    cluster.shells[3].lose()
    assert not cluster.is_registered(1)


def test_a_report_made_before_the_registration_in_a_new_session_is_retracted() -> None:
    cluster = Cluster(1, 2, 3)
    shell = cluster.shells[2]
    shell.lose()
    shell.step(Registered(EPOCH + 1, shell.session.id + 100))
    shell.step(PeerConnected(1, EPOCH))
    assert cluster.notes() == []


def test_a_report_whose_reply_was_lost_is_retracted() -> None:
    cluster = Cluster(1, 2, 3)
    shell = cluster.shells[2]
    shell.loses_replies = True
    shell.lose()
    assert cluster.notes() == [f"1-{EPOCH}-2"]
    shell.loses_replies = False
    shell.step(PeerConnected(1, EPOCH))
    assert cluster.notes() == []


def test_a_retraction_is_not_lost_when_a_newer_report_is_refused() -> None:
    """The registration has ended meanwhile, so no newer report replaces the one that is to be deleted."""
    cluster = Cluster(1, 2, 3)
    shell = cluster.shells[2]
    shell.lose()
    shell.failing = True
    shell.step(PeerConnected(1, EPOCH))
    shell.failing = False
    cluster.shells[3].session.delete(nodes.broker(1))
    shell.now_ms += RECONNECT_MS
    shell.lose()
    assert cluster.notes() == [f"1-{EPOCH}-2"]
    shell.step(PeersChanged({broker: found for broker, found in cluster.brokers.items() if broker != 1}))
    assert cluster.notes() == []


def test_a_late_retraction_leaves_a_newer_report() -> None:
    cluster = Cluster(1, 2, 3)
    shell = cluster.shells[2]
    shell.lose()
    shell.failing = True
    shell.step(PeerConnected(1, EPOCH))
    shell.failing = False
    shell.now_ms += RECONNECT_MS
    shell.lose()
    shell.tick()
    assert cluster.notes() == [f"1-{EPOCH}-2"]


def test_reports_end_with_their_session_and_are_created_again() -> None:
    cluster = Cluster(1, 2, 3)
    shell = cluster.shells[2]
    shell.lose()
    shell.session.delete(f"{nodes.BROKER_FAILURES}/1-{EPOCH}-2")  # as its end would
    shell.step(Registered(EPOCH + 1, shell.session.id + 100))
    shell.step(PeerUnreachable(1, EPOCH, refused=True))
    assert cluster.notes() == [f"1-{EPOCH}-2"]


def test_a_store_that_does_not_respond_is_retried() -> None:
    cluster = Cluster(1, 2, 3)
    for shell in cluster.shells.values():
        shell.failing = True
        shell.lose()
        assert shell.core.next_wakeup(shell.now_ms) == shell.now_ms + RETRY_MS
        shell.failing = False
        shell.tick()
        shell.step(PeerUnreachable(1, EPOCH, refused=True))
    assert not cluster.is_registered(1)
    shell = cluster.shells[2]
    shell.failing = True
    shell.step(PeersChanged({}))
    assert cluster.notes() != []
    shell.failing = False
    shell.tick()
    assert cluster.notes() == [f"1-{EPOCH}-3"]


def test_a_majority_that_comes_about_by_another_death_is_seen() -> None:
    """Two of three brokers die: when one registration has ended, the third alone is the majority about the other."""
    cluster = Cluster(1, 2, 3)
    cluster.shells[2].lose()
    assert cluster.is_registered(1)
    cluster.sessions[3].close()
    shell = cluster.shells[2]
    shell.effects.clear()
    shell.step(PeersChanged({1: cluster.brokers[1], 2: cluster.brokers[2]}))
    assert shell.connected_to() == [1]
    shell.step(PeerUnreachable(1, EPOCH, refused=True))
    assert not cluster.is_registered(1)
