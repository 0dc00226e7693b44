"""Control requests to brokers, collected while states change and sent once: at most one request of a kind to each.

One request holds at most MAX_PARTITIONS_PER_REQUEST partitions, so that a broker does other work between two of them;
an INIT holds all. LeaderAndIsr goes before UpdateMetadata, so that clients are not sent to a leader that has not
applied it yet, and StopReplica goes last. A request holds what the context has when it is sent, not when it was
queued. A partition that a broker knows is in its LeaderAndIsr or in its UpdateMetadata, not in both. A new one is in an
UpdateMetadata for all brokers, so that no client sees a part of a topic; an INIT's UpdateMetadata is whole, so that a
broker can forget what else it holds.
Source: Kafka's ControllerBrokerRequestBatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from kreplog.core.controller import fencing
from kreplog.core.controller.context import ControllerContext, Replica
from kreplog.core.controller.transitions import ReplicaStatus
from kreplog.core.effects import SendControl, Steps
from kreplog.core.messages import (
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
"""So many partitions a request tells of, at most."""

_TAKE_PART = (ReplicaStatus.NEW, ReplicaStatus.ONLINE)


class ControllerBrokerRequestBatch:
    """See the module. Nothing is sent to a broker that is not registered."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._sequence = 0
        self.clear()

    def clear(self) -> None:
        """Forget what has been collected."""
        self._changed: dict[TopicPartition, None] = {}
        self._told: dict[Replica, None] = {}
        self._new: set[Replica] = set()
        self._init: dict[int, None] = {}
        self._stops: dict[int, dict[TopicPartition, StopReplica]] = {}
        self._metadata: dict[TopicPartition, None] = {}
        self._created: dict[TopicPartition, None] = {}
        self._deleted: dict[TopicPartition, None] = {}
        self._brokers_changed = False
        self._states: dict[TopicPartition, PartitionState] = {}

    def add_leader_and_isr(self, partition: TopicPartition, is_created: bool = False) -> None:
        """Tell all replicas that take part in `partition` who leads it, and all brokers for their clients."""
        self._changed[partition] = None
        self._metadata[partition] = None
        if is_created:
            self._created[partition] = None

    def add_leader_and_isr_for(self, replica: Replica, is_new: bool = False) -> None:
        """Tell one replica."""
        self._told[replica] = None
        if is_new:
            self._new.add(replica)

    def add_init(self, broker: int) -> None:
        """Tell a broker everything: all that it should have, and what else it has is no longer its own."""
        self._init[broker] = None
        self._brokers_changed = True

    def add_stop_replica(self, replica: Replica, delete: bool) -> None:
        """Stop one replica; with `delete`, which outweighs a mere stop, its files go too."""
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
        """Tell all brokers which brokers live, and these partitions, and that those are gone."""
        self._metadata.update(dict.fromkeys(partitions))
        self._deleted.update(dict.fromkeys(deleted))
        self._brokers_changed = True

    def send(self) -> Steps[None]:
        """Queue the requests of all brokers, and begin the next batch."""
        context, told = self._context, self._grouped()
        everything = tuple(self._state(one) for one in context.everything()) if self._init else ()
        brokers, deleted = self._brokers(), tuple(self._deleted)
        for broker in brokers:
            mine = told[broker.id]
            if broker.id in self._init:
                yield self._leader_and_isr(broker, self._everything_on(broker.id), is_init=True)
                metadata = [everything]
            else:
                for some in _pieces(mine.values()):
                    yield self._leader_and_isr(broker, some)
                known = mine.keys() - self._created.keys()
                news = [one for one in self._metadata if one in context.states and one not in known]
                metadata = _pieces(map(self._state, news))
                if not metadata and (deleted or self._brokers_changed):
                    metadata = [()]
            for some in metadata:
                yield self._send(broker, UpdateMetadataRequest, brokers, some, deleted)
            if broker.id in self._stops:
                yield self._send(broker, StopReplicaRequest, tuple(self._stops[broker.id].values()))
        self.clear()

    def send_leaders(self) -> Steps[None]:
        """Queue what those are to be told who take part in changed partitions; an INIT of everything is to follow."""
        told = self._grouped()
        for broker in self._brokers():
            for some in _pieces(told[broker.id].values()):
                yield self._leader_and_isr(broker, some)
        self._changed.clear()
        self._states.clear()

    def _brokers(self) -> tuple[BrokerRegistration, ...]:
        return tuple(self._context.brokers[broker] for broker in sorted(self._context.brokers))

    def _leader_and_isr(
        self, to: BrokerRegistration, states: tuple[PartitionState, ...], is_init: bool = False
    ) -> SendControl:
        return self._send(to, LeaderAndIsrRequest, states, is_init)

    def _send(self, to: BrokerRegistration, kind: Callable[..., ControlRequest], *content: object) -> SendControl:
        self._sequence += 1
        head = (self._context.controller_id, self._context.epoch, to.epoch)
        return SendControl(to.id, to.epoch, kind(*head, *content, sequence=self._sequence))

    def _grouped(self) -> dict[int, dict[TopicPartition, PartitionState]]:
        """What each broker is told in its LeaderAndIsr, unless it gets an INIT."""
        told: dict[int, dict[TopicPartition, PartitionState]] = {broker: {} for broker in self._context.brokers}
        for replica in chain(self._recipients(), self._told):
            if replica.broker in told and replica.partition in self._context.states:
                told[replica.broker][replica.partition] = self._told_to(replica)
        return told

    def _recipients(self) -> Iterator[Replica]:
        context = self._context
        replicas = context.replicas_of(one for one in self._changed if one in context.states)
        return (replica for replica in replicas if context.replica_status(replica) in _TAKE_PART)

    def _everything_on(self, broker: int) -> tuple[PartitionState, ...]:
        """All that a broker should have, in no part of a topic that is being deleted."""
        context = self._context
        return tuple(
            self._told_to(Replica(partition, broker))
            for partition in context.replicas_on.get(broker, ())
            if partition in context.states and not context.is_pending_deletion(partition)
        )

    def _told_to(self, replica: Replica) -> PartitionState:
        return self._state(replica.partition, is_new=self._may_be_made(replica))

    def _may_be_made(self, replica: Replica) -> bool:
        """Whether nothing can be lost if the replica is made from nothing: it has just been assigned, is joining by a
        reassignment, or nothing has happened to its partition since that was created."""
        state = self._context.states[replica.partition]
        adding = self._context.assignment(replica.partition).adding
        joining = replica.broker in adding and replica.broker not in state.isr
        return replica in self._new or joining or state.leader_epoch == FIRST_LEADER_EPOCH

    def _state(self, partition: TopicPartition, is_new: bool = False) -> PartitionState:
        told = self._states.get(partition)
        if told is None or told.is_new != is_new:
            context = self._context
            assignment = context.assignment(partition)
            told = self._states[partition] = PartitionState(
                partition,
                context.topic_id(partition),
                context.states[partition],
                assignment.replicas,
                assignment.adding,
                assignment.removing,
                is_new,
                context.config(partition.topic),
            )
        return told


def _pieces(states: Iterable[PartitionState]) -> list[tuple[PartitionState, ...]]:
    return [tuple(some) for some in fencing.chunks(tuple(states), MAX_PARTITIONS_PER_REQUEST)]
