"""The partition state machine: the four states of a partition, and the election of its leaders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kreplog.core import nodes
from kreplog.core.controller import election_policies, fencing
from kreplog.core.controller.context import ControllerContext, named
from kreplog.core.controller.election_policies import ElectionPolicy, with_flush_setting
from kreplog.core.controller.leader_and_isr_writer import LeaderAndIsrWriter
from kreplog.core.controller.request_batch import FIRST_LEADER_EPOCH, ControllerBrokerRequestBatch
from kreplog.core.controller.transitions import PARTITION_TRANSITIONS, PartitionStatus
from kreplog.core.effects import GetNodes, Nodes, StateChange, Steps
from kreplog.errors import NodeExistsError, NoNodeError
from kreplog.types import Create, LeaderAndIsr, TopicPartition


class PartitionStateMachine:
    """Moves partitions between the states of `transitions`; requests to brokers are collected in the batch."""

    def __init__(
        self, context: ControllerContext, batch: ControllerBrokerRequestBatch, writer: LeaderAndIsrWriter
    ) -> None:
        self._context = context
        self._batch = batch
        self._writer = writer

    def startup(self) -> None:
        """Give every partition its first state: Online if its leader is online, New if it never had a leader."""
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
        """Move all `partitions` to `target`; an illegal transition is reported and not made.

        OnlinePartition: creates the leaderAndISR of a new partition, and elects a leader of any other by `choose`, by
        default elect_offline. A partition that no replica can lead keeps its state, or becomes Offline.
        The other states send and write nothing.
        """
        valid = yield from self._valid(partitions, target)
        if target is PartitionStatus.ONLINE:
            yield from self._create([partition for partition in valid if partition not in self._context.states])
            yield from self._writer.update(
                [partition for partition in valid if not self._context.has_leader(partition) or choose is not None],
                choose or election_policies.elect_offline,
            )
            yield from self._follow_leaders(valid)
            return
        for partition in valid:
            self._context.put_partition_status(partition, target)
        if valid:
            yield StateChange("info", f"{len(valid)} partitions are now {target}: {named(valid)}")

    def trigger_online(self) -> Steps[None]:
        """Elect leaders of all leaderless partitions that can have one now, as after the return of a broker."""
        waiting = [
            partition for partition in self._context.leaderless if not self._context.is_pending_deletion(partition)
        ]
        yield from self.handle_state_changes(waiting, PartitionStatus.ONLINE)

    def _follow_leaders(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Set Online for partitions whose leader is online, New for those without a state, Offline for the others."""
        moved: dict[PartitionStatus, list[TopicPartition]] = {}
        for partition in partitions:
            status = self._first_status(partition)
            if status is not self._context.partition_status(partition):
                self._context.put_partition_status(partition, status)
                moved.setdefault(status, []).append(partition)
        for status, changed in moved.items():
            yield StateChange("info", f"{len(changed)} partitions are now {status}: {named(changed)}")

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
        """Create the leaderAndISR of new partitions: the first live replica leads, all live replicas are in sync.

        The node of a partition may exist, written by a controller that failed then, or whose reply was lost: it is
        adopted. A partition whose number was removed earlier continues its leader epochs.
        """
        waiting = [partition for partition in partitions if self._context.can_lead(partition)]
        directories: dict[TopicPartition, int] = {}  # existing ones, with their first leader epoch
        for _ in range(fencing.ATTEMPTS):
            refused: list[TopicPartition] = []
            for chunk in fencing.chunks(waiting, (fencing.MAX_OPERATIONS - 1) // 2):
                states = [
                    (partition, self._first_state(partition, directories.get(partition, FIRST_LEADER_EPOCH)))
                    for partition in chunk
                ]
                operations = [
                    create
                    for partition, state in states
                    for create in _creation(partition, state, partition in directories)
                ]
                try:
                    yield from fencing.fenced(self._context, operations)
                except (NodeExistsError, NoNodeError):
                    refused += chunk
                    continue
                for partition, state in states:
                    self._context.put_state(partition, state)
                    self._batch.add_leader_and_isr(partition, is_created=True)
                yield StateChange("info", f"{len(chunk)} partitions created: {named(chunk)}")
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
        self._context.to_retry.update(dict.fromkeys(waiting))
        yield StateChange("warning", f"{len(waiting)} partitions could not be created: {named(waiting)}")

    def _first_state(self, partition: TopicPartition, leader_epoch: int) -> LeaderAndIsr:
        live = self._context.can_lead(partition)
        state = LeaderAndIsr(live[0], leader_epoch, tuple(sorted(live)), (), self._context.epoch)
        return with_flush_setting(self._context, partition, state)


def _creation(partition: TopicPartition, state: LeaderAndIsr, has_directory: bool) -> list[Create]:
    leaf = Create(nodes.leader_and_isr(partition), nodes.encode_leader_and_isr(state))
    return [leaf] if has_directory else [Create(nodes.partition(partition)), leaf]
