"""Topic changes: new topics and partitions, changed settings, and the requests under /admin."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kreplog.core import nodes
from kreplog.core.controller import fencing, store_reader
from kreplog.core.controller.assignment import check_replicas
from kreplog.core.controller.config_changes import send_settings
from kreplog.core.controller.context import PartitionAndReplica, named
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import GetChildren, GetNodes, Nodes, StateChange, Steps
from kreplog.core.nodes import Assignment, TopicNode
from kreplog.errors import BadVersionError, CoordinationError, NoNodeError, NotEmptyError, UsageError
from kreplog.types import Delete, Node, SetData, StoreOperation, TopicPartition


class TopicChanges:
    """Handlers of topic nodes, topic settings and /admin/partitions_add."""

    def __init__(self, machines: StateMachines) -> None:
        self._machines = machines
        self._context = machines.context
        self._batch = machines.batch

    def on_topics(self) -> Steps[None]:
        """Topics were created; or their nodes were deleted by hand, without a request to the controller."""
        context = self._context
        names = yield from store_reader.children(nodes.TOPICS)
        for name in [name for name in context.topics if name not in names]:
            yield from self._on_vanished(name)
        found = yield from store_reader.topics([name for name in names if name not in context.topics])
        partitions: list[TopicPartition] = []
        for name, (topic, config) in found.items():
            context.put_topic(name, topic)
            context.configs[name] = config
            partitions += context.partitions_of(name)
        yield from self.create(partitions)

    def _on_vanished(self, name: str) -> Steps[None]:
        """Stop the replicas of a topic whose node was deleted by hand. Their files stay until the next INIT."""
        context = self._context
        yield StateChange(
            "warning", f"topic {name} is missing in the store: its node was deleted by hand; its replicas are stopped"
        )
        for replica in context.replicas_of(context.partitions_of(name)):
            self._batch.add_stop_replica(replica, delete=False)
            context.replica_statuses.pop(replica, None)
        for partition in context.partitions_of(name):
            context.partition_statuses.pop(partition, None)
        self._batch.add_update_metadata(deleted=context.partitions_of(name))
        context.remove_topic(name)
        yield from self._batch.send()

    def on_topic(self, name: str) -> Steps[None]:
        """A topic's node was written: by this controller, or by an administrator who adds partitions."""
        if name not in self._context.topics:
            yield from self.on_topics()
            return
        found = yield from store_reader.topics([name])
        if not found:
            yield from self.on_topics()
            return
        yield from self._merge(name, found[name][0])

    def reread(self, name: str) -> Steps[None]:
        """Read a topic's node again, after a write of it was refused since another writer was first."""
        found: Nodes = yield GetNodes((nodes.topic(name),))
        if found[0] is not None and name in self._context.topics:
            yield from self._merge(name, nodes.decode_topic(nodes.topic(name), found[0]))

    def _merge(self, name: str, topic: TopicNode) -> Steps[None]:
        """Apply added partitions; the replicas of existing ones change by reassignment only."""
        context = self._context
        held = context.topics[name]
        if topic.topic_id != held.topic_id:
            yield StateChange("error", f"topic {name}: its id changed from {held.topic_id} to {topic.topic_id}")
            return
        changed = [number for number, assigned in held.partitions.items() if topic.partitions.get(number) != assigned]
        if changed:
            text = f"topic {name}: the replicas of partitions {changed[:5]} were changed without a reassignment"
            yield StateChange("error", text)
        context.put_topic(name, replace(topic, partitions={**topic.partitions, **held.partitions}))
        yield from self.create([TopicPartition(name, n) for n in topic.partitions if n not in held.partitions])

    def create(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """Bring new partitions, whose assignment the context has, online."""
        if not partitions:
            return
        context, machines = self._context, self._machines
        replicas = context.replicas_of(partitions)
        yield from machines.replicas.handle_state_changes(replicas, ReplicaStatus.NEW)
        yield from machines.partitions.handle_state_changes(partitions, PartitionStatus.NEW)
        wanted = [partition for partition in partitions if not context.is_pending_deletion(partition)]
        yield from machines.partitions.handle_state_changes(wanted, PartitionStatus.ONLINE)
        yield from self.start_new_replicas(context.replicas_of(wanted))
        yield from self._batch.send()

    def start_new_replicas(self, replicas: Collection[PartitionAndReplica]) -> Steps[None]:
        """Set new replicas Online, or Offline where their broker is offline."""
        online = [replica for replica in replicas if self._context.is_online(*replica)]
        offline = [replica for replica in replicas if not self._context.is_online(*replica)]
        yield from self._machines.replicas.handle_state_changes(online, ReplicaStatus.ONLINE)
        yield from self._machines.replicas.handle_state_changes(offline, ReplicaStatus.OFFLINE)

    def on_config(self, name: str) -> Steps[None]:
        """A topic's settings were written."""
        context = self._context
        config = yield from store_reader.topic_config(name)
        if name not in context.topics or config == context.configs.get(name):
            return
        context.configs[name] = config
        yield StateChange("info", f"topic {name}: settings are now {context.config(name)}")
        yield from send_settings(self._machines, [name])

    # /admin/partitions_add

    def on_additions(self) -> Steps[None]:
        """An administrator requests more partitions."""
        context = self._context
        requests = yield from store_reader.tree(nodes.ADDED)
        if any(partition.topic not in context.topics for partition in requests):
            yield from self.on_topics()
        yield from self.add(requests)

    def add(self, requests: dict[TopicPartition, Node]) -> Steps[None]:
        """Add the requested partitions to the topics' nodes and delete the requests, in one multi for each topic."""
        by_topic: dict[str, dict[TopicPartition, tuple[int, ...]]] = {}
        refused: dict[TopicPartition, Node] = {}
        known = yield from self.known_brokers(requests.values())
        for partition, node in requests.items():
            try:
                replicas = nodes.decode_replicas(nodes.partition(partition, nodes.ADDED), node)
                check_replicas(partition, replicas, known)
                self._context.check_request(partition, node)
                self._check_addition(partition)
            except (CoordinationError, UsageError) as error:
                yield StateChange("error", f"{partition} is not added: {error}")
                refused[partition] = node
            else:
                by_topic.setdefault(partition.topic, {})[partition] = replicas
        yield from self.reject(nodes.ADDED, refused)
        for topic, additions in by_topic.items():
            for chunk in fencing.chunks(list(additions), fencing.MAX_OPERATIONS - 2):
                yield from self._add(topic, {partition: additions[partition] for partition in chunk})
        yield from self.delete_empty_directories(nodes.ADDED, by_topic)

    def _check_addition(self, partition: TopicPartition) -> None:
        if partition.topic not in self._context.topics:
            raise UsageError(f"there is no topic {partition.topic}")
        if partition.topic in self._context.deleting:
            raise UsageError("its topic is being deleted")
        if self._context.has_partition(partition):
            raise UsageError("it exists already")
        if self._loses_partitions(partition.topic):
            raise UsageError("partitions of its topic are being removed")

    def _loses_partitions(self, name: str) -> bool:
        return any(partition.topic == name for partition in self._context.removing)

    def _add(self, name: str, additions: dict[TopicPartition, tuple[int, ...]]) -> Steps[None]:
        context = self._context
        for _ in range(fencing.ATTEMPTS):
            new = {
                partition: replicas for partition, replicas in additions.items() if not context.has_partition(partition)
            }
            topic = context.topics[name]
            added = {partition.partition: Assignment(replicas) for partition, replicas in new.items()}
            topic = replace(topic, partitions={**topic.partitions, **added})
            operations: list[StoreOperation] = [SetData(nodes.topic(name), nodes.encode_topic(topic), topic.version)]
            requests = yield from store_reader.existing(
                nodes.partition(addition, nodes.ADDED) for addition in additions
            )
            operations += [Delete(path) for path in requests]
            try:
                yield from fencing.fenced(context, operations)
            except (BadVersionError, NoNodeError):
                yield from self.reread(name)
                continue
            context.put_topic(name, replace(topic, version=topic.version + 1))
            yield StateChange("info", f"topic {name}: {len(new)} partitions added: {named(new)}")
            yield from self.create(list(new))
            return

    # Requests under /admin of all kinds

    def known_brokers(self, requests: Iterable[Node]) -> Steps[set[int]]:
        """Live brokers, and brokers named in `requests` that have registered at any time, which the store remembers."""
        requested: dict[int, None] = {}
        for node in requests:
            try:
                requested.update(dict.fromkeys(nodes.decode_replicas("", node)))
            except CoordinationError:
                continue
        absent = [broker for broker in requested if broker not in self._context.brokers and broker >= 0]
        found = yield from store_reader.existing(map(nodes.broker_epoch, absent))
        return {*self._context.brokers, *(broker for broker in absent if nodes.broker_epoch(broker) in found)}

    def delete_requests(self, deletions: Iterable[Delete]) -> Steps[None]:
        """Delete requests that are completed or can never be fulfilled; a request that has taken the place of that
        version stays, and its watch fires."""
        for deletion in deletions:
            try:
                yield from fencing.fenced(self._context, [deletion])
            except (NoNodeError, BadVersionError):
                continue

    def reject(self, under: str, requests: Mapping[TopicPartition, Node]) -> Steps[None]:
        """Delete requests that cannot be fulfilled, and their directories if these are empty then."""
        yield from self.delete_requests(
            Delete(nodes.partition(partition, under), node.stat.version) for partition, node in requests.items()
        )
        yield from self.delete_empty_directories(under, dict.fromkeys(partition.topic for partition in requests))

    def delete_all_empty_directories(self) -> Steps[None]:
        """At a failover: the last controller may have failed before it deleted empty directories."""
        for under in nodes.PARTITION_REQUESTS:
            topics: list[str] = (yield GetChildren(under)) or []
            yield from self.delete_empty_directories(under, topics)

    def delete_empty_directories(self, under: str, topics: Iterable[str]) -> Steps[None]:
        """Delete the request directories of topics that have no request left."""
        paths = [f"{under}/{topic}" for topic in topics]
        if not paths:
            return
        found: Nodes = yield GetNodes(tuple(paths))
        for path, node in zip(paths, found, strict=True):
            if node is not None and not node.stat.children:
                try:
                    yield from fencing.fenced(self._context, [Delete(path)])
                except (NoNodeError, NotEmptyError):
                    continue
