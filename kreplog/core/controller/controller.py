"""The controller of a cluster, as one broker runs it: passive until it is elected, then whole, until it resigns.

It is elected by one multi that creates /controller and raises /controller_epoch. Elected, it reads the whole store
once, elects leaders in place of brokers that failed while the cluster had no controller, sends every broker its full
state, and continues the operations under way; after that it reacts to watches of the store and responses of brokers. It
waits for nothing but the store. After any error of the store it starts over: it resigns, drops its context, and is
elected again, or takes over again under a new epoch if /controller is still its own.

A broker's first LeaderAndIsr of a controller epoch or of its registration, the INIT, and the UpdateMetadata after it
hold the full state. Only leaders and ISRs that a new controller changes at its failover are sent before that, as soon
as they are written.
"""

from __future__ import annotations

from collections.abc import Hashable

from kreplog.config import BUILT_IN_DEFAULTS, ReplicationConfig, TopicConfig
from kreplog.core import nodes
from kreplog.core.controller import fencing, store_reader
from kreplog.core.controller.broker_changes import BrokerChanges
from kreplog.core.controller.context import ControllerContext, Observer, PartitionAndReplica
from kreplog.core.controller.deletion import Deletion
from kreplog.core.controller.election_policies import apply_flush_setting, bump_leader_epoch, elect_offline
from kreplog.core.controller.fencing import DeposedError
from kreplog.core.controller.leader_elections import ELECTIONS, LeaderElections
from kreplog.core.controller.reassignment import Reassignment
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.topic_changes import TopicChanges
from kreplog.core.controller.transitions import PartitionStatus
from kreplog.core.effects import GetNodes, Multi, Nodes, Reply, StateChange, Steps
from kreplog.core.events import ControlReplied, Event, Received, Registered, SessionLost, Tick, WatchFired
from kreplog.core.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from kreplog.errors import (
    BadVersionError,
    CoordinationError,
    ErrorCode,
    InvariantError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kreplog.types import Check, Create, Delete, SetData, StoreOperation, WatchEvent

RETRY_MS = 500
"""Delay before a controller starts over after an error of the store."""

WRITE_RETRY_MS = 200
"""Delay before it retries writes that lost every compare-and-set against other writers."""


class ControllerTerm:
    """The context and the operations of one controller epoch; dropped when the controller resigns."""

    def __init__(self, context: ControllerContext) -> None:
        self.context = context
        self.machines = StateMachines(context)
        self.topics = TopicChanges(self.machines)
        self.deletion = Deletion(self.machines, self.topics)
        self.brokers = BrokerChanges(self.machines, self.deletion)
        self.reassignment = Reassignment(self.machines, self.topics)
        self.elections = LeaderElections(self.machines, self.topics)


class Controller:
    """The controller core of one broker; see kreplog.core.effects for how a step is run.

    active: whether it is the controller, as far as it knows. epoch: its controller epoch, the last one when passive.
    context: empty when passive. on_transition: called with every change of state (replica or partition, old, new), the
    first states, from NonExistent, included; for checkers. topic_defaults: the static ones.
    """

    def __init__(
        self,
        broker_id: int,
        config: ReplicationConfig,
        on_transition: Observer | None = None,
        topic_defaults: TopicConfig = BUILT_IN_DEFAULTS,
    ) -> None:
        self.broker_id = broker_id
        self.active = False
        self.epoch = -1
        self.on_transition = on_transition
        self._config = config
        self._topic_defaults = topic_defaults
        self._session: int | None = None
        self._retry_ms: int | None = None
        self._balance_ms: int | None = None
        self._clear()

    @property
    def context(self) -> ControllerContext:
        """The current context, read-only; another object after every election and resignation."""
        return self._term.context

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        """Process one event, as the module describes. Never raises a CoordinationError."""
        try:
            yield from self._dispatch(event, now_ms)
            if self.active:
                yield from self._advance_reassignments(now_ms)
        except SessionExpiredError:
            self._resign()
            yield StateChange("warning", f"broker {self.broker_id}: its session with the store has expired")
        except DeposedError as error:
            self._resign()
            self._retry_ms = now_ms  # at once, but in a step of its own
            yield StateChange("warning", f"broker {self.broker_id}: {error}")
        except CoordinationError as error:
            self._resign()
            self._retry_ms = now_ms + RETRY_MS
            yield StateChange("error", f"broker {self.broker_id} resigns as controller and starts over: {error}")
        if isinstance(event, Received) and not self.active:
            yield Reply(event.reply_to, ControlledShutdownResponse(ErrorCode.NOT_CONTROLLER))

    def next_wakeup(self, now_ms: int) -> int | None:
        """Latest time of the next Tick; None while nothing is due."""
        times = (self._retry_ms, self._balance_ms if self.active else None)
        return min((time for time in times if time is not None), default=None)

    def _dispatch(self, event: Event, now_ms: int) -> Steps[None]:
        match event:
            case Registered(_, session_id):
                if not self.active or session_id != self._session:
                    self._resign()
                    self._session = session_id
                    yield from self._elect(now_ms)
            case SessionLost():
                self._resign()
                self._session = None
            case WatchFired(watched):
                yield from self._watch_fired(watched, now_ms)
            case ControlReplied():
                yield from self._control_replied(event)
            case Received(reply_to, ControlledShutdownRequest() as request):
                yield from self._controlled_shutdown(reply_to, request)
            case Tick():
                yield from self._tick(now_ms)
            case _:
                raise InvariantError(f"the controller does not handle {type(event).__name__}")

    # Election and resignation

    def _elect(self, now_ms: int) -> Steps[None]:
        """Become the controller if /controller is absent or belongs to this session (F28); otherwise watch it."""
        self._retry_ms = None
        for _ in range(fencing.ATTEMPTS):
            if self._session is None:
                return
            (holder,) = yield GetNodes((nodes.CONTROLLER,), watch=True)
            if holder is not None and not self._is_own(holder.stat.ephemeral_owner):
                return
            (epoch,) = yield GetNodes((nodes.CONTROLLER_EPOCH,))
            if epoch is None:
                yield from self._create_persistent_nodes()
                continue
            number = nodes.decode_number(nodes.CONTROLLER_EPOCH, epoch) + 1
            content = nodes.encode_controller(self.broker_id)
            claim: StoreOperation = Create(nodes.CONTROLLER, content, ephemeral=True)
            if holder is not None:
                claim = Check(nodes.CONTROLLER, holder.stat.version)
            try:
                yield Multi((claim, _raise_epoch(number, epoch.stat.version)))
            except (NodeExistsError, NoNodeError, BadVersionError):
                continue
            self.epoch = number
            self._begin_term(epoch.stat.version + 1)
            self.active = True
            yield StateChange("info", f"broker {self.broker_id} is the controller of epoch {self.epoch}")
            yield from self._failover(now_ms)
            return
        self._retry_ms = now_ms + RETRY_MS

    def _is_own(self, owner: int) -> bool:
        """Whether /controller belongs to this session: after a lost reply, or when the controller starts over, no other
        broker can be elected while that node exists (F28)."""
        return owner == self._session

    def _create_persistent_nodes(self) -> Steps[None]:
        """Create the nodes that a new cluster needs, one write each, since other brokers create them at the same
        time."""
        for path in nodes.PERSISTENT:
            yield from _create(path, b"")
        yield from _create(nodes.CONTROLLER_EPOCH, b"0")

    def _resign(self) -> None:
        self.active = False
        self._balance_ms = None
        self._clear()

    def _clear(self) -> None:
        self._begin_term(-1)

    def _begin_term(self, epoch_version: int) -> None:
        self._term = ControllerTerm(
            ControllerContext(self.broker_id, self.epoch, epoch_version, self.on_transition, self._topic_defaults)
        )

    def _failover(self, now_ms: int) -> Steps[None]:
        """Read the store, elect in place of failed brokers, send every broker its INIT, and continue what is under
        way."""
        term, context = self._term, self._term.context
        notifications, _ = yield from store_reader.isr_changes()  # before the states that they are about are read
        registrations, default = yield from store_reader.brokers(context.last_readable_configs)
        events = yield from store_reader.log_dir_events()
        yield from store_reader.fill(context)
        removed = yield from store_reader.tree(nodes.REMOVED)
        reassigned = yield from store_reader.tree(nodes.REASSIGNED)
        added = yield from store_reader.tree(nodes.ADDED)
        if any(partition.topic not in context.topics for partition in (*removed, *reassigned, *added)):
            yield from store_reader.fill(context)  # a topic that was created after they were read
        yield from term.deletion.accept(context.deleting.copy(), removed)
        yield from term.brokers.on_failover(registrations, default, events)
        yield from term.machines.leader_and_isr.update(context.active_partitions(), apply_flush_setting)
        yield from term.reassignment.on_failover(reassigned)
        yield from term.machines.leader_and_isr.clear_obsolete_elr(context.active_partitions())
        yield from term.machines.batch.send()
        yield from term.brokers.resume_controlled_shutdowns()
        yield from self._delete_notifications(notifications)
        yield from term.deletion.resume()
        yield from term.reassignment.advance(list(context.reassignments))
        yield from term.topics.add(added)
        yield from term.elections.on_failover()
        yield from term.topics.delete_all_empty_directories()
        if self._config.auto_leader_rebalance_enable:
            self._balance_ms = now_ms + self._config.leader_imbalance_check_interval_ms

    # The active controller

    def _watch_fired(self, watched: WatchEvent, now_ms: int) -> Steps[None]:
        term, path = self._term, watched.path
        if path == nodes.CONTROLLER:
            yield from self._controller_changed(now_ms)
        elif not self.active or _is_deleted_request(watched):
            return
        elif _under(path, nodes.BROKER_IDS) or _under(path, nodes.BROKER_CONFIGS):
            yield from term.brokers.on_change()
            yield from term.deletion.resume()
        elif path == nodes.TOPICS:
            yield from term.topics.on_topics()
            yield from term.deletion.resume()
        elif _under(path, nodes.TOPICS):
            yield from term.topics.on_topic(_name(path))
            yield from term.deletion.resume()
        elif _under(path, nodes.TOPIC_CONFIGS):
            yield from term.topics.on_config(_name(path))
        elif _under(path, nodes.DELETED_TOPICS) or _under(path, nodes.REMOVED):
            yield from term.deletion.on_requests()
        elif _under(path, nodes.REASSIGNED):
            yield from term.reassignment.on_requests()
        elif _under(path, nodes.ADDED):
            yield from term.topics.on_additions()
        elif path in ELECTIONS:
            yield from term.elections.on_request(path)
        elif _under(path, nodes.ISR_CHANGES):
            yield from self._isr_changes()
        elif _under(path, nodes.LOG_DIR_EVENTS):
            yield from term.brokers.on_log_dir_events()
            yield from term.deletion.resume()

    def _controller_changed(self, now_ms: int) -> Steps[None]:
        """/controller was created or deleted. It must be this session's own while this controller is active."""
        if not self.active:
            yield from self._elect(now_ms)
            return
        found: Nodes = yield GetNodes((nodes.CONTROLLER,), watch=True)
        if found[0] is None or not self._is_own(found[0].stat.ephemeral_owner):
            raise DeposedError("/controller does not belong to its session any more", path=nodes.CONTROLLER)

    def _isr_changes(self) -> Steps[None]:
        """Leaders changed ISRs: read the states and send them to all brokers in UpdateMetadata."""
        paths, changed = yield from store_reader.isr_changes()
        if not paths:
            return
        term = self._term
        yield from term.machines.leader_and_isr.refresh(changed)
        term.machines.batch.add_update_metadata(
            partition
            for partition in changed
            if term.context.has_partition(partition) and not term.context.is_pending_deletion(partition)
        )
        yield from term.machines.batch.send()
        yield from self._delete_notifications(paths)

    def _delete_notifications(self, paths: list[str]) -> Steps[None]:
        for chunk in fencing.chunks([Delete(path) for path in paths], fencing.MAX_OPERATIONS - 1):
            try:
                yield from fencing.fenced(self.context, chunk)
            except NoNodeError:
                yield from self._term.topics.delete_requests(chunk)

    def _control_replied(self, event: ControlReplied) -> Steps[None]:
        """A broker's response to a request of this controller epoch. A stale broker epoch needs nothing: the watch of
        /brokers/ids reports the new registration."""
        if not self.active or event.request.controller_epoch != self.epoch:
            return
        if event.response.error is ErrorCode.STALE_CONTROLLER_EPOCH:
            yield from self._check_controller_epoch()
        registered = self.context.brokers.get(event.broker)
        if registered is None or registered.epoch != event.broker_epoch:
            return
        if event.response.error is not ErrorCode.NONE:
            return
        match event.request, event.response:
            case LeaderAndIsrRequest() as request, LeaderAndIsrResponse() as response:
                yield from self._bump_refused_epochs(request, response)
                failed = [
                    PartitionAndReplica(partition, event.broker)
                    for partition, error in response.partitions
                    if error is ErrorCode.KAFKA_STORAGE_ERROR
                ]
                yield from self._term.brokers.on_storage_errors(failed)
                if failed:
                    yield from self._term.deletion.resume()
            case StopReplicaRequest() as request, StopReplicaResponse() as response:
                yield from self._term.deletion.on_response(event.broker, request, response)

    def _bump_refused_epochs(self, request: LeaderAndIsrRequest, response: LeaderAndIsrResponse) -> Steps[None]:
        """Bump the leader epoch of partitions that a broker refused with FENCED_LEADER_EPOCH.

        A broker leads only once in an epoch.
        """
        context, machines = self.context, self._term.machines
        epochs = {
            partition_state.partition: partition_state.state.leader_epoch for partition_state in request.partitions
        }
        refused = [
            partition
            for partition, error in response.partitions
            if error is ErrorCode.FENCED_LEADER_EPOCH
            and (state := context.states.get(partition)) is not None
            and state.leader_epoch == epochs.get(partition)
        ]
        if refused:
            yield from machines.leader_and_isr.update(refused, bump_leader_epoch)
            yield from machines.batch.send()

    def _check_controller_epoch(self) -> Steps[None]:
        """A broker has refused this controller epoch as stale: resign if the store has a later one."""
        found: Nodes = yield GetNodes((nodes.CONTROLLER_EPOCH,))
        if found[0] is None or found[0].stat.version != self.context.epoch_version:
            raise DeposedError(f"controller epoch {self.epoch} is over", path=nodes.CONTROLLER_EPOCH)

    def _controlled_shutdown(self, reply_to: Hashable, request: ControlledShutdownRequest) -> Steps[None]:
        if not self.active:
            return
        registered = self.context.brokers.get(request.broker_id)
        if registered is None or registered.epoch != request.broker_epoch:
            yield Reply(reply_to, ControlledShutdownResponse(ErrorCode.STALE_BROKER_EPOCH))
            return
        remaining = yield from self._term.brokers.on_controlled_shutdown(request.broker_id)
        yield Reply(reply_to, ControlledShutdownResponse(ErrorCode.NONE, tuple(remaining)))

    def _tick(self, now_ms: int) -> Steps[None]:
        if self._retry_ms is not None and now_ms >= self._retry_ms:
            self._retry_ms = None
            if not self.active:
                yield from self._elect(now_ms)
            else:
                yield from self._retry_writes()
        if self.active and self._balance_ms is not None and now_ms >= self._balance_ms:
            self._balance_ms = now_ms + self._config.leader_imbalance_check_interval_ms
            yield from self._term.elections.on_imbalance(self._config.leader_imbalance_per_broker_percentage)

    def _retry_writes(self) -> Steps[None]:
        """Read again the states of partitions whose writes lost to other writers, and decide on them again."""
        term, context = self._term, self._term.context
        partitions = [partition for partition in context.to_retry if context.has_partition(partition)]
        context.to_retry.clear()
        yield from term.machines.leader_and_isr.refresh(partitions)
        staying = [partition for partition in partitions if not context.is_pending_deletion(partition)]
        yield from term.machines.partitions.handle_state_changes(staying, PartitionStatus.ONLINE, elect_offline)
        yield from term.machines.leader_and_isr.update(staying, apply_flush_setting)
        yield from term.machines.batch.send()
        yield from term.reassignment.advance(partitions)
        yield from term.deletion.resume()

    def _advance_reassignments(self, now_ms: int) -> Steps[None]:
        """After every event: advance reassignments whose ISR has grown, and schedule the retry of refused writes."""
        context = self.context
        touched = [partition for partition in context.touched if partition in context.reassignments]
        context.touched.clear()
        yield from self._term.reassignment.advance(touched)
        if context.to_retry and self._retry_ms is None:
            self._retry_ms = now_ms + WRITE_RETRY_MS


def _raise_epoch(epoch: int, version: int) -> SetData:
    """Raise /controller_epoch: every election has its own, which all writes and requests of that controller carry."""
    return SetData(nodes.CONTROLLER_EPOCH, str(epoch).encode(), version)


def _create(path: str, data: bytes) -> Steps[None]:
    try:
        yield Multi((Create(path, data),))
    except NodeExistsError:
        return


def _under(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def _is_deleted_request(watched: WatchEvent) -> bool:
    """Whether a request for a partition was deleted: the watch on its directory's children has fired as well, once for
    the thousands of requests that a multi has fulfilled."""
    return watched.kind == "deleted" and any(watched.path.startswith(under + "/") for under in nodes.PARTITION_REQUESTS)


def _name(path: str) -> str:
    return path.split("/")[3]
