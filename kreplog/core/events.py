"""Events: all inputs of the cores' steps. Times are monotonic milliseconds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from kreplog.core.group_messages import GroupRequest
from kreplog.core.messages import (
    ControlledShutdownResponse,
    ControlRequest,
    ControlResponse,
    FetchResponse,
    Request,
)
from kreplog.core.transaction_messages import TransactionQuery, TransactionRequest
from kreplog.errors import CoordinationError, ErrorCode
from kreplog.types import BrokerRegistration, TopicPartition, WatchEvent


@dataclass(frozen=True, slots=True)
class Received:
    """A request has arrived; the response goes to `reply_to`, which only the shell interprets."""

    reply_to: Hashable
    request: Request | GroupRequest | TransactionRequest | TransactionQuery


@dataclass(frozen=True, slots=True)
class FetchReplied:
    """The response to a Send; None if the connection was lost or the request timed out."""

    leader: int
    correlation: int
    response: FetchResponse | None


@dataclass(frozen=True, slots=True)
class Flushed:
    """A Flush is done: everything below `recovery_point` has been fsynced."""

    partition: TopicPartition
    recovery_point: int


@dataclass(frozen=True, slots=True)
class OffsetFound:
    """The result of an OffsetForTimestamp: an offset and its record's timestamp in ms, both -1 if there is none."""

    tag: tuple[int, int]
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class LogFailed:
    """A log failed outside a step (a flush, a deletion); it takes no more writes."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class RetentionDue:
    """It is time to check a replica against its topic's retention limits."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class CopyCaughtUp:
    """The copy of a replica that moves to another log directory has all of its records but the latest: it may take
    over."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class StoreReplied:
    """The outcome of a SubmitMulti (results as of a multi) or SubmitRead (Node or None for each path)."""

    tag: Hashable
    results: tuple[Any, ...] = ()
    error: CoordinationError | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """This broker is registered in the store under a new `broker_epoch`; session_id owns its ephemeral nodes.

    is_first: no broker was registered under this id before, so no replica of it can have been lost.
    """

    broker_epoch: int
    session_id: int

    @property
    def is_first(self) -> bool:
        return self.broker_epoch == 1


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session with the store has ended, or may have: lead nothing until registered again."""


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A session with the store has begun; `session_id` will own this broker's ephemeral nodes."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """This broker begins its controlled shutdown: its registration says so, so that it joins no ISR (F15)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: do what is due."""


@dataclass(frozen=True, slots=True)
class WatchFired:
    event: WatchEvent


@dataclass(frozen=True, slots=True)
class ControlReplied:
    """A broker responded to the controller; the control channel repeats failed sends without an event."""

    broker: int
    broker_epoch: int
    request: ControlRequest
    response: ControlResponse


@dataclass(frozen=True, slots=True)
class ControlledShutdownReplied:
    """The response to a SendShutdown; None if the connection was lost or the request timed out."""

    attempt: int
    response: ControlledShutdownResponse | None


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """The registered brokers, by id, of the controller's last UpdateMetadata."""

    brokers: Mapping[int, BrokerRegistration]


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The connection of a ConnectPeer is established."""

    broker: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """That connection was closed by its other end."""

    broker: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class PeerUnreachable:
    """The connection failed. refused: the host reports that no process listens there (ECONNREFUSED); otherwise nothing
    is known."""

    broker: int
    broker_epoch: int
    refused: bool


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    """This broker begins or ceases to lead a partition of an internal topic, or leads it in another epoch.

    leader_epoch: None if it no longer leads. end: the log end offset where the epoch begins.
    """

    partition: TopicPartition
    leader_epoch: int | None
    end: int = 0


@dataclass(frozen=True, slots=True)
class PartitionsDeleted:
    """A controller has begun to delete these partitions; they are no longer in the metadata."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class MarkerCommitted:
    """The marker of a transaction, at `offset` of a partition of `__consumer_offsets` that this broker leads, is in all
    in-sync replicas. committed: whether it commits the transaction."""

    partition: TopicPartition
    producer_id: int
    committed: bool
    offset: int


@dataclass(frozen=True, slots=True)
class GroupRecordsAppended:
    """The outcome of an AppendGroupRecords. base_offset: of its first record; -1 with an error, unless they are in the
    log and may still be committed."""

    tag: int
    error: ErrorCode
    base_offset: int = -1


@dataclass(frozen=True, slots=True)
class GroupRecordsRead:
    """The result of a ReadGroupRecords. records: each with its offset; those of unknown kinds are left out.
    next_offset: where to read on; `offset` if nothing more is committed. failure: why it could not be read, "" if it
    was."""

    partition: TopicPartition
    leader_epoch: int
    offset: int
    records: tuple[tuple[int, Any], ...] = ()
    next_offset: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class MarkersReplied:
    """The outcome of a SendMarkers: the error of each partition; none where the response is lost."""

    tag: int
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class AddPartitionsReplied:
    """The outcome of a SendAddPartitions for its partition. error: None where the response is lost. coordinator_epoch:
    of the coordinator that has answered."""

    tag: int
    error: ErrorCode | None = None
    coordinator_epoch: int = -1


Event = (
    Received
    | FetchReplied
    | Flushed
    | LogFailed
    | OffsetFound
    | RetentionDue
    | CopyCaughtUp
    | StoreReplied
    | Registered
    | SessionLost
    | SessionStarted
    | Stopping
    | Tick
    | WatchFired
    | ControlReplied
    | ControlledShutdownReplied
    | PeersChanged
    | PeerConnected
    | PeerDisconnected
    | PeerUnreachable
    | LeadershipChanged
    | PartitionsDeleted
    | MarkerCommitted
    | GroupRecordsAppended
    | MarkersReplied
    | AddPartitionsReplied
    | GroupRecordsRead
)
