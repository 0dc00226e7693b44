"""Events in and effects out: everything that crosses the border of the cores, one frozen dataclass each.

A core's `step(event, now_ms)` is a generator of effects, in the order in which they must happen. The shell carries each
one out and resumes the step with `send(answer)`: effects that have an answer say so in their docstring, every other is
answered with None. A failure of an answered effect is thrown into the step as the error of `kreplog.errors` that it is.
A step is run to its end before the next event of the same core is stepped; a crash is a step that is never resumed.
Times are monotonic milliseconds; offsets, epochs and names are those of Kafka.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from kreplog.config import TopicConfig
from kreplog.errors import CoordinationError, ErrorCode
from kreplog.types import (
    NO_EPOCH,
    NO_LEADER,
    Broker,
    EpochEndOffset,
    LeaderAndIsr,
    Node,
    StoreOperation,
    TopicPartition,
    WatchEvent,
)

CONSUMER = -1
"""The replica_id of a fetch that comes from no replica."""

DEBUGGING = -2
"""The replica_id of one who looks at a single replica: it is told of that one, leader or not, up to its log end."""

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
"""Timestamps that ListOffsets takes for "the high watermark", "the log start offset", "the record with the greatest
timestamp" (KIP-734) and "the first that is on this disk", which is EARLIEST here (KIP-405)."""

UP_TO_HIGH_WATERMARK = -1
"""The offset of a DeleteRecords that wants all gone that is committed."""


# Requests and responses between brokers, from the controller, and from clients.


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What a controller tells of one partition.

    replicas: assigned replicas (AR), the preferred leader first, joining ones included. adding, removing: of a
    reassignment under way (RAR is replicas without removing). is_new: the topic has just been created, so a replica
    may be made from nothing; otherwise one that is missing on disk was lost.
    """

    partition: TopicPartition
    topic_id: str
    state: LeaderAndIsr
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False
    config: TopicConfig = TopicConfig()  # noqa: RUF009  # frozen, so all may share one


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """Become leader or follower of these. broker_epoch: of the registration it is meant for (KIP-380).

    is_init: `partitions` is all that this broker should have; what else it has belongs to it no more. sequence: rises
    with every request of a controller epoch, so that a copy sent again and come late undoes nothing; here and below.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionState, ...]
    is_init: bool = False
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    """error: of the whole request, nothing of which is done then. partitions: one error each. So for StopReplica."""

    error: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class StopReplica:
    """leader_epoch: not older than the broker's, or the partition is left alone; NO_EPOCH for a topic being deleted."""

    partition: TopicPartition
    topic_id: str
    leader_epoch: int
    delete: bool


