"""Reassignments from a client's side: what is under way, asking for more, and how far it has come.

The cluster carries them out by itself: whoever waits here only looks, may leave at any time and look again later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from kreplog.client.admin_client import AdminClient
from kreplog.client.connecting import ADMIN_TIMEOUT_MS, TopicRequestError, succeed
from kreplog.client.replica_states import replica_sizes
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey

POLL_S = 0.25
BEGUN_WITHIN_S = 10.0
"""A partition that is neither moving nor where it should be for so long has been led back, or was refused."""

_PARTITIONS_OF_A_REQUEST = 500

Targets = Mapping[TopicPartition, Sequence[int] | None]
"""Replicas, the preferred leader first, by partition. None: to ask for is to cancel; to wait for is whatever comes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A reassignment that has not ended. replicas: old and new ones."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(slots=True)
class Progress:
    """Of some partitions: those that are done, those that will not be and why, bytes copied of bytes to copy."""

    partitions: int
    done: list[TopicPartition] = field(default_factory=list)
    failed: dict[TopicPartition, str] = field(default_factory=dict)
    bytes: int = 0
    bytes_to_copy: int = 0

    @property
    def ended(self) -> bool:
        return len(self.done) + len(self.failed) == self.partitions


def by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    for topic, group in groupby(sorted(partitions), lambda one: one.topic):
        yield topic, list(group)


def assignment(metadata: Any) -> dict[TopicPartition, Any]:
    """Every partition of a Metadata answer."""
    return {
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in metadata.topics
        for partition in topic.partitions
    }


def under_way(brokers: AdminClient) -> dict[TopicPartition, UnderWay]:
    """All that are. Raises UnreachableError, TopicRequestError."""
    answer = brokers.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=None, timeout_ms=ADMIN_TIMEOUT_MS)
    succeed("request to the", "cluster", {"error_code": answer.error_code, "error_message": answer.error_message})
    return {
        TopicPartition(topic.name, partition.partition_index): UnderWay(
            tuple(partition.replicas), tuple(partition.adding_replicas), tuple(partition.removing_replicas)
        )
        for topic in answer.topics
        for partition in topic.partitions
    }


def submit(brokers: AdminClient, targets: Targets) -> dict[TopicPartition, str]:
    """Ask for all of `targets`; return what was refused, and why. Raises UnreachableError."""
    refused = {}
    for part in _chunks(sorted(targets), _PARTITIONS_OF_A_REQUEST):
        answer = brokers.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            timeout_ms=ADMIN_TIMEOUT_MS,
            topics=[
                {
                    "name": topic,
                    "partitions": [
                        {"partition_index": one.partition, "replicas": _replicas(targets[one])} for one in group
                    ],
                }
                for topic, group in by_topic(part)
            ],
        )
        for topic in answer.responses:
            for partition in topic.partitions:
                at = TopicPartition(topic.name, partition.partition_index)
                try:
                    succeed(
                        "partition",
                        str(at),
                        {"error_code": partition.error_code, "error_message": partition.error_message},
                    )
                except TopicRequestError as error:
                    refused[at] = str(error)
    return refused


def watch(brokers: AdminClient, targets: Targets, sizes: Sizes | None = None) -> Iterator[Progress]:
    """How far those of `targets` have come, again and again until all have ended. Raises UnreachableError.

    sizes: made before they were asked for; without it only those that still move count in bytes.
    """
    progress = Progress(len(targets))
    waiting = dict(targets)
    sizes = sizes or Sizes(brokers, targets, {})
    sizes.keep(targets)
    idle_since: dict[TopicPartition, float] = {}
    while True:
        moving = under_way(brokers)
        there = assignment(brokers.metadata({one.topic for one in waiting}))
        for one in list(waiting):
            outcome = None if one in moving else _outcome(one, targets[one], there.get(one), idle_since)
            if outcome is None:
                continue
            del waiting[one]
            if outcome:
                progress.failed[one] = outcome
            else:
                progress.done.append(one)
        progress.bytes, progress.bytes_to_copy = sizes.look(
            {one: there[one] for one in waiting if one in there},
            {one: moving[one] for one in waiting if one in moving},
        )
        yield progress
        if progress.ended:
            return
        time.sleep(POLL_S)  # the cluster tells nobody of its own accord


def _outcome(
    one: TopicPartition, target: Sequence[int] | None, told: Any, idle_since: dict[TopicPartition, float]
) -> str | None:
    """Of a partition that does not move: "" done, else why it will not be; None while that cannot be said."""
    if told is None:
        return f"{one}: it has been deleted"
    replicas = list(told.replica_nodes)
    if target is None or replicas == list(target):
        return ""
    now = time.monotonic()
    if now - idle_since.setdefault(one, now) > BEGUN_WITHIN_S:
        return f"{one}: it is not being reassigned, and its replicas are {replicas}: was it cancelled?"
    return None


class Sizes:
    """Bytes of the replicas that join, as they grow.

    before: the metadata of `targets` before these are asked for. Their leaders are asked at once for what they hold: it
    may be gone when that has been done.
    """

    def __init__(self, brokers: AdminClient, targets: Targets, before: Mapping[TopicPartition, Any]) -> None:
        self._brokers = brokers
        self._joining: dict[TopicPartition, tuple[int, ...]] = {
            one: tuple(broker for broker in targets[one] or () if broker not in told.replica_nodes)
            for one, told in before.items()
        }
        self._whole = leader_sizes(brokers, before)

    def keep(self, targets: Targets) -> None:
        """Forget all others: they were refused."""
        self._joining = {one: brokers for one, brokers in self._joining.items() if one in targets}

    def look(self, there: Mapping[TopicPartition, Any], moving: Mapping[TopicPartition, UnderWay]) -> tuple[int, int]:
        """(copied, to copy). there: those that have not ended; all others count as copied."""
        for one, state in moving.items():
            self._joining[one] = state.adding
        self._whole.update(leader_sizes(self._brokers, there))
        wanted: dict[int, list[TopicPartition]] = {}
        for one in there:
            for broker in self._joining.get(one, ()):
                wanted.setdefault(broker, []).append(one)
        held = replica_sizes(self._brokers, wanted)
        missing = sum(
            max(0, self._whole.get(one, 0) - held.get(broker, {}).get(one, 0))
            for broker, ones in wanted.items()
            for one in ones
        )
        whole = sum(self._whole.get(one, 0) * len(brokers) for one, brokers in self._joining.items())
        return whole - missing, whole


def leader_sizes(brokers: AdminClient, there: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
    """Bytes of each partition as its leader holds it; those whose leader does not answer are left out."""
    led: dict[int, list[TopicPartition]] = {}
    for one, told in there.items():
        led.setdefault(told.leader_id, []).append(one)
    return {one: size for sizes in replica_sizes(brokers, led).values() for one, size in sizes.items()}


def exists(brokers: AdminClient, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
    """What the metadata say of these. Raises TopicRequestError for one that there is not."""
    partitions = list(partitions)
    metadata = brokers.metadata({partition.topic for partition in partitions})
    for topic in metadata.topics:
        succeed("topic", topic.name, {"error_code": topic.error_code})
    there = assignment(metadata)
    for partition in partitions:
        if partition not in there:
            count = sum(at.topic == partition.topic for at in there)
            raise TopicRequestError(f"there is no partition {partition}: the topic has {count}, counted from 0")
    return {partition: there[partition] for partition in partitions}


def _replicas(target: Sequence[int] | None) -> list[int] | None:
    return None if target is None else list(target)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
