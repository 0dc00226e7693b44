"""BrokerCores: the cores of one broker process, and the events between them.

The shell steps each core on its own, since some wait for the store and others never do. What a step of one core implies
for the others, and for the disk, is decided here: after each step the shell calls `stepped`, and performs the effects
that it returns, in order.

The unclean mark. A broker whose host lost power may lack records that it had acknowledged. Its registrations say so
(`BrokerRegistration.unclean`), and a mark on its disk, until a controller has handled it. A controller reads a
registration before it sends that broker an INIT; so the mark is cleared once an INIT for the current registration has
been applied and the replicas that it created are durable. If it were cleared earlier, a process killed in between would
restart as one that lost nothing, and could be elected without the records that it lacks. An INIT that has been applied
was for a registration of this process (ControlFencing); if another one has followed since, no more was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from kreplog.core.broker.control_channel import ControlChannels
from kreplog.core.broker.shutdown import ControlledShutdown
from kreplog.core.controller.controller import Controller
from kreplog.core.effects import (
    ClearUncleanMark,
    CloseControlChannel,
    Core,
    Deliver,
    Effect,
    LeaderAndIsrApplied,
    Reply,
    SyncFiles,
)
from kreplog.core.events import (
    Event,
    LeadershipChanged,
    PeersChanged,
    Registered,
    SessionLost,
    SessionStarted,
    Stopping,
)
from kreplog.core.failures import FailureDetector
from kreplog.core.group_messages import GroupRequest
from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.messages import ControlledShutdownRequest
from kreplog.core.registration import Registration, transition
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC, TransactionQuery, TransactionRequest
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator

_NO_EFFECTS: tuple[Effect, ...] = ()

_GROUP_REQUESTS = frozenset(get_args(GroupRequest))
"""A set, since each produce and fetch is looked up in it; isinstance of a union takes seven times as long."""


class BrokerCores:
    """The cores of one broker process, and what a step of one of them means for the others.

    replicas, controller, registration, detector, shutdown, groups, transactions: the cores, in the order in which they
    get a common event. channels: the controller's requests to the brokers.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        controller: Controller,
        registration: Registration,
        detector: FailureDetector,
        shutdown: ControlledShutdown,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> None:
        self.replicas = replicas
        self.controller = controller
        self.registration = registration
        self.detector = detector
        self.shutdown = shutdown
        self.groups = groups
        self.transactions = transactions
        self._core_of: dict[type, Core] = {
            **dict.fromkeys(_GROUP_REQUESTS, groups),
            **dict.fromkeys((*get_args(TransactionRequest), *get_args(TransactionQuery)), transactions),
        }
        self.channels = ControlChannels()
        self._brokers = replicas.metadata.brokers
        self._registered: Registered | None = None

    @property
    def cores(self) -> tuple[Core, ...]:
        return (
            self.replicas,
            self.controller,
            self.registration,
            self.detector,
            self.shutdown,
            self.groups,
            self.transactions,
        )

    def core_for(self, request: object) -> Core:
        """The core that a request to this broker is for: a ControlledShutdown is the controller's, those of groups and
        of transactions are their coordinators', all others are those of the replicas."""
        if isinstance(request, ControlledShutdownRequest):
            return self.controller
        return self._core_of.get(type(request), self.replicas)

    def session_started(self, session_id: int) -> Sequence[Effect]:
        """The store has granted a session, which will own this broker's ephemeral nodes."""
        return (Deliver(self.registration, SessionStarted(session_id)),)

    def session_lost(self) -> Sequence[Effect]:
        """The session has ended, or may have: lead nothing, control nothing, register again.

        The replicas step down at once, even while the registration waits for the store; the other cores follow from its
        step, as after any end of a registration. What they may send or write until then is fenced by epochs.
        The shell requests another session, also while the broker stops: its shutdown reads the store, and Registration
        decides whether it registers again.
        """
        lost = SessionLost()
        return Deliver(self.replicas, lost), Deliver(self.registration, lost)

    def stop(self) -> Sequence[Effect]:
        """Begin a controlled shutdown: the registration announces it before the leaders are moved (F15)."""
        stopping = Stopping()
        return Deliver(self.registration, stopping), Deliver(self.shutdown, stopping)

    def stepped(self, core: Core) -> Sequence[Effect]:
        """The effects that follow from a step of `core`; to be called after each."""
        if core is self.replicas:
            return self._replicas_stepped()
        if core is self.registration:
            return self._registration_stepped()
        if core is self.controller:
            return self._controller_stepped()
        return _NO_EFFECTS

    def applied(self, applied: LeaderAndIsrApplied) -> Sequence[Effect]:
        """A LeaderAndIsr has been applied: fsync the replicas it created before the response."""
        return (SyncFiles(applied),)

    def files_synced(self, applied: LeaderAndIsrApplied) -> Sequence[Effect]:
        """The files of the replicas created by `applied`, and by those before it, are durable."""
        reply = Reply(applied.reply_to, applied.response)
        if self._handles_losses(applied):
            return reply, *self._clear_unclean()
        return (reply,)

    def _replicas_stepped(self) -> Sequence[Effect]:
        effects = self._coordinator_effects() if self.replicas.coordinator_events else _NO_EFFECTS
        brokers = self.replicas.metadata.brokers
        if brokers is self._brokers:
            return effects
        self._brokers = brokers
        return *effects, Deliver(self.detector, PeersChanged(brokers))

    def _coordinator_effects(self) -> Sequence[Effect]:
        """The coordinator learns of every change of leadership, in order: between two epochs that this broker leads,
        another may have led."""
        changes, self.replicas.coordinator_events = self.replicas.coordinator_events, []
        return [
            Deliver(self.transactions if _is_of_transactions(change) else self.groups, change) for change in changes
        ]

    def _registration_stepped(self) -> Sequence[Effect]:
        registered = self.registration.registered
        if registered is self._registered:
            return _NO_EFFECTS
        former, self._registered = self._registered, registered
        effects: list[Effect] = []
        if registered is not None and self._is_complete(registered):
            effects += self._clear_unclean()
        for event in transition(former, registered):
            effects += self._to_registered_cores(event)
        return effects

    def _to_registered_cores(self, event: Event) -> Sequence[Effect]:
        return [Deliver(core, event) for core in (self.replicas, self.controller, self.detector)]

    def _controller_stepped(self) -> Sequence[Effect]:
        """Close the channels of a controller that has resigned, and those to registrations that have ended."""
        brokers = self.controller.context.brokers if self.controller.active else {}
        live = {broker.id: broker.epoch for broker in brokers.values()}
        return [CloseControlChannel(broker) for broker in self.channels.retain(live)]

    def _is_complete(self, registered: Registered) -> bool:
        """Whether no broker was registered under this id before, so that nothing can have been lost."""
        return registered.is_first

    def _handles_losses(self, applied: LeaderAndIsrApplied) -> bool:
        """Whether it names all replicas of this broker: one that a lost disk held is known to be missing only then."""
        return applied.request.is_init

    def _clear_unclean(self) -> Sequence[Effect]:
        """Clear the unclean mark, unless a replica is missing: the next process must distrust the disk as well."""
        if self.replicas.missing:
            return _NO_EFFECTS
        self.registration.clear_unclean()
        return (ClearUncleanMark(),)


def _is_of_transactions(event: Event) -> bool:
    return isinstance(event, LeadershipChanged) and event.partition.topic == TRANSACTIONS_TOPIC
