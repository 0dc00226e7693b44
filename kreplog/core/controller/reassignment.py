"""Partition reassignment: moves a partition to other brokers in two atomic writes, each one multi.

    requested  /admin/partitions_reassigned/[topic]/[partition] names the target
    joining    the topic's node lists adding and removing; the assigned replicas are the old ones, then the new ones;
               the leader gets a new epoch with them, and adds the new ones to the ISR as they catch up
    complete   when the whole target is in the ISR: one of the target leads, the ISR and the assigned replicas are the
               target, and the request is deleted; then the old replicas get StopReplica with delete

No write removes a replica from an ISR that would then be smaller than min.insync.replicas: a cancellation, or a request
for another target, waits until the replicas that stay have caught up.

The store alone says where a reassignment stands, so it continues after any failover. An old replica whose broker does
not get StopReplica is deleted by the INIT that the broker gets when it returns, or from the next controller.

The old replicas come first meanwhile, unlike Kafka's, so that a cancellation restores the old assignment exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kreplog.core import nodes
from kreplog.core.controller import fencing, leader_selectors
from kreplog.core.controller.assignment import check_replicas
from kreplog.core.controller.context import PartitionAndReplica
from kreplog.core.controller.election_policies import bump_leader_epoch, next_epoch, with_flush_setting
from kreplog.core.controller.leader_and_isr_writer import write_of
from kreplog.core.controller.leader_selectors import Election
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.store_reader import tree
from kreplog.core.controller.topic_changes import TopicChanges
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import GetNodes, Nodes, StateChange, Steps
from kreplog.core.nodes import Assignment
from kreplog.errors import BadVersionError, CoordinationError, NoNodeError, UsageError
from kreplog.types import Delete, LeaderAndIsr, Node, SetData, StoreOperation, TopicPartition

_PARTITIONS_OF_A_MULTI = (fencing.MAX_OPERATIONS - 2) // 2


class ReassignmentStep(NamedTuple):
    """The next write of one reassignment. state: None if it never had a leader. last: the request is completed."""

    assignment: Assignment
    state: LeaderAndIsr | None
    last: bool


class Reassignment:
    """Advances the reassignments that the context's `reassignments` name."""

    def __init__(self, machines: StateMachines, topics: TopicChanges) -> None:
        self._machines = machines
        self._context = machines.context
        self._topics = topics
        self._versions: dict[TopicPartition, int] = {}

    def on_requests(self) -> Steps[None]:
        """An administrator requests, changes or cancels a reassignment."""
        requests = yield from tree(nodes.REASSIGNED)
        if any(partition.topic not in self._context.topics for partition in requests):
            yield from self._topics.on_topics()
        yield from self.accept(requests)
        yield from self.advance(list(requests))

    def on_failover(self, requests: Mapping[TopicPartition, Node]) -> Steps[None]:
        """At a failover: resume requested reassignments, and those under way whose request is gone.

        The leaders of those under way get a new epoch, since they may not have received the replicas that join.
        """
        context = self._context
        under_way = [
            partition
            for name in context.topics
            for partition in context.partitions_of(name)
            if not context.is_pending_deletion(partition) and is_under_way(context.assignment(partition))
        ]
        context.reassignments.update((partition, context.assignment(partition).target) for partition in under_way)
        yield from self.accept(requests)
        yield from self._machines.leader_and_isr.update(under_way, bump_leader_epoch)

    def accept(self, requests: Mapping[TopicPartition, Node]) -> Steps[None]:
        """Record the requested targets in the context; reject illegal ones, so that a reassignment under way
        continues."""
        known = yield from self._topics.known_brokers(requests.values())
        refused: dict[TopicPartition, Node] = {}
        for partition, node in requests.items():
            try:
                target = nodes.decode_replicas(nodes.partition(partition, nodes.REASSIGNED), node)
                self._context.check_request(partition, node)
                self._check(partition, target, known)
            except (CoordinationError, UsageError) as error:
                yield StateChange("error", f"{partition} is not reassigned: {error}")
                refused[partition] = node
            else:
                self._context.reassignments[partition] = target
                self._versions[partition] = node.stat.version
        yield from self._topics.reject(nodes.REASSIGNED, refused)

    def _check(self, partition: TopicPartition, target: Sequence[int], known: Iterable[int]) -> None:
        if not self._context.has_partition(partition):
            raise UsageError("there is no such partition")
        if self._context.is_pending_deletion(partition):
            raise UsageError("it is being deleted")
        if target:
            check_replicas(partition, target, {*known, *self._context.replicas(partition)})

    def advance(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Take every step that is possible now."""
        partitions = list(partitions)
        for _ in range(fencing.ATTEMPTS):
            steps: dict[str, dict[TopicPartition, ReassignmentStep]] = {}
            for partition in partitions:
                step = self._next_step(partition)
                if step is not None:
                    steps.setdefault(partition.topic, {})[partition] = step
            if not steps:
                return
            for topic, by_partition in steps.items():
                for piece in fencing.chunks(list(by_partition), _PARTITIONS_OF_A_MULTI):
                    yield from self._write(topic, {partition: by_partition[partition] for partition in piece})
            yield from self._machines.batch.send()
        self._context.to_retry.update(dict.fromkeys(partitions))

    def _next_step(self, partition: TopicPartition) -> ReassignmentStep | None:
        """The next step, None while none is possible."""
        context = self._context
        if (
            partition not in context.reassignments
            or not context.has_partition(partition)
            or context.is_pending_deletion(partition)
        ):
            return None
        current, requested = context.assignment(partition), context.reassignments[partition]
        old = without_joining(current)
        target = requested or old
        if partition not in context.states:
            return ReassignmentStep(Assignment(target), None, last=True)
        if not requested or set(current.target) != set(target):
            adding = tuple(replica for replica in target if replica not in old)
            removing = tuple(replica for replica in old if replica not in target)
            return self._step(partition, Assignment(old + adding, adding, removing), last=not requested)
        if has_caught_up(context.states[partition], target):
            return self._step(partition, Assignment(target), last=True)
        return None

    def _step(self, partition: TopicPartition, assignment: Assignment, last: bool) -> ReassignmentStep | None:
        """A step after which the ISR contains assigned replicas only; None while no replica that stays can lead, or
        while fewer than min.insync.replicas of them are in the ISR."""
        context, current = self._context, self._context.states[partition]
        min_isr = context.config(partition.topic).min_isr(len(assignment.replicas))
        state = leader_selectors.reassigned(
            current, assignment.replicas, context.can_lead(partition), context.epoch, min_isr
        )
        if state is None and assignment.adding:
            staying = {*current.isr, *current.elr, current.leader}.issubset({*assignment.replicas, -1})
            state = next_epoch(context, current) if staying else None
        if state is None or (state.isr != current.isr and len(state.isr) < min_isr):
            return None
        return ReassignmentStep(assignment, with_flush_setting(context, partition, state), last)

    def _write(self, name: str, steps: dict[TopicPartition, ReassignmentStep]) -> Steps[None]:
        """Write the steps of one topic; if another writer was first, only read again."""
        context = self._context
        topic = context.topics[name]
        assignments = {partition.partition: step.assignment for partition, step in steps.items()}
        topic = replace(topic, partitions={**topic.partitions, **assignments})
        operations: list[StoreOperation] = [SetData(nodes.topic(name), nodes.encode_topic(topic), topic.version)]
        operations += [write_of(partition, step.state) for partition, step in steps.items() if step.state is not None]
        operations += [
            Delete(nodes.partition(partition, nodes.REASSIGNED), self._versions[partition])
            for partition, step in steps.items()
            if step.last and partition in self._versions
        ]
        try:
            yield from fencing.fenced(context, operations)
        except (BadVersionError, NoNodeError):
            yield from self._read_again(name, list(steps))
            return
        before = {partition: context.replicas(partition) for partition in steps}
        context.put_topic(name, replace(topic, version=topic.version + 1))
        for partition, step in steps.items():
            yield from self._on_written(partition, before[partition], step)
        yield from self._topics.delete_empty_directories(
            nodes.REASSIGNED, [name] if any(step.last for step in steps.values()) else []
        )

    def _on_written(self, partition: TopicPartition, before: tuple[int, ...], step: ReassignmentStep) -> Steps[None]:
        """Apply a step that has been written: start the replicas that join, delete those that leave."""
        now = step.assignment.replicas
        if step.state is not None:
            yield from self._machines.leader_and_isr.written(partition, Election(step.state))
        if step.last:
            self._context.reassignments.pop(partition, None)
            self._versions.pop(partition, None)
        joined = [PartitionAndReplica(partition, broker) for broker in now if broker not in before]
        yield from self._machines.replicas.handle_state_changes(joined, ReplicaStatus.NEW)
        yield from self._topics.start_new_replicas(joined)
        left = [PartitionAndReplica(partition, broker) for broker in before if broker not in now]
        for status in (
            ReplicaStatus.OFFLINE,
            ReplicaStatus.DELETION_STARTED,
            ReplicaStatus.DELETION_SUCCESSFUL,
            ReplicaStatus.NON_EXISTENT,
        ):
            yield from self._machines.replicas.handle_state_changes(left, status)
        if step.state is None:
            yield from self._machines.partitions.handle_state_changes([partition], PartitionStatus.ONLINE)
        text = "is reassigned" if step.last else "is being reassigned"
        yield StateChange("info", f"{partition} {text}: replicas {list(before)} become {list(now)}")

    def _read_again(self, name: str, partitions: Sequence[TopicPartition]) -> Steps[None]:
        yield from self._topics.reread(name)
        yield from self._machines.leader_and_isr.refresh(partitions)
        paths = tuple(nodes.partition(partition, nodes.REASSIGNED) for partition in partitions)
        found: Nodes = yield GetNodes(paths)
        for partition in partitions:
            self._versions.pop(partition, None)
        yield from self.accept(
            {partition: node for partition, node in zip(partitions, found, strict=True) if node is not None}
        )


def without_joining(assignment: Assignment) -> tuple[int, ...]:
    """The replicas that a reassignment began with, to which a cancellation returns."""
    return tuple(replica for replica in assignment.replicas if replica not in assignment.adding)


def is_under_way(assignment: Assignment) -> bool:
    """Whether replicas are still joining or leaving."""
    return bool(assignment.adding or assignment.removing)


def has_caught_up(state: LeaderAndIsr, target: Iterable[int]) -> bool:
    """Whether the whole target is in the ISR, so that the old replicas may go."""
    return all(replica in state.isr for replica in target)
