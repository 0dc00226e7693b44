"""The partition state machine: which of its four states each partition is in, and who is made to lead it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kreplog.core import nodes
from kreplog.core.controller import election_policies, fencing
from kreplog.core.controller.context import ControllerContext, named
from kreplog.core.controller.election_policies import ElectionPolicy
from kreplog.core.controller.leader_and_isr_writer import LeaderAndIsrWriter
from kreplog.core.controller.request_batch import FIRST_LEADER_EPOCH, ControllerBrokerRequestBatch
from kreplog.core.controller.transitions import PARTITION_TRANSITIONS, PartitionStatus
from kreplog.core.effects import GetNodes, Nodes, StateChange, Steps
from kreplog.errors import NodeExistsError, NoNodeError
from kreplog.types import Create, LeaderAndIsr, TopicPartition


class PartitionStateMachine:
    """Moves partitions between the states of `transitions`; what brokers are to be told is collected in the batch."""

    def __init__(
        self, context: ControllerContext, batch: ControllerBrokerRequestBatch, writer: LeaderAndIsrWriter
    ) -> None:
        self._context = context
        self._batch = batch
        self._writer = writer

    def startup(self) -> None:
        """Give every partition its first state: Online where its leader lives, New where it never had one."""
        for name in self._context.topics:
            for partition in self._context.partitions_of(name):
                self._context.put_partition_status(partition, self._first_status(partition))

    def _first_status(self, partition: TopicPartition) -> PartitionStatus:
        if partition not in self._context.states:
            return PartitionStatus.NEW
        return PartitionStatus.ONLINE if self._context.has_leader(partition) else PartitionStatus.OFFLINE

    def handle_state_changes(
        self, partitions: Iterable[TopicPartition], target: PartitionStatus, choose: ElectionPolicy | None = None
    ) -> Steps[None]:
        """Move all `partitions` to `target`; those that may not go there from where they are stay as they are.

        OnlinePartition: a new one gets its leaderAndISR, any other the leader that `choose` (by default what the death
        of brokers asks for) gives it. Those whom nobody can lead stay as they are, or become Offline.
        The other states are known to the controller alone.
        """
        valid = yield from self._valid(partitions, target)
        if target is PartitionStatus.ONLINE:
            yield from self._create([one for one in valid if one not in self._context.states])
            yield from self._writer.update(
                [one for one in valid if not self._context.has_leader(one) or choose is not None],
                choose or election_policies.elect_offline,
            )
            yield from self._follow_leaders(valid)
            return
        for partition in valid:
            self._context.put_partition_status(partition, target)
        if valid:
            yield StateChange("info", f"{len(valid)} partitions are now {target}: {named(valid)}")

    def trigger_online(self) -> Steps[None]:
        """Try to have every partition led that is not, for one of its replicas may have returned."""
        waiting = [
            partition for partition in self._context.leaderless if not self._context.is_pending_deletion(partition)
        ]
        yield from self.handle_state_changes(waiting, PartitionStatus.ONLINE)

    def _follow_leaders(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Online with a leader that lives, Offline without, New without a state."""
        moved: dict[PartitionStatus, list[TopicPartition]] = {}
        for partition in partitions:
            status = self._first_status(partition)
            if status is not self._context.partition_status(partition):
                self._context.put_partition_status(partition, status)
                moved.setdefault(status, []).append(partition)
        for status, some in moved.items():
            yield StateChange("info", f"{len(some)} partitions are now {status}: {named(some)}")

    def _valid(self, partitions: Iterable[TopicPartition], target: PartitionStatus) -> Steps[list[TopicPartition]]:
        allowed = PARTITION_TRANSITIONS[target]
        valid = []
        for partition in dict.fromkeys(partitions):
            status = self._context.partition_status(partition)
            if status in allowed:
                valid.append(partition)
            else:
                yield StateChange("error", f"partition {partition} cannot become {target}: it is {status}")
        return valid

    def _create(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """Give new partitions their first leader, where a replica lives: the first, and all that live are in sync.

        A partition may have been created by a controller that failed then, or whose reply was lost: it is taken over.
        One whose number was removed earlier goes on with its leader epochs.
        """
        waiting = [partition for partition in partitions if self._context.can_lead(partition)]
        directories: dict[TopicPartition, int] = {}  # those that are there, with their first leader epoch
        for _ in range(fencing.ATTEMPTS):
            refused: list[TopicPartition] = []
            for some in fencing.chunks(waiting, (fencing.MAX_OPERATIONS - 1) // 2):
                states = [(one, self._first_state(one, directories.get(one, FIRST_LEADER_EPOCH))) for one in some]
                operations = [
                    create
                    for partition, state in states
                    for create in _creation(partition, state, partition in directories)
                ]
                try:
                    yield from fencing.fenced(self._context, operations)
                except (NodeExistsError, NoNodeError):
                    refused += some
                    continue
                for partition, state in states:
                    self._context.put_state(partition, state)
                    self._batch.add_leader_and_isr(partition, is_created=True)
                yield StateChange("info", f"{len(some)} partitions created: {named(some)}")
            if not refused:
                return
            found: Nodes = yield GetNodes(tuple(nodes.partition(partition) for partition in refused))
            directories = {
                partition: nodes.decode_number(nodes.partition(partition), node)
                for partition, node in zip(refused, found, strict=True)
                if node is not None
            }
            yield from self._writer.refresh(refused)
            for partition in refused:
                if partition in self._context.states:
                    self._batch.add_leader_and_isr(partition, is_created=True)
            waiting = [partition for partition in refused if partition not in self._context.states]
        self._context.unsettled.update(dict.fromkeys(waiting))
        yield StateChange("warning", f"{len(waiting)} partitions could not be created: {named(waiting)}")

    def _first_state(self, partition: TopicPartition, leader_epoch: int) -> LeaderAndIsr:
        live = self._context.can_lead(partition)
        return LeaderAndIsr(live[0], leader_epoch, tuple(sorted(live)), (), self._context.epoch)


def _creation(partition: TopicPartition, state: LeaderAndIsr, has_directory: bool) -> list[Create]:
    leaf = Create(nodes.leader_and_isr(partition), nodes.encode_leader_and_isr(state))
    return [leaf] if has_directory else [Create(nodes.partition(partition)), leaf]
