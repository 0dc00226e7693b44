"""History of a run: observations of clients and declared events in the order of virtual time, for the checkers.

Values are text here, so that a history goes into JSON as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kreplog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Event:
    """An entry of a history. at_ms: virtual time. partition, topic_id: in the view of the client or broker that adds
    the event."""

    at_ms: int
    partition: TopicPartition
    topic_id: str

    def as_json(self) -> dict[str, Any]:
        return {"event": type(self).__name__, **asdict(self), "partition": str(self.partition)}


@dataclass(frozen=True, slots=True)
class Produce(Event):
    """An event about a batch of a producer; its records have the sequences from `sequence` on. acks: 0, 1 or -1."""

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
    """It is acknowledged. base_offset: of its first record, -1 if unknown, since only a later batch was
    acknowledged."""

    base_offset: int = -1


@dataclass(frozen=True, slots=True)
class Fail(Produce):
    """It was refused with an error that is not retriable."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class Unknown(Produce):
    """The producer has given up, and does not know whether it was written."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Read(Event):
    """A consumer got a record from `broker`, a leader or follower in `leader_epoch`; record_epoch: of its batch."""

    client: str
    broker: int
    leader_epoch: int
    offset: int
    record_epoch: int
    producer_id: int
    sequence: int
    value: str


@dataclass(frozen=True, slots=True)
class Position(Event):
    """A consumer continues at another offset than before: at its start, or after it was out of range."""

    client: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Watermark(Event):
    """A client got a high watermark, in response to a request that it sent after the previous response. source: "list"
    or "fetch" of the leader, or "replica" of a follower, which has it later."""

    client: str
    broker: int
    leader_epoch: int
    high_watermark: int
    source: str


@dataclass(frozen=True, slots=True)
class Misdirected(Event):
    """The leader has sent a consumer to the follower `broker`, which refuses it, in the same leader epoch, since
    `offset` is outside its log."""

    client: str
    broker: int
    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class UnrequestedPartition(Event):
    """A consumer got a partition that it has not requested, or has requested once and got twice."""

    client: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeletionRequested(Event):
    """An operator requested the deletion of all records below `offset`; -1: of all committed records."""

    offset: int


@dataclass(frozen=True, slots=True)
class DeletionDone(Event):
    """... and got the response: no live replica has records below `low_watermark`."""

    offset: int
    low_watermark: int


@dataclass(frozen=True, slots=True)
class UncleanElectionDeclared(Event):
    """An election after which the leader may lack committed records."""

    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class PowerLost(Event):
    """A power failure that took the records [start, end) from a broker's replica."""

    broker: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GuaranteeViolated(Event):
    """A declaration that the faults exceeded what acks=all survives."""

    reason: str


@dataclass(frozen=True, slots=True)
class TopicDeleted(Event):
    """Its deletion was requested: its guarantees end. Added for every partition."""


@dataclass(frozen=True, slots=True)
class GroupEvent(Event):
    """An action or observation of a member of a group. partition: of the group's log."""

    client: str
    group_id: str


@dataclass(frozen=True, slots=True)
class GroupAssigned(GroupEvent):
    """A member got its assignment. since: place in the history when it first began to join as this member id, also if
    no response came: a group that has the member lets it join again without a new generation. owner: its instance id,
    or its member id. numbers: of the partitions that it has."""

    since: int
    generation: int
    owner: str
    member_id: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitInvoked(GroupEvent):
    """A member commits an offset of partition `number`, with a text that no other commit has."""

    generation: int
    owner: str
    member_id: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class OffsetCommitted(GroupEvent):
    """... and has the response. error: its name, "" if there was none."""

    text: str
    error: str


@dataclass(frozen=True, slots=True)
class OffsetFetched(GroupEvent):
    """A member read the committed offset, at the coordinator `broker`. since: place in the history when it began. text:
    of the commit, "" if nothing is committed."""

    broker: int
    since: int
    number: int
    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupEvent(Event):
    """An action or observation of a member of a group whose coordinator assigns. partition: of the group's log."""

    client: str
    member_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PartitionsOwned(ConsumerGroupEvent):
    """A member owns these partitions, and no others, until its session ends or it says otherwise. broker: that has
    answered. owned: topic ids and numbers. until_ms: the end of its session."""

    broker: int
    owned: tuple[str, ...]
    until_ms: int


