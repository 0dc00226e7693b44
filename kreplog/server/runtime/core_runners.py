"""CoreRunners: the cores of a broker, each with the runner that steps it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from kreplog.core import effects, events
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.broker.shutdown import ControlledShutdown
from kreplog.core.controller.controller import Controller
from kreplog.core.failures import FailureDetector
from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.memory import MemoryAccount
from kreplog.core.registration import DUPLICATE_MS, Registration
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.errors import InvariantError
from kreplog.server.runtime.runners import AsyncCoreRunner, SyncCoreRunner
from kreplog.server.settings import BrokerSettings
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.types import BrokerRegistration


def make_cores(
    settings: BrokerSettings, hosted: HostedReplicas, registration: BrokerRegistration, memory: MemoryAccount
) -> BrokerCores:
    """The cores of a broker before their first event. hosted: its replicas, loaded. registration: what it registers;
    the epoch does not matter."""
    own, topic_ids, strays = settings.broker_id, hosted.topic_ids(), hosted.strays.keys()
    disk_lost = any(directory.start.is_new for directory in hosted.directories)
    replicas = ReplicaManager(own, settings.replication, topic_ids, disk_lost, strays, memory)
    registered = Registration(registration, max(DUPLICATE_MS, 3 * settings.session_timeout_ms))
    metadata = replicas.metadata
    return BrokerCores(
        replicas,
        Controller(own, settings.replication, topic_defaults=settings.topic),
        registered,
        FailureDetector(own),
        ControlledShutdown(own, registered, metadata, settings.controlled_shutdown_max_wait_ms),
        GroupCoordinator(settings.groups, metadata, lambda: str(uuid.uuid4()), memory),
        TransactionCoordinator(settings.transactions, metadata, memory),
    )


class CoreRunners:
    """A runner for each core, under the core's name in BrokerCores. on_failure: called with the name of a core that has
    failed, and its error.

    Events can be put from the beginning; cores are stepped once their runners are started.
    """

    def __init__(self, cores: BrokerCores, on_failure: Callable[[str, BaseException], None]) -> None:
        self._cores = cores
        self.replicas = SyncCoreRunner("replicas", cores.replicas, on_failure)
        self.controller = AsyncCoreRunner("controller", cores.controller, on_failure)
        self.registration = AsyncCoreRunner("registration", cores.registration, on_failure)
        self.detector = AsyncCoreRunner("failure detector", cores.detector, on_failure)
        self.shutdown = SyncCoreRunner("shutdown", cores.shutdown, on_failure)
        self.groups = SyncCoreRunner("groups", cores.groups, on_failure)
        self.transactions = SyncCoreRunner("transactions", cores.transactions, on_failure)
        self._runner_of: dict[effects.Core, SyncCoreRunner | AsyncCoreRunner] = {
            cores.replicas: self.replicas,
            cores.controller: self.controller,
            cores.registration: self.registration,
            cores.detector: self.detector,
            cores.shutdown: self.shutdown,
            cores.groups: self.groups,
            cores.transactions: self.transactions,
        }

    def receive(self, event: events.Received) -> None:
        """A request has arrived: pass it to its core."""
        self._runner_of[self._cores.core_for(event.request)].put(event)

    def deliver(self, effect: effects.Deliver) -> None:
        """Put an event of one core to another."""
        self._runner_of[effect.core].put(effect.event)

    def session_started(self, session_id: int) -> None:
        """The store has granted a session."""
        self._deliver_all(self._cores.session_started(session_id))

    def session_lost(self) -> None:
        """The session has ended."""
        self._deliver_all(self._cores.session_lost())

    def begin_shutdown(self) -> None:
        """Begin a controlled shutdown."""
        self._deliver_all(self._cores.stop())

    def _deliver_all(self, following: Sequence[effects.Effect]) -> None:
        for effect in following:
            if not isinstance(effect, effects.Deliver):
                raise InvariantError(f"{type(effect).__name__} follows from no step")
            self.deliver(effect)

    def stop(self) -> None:
        """Step the cores no more."""
        for runner in self._runner_of.values():
            runner.stop()
