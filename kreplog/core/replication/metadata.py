"""What controllers have told this broker of the cluster: who lives, who leads what. Told, so possibly old."""

from __future__ import annotations

from collections.abc import Iterable

from kreplog.core.messages import PartitionState, UpdateMetadataRequest
from kreplog.errors import ErrorCode
from kreplog.types import Broker, TopicPartition

NO_CONTROLLER = -1


class MetadataCache:
    """brokers: those registered, by id. partitions: the newest state told. controller_id, controller_epoch: -1, none.

    To be read by anybody, changed by apply() and learn() alone.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, Broker] = {}
        self.partitions: dict[TopicPartition, PartitionState] = {}
        self.controller_id = NO_CONTROLLER
        self.controller_epoch = -1

    def apply(self, request: UpdateMetadataRequest) -> ErrorCode:
        """STALE_CONTROLLER_EPOCH (nothing changed) or NONE. Whether it is meant for this registration (KIP-380) is the
        caller's to check. Source: F26, KIP-570."""
        if self.is_stale(request.controller_epoch):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if request.controller_epoch > self.controller_epoch:
            self.partitions = {}  # what a new controller tells first is complete; some may be gone unannounced
        self.controller_id = request.controller_id
        self.controller_epoch = request.controller_epoch
        self.brokers = {broker.id: broker for broker in request.brokers}
        for partition in request.deleted:
            self.partitions.pop(partition, None)
        for state in request.partitions:
            held = self.partitions.get(state.partition)
            if held is None or not is_older(state, held):
                self.partitions[state.partition] = state
        return ErrorCode.NONE

    def learn(self, states: Iterable[PartitionState]) -> None:
        """What a LeaderAndIsr says of those that are known is not said again; what is new, an UpdateMetadata tells."""
        for state in states:
            held = self.partitions.get(state.partition)
            if held is not None and held.topic_id == state.topic_id and not is_older(state, held):
                self.partitions[state.partition] = state

    def is_stale(self, controller_epoch: int) -> bool:
        """Whether a controller of that epoch has been followed by another."""
        return controller_epoch < self.controller_epoch

    def lives(self, broker_id: int) -> bool:
        """Whether it is registered."""
        return broker_id in self.brokers

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether that registration of a broker may join an ISR: it stands and is not stopping (F15, F16; KIP-841,
        KIP-903). Where the ISR is written this is checked again, against the store."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch and not broker.stopping


def is_older(state: PartitionState, held: PartitionState) -> bool:
    """Of the same topic (not one of the same name, KIP-516), and of an earlier leader or partition epoch."""
    return state.topic_id == held.topic_id and (state.state.leader_epoch, state.state.partition_epoch) < (
        held.state.leader_epoch,
        held.state.partition_epoch,
    )
