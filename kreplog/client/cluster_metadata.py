"""ClusterMetadata: brokers, topics and partition leaders as Metadata responses report them. Values alone, no I/O.

A broker may answer from metadata that are older than what another broker has answered already: a partition's leader
epoch never goes back here, unless the topic has another id. What a response says is checked before it is believed:
names, partition numbers, ports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kreplog.client.broker_client import Address
from kreplog.errors import ErrorCode, InvalidTopicError, PeerProtocolError
from kreplog.types import NO_EPOCH, NO_LEADER, TopicPartition, check_partition
from kreplog.wire import generic


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition as Metadata responses describe it. leader: broker id, NO_LEADER for none. leader_epoch: NO_EPOCH from
    brokers that do not report it. topic_id: "" from brokers without topic ids. replicas, isr: broker ids."""

    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    topic_id: str = ""
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The brokers, topics and leaders that a cluster has reported last. brokers: addresses of the live ones, by id.
    topic_errors: topics that a response reported an error for."""

    brokers: Mapping[int, Address] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, PartitionMetadata] = field(default_factory=dict)
    topic_errors: Mapping[str, ErrorCode] = field(default_factory=dict)

    def leader_of(self, partition: TopicPartition) -> int:
        """The broker id of its leader; NO_LEADER where it has none or its leader's address is unknown."""
        known = self.partitions.get(partition)
        return known.leader if known is not None and known.leader in self.brokers else NO_LEADER

    def denies(self, topic: str) -> bool:
        """Whether the client may not describe it."""
        return self.topic_errors.get(topic) is ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def topic_id_of(self, topic: str) -> str:
        """ "" where the topic is not known, or has none."""
        return next((known.topic_id for at, known in self.partitions.items() if at.topic == topic), "")

    def without_leader(self, partition: TopicPartition) -> ClusterMetadata:
        """The leader of `partition` is not what is reported here; the epoch stays, so that no older one returns."""
        known = self.partitions.get(partition)
        if known is None:
            return self
        changed = PartitionMetadata(NO_LEADER, known.leader_epoch, known.topic_id, known.replicas, known.isr)
        return ClusterMetadata(self.brokers, {**self.partitions, partition: changed}, self.topic_errors)

    def updated(self, response: Any) -> ClusterMetadata:
        """These metadata after a Metadata response of kreplog.wire.generic. Raises PeerProtocolError."""
        brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for broker_id, (host, port) in brokers.items():
            if broker_id < 0 or not host or not 0 < port < 65536:
                raise PeerProtocolError(f"metadata with broker {broker_id} at {host!r}:{port}")
        reported = {topic.name for topic in response.topics}
        errors = {name: error for name, error in self.topic_errors.items() if name not in reported}
        partitions = {at: known for at, known in self.partitions.items() if at.topic not in reported}
        for topic in response.topics:
            error = generic.error_of(topic.error_code)
            if error is not ErrorCode.NONE:
                errors[topic.name] = error
                if error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # nothing new is known of its partitions
                    partitions.update((at, known) for at, known in self.partitions.items() if at.topic == topic.name)
                continue
            for partition in topic.partitions:
                at = _checked(topic.name, partition.partition_index)
                partitions[at] = _newer(self.partitions.get(at), _partition_metadata(topic, partition))
        return ClusterMetadata(brokers, partitions, errors)


def _partition_metadata(topic: Any, partition: Any) -> PartitionMetadata:
    return PartitionMetadata(
        partition.leader_id,
        partition.leader_epoch,
        _topic_id(topic.topic_id),
        tuple(partition.replica_nodes),
        tuple(partition.isr_nodes),
    )


def _topic_id(value: Any) -> str:
    return "" if value is None or not any(value.bytes) else generic.topic_id(value)


def _newer(known: PartitionMetadata | None, reported: PartitionMetadata) -> PartitionMetadata:
    if known is None or known.topic_id != reported.topic_id or NO_EPOCH in (known.leader_epoch, reported.leader_epoch):
        return reported
    return known if reported.leader_epoch < known.leader_epoch else reported


def _checked(topic: Any, number: int) -> TopicPartition:
    try:
        return check_partition(TopicPartition(topic, number))
    except (InvalidTopicError, TypeError) as error:
        raise PeerProtocolError(f"metadata of {topic!r}, partition {number}: {error}") from None
