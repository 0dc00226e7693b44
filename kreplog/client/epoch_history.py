"""EpochHistory: the leader epochs of partitions, as the logs of their leaders have them.

OffsetForLeaderEpoch reports where an epoch ends, which is where the next one starts: a history is read from the newest
epoch to the oldest, of many partitions at once. Epochs are only ever added under a new leader epoch, so that a history
is read once for each, and then no further than an epoch that was known before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.offset_lookup import epoch_end_offsets
from kreplog.types import NO_EPOCH, EpochEndOffset, TopicPartition

Entries = tuple[tuple[int, int], ...]
"""(leader epoch, start offset), oldest first; an epoch without records is left out, unless it is the newest."""


@dataclass(slots=True)
class _Walk:
    """One partition's history while it is read, newest first. epoch: its start offset is requested next."""

    topic_id: str
    leader_epoch: int
    known: Entries
    epoch: int | None = None
    entries: list[tuple[int, int]] = field(default_factory=list)

    @property
    def requested(self) -> int:
        return self.leader_epoch if self.epoch is None else self.epoch - 1

    def add_response(self, found: EpochEndOffset) -> bool:
        """Add the response to `requested`; returns whether an older epoch is to be requested."""
        if found.leader_epoch < 0 or found.leader_epoch > self.requested:
            return False  # the leader knows no epoch that old, or not its own
        if self.epoch is not None:
            if self.entries and found.end_offset >= self.entries[-1][1]:
                return False  # `epoch` was the answer to one older than all that are known, and is not in the log
            self.entries.append((self.epoch, found.end_offset))
            if self.entries[-1] in self.known or found.end_offset == 0:
                return False
        self.epoch = found.leader_epoch
        if self.epoch == 0:  # no epoch is older
            self.entries.append((0, 0))
            return False
        return True

    def result(self) -> Entries:
        older = [known for known in self.known if self.entries and known < self.entries[-1]]
        joined = bool(self.entries) and self.entries[-1] in self.known
        return (*(older if joined else ()), *reversed(self.entries))


class EpochHistory:
    def __init__(self, cluster: ClusterConnections) -> None:
        self._cluster = cluster
        self._known: dict[TopicPartition, tuple[str, int, Entries]] = {}

    def entries(self, partitions: Iterable[TopicPartition], deadline: float) -> dict[TopicPartition, Entries]:
        """The epochs of each; none from a broker that does not report leader epochs. Raises as epoch_end_offsets."""
        found: dict[TopicPartition, Entries] = {}
        waiting = list(dict.fromkeys(partitions))
        walks: dict[TopicPartition, _Walk] = {}
        self._cluster.require(waiting, deadline)
        while waiting:
            for at in waiting:
                metadata = self._cluster.metadata.partitions[at]
                topic_id, leader_epoch, known = self._known.get(at, ("", NO_EPOCH, ()))
                same_topic = topic_id == metadata.topic_id
                walk = walks.get(at)
                if metadata.leader_epoch == NO_EPOCH or (same_topic and leader_epoch == metadata.leader_epoch):
                    found[at] = known if metadata.leader_epoch != NO_EPOCH else ()
                elif walk is None or (walk.topic_id, walk.leader_epoch) != (metadata.topic_id, metadata.leader_epoch):
                    walks[at] = _Walk(metadata.topic_id, metadata.leader_epoch, known if same_topic else ())
            waiting = [at for at in waiting if at not in found]
            if waiting:
                self._step({at: walks[at] for at in waiting}, deadline)
        return found

    def _step(self, walks: dict[TopicPartition, _Walk], deadline: float) -> None:
        """Request one epoch of each. A response under another leader epoch, which may be of another log, is dropped."""
        responses = epoch_end_offsets(self._cluster, {at: walk.requested for at, walk in walks.items()}, deadline)
        for at, walk in walks.items():
            metadata = self._cluster.metadata.partitions[at]
            if (metadata.topic_id, metadata.leader_epoch) != (walk.topic_id, walk.leader_epoch):
                continue
            if not walk.add_response(responses[at]):
                self._known[at] = walk.topic_id, walk.leader_epoch, walk.result()