@dataclass(frozen=True, slots=True)
class MemberFenced(ConsumerGroupEvent):
    """A member is refused by a broker, and owns nothing any more. error: its name."""

    broker: int
    error: str


@dataclass(frozen=True, slots=True)
class EpochCommitted(ConsumerGroupEvent):
    """The response to an offset commit of a member in an epoch. latest: the epoch that the member had when it sent the
    commit, -1 if it was that member no longer. error: its name. committed: the topic id and number of the partition.
    sent_ms: when it sent the commit."""

    latest: int
    error: str
    committed: str
    sent_ms: int


@dataclass(frozen=True, slots=True)
class TransactionEvent(Event):
    """An action or observation of a client of transactions. partition: of the log of its transactional id, and of the
    records that a reader got."""

    client: str


@dataclass(frozen=True, slots=True)
class ProducerBeginning(TransactionEvent):
    """A process requests to become the producer of a transactional id. late: it has become that, and one of its
    requests without a response may arrive yet."""

    transactional_id: str
    late: bool = False


@dataclass(frozen=True, slots=True)
class ProducerBegun(TransactionEvent):
    """A process has become the producer of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerRefused(TransactionEvent):
    """A process gets an error that is not retriable as the producer of a transactional id. error: its name. broker:
    that has sent it."""

    transactional_id: str
    error: str
    broker: int


@dataclass(frozen=True, slots=True)
class TransactionalCommit(TransactionEvent):
    """The response to a member's commit of offsets with a transaction, in an earlier generation than `latest`, whose
    assignment it had when it sent the commit. error: its name."""

    transactional_id: str
    generation: int
    latest: int
    error: str


@dataclass(frozen=True, slots=True)
class TransactionRecordSent(TransactionEvent):
    """A producer sends a record of a transaction to `target` for the first time; no other record has this value."""

    transaction: str
    target: TopicPartition
    value: str


@dataclass(frozen=True, slots=True)
class TransactionRecordWritten(TransactionEvent):
    """... and it is acknowledged. acks: of the request."""

    transaction: str
    value: str
    acks: int = -1


@dataclass(frozen=True, slots=True)
class TransactionEnding(TransactionEvent):
    """A producer requests the end of a transaction for the first time."""

    transaction: str
    committed: bool


@dataclass(frozen=True, slots=True)
class TransactionEnded(TransactionEvent):
    """... and has the final response. error: its name."""

    transaction: str
    committed: bool
    error: str


@dataclass(frozen=True, slots=True)
class StableRead(TransactionEvent):
    """A reader of committed transactions got a record."""

    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class StableEnd(TransactionEvent):
    """A reader of committed transactions got a last stable offset of a leader, in response to a request that it sent
    after the previous response."""

    leader_epoch: int
    last_stable_offset: int


@dataclass(slots=True)
class History:
    """The events of a run, in order. now_ms: virtual time. listener: called with each event at once."""

    now_ms: Callable[[], int]
    events: list[Event] = field(default_factory=list)
    listener: Callable[[Event], None] | None = None

    def add(self, event: Event) -> None:
        self.events.append(event)
        if self.listener is not None:
            self.listener(event)

    def as_json(self) -> list[dict[str, Any]]:
        return [event.as_json() for event in self.events]


class Violation(NamedTuple):
    """A violated guarantee. kind: as in the table of kreplog.sim.checks.checkers. offset: -1 for none."""

    kind: str
    text: str
    partitions: tuple[TopicPartition, ...] = ()
    offset: int = -1

    @property
    def guarantee(self) -> tuple[str, tuple[TopicPartition, ...]]:
        """The violated guarantee and its partitions: the same in a shorter run that violates it too."""
        return self.kind, self.partitions
