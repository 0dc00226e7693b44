"""The two state machines over one context, with the writer of leaderAndISR and the batch of requests that they
share."""

from __future__ import annotations

from kreplog.core.controller.context import ControllerContext
from kreplog.core.controller.leader_and_isr_writer import LeaderAndIsrWriter
from kreplog.core.controller.partition_state_machine import PartitionStateMachine
from kreplog.core.controller.replica_state_machine import ReplicaStateMachine
from kreplog.core.controller.request_batch import ControllerBrokerRequestBatch


class StateMachines:
    """Made at a failover and dropped with the context."""

    def __init__(self, context: ControllerContext) -> None:
        self.context = context
        self.batch = ControllerBrokerRequestBatch(context)
        self.leader_and_isr = LeaderAndIsrWriter(context, self.batch)
        self.replicas = ReplicaStateMachine(context, self.batch, self.leader_and_isr)
        self.partitions = PartitionStateMachine(context, self.batch, self.leader_and_isr)

    def startup(self) -> None:
        """Give every replica and partition its first state."""
        self.replicas.startup()
        self.partitions.startup()
