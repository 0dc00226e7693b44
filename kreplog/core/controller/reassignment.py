"""Moving a partition to other brokers, in two writes, each of them one multi and so wholly done or not at all.

    asked    /admin/partitions_reassigned/[topic]/[partition] names the target
    joining  the topic's node lists adding and removing; assigned replicas are the old ones and then the new; the leader
             gets a new epoch with them, and takes the new ones into the ISR as they catch up
    done     when all of the target are in the ISR: one of them leads, the ISR and the assigned replicas are the target,
             and the request is deleted; then the old replicas are told to delete themselves

Whoever leaves, nobody is taken out of an ISR that has fewer than min.insync.replicas left then: a request to cancel, or
for another target, waits until those who stay have caught up.

Where a reassignment stands can be read from the store alone, so it goes on after any failover. An old replica whose
broker does not hear of it is deleted by the INIT that it gets when it returns, or from the next controller.

The old replicas come first while it lasts, unlike Kafka's, so that what a cancellation leads back to is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kreplog.core import nodes
from kreplog.core.controller import fencing, selectors
from kreplog.core.controller.assignment import check_replicas
from kreplog.core.controller.context import Replica
from kreplog.core.controller.election_policies import bump_leader_epoch, next_epoch
from kreplog.core.controller.leader_and_isr_writer import write_of
from kreplog.core.controller.selectors import Election
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.store_reader import tree
from kreplog.core.controller.topic_changes import TopicChanges
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import GetNodes, Nodes, StateChange, Steps
from kreplog.core.nodes import Assignment
from kreplog.errors import BadVersionError, CoordinationError, NoNodeError, UsageError
from kreplog.types import Delete, LeaderAndIsr, Node, SetData, StoreOperation, TopicPartition

_PARTITIONS_OF_A_MULTI = (fencing.MAX_OPERATIONS - 2) // 2


class Move(NamedTuple):
    """The next write for one partition. state: None where it never had a leader. last: the request is fulfilled."""

    assignment: Assignment
    state: LeaderAndIsr | None
    last: bool


class Reassignment:
    """See the module. The context's `reassignments` say what is asked for."""

    def __init__(self, machines: StateMachines, topics: TopicChanges) -> None:
        self._machines = machines
        self._context = machines.context
        self._topics = topics
        self._versions: dict[TopicPartition, int] = {}

    def on_requests(self) -> Steps[None]:
        """Somebody asks for a reassignment, changes one, or cancels it."""
        asked = yield from tree(nodes.REASSIGNED)
        if any(partition.topic not in self._context.topics for partition in asked):
            yield from self._topics.on_topics()
        yield from self.take(asked)
        yield from self.advance(list(asked))

    def take_over(self, asked: Mapping[TopicPartition, Node]) -> Steps[None]:
        """At a failover: what is asked for, and what is under way though nobody asks for it any more.

        The leaders of those under way get a new epoch, since they may not have heard of the replicas that join.
        """
        context = self._context
        under_way = [
            partition
            for name in context.topics
            for partition in context.partitions_of(name)
            if not context.is_pending_deletion(partition) and is_under_way(context.assignment(partition))
        ]
        context.reassignments.update((partition, context.assignment(partition).target) for partition in under_way)
        yield from self.take(asked)
        yield from self._machines.leader_and_isr.update(under_way, bump_leader_epoch)

    def take(self, asked: Mapping[TopicPartition, Node]) -> Steps[None]:
        """Note what is asked for; refuse what cannot be done, whereupon a reassignment under way goes on."""
        known = yield from self._topics.known_brokers(asked.values())
        refused = []
        for partition, node in asked.items():
            try:
                target = nodes.decode_replicas(nodes.partition(partition, nodes.REASSIGNED), node)
                self._check(partition, target, known)
            except (CoordinationError, UsageError) as error:
                yield StateChange("error", f"{partition} is not reassigned: {error}")
                refused.append(partition)
            else:
                self._context.reassignments[partition] = target
                self._versions[partition] = node.stat.version
        yield from self._topics.refuse(nodes.REASSIGNED, refused)

    def _check(self, partition: TopicPartition, target: Sequence[int], known: Iterable[int]) -> None:
        if not self._context.knows(partition):
            raise UsageError("there is no such partition")
        if self._context.is_pending_deletion(partition):
            raise UsageError("it is being deleted")
        if target:
            check_replicas(partition, target, {*known, *self._context.replicas(partition)})

    def advance(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Take every next step that can be taken now."""
        partitions = list(partitions)
        for _ in range(fencing.ATTEMPTS):
            moves: dict[str, dict[TopicPartition, Move]] = {}
            for partition in partitions:
                move = self._plan(partition)
                if move is not None:
                    moves.setdefault(partition.topic, {})[partition] = move
            if not moves:
                return
            for topic, some in moves.items():
                for part in fencing.chunks(list(some), _PARTITIONS_OF_A_MULTI):
                    yield from self._carry_out(topic, {partition: some[partition] for partition in part})
            yield from self._machines.batch.send()
        self._context.unsettled.update(dict.fromkeys(partitions))

    def _plan(self, partition: TopicPartition) -> Move | None:
        """The next step, None while it cannot be taken."""
        context = self._context
        if (
            partition not in context.reassignments
            or not context.knows(partition)
            or context.is_pending_deletion(partition)
        ):
            return None
        current, asked = context.assignment(partition), context.reassignments[partition]
        old = tuple(replica for replica in current.replicas if replica not in current.adding)
        target = asked or old
        if partition not in context.states:
            return Move(Assignment(target), None, last=True)
        if not asked or set(current.target) != set(target):
            adding = tuple(replica for replica in target if replica not in old)
            removing = tuple(replica for replica in old if replica not in target)
            return self._move(partition, Assignment(old + adding, adding, removing), last=not asked)
        if has_caught_up(context.states[partition], target):
            return self._move(partition, Assignment(target), last=True)
        return None

    def _move(self, partition: TopicPartition, assignment: Assignment, last: bool) -> Move | None:
        """A step that leaves nobody in the ISR who is no longer assigned; None while nobody who stays can lead, or
        while too few who stay hold what is committed."""
        context, current = self._context, self._context.states[partition]
        min_isr = context.config(partition.topic).min_isr(len(assignment.replicas))
        state = selectors.reassigned(current, assignment.replicas, context.can_lead(partition), context.epoch, min_isr)
        if state is None and assignment.adding:
            staying = {*current.isr, *current.eligible, current.leader}.issubset({*assignment.replicas, -1})
            state = next_epoch(context, current) if staying else None
        if state is None or (state.isr != current.isr and len(state.isr) < min_isr):
            return None
        return Move(assignment, state, last)

    def _carry_out(self, name: str, moves: dict[TopicPartition, Move]) -> Steps[None]:
        """Write the moves of one topic; if somebody else wrote in between, only read anew."""
        context = self._context
        topic = context.topics[name]
        moved = {partition.partition: move.assignment for partition, move in moves.items()}
        topic = replace(topic, partitions={**topic.partitions, **moved})
        operations: list[StoreOperation] = [SetData(nodes.topic(name), nodes.encode_topic(topic), topic.version)]
        operations += [write_of(one, move.state) for one, move in moves.items() if move.state is not None]
        operations += [
            Delete(nodes.partition(one, nodes.REASSIGNED), self._versions[one])
            for one, move in moves.items()
            if move.last and one in self._versions
        ]
        try:
            yield from fencing.fenced(context, operations)
        except (BadVersionError, NoNodeError):
            yield from self._read_anew(name, list(moves))
            return
        before = {partition: context.replicas(partition) for partition in moves}
        context.put_topic(name, replace(topic, version=topic.version + 1))
        for partition, move in moves.items():
            yield from self._moved(partition, before[partition], move)
        yield from self._topics.sweep(nodes.REASSIGNED, [name] if any(move.last for move in moves.values()) else [])

    def _moved(self, partition: TopicPartition, before: tuple[int, ...], move: Move) -> Steps[None]:
        """Replicas join and leave, as has just been written."""
        now = move.assignment.replicas
        if move.state is not None:
            yield from self._machines.leader_and_isr.written(partition, Election(move.state))
        if move.last:
            self._context.reassignments.pop(partition, None)
            self._versions.pop(partition, None)
        joined = [Replica(partition, broker) for broker in now if broker not in before]
        yield from self._machines.replicas.handle_state_changes(joined, ReplicaStatus.NEW)
        yield from self._topics.settle_new(joined)
        left = [Replica(partition, broker) for broker in before if broker not in now]
        for status in (
            ReplicaStatus.OFFLINE,
            ReplicaStatus.DELETION_STARTED,
            ReplicaStatus.DELETION_SUCCESSFUL,
            ReplicaStatus.NON_EXISTENT,
        ):
            yield from self._machines.replicas.handle_state_changes(left, status)
        if move.state is None:
            yield from self._machines.partitions.handle_state_changes([partition], PartitionStatus.ONLINE)
        text = "is reassigned" if move.last else "is being reassigned"
        yield StateChange("info", f"{partition} {text}: replicas {list(before)} become {list(now)}")

    def _read_anew(self, name: str, partitions: Sequence[TopicPartition]) -> Steps[None]:
        yield from self._topics.reread(name)
        yield from self._machines.leader_and_isr.refresh(partitions)
        found: Nodes = yield GetNodes(tuple(nodes.partition(one, nodes.REASSIGNED) for one in partitions))
        for partition in partitions:
            self._versions.pop(partition, None)
        yield from self.take({one: node for one, node in zip(partitions, found, strict=True) if node is not None})


def is_under_way(assignment: Assignment) -> bool:
    """Whether replicas are still joining or leaving."""
    return bool(assignment.adding or assignment.removing)


def has_caught_up(state: LeaderAndIsr, target: Iterable[int]) -> bool:
    """Whether all of the target hold what is committed, so that the others may go."""
    return all(replica in state.isr for replica in target)
