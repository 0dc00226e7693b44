"""The controller of a cluster, as one broker runs it: passive until it is elected, then whole, until it resigns.

It is elected by one multi that creates /controller and raises /controller_epoch. Elected, it reads everything once,
repairs what happened while there was no controller, tells every broker all that it should know, and takes up what was
under way; from then on it follows the watches of the store and the answers of brokers. It waits for nothing but the
store. Whatever goes wrong with the store sends it back to the start: it resigns, forgets all, and is elected anew, or
takes over again under a new epoch if /controller is still its own.

Every broker's first UpdateMetadata of a controller epoch, or of its registration, and a LeaderAndIsr before it, the
INIT, hold everything. Only what a new controller finds to repair is told before that, as soon as it is written.
"""

from __future__ import annotations

from collections.abc import Hashable

from kreplog.config import ReplicationConfig
from kreplog.core import nodes
from kreplog.core.controller import fencing, store_reader
from kreplog.core.controller.broker_changes import BrokerChanges
from kreplog.core.controller.context import ControllerContext, Observer, Replica
from kreplog.core.controller.deletion import Deletion
from kreplog.core.controller.election_policies import bump_leader_epoch, elect_offline
from kreplog.core.controller.fencing import DeposedError
from kreplog.core.controller.preferred_elections import PreferredElections
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
from kreplog.types import Check, Create, Delete, SetData, StoreOperation

RETRY_MS = 500
"""How long a controller waits before it starts over after the store failed it."""

SETTLE_MS = 200
"""How soon it tries again to write what others kept writing."""


class ControllerTerm:
    """What one controller epoch works with; gone when the controller resigns."""

    def __init__(self, context: ControllerContext) -> None:
        self.context = context
        self.machines = StateMachines(context)
        self.topics = TopicChanges(self.machines)
        self.deletion = Deletion(self.machines, self.topics)
        self.brokers = BrokerChanges(self.machines, self.deletion)
        self.reassignment = Reassignment(self.machines, self.topics)
        self.preferred = PreferredElections(self.machines, self.topics)


