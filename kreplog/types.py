"""Plain values that cross module borders: frozen, slotted, no behaviour beyond parsing a directory name."""

from __future__ import annotations

import ipaddress
import re
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import NamedTuple

from kreplog.errors import InvalidTopicError

MAX_PARTITION = 2**31 - 1

_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LEGAL_TOPIC_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LEGAL_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


def check_topic(topic: str) -> str:
    """Return `topic` if Kafka's naming rules allow it, else raise InvalidTopicError. Source: Kafka, Topic.validate."""
    if not _LEGAL_TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise InvalidTopicError(
            f"{topic!r} is no legal topic name: use 1 to 249 of [a-zA-Z0-9._-], and not '.' or '..'"
        )
    return topic


def check_topic_id(topic_id: str) -> str:
    """Return `topic_id` if it may be one, as of Kafka's 22 characters of base64url, else raise InvalidTopicError."""
    if not _LEGAL_TOPIC_ID.fullmatch(topic_id):
        raise InvalidTopicError(f"{topic_id!r} is no legal topic id: use 1 to 64 of [a-zA-Z0-9_-]")
    return topic_id


def topic_id_text(topic_id: uuid.UUID) -> str:
    """A topic id as Kafka writes it: 22 characters of URL-safe base64 (KIP-516)."""
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


@lru_cache(maxsize=1024)  # a topic's partitions share it, and a plan reads that of each
def topic_uuid(text: str) -> uuid.UUID:
    """The topic id of which `text` is Kafka's form. Raises ValueError."""
    return uuid.UUID(bytes=urlsafe_b64decode(text + "=="))


def check_partition_number(number: int) -> int:
    """Return `number` if a partition may have it, 0 to 2**31 - 1, else raise InvalidTopicError."""
    if not 0 <= number <= MAX_PARTITION:
        raise InvalidTopicError(f"{number} is no partition number: use 0 to {MAX_PARTITION}")
    return number


def check_partition(partition: TopicPartition) -> TopicPartition:
    """Return `partition` if its topic and its number are legal, so that its name may become a path; else raise
    InvalidTopicError."""
    check_topic(partition.topic)
    check_partition_number(partition.partition)
    return partition


class Codec(StrEnum):
    """Compression of record batches."""

    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


class TopicPartition(NamedTuple):
    """A partition of a topic; `str()` is its directory name, `<topic>-<partition>`.

    A tuple, since it is what everything is looked up by.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, name: str) -> TopicPartition:
        """The partition of a directory name. Raises InvalidTopicError if that is not `<topic>-<partition>`."""
        topic, dash, number = name.rpartition("-")
        if not dash or not _LEGAL_NUMBER.fullmatch(number):
            raise InvalidTopicError(
                f"{name!r} is no partition directory: it must be named <topic>-<partition>, as in 'flights-0'"
            )
        return check_partition(cls(topic, int(number)))


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """The result of an append of encoded batches.

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
    """The largest leader epoch known at or below the requested one, and the offset where it ends (KIP-279).

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
    """A part that recovery dropped from one file: `bytes` from `position` on, where `offset` should have begun, and
    why."""

    path: str
    position: int
    offset: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of verify: what it read, and every damage found (none when the log is sound).

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


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The result of one `Log.compact`.

    start_offset, end_offset: of the dirty records, whose keys it knew; below end_offset older records of them are gone.
    keys: how many it knew. records_dropped: superseded, without a key, or tombstones that have expired. bytes and
    segments: of all sealed segments that it may look at, before and after.
    """

    start_offset: int
    end_offset: int
    keys: int
    records_dropped: int
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int


class ActiveProducer(NamedTuple):
    """An idempotent producer with state in a log.

    last_sequence: of its newest batch, and last_timestamp, of that or of its last marker, in ms; -1 for none.
    coordinator_epoch: of its last marker, -1 for none. transaction_start: the first offset of its open transaction, -1
    for none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int


@dataclass(frozen=True, slots=True)
class CompactionBacklog:
    """The work of a compaction of a log, in the segments that it may look at.

    clean_bytes, dirty_bytes: below and above the cleaner checkpoint. overdue_ms: by how much the oldest dirty record is
    older than max_compaction_lag_ms, 0 if it is not. min_dirty_ratio: min_cleanable_dirty_ratio of the log."""

    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    min_dirty_ratio: float

    @property
    def dirty_ratio(self) -> float:
        """The share of the bytes that is dirty."""
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)

    @property
    def is_due(self) -> bool:
        """Whether enough is dirty, or something for too long. Source: KIP-354, Kafka's LogCleanerManager."""
        return self.dirty_bytes > 0 and (self.overdue_ms > 0 or self.dirty_ratio > self.min_dirty_ratio)


NO_LEADER = -1
"""The leader of a partition that has none."""

NO_EPOCH = -1
"""No leader epoch is known."""