@dataclass(frozen=True, slots=True)
class StopReplicaRequest:
    """Stop these replicas, or delete them."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[StopReplica, ...]
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class StopReplicaResponse:
    error: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    """What every broker tells clients. brokers: all that live; partitions: those changed; deleted: those gone."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    brokers: tuple[Broker, ...]
    partitions: tuple[PartitionState, ...] = ()
    deleted: tuple[TopicPartition, ...] = ()
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponse:
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest:
    """A broker that is about to stop asks the controller to move its leaders."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownResponse:
    """remaining: partitions that this broker still leads, since nobody else can; it may ask again."""

    error: ErrorCode
    remaining: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """current_leader_epoch: NO_EPOCH where the client knows none. last_fetched_epoch: of the record before
    fetch_offset, NO_EPOCH where there is none; asks the leader to tell where the logs diverge (KIP-595).
    log_start_offset: the follower's. max_bytes: at least one batch is returned nevertheless.
    """

    partition: TopicPartition
    topic_id: str
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int = NO_EPOCH
    log_start_offset: int = 0
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """replica_id: broker id of a follower, CONSUMER or DEBUGGING; broker_epoch: of a follower's registration (KIP-903).

    session_id, session_epoch: of an incremental fetch session (KIP-227): (0, -1) asks for none, (0, 0) for a new one;
    in a session `partitions` holds only what changed since the last request, `forgotten` what left it.
    """

    replica_id: int
    broker_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[TopicPartition, ...] = ()
    session_id: int = 0
    session_epoch: int = -1


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """diverging: set, and all else without meaning, when the logs part at or before that epoch's end (KIP-595).

    leader, leader_epoch: the current leader, for a client that asked the wrong broker or in a stale epoch (KIP-951).
    records: encoded batches, bytes-like; b"" for none.
    """

    partition: TopicPartition
    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEndOffset | None = None
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    records: Any = b""


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """In a session only partitions with news are told of."""

    error: ErrorCode
    session_id: int = 0
    partitions: tuple[FetchedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ProducePartition:
    partition: TopicPartition
    records: Any


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """acks: 0, 1 or -1 (all in-sync replicas)."""

    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """base_offset: of the first record, also of a retry that had been written before; -1 with an error."""

    partition: TopicPartition
    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    partitions: tuple[ProducedPartition, ...]


@dataclass(frozen=True, slots=True)
class EpochPartition:
    """Asks where `leader_epoch` ends; current_leader_epoch fences the question (KIP-320)."""

    partition: TopicPartition
    current_leader_epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetsForLeaderEpochRequest:
    replica_id: int
    partitions: tuple[EpochPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetsForLeaderEpochResponse:
    partitions: tuple[tuple[TopicPartition, ErrorCode, EpochEndOffset], ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    """timestamp: LATEST, EARLIEST, or milliseconds."""

    partition: TopicPartition
    current_leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """replica_id: CONSUMER or DEBUGGING."""

    partitions: tuple[ListOffsetsPartition, ...]
    replica_id: int = CONSUMER


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """offset: -1 when no record is as late as the timestamp asked for. timestamp: of the record there, in ms, when it
    was asked for by time; else -1."""

    partition: TopicPartition
    error: ErrorCode
    offset: int = -1
    leader_epoch: int = NO_EPOCH
    timestamp: int = -1


@dataclass(frozen=True, slots=True)
class ListOffsetsResponse:
    partitions: tuple[ListedOffset, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    """offset: the first that stays, or UP_TO_HIGH_WATERMARK."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    """Answered when every live replica has deleted, or timeout_ms are over (KIP-107)."""

    timeout_ms: int
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """low_watermark: the smallest log start offset of all live replicas; -1 with an error."""

    partition: TopicPartition
    error: ErrorCode
    low_watermark: int = -1
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    partitions: tuple[DeletedRecords, ...]


ControlRequest = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
"""What a controller sends to a broker."""

ControlResponse = LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse

ClientRequest = ProduceRequest | FetchRequest | OffsetsForLeaderEpochRequest | ListOffsetsRequest | DeleteRecordsRequest

Request = ControlRequest | ClientRequest | ControlledShutdownRequest

Response = (
    ControlResponse
    | ProduceResponse
    | FetchResponse
    | OffsetsForLeaderEpochResponse
    | ListOffsetsResponse
    | DeleteRecordsResponse
    | ControlledShutdownResponse
)


# Events


@dataclass(frozen=True, slots=True)
class Received:
    """A request came in; the answer goes to `reply_to`, which means something to the shell alone."""

    reply_to: Hashable
    request: Request


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a Send of a FetchRequest; response is None when the connection or its time ran out."""

    leader: int
    correlation: int
    response: FetchResponse | None


@dataclass(frozen=True, slots=True)
class Flushed:
    """A Flush is done: everything below `recovery_point` has been fsynced."""

    partition: TopicPartition
    recovery_point: int


@dataclass(frozen=True, slots=True)
class LogFailed:
    """A log failed outside a step (a flush, a deletion); it takes no more writes."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class RetentionDue:
    """It is time to look whether a replica holds more, or older, than its topic's settings want kept."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class StoreReplied:
    """The outcome of a SubmitMulti (results as of a multi) or SubmitRead (a Node, or None where there is none)."""

    tag: Hashable
    results: tuple[Any, ...] = ()
    error: CoordinationError | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """This broker is registered in the store (anew) under `broker_epoch`; session_id owns its ephemeral nodes.

    is_first: no broker of this id ever was before, so no replica of it can have been lost.
    """

    broker_epoch: int
    session_id: int

    @property
    def is_first(self) -> bool:
        return self.broker_epoch == 1


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session with the store has ended, or must be taken for ended: lead nothing until registered again."""


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A session with the store has begun; `session_id` will own this broker's ephemeral nodes."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """This broker is about to stop: it says so in its registration, so that nobody takes it into an ISR (F15)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; what is due is done."""


@dataclass(frozen=True, slots=True)
class WatchFired:
    event: WatchEvent


@dataclass(frozen=True, slots=True)
class ControlReplied:
    """A broker answered the controller; a failed send is repeated by the shell, never reported."""

    broker: int
    broker_epoch: int
    request: ControlRequest
    response: ControlResponse


Event = (
    Received
    | Fetched
    | Flushed
    | LogFailed
    | RetentionDue
    | StoreReplied
    | Registered
    | SessionLost
    | SessionStarted
    | Stopping
    | Tick
    | WatchFired
    | ControlReplied
)


# Effects on a log


@dataclass(frozen=True, slots=True)
class LogState:
    """What a core knows of a replica's log.

    leo, log_start: offsets. epochs: (leader epoch, its start offset), both rising, as in the leader-epoch checkpoint.
    """

    leo: int = 0
    log_start: int = 0
    epochs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Open, or make, the replica's directory and recover it. A directory of another topic id is set aside first.

    Answer: OpenedLog. Throws StorageError.
    """

    partition: TopicPartition
    topic_id: str
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """high_watermark: the checkpointed one, clamped to [log_start, leo]."""

    state: LogState
    high_watermark: int


