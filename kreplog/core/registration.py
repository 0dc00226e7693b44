"""Broker registration: an ephemeral node under /brokers/ids, and the broker epoch, the version of a node under
/brokers/epochs (KIP-380).

A step reads before it writes, and reads again after a lost reply: the content of the store counts, not the attempt
(F28). A node that another session holds is left alone until that session ends, since a second process may have been
started with this broker's id by mistake (F29). The node of a former process or session of this broker is replaced at
once: its registration names a log directory whose lock this process holds now, so the former process is dead.
A broker that cannot run at the finalized level of kreplog.version does not register (KIP-584): the step raises
UnsupportedFeatureError, and the broker stops. One whose id another broker has for so long that its session cannot be
that of a dead process stops by DuplicateBrokerIdError.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from kreplog.core import features, nodes
from kreplog.core.effects import GetNodes, Multi, Nodes, StateChange, Steps
from kreplog.core.events import Event, Registered, SessionLost, SessionStarted, Stopping, Tick, WatchFired
from kreplog.errors import (
    BadVersionError,
    ConnectionLossError,
    CoordinationError,
    DuplicateBrokerIdError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kreplog.types import BrokerRegistration, Check, Create, Delete, Node, SetData, StoreOperation

RETRY_MS = 200
"""Delay after the store did not respond, or after ATTEMPTS lost races."""

WAIT_MS = 2000
"""How often a node of another session is read again although its watch has not fired."""

DUPLICATE_MS = 60_000
"""How long a broker waits for the session of another that has its id, as Kafka does by default
(initial.broker.registration.timeout.ms)."""

ATTEMPTS = 5
"""Tries in a row while other writers change the nodes in between."""

_RACES = (NodeExistsError, NoNodeError, BadVersionError)


class RegistrationState(Enum):
    """The states of a broker's registration. NO_SESSION: wait for a session. REGISTERING: write the node, at once or
    after a delay. WAITING: another session holds the node. REGISTERED: until the session ends or the node is deleted.
    STOPPING: the registration is to announce the shutdown. STOPPED: it does, or there is none."""

    NO_SESSION = "no session"
    REGISTERING = "registering"
    WAITING = "waiting"
    REGISTERED = "registered"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Registration:
    """The registration of `broker`, whose epoch does not matter here.

    After every step the shell compares `registered` with its former value. If it has changed, the broker's other cores
    get the events of `transition`. `broker_epoch`: of the last registration, -1 before the first. A broker that is
    stopping does not register again.
    `broker.unclean` is repeated in every registration until `clear_unclean`, since no controller may have read the
    first. duplicate_ms: how long it waits for one session, while it reaches the store, before it is refused; longer
    than a session lasts whose process is dead, None for ever.
    """

    def __init__(self, broker: BrokerRegistration, duplicate_ms: int | None = None) -> None:
        self.broker = broker
        self._duplicate_ms = duplicate_ms
        self._awaited: tuple[int, int] | None = None  # the session that is waited for, and since when
        self.state = RegistrationState.NO_SESSION
        self.session_id = 0
        self.broker_epoch = -1
        self.registered: Registered | None = None
        self._due_ms = 0

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        """Handles SessionStarted, SessionLost, WatchFired of its own node, Stopping and Tick; ignores all other
        events."""
        if isinstance(event, SessionStarted):
            self._lose_session()
            self.session_id = event.session_id
            self._due_ms = now_ms
            self.state = RegistrationState.STOPPED if self.broker.stopping else RegistrationState.REGISTERING
        elif isinstance(event, SessionLost):
            self._lose_session()
        elif isinstance(event, Stopping):
            self._stop(now_ms)
        elif isinstance(event, WatchFired):
            if event.event.path != self._node or self.state not in (
                RegistrationState.WAITING,
                RegistrationState.REGISTERED,
            ):
                return
            if (
                self.state is RegistrationState.REGISTERED
            ):  # the node may be deleted: other brokers may presume this one dead
                self.state = RegistrationState.REGISTERING
            self._due_ms = now_ms
        elif not isinstance(event, Tick):
            return
        due = self._next_due()
        if due is not None and due <= now_ms:
            yield from self._try(now_ms)

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the next Tick is due, not before `now_ms`; None for never."""
        due = self._next_due()
        return None if due is None else max(now_ms, due)

    def clear_unclean(self) -> None:
        """A controller has handled what this broker may have lost: omit it from the next registration."""
        self.broker = replace(self.broker, unclean=False)

    @property
    def _node(self) -> str:
        return nodes.broker(self.broker.id)

    def _next_due(self) -> int | None:
        return (
            self._due_ms
            if self.state in (RegistrationState.REGISTERING, RegistrationState.WAITING, RegistrationState.STOPPING)
            else None
        )

    def _lose_session(self) -> None:
        self.session_id = 0
        self._awaited = None
        self.registered = None
        self.state = RegistrationState.NO_SESSION

    def _stop(self, now_ms: int) -> None:
        self.broker = replace(self.broker, stopping=True)
        if self.state is RegistrationState.REGISTERED:
            self.state = RegistrationState.STOPPING
            self._due_ms = now_ms
        elif self.state in (RegistrationState.REGISTERING, RegistrationState.WAITING):
            # The node may exist, its reply lost; a stopping broker that is not registered does not register.
            self.state = RegistrationState.STOPPING
            self._due_ms = now_ms

    def _try(self, now_ms: int) -> Steps[None]:
        try:
            for _ in range(ATTEMPTS):
                try:
                    if self.state is RegistrationState.STOPPING:
                        yield from self._announce_stop()
                    else:
                        yield from self._register(now_ms)
                    return
                except _RACES:
                    continue
            self._due_ms = now_ms + RETRY_MS
        except ConnectionLossError:
            self._awaited = None  # sessions last longer where the store does not respond
            self._due_ms = now_ms + RETRY_MS
        except SessionExpiredError:
            self._lose_session()

    def _register(self, now_ms: int) -> Steps[None]:
        yield from self._create_nodes()
        epoch, standing, finalized = yield from self._read()
        features.check_supported(self.broker, finalized)
        if standing is None or not self._is_own(standing):
            self.registered = None
        if standing is None:
            yield from self._write(epoch, finalized, ())
        elif self._is_own(standing):
            yield from self._succeed(epoch)
        elif self._is_former(standing):
            yield from self._write(epoch, finalized, (yield from deregistration(self.broker.id)))
        elif (yield from self._watch()) is None:
            raise NoNodeError("deleted meanwhile", path=self._node)
        else:
            owner = standing.stat.ephemeral_owner
            self._check_duplicate(owner, now_ms)
            if self.state is not RegistrationState.WAITING:
                yield StateChange("warning", f"broker {self.broker.id} waits for session {owner}, which owns its node")
            self.state = RegistrationState.WAITING
            self._due_ms = now_ms + WAIT_MS

    def _check_duplicate(self, owner: int, now_ms: int) -> None:
        """Raises DuplicateBrokerIdError once the session has owned the node for duplicate_ms."""
        if self._awaited is None or self._awaited[0] != owner:
            self._awaited = owner, now_ms
        waited_ms = now_ms - self._awaited[1]
        if self._duplicate_ms is not None and waited_ms >= self._duplicate_ms:
            raise DuplicateBrokerIdError(
                f"broker {self.broker.id} cannot register: another running broker has had this id for "
                f"{waited_ms // 1000} s; give one of them another broker.id, or stop the other and start this one again"
            )

    def _is_own(self, node: Node) -> bool:
        """Whether this session wrote the node, and only the reply was lost (F28)."""
        return node.stat.ephemeral_owner == self.session_id

    def _is_former(self, node: Node) -> bool:
        """Whether the node is that of a dead process, or of an expired session, of this broker: its owner held the lock
        of a log directory that this process has locked now (F29)."""
        try:
            former = nodes.decode_broker(self._node, node, -1)
        except CoordinationError:
            return False
        return not set(former.directories).isdisjoint(self.broker.directories)

    def _create_nodes(self) -> Steps[None]:
        """Create the persistent nodes that are missing, in one multi. Raises NodeExistsError in a race."""
        required = dict.fromkeys(nodes.PERSISTENT, b"")
        required[nodes.CONTROLLER_EPOCH] = b"0"
        required[nodes.broker_epoch(self.broker.id)] = required[nodes.FEATURE] = b""
        found = yield GetNodes(tuple(required))
        required[nodes.FEATURE] = features.encode(features.initial(self.broker, is_new=found[0] is None))
        missing = tuple(
            Create(path, data) for (path, data), node in zip(required.items(), found, strict=True) if node is None
        )
        if missing:
            yield Multi(missing)

    def _read(self) -> Steps[tuple[int, Node | None, features.FinalizedVersion]]:
        """The broker epoch and the broker's node at one time: a registration between the reads raises the epoch. And
        the level of the cluster, which the registration checks."""
        epoch = nodes.broker_epoch(self.broker.id)
        before, standing, after, feature = yield GetNodes((epoch, self._node, epoch, nodes.FEATURE))
        if before is None or after is None or before.stat.version != after.stat.version:
            raise BadVersionError("changed while it was read", path=epoch)
        return after.stat.version, standing, features.decode(feature)

    def _watch(self) -> Steps[Node | None]:
        found: Nodes = yield GetNodes((self._node,), watch=True)
        return found[0]

    def _write(
        self, epoch: int, finalized: features.FinalizedVersion, before: tuple[StoreOperation, ...]
    ) -> Steps[None]:
        """Create the node and raise the epoch, if no process has registered since `epoch` was read (F16, F29), and no
        update of the level has begun or ended."""
        raised = SetData(nodes.broker_epoch(self.broker.id), b"", epoch)
        level = Check(nodes.FEATURE, finalized.epoch)
        yield Multi((level, *before, Create(self._node, nodes.encode_broker(self.broker), ephemeral=True), raised))
        yield from self._succeed(epoch + 1)

    def _succeed(self, epoch: int) -> Steps[None]:
        """Registered until the session ends or the node is deleted; other brokers delete it if they presume this one
        dead, so it is watched."""
        standing = yield from self._watch()
        if standing is None or not self._is_own(standing):
            raise NoNodeError("deleted meanwhile", path=self._node)
        self.broker_epoch = epoch
        if self.registered is None or self.registered.broker_epoch != epoch:
            self.registered = Registered(epoch, self.session_id)
        self.state = RegistrationState.REGISTERED

    def _announce_stop(self) -> Steps[None]:
        """Rewrite the own node, so that its version is above 0 and no leader's ISR expansion succeeds (F15,
        KIP-841)."""
        (standing,) = yield GetNodes((self._node,))
        if standing is not None and self._is_own(standing):
            content = nodes.encode_broker(self.broker)
            if standing.data != content:
                yield Multi((SetData(self._node, content, standing.stat.version),))
        self.state = RegistrationState.STOPPED


