"""What consumers of the classic protocol send each other through their coordinator: untrusted bytes of Kafka's clients.

    subscription  int16 version, array of text topics, nullable bytes user data,
                  1: array of owned topics, 2: int32 generation, 3: text|null rack
    assignment    int16 version, array of topics, nullable bytes user data
    a topic       text name, array of int32 partitions
    text, array, bytes: behind an int16, int32, int32 length or count, of which -1 is null's

A version that is not known begins as the last known one. Source: Kafka, ConsumerProtocolSubscription,
ConsumerProtocolAssignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kreplog.types import TopicPartition

CONSUMER_PROTOCOL = "consumer"
"""The protocol type of groups whose members are consumers of topics."""

_OWNED_FROM, _GENERATION_FROM, _RACK_FROM = 1, 2, 3
"""Versions of a subscription."""


class Subscription(NamedTuple):
    """The subscription that a member has joined with. owned: the partitions that it held then, none if it had given up
    all."""

    version: int
    topics: frozenset[str]
    owned: frozenset[TopicPartition]
    rack_id: str | None


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a subscription, whatever follows them; None if these bytes are none."""
    try:
        reader = _Reader(metadata)
        reader.number(2)
        return frozenset(reader.texts())
    except ValueError:
        return None


def read_subscription(metadata: bytes) -> Subscription | None:
    """None if these bytes are no subscription."""
    try:
        reader = _Reader(metadata)
        version, topics = reader.version(), frozenset(reader.texts())
        reader.skip_octets()
        owned = reader.partitions() if version >= _OWNED_FROM else frozenset()
        if version >= _GENERATION_FROM:
            reader.number(4)
        return Subscription(version, topics, owned, reader.text_or_null() if version >= _RACK_FROM else None)
    except ValueError:
        return None


def write_subscription(topics: Iterable[str], owned: Iterable[TopicPartition] = ()) -> bytes:
    """A subscription of the first version that says what its member owns."""
    names = [len(name.encode()).to_bytes(2, "big") + name.encode() for name in sorted(topics)]
    owned_topics = write_assignment(owned, _OWNED_FROM)[2:-4]
    head = _OWNED_FROM.to_bytes(2, "big") + len(names).to_bytes(4, "big")
    return b"".join((head, *names, b"\xff\xff\xff\xff", owned_topics))


def read_assignment(assignment: bytes) -> frozenset[TopicPartition] | None:
    """The partitions, none of b"", which a member has that has just joined; None if these bytes are no assignment."""
    if not assignment:
        return frozenset()
    try:
        reader = _Reader(assignment)
        reader.version()
        return reader.partitions()
    except ValueError:
        return None


def write_assignment(partitions: Iterable[TopicPartition], version: int) -> bytes:
    """The bytes of an assignment. version: of the subscription of the member that it is for."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    parts = [version.to_bytes(2, "big"), len(topics).to_bytes(4, "big")]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += [len(name).to_bytes(2, "big"), name, len(numbers).to_bytes(4, "big")]
        parts += [number.to_bytes(4, "big") for number in numbers]
    return b"".join((*parts, b"\xff\xff\xff\xff"))


class _Reader:
    """Raises ValueError where the bytes end too early or make no sense."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self._at = 0

    def _take(self, size: int) -> bytes:
        if size < 0 or size > len(self._octets) - self._at:
            raise ValueError(f"{size} bytes are missing at {self._at}")
        self._at += size
        return self._octets[self._at - size : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def version(self) -> int:
        version = self.number(2)
        if version < 0:
            raise ValueError(f"{version} is no version")
        return version

    def text_or_null(self) -> str | None:
        size = self.number(2)
        return None if size == -1 else self._take(size).decode()

    def _count(self, item_size: int) -> int:
        """The length of an array whose items have at least so many bytes."""
        count = self.number(4)
        if count < 0 or count > (len(self._octets) - self._at) // item_size:
            raise ValueError(f"there is no room for {count} items")
        return count

    def texts(self) -> list[str]:
        return [self._take(self.number(2)).decode() for _ in range(self._count(2))]

    def skip_octets(self) -> None:
        size = self.number(4)
        if size != -1:
            self._take(size)

    def partitions(self) -> frozenset[TopicPartition]:
        found = set()
        for _ in range(self._count(6)):
            topic = self._take(self.number(2)).decode()
            for _ in range(self._count(4)):
                number = self.number(4)
                if number < 0:
                    raise ValueError(f"{number} is no partition")
                found.add(TopicPartition(topic, number))
        return frozenset(found)
