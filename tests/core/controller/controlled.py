"""A cluster for tests of the controller: real controller cores over the store in memory, and fake brokers.

Controllers run in sessions of their own (ids from 101 on), so that a controller can fail without a broker. A
controller's requests are delivered when its step ends, in order, and lost if it crashes in between.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.coord.memory import MemorySession, MemoryStore
from kreplog.core import nodes
from kreplog.core.controller import admin_operations
from kreplog.core.controller.context import PartitionAndReplica
from kreplog.core.controller.controller import Controller
from kreplog.core.controller.transitions import (
    PARTITION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    PartitionStatus,
    ReplicaStatus,
)
from kreplog.core.effects import (
    DrainControlChannels,
    Effect,
    GetChildren,
    GetNodes,
    Multi,
    Reply,
    SendControl,
    StateChange,
    UncleanElection,
)
from kreplog.core.events import ControlReplied, Event, Received, Registered, SessionLost, Tick, WatchFired
from kreplog.core.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from kreplog.errors import ErrorCode, KreplogError, NoNodeError
from kreplog.types import (
    NO_LEADER,
    BrokerRegistration,
    Check,
    Create,
    Delete,
    LeaderAndIsr,
    Node,
    SetData,
    StoreOperation,
    TopicPartition,
    WatchEvent,
)

TIMEOUT_MS = 6000


class FakeBroker:
    """Applies control requests by the rules of KIP-380 and KIP-570. As a leader it adds every live assigned replica to
    the ISR when catch_up() is called.

    replicas: on its disk. metadata: as clients would get it. broken: partitions on a failed disk.
    stuck: applies requests and never responds.
    """

    def __init__(self, cluster: Cluster, id: int) -> None:
        self.cluster = cluster
        self.id = id
        self.alive = False
        self.epoch = -1
        self.session: MemorySession | None = None
        self.replicas: dict[TopicPartition, PartitionState] = {}
        self.stopped: set[TopicPartition] = set()
        self.metadata: dict[TopicPartition, PartitionState] = {}
        self.known: tuple[int, ...] = ()
        self.controller_epoch = -1
        self.broken: set[TopicPartition] = set()
        self.stuck = False
        self.requests: list[ControlRequest] = []

    def start(self, *, unclean: bool = False, rack: str | None = None) -> None:
        store = self.cluster.store
        self.session = store.connect(TIMEOUT_MS)
        path = nodes.broker_epoch(self.id)
        if store.peek(path) is None:
            self.cluster.admin.create(path)
        node = store.peek(path)
        assert node is not None
        self.epoch = node.stat.version + 1
        content = BrokerRegistration(self.id, self.epoch, f"host{self.id}", 9092, rack, unclean=unclean)
        self.session.multi([Create(nodes.broker(self.id), nodes.encode_broker(content), True), SetData(path, b"")])
        self.alive = True
        self.metadata, self.controller_epoch, self.stopped = {}, -1, set()

    def stop(self) -> None:
        self.alive = False
        if self.session is not None:
            self.session.close()

    def mark_stopping(self) -> None:
        assert self.session is not None
        content = BrokerRegistration(self.id, self.epoch, f"host{self.id}", 9092, stopping=True)
        self.session.set_data(nodes.broker(self.id), nodes.encode_broker(content))

    def handle(self, request: ControlRequest) -> Any:
        if request.broker_epoch != self.epoch:
            return _refusal(request, ErrorCode.STALE_BROKER_EPOCH)
        if request.controller_epoch < self.controller_epoch:
            return _refusal(request, ErrorCode.STALE_CONTROLLER_EPOCH)
        self.controller_epoch = request.controller_epoch
        self.requests.append(request)
        match request:
            case LeaderAndIsrRequest():
                self.metadata.update((sent.partition, sent) for sent in request.partitions if self._knows(sent))
                results = [(sent.partition, self._lead_or_follow(sent)) for sent in request.partitions]
                if request.is_init:
                    named = {sent.partition for sent in request.partitions}
                    self.replicas = {
                        partition: replica for partition, replica in self.replicas.items() if partition in named
                    }
                return LeaderAndIsrResponse(ErrorCode.NONE, tuple(results))
            case UpdateMetadataRequest():
                self.known = tuple(broker.id for broker in request.brokers)
                for partition in request.deleted:
                    self.metadata.pop(partition, None)
                self.metadata.update((sent.partition, sent) for sent in request.partitions)
                return UpdateMetadataResponse(ErrorCode.NONE)
            case StopReplicaRequest():
                return StopReplicaResponse(
                    ErrorCode.NONE,
                    tuple((stop.partition, self._stop(stop.partition, stop.delete)) for stop in request.partitions),
                )

    def _knows(self, sent: PartitionState) -> bool:
        held = self.metadata.get(sent.partition)
        return held is not None and held.topic_id == sent.topic_id

    def _lead_or_follow(self, sent: PartitionState) -> ErrorCode:
        if sent.partition in self.broken:
            return ErrorCode.KAFKA_STORAGE_ERROR
        held = self.replicas.get(sent.partition)
        if held is not None and held.topic_id == sent.topic_id and held.state.leader_epoch > sent.state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        self.stopped.discard(sent.partition)
        self.replicas[sent.partition] = sent
        return ErrorCode.NONE

    def _stop(self, partition: TopicPartition, delete: bool) -> ErrorCode:
        if partition in self.broken:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self.stopped.add(partition)
        if delete:
            self.replicas.pop(partition, None)
        return ErrorCode.NONE

    def leads(self, partition: TopicPartition) -> bool:
        replica = self.replicas.get(partition)
        return self.alive and replica is not None and replica.state.leader == self.id

    def catch_up(self) -> bool:
        """Write every ISR that can grow; whether any did."""
        if not self.alive or self.session is None:
            return False
        grown = False
        for partition, replica in sorted(self.replicas.items()):
            if not self.leads(partition):
                continue
            node = self.cluster.store.peek(nodes.leader_and_isr(partition))
            if node is None:
                continue
            state = nodes.decode_leader_and_isr("", node)
            if (state.leader, state.leader_epoch) != (self.id, replica.state.leader_epoch):
                continue
            ready = {
                broker_id
                for broker_id in replica.replicas
                if (follower := self.cluster.brokers.get(broker_id)) is not None
                and follower.alive
                and partition in follower.replicas
                and partition not in follower.stopped | follower.broken
                and follower.replicas[partition].state.leader_epoch == state.leader_epoch
            }
            if ready - set(state.isr):
                self.write_isr(partition, sorted({*state.isr, *ready}))
                grown = True
        return grown

    def write_isr(self, partition: TopicPartition, isr: Iterable[int]) -> None:
        """As a leader does: conditional, with a notification for the controller."""
        assert self.session is not None
        path = nodes.leader_and_isr(partition)
        state = nodes.decode_leader_and_isr(path, self.session.get(path))
        new = state._replace(isr=tuple(isr), elr=())
        self.session.multi(
            [
                SetData(path, nodes.encode_leader_and_isr(new), state.partition_epoch),
                Create(f"{nodes.ISR_CHANGES}/change_", nodes.encode_partitions([partition]), sequential=True),
            ]
        )

    def lose_disk(self, partitions: Iterable[TopicPartition]) -> None:
        assert self.session is not None
        partitions = list(partitions)
        self.broken.update(partitions)
        data = nodes.encode_log_dir_event(self.id, partitions)
        self.session.create(f"{nodes.LOG_DIR_EVENTS}/event_", data, sequential=True)


class Crash(Exception):
    """The controller crashes here."""


class Box:
    """One controller with its session and queue. steps: effects carried out so far."""

    def __init__(self, cluster: Cluster, id: int, config: ReplicationConfig) -> None:
        self.cluster = cluster
        self.id = id
        self.session = cluster.store.connect(TIMEOUT_MS)
        self.core = Controller(id, config, self.transition)
        self.queue: deque[Event] = deque([Registered(0, self.session.id)])
        self.alive = True
        self.paused = False
        self.steps = 0
        self.replies: list[tuple[Any, Any]] = []
        self._outbox: list[SendControl] = []

    def acts(self) -> bool:
        """Whether it considers itself the controller."""
        return self.core.active

    def transition(self, changed: PartitionAndReplica | TopicPartition, old: str, new: str) -> None:
        """Every change is one of the tables', or a first state of a failover."""
        self.cluster.transitions.append((changed, old, new))
        if isinstance(changed, PartitionAndReplica):
            first = old == ReplicaStatus.NON_EXISTENT
            assert first or ReplicaStatus(old) in REPLICA_TRANSITIONS[ReplicaStatus(new)], (changed, old, new)
        else:
            first = old == PartitionStatus.NON_EXISTENT
            assert first or PartitionStatus(old) in PARTITION_TRANSITIONS[PartitionStatus(new)], (changed, old, new)

    def watch(self, event: WatchEvent) -> None:
        self.queue.append(WatchFired(event))

    def run_next(self) -> None:
        event = self.queue.popleft()
        steps = self.core.step(event, self.cluster.now_ms)
        answer: Any = None
        error: KreplogError | None = None
        try:
            while True:
                effect = steps.throw(error) if error is not None else steps.send(answer)
                answer, error = None, None
                if self.cluster.before(self, effect):
                    raise Crash
                try:
                    if self.cluster.lost is None or not self.cluster.unapplied:
                        answer = self.apply(effect)
                except KreplogError as failure:
                    error = failure
                self.steps += 1
                if self.cluster.after(self, effect):
                    raise Crash
                if self.cluster.lost is not None and isinstance(effect, Multi | GetNodes | GetChildren):
                    error, self.cluster.lost = error or self.cluster.lost, None
        except StopIteration:
            self.flush()
        except Crash:
            self._outbox.clear()
            self.die()

    def flush(self) -> None:
        for send in self._outbox:
            self.cluster.deliver(self, send)
        self._outbox.clear()

    def apply(self, effect: Effect) -> Any:
        match effect:
            case Multi(operations):
                before = {operation.path: self.cluster.store.peek(operation.path) for operation in operations}
                results = self.session.multi(operations)
                self.cluster.check_writes(self, operations, before)
                return results
            case GetNodes(paths, watch):
                if watch:
                    for path in paths:
                        self.session.exists(path, self.watch)
                return self.session.get_many(paths)
            case GetChildren(path, watch):
                try:
                    return self.session.children(path, self.watch if watch else None)
                except NoNodeError:
                    if watch:
                        self.session.exists(path, self.watch)
                    return None
            case SendControl():
                self._outbox.append(effect)
            case DrainControlChannels():
                pass  # each box has its turn at any time
            case Reply(reply_to, response):
                self.replies.append((reply_to, response))
            case StateChange(level, text):
                self.cluster.log.append((level, text))
            case UncleanElection():
                self.cluster.unclean.append(effect)
            case _:
                raise AssertionError(effect)
        return None

    def die(self) -> None:
        self.alive = False
        self.queue.clear()
        self.session.close()


