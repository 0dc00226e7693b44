"""Failure detection: connections show that a broker's process has died, before its session with the store ends.

Every broker holds a connection to every other one. When a process dies, its kernel closes its connections and refuses
new ones; that of a process that is paused, or behind a link that is cut, does neither. So a connection that its other
end closed, and a refused one after it, are failure evidence about a registration. Silence never is.

Each broker notes its evidence in the store. Where a majority of the other registered brokers have, the broker is
presumed dead, and whichever of them sees that ends its registration as the end of its session would, /controller
included. Controllers and brokers go on from there as after any session's end, under new controller, leader and broker
epochs.

No promise rests on the evidence. A broker that lives although it is presumed dead is a leader without followers, a
controller of an old epoch or a follower with an old broker epoch, as one is that has yet to learn of its session's end:
every write it makes is conditional. It registers anew as soon as it sees that its node has gone, so that a false alarm
costs elections and no more; the majority keeps those rare. Source: unreliable failure detectors (Chandra, Toueg 1996).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum

from kreplog.core import nodes
from kreplog.core.effects import ConnectPeer, DisconnectPeer, GetChildren, Multi, StateChange, Steps
from kreplog.core.events import (
    Event,
    PeerConnected,
    PeerDisconnected,
    PeersChanged,
    PeerUnreachable,
    Registered,
    SessionLost,
)
from kreplog.core.registration import ending
from kreplog.errors import BadVersionError, CoordinationError, NodeExistsError, NoNodeError
from kreplog.types import Broker, Check, Create, Delete

RETRY_MS = 500
"""The pause before a broker that cannot be reached is connected to again, and before the store is tried again."""


RECONNECT_MS = 50
"""How long after a connection was made another one is, at the earliest: some peers accept and hang up all the time."""


class Link(Enum):
    """CONNECTING: not connected yet to this registration. CONNECTED. CLOSED: by its other end. REFUSED: after that, so
    there is evidence."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"
    REFUSED = "refused"


