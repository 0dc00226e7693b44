"""Deleting topics, and single partitions: every replica is deleted by its broker before the store forgets them.

    Online/New/Offline --StopReplica(delete=False)--> Offline --StopReplica(delete=True)--> DeletionStarted
    DeletionStarted --answered--> DeletionSuccessful; --failed, or the broker died--> DeletionIneligible
    DeletionIneligible --its broker registers anew--> Offline, and so on
    all DeletionSuccessful --the topic's nodes are deleted--> NonExistent

Nothing but the request itself (/admin/delete_topics, /admin/partitions_remove) says that a deletion is under way: the
next controller begins again, and brokers that have deleted a replica already say so. The nodes go in several multis,
the request and the topic's node in the last, so that whoever follows a controller that dies in between goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kreplog.core import nodes
from kreplog.core.controller import fencing, store_reader
from kreplog.core.controller.context import Replica, named
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.topic_changes import TopicChanges
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import GetChildren, StateChange, Steps
from kreplog.core.messages import StopReplicaRequest, StopReplicaResponse
from kreplog.errors import BadVersionError, ErrorCode, NoNodeError, NotEmptyError
from kreplog.types import Delete, SetData, StoreOperation, TopicPartition

_DONE = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Deletion:
    """See the module."""

    def __init__(self, machines: StateMachines, topics: TopicChanges) -> None:
        self._machines = machines
        self._context = machines.context
        self._batch = machines.batch
        self._topics = topics
        self._begun: dict[TopicPartition, None] = {}

    def on_requests(self) -> Steps[None]:
        """Somebody wants topics or partitions deleted."""
        context = self._context
        asked = yield from store_reader.children(nodes.DELETED_TOPICS)
        removed = yield from store_reader.tree(nodes.REMOVED)
        if any(name not in context.topics for name in [*asked, *(partition.topic for partition in removed)]):
            yield from self._topics.on_topics()
        yield from self.take(asked, removed)
        yield from self.resume()

    def take(self, asked: Iterable[str], removed: Iterable[TopicPartition]) -> Steps[None]:
        """Note what is to be deleted, and refuse what is not there."""
        context = self._context
        unknown, refused = [], []
        for name in asked:
            if name in context.topics:
                context.deleting[name] = None
            else:
                context.deleting.pop(name, None)
                unknown.append(f"{nodes.DELETED_TOPICS}/{name}")
                yield StateChange("warning", f"topic {name} is to be deleted, but there is none")
        for partition in removed:
            reason = self._refusal(partition)
            if reason:
                refused.append(partition)
                yield StateChange("error", f"{partition} is not removed: {reason}")
            else:
                context.removing[partition] = None
        yield from self._topics.drop(unknown)
        yield from self._topics.refuse(nodes.REMOVED, refused)

    def _refusal(self, partition: TopicPartition) -> str:
        context = self._context
        if not context.knows(partition):
            return "there is no such partition"
        if partition.topic in context.deleting:
            return "its whole topic is being deleted"
        others = [one for one in context.partitions_of(partition.topic) if one != partition]
        if all(other in context.removing for other in others):
            return "a topic keeps one partition at least; delete the topic instead"
        return ""

    def resume(self) -> Steps[None]:
        """Do what can be done now: begin, tell brokers, forget what is deleted everywhere."""
        partitions = self._condemned()
        if not partitions:
            return
        yield from self._begin([partition for partition in partitions if partition not in self._begun])
        waiting = [replica for replica in self._context.replicas_of(partitions) if self._is_waiting(replica)]
        yield from self.fail(self._unreachable(waiting))
        told = [replica for replica in waiting if self._is_waiting(replica)]
        offline = [one for one in told if self._context.replica_status(one) is not ReplicaStatus.OFFLINE]
        yield from self._machines.replicas.handle_state_changes(offline, ReplicaStatus.OFFLINE)
        yield from self._batch.send()
        yield from self._machines.replicas.handle_state_changes(told, ReplicaStatus.DELETION_STARTED)
        yield from self._batch.send()
        yield from self._finish()

    def _begin(self, partitions: Collection[TopicPartition]) -> Steps[None]:
        """Nobody leads them any more, and clients are not told of them."""
        self._begun.update(dict.fromkeys(partitions))
        for partition in partitions:
            self._context.reassignments.pop(partition, None)
        yield from self._machines.partitions.handle_state_changes(partitions, PartitionStatus.OFFLINE)
        if partitions:
            self._batch.add_update_metadata(deleted=partitions)

    def _condemned(self) -> list[TopicPartition]:
        context = self._context
        found = [one for name in context.deleting if name in context.topics for one in context.partitions_of(name)]
        return found + [one for one in context.removing if one.topic not in context.deleting]

    def _is_waiting(self, replica: Replica) -> bool:
        status = self._context.replica_status(replica)
        return status in (ReplicaStatus.NEW, ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE)

    def _unreachable(self, replicas: Iterable[Replica]) -> list[Replica]:
        """Those that cannot be deleted now; they are remembered until they can."""
        return [replica for replica in replicas if not self._context.is_online(*replica)]

    def fail(self, replicas: Collection[Replica]) -> Steps[None]:
        """These replicas of what is being deleted cannot be deleted before their brokers register anew."""
        machine = self._machines.replicas
        status = self._context.replica_status
        early = [replica for replica in replicas if status(replica) in (ReplicaStatus.NEW, ReplicaStatus.ONLINE)]
        yield from machine.handle_state_changes(early, ReplicaStatus.OFFLINE)
        failed = [
            replica
            for replica in replicas
            if status(replica) in (ReplicaStatus.OFFLINE, ReplicaStatus.DELETION_STARTED)
        ]
        yield from machine.handle_state_changes(failed, ReplicaStatus.DELETION_INELIGIBLE)

    def retry(self, replicas: Collection[Replica]) -> Steps[None]:
        """The brokers of these have registered anew; resume() goes on with them."""
        status = self._context.replica_status
        ineligible = [replica for replica in replicas if status(replica) is ReplicaStatus.DELETION_INELIGIBLE]
        yield from self._machines.replicas.handle_state_changes(ineligible, ReplicaStatus.OFFLINE)

    def on_reply(self, broker: int, request: StopReplicaRequest, response: StopReplicaResponse) -> Steps[None]:
        """A broker has deleted replicas, or could not."""
        ours = {stop.partition for stop in request.partitions if stop.delete and self._is_ours(broker, stop.partition)}
        answers = [(Replica(one, broker), error) for one, error in response.partitions if one in ours]
        deleted = [replica for replica, error in answers if error in _DONE]
        yield from self._machines.replicas.handle_state_changes(deleted, ReplicaStatus.DELETION_SUCCESSFUL)
        failed = [replica for replica, error in answers if error not in _DONE]
        if failed:
            yield StateChange("warning", f"{len(failed)} replicas could not be deleted yet: {named(failed)}")
            yield from self.fail(failed)
        if answers:
            yield from self._finish()

    def _is_ours(self, broker: int, partition: TopicPartition) -> bool:
        status = self._context.replica_status(Replica(partition, broker))
        return self._context.is_pending_deletion(partition) and status is ReplicaStatus.DELETION_STARTED

    def is_deleted(self, replica: Replica) -> bool:
        """Whether its broker has said so."""
        return self._context.replica_status(replica) is ReplicaStatus.DELETION_SUCCESSFUL

    def _finish(self) -> Steps[None]:
        """Forget what no broker has any more."""
        context = self._context
        for name in list(context.deleting):
            if name in context.topics and all(map(self.is_deleted, context.replicas_of(context.partitions_of(name)))):
                yield from self._forget_topic(name)
        for partition in list(context.removing):
            if partition.topic not in context.deleting and all(map(self.is_deleted, context.replicas_of([partition]))):
                yield from self._forget_partition(partition)

    def _forget_topic(self, name: str) -> Steps[None]:
        context = self._context
        if not (yield from self._delete_nodes(name)):
            yield StateChange("error", f"topic {name}: its nodes under {nodes.topic(name)} cannot be deleted")
            return
        partitions = context.partitions_of(name)
        yield from self._gone(partitions)
        context.remove_topic(name)
        yield StateChange("info", f"topic {name} is deleted")

    def _delete_nodes(self, name: str) -> Steps[bool]:
        """Delete a topic's nodes, leaves first and the request last; False when others keep adding to them."""
        for _ in range(fencing.ATTEMPTS):
            numbers: list[str] = (yield GetChildren(nodes.topic(name))) or []
            inner = [path for number in numbers for path in _of_partition(name, number)]
            for under in (nodes.REASSIGNED, nodes.ADDED, nodes.REMOVED):
                requests: list[str] = (yield GetChildren(f"{under}/{name}")) or []
                inner += [*(f"{under}/{name}/{number}" for number in requests), f"{under}/{name}"]
            last = (nodes.topic_config(name), nodes.topic(name), f"{nodes.DELETED_TOPICS}/{name}")
            inner = yield from store_reader.existing(inner)
            ends = yield from store_reader.existing(last)
            try:
                for some in fencing.chunks(inner, fencing.MAX_OPERATIONS - 1):
                    yield from fencing.fenced(self._context, [Delete(path) for path in some])
                yield from fencing.fenced(self._context, [Delete(path) for path in ends])
            except (NoNodeError, NotEmptyError):
                continue
            return True
        return False

    def _forget_partition(self, partition: TopicPartition) -> Steps[None]:
        """Its directory stays as long as the topic, with the leader epoch that one of that number would begin with: its
        topic id will be the same, so only the epoch tells late requests about this one from its own (F26)."""
        context = self._context
        request = nodes.partition(partition, nodes.REMOVED)
        for _ in range(fencing.ATTEMPTS):
            rest = context.without(partition)
            leaves = (nodes.leader_and_isr(partition), request, nodes.partition(partition, nodes.REASSIGNED))
            operations: list[StoreOperation] = [Delete(path) for path in (yield from store_reader.existing(leaves))]
            operations.append(SetData(nodes.topic(partition.topic), nodes.encode_topic(rest), rest.version))
            if partition in context.states:
                epoch = context.states[partition].leader_epoch + 1
                operations.append(SetData(nodes.partition(partition), str(epoch).encode()))
            try:
                yield from fencing.fenced(context, operations)
            except (NoNodeError, BadVersionError):
                yield from self._topics.reread(partition.topic)
                continue
            yield from self._gone([partition])
            context.remove_partition(partition)
            context.put_topic(partition.topic, nodes.Topic(rest.topic_id, rest.partitions, rest.version + 1))
            for under in (nodes.REMOVED, nodes.REASSIGNED):
                yield from self._topics.sweep(under, [partition.topic])
            yield StateChange("info", f"{partition} is removed")
            return
        context.unsettled[partition] = None

    def _gone(self, partitions: Collection[TopicPartition]) -> Steps[None]:
        replicas = self._context.replicas_of(partitions)
        yield from self._machines.replicas.handle_state_changes(replicas, ReplicaStatus.NON_EXISTENT)
        yield from self._machines.partitions.handle_state_changes(partitions, PartitionStatus.NON_EXISTENT)
        for partition in partitions:
            self._begun.pop(partition, None)


def _of_partition(topic: str, number: str) -> tuple[str, str]:
    directory = f"{nodes.topic(topic)}/{number}"
    return f"{directory}/leaderAndISR", directory
