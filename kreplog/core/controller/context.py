"""The controller context: the content of the store, and the state of every replica and partition.

Read once at a failover, updated by every event after that, dropped when the controller resigns. All of it is derived
from the store, except for what brokers responded (a disk that failed, a replica that was deleted), which they respond
again. Sets that are iterated are dicts without values, so that the order never depends on hashing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from kreplog.config import BUILT_IN_DEFAULTS, NO_OWN_SETTINGS, TopicConfig
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.messages import BrokerConfigs, Configs
from kreplog.core.nodes import Assignment, TopicNode
from kreplog.core.topic_defaults import topic_defaults
from kreplog.errors import UsageError
from kreplog.types import NO_LEADER, BrokerRegistration, LeaderAndIsr, Node, TopicPartition


class PartitionAndReplica(NamedTuple):
    """One broker's copy of one partition."""

    partition: TopicPartition
    broker: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.broker}"


Observer = Callable[[PartitionAndReplica | TopicPartition, str, str], None]
"""Called with the replica or partition that has changed its state, the old state and the new one."""


class LogDirEvent(NamedTuple):
    """Replicas that a broker lost with a disk. created: the store's transaction, to compare with its registration."""

    path: str
    created: int
    broker: int
    partitions: tuple[TopicPartition, ...]


