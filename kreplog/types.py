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

    first_offset, last_offset: inclusive, of all the batches together. records: as counted in their headers; a leader's
    compacted batch may hold fewer than its offsets. bytes: written, 0 for a duplicate. max_timestamp: in ms, -1 for no
    records. log_append_time_ms: -1 under CreateTime, and from a leader. duplicate: an idempotent retry, answered with
    its original offsets, nothing written.
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

    One older than all that are known is answered with itself, ending where the first known begins; one newer than all,
    with -1 and -1.
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
    """What verify read, and every damage found (none when the log is sound).

    start_offset, end_offset: the range looked at, end exclusive. batches, records: the sound ones. bytes: all that was
    looked at, damage included.
    """

    start_offset: int
    end_offset: int
    segments: int
    batches: int
    records: int
    bytes: int
    damages: tuple[Damage, ...]