class Cluster:
    """Brokers 1..n, and as many controllers as are started. run() continues until no event is left."""

    def __init__(self, brokers: Sequence[int] = (1, 2, 3), config: ReplicationConfig | None = None) -> None:
        self.store = MemoryStore()
        self.admin = self.store.connect(2**31 - 1)
        for path in nodes.PERSISTENT:
            self.admin.create(path)
        self.admin.create(nodes.CONTROLLER_EPOCH, b"0")
        self.config = config or ReplicationConfig()
        self.now_ms = 0
        self.brokers: dict[int, FakeBroker] = {}
        self.controllers: list[Box] = []
        self.log: list[tuple[str, str]] = []
        self.transitions: list[tuple[PartitionAndReplica | TopicPartition, str, str]] = []
        self.unclean: list[UncleanElection] = []
        self.before: Callable[[Box, Effect], bool] = lambda box, effect: False
        self.after: Callable[[Box, Effect], bool] = lambda box, effect: False
        self.lost: KreplogError | None = None
        self.unapplied = False
        self.unclean_allowed = False
        self.catching_up = True
        self.sent: list[SendControl] = []
        for id in brokers:
            self.broker(id).start()

    def broker(self, id: int) -> FakeBroker:
        return self.brokers.setdefault(id, FakeBroker(self, id))

    def start_controller(self) -> Box:
        box = Box(self, 101 + len(self.controllers), self.config)
        self.controllers.append(box)
        return box

    @property
    def controller(self) -> Controller:
        (box,) = [box for box in self.controllers if box.alive and box.core.active]
        return box.core

    @property
    def box(self) -> Box:
        (box,) = [box for box in self.controllers if box.alive and box.core.active]
        return box

    def deliver(self, box: Box, send: SendControl) -> None:
        self.sent.append(send)
        broker = self.brokers[send.broker]
        if broker.alive:
            response = broker.handle(send.request)
            if not broker.stuck and box.alive:
                box.queue.append(ControlReplied(send.broker, send.broker_epoch, send.request, response))

    def run(self) -> None:
        for _ in range(100_000):
            ready = [box for box in self.controllers if box.alive and not box.paused and box.queue]
            if ready:
                ready[0].run_next()
            elif not (self.catching_up and any(broker.catch_up() for broker in list(self.brokers.values()))):
                return
        raise AssertionError("the cluster does not come to rest")

    def tick(self, ms: int = 0) -> None:
        self.now_ms += ms
        for box in self.controllers:
            if box.alive and not box.paused:
                box.queue.append(Tick())
        self.run()

    def settle(self) -> None:
        """Run, with every Tick that is due within the next minute."""
        self.run()
        for _ in range(50):
            times = [box.core.next_wakeup(self.now_ms) for box in self.controllers if box.alive and not box.paused]
            due = [time for time in times if time is not None and time < self.now_ms + 60_000]
            if not due:
                return
            self.tick(max(0, min(due) - self.now_ms))

    # Administration

    def write(self, *operations: StoreOperation) -> None:
        self.admin.multi(operations)

    def create_topic(
        self, name: str, assignment: Mapping[int, Sequence[int]], config: TopicConfig | None = None, topic_id: str = ""
    ) -> None:
        brokers = {broker_id for replicas in assignment.values() for broker_id in replicas}
        self.write(
            *admin_operations.create_topic_operations(
                name, topic_id or f"id-{name}", assignment, config or TopicConfig(), brokers
            )
        )

    def delete_topic(self, name: str) -> None:
        self.write(*admin_operations.delete_topic_operations(name))

    def reassign(self, partition: TopicPartition, target: Sequence[int]) -> None:
        self.write(*admin_operations.reassign_operations(partition, target, target))

    def shut_down(self, broker: int, epoch: int | None = None) -> ControlledShutdownResponse:
        box = next((box for box in self.controllers if box.core.active), self.controllers[0])
        epoch = self.brokers[broker].epoch if epoch is None else epoch
        box.queue.append(Received("shutdown", ControlledShutdownRequest(broker, epoch)))
        self.run()
        (_, response) = box.replies[-1]
        assert isinstance(response, ControlledShutdownResponse)
        return response

    # Results

    def state(self, partition: TopicPartition) -> LeaderAndIsr:
        path = nodes.leader_and_isr(partition)
        return nodes.decode_leader_and_isr(path, self.node(path))

    def leader_and_isr(self, partition: TopicPartition) -> tuple[int, tuple[int, ...]]:
        state = self.state(partition)
        return state.leader, state.isr

    def assignment(self, partition: TopicPartition) -> nodes.Assignment:
        return self.topic(partition.topic).partitions[partition.partition]

    def topic(self, name: str) -> nodes.TopicNode:
        return nodes.decode_topic(nodes.topic(name), self.node(nodes.topic(name)))

    def node(self, path: str) -> Node:
        node = self.store.peek(path)
        assert node is not None, path
        return node

    def exists(self, path: str) -> bool:
        return self.store.peek(path) is not None

    def note_multis(self) -> list[Multi]:
        """A list to which every multi of a controller is added before it is made, from now on."""
        multis: list[Multi] = []

        def note(box: Box, effect: Effect) -> bool:
            if isinstance(effect, Multi):
                multis.append(effect)
            return False

        self.before = note
        return multis

    def check_writes(self, box: Box, operations: Sequence[StoreOperation], before: Mapping[str, Node | None]) -> None:
        """The invariants of every write of a controller (F27, KIP-966, F19)."""
        assert len(operations) <= 500
        if box.core.active:
            fence = operations[0]
            assert isinstance(fence, Check)
            assert (fence.path, fence.version) == (
                nodes.CONTROLLER_EPOCH,
                self.node(nodes.CONTROLLER_EPOCH).stat.version,
            )
        for operation in operations:
            path, old = operation.path, before[operation.path]
            if not isinstance(operation, SetData) or not path.endswith("leaderAndISR") or old is None:
                continue
            was, now = (nodes.decode_leader_and_isr(path, node) for node in (old, self.node(path)))
            assert operation.version == old.stat.version, "a write that is not conditional"
            assert now.leader_epoch == was.leader_epoch + 1
            assert now.controller_epoch == box.core.epoch
            assert now.leader == NO_LEADER or now.leader in now.isr
            assert not set(now.isr) & set(now.elr)
            assert now.isr or now.elr, "no replica is left that holds all committed records"
            if not self.unclean_allowed:
                assert set(now.isr) <= set(was.isr) or (len(now.isr) == 1 and now.isr[0] in was.elr)
                assert set(now.elr) <= {*was.isr, *was.elr}

    def errors(self) -> list[str]:
        return [text for level, text in self.log if level == "error"]

    def outcome(self) -> Any:
        """The outcome that is the same under any controller: without counts of writes and controllers."""
        tree: dict[str, Any] = {}
        for path, node in self.store.dump().items():
            if path in (nodes.CONTROLLER, nodes.CONTROLLER_EPOCH):
                continue
            if path.endswith("leaderAndISR"):
                state = nodes.decode_leader_and_isr(path, node)
                tree[path] = (state.leader, state.isr, state.elr)
            else:
                tree[path] = json.loads(node.data) if node.data else None
        context = self.controller.context
        brokers = {
            broker.id: (sorted(broker.replicas), sorted(broker.metadata))
            for broker in self.brokers.values()
            if broker.alive
        }
        return (
            tree,
            dict(sorted(context.replica_statuses.items())),
            dict(sorted(context.partition_statuses.items())),
            brokers,
        )

    def check(self) -> None:
        """The context agrees with the store, and the brokers with both."""
        context = self.controller.context
        for name in self.admin.children(nodes.TOPICS):
            assert context.topics[name] == self.topic(name)
            for number in context.topics[name].partitions:
                partition = TopicPartition(name, number)
                if self.exists(nodes.leader_and_isr(partition)):
                    assert context.states[partition] == self.state(partition)
        assert sorted(context.topics) == self.admin.children(nodes.TOPICS)
        assert sorted(context.brokers) == sorted(map(int, self.admin.children(nodes.BROKER_IDS)))
        assert not context.to_retry
        for broker in self.brokers.values():
            if not broker.alive:
                continue
            assigned = {
                partition for partition in context.active_partitions() if broker.id in context.replicas(partition)
            }
            assert assigned <= set(broker.replicas) | broker.broken
            extra = set(broker.replicas) - assigned
            for partition in extra:
                assert context.has_partition(partition), (broker.id, partition)
                assert context.is_pending_deletion(partition), (broker.id, partition)
            for partition in assigned - broker.broken - broker.stopped:
                held = broker.replicas[partition].state
                state = context.states[partition]
                assert (held.leader, held.leader_epoch) == (state.leader, state.leader_epoch), (broker.id, partition)
                flushes = context.config(partition.topic).flushes_every_record
                assert (held.flush_every_record, state.flush_every_record) == (flushes, flushes), (broker.id, partition)
            assert set(broker.metadata) == set(context.active_partitions())
            for partition, seen in broker.metadata.items():
                assert seen.state.leader == context.states[partition].leader
                assert seen.state.leader_epoch == context.states[partition].leader_epoch
            assert broker.known == tuple(sorted(context.brokers))


def _refusal(request: ControlRequest, error: ErrorCode) -> Any:
    match request:
        case LeaderAndIsrRequest():
            return LeaderAndIsrResponse(error)
        case UpdateMetadataRequest():
            return UpdateMetadataResponse(error)
        case StopReplicaRequest():
            return StopReplicaResponse(error)


__all__ = ["Box", "Check", "Cluster", "Crash", "Delete", "FakeBroker", "SessionLost"]