class ControllerContext:
    """The state of the cluster as the controller of one epoch knows it. Attributes are for reading; put_* and remove_*
    keep the indexes.

    controller_id: this broker. epoch, epoch_version: of /controller_epoch as won at the election.
    brokers: registrations that this controller has applied. registration_created: the store's transaction of each.
    broker_configs: the dynamic configs of each. last_readable_configs: of each node of dynamic configs, by path.
    failed_replicas: replicas on failed disks, by broker, until it registers again.
    topics, configs, states: content of the nodes. topic_defaults: what topics inherit. replicas_on: partitions assigned
    to a broker. deleting: topics to be deleted; removing: partitions to be removed. reassignments: the requested
    target, () to cancel. leaderless: partitions New or Offline. touched: partitions whose state was written or read
    since the last step. to_retry: partitions whose writes were refused too often, for the next Tick. elections: leaders
    elected.
    """

    def __init__(
        self,
        controller_id: int,
        epoch: int,
        epoch_version: int,
        observer: Observer | None = None,
        static_topic_defaults: TopicConfig = BUILT_IN_DEFAULTS,
    ) -> None:
        self.controller_id = controller_id
        self.epoch = epoch
        self.epoch_version = epoch_version
        self.brokers: dict[int, BrokerRegistration] = {}
        self.registration_created: dict[int, int] = {}
        self.broker_configs: dict[int, BrokerConfigs] = {}
        self.last_readable_configs: dict[str, Configs] = {}
        self.failed_replicas: dict[int, dict[TopicPartition, None]] = {}
        self.log_dir_events: tuple[LogDirEvent, ...] = ()
        self.topics: dict[str, TopicNode] = {}
        self.configs: dict[str, TopicConfig] = {}
        self.states: dict[TopicPartition, LeaderAndIsr] = {}
        self.replicas_on: dict[int, dict[TopicPartition, None]] = {}
        self.deleting: dict[str, None] = {}
        self.removing: dict[TopicPartition, None] = {}
        self.reassignments: dict[TopicPartition, tuple[int, ...]] = {}
        self.leaderless: dict[TopicPartition, None] = {}
        self.touched: dict[TopicPartition, None] = {}
        self.to_retry: dict[TopicPartition, None] = {}
        self.elections = 0
        self.partition_statuses: dict[TopicPartition, PartitionStatus] = {}
        self.replica_statuses: dict[PartitionAndReplica, ReplicaStatus] = {}
        self.topic_defaults = static_topic_defaults
        self._static_topic_defaults = static_topic_defaults
        self._effective: dict[str, tuple[TopicConfig, TopicConfig]] = {}
        self._observer = observer

    # Derived

    def has_partition(self, partition: TopicPartition) -> bool:
        """Whether its topic's node contains it; assignment, replicas and topic_id need that."""
        topic = self.topics.get(partition.topic)
        return topic is not None and partition.partition in topic.partitions

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in self.topics[topic].partitions]

    def assignment(self, partition: TopicPartition) -> Assignment:
        return self.topics[partition.topic].partitions[partition.partition]

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        return self.assignment(partition).replicas

    def topic_id(self, partition: TopicPartition) -> str:
        return self.topics[partition.topic].topic_id

    def config(self, topic: str) -> TopicConfig:
        """The topic's settings, the defaults where it has none of its own."""
        own = self.configs.get(topic, NO_OWN_SETTINGS)
        held = self._effective.get(topic)
        if held is None or held[0] is not own:
            held = self._effective[topic] = own, own.with_defaults(self.topic_defaults)
        return held[1]

    def min_isr(self, partition: TopicPartition) -> int:
        """min.insync.replicas, or the replication factor where that is smaller."""
        return self.config(partition.topic).min_isr(len(self.replicas(partition)))

    def unclean_allowed(self, partition: TopicPartition) -> bool:
        """Whether a replica that may lack committed records may lead: off unless the topic opts in (F19, KIP-106)."""
        return self.config(partition.topic).unclean_leader_election_enable

    def is_pending_deletion(self, partition: TopicPartition) -> bool:
        """Whether it is to be deleted, so that it gets no leader any more."""
        return partition.topic in self.deleting or partition in self.removing

    def check_request(self, partition: TopicPartition, request: Node) -> None:
        """Raises UsageError for a request about a partition that is older than its topic: it was accepted while an
        earlier topic of that name was being deleted."""
        topic = self.topics.get(partition.topic)
        if topic is not None and request.stat.modified < topic.created:
            raise UsageError("it was requested for an earlier topic of that name, which is deleted")

    def is_online(self, partition: TopicPartition, broker: int) -> bool:
        """Whether the broker is registered and its replica is not on a failed disk."""
        if broker not in self.brokers:
            return False
        return not self.failed_replicas or partition not in self.failed_replicas.get(broker, ())

    def can_lead(self, partition: TopicPartition) -> tuple[int, ...]:
        """Assigned replicas that can be elected: online, on a broker that is not shutting down (F15)."""
        replicas = self.replicas(partition)
        return tuple(
            [
                replica
                for replica in replicas
                if self.is_online(partition, replica) and not self.brokers[replica].stopping
            ]
        )

    def has_leader(self, partition: TopicPartition) -> bool:
        """Whether leaderAndISR names a leader, and its replica is online."""
        state = self.states.get(partition)
        return state is not None and state.leader != NO_LEADER and self.is_online(partition, state.leader)

    def replicas_of(self, partitions: Iterable[TopicPartition]) -> list[PartitionAndReplica]:
        return [
            PartitionAndReplica(partition, broker) for partition in partitions for broker in self.replicas(partition)
        ]

    def active_partitions(self) -> Iterator[TopicPartition]:
        """Partitions that have a leaderAndISR and are not pending deletion."""
        return (partition for partition in self.states if not self.is_pending_deletion(partition))

    # Updates

    def put_topic(self, name: str, topic: TopicNode) -> None:
        """Apply a topic's node; partitions that it no longer has need remove_partition."""
        held = self.topics.get(name)
        before = {} if held is None else held.partitions
        for number, assignment in topic.partitions.items():
            old = before.get(number)
            if old is assignment:
                continue
            partition = TopicPartition(name, number)
            for broker in () if old is None else old.replicas:
                self._unassign(partition, broker)
            for broker in assignment.replicas:
                self.replicas_on.setdefault(broker, {})[partition] = None
        self.topics[name] = topic

    def remove_partition(self, partition: TopicPartition) -> None:
        """Forget a partition whose replicas and status are NonExistent; put_topic the topic without it afterwards."""
        for broker in self.replicas(partition):
            self._unassign(partition, broker)
            self.failed_replicas.get(broker, {}).pop(partition, None)
        for index in (self.states, self.leaderless, self.touched, self.to_retry, self.removing, self.reassignments):
            index.pop(partition, None)

    def remove_topic(self, name: str) -> None:
        """Forget a topic whose replicas and partitions are NonExistent."""
        for partition in self.partitions_of(name):
            self.remove_partition(partition)
        del self.topics[name]
        self.configs.pop(name, None)
        self._effective.pop(name, None)
        self.deleting.pop(name, None)

    def topic_without(self, partition: TopicPartition) -> TopicNode:
        """The topic's node once `partition` is gone from it."""
        topic = self.topics[partition.topic]
        rest = {number: assigned for number, assigned in topic.partitions.items() if number != partition.partition}
        return replace(topic, partitions=rest)

    def put_topic_defaults(self, dynamic: Configs) -> list[str]:
        """Take the cluster-wide dynamic configs; return the topics whose settings are others then."""
        defaults = topic_defaults(self._static_topic_defaults, dynamic)
        if defaults == self.topic_defaults:
            return []
        before = [(name, self.config(name)) for name in self.topics]
        self.topic_defaults = defaults
        self._effective.clear()
        return [name for name, config in before if self.config(name) != config]

    def put_state(self, partition: TopicPartition, state: LeaderAndIsr) -> None:
        self.states[partition] = state
        self.touched[partition] = None

    def replica_status(self, replica: PartitionAndReplica) -> ReplicaStatus:
        return self.replica_statuses.get(replica, ReplicaStatus.NON_EXISTENT)

    def put_replica_status(self, replica: PartitionAndReplica, status: ReplicaStatus) -> None:
        """To be called by the state machine only."""
        old = self.replica_status(replica)
        if status is ReplicaStatus.NON_EXISTENT:
            self.replica_statuses.pop(replica, None)
        else:
            self.replica_statuses[replica] = status
        if self._observer is not None:
            self._observer(replica, old, status)

    def partition_status(self, partition: TopicPartition) -> PartitionStatus:
        return self.partition_statuses.get(partition, PartitionStatus.NON_EXISTENT)

    def put_partition_status(self, partition: TopicPartition, status: PartitionStatus) -> None:
        """To be called by the state machine only."""
        old = self.partition_status(partition)
        if status is PartitionStatus.NON_EXISTENT:
            self.partition_statuses.pop(partition, None)
        else:
            self.partition_statuses[partition] = status
        if status in (PartitionStatus.NEW, PartitionStatus.OFFLINE):
            self.leaderless[partition] = None
        else:
            self.leaderless.pop(partition, None)
        if self._observer is not None:
            self._observer(partition, old, status)

    def _unassign(self, partition: TopicPartition, broker: int) -> None:
        assigned = self.replicas_on.get(broker)
        if assigned is not None:
            assigned.pop(partition, None)
            if not assigned:
                del self.replicas_on[broker]


def named(items: Iterable[object], most: int = 5) -> str:
    """The first few names and the number of the others, for log lines."""
    names = [str(item) for item in items]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
