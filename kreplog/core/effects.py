"""Effects: everything that a step of a core can ask for, and what a step is.

A core's `step(event, now_ms)` is a generator of effects, in the order in which they must happen. The shell carries each
one out and resumes the step with `send(answer)`: effects that have an answer say so in their docstring, every other is
answered with None. A failure of an answered effect is thrown into the step as the error of `kreplog.errors` that it is.
A step is run to its end before the next event of the same core is stepped; a crash is a step that is never resumed.
Times are monotonic milliseconds; offsets, epochs and names are those of Kafka.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from kreplog.config import TopicConfig
from kreplog.core.events import Event
from kreplog.core.messages import (
    ControlledShutdownRequest,
    ControlRequest,
    FetchRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    Response,
)
from kreplog.types import BrokerRegistration, Node, StoreOperation, TopicPartition

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
    """Open, or make, the replica's directory and recover it. None of another topic id is there.

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

    strict: an idempotent producer that the log does not know must begin with its first batch.
    Answer: (AppendInfo, LogState). Throws CorruptBatchError, RecordTooLargeError, OutOfOrderSequenceError and the like
    (nothing written), ResourceExhaustedError (nothing written, to be sent again), LogFailedError (the replica is lost).
    """

    partition: TopicPartition
    records: Any
    leader_epoch: int
    strict: bool = False


@dataclass(frozen=True, slots=True)
class AppendAsFollower:
    """Append a leader's batches as they are. Answer: LogState. Throws CorruptBatchError, OffsetOutOfRangeError,
    FencedLeaderEpochError (nothing written), LogFailedError."""

    partition: TopicPartition
    records: Any


@dataclass(frozen=True, slots=True)
class EndOfRecords:
    """The leader epoch and next_offset of the last of a leader's batches, as its header says, unchecked. Answer:
    EpochEndOffset; None unless these are whole batches."""

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
class SizeFrom:
    """Bytes of the log from the batch that holds `offset` to the log end. offset: in [log_start, leo]. Answer: int.
    Throws StorageError."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class OffsetForTimestamp:
    """Find the first committed offset whose timestamp is at or after `timestamp`; for MAX_TIMESTAMP the first of those
    with the greatest. Takes its time, off the event loop; one OffsetFound event with `tag` gives the result."""

    tag: tuple[int, int]
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
class SetAsideStray:
    """Stop the replica and rename its directory as a stray, which nobody uses, and which is removed in the end. Answer:
    None. Throws StorageError: it is where it was."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class RestoreStray:
    """Rename the newest stray of that topic id back to a replica's directory, for OpenLog. Answer: True; False where
    none is left. Throws StorageError."""

    partition: TopicPartition
    topic_id: str


@dataclass(frozen=True, slots=True)
class DeleteStrays:
    """Delete the files of all strays of that topic id and partition number. Answer: None. Throws StorageError."""

    partition: TopicPartition
    topic_id: str


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
class AwaitAnswers:
    """Wait until all brokers have answered what was queued for them, `most_ms` at the most, and then `rest_ms`, so that
    they deal with it, and with who waited for it, before the controller makes anything larger. Answer: None."""

    most_ms: int
    rest_ms: int


@dataclass(frozen=True, slots=True)
class ConnectPeer:
    """Make a connection to a broker in place of the one held, and hold it. PeerConnected or PeerUnreachable brings the
    outcome; a PeerDisconnected follows when its other end closes it."""

    broker: BrokerRegistration


@dataclass(frozen=True, slots=True)
class DisconnectPeer:
    """Close the connection held to that broker, or being made."""

    broker: int


@dataclass(frozen=True, slots=True)
class Reply:
    reply_to: Hashable
    response: Response


@dataclass(frozen=True, slots=True)
class LeaderAndIsrApplied:
    """A LeaderAndIsr has been applied; BrokerCores.applied says what follows before `response` goes to `reply_to`."""

    reply_to: Hashable
    request: LeaderAndIsrRequest
    response: LeaderAndIsrResponse


@dataclass(frozen=True, slots=True)
class SendShutdown:
    """Send a ControlledShutdown to the controller's broker; a ControlledShutdownReplied with `attempt` follows."""

    attempt: int
    controller: int
    request: ControlledShutdownRequest


# Effects of one core on the others, and on the process


@dataclass(frozen=True, slots=True)
class Deliver:
    """Have another core of this process take `event`, after those that wait for it."""

    core: Core
    event: Event


@dataclass(frozen=True, slots=True)
class SyncFiles:
    """Make durable the replicas created so far (their directories and first segments), then carry out what
    BrokerCores.files_synced(applied) returns."""

    applied: LeaderAndIsrApplied


@dataclass(frozen=True, slots=True)
class ClearUncleanMark:
    """Durably forget that this broker may lack records that it had acknowledged, in every log directory that works."""


@dataclass(frozen=True, slots=True)
class CloseControlChannel:
    """That broker's control channel has ended: close its connection."""

    broker: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The process may stop serving. all_moved: the controller has answered that this broker leads nothing any more."""

    all_moved: bool


# What is noted down


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
    | EndOfRecords
    | AssignLeaderEpoch
    | TruncateTo
    | TruncateFullyAndStartAt
    | DeleteRecordsBefore
    | EnforceRetention
    | ConfigureLog
    | ReadLog
    | SizeFrom
    | OffsetForTimestamp
    | AdvanceHighWatermark
    | Flush
    | SetAsideStray
    | RestoreStray
    | DeleteStrays
    | DeleteLog
    | SubmitMulti
    | SubmitRead
    | Multi
    | GetNodes
    | GetChildren
    | Send
    | SendControl
    | AwaitAnswers
    | ConnectPeer
    | DisconnectPeer
    | Reply
    | LeaderAndIsrApplied
    | SendShutdown
    | Deliver
    | SyncFiles
    | ClearUncleanMark
    | CloseControlChannel
    | Exit
    | StateChange
    | UncleanElection
)

T = TypeVar("T")
Steps = Generator[Effect, Any, T]
"""A step, or a part of one that returns T to the step it belongs to."""

Nodes = Sequence[Node | None]


class Core(Protocol):
    """What the cores of a broker have in common."""

    def step(self, event: Any, now_ms: int) -> Steps[None]: ...

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the core wants a Tick, at the latest; None for never."""