@dataclass(frozen=True, slots=True)
class AppendAsLeader:
    """Validate a producer's encoded batches, assign offsets and leader_epoch, append.

    Answer: (AppendInfo, LogState). Throws CorruptBatchError, RecordTooLargeError, OutOfOrderSequenceError and the like
    (nothing written), LogFailedError (the replica is lost).
    """

    partition: TopicPartition
    records: Any
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class AppendAsFollower:
    """Append a leader's batches as they are. Answer: LogState. Throws CorruptBatchError, OffsetOutOfRangeError,
    FencedLeaderEpochError (nothing written), LogFailedError."""

    partition: TopicPartition
    records: Any


@dataclass(frozen=True, slots=True)
class AssignLeaderEpoch:
    """Persist (leader_epoch, leo) in the epoch checkpoint before the leader serves (KIP-101). Answer: LogState."""

    partition: TopicPartition
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """Drop what lies at or past `offset`, which is not above the LEO; batches are never split. Answer: LogState."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class TruncateFullyAndStartAt:
    """Empty the log and start it at `offset`. Answer: LogState."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsBefore:
    """Raise the log start offset to `offset`, at most the high watermark. Answer: LogState."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class EnforceRetention:
    """Delete the old segments that the topic's settings let go, all of them below the high watermark, by this
    replica's own clock and size. Answer: LogState."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ConfigureLog:
    """The topic's settings have changed: what of them a log goes by holds from now on. Not answered."""

    partition: TopicPartition
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Whole batches from `offset` on, below `limit`, at least one, about max_bytes. Answer: bytes-like."""

    partition: TopicPartition
    offset: int
    limit: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class OffsetForTimestamp:
    """The first committed offset whose timestamp is at or after `timestamp`; for MAX_TIMESTAMP the first of those with
    the greatest. Answer: (offset, its timestamp in ms), (-1, -1) where there is none."""

    partition: TopicPartition
    timestamp: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """The log's high watermark is now `offset`. Not answered."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Fsync what has been appended so far, sharing one fsync with others; a Flushed event tells the end."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class CloseLog:
    """Stop the replica; its files stay, and so does its checkpointed high watermark."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class DeleteLog:
    """Stop the replica and delete its files. Answer: None. Throws StorageError: they could not be deleted."""

    partition: TopicPartition


# Effects on the store


@dataclass(frozen=True, slots=True)
class SubmitMulti:
    """Start a multi; a StoreReplied with `tag` tells its outcome."""

    tag: Hashable
    operations: tuple[StoreOperation, ...]


@dataclass(frozen=True, slots=True)
class SubmitRead:
    """Start reading nodes; a StoreReplied with `tag` brings them."""

    tag: Hashable
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Multi:
    """Answer: results as of Session.multi. Throws CoordinationError; with ConnectionLossError its fate is unknown."""

    operations: tuple[StoreOperation, ...]


@dataclass(frozen=True, slots=True)
class GetNodes:
    """Answer: list of Node or None, one for each path. watch: leave a one-shot watch on each (existing or not)."""

    paths: tuple[str, ...]
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetChildren:
    """Answer: sorted names, or None where there is no such node (a watch is then left on its existence)."""

    path: str
    watch: bool = False


# Effects on others


@dataclass(frozen=True, slots=True)
class Send:
    """Send a follower's fetch to a leader; a Fetched event with `correlation` tells the end."""

    leader: int
    correlation: int
    request: FetchRequest


@dataclass(frozen=True, slots=True)
class SendControl:
    """Queue a request to a broker: strictly in order for each broker, repeated until answered or the broker leaves.

    BROKER_NOT_AVAILABLE as the response's error is no answer: the broker does not know yet that it is registered.
    A queue made for an older broker_epoch is dropped whole.
    """

    broker: int
    broker_epoch: int
    request: ControlRequest


@dataclass(frozen=True, slots=True)
class Reply:
    reply_to: Hashable
    response: Response


@dataclass(frozen=True, slots=True)
class StateChange:
    """A line for the state-change log."""

    level: Literal["info", "warning", "error"]
    text: str


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """Declared data loss: `leader` was elected from outside the in-sync replicas."""

    partition: TopicPartition
    leader: int
    leader_epoch: int


Effect = (
    OpenLog
    | AppendAsLeader
    | AppendAsFollower
    | AssignLeaderEpoch
    | TruncateTo
    | TruncateFullyAndStartAt
    | DeleteRecordsBefore
    | EnforceRetention
    | ConfigureLog
    | ReadLog
    | OffsetForTimestamp
    | AdvanceHighWatermark
    | Flush
    | CloseLog
    | DeleteLog
    | SubmitMulti
    | SubmitRead
    | Multi
    | GetNodes
    | GetChildren
    | Send
    | SendControl
    | Reply
    | StateChange
    | UncleanElection
)

T = TypeVar("T")
Steps = Generator[Effect, Any, T]
"""A step, or a part of one that returns T to the step it belongs to."""

Nodes = Sequence[Node | None]
