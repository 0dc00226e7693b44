"""BrokerCores: what one core's step means for the others; when a returning broker counts as clean (F17, KIP-966)."""

from __future__ import annotations

from collections.abc import Sequence

from kreplog.config import GroupConfig, ReplicationConfig, TransactionConfig
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.broker.shutdown import ControlledShutdown
from kreplog.core.controller.controller import Controller
from kreplog.core.effects import (
    ClearUncleanMark,
    CloseControlChannel,
    Deliver,
    Effect,
    LeaderAndIsrApplied,
    Reply,
    SendControl,
    SyncFiles,
)
from kreplog.core.events import PeersChanged, Registered, SessionLost, SessionStarted, Stopping
from kreplog.core.failures import FailureDetector
from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.messages import (
    ControlledShutdownRequest,
    FetchRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ProduceRequest,
    UpdateMetadataRequest,
)
from kreplog.core.registration import Registration
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.errors import ErrorCode
from kreplog.types import BrokerRegistration, TopicPartition

OWN, EPOCH = 1, 7


class Cores(BrokerCores):
    """Of a broker that returns from an unclean shutdown."""

    def __init__(self) -> None:
        config = ReplicationConfig()
        replicas, controller = ReplicaManager(OWN, config), Controller(OWN, config)
        registration = Registration(BrokerRegistration(OWN, -1, unclean=True))
        shutdown = ControlledShutdown(OWN, registration, replicas.metadata, 1000)
        groups = GroupCoordinator(GroupConfig(), MetadataCache(), str)
        transactions = TransactionCoordinator(TransactionConfig(), MetadataCache())
        super().__init__(replicas, controller, registration, FailureDetector(OWN), shutdown, groups, transactions)

    def registers(self, epoch: int) -> Sequence[Effect]:
        self.registration.broker_epoch = epoch
        self.registration.registered = Registered(epoch, 1)
        return self.stepped(self.registration)

    def answers(self, *, is_init: bool = True) -> list[Effect]:
        """What follows once the files of an applied LeaderAndIsr are synced, but for its answer."""
        response = LeaderAndIsrResponse(ErrorCode.NONE)
        applied = LeaderAndIsrApplied("controller", LeaderAndIsrRequest(2, 1, EPOCH, (), is_init), response)
        assert self.applied(applied) == (SyncFiles(applied),)
        reply, *following = self.files_synced(applied)
        assert reply == Reply("controller", response)
        return following


def test_a_broker_is_clean_once_its_controller_has_handled_its_losses() -> None:
    cores = Cores()
    cores.registers(EPOCH)
    assert cores.answers(is_init=False) == []
    assert cores.registration.broker.unclean
    assert cores.answers() == [ClearUncleanMark()]
    assert not cores.registration.broker.unclean


def test_a_broker_that_misses_a_replica_stays_unclean() -> None:
    cores = Cores()
    cores.registers(EPOCH)
    cores.replicas.missing[TopicPartition("t", 0)] = "id"
    assert cores.answers() == [] and cores.registration.broker.unclean


def test_a_broker_on_its_first_registration_is_clean() -> None:
    cores = Cores()
    event = Registered(1, 1)
    assert cores.registers(1) == [
        ClearUncleanMark(),
        *(Deliver(core, event) for core in (cores.replicas, cores.controller, cores.detector)),
    ]
    assert not cores.registration.broker.unclean
    assert Cores().registers(2)[0] != ClearUncleanMark()


def test_a_new_registration_in_a_session_ends_the_former_first() -> None:
    cores = Cores()
    cores.registers(EPOCH)
    assert cores.stepped(cores.registration) == (), "nothing has changed"
    others = (cores.replicas, cores.controller, cores.detector)
    assert cores.registers(EPOCH + 1) == [
        *(Deliver(core, SessionLost()) for core in others),
        *(Deliver(core, Registered(EPOCH + 1, 1)) for core in others),
    ]


def test_a_controlled_shutdown_is_for_the_controller_and_all_else_for_the_replicas() -> None:
    cores = Cores()
    assert cores.core_for(ControlledShutdownRequest(OWN, EPOCH)) is cores.controller
    for_replicas = (FetchRequest(2, 1, 0, 0, 0, ()), ProduceRequest(1, 0, ()), UpdateMetadataRequest(2, 1, EPOCH, ()))
    assert {cores.core_for(request) for request in for_replicas} == {cores.replicas}


def test_sessions_and_stops_reach_the_cores_concerned() -> None:
    cores = Cores()
    assert cores.session_started(5) == (Deliver(cores.registration, SessionStarted(5)),)
    assert cores.stop() == (Deliver(cores.registration, Stopping()), Deliver(cores.shutdown, Stopping()))
    assert cores.session_lost() == tuple(Deliver(core, SessionLost()) for core in (cores.replicas, cores.registration))


def test_the_other_cores_get_the_end_of_a_session_from_the_registration() -> None:
    cores = Cores()
    cores.registers(EPOCH)
    cores.registration.registered = None
    others = (cores.replicas, cores.controller, cores.detector)
    assert cores.stepped(cores.registration) == [Deliver(core, SessionLost()) for core in others]


def test_a_controller_that_has_resigned_sends_nothing_more() -> None:
    cores = Cores()
    cores.channels.put(SendControl(2, 3, UpdateMetadataRequest(OWN, 1, 3, ())))
    assert cores.stepped(cores.controller) == [CloseControlChannel(2)]
    assert cores.channels.idle


def test_the_failure_detector_gets_the_registered_brokers() -> None:
    cores = Cores()
    assert cores.stepped(cores.replicas) == ()
    cores.replicas.metadata.apply(UpdateMetadataRequest(2, 1, EPOCH, (BrokerRegistration(2, 3),)))
    assert cores.stepped(cores.replicas) == (Deliver(cores.detector, PeersChanged({2: BrokerRegistration(2, 3)})),)
    assert cores.stepped(cores.replicas) == ()
