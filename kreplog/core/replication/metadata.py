"""MetadataCache: live brokers, leaders and replicas as controllers last sent them, so possibly stale.

Before the first UpdateMetadata, as after a restart that no controller notices, clients are answered from the
coordination store. Until either is known no topic is reported as unknown: a client would fail the records that it has
for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from kreplog.core.messages import PartitionState, UpdateMetadataRequest
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH, NO_LEADER, BrokerRegistration, TopicPartition, endpoints_of

NO_CONTROLLER = -1


class MetadataCache:
    """A broker's copy of the cluster metadata. brokers: those registered, by id. partitions: the newest states
    received. topics_version: another number whenever a partition appears or disappears. controller_id,
    controller_epoch: -1, none. from_store: brokers and partitions were read from the coordination store, for want of a
    controller.

    Changed by apply(), learn() and read() alone.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.topics_version = 0
        self._counts: Counter[str] = Counter()
        self.controller_id = NO_CONTROLLER
        self.controller_epoch = -1
        self.from_store = False

    @property
    def from_controller(self) -> bool:
        """Whether a controller has sent its metadata to this process."""
        return self.controller_epoch >= 0

    @property
    def has_source(self) -> bool:
        """Whether there are metadata, of a controller or the store."""
        return self.from_controller or self.from_store

    def read(self, brokers: Iterable[BrokerRegistration], states: Iterable[PartitionState], own_id: int) -> None:
        """Take in metadata read from the store, unless a controller has sent its own. This broker is never shown as a
        leader there: it leads nothing before a LeaderAndIsr."""
        if self.from_controller:
            return
        self.from_store = True
        self.brokers = {broker.id: broker for broker in brokers}
        self.partitions = {
            state.partition: state
            if state.state.leader != own_id
            else state._replace(state=state.state._replace(leader=NO_LEADER))
            for state in states
        }
        self._counts = Counter(partition.topic for partition in self.partitions)
        self.topics_version += 1

    def topics(self) -> Collection[str]:
        """The names of the topics in the cache."""
        return self._counts.keys()

    def partition_count(self, topic: str) -> int:
        """Number of partitions of a topic, 0 if it is not in the cache."""
        return self._counts[topic]

    def leader_of(self, partition: TopicPartition) -> int:
        """Id of the partition's leader; NO_LEADER if it has none or is not in the cache."""
        state = self.partitions.get(partition)
        return NO_LEADER if state is None else state.state.leader

    def topic_error(self, by_id: bool = False) -> ErrorCode:
        """The error for a topic that is not in the cache; retriable while the cache is empty for want of a source."""
        if not self.has_source:
            return ErrorCode.LEADER_NOT_AVAILABLE
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def replica_error(self, partition: TopicPartition, topic_id: str = "") -> ErrorCode:
        """The error for a partition that this broker has no replica of; retriable if it may be led elsewhere, or no
        controller has sent its metadata. topic_id: if it was requested by id (KIP-516). Source: Kafka,
        ReplicaManager.getPartitionOrError."""
        if not self.from_controller:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if topic_id and not self._is_id_of(partition.topic, topic_id):
            return ErrorCode.UNKNOWN_TOPIC_ID
        if partition not in self.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _is_id_of(self, topic: str, topic_id: str) -> bool:
        first = self.partitions.get(TopicPartition(topic, 0))  # every topic has a partition 0
        return first is not None and first.topic_id == topic_id

    def apply(self, request: UpdateMetadataRequest) -> ErrorCode:
        """STALE_CONTROLLER_EPOCH (nothing changed) or NONE. Whether it is meant for this registration (KIP-380) is the
        caller's to check. Source: F26, KIP-570."""
        if self.is_stale(request.controller_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.controller_epoch > self.controller_epoch:
            self._counts.clear()
            self.topics_version += 1
            self.partitions = {}  # a new controller first sends everything; deletions in between were not announced
        self.controller_id = request.controller_id
        self.controller_epoch = request.controller_epoch
        self.brokers = {broker.id: broker for broker in request.brokers}
        for partition in request.deleted:
            if self.partitions.pop(partition, None) is not None:
                self.topics_version += 1
                self._counts[partition.topic] -= 1
                if not self._counts[partition.topic]:
                    del self._counts[partition.topic]
        for state in request.partitions:
            held = self.partitions.get(state.partition)
            self._counts[state.partition.topic] += held is None
            self.topics_version += held is None or held.topic_id != state.topic_id
            if held is None or not is_older(state, held):
                self.partitions[state.partition] = state
        return ErrorCode.NONE

    def learn(self, states: Iterable[PartitionState]) -> None:
        """Take newer states of known partitions from a LeaderAndIsr, since no UpdateMetadata repeats them; new
        partitions arrive by UpdateMetadata alone."""
        for state in states:
            held = self.partitions.get(state.partition)
            if held is not None and held.topic_id == state.topic_id and not is_older(state, held):
                self.partitions[state.partition] = state

    def listed_brokers(self, own: Callable[[], BrokerRegistration]) -> Mapping[int, BrokerRegistration]:
        """The brokers that clients get, by id. own: returns this broker, which is among them also if no metadata have
        it yet, as where the store was read before it registered."""
        if self.from_controller and self.brokers:
            return self.brokers
        this = own()
        return {this.id: this} | self.brokers

    def is_stale(self, controller_epoch: int) -> bool:
        """Whether a controller of that epoch has been followed by another."""
        return controller_epoch < self.controller_epoch

    def is_alive(self, broker_id: int) -> bool:
        """Whether the broker is registered."""
        return broker_id in self.brokers

    def epoch_of(self, broker_id: int) -> int:
        """Broker epoch of a registered broker, -1 for one that is not registered."""
        broker = self.brokers.get(broker_id)
        return NO_EPOCH if broker is None else broker.epoch

    def can_join_isr(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that registration of a broker may join an ISR: it stands and is not stopping (F15, F16; KIP-841,
        KIP-903). Where the ISR is written this is checked again, against the store."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch and not broker.stopping

    def rack_of(self, broker_id: int) -> str | None:
        """broker.rack of a registered broker; None if it has none."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.rack

    def has_listeners_of(self, broker_id: int, other: int) -> bool:
        """Whether a client of the other broker can reach this one: it is registered, not stopping, and has all the
        other's listeners."""
        broker, others = self.brokers.get(broker_id), self.brokers.get(other)
        if broker is None or others is None or broker.stopping:
            return False
        listeners = {endpoint.listener for endpoint in endpoints_of(broker)}
        return all(endpoint.listener in listeners for endpoint in endpoints_of(others))


def is_older(state: PartitionState, held: PartitionState) -> bool:
    """Whether `state` is of the same topic (by id, KIP-516) and of an earlier leader or partition epoch."""
    return state.topic_id == held.topic_id and (state.state.leader_epoch, state.state.partition_epoch) < (
        held.state.leader_epoch,
        held.state.partition_epoch,
    )
