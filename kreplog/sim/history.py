"""What clients saw and what was declared, in the order of virtual time: all that the checkers judge clients by.

Values are text here, so that a history goes into JSON as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from kreplog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Event:
    """at_ms: virtual time. partition, topic_id: as the one who tells it believed them to be."""

    at_ms: int
    partition: TopicPartition
    topic_id: str

    def as_json(self) -> dict[str, Any]:
        return {"event": type(self).__name__, **asdict(self), "partition": str(self.partition)}


@dataclass(frozen=True, slots=True)
class Produce(Event):
    """About one batch of a producer; its records have the sequences from `sequence` on. acks: 0, 1 or -1."""

    client: str
    acks: int
    producer_id: int
    sequence: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Invoke(Produce):
    """It is sent for the first time."""


@dataclass(frozen=True, slots=True)
class Ok(Produce):
    """It is acknowledged; base_offset: of its first record, -1 where nobody says: what was sent behind it was."""

    base_offset: int = -1


@dataclass(frozen=True, slots=True)
class Fail(Produce):
    """It was refused for good."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Unknown(Produce):
    """The producer has stopped trying and does not know whether it was written."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Read(Event):
    """A consumer got a record from `leader`, which led in `leader_epoch`; record_epoch: of the record's batch."""

    client: str
    leader: int
    leader_epoch: int
    offset: int
    record_epoch: int
    producer_id: int
    sequence: int
    value: str


@dataclass(frozen=True, slots=True)
class Position(Event):
    """A consumer goes on from `offset`, which is not where it stood: at its start, or because it was out of range."""

    client: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Watermark(Event):
    """A client was told a high watermark, in answer to a request that it sent when the last one had been answered."""

    client: str
    leader: int
    leader_epoch: int
    high_watermark: int
    source: str


@dataclass(frozen=True, slots=True)
class DeletionRequested(Event):
    """An operator has asked for all records below `offset` to be deleted; -1: all that is committed."""

    offset: int


@dataclass(frozen=True, slots=True)
class DeletionDone(Event):
    """... and was told that it is done: no live replica has any below `low_watermark`."""

    offset: int
    low_watermark: int


@dataclass(frozen=True, slots=True)
class UncleanElectionDeclared(Event):
    """Declared: the leader may lack committed records."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PowerLost(Event):
    """Declared: a power cut took the records [start, end) from a broker's replica."""

    broker: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PromiseBroken(Event):
    """Declared: the faults were more than acks=all survives."""

    reason: str


@dataclass(frozen=True, slots=True)
class TopicDeleted(Event):
    """Its deletion was asked for: from now on nothing of it is owed to anyone. Told for every partition."""


@dataclass(slots=True)
class History:
    """events: in order. now_ms: virtual time. listener: told of each event at once."""

    now_ms: Callable[[], int]
    events: list[Event] = field(default_factory=list)
    listener: Callable[[Event], None] | None = None

    def add(self, event: Event) -> None:
        self.events.append(event)
        if self.listener is not None:
            self.listener(event)

    def as_json(self) -> list[dict[str, Any]]:
        return [event.as_json() for event in self.events]
