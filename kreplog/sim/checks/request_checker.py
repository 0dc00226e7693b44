"""The checker of administrative requests: what is accepted is carried out, by whichever controller.

request lost            a request is accepted, and is not in the store, or for a topic that does not exist
request not carried out a controller deletes a request, and the topic is not as requested: a reassigned partition has
                        exactly the replicas of the request, after a cancellation those from before; a partition of
                        an unclean election has a leader, if a replica could lead all the while; unless the topic or the
                        partition is being deleted, or has been, and another topic has that name, or partitions were to
                        be added and removed at once
another topic           a partition is reassigned, added or removed while the request for that, which was accepted
                        before its topic was created, is in the store: it was for an earlier topic of that name
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kreplog.core import nodes
from kreplog.core.nodes import Assignment
from kreplog.types import NO_LEADER, Node, TopicPartition

Replicas = tuple[int, ...] | None
"""The replicas that a partition is to have; None: it is not to exist."""


class _AcceptedRequest(NamedTuple):
    """An accepted request for a partition. under: the directory of such requests. topic_id: the topic's as it was
    accepted, None if there was none."""

    under: str
    partition: TopicPartition
    wanted: Replicas
    topic_id: str | None


class _Election(NamedTuple):
    """An unclean election, requested while the controller of this epoch had nothing else to do. candidates: the
    replicas of each partition that are registered, with the transaction of that. topic_ids: by topic."""

    controller_epoch: bytes
    candidates: Mapping[TopicPartition, Mapping[int, int]]
    topic_ids: Mapping[str, str | None]


class RequestChecker:
    """Judges requests that were accepted. peek: reads a node of the store. violate: called with the kind of a violation
    and its text. is_served: whether a broker has a replica that works. controls: whether there is an active controller
    which has nothing to do."""

    def __init__(
        self,
        peek: Callable[[str], Node | None],
        violate: Callable[[str, str], None],
        is_served: Callable[[int, TopicPartition], bool],
        controls: Callable[[], bool],
    ) -> None:
        self._peek = peek
        self._violate = violate
        self._is_served = is_served
        self._controls = controls
        self._pending: dict[str, _AcceptedRequest] = {}
        self._of_later_topics: dict[str, tuple[str | None, Assignment | None]] = {}
        self._contradicted: set[str] = set()
        self._deleting: set[str] = set()
        self._election: _Election | None = None

    def reassignment_accepted(self, partition: TopicPartition, target: Sequence[int] | None) -> None:
        """None as the target: a cancellation."""
        found = self._assignment(partition)
        if target is None and found is not None:
            before = tuple(replica for replica in found.replicas if replica not in found.adding)
            self._accepted(nodes.REASSIGNED, partition, (), before)
        elif target is not None:
            self._accepted(nodes.REASSIGNED, partition, tuple(target), tuple(target))

    def addition_accepted(self, partition: TopicPartition, replicas: Sequence[int]) -> None:
        self._accepted(nodes.ADDED, partition, tuple(replicas), tuple(replicas))

    def removal_accepted(self, partition: TopicPartition) -> None:
        self._accepted(nodes.REMOVED, partition, None, None)

    def deletion_accepted(self, topic: str) -> None:
        if self._peek(nodes.topic(topic)) is None:
            self._violate("request lost", f"the deletion of topic {topic} is accepted, which does not exist")
        elif self._peek(f"{nodes.DELETED_TOPICS}/{topic}") is None:
            self._violate("request lost", f"the deletion of topic {topic} is accepted, but not in the store")
        else:
            self._deleting.add(topic)

    def store_changed(self) -> None:
        """To be called after each change of the store."""
        for topic in sorted(self._deleting):
            if self._peek(f"{nodes.DELETED_TOPICS}/{topic}") is None:
                self._deleting.remove(topic)
                if self._peek(nodes.topic(topic)) is not None:
                    self._violate("request not carried out", f"topic {topic} still exists after its deletion")
        for path, request in list(self._pending.items()):
            self._judge_topic(path, request)
            if self._peek(path) is None:
                del self._pending[path]
                self._of_later_topics.pop(path, None)
                if path in self._contradicted:
                    self._contradicted.remove(path)
                else:
                    self._judge(path, request)
        requested = self._peek(nodes.UNCLEAN_ELECTION)
        if requested is None and self._election is not None:
            election, self._election = self._election, None
            self._judge_election(election)
        elif requested is not None and self._election is None:
            self._election = self._requested_election(nodes.decode_partitions(nodes.UNCLEAN_ELECTION, requested))

    def _accepted(self, root: str, partition: TopicPartition, content: Replicas, wanted: Replicas) -> None:
        path = nodes.partition(partition, root)
        node = self._peek(path)
        if node is None or (content is not None and nodes.decode_replicas(path, node) != content):
            stored = "it is not in the store" if node is None else f"the store has {node.data!r}"
            self._violate("request lost", f"{path} is accepted with {content}, but {stored}")
        else:
            self._pending[path] = _AcceptedRequest(root, partition, wanted, self._topic_id(partition.topic))
            self._note_contradiction(root, partition.topic)

    def _note_contradiction(self, root: str, topic: str) -> None:
        """The controller refuses an addition during a removal, and a removal of what is no longer the last."""
        both = (nodes.ADDED, nodes.REMOVED)
        paths = {under: [path for path in self._pending if path.startswith(f"{under}/{topic}/")] for under in both}
        if root in both and all(paths.values()):
            self._contradicted.update(paths[nodes.ADDED], paths[nodes.REMOVED])

    def _judge_topic(self, path: str, request: _AcceptedRequest) -> None:
        """To be called after each change, so that the first look at a later topic is at its creation."""
        under, partition, _, topic_id = request
        present = self._topic_id(partition.topic)
        if present in (None, topic_id):
            return
        found = self._assignment(partition)
        known, before = self._of_later_topics.get(path, (None, None))
        self._of_later_topics[path] = present, found
        carried_out = {
            nodes.ADDED: before is None,
            nodes.REMOVED: found is None,
            nodes.REASSIGNED: before is not None and found is not None,
        }
        if known == present and found != before and carried_out[under]:
            text = f"{path} was accepted for an earlier topic {partition.topic}, and {partition} has changed: {found}"
            self._violate("another topic", text)

    def _judge(self, path: str, request: _AcceptedRequest) -> None:
        _, partition, wanted, topic_id = request
        found = self._assignment(partition)
        if found == (None if wanted is None else Assignment(wanted)) or self._is_deleted(path, partition, topic_id):
            return
        self._violate("request not carried out", f"{path} is gone, {partition} was to have {wanted}, and has {found}")

    def _requested_election(self, partitions: Sequence[TopicPartition]) -> _Election:
        """Without candidates while a controller may be about to drop the request, as one that was just elected."""
        candidates: dict[TopicPartition, dict[int, int]] = {}
        for partition in partitions if self._controls() else ():
            assignment = self._assignment(partition)
            replicas = () if assignment is None else assignment.replicas
            registered = {broker: self._registration(broker) for broker in replicas}
            candidates[partition] = {broker: created for broker, created in registered.items() if created is not None}
        topic_ids = {partition.topic: self._topic_id(partition.topic) for partition in candidates}
        return _Election(self._controller_epoch(), candidates, topic_ids)

    def _judge_election(self, election: _Election) -> None:
        if self._controller_epoch() != election.controller_epoch:
            return  # the later controller drops the request
        for partition, candidates in election.candidates.items():
            path = nodes.leader_and_isr(partition)
            state = self._peek(path)
            able = [
                broker
                for broker, created in candidates.items()
                if self._registration(broker) == created and self._is_served(broker, partition)
            ]
            leaderless = state is not None and nodes.decode_leader_and_isr(path, state).leader == NO_LEADER
            request, topic_id = nodes.partition(partition, nodes.REASSIGNED), election.topic_ids[partition.topic]
            if leaderless and able and not self._is_deleted(request, partition, topic_id):
                text = f"the unclean election of {partition} has ended without a leader, though {able} could lead"
                self._violate("request not carried out", text)

    def _registration(self, broker: int) -> int | None:
        """The transaction that has registered a broker, None unless it is registered and not stopping."""
        path = nodes.broker(broker)
        node = self._peek(path)
        return None if node is None or nodes.decode_broker(path, node, -1).stopping else node.stat.created

    def _controller_epoch(self) -> bytes:
        node = self._peek(nodes.CONTROLLER_EPOCH)
        return b"" if node is None else node.data

    def _is_deleted(self, path: str, partition: TopicPartition, topic_id: str | None) -> bool:
        """Whether the topic of this id, or a partition that was to be reassigned, is deleted or being deleted."""
        if topic_id is None or self._topic_id(partition.topic) != topic_id:
            return True
        if self._peek(f"{nodes.DELETED_TOPICS}/{partition.topic}") is not None:
            return True
        removed = self._assignment(partition) is None or self._peek(nodes.partition(partition, nodes.REMOVED))
        return bool(removed) and path == nodes.partition(partition, nodes.REASSIGNED)

    def _assignment(self, partition: TopicPartition) -> Assignment | None:
        topic = self._topic(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def _topic_id(self, name: str) -> str | None:
        topic = self._topic(name)
        return None if topic is None else topic.topic_id

    def _topic(self, name: str) -> nodes.TopicNode | None:
        path = nodes.topic(name)
        node = self._peek(path)
        return None if node is None else nodes.decode_topic(path, node)