class Controller:
    """The controller core of one broker; see kreplog.core.effects for how a step is run.

    active: whether it is the controller, as far as it knows. epoch: of its controllership, the last one when passive.
    context: what it knows, empty when passive. on_transition: called with every change of state of a replica or
    partition (what, old, new), also with those of the start, from NonExistent; for checkers.
    """

    def __init__(self, broker_id: int, config: ReplicationConfig, on_transition: Observer | None = None) -> None:
        self.broker_id = broker_id
        self.active = False
        self.epoch = -1
        self.on_transition = on_transition
        self._config = config
        self._session: int | None = None
        self._retry_ms: int | None = None
        self._balance_ms: int | None = None
        self._clear()

    @property
    def context(self) -> ControllerContext:
        """What it knows; another object after every election and resignation. For reading only."""
        return self._term.context

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        """Take one event; see the module for what follows. Never raises a CoordinationError."""
        try:
            yield from self._take(event, now_ms)
            if self.active:
                yield from self._settle(now_ms)
        except SessionExpiredError:
            self._resign()
            yield StateChange("warning", f"broker {self.broker_id}: its session with the store has ended")
        except DeposedError as error:
            self._resign()
            self._retry_ms = now_ms  # at once, but in a step of its own
            yield StateChange("warning", f"broker {self.broker_id}: {error}")
        except CoordinationError as error:
            self._resign()
            self._retry_ms = now_ms + RETRY_MS
            yield StateChange("error", f"broker {self.broker_id} starts over: {error}")
        if isinstance(event, Received) and not self.active:
            yield Reply(event.reply_to, ControlledShutdownResponse(ErrorCode.NOT_CONTROLLER))

    def next_wakeup(self, now_ms: int) -> int | None:
        """When it wants the next Tick, at the latest; None while there is nothing to wait for."""
        times = (self._retry_ms, self._balance_ms if self.active else None)
        return min((time for time in times if time is not None), default=None)

    def _take(self, event: Event, now_ms: int) -> Steps[None]:
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
                yield from self._watch_fired(watched.path, now_ms)
            case ControlReplied():
                yield from self._control_replied(event)
            case Received(reply_to, ControlledShutdownRequest() as request):
                yield from self._controlled_shutdown(reply_to, request)
            case Tick():
                yield from self._tick(now_ms)
            case _:
                raise InvariantError(f"the controller takes no {type(event).__name__}")

    # Being elected, and resigning

    def _elect(self, now_ms: int) -> Steps[None]:
        """Become the controller if there is none, or if it is this very session (F28); else wait for its end."""
        self._retry_ms = None
        for _ in range(fencing.ATTEMPTS):
            if self._session is None:
                return
            (holder,) = yield GetNodes((nodes.CONTROLLER,), watch=True)
            if holder is not None and not self._is_mine(holder.stat.ephemeral_owner):
                return
            (epoch,) = yield GetNodes((nodes.CONTROLLER_EPOCH,))
            if epoch is None:
                yield from self._found_cluster()
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
            self._term = ControllerTerm(
                ControllerContext(self.broker_id, self.epoch, epoch.stat.version + 1, self.on_transition)
            )
            self.active = True
            yield StateChange("info", f"broker {self.broker_id} is the controller of epoch {self.epoch}")
            yield from self._failover(now_ms)
            return
        self._retry_ms = now_ms + RETRY_MS

    def _is_mine(self, owner: int) -> bool:
        """A reply was lost, or this controller starts over: nobody else will act while that node is there (F28)."""
        return owner == self._session

    def _found_cluster(self) -> Steps[None]:
        """The nodes that a new cluster needs, each on its own, since others make them at the same time."""
        for path in nodes.PERSISTENT:
            yield from _create(path, b"")
        yield from _create(nodes.CONTROLLER_EPOCH, b"0")

    def _resign(self) -> None:
        self.active = False
        self._balance_ms = None
        self._clear()

    def _clear(self) -> None:
        self._term = ControllerTerm(ControllerContext(self.broker_id, self.epoch, -1, self.on_transition))

    def _failover(self, now_ms: int) -> Steps[None]:
        """Read everything, repair what nobody has seen to, tell everybody, and go on with what was under way."""
        term, context = self._term, self._term.context
        noted, _ = yield from store_reader.isr_changes()  # before the states that they are about are read
        registrations = yield from store_reader.brokers()
        events = yield from store_reader.log_dir_events()
        yield from store_reader.fill(context)
        removed = yield from store_reader.tree(nodes.REMOVED)
        reassigned = yield from store_reader.tree(nodes.REASSIGNED)
        added = yield from store_reader.tree(nodes.ADDED)
        yield from term.deletion.take(context.deleting.copy(), removed)
        yield from term.brokers.take_over(registrations, events)
        yield from term.reassignment.take_over(reassigned)
        yield from term.machines.leader_and_isr.end_eligibility(context.everything())
        yield from term.machines.batch.send()
        yield from term.brokers.evacuate_stopping()
        yield from self._drop_together(noted)
        yield from term.deletion.resume()
        yield from term.reassignment.advance(list(context.reassignments))
        yield from term.topics.add(added)
        yield from term.preferred.on_request()
        yield from term.topics.sweep_all()
        if self._config.auto_leader_rebalance_enable:
            self._balance_ms = now_ms + self._config.leader_imbalance_check_interval_ms

    # Being the controller

    def _watch_fired(self, path: str, now_ms: int) -> Steps[None]:
        term = self._term
        if path == nodes.CONTROLLER:
            yield from self._controller_changed(now_ms)
        elif not self.active:
            return
        elif _under(path, nodes.BROKER_IDS):
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
            yield from term.topics.on_added()
        elif path == nodes.PREFERRED_ELECTION:
            yield from term.preferred.on_request()
        elif _under(path, nodes.ISR_CHANGES):
            yield from self._isr_changes()
        elif _under(path, nodes.LOG_DIR_EVENTS):
            yield from term.brokers.on_log_dir_events()
            yield from term.deletion.resume()

    def _controller_changed(self, now_ms: int) -> Steps[None]:
        """/controller came or went. While this one is active its own node must be there."""
        if not self.active:
            yield from self._elect(now_ms)
            return
        found: Nodes = yield GetNodes((nodes.CONTROLLER,), watch=True)
        if found[0] is None or not self._is_mine(found[0].stat.ephemeral_owner):
            raise DeposedError("/controller is no longer its own", path=nodes.CONTROLLER)

    def _isr_changes(self) -> Steps[None]:
        """Leaders changed ISRs: read them, and tell all brokers."""
        paths, changed = yield from store_reader.isr_changes()
        if not paths:
            return
        term = self._term
        yield from term.machines.leader_and_isr.refresh(changed)
        term.machines.batch.add_update_metadata(
            one for one in changed if term.context.knows(one) and not term.context.is_pending_deletion(one)
        )
        yield from term.machines.batch.send()
        yield from self._drop_together(paths)

    def _drop_together(self, paths: list[str]) -> Steps[None]:
        for some in fencing.chunks(paths, fencing.MAX_OPERATIONS - 1):
            try:
                yield from fencing.fenced(self.context, [Delete(path) for path in some])
            except NoNodeError:
                yield from self._term.topics.drop(some)

    def _control_replied(self, event: ControlReplied) -> Steps[None]:
        """A broker's answer to this controller, in this epoch; a stale broker epoch is told by a watch."""
        if not self.active or event.request.controller_epoch != self.epoch:
            return
        if event.response.error is ErrorCode.STALE_CONTROLLER_EPOCH:
            yield from self._check_epoch()
        registered = self.context.brokers.get(event.broker)
        if registered is None or registered.epoch != event.broker_epoch:
            return
        if event.response.error is not ErrorCode.NONE:
            return
        match event.request, event.response:
            case LeaderAndIsrRequest() as told, LeaderAndIsrResponse() as answer:
                yield from self._lead_anew(told, answer)
                failed = [
                    Replica(partition, event.broker)
                    for partition, error in answer.partitions
                    if error is ErrorCode.KAFKA_STORAGE_ERROR
                ]
                yield from self._term.brokers.on_storage_errors(failed)
                if failed:
                    yield from self._term.deletion.resume()
            case StopReplicaRequest() as request, StopReplicaResponse() as answer:
                yield from self._term.deletion.on_reply(event.broker, request, answer)

    def _lead_anew(self, told: LeaderAndIsrRequest, answer: LeaderAndIsrResponse) -> Steps[None]:
        """What a broker was told takes a new leader epoch: nobody leads twice in one, and what is promised to a leader
        holds until its epoch ends."""
        context, machines = self.context, self._term.machines
        epochs = {one.partition: one.state.leader_epoch for one in told.partitions}
        refused = [
            partition
            for partition, error in answer.partitions
            if error is ErrorCode.FENCED_LEADER_EPOCH
            and (state := context.states.get(partition)) is not None
            and state.leader_epoch == epochs.get(partition)
        ]
        if refused:
            yield from machines.leader_and_isr.update(refused, bump_leader_epoch)
            yield from machines.batch.send()

    def _check_epoch(self) -> Steps[None]:
        """A broker has heard of a later controller."""
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
            yield from self._term.preferred.on_imbalance(self._config.leader_imbalance_per_broker_percentage)

    def _retry_writes(self) -> Steps[None]:
        """What others kept writing is read, and judged, anew."""
        term, context = self._term, self._term.context
        partitions = [one for one in context.unsettled if context.knows(one)]
        context.unsettled.clear()
        yield from term.machines.leader_and_isr.refresh(partitions)
        staying = [partition for partition in partitions if not context.is_pending_deletion(partition)]
        yield from term.machines.partitions.handle_state_changes(staying, PartitionStatus.ONLINE, elect_offline)
        yield from term.machines.batch.send()
        yield from term.reassignment.advance(partitions)
        yield from term.deletion.resume()

    def _settle(self, now_ms: int) -> Steps[None]:
        """After every event: reassignments whose ISR has grown go on; what could not be written waits for a Tick."""
        context = self.context
        touched = [partition for partition in context.touched if partition in context.reassignments]
        context.touched.clear()
        yield from self._term.reassignment.advance(touched)
        if context.unsettled and self._retry_ms is None:
            self._retry_ms = now_ms + SETTLE_MS


def _raise_epoch(epoch: int, version: int) -> SetData:
    """Every controllership has an epoch of its own, by which all that it writes and sends is told from others'."""
    return SetData(nodes.CONTROLLER_EPOCH, str(epoch).encode(), version)


def _create(path: str, data: bytes) -> Steps[None]:
    try:
        yield Multi((Create(path, data),))
    except NodeExistsError:
        return


def _under(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def _name(path: str) -> str:
    return path.split("/")[3]