class _Peer:
    """One registration of another broker. noted: the evidence is in the store. due_ms: when to connect again."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.link = Link.CONNECTING
        self.connected_ms = 0
        self.noted = False
        self.due_ms: int | None = None

    @property
    def epoch(self) -> tuple[int, int]:
        return self.broker.id, self.broker.epoch


class FailureDetector:
    """The failure detector of one broker. It takes PeersChanged whenever the controller names other brokers than
    before, and Registered and SessionLost as the other cores do."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self._peers: dict[int, _Peer] = {}
        self._registered = False
        self._session_id = 0
        self._withdrawn: dict[str, None] = {}  # notes in the store that hold no more
        self._withdraw_ms = 0

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        """Takes the events of peers, of the registration, and Tick; passes over all else."""
        match event:
            case PeersChanged(brokers):
                yield from self._change_peers(brokers, now_ms)
            case Registered(_, session_id):
                self._begin(session_id)
                self._look_again(now_ms)
            case SessionLost():
                self._registered = False
            case PeerConnected() | PeerDisconnected() | PeerUnreachable():
                peer = self._peers.get(event.broker)
                if peer is not None and peer.broker.epoch == event.broker_epoch:
                    yield from self._heard(peer, event, now_ms)
        for peer in list(self._peers.values()):
            if peer.due_ms is not None and peer.due_ms <= now_ms:
                peer.due_ms = None
                yield ConnectPeer(peer.broker)
        if self._withdrawn and self._withdraw_ms <= now_ms:
            yield from self._withdraw(now_ms)

    def next_wakeup(self, now_ms: int) -> int | None:
        """When it wants the next Tick; None while there is nothing to wait for."""
        times = [peer.due_ms for peer in self._peers.values() if peer.due_ms is not None]
        if self._withdrawn:
            times.append(self._withdraw_ms)
        return min(times, default=None)

    def suspects(self) -> list[int]:
        """The brokers about which there is evidence."""
        return [peer.broker.id for peer in self._peers.values() if peer.link is Link.REFUSED]

    # Peers

    def _change_peers(self, brokers: Mapping[int, Broker], now_ms: int) -> Steps[None]:
        for broker_id, peer in list(self._peers.items()):
            named = brokers.get(broker_id)
            if named is None or named.epoch != peer.broker.epoch:
                yield DisconnectPeer(broker_id)
                self._drop_note(peer, now_ms)
                del self._peers[broker_id]
            else:
                peer.broker = named
        for broker_id, broker in brokers.items():
            if broker_id != self.broker_id and broker_id not in self._peers:
                self._peers[broker_id] = _Peer(broker)
                yield ConnectPeer(broker)
        self._look_again(now_ms)

    def _look_again(self, now_ms: int) -> None:
        """There may be a majority now, or a note may be missing: a refused connection has it looked for."""
        for peer in self._peers.values():
            if peer.link is Link.REFUSED:
                peer.due_ms = now_ms

    def _begin(self, session_id: int) -> None:
        """Registered: anew in the same session, perhaps; with another the notes in the store have gone."""
        self._registered = True
        if session_id != self._session_id:
            self._session_id = session_id
            self._withdrawn.clear()
            for peer in self._peers.values():
                peer.noted = False

    def _heard(
        self, peer: _Peer, event: PeerConnected | PeerDisconnected | PeerUnreachable, now_ms: int
    ) -> Steps[None]:
        if isinstance(event, PeerConnected):
            peer.link, peer.connected_ms = Link.CONNECTED, now_ms
            self._drop_note(peer, now_ms)
        elif isinstance(event, PeerDisconnected):
            if peer.link is Link.CONNECTED:
                peer.link = Link.CLOSED
                peer.due_ms = max(now_ms, peer.connected_ms + RECONNECT_MS)
        else:
            peer.due_ms = now_ms + RETRY_MS
            if self._is_evidence(peer, event.refused):
                peer.link = Link.REFUSED
                yield from self._presume(peer)

    def _is_evidence(self, peer: _Peer, refused: bool) -> bool:
        """A process listened there in this registration, and none does now."""
        return refused and peer.link in (Link.CLOSED, Link.REFUSED)

    # Evidence

    def _presume(self, peer: _Peer) -> Steps[None]:
        """Note the evidence; end the registration where a majority have noted theirs. A broker that said it stops gives
        its session up by itself."""
        if not self._registered or peer.broker.stopping:
            return
        try:
            if not peer.noted:
                yield from self._note(peer)
            registered: list[str] | None = yield GetChildren(nodes.BROKER_IDS)
            noted: list[str] | None = yield GetChildren(nodes.BROKER_FAILURES)
            reporters = nodes.failure_reporters(noted or (), *peer.epoch) | {self.broker_id}
            brokers = {int(name) for name in registered or () if name.isdigit()}
            if is_majority(reporters, brokers, peer.broker.id):
                operations = yield from ending(peer.broker.id)
                epoch = Check(nodes.broker_epoch(peer.broker.id), peer.broker.epoch)
                yield Multi((epoch, *operations))
                yield StateChange(
                    "warning",
                    f"broker {peer.broker.id} is presumed dead: its connections with brokers "
                    f"{', '.join(map(str, sorted(reporters)))} were closed and new ones are refused",
                )
        except CoordinationError:
            return  # that registration has ended, or the store does not answer: the next refusal tells

    def _note(self, peer: _Peer) -> Steps[None]:
        broker_id, epoch = peer.epoch
        node = Create(nodes.broker_failure(broker_id, epoch, self.broker_id), ephemeral=True)
        try:
            yield Multi((Check(nodes.broker_epoch(broker_id), epoch), Check(nodes.broker(broker_id)), node))
        except NodeExistsError:
            pass  # noted already, only the reply was lost
        except BadVersionError as ended:
            raise NoNodeError("that registration has ended", path=node.path) from ended
        peer.noted = True
        yield StateChange("info", f"broker {broker_id} closed its connection and refuses another: noted")

    def _drop_note(self, peer: _Peer, now_ms: int) -> None:
        if peer.noted:
            peer.noted = False
            self._withdrawn[nodes.broker_failure(*peer.epoch, self.broker_id)] = None
            self._withdraw_ms = now_ms

    def _withdraw(self, now_ms: int) -> Steps[None]:
        self._withdraw_ms = now_ms + RETRY_MS
        for path in list(self._withdrawn):
            try:
                yield Multi((Delete(path),))
            except NoNodeError:
                pass
            except CoordinationError:
                return
            del self._withdrawn[path]


def is_majority(reporters: Collection[int], registered: Collection[int], suspect: int) -> bool:
    """Whether most of the other registered brokers have evidence about `suspect`: of two brokers the other one alone,
    of three both others. A broker that dies together with so many that they are missed is left to its session's end."""
    others = {broker for broker in registered if broker != suspect}
    return 2 * len(others.intersection(reporters)) > len(others)
