"""PartitionModel: the checkers' model of one partition: its committed records, its leaders, and excused losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kreplog.config import TopicConfig
from kreplog.types import LeaderAndIsr, TopicPartition

Fact = tuple[int, int, bytes]
"""Producer id, sequence and value of a record."""


class Lost(NamedTuple):
    """A power failure took [start, end) from a broker under its `registration`-th registration, in a leader epoch."""

    start: int
    end: int
    registration: int
    leader_epoch: int


class PartitionModel:
    """The model of one partition of one topic id.

    values: committed records by offset; end: the exclusive end of those. acked: (offset, fact) under acks=all. members:
    ISR and eligible replicas in the store. lost: brokers that lost records to a power failure and have not refetched
    them: until a broker leads in a later epoch, a fetch that was under way at the failure still counts. leaders,
    committers: broker by leader epoch. led_epoch: the newest epoch in which a broker leads, later than in the store.
    excused: why violations are ignored from now on, "" while none are.
    configs: all settings of its topic, the newest last; a leader may get settings late that are older than the
    partition. released: below it every record may be deleted; all_requested: a deletion of all committed records was
    requested, so that a leader may delete to its high watermark. durable_end: all below was committed with
    flush.messages=1.
    """

    def __init__(self, partition: TopicPartition, topic_id: str, configs: Sequence[TopicConfig]) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.configs = configs
        self.released = 0
        self.all_requested = False
        self.durable_end = 0
        self.values: dict[int, Fact] = {}
        self.end = 0
        self.acked: list[tuple[int, Fact]] = []
        self.state: LeaderAndIsr | None = None
        self.members: tuple[int, ...] = ()
        self.lost: dict[int, Lost] = {}
        self.leaders: dict[int, int] = {}
        self.committers: dict[int, int] = {}
        self.led_epoch = -1
        self.excused = ""
        self._places: dict[tuple[int, int], int] = {}
        self._newest: dict[int, int] = {}
        self._first: dict[int, int] = {}

    @property
    def config(self) -> TopicConfig:
        return self.configs[-1]

    def forgotten(self, producer: int) -> bool:
        """Whether a replica may lack the state of a producer, since the producer's first record here may be deleted."""
        return self._first.get(producer, self.released) < self.released

    def place_of(self, producer: int, sequence: int) -> int:
        """The offset of a producer's committed record; -1 for none."""
        return self._places.get((producer, sequence), -1)

    def add(self, offset: int, fact: Fact) -> tuple[str, str] | None:
        """Add a record that a replica has committed; return kind and text of the violation, if it is one."""
        known = self.values.get(offset)
        if known is not None:
            if known == fact:
                return None
            return "two values", f"offset {offset} was committed as {describe(known)}, now as {describe(fact)}"
        self.values[offset] = fact
        producer, sequence, _ = fact
        if producer < 0:
            return None
        newest = self._newest.get(producer)
        if newest is not None and self._places[producer, newest] < self.released:
            # A replica without the deleted records accepts any first sequence, and all of them again.
            for deleted in range(sequence, newest + 1):
                self._places.pop((producer, deleted), None)
            newest = None
        first = self._places.setdefault((producer, sequence), offset)
        self._newest[producer] = sequence
        self._first.setdefault(producer, offset)
        if first != offset:
            return "written twice", f"{describe(fact)} is at offset {first} and at offset {offset}"
        if newest is not None and sequence != newest + 1:
            return "out of order", f"{describe(fact)} at offset {offset} follows sequence {newest} of the same producer"
        return None


def describe(fact: Fact) -> str:
    """A record in words."""
    producer, sequence, value = fact
    return f"record {value.decode(errors='backslashreplace')} (producer {producer}, sequence {sequence})"
