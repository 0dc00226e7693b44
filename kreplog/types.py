"""Plain values that cross module borders: frozen, slotted, no behaviour beyond parsing a directory name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kreplog.errors import InvalidTopicError

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_topic(topic: str) -> str:
    """Return `topic` if Kafka's naming rules allow it, else raise InvalidTopicError. Source: Kafka, Topic.validate."""
    if not _LEGAL_TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopicError(
            f"{topic!r} is no legal topic name: use 1 to 249 of [a-zA-Z0-9._-], and not '.' or '..'"
        )
    return topic


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic; `str()` is its directory name, `<topic>-<partition>`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, name: str) -> TopicPartition:
        """From a directory name. Raises InvalidTopicError when it is not `<topic>-<partition>`."""
        topic, dash, number = name.rpartition("-")
        if (
            not dash
            or not number.isascii()
            or not number.isdigit()
            or str(int(number)) != number
            or int(number) >= 2**31
        ):
            raise InvalidTopicError(
                f"{name!r} is no partition directory: it must be named <topic>-<partition>, as in 'flights-0'"
            )
        return cls(check_topic(topic), int(number))


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What an append of encoded batches did.

    first_offset..last_offset (inclusive); -1 and -2 for no records. max_timestamp in ms, -1 if none.
    log_append_time_ms is -1 under CreateTime. duplicate: an idempotent retry, answered with its original offsets,
    nothing written.
    """

    first_offset: int
    last_offset: int
    records: int
    bytes: int
    max_timestamp: int
    log_append_time_ms: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class FileRegion:
    """Bytes [position, position + count) of an open file, for os.sendfile; `fd` stays open while its Fetched lives."""

    fd: int
    position: int
    count: int


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """The largest leader epoch known at or below the one asked for, and the offset where it ends (KIP-279).

    Both are -1 where no such epoch is known.
    """

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """One finding of verify: the file, the byte position and the offset expected there, and what is wrong."""

    path: str
    position: int
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cut:
    """What recovery dropped from one file: `bytes` from `position` on, where `offset` should have begun, and why."""

    path: str
    position: int
    offset: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verify read: counts of whole, sound batches, and every damage found (empty when the log is sound)."""

    start_offset: int
    end_offset: int
    segments: int
    batches: int
    records: int
    bytes: int
    damages: tuple[Damage, ...]