class ElectionType(IntEnum):
    """The elections that a client may request (KIP-460).

    PREFERRED: of the first assigned replica, if it is in sync. UNCLEAN: of any live replica of a partition that has no
    leader; committed records may be lost.
    """

    PREFERRED = 0
    UNCLEAN = 1


class LeaderAndIsr(NamedTuple):
    """The leader and the in-sync replicas of a partition; the content of its `leaderAndISR` node. A tuple, since
    thousands are made at once.

    leader: broker id or NO_LEADER. leader_epoch: rises with every write by a controller. isr: in-sync replicas, sorted.
    elr: eligible leader replicas, which left while the ISR was below min.insync.replicas and so still hold all that is
    committed; sorted, disjoint from isr (KIP-966). controller_epoch: of the controller that last wrote it.
    partition_epoch: the node's version, for compare-and-set; not part of the content. flush_every_record: whether
    flush.messages is 1 in this leader epoch, so that a fetch offset promises fsynced records; fixed for the epoch.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    controller_epoch: int = 0
    partition_epoch: int = 0
    flush_every_record: bool = False


class SecurityProtocol(IntEnum):
    """Kafka's security protocols of listeners, by their numbers in UpdateMetadata: SSL is TLS, SASL_ authenticates."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def encrypts(self) -> bool:
        """Whether its connections are TLS."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def authenticates(self) -> bool:
        """Whether its connections begin with SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


DEFAULT_LISTENER = SecurityProtocol.PLAINTEXT.name
"""The name of listeners that are given without one."""


class ConfigResource(IntEnum):
    """Types of resources that have configs, by their numbers in requests; here no loggers and client metrics have."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Endpoint(NamedTuple):
    """Where clients reach a broker by its listener of that name, which is upper-case."""

    listener: str
    host: str
    port: int
    security_protocol: SecurityProtocol


def is_loopback(host: str) -> bool:
    """Whether only processes of this host can connect to it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_text(host: str, port: int) -> str:
    """host:port, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def counted(count: int, noun: str) -> str:
    """A number of things in words, such as "1 topic" or "1,200 topics"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    """A client's own text for a terminal, with escapes in place of control characters."""
    return text if text.isprintable() else repr(text)[1:-1]


KREPLOG_VERSION = "kreplog.version"
"""The feature of KIP-584 that core.features has the levels of."""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """A registered broker: the content of `/brokers/ids/[id]`, and the epoch of that registration (KIP-380).

    host, port: where clients reach its first listener. endpoints: of all its listeners for clients, the first one
    too; none if that is PLAINTEXT and the only one, as before there were others. stopping: it announced its
    shutdown. unclean: it came back from a crash in which unflushed data may have been lost. internal: where other
    brokers reach it, host and port, or the path of a unix socket and 0; None: its registration does not say.
    directories: ids of the log directories that it has locked. supported_versions: the least and the greatest level of
    kreplog.version that it supports (core.features).
    """

    id: int
    epoch: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    stopping: bool = False
    unclean: bool = False
    internal: tuple[str, int] | None = None
    directories: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    supported_versions: tuple[int, int] = (1, 1)

    def at(self, listener: str) -> BrokerRegistration | None:
        """The broker with the host and port of its listener of that name; None if it has no such listener."""
        if not self.endpoints:
            return self if listener == DEFAULT_LISTENER else None
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                host, port = endpoint.host, endpoint.port
                return self if (host, port) == (self.host, self.port) else replace(self, host=host, port=port)
        return None


def endpoints_of(broker: BrokerRegistration) -> tuple[Endpoint, ...]:
    """The endpoints of a broker's listeners for clients, the first one first."""
    alone = Endpoint(DEFAULT_LISTENER, broker.host, broker.port, SecurityProtocol.PLAINTEXT)
    return broker.endpoints or (alone,)


def named_endpoints(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """`endpoints` as a BrokerRegistration has them."""
    found = tuple(endpoints)
    alone = len(found) == 1 and found[0].listener == DEFAULT_LISTENER
    return () if alone and not found[0].security_protocol else found


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node. ephemeral: it goes with the session. sequential: ten digits, rising, are added to its name."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data if it is at `version`; -1 for any."""

    path: str
    data: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a childless node if it is at `version`; -1 for any."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Check:
    """Fail the multi unless the node is at `version`; -1: unless it exists."""

    path: str
    version: int = -1


StoreOperation = Create | SetData | Delete | Check
"""One write of a multi."""


@dataclass(frozen=True, slots=True)
class NodeStat:
    """The versions and times of a node of the store. version: writes to the data since creation, 0 at first. created,
    modified: the store's transaction ids.

    ephemeral_owner: the session that the node goes with, 0 for a persistent one. children: how many.
    """

    version: int
    created: int
    modified: int
    ephemeral_owner: int = 0
    children: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A node as read: its data and its stat."""

    data: bytes
    stat: NodeStat


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event that a one-shot watch saw; the watch is gone with it.

    kind: "created" or "deleted" (of the node), "changed" (its data), "children" (one was created or deleted).
    """

    path: str
    kind: str
