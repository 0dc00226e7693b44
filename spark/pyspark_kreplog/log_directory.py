"""The partition directories below the option `path`: which of them a read covers, and the offsets that each holds now.

A directory is opened read-only and closed again at once: a log that retention, truncation or deletion changes
meanwhile is the normal case. Nothing here knows of Spark.
"""

from __future__ import annotations

import logging
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep
from typing import Protocol

import kreplog
from kreplog.errors import InvalidTopicError, KreplogError, StorageError, UsageError
from kreplog.types import TopicPartition
from pyspark_kreplog.bounds import CommittedLog, end_offset
from pyspark_kreplog.options import ReadOptions

_END_OFFSET_PAUSES_S = (0.05, 0.2, 1.0)
_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

_CONFIG = kreplog.LogConfig()

_log = logging.getLogger("pyspark_kreplog")


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """A partition at one moment: committed records of [start_offset, end_offset), under this topic id.

    leader_epochs: (leader epoch, start offset) of those that the log knows, oldest first. incarnation_id: of a log that
    no broker made; None for others.
    """

    start_offset: int
    end_offset: int
    topic_id: str | None
    leader_epochs: tuple[tuple[int, int], ...]
    incarnation_id: str | None = None


class IdentifiedLog(CommittedLog, Protocol):
    """A log that knows the id of its topic, its incarnation id, and its leader epochs with their start offsets."""

    @property
    def topic_id(self) -> uuid.UUID | None: ...

    @property
    def incarnation_id(self) -> str | None: ...

    @property
    def leader_epochs(self) -> Sequence[tuple[int, int]]: ...


def topic_id_of(log: IdentifiedLog) -> str | None:
    """The topic id of the log as text; None where it has none, as the logs that no broker made."""
    topic_id = log.topic_id
    return None if topic_id is None else str(topic_id)


def require_same_topic(partition: TopicPartition, expected: str | None, found: str | None, *, stream: bool) -> None:
    """Raise KreplogError with both ids if the topic was deleted and created again since `expected` was noted."""
    if found != expected:
        remedy = "start the query with a new checkpointLocation to read the new topic" if stream else "load() again"
        raise KreplogError(
            f"{partition}: the topic was deleted and created again: its topic id was {expected} and is now "
            f"{found}: {remedy}",
            partition=str(partition),
        )


def require_same_incarnation(
    partition: TopicPartition, expected: str | None, found: str | None, *, stream: bool
) -> None:
    """Raise KreplogError with both ids if the partition, perhaps alone of its topic, was deleted and created again.

    None: not known, of a log that a broker or an earlier version made, or whose state file was lost."""
    if expected is not None and found is not None and found != expected:
        remedy = "start the query with a new checkpointLocation to read the new one" if stream else "load() again"
        raise KreplogError(
            f"{partition}: the partition was deleted and created again: its incarnation id was {expected} and is now "
            f"{found}: {remedy}",
            partition=str(partition),
        )


def await_end_offset(log: CommittedLog, offset: int, isolation_level: str) -> int:
    """As end_offset, which is given a moment to reach `offset`: it may step back at a change of the leader."""
    for pause_s in _END_OFFSET_PAUSES_S:
        if end_offset(log, isolation_level) >= offset:
            break
        sleep(pause_s)  # nothing wakes a reader of the files when the new leader's high watermark has caught up
    return end_offset(log, isolation_level)


def partition_path(options: ReadOptions, partition: TopicPartition) -> str:
    return f"{options.path}/{partition}"


def subscribed_partitions(options: ReadOptions) -> list[TopicPartition]:
    """The partitions that the options name and that have a directory, sorted. Raises UsageError for a missing topic."""
    return require_subscribed(options, discover(options.path))


def require_subscribed(options: ReadOptions, found: Sequence[TopicPartition]) -> list[TopicPartition]:
    """The partitions among `found` that the options name. Raises UsageError for a topic without any."""
    partitions, missing_topics = select_subscribed(options, found)
    if missing_topics:
        topics = sorted({partition.topic for partition in found})
        option = "subscribe" if options.topics is not None else "assign"
        raise UsageError(
            f"option '{option}': there is no topic {', '.join(missing_topics)} in {options.location}; it holds "
            f"{', '.join(topics) or 'no topic at all'}"
        )
    if options.assigned is not None and len(partitions) < len(options.assigned):
        unknown = sorted(set(options.assigned) - set(partitions))
        _log.warning("option 'assign': there is no partition %s in %s", ", ".join(map(str, unknown)), options.location)
    return partitions


def find_subscribed(options: ReadOptions) -> tuple[list[TopicPartition], list[str]]:
    """The partitions that the options name and that have a directory, and the topics named that have none; sorted."""
    return select_subscribed(options, discover(options.path))


def select_subscribed(options: ReadOptions, found: Sequence[TopicPartition]) -> tuple[list[TopicPartition], list[str]]:
    """The partitions among `found` that the options name, and the topics named that have none."""
    topics = {partition.topic for partition in found}
    if options.pattern is not None:
        matching = {topic for topic in topics - _INTERNAL_TOPICS if re.search(options.pattern, topic)}
        return [partition for partition in found if partition.topic in matching], []
    if options.assigned is not None:
        named = {partition.topic for partition in options.assigned}
        present = set(found)
        return [partition for partition in options.assigned if partition in present], sorted(named - topics)
    named = set(options.topics or ())
    return [partition for partition in found if partition.topic in named], sorted(named - topics)


def discover(path: str) -> list[TopicPartition]:
    """Every <topic>-<partition> directory in `path`, sorted; other entries are ignored."""
    if not os.path.isdir(path):
        raise UsageError(f"option 'path' = {path!r} is no directory", path=path)
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                partition = TopicPartition.parse(entry.name)
            except InvalidTopicError:
                continue
            if entry.is_dir():
                found.append(partition)
    if not found and any(name.endswith(".log") for name in os.listdir(path)):
        raise UsageError(
            f"option 'path' = {path!r} is the directory of one partition: give its parent, {os.path.dirname(path)!r}, "
            "and name the partition with subscribe or assign",
            path=path,
        )
    return sorted(found)


def open_log(path: str) -> kreplog.Log | None:
    """The log in the directory `path`, open to be read; None while it is being created or deleted.

    Raises StorageError for a directory that holds a log which cannot be read.
    """
    try:
        return kreplog.Log.open(path, _CONFIG, read_only=True)
    except (StorageError, UsageError, FileNotFoundError):
        if _holds_segment(path):
            raise
        return None


def _holds_segment(path: str) -> bool:
    try:
        return any(name.endswith(".log") for name in os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
