"""Failure detector: detects by its connections that another broker's process has died, before its session expires.

Every broker holds a TCP or unix connection to every other one. When a process dies, its kernel closes its connections
and refuses new ones; the kernel of a paused process, or of a host behind a broken link, does neither. So a connection
closed by the peer, followed by a refused one (ECONNREFUSED), is evidence that this registration's process has died.
Silence is no evidence.

Each broker reports its evidence as an ephemeral node in the store. Once a majority of the other registered brokers have
reported a broker, it is presumed dead, and any of them deletes its registration, and /controller if it holds that, as
the end of its session would. Elections follow as after any expired session, under new controller, leader and broker
epochs.

Safety does not depend on the evidence. A live broker that is presumed dead is a leader without followers, a controller
of an old epoch or a follower with an old broker epoch, just like one that has not noticed yet that its session expired:
all its writes are conditional. It registers again as soon as it sees its node deleted, so a false alarm costs elections
and nothing else; the majority keeps false alarms rare. Source: unreliable failure detectors (Chandra, Toueg 1996).
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
)
from kreplog.core.registration import deregistration
from kreplog.errors import BadVersionError, CoordinationError, NodeExistsError, NoNodeError
from kreplog.types import BrokerRegistration, Check, Create, Delete

RETRY_MS = 500
"""Delay before the next connection to an unreachable broker, and before the next try of a failed store write."""

RECONNECT_MS = 50
"""Minimum between two connections to a broker: some peers accept and close connections in a loop."""


class Link(Enum):
    """State of the connection to one registration of a peer.

    CONNECTING: none has been made yet. CONNECTED: one is held. CLOSED: the peer closed it. REFUSED: the peer closed it
    and refuses new ones, which is evidence of its failure."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"
    REFUSED = "refused"


class _Peer:
    """One registration of another broker. reported: this broker's failure report is in the store. may_be_reported: it
    is, or may be, since the reply was lost. due_ms: when to connect again, None while connected or connecting."""

    def __init__(self, broker: BrokerRegistration) -> None:
        self.broker = broker
        self.link = Link.CONNECTING
        self.connected_ms = 0
        self.reported = self.may_be_reported = False
        self.due_ms: int | None = None

    @property
    def epoch(self) -> tuple[int, int]:
        return self.broker.id, self.broker.epoch


