"""Deletion of topics, and of single partitions: the brokers delete all replicas before the store's nodes go.

    Online/New/Offline --StopReplica(delete=False)--> Offline --StopReplica(delete=True)--> DeletionStarted
    DeletionStarted --response--> DeletionSuccessful; --error, or broker failed--> DeletionIneligible
    DeletionIneligible --its broker registers again--> Offline, and so on
    all DeletionSuccessful --the topic's nodes are deleted--> NonExistent

The only record of a deletion under way is its request (/admin/delete_topics, /admin/partitions_remove): the next
controller starts over, and brokers that have deleted a replica already respond so. The nodes go in several multis, the
request and the topic's node in the last, so that the next controller continues after one that fails in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from kreplog.core import nodes
from kreplog.core.controller import fencing, store_reader
from kreplog.core.controller.context import PartitionAndReplica, named
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.topic_changes import TopicChanges
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import GetChildren, StateChange, Steps
from kreplog.core.messages import StopReplicaRequest, StopReplicaResponse
from kreplog.errors import BadVersionError, ErrorCode, NoNodeError, NotEmptyError, UsageError
from kreplog.types import Delete, Node, SetData, StoreOperation, TopicPartition

_DONE = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Deletion:
    """Carries out the deletion of topics and partitions, as the module describes."""

    def __init__(self, machines: StateMachines, topics: TopicChanges) -> None:
        self._machines = machines
        self._context = machines.context
        self._batch = machines.batch
        self._topics = topics
        self._started: dict[TopicPartition, None] = {}

    def on_requests(self) -> Steps[None]:
        """An administrator requests the deletion of topics or partitions."""
        context = self._context
        requests = yield from store_reader.children(nodes.DELETED_TOPICS)
        removed = yield from store_reader.tree(nodes.REMOVED)
        if any(name not in context.topics for name in [*requests, *(partition.topic for partition in removed)]):
            yield from self._topics.on_topics()
        yield from self.accept(requests, removed)
        yield from self.resume()

    def accept(self, requests: Iterable[str], removed: Mapping[TopicPartition, Node]) -> Steps[None]:
        """Record the requested deletions in the context, and delete requests that cannot be fulfilled."""
        context = self._context
        unknown: list[Delete] = []
        refused: dict[TopicPartition, Node] = {}
        for name in requests:
            if name in context.topics:
                context.deleting[name] = None
            else:
                context.deleting.pop(name, None)
                unknown.append(Delete(f"{nodes.DELETED_TOPICS}/{name}"))
                yield StateChange("warning", f"topic {name} is to be deleted, but does not exist")
        for partition in sorted(removed, reverse=True):
            try:
                context.check_request(partition, removed[partition])
                self._check_removal(partition)
            except UsageError as error:
                refused[partition] = removed[partition]
                yield StateChange("error", f"{partition} is not removed: {error}")
            else:
                context.removing[partition] = None
        yield from self._topics.delete_requests(unknown)
        yield from self._topics.reject(nodes.REMOVED, refused)

    def _check_removal(self, partition: TopicPartition) -> None:
        context = self._context
        if not context.has_partition(partition):
            raise UsageError("there is no such partition")
        if partition.topic in context.deleting:
            raise UsageError("its whole topic is being deleted")
        others = [other for other in context.partitions_of(partition.topic) if other != partition]
        if all(other in context.removing for other in others):
            raise UsageError("a topic has at least one partition; delete the topic instead")
        if self._is_followed(partition):
            raise UsageError("its topic has later partitions, and their numbers go on from 0 without a gap")

    def _is_followed(self, partition: TopicPartition) -> bool:
        """Whether its topic keeps a partition with a higher number, which may have been added in the meantime."""
        others = self._context.partitions_of(partition.topic)
        return any(other.partition > partition.partition and other not in self._context.removing for other in others)

    def resume(self) -> Steps[None]:
        """Take the next steps of all deletions: send StopReplica, and forget what all brokers have deleted."""
        partitions = self._pending_deletion()
        if not partitions:
            return
        yield from self._start([partition for partition in partitions if partition not in self._started])
        waiting = [replica for replica in self._context.replicas_of(partitions) if self._is_not_started(replica)]
        yield from self.fail(self._unreachable(waiting))
        reachable = [replica for replica in waiting if self._is_not_started(replica)]
        running = [
            replica for replica in reachable if self._context.replica_status(replica) is not ReplicaStatus.OFFLINE
        ]
        yield from self._machines.replicas.handle_state_changes(running, ReplicaStatus.OFFLINE)
        yield from self._batch.send()
        yield from self._machines.replicas.handle_state_changes(reachable, ReplicaStatus.DELETION_STARTED)
        yield from self._batch.send()
        yield from self._forget_deleted()

    def _start(self, partitions: Collection[TopicPartition]) -> Steps[None]:
        """Take the partitions offline, and out of the metadata that clients get."""
        self._started.update(dict.fromkeys(partitions))
        for partition in partitions:
            self._context.reassignments.pop(partition, None)
        yield from self._machines.partitions.handle_state_changes(partitions, PartitionStatus.OFFLINE)
        if partitions:
            self._batch.add_update_metadata(deleted=partitions)

    def _pending_deletion(self) -> list[TopicPartition]:
        context = self._context
        of_topics = [
            partition
            for name in context.deleting
            if name in context.topics
            for partition in context.partitions_of(name)
        ]
        return of_topics + [partition for partition in context.removing if partition.topic not in context.deleting]

    def _is_not_started(self, replica: PartitionAndReplica) -> bool:
        status = self._context.replica_status(replica)
        return status in (ReplicaStatus.NEW, ReplicaStatus.ONLINE, ReplicaStatus.OFFLINE)

    def _unreachable(self, replicas: Iterable[PartitionAndReplica]) -> list[PartitionAndReplica]:
        """Replicas that are offline, so that they cannot be deleted now."""
        return [replica for replica in replicas if not self._context.is_online(*replica)]

    def fail(self, replicas: Collection[PartitionAndReplica]) -> Steps[None]:
        """Mark replicas pending deletion as ineligible until their brokers register again."""
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

    def retry(self, replicas: Collection[PartitionAndReplica]) -> Steps[None]:
        """Make ineligible replicas deletable again, since their brokers have registered; `resume` continues."""
        status = self._context.replica_status
        ineligible = [replica for replica in replicas if status(replica) is ReplicaStatus.DELETION_INELIGIBLE]
        yield from self._machines.replicas.handle_state_changes(ineligible, ReplicaStatus.OFFLINE)

    def on_response(self, broker: int, request: StopReplicaRequest, response: StopReplicaResponse) -> Steps[None]:
        """The response to StopReplica with delete: the broker has deleted replicas, or failed to."""
        started = {
            stop.partition
            for stop in request.partitions
            if stop.delete and self._is_deletion_started(broker, stop.partition)
        }
        results = [
            (PartitionAndReplica(partition, broker), error)
            for partition, error in response.partitions
            if partition in started
        ]
        deleted = [replica for replica, error in results if error in _DONE]
        yield from self._machines.replicas.handle_state_changes(deleted, ReplicaStatus.DELETION_SUCCESSFUL)
        failed = [replica for replica, error in results if error not in _DONE]
        if failed:
            yield StateChange("warning", f"{len(failed)} replicas could not be deleted yet: {named(failed)}")
            yield from self.fail(failed)
        if results:
            yield from self._forget_deleted()

    def _is_deletion_started(self, broker: int, partition: TopicPartition) -> bool:
        status = self._context.replica_status(PartitionAndReplica(partition, broker))
        return self._context.is_pending_deletion(partition) and status is ReplicaStatus.DELETION_STARTED

    def is_deleted(self, replica: PartitionAndReplica) -> bool:
        """Whether its broker has responded that it is deleted."""
        return self._context.replica_status(replica) is ReplicaStatus.DELETION_SUCCESSFUL

    def _forget_deleted(self) -> Steps[None]:
        """Forget topics and partitions whose replicas are all deleted."""
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
        yield from self._set_non_existent(partitions)
        context.remove_topic(name)
        yield StateChange("info", f"topic {name} is deleted")

    def _delete_nodes(self, name: str) -> Steps[bool]:
        """Delete a topic's nodes, leaves first and the request last; False if other writers added nodes each time."""
        for _ in range(fencing.ATTEMPTS):
            numbers: list[str] = (yield GetChildren(nodes.topic(name))) or []
            inner = [path for number in numbers for path in _nodes_of_partition(name, number)]
            for under in nodes.PARTITION_REQUESTS:
                requests: list[str] = (yield GetChildren(f"{under}/{name}")) or []
                inner += [*(f"{under}/{name}/{number}" for number in requests), f"{under}/{name}"]
            last = (nodes.topic_config(name), nodes.topic(name), f"{nodes.DELETED_TOPICS}/{name}")
            inner = yield from store_reader.existing(inner)
            ends = yield from store_reader.existing(last)
            try:
                for chunk in fencing.chunks(inner, fencing.MAX_OPERATIONS - 1):
                    yield from fencing.fenced(self._context, [Delete(path) for path in chunk])
                yield from fencing.fenced(self._context, [Delete(path) for path in ends])
            except (NoNodeError, NotEmptyError):
                continue
            return True
        return False

    def _forget_partition(self, partition: TopicPartition) -> Steps[None]:
        """Delete the nodes of a removed partition, except for its directory, which holds the next leader epoch.

        A partition added later under the same number has the same topic id: only the leader epoch distinguishes late
        requests about the removed partition from those about the new one (F26).
        """
        context = self._context
        request = nodes.partition(partition, nodes.REMOVED)
        for _ in range(fencing.ATTEMPTS):
            rest = context.topic_without(partition)
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
            yield from self._set_non_existent([partition])
            context.remove_partition(partition)
            context.put_topic(partition.topic, replace(rest, version=rest.version + 1))
            for under in (nodes.REMOVED, nodes.REASSIGNED):
                yield from self._topics.delete_empty_directories(under, [partition.topic])
            yield StateChange("info", f"{partition} is removed")
            return
        context.to_retry[partition] = None

    def _set_non_existent(self, partitions: Collection[TopicPartition]) -> Steps[None]:
        replicas = self._context.replicas_of(partitions)
        yield from self._machines.replicas.handle_state_changes(replicas, ReplicaStatus.NON_EXISTENT)
        yield from self._machines.partitions.handle_state_changes(partitions, PartitionStatus.NON_EXISTENT)
        for partition in partitions:
            self._started.pop(partition, None)


def _nodes_of_partition(topic: str, number: str) -> tuple[str, str]:
    directory = f"{nodes.topic(topic)}/{number}"
    return f"{directory}/leaderAndISR", directory