def transition(former: Registered | None, registered: Registered | None) -> list[Event]:
    """The events for the other cores when the registration changes from `former` to `registered`; None: unregistered.

    A new registration in the same session is announced by SessionLost first, so that nothing begun under the former
    broker epoch is continued."""
    events: list[Event] = [] if former is None else [SessionLost()]
    return events if registered is None else [*events, registered]


def deregistration(broker_id: int) -> Steps[tuple[StoreOperation, ...]]:
    """Store operations that delete the registration of a broker that is dead, or presumed so, before its session ends.

    /controller is deleted too if the same session owns it; the check of the controller epoch protects that of a later
    controller. The caller adds a check of the broker epoch. Raises NoNodeError if there is no registration.
    """
    epoch, controller, standing = yield GetNodes((nodes.CONTROLLER_EPOCH, nodes.CONTROLLER, nodes.broker(broker_id)))
    if standing is None or epoch is None:
        raise NoNodeError("the registration has ended", path=nodes.broker(broker_id))
    operations: tuple[StoreOperation, ...] = (Delete(nodes.broker(broker_id)),)
    if controller is not None and controller.stat.ephemeral_owner == standing.stat.ephemeral_owner:
        operations += (Check(nodes.CONTROLLER_EPOCH, epoch.stat.version), Delete(nodes.CONTROLLER))
    return operations
