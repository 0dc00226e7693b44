"""Partition reassignments: list, request and cancel them, and follow their progress.

The cluster carries reassignments out by itself: a client that follows them may stop at any time and start again later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import ADMIN_TIMEOUT_MS, TopicRequestError, raise_for_error
from kreplog.client.log_dirs import replica_sizes
from kreplog.errors import UsageError
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey

POLL_S = 0.25
START_TIMEOUT_S = 10.0
"""A partition that neither moves nor has its target replicas for this long was cancelled or refused."""

_PARTITIONS_PER_REQUEST = 500

Targets = Mapping[TopicPartition, Sequence[int] | None]
"""Target replicas by partition, the preferred leader first. None: a request cancels, `follow` waits for any outcome."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OngoingReassignment:
    """The replicas of a partition that is being reassigned. replicas: old and new ones."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(slots=True)
class Progress:
    """Progress of the reassignment of `partitions` partitions. done: those that have ended. failed: why others have
    not, by partition. bytes: copied of `bytes_to_copy`."""

    partitions: int
    done: list[TopicPartition] = field(default_factory=list)
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    bytes: int = 0
    bytes_to_copy: int = 0

    @property
    def ended(self) -> bool:
        return len(self.done) + len(self.failed) == self.partitions


def by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    for topic, group in groupby(sorted(partitions), lambda partition: partition.topic):
        yield topic, list(group)


def target_in(topic: str, word: str) -> tuple[TopicPartition, tuple[int, ...] | None]:
    """A partition and its target replicas, of "0=1,2,3"; None of "0". Raises UsageError."""
    number, equals, brokers = word.partition("=")
    try:
        partition = TopicPartition(topic, int(number))
        return partition, tuple(int(part) for part in brokers.split(",")) if equals else None
    except ValueError:
        raise UsageError(f"{word!r}: give PARTITION=BROKER,BROKER as in 0=1,2,3") from None


def partitions_in(metadata: Any) -> dict[TopicPartition, Any]:
    """Every partition of a Metadata response."""
    return {
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in metadata.topics
        for partition in topic.partitions
    }


def existing_partitions(admin: AdminClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
    """Metadata of these partitions. Raises TopicRequestError if one does not exist."""
    partitions = list(partitions)
    metadata = admin.metadata({partition.topic for partition in partitions})
    for topic in metadata.topics:
        raise_for_error("topic", topic.name, topic)
    existing = partitions_in(metadata)
    for partition in partitions:
        if partition not in existing:
            count = sum(other.topic == partition.topic for other in existing)
            raise TopicRequestError(f"there is no partition {partition}: the topic has {count}, counted from 0")
    return {partition: existing[partition] for partition in partitions}


def ongoing_reassignments(
    admin: AdminClient, topics: Mapping[str, Sequence[int]] | None = None
) -> dict[TopicPartition, OngoingReassignment]:
    """Ongoing reassignments of all partitions, or of those of `topics`. Raises UnreachableError, TopicRequestError."""
    requested = topics and [{"name": topic, "partition_indexes": list(numbers)} for topic, numbers in topics.items()]
    response = admin.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=requested, timeout_ms=ADMIN_TIMEOUT_MS)
    raise_for_error("list of", "reassignments", response)
    return {
        TopicPartition(topic.name, partition.partition_index): OngoingReassignment(
            tuple(partition.replicas), tuple(partition.adding_replicas), tuple(partition.removing_replicas)
        )
        for topic in response.topics
        for partition in topic.partitions
    }


def alter_reassignments(admin: AdminClient, targets: Targets) -> dict[TopicPartition, str]:
    """Request all of `targets`; returns those that were refused, and why. Raises UnreachableError."""
    refused = {}
    for chunk in _chunks(sorted(targets), _PARTITIONS_PER_REQUEST):
        response = admin.request(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            timeout_ms=ADMIN_TIMEOUT_MS,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": partition.partition, "replicas": _replicas(targets[partition])}
                        for partition in group
                    ],
                }
                for topic, group in by_topic(chunk)
            ],
        )
        for topic in response.responses:
            for result in topic.partitions:
                partition = TopicPartition(topic.name, result.partition_index)
                try:
                    raise_for_error("partition", str(partition), result)
                except TopicRequestError as error:
                    refused[partition] = str(error)
    return refused


def follow(admin: AdminClient, targets: Targets, copied: CopiedBytes | None = None) -> Iterator[Progress]:
    """The progress of `targets`, every POLL_S until all have ended. Raises UnreachableError.

    copied: created before they were requested; without it only the replicas that still move count in bytes.
    """
    progress = Progress(len(targets))
    waiting = dict(targets)
    copied = copied or CopiedBytes(admin, targets, {})
    copied.restrict(targets)
    idle_since: dict[TopicPartition, float] = {}
    while True:
        ongoing = ongoing_reassignments(admin)
        existing = partitions_in(admin.metadata({partition.topic for partition in waiting}))
        for partition in list(waiting):
            if partition in ongoing:
                continue
            outcome = _outcome(partition, targets[partition], existing.get(partition), idle_since)
            if outcome is None:
                continue
            del waiting[partition]
            if outcome:
                progress.failed[partition] = outcome
            else:
                progress.done.append(partition)
        progress.bytes, progress.bytes_to_copy = copied.measure(
            {partition: existing[partition] for partition in waiting if partition in existing},
            {partition: ongoing[partition] for partition in waiting if partition in ongoing},
        )
        yield progress
        if progress.ended:
            return
        time.sleep(POLL_S)  # the protocol has no notification of progress


def _outcome(
    partition: TopicPartition, target: Sequence[int] | None, metadata: Any, idle_since: dict[TopicPartition, float]
) -> str | None:
    """The outcome of the reassignment of a partition that does not move: "" done, else why it failed; None: it may not
    have begun yet."""
    if metadata is None:
        return f"{partition}: it has been deleted"
    replicas = list(metadata.replica_nodes)
    if target is None or replicas == list(target):
        return ""
    now = time.monotonic()
    if now - idle_since.setdefault(partition, now) > START_TIMEOUT_S:
        return f"{partition}: it is not being reassigned, and its replicas are {replicas}: was it cancelled?"
    return None


class CopiedBytes:
    """Bytes of the added replicas while they grow, and of their leaders.

    before: metadata of `targets` before these are requested. The old leaders' sizes are read at once, since their
    replicas may be deleted by the end.
    """

    def __init__(self, admin: AdminClient, targets: Targets, before: Mapping[TopicPartition, Any]) -> None:
        self._admin = admin
        self._adding: dict[TopicPartition, tuple[int, ...]] = {
            partition: tuple(broker for broker in targets[partition] or () if broker not in metadata.replica_nodes)
            for partition, metadata in before.items()
        }
        self._sizes = leader_sizes(admin, before)

    def restrict(self, targets: Targets) -> None:
        """Forget all other partitions: they were refused."""
        self._adding = {partition: brokers for partition, brokers in self._adding.items() if partition in targets}

    def measure(
        self, waiting: Mapping[TopicPartition, Any], ongoing: Mapping[TopicPartition, OngoingReassignment]
    ) -> tuple[int, int]:
        """(bytes copied, bytes to copy). waiting: partitions that have not ended; all others count as copied."""
        for partition, state in ongoing.items():
            self._adding[partition] = state.adding
        self._sizes.update(leader_sizes(self._admin, waiting))
        adding: dict[int, list[TopicPartition]] = {}
        for partition in waiting:
            for broker in self._adding.get(partition, ()):
                adding.setdefault(broker, []).append(partition)
        sizes = replica_sizes(self._admin, adding)
        missing = sum(
            max(0, self._sizes.get(partition, 0) - sizes.get(broker, {}).get(partition, 0))
            for broker, partitions in adding.items()
            for partition in partitions
        )
        total = sum(self._sizes.get(partition, 0) * len(brokers) for partition, brokers in self._adding.items())
        return total - missing, total


def leader_sizes(admin: AdminClient, partitions: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
    """Bytes of each partition's leader; without the partitions whose leader does not respond. partitions: metadata."""
    led: dict[int, list[TopicPartition]] = {}
    for partition, metadata in partitions.items():
        led.setdefault(metadata.leader_id, []).append(partition)
    return {partition: size for sizes in replica_sizes(admin, led).values() for partition, size in sizes.items()}


def _replicas(target: Sequence[int] | None) -> list[int] | None:
    return None if target is None else list(target)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
