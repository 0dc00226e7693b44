"""The replica state machine: the seven states of a replica, and the requests and writes that entering one causes."""

from __future__ import annotations

from collections.abc import Iterable

from kreplog.core.controller import election_policies
from kreplog.core.controller.context import ControllerContext, PartitionAndReplica, named
from kreplog.core.controller.leader_and_isr_writer import LeaderAndIsrWriter
from kreplog.core.controller.leader_selectors import Election
from kreplog.core.controller.request_batch import ControllerBrokerRequestBatch
from kreplog.core.controller.transitions import REPLICA_TRANSITIONS, ReplicaStatus
from kreplog.core.effects import StateChange, Steps
from kreplog.types import NO_LEADER, LeaderAndIsr, TopicPartition


class ReplicaStateMachine:
    """Moves replicas between the states of `transitions`; requests to brokers are collected in the batch."""

    def __init__(
        self, context: ControllerContext, batch: ControllerBrokerRequestBatch, writer: LeaderAndIsrWriter
    ) -> None:
        self._context = context
        self._batch = batch
        self._writer = writer

    def startup(self) -> None:
        """Give every replica its first state, from the store alone, so that it is the same for every controller.

        A replica is online if its broker is registered and its disk works. One pending deletion that is not waits,
        ineligible.
        """
        context = self._context
        for name in context.topics:
            for partition in context.partitions_of(name):
                offline = (
                    ReplicaStatus.DELETION_INELIGIBLE
                    if context.is_pending_deletion(partition)
                    else ReplicaStatus.OFFLINE
                )
                for broker in context.replicas(partition):
                    status = ReplicaStatus.ONLINE if context.is_online(partition, broker) else offline
                    context.put_replica_status(PartitionAndReplica(partition, broker), status)

    def handle_state_changes(self, replicas: Iterable[PartitionAndReplica], target: ReplicaStatus) -> Steps[None]:
        """Move all `replicas` to `target`; an illegal transition is reported and not made.

        NewReplica, OnlineReplica: sends LeaderAndIsr to the broker, once the partition has a leader.
        OfflineReplica: sends StopReplica to the broker, if it is registered; removes a follower from the ISR.
        ReplicaDeletionStarted: sends StopReplica with delete. The other states send and write nothing.
        """
        valid = yield from self._valid(replicas, target)
        match target:
            case ReplicaStatus.NEW:
                for replica in valid:
                    self._batch.add_leader_and_isr_for(replica, is_new=True)
            case ReplicaStatus.ONLINE:
                for replica in valid:
                    self._batch.add_leader_and_isr_for(replica)
            case ReplicaStatus.OFFLINE:
                for replica in valid:
                    self._batch.add_stop_replica(replica, delete=False)
                yield from self._leave_isr(valid)
            case ReplicaStatus.DELETION_STARTED:
                for replica in valid:
                    self._batch.add_stop_replica(replica, delete=True)
        for replica in valid:
            self._context.put_replica_status(replica, target)
        if valid:
            yield StateChange("info", f"{len(valid)} replicas are now {target}: {named(valid)}")

    def _valid(
        self, replicas: Iterable[PartitionAndReplica], target: ReplicaStatus
    ) -> Steps[list[PartitionAndReplica]]:
        allowed = REPLICA_TRANSITIONS[target]
        valid = []
        for replica in dict.fromkeys(replicas):
            status = self._context.replica_status(replica)
            if status in allowed:
                valid.append(replica)
            else:
                yield StateChange("error", f"replica {replica} cannot become {target}: it is {status}")
        return valid

    def _leave_isr(self, replicas: Iterable[PartitionAndReplica]) -> Steps[None]:
        """Remove followers from the ISR; a leader leaves it by the election of another."""
        leaving: dict[TopicPartition, list[int]] = {}
        for partition, broker in replicas:
            state = self._context.states.get(partition)
            if state is not None and broker in state.isr and not self._context.is_pending_deletion(partition):
                leaving.setdefault(partition, []).append(broker)

        def choose(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
            if current.leader == NO_LEADER or current.leader in leaving[partition]:
                return None
            return election_policies.shrink_isr(context, partition, current, leaving[partition])

        if leaving:
            yield from self._writer.update(leaving, choose)
