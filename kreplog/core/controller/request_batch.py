"""Control requests to brokers, collected while states change and sent once: at most one request of a kind to each.

One request holds at most MAX_PARTITIONS_PER_REQUEST partitions, so that a broker does other work between two of them;
an INIT holds all. LeaderAndIsr goes before UpdateMetadata, so that clients are not sent to a leader that has not
applied it yet, and StopReplica goes last. A request holds the state of the context when it is sent, not when it was
queued. A partition that a broker hosts is in its LeaderAndIsr or in its UpdateMetadata, not in both. A new one is in
the UpdateMetadata of all brokers, so that no client sees a part of a topic; an INIT's UpdateMetadata holds all
partitions, so that a broker can drop others from its metadata.
Source: Kafka's ControllerBrokerRequestBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from kreplog.core.controller import fencing
from kreplog.core.controller.context import ControllerContext, PartitionAndReplica
from kreplog.core.controller.transitions import ReplicaStatus
from kreplog.core.effects import SendControl, Steps
from kreplog.core.messages import (
    BrokerConfigs,
    ControlRequest,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.types import NO_EPOCH, BrokerRegistration, TopicPartition

FIRST_LEADER_EPOCH = 0
"""The leader epoch of a partition that no controller has written since its creation."""

MAX_PARTITIONS_PER_REQUEST = 250
"""Maximum of partitions in one LeaderAndIsr or UpdateMetadata, except for an INIT."""

_TAKE_PART = (ReplicaStatus.NEW, ReplicaStatus.ONLINE)


class ControllerBrokerRequestBatch:
    """Collects and sends the requests of one batch. Nothing is sent to a broker that is not registered."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._sequence = 0
        self.clear()

    def clear(self) -> None:
        """Drop what has been collected."""
        self._changed: dict[TopicPartition, None] = {}
        self._requested: dict[PartitionAndReplica, None] = {}
        self._new: set[PartitionAndReplica] = set()
        self._init: dict[int, None] = {}
        self._stops: dict[int, dict[TopicPartition, StopReplica]] = {}
        self._metadata: dict[TopicPartition, None] = {}
        self._created: dict[TopicPartition, None] = {}
        self._deleted: dict[TopicPartition, None] = {}
        self._brokers_changed = False
        self._states: dict[TopicPartition, PartitionState] = {}

    def add_leader_and_isr(self, partition: TopicPartition, is_created: bool = False) -> None:
        """Send the state of `partition` to its replicas in LeaderAndIsr, and to all other brokers in UpdateMetadata."""
        self._changed[partition] = None
        self._metadata[partition] = None
        if is_created:
            self._created[partition] = None

    def add_leader_and_isr_for(self, replica: PartitionAndReplica, is_new: bool = False) -> None:
        """Send LeaderAndIsr to one replica."""
        self._requested[replica] = None
        if is_new:
            self._new.add(replica)

    def add_init(self, broker: int) -> None:
        """Send an INIT: the full state of the replicas of a broker; any others that it has are strays."""
        self._init[broker] = None
        self._brokers_changed = True

    def add_stop_replica(self, replica: PartitionAndReplica, delete: bool) -> None:
        """Send StopReplica for one replica; `delete`, which prevails over a mere stop, deletes its files."""
        partition, broker = replica
        if broker not in self._context.brokers:
            return
        stops = self._stops.setdefault(broker, {})
        held = stops.get(partition)
        state = self._context.states.get(partition)
        stops[partition] = StopReplica(
            partition,
            self._context.topic_id(partition),
            NO_EPOCH if state is None or partition.topic in self._context.deleting else state.leader_epoch,
            delete or (held is not None and held.delete),
        )

    def add_update_metadata(
        self, partitions: Iterable[TopicPartition] = (), deleted: Iterable[TopicPartition] = ()
    ) -> None:
        """Send UpdateMetadata with the live brokers, these partitions, and the deleted ones to all brokers."""
        self._metadata.update(dict.fromkeys(partitions))
        self._deleted.update(dict.fromkeys(deleted))
        self._brokers_changed = True

    def send(self) -> Steps[None]:
        """Queue the requests of all brokers, and begin the next batch."""
        context, by_broker = self._context, self._partition_states_by_broker()
        full_state = tuple(map(self._state, context.active_partitions())) if self._init else ()
        brokers, deleted = self._brokers(), tuple(self._deleted)
        for broker in brokers:
            hosted = by_broker[broker.id]
            if broker.id in self._init:
                yield self._leader_and_isr(broker, self._full_state_of(broker.id), is_init=True)
                metadata = [full_state]
            else:
                for piece in _pieces(hosted.values()):
                    yield self._leader_and_isr(broker, piece)
                in_leader_and_isr = hosted.keys() - self._created.keys()
                others = [
                    partition
                    for partition in self._metadata
                    if partition in context.states and partition not in in_leader_and_isr
                ]
                metadata = _pieces(map(self._state, others))
                if not metadata and (deleted or self._brokers_changed):
                    metadata = [()]
            for piece in metadata:
                yield self._send(broker, UpdateMetadataRequest, brokers, piece, deleted, **self._configs(broker))
            if broker.id in self._stops:
                yield self._send(broker, StopReplicaRequest, tuple(self._stops[broker.id].values()))
        self.clear()

    def send_leaders(self) -> Steps[None]:
        """Queue LeaderAndIsr of changed partitions to their replicas; an INIT is to follow."""
        by_broker = self._partition_states_by_broker()
        for broker in self._brokers():
            for piece in _pieces(by_broker[broker.id].values()):
                yield self._leader_and_isr(broker, piece)
        self._changed.clear()
        self._states.clear()

    def _brokers(self) -> tuple[BrokerRegistration, ...]:
        return tuple(self._context.brokers[broker] for broker in sorted(self._context.brokers))

    def _leader_and_isr(
        self, to: BrokerRegistration, states: tuple[PartitionState, ...], is_init: bool = False
    ) -> SendControl:
        return self._send(to, LeaderAndIsrRequest, states, is_init, **self._configs(to))

    def _configs(self, to: BrokerRegistration) -> dict[str, BrokerConfigs]:
        """The dynamic configs of the broker: every LeaderAndIsr and UpdateMetadata has them, so that no replica is ever
        opened under other settings."""
        return {"configs": self._context.broker_configs[to.id]}

    def _send(
        self, to: BrokerRegistration, kind: Callable[..., ControlRequest], *content: object, **configs: BrokerConfigs
    ) -> SendControl:
        self._sequence += 1
        head = (self._context.controller_id, self._context.epoch, to.epoch)
        return SendControl(to.id, to.epoch, kind(*head, *content, sequence=self._sequence, **configs))

    def _partition_states_by_broker(self) -> dict[int, dict[TopicPartition, PartitionState]]:
        """Content of each broker's LeaderAndIsr, unless it gets an INIT."""
        by_broker: dict[int, dict[TopicPartition, PartitionState]] = {broker: {} for broker in self._context.brokers}
        for replica in chain(self._recipients(), self._requested):
            if replica.broker in by_broker and replica.partition in self._context.states:
                by_broker[replica.broker][replica.partition] = self._state_for(replica)
        return by_broker

    def _recipients(self) -> Iterator[PartitionAndReplica]:
        context = self._context
        replicas = context.replicas_of(partition for partition in self._changed if partition in context.states)
        return (replica for replica in replicas if context.replica_status(replica) in _TAKE_PART)

    def _full_state_of(self, broker: int) -> tuple[PartitionState, ...]:
        """All replicas assigned to a broker, except for those pending deletion."""
        context = self._context
        return tuple(
            self._state_for(PartitionAndReplica(partition, broker))
            for partition in context.replicas_on.get(broker, ())
            if partition in context.states and not context.is_pending_deletion(partition)
        )

    def _state_for(self, replica: PartitionAndReplica) -> PartitionState:
        return self._state(replica.partition, is_new=self._may_be_created_empty(replica))

    def _may_be_created_empty(self, replica: PartitionAndReplica) -> bool:
        """Whether an empty log for the replica loses nothing: it has just been assigned, is joining by a reassignment,
        or its partition still has its first leader epoch."""
        state = self._context.states[replica.partition]
        adding = self._context.assignment(replica.partition).adding
        joining = replica.broker in adding and replica.broker not in state.isr
        return replica in self._new or joining or state.leader_epoch == FIRST_LEADER_EPOCH

    def _state(self, partition: TopicPartition, is_new: bool = False) -> PartitionState:
        partition_state = self._states.get(partition)
        if partition_state is None or partition_state.is_new != is_new:
            context = self._context
            assignment = context.assignment(partition)
            partition_state = self._states[partition] = PartitionState(
                partition,
                context.topic_id(partition),
                context.states[partition],
                assignment.replicas,
                assignment.adding,
                assignment.removing,
                is_new,
                context.config(partition.topic),
            )
        return partition_state


def _pieces(states: Iterable[PartitionState]) -> list[tuple[PartitionState, ...]]:
    return [tuple(piece) for piece in fencing.chunks(tuple(states), MAX_PARTITIONS_PER_REQUEST)]