class FailureDetector:
    """The failure detector of one broker.

    Events: PeersChanged whenever the set of registered brokers has changed, Registered of this broker, PeerConnected,
    PeerDisconnected and PeerUnreachable of its connections, Tick. While this broker is not registered its reports do
    not count, and without a session they fail."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self._peers: dict[int, _Peer] = {}
        self._session_id = 0
        self._obsolete: dict[str, None] = {}  # paths of own reports that are to be deleted
        self._delete_ms = 0

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        """Take one event; those not listed above are ignored."""
        match event:
            case PeersChanged(brokers):
                yield from self._change_peers(brokers, now_ms)
            case Registered(_, session_id):
                self._begin(session_id)
                self._reconnect_refused(now_ms)
            case PeerConnected() | PeerDisconnected() | PeerUnreachable():
                peer = self._peers.get(event.broker)
                if peer is not None and peer.broker.epoch == event.broker_epoch:
                    yield from self._update(peer, event, now_ms)
        for peer in list(self._peers.values()):
            if peer.due_ms is not None and peer.due_ms <= now_ms:
                peer.due_ms = None
                yield ConnectPeer(peer.broker)
        if self._obsolete and self._delete_ms <= now_ms:
            yield from self._delete_obsolete(now_ms)

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the next Tick is due; None for never."""
        times = [peer.due_ms for peer in self._peers.values() if peer.due_ms is not None]
        if self._obsolete:
            times.append(self._delete_ms)
        return min(times, default=None)

    def suspects(self) -> list[int]:
        """Ids of the brokers that this broker has evidence about."""
        return [peer.broker.id for peer in self._peers.values() if peer.link is Link.REFUSED]

    # Peers

    def _change_peers(self, brokers: Mapping[int, BrokerRegistration], now_ms: int) -> Steps[None]:
        for broker_id, peer in list(self._peers.items()):
            registered = brokers.get(broker_id)
            if registered is None or registered.epoch != peer.broker.epoch:
                yield DisconnectPeer(broker_id)
                self._retract(peer, now_ms)
                del self._peers[broker_id]
            else:
                peer.broker = registered
        for broker_id, broker in brokers.items():
            if broker_id != self.broker_id and broker_id not in self._peers:
                self._peers[broker_id] = _Peer(broker)
                yield ConnectPeer(broker)
        self._reconnect_refused(now_ms)

    def _reconnect_refused(self, now_ms: int) -> None:
        """Connect at once to the peers with evidence: if they refuse again, reports and majority are checked again."""
        for peer in self._peers.values():
            if peer.link is Link.REFUSED:
                peer.due_ms = now_ms

    def _begin(self, session_id: int) -> None:
        """This broker is registered. In another session than before, its reports in the store are gone, except for
        those made since that session began."""
        if session_id != self._session_id:
            self._session_id = session_id
            for peer in self._peers.values():
                peer.reported = False

    def _update(
        self, peer: _Peer, event: PeerConnected | PeerDisconnected | PeerUnreachable, now_ms: int
    ) -> Steps[None]:
        if isinstance(event, PeerConnected):
            peer.link, peer.connected_ms = Link.CONNECTED, now_ms
            self._retract(peer, now_ms)
        elif isinstance(event, PeerDisconnected):
            if peer.link is Link.CONNECTED:
                peer.link = Link.CLOSED
                peer.due_ms = max(now_ms, peer.connected_ms + RECONNECT_MS)
        else:
            peer.due_ms = now_ms + RETRY_MS
            if self._is_evidence(peer, event.refused):
                peer.link = Link.REFUSED
                yield from self._report(peer)

    def _is_evidence(self, peer: _Peer, refused: bool) -> bool:
        """Whether a refused connection shows that the peer's process has died: it had accepted one before."""
        return refused and peer.link in (Link.CLOSED, Link.REFUSED)

    # Reports in the store

    def _report(self, peer: _Peer) -> Steps[None]:
        """Report the failure, and delete the peer's registration where a majority have reported it. A broker in
        controlled shutdown closes its session itself."""
        if peer.broker.stopping:
            return
        try:
            if not peer.reported:
                yield from self._create_report(peer)
            registered: list[str] | None = yield GetChildren(nodes.BROKER_IDS)
            reports: list[str] | None = yield GetChildren(nodes.BROKER_FAILURES)
            reporters = nodes.failure_reporters(reports or (), *peer.epoch) | {self.broker_id}
            brokers = {int(name) for name in registered or () if name.isdigit()}
            if is_majority(reporters, brokers, peer.broker.id):
                operations = yield from deregistration(peer.broker.id)
                epoch = Check(nodes.broker_epoch(peer.broker.id), peer.broker.epoch)
                yield Multi((epoch, *operations))
                yield StateChange(
                    "warning",
                    f"broker {peer.broker.id} is presumed dead: its connections with brokers "
                    f"{', '.join(map(str, sorted(reporters)))} were closed and new ones are refused",
                )
        except CoordinationError:
            return  # the registration has ended, or the store does not respond: retried at the next refused connection

    def _create_report(self, peer: _Peer) -> Steps[None]:
        broker_id, epoch = peer.epoch
        node = Create(nodes.broker_failure(broker_id, epoch, self.broker_id), ephemeral=True)
        former, peer.may_be_reported = peer.may_be_reported or node.path in self._obsolete, True
        self._obsolete.pop(node.path, None)
        try:
            yield Multi((Check(nodes.broker_epoch(broker_id), epoch), Check(nodes.broker(broker_id)), node))
        except NodeExistsError:
            pass  # it exists, only the reply was lost
        except (BadVersionError, NoNodeError) as ended:
            peer.may_be_reported = former
            raise NoNodeError("that registration has ended", path=node.path) from ended
        peer.reported = True
        yield StateChange(
            "info", f"broker {broker_id} closed its connection and refuses new ones: failure reported at {node.path}"
        )

    def _retract(self, peer: _Peer, now_ms: int) -> None:
        if peer.may_be_reported:
            peer.reported = peer.may_be_reported = False
            self._obsolete[nodes.broker_failure(*peer.epoch, self.broker_id)] = None
            self._delete_ms = now_ms

    def _delete_obsolete(self, now_ms: int) -> Steps[None]:
        self._delete_ms = now_ms + RETRY_MS
        for path in list(self._obsolete):
            try:
                yield Multi((Delete(path),))
            except NoNodeError:
                pass
            except CoordinationError:
                return
            del self._obsolete[path]


def is_majority(reporters: Collection[int], registered: Collection[int], suspect: int) -> bool:
    """Whether more than half of the registered brokers other than `suspect` have reported it: of a cluster of two the
    other broker, of three both others.

    When so many brokers die at once that the survivors are no majority, their sessions expire as usual."""
    others = {broker for broker in registered if broker != suspect}
    return 2 * len(others.intersection(reporters)) > len(others)
