"""Requests of at most 1 MB that are made to hold up a broker: many entries, repeated or unknown, and bombs.

Written by hand, byte by byte, since a library would take longer to write them than a broker to refuse them. Classic
strings and arrays but where an API has flexible versions alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from kreplog._native.batch import build
from kreplog.wire.versions import ApiKey

MOST_BYTES = 1_000_000
BOMB_BYTES = (64 << 20) - 64
"""Size of a bomb's only record when inflated: the limit of a batch."""


@dataclass(frozen=True)
class Flood:
    name: str
    api_key: int
    version: int
    body: bytes
    flexible: bool = False

    def frame(self, correlation_id: int = 1) -> bytes:
        header = struct.pack(">hhih", self.api_key, self.version, correlation_id, -1) + (
            b"\0" if self.flexible else b""
        )
        return struct.pack(">i", len(header) + len(self.body)) + header + self.body


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def array(items: list[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def compact_text(value: str) -> bytes:
    return varint(len(value) + 1) + value.encode()


def compact_array(items: list[bytes]) -> bytes:
    return varint(len(items) + 1) + b"".join(items)


def repeated(item: bytes, room: int = MOST_BYTES - 1000) -> list[bytes]:
    """As many copies of the item as fit in `room` bytes."""
    return [item] * (room // len(item))


def unknown_names(size: int) -> list[str]:
    """Distinct, as many as fit in a frame where each takes `size` bytes besides its name of 7."""
    return [f"u{number:06d}" for number in range((MOST_BYTES - 1000) // (size + 7))]


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def bomb(size: int = BOMB_BYTES, compression: str = "zstd") -> bytes:
    """A batch of about 2 KB (gzip: 64 KB) that inflates to `size` bytes."""
    return build([bytes(size)], timestamps_ms=[1000], compression=compression)


def produce(topic: str, batches: list[tuple[int, bytes]], acks: int = 1) -> bytes:
    partitions = [int32(number) + int32(len(batch)) + batch for number, batch in batches]
    return struct.pack(">hhi", -1, acks, 30_000) + array([text(topic) + array(partitions)])


def list_offsets(topic: str, partitions: list[tuple[int, int]]) -> bytes:
    """partitions: (number, timestamp)."""
    return int32(-1) + array(
        [text(topic) + array([int32(number) + int64(timestamp) for number, timestamp in partitions])]
    )


def fetch(topic: str, partitions: list[bytes], *, wait_ms: int = 0, epoch: int = -1, session: int = 0) -> bytes:
    head = struct.pack(">iiiibii", -1, wait_ms, 1, 1 << 20, 0, session, epoch)
    return head + array([text(topic) + array(partitions)]) + array([])


def fetched(number: int, offset: int = 0) -> bytes:
    return struct.pack(">iqqi", number, offset, 0, 1 << 20)


def new_topic(name: str, partitions: int, replicas: int = 1) -> bytes:
    """An entry of CreateTopics."""
    return text(name) + struct.pack(">ih", partitions, replicas) + array([]) + array([])


def floods(topic: str) -> Iterator[Flood]:
    """Each API that clients have, with as many entries as fit: of one name or partition, or of none that exist."""
    name = text(topic)
    twice = [int32(0)]
    key = ApiKey
    yield Flood("metadata-repeated", key.METADATA, 4, array(repeated(name, 570_000)) + b"\0")
    yield Flood("metadata-unknown", key.METADATA, 4, array([text(each) for each in unknown_names(2)]) + b"\0")
    entry = b"\2" + name + int32(-1)
    yield Flood("describe-configs-repeated", key.DESCRIBE_CONFIGS, 1, array(repeated(entry)) + b"\1")
    keys = b"\2" + name + array(repeated(text("x")))
    yield Flood("describe-configs-keys", key.DESCRIBE_CONFIGS, 1, array([keys]) + b"\1")
    partitions = array(repeated(int32(0) + int64(-1)))
    yield Flood("list-offsets-repeated", key.LIST_OFFSETS, 1, int32(-1) + array([name + partitions]))
    partitions = array([int32(number) + int64(1) for number in range(80_000)])
    yield Flood("list-offsets-unknown", key.LIST_OFFSETS, 1, int32(-1) + array([name + partitions]))
    yield Flood("fetch-session", key.FETCH, 7, fetch(topic, [fetched(number) for number in range(40_000)], epoch=0))
    yield Flood("fetch-repeated", key.FETCH, 7, fetch(topic, repeated(fetched(0)), epoch=-1))
    records = build([b"x"])
    yield Flood("produce-repeated", key.PRODUCE, 3, produce(topic, [(0, records)] * (MOST_BYTES // 90)))
    producers = [
        (0, build([b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=0)) for producer_id in range(11_000)
    ]
    yield Flood("produce-producer-ids", key.PRODUCE, 3, produce(topic, producers))
    yield Flood("offset-for-leader-epoch", key.OFFSET_FOR_LEADER_EPOCH, 2,
                array([name + array(repeated(int32(0) + int32(-1) + int32(0)))]))  # fmt: skip
    yield Flood("delete-records", key.DELETE_RECORDS, 0,
                array([name + array(repeated(int32(0) + int64(0)))]) + int32(1000))  # fmt: skip
    yield Flood("create-topics-repeated", key.CREATE_TOPICS, 2, array(repeated(new_topic("n", 1))) + int32(100) + b"\1")
    many = [new_topic(f"new{number}", 100) for number in range(40_000)]
    yield Flood("create-topics-many", key.CREATE_TOPICS, 2, array(many) + int32(100) + b"\1")
    large = [new_topic(f"new{number}", 2**31 - 1, 3) for number in range(50)]
    yield Flood("create-topics-large", key.CREATE_TOPICS, 2, array(large) + int32(100) + b"\1")
    placed = array(repeated(int32(0) + array([int32(0)])))
    created = text("n") + struct.pack(">ih", -1, -1) + placed + array([])
    yield Flood("create-topics-assignments", key.CREATE_TOPICS, 2, array([created]) + int32(100) + b"\1")
    yield Flood(
        "delete-topics",
        key.DELETE_TOPICS,
        1,
        array([text(each) for each in unknown_names(2)]) + int32(100),
    )
    yield Flood("create-partitions", key.CREATE_PARTITIONS, 0,
                array(repeated(name + int32(4) + int32(-1))) + int32(100) + b"\1")  # fmt: skip
    altered = b"\2" + name + array([text("retention.ms") + text("1000")])
    yield Flood("alter-configs", key.ALTER_CONFIGS, 0, array(repeated(altered)) + b"\1")
    altered = b"\2" + name + array([text("retention.ms") + b"\0" + text("1000")])
    yield Flood("incremental-alter-configs", key.INCREMENTAL_ALTER_CONFIGS, 0, array(repeated(altered)) + b"\1")
    yield Flood("describe-log-dirs", key.DESCRIBE_LOG_DIRS, 1, array(repeated(name + array(twice))))
    yield Flood("elect-leaders", key.ELECT_LEADERS, 1, b"\0" + array(repeated(name + array(twice))) + int32(100))
    moved = compact_text(topic) + compact_array(repeated(int32(0) + compact_array([int32(0)]) + b"\0")) + b"\0"
    body = int32(100) + compact_array([moved]) + b"\0"
    yield Flood("alter-partition-reassignments", key.ALTER_PARTITION_REASSIGNMENTS, 0, body, True)
    moved = compact_text(topic) + compact_array(twice) + b"\0"
    body = int32(100) + compact_array(repeated(moved)) + b"\0"
    yield Flood("list-partition-reassignments", key.LIST_PARTITION_REASSIGNMENTS, 0, body, True)
    body = b"\0" + compact_array(repeated(compact_text("g"))) + b"\0"
    yield Flood("find-coordinator", key.FIND_COORDINATOR, 4, body, True)
    yield Flood("offset-fetch", key.OFFSET_FETCH, 1, text("g") + array(repeated(name + array(twice))))


def bombs(topic: str) -> Iterator[Flood]:
    """Batches that expand to thousands of times their size."""
    for compression in ("zstd", "gzip", "lz4"):
        batch = bomb(compression=compression)
        count = min(200, (MOST_BYTES - 1000) // (len(batch) + 8))
        yield Flood(f"produce-{compression}", ApiKey.PRODUCE, 3, produce(topic, [(0, batch)] * count))


def wide_floods(topic: str, partitions: int) -> Iterator[Flood]:
    """As many entries as are let pass where `topic` has so many partitions, which they name, some more than once."""
    name, key = text(topic), ApiKey
    numbers = [int32(number % partitions) for number in range(2 * partitions)]
    yield Flood("metadata", key.METADATA, 4, array([name] * 900) + b"\0")
    yield Flood(
        "metadata-unknown",
        key.METADATA,
        4,
        array([text(each) for each in unknown_names(2)[:900]]) + b"\0",
    )
    yield Flood("describe-configs", key.DESCRIBE_CONFIGS, 1,
                array([b"\2" + text(t) + int32(-1) for t in [*unknown_names(2)[:900], topic]]) + b"\1")  # fmt: skip
    listed = array([number + int64(-1) for number in numbers[:partitions]])
    yield Flood("list-offsets", key.LIST_OFFSETS, 1, int32(-1) + array([name + listed]))
    entries = array([number + int32(-1) + int32(0) for number in numbers])
    yield Flood("offset-for-leader-epoch", key.OFFSET_FOR_LEADER_EPOCH, 2, array([name + entries]))
    entries = array([number + int64(0) for number in numbers])
    yield Flood("delete-records", key.DELETE_RECORDS, 0, array([name + entries]) + int32(1000))
    yield Flood("fetch", key.FETCH, 7, fetch(topic, [fetched(number) for number in range(4_500)]))
    records = build([b"x"])
    yield Flood("produce", key.PRODUCE, 3, produce(topic, [(number % partitions, records) for number in range(1500)]))
    yield Flood("describe-log-dirs", key.DESCRIBE_LOG_DIRS, 1, array([name + array(numbers)]))
    yield Flood("alter-replica-log-dirs", key.ALTER_REPLICA_LOG_DIRS, 1,
                array([text("/nowhere") + array([name + array(numbers)])]))  # fmt: skip
    yield Flood("elect-leaders", key.ELECT_LEADERS, 1, b"\0" + array([name + array(numbers)]) + int32(100))
    yield Flood("offset-fetch", key.OFFSET_FETCH, 1, text("g") + array([name + array(numbers)]))
    altered = [b"\2" + text(each) + array([text("retention.ms") + text("1000")]) for each in unknown_names(2)[:400]]
    yield Flood("alter-configs", key.ALTER_CONFIGS, 0, array(altered) + b"\1")
