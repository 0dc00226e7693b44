"""Effects: everything that a core can request of its shell, and what a step is.

A core's `step(event, now_ms)` is a generator of effects, in the order in which they must happen. The shell performs
each one and resumes the step with `send(answer)`: the docstring of an effect says what its answer is, None if it says
nothing. A failure of an effect with an answer is thrown into the step as the error of `kreplog.errors` that it is. A
step is run to its end before the next event of the same core is stepped; a crash is a step that is never resumed. Times
are monotonic milliseconds; offsets, epochs and names are those of Kafka.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from kreplog.config import TopicConfig
from kreplog.core.events import Event
from kreplog.core.group_messages import GroupResponse
from kreplog.core.messages import (
    BrokerConfigs,
    ControlledShutdownRequest,
    ControlRequest,
    FetchRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    Response,
    TransactionMarker,
    WriteMarkersRequest,
)
from kreplog.core.transaction_messages import AddPartitionsToTxnRequest, TransactionResponse
from kreplog.types import BrokerRegistration, Node, StoreOperation, TopicPartition

# Effects on a log


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a replica's log, as its core knows it.

    leo, log_start: offsets. epochs: (leader epoch, its start offset), both rising, as in the leader-epoch checkpoint.
    first_unstable: where the oldest transaction begins that is open, or whose marker is not committed; None for none.
    """

    leo: int = 0
    log_start: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    first_unstable: int | None = None


@dataclass(frozen=True, slots=True)
class OpenLog:
    """Open the replica's directory, create it if it does not exist, and recover the log. No other topic id has it.

    Answer: OpenedLog. Throws StorageError.
    """

    partition: TopicPartition
    topic_id: str
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """The answer to an OpenLog. high_watermark: the checkpointed one, clamped to [log_start, leo]."""

    state: LogState
    high_watermark: int


@dataclass(frozen=True, slots=True)
class AppendAsLeader:
    """Validate a producer's encoded batches, assign offsets and leader_epoch, append.

    strict: an idempotent producer that the log does not know must begin with sequence number 0. transactional: a batch
    may be of a transaction. sequenced: False for a coordinator's batch, which has no sequence number of its producer.
    verified_by: the epoch of the coordinator that has confirmed the transaction, -1 for none.
    Answer: (AppendInfo, LogState). Throws UnverifiedTransactionError, OutOfOrderSequenceError and the like
    (nothing written), ResourceExhaustedError (nothing written, retriable), LogFailedError (the replica is lost).
    """

    partition: TopicPartition
    records: Any
    leader_epoch: int
    strict: bool = False
    transactional: bool = False
    sequenced: bool = True
    verified_by: int = -1


@dataclass(frozen=True, slots=True)
class AppendMarker:
    """Append the marker of a transaction. Answer: (AppendInfo, LogState). Throws ProducerFencedError,
    CoordinatorFencedError (nothing written), ResourceExhaustedError, LogFailedError as AppendAsLeader does."""

    partition: TopicPartition
    marker: TransactionMarker
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class AppendAsFollower:
    """Append a leader's batches as they are. Answer: LogState. Throws CorruptBatchError, OffsetOutOfRangeError,
    FencedLeaderEpochError (nothing written), LogFailedError."""

    partition: TopicPartition
    records: Any


@dataclass(frozen=True, slots=True)
class EndOfRecords:
    """The leader epoch and next_offset of the last of a leader's batches, by its header, without a CRC check. Answer:
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
    """Remove the batches that end past `offset`, which is not above the LEO; none is split. Answer: LogState."""

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
    """Delete segments past the topic's retention limits, all of them below the high watermark, by this replica's own
    clock and size. Answer: LogState."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ReplaceLog:
    """The copy of the replica in another log directory takes over, with all that it lacks. Answer: its LogState; None
    if it cannot now, and the replica goes on as it is."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class SyncReplacement:
    """Make durable that the copy has taken over, before anything else happens to its log. Throws StorageError."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class ConfigureLog:
    """The topic's settings have changed; those of the log take effect from now on. No answer."""

    partition: TopicPartition
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class ConfigureBroker:
    """The dynamic configs of this broker have changed; a ConfigureLog for each of its logs follows if
    that changes their settings. No answer."""

    configs: BrokerConfigs


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Whole batches from `offset` on, below `limit`, at least one, about max_bytes. Answer: bytes-like."""

    partition: TopicPartition
    offset: int
    limit: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReadStable:
    """As ReadLog, for a consumer that reads committed transactions. Answer: (bytes-like, (producer id, first offset) of
    the aborted transactions that have records in it)."""

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
    with the greatest. Runs off the event loop; an OffsetFound event with `tag` has the result."""

    tag: tuple[int, int]
    partition: TopicPartition
    timestamp: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """The log's high watermark is now `offset`. Answer: the log's first unstable offset, as in LogState."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Fsync what has been appended so far, sharing one fsync with others; a Flushed event follows."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class SetAsideStray:
    """Stop the replica and rename its directory to that of a stray, which is not opened, and deleted after a time.
    Answer: None. Throws StorageError: it has its former name."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class RestoreStray:
    """Rename the newest stray of that topic id back to a replica's directory, for OpenLog. Answer: True; False if there
    is none. Throws StorageError."""

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
    """Start a multi; a StoreReplied with `tag` has its outcome."""

    tag: Hashable
    operations: tuple[StoreOperation, ...]


@dataclass(frozen=True, slots=True)
class SubmitRead:
    """Start reading nodes; a StoreReplied with `tag` has them."""

    tag: Hashable
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Multi:
    """Execute store operations together, all or none. Answer: results as of Session.multi. Throws CoordinationError;
    with ConnectionLossError the outcome is unknown."""

    operations: tuple[StoreOperation, ...]


@dataclass(frozen=True, slots=True)
class GetNodes:
    """Read nodes of the store. Answer: list of Node or None, one for each path. watch: leave a one-shot watch on each
    (existing or not)."""

    paths: tuple[str, ...]
    watch: bool = False


@dataclass(frozen=True, slots=True)
class GetChildren:
    """List the children of a node of the store, and leave a watch on them. Answer: sorted names, or None if there is no
    such node (the watch is then on its existence)."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Take the next step after `ms`. Only in the steps of a request to change the store, for which no core waits."""

    ms: int


# Effects on others


@dataclass(frozen=True, slots=True)
class Send:
    """Send a follower's fetch to a leader; a FetchReplied event with `correlation` has the response. catches_up: it is
    for records below the leader's high watermark, so that many more are likely to follow."""

    leader: int
    correlation: int
    request: FetchRequest
    catches_up: bool = False


@dataclass(frozen=True, slots=True)
class SendControl:
    """Queue a request to a broker: strictly in order for each broker, sent again until it responds or leaves.

    After BROKER_NOT_AVAILABLE it is sent again too: the broker has not learned yet that it is registered.
    The queue of an older broker_epoch is dropped.
    """

    broker: int
    broker_epoch: int
    request: ControlRequest


@dataclass(frozen=True, slots=True)
class DrainControlChannels:
    """Wait until all brokers have responded to the queued requests, for at most `max_ms`, and then for `rest_ms`, so
    that they can complete delayed requests before the controller continues with long work. Answer: None."""

    max_ms: int
    rest_ms: int


@dataclass(frozen=True, slots=True)
class ConnectPeer:
    """Connect to a broker, in place of the connection held, and hold it. PeerConnected or PeerUnreachable has the
    outcome; a PeerDisconnected follows when its other end closes it."""

    broker: BrokerRegistration


@dataclass(frozen=True, slots=True)
class DisconnectPeer:
    """Close the connection to that broker, established or not."""

    broker: int


@dataclass(frozen=True, slots=True)
class Reply:
    reply_to: Hashable
    response: Response | GroupResponse | TransactionResponse


@dataclass(frozen=True, slots=True)
class LeaderAndIsrApplied:
    """A LeaderAndIsr has been applied; BrokerCores.applied returns what must happen before `response` is sent."""

    reply_to: Hashable
    request: LeaderAndIsrRequest
    response: LeaderAndIsrResponse


@dataclass(frozen=True, slots=True)
class SendShutdown:
    """Send a ControlledShutdown to the controller's broker; a ControlledShutdownReplied with `attempt` follows."""

    attempt: int
    controller: int
    request: ControlledShutdownRequest


# Effects of the coordinators, of groups and of transactions


@dataclass(frozen=True, slots=True)
class AppendGroupRecords:
    """Append one batch of records to a partition of the coordinator's topic with acks=all, if this broker still leads
    it in that epoch; a GroupRecordsAppended with `tag` follows. records: LogRecord, or TransactionRecord.
    transactional_id, adds_partitions: as in a TransactionalProduce, where all are PendingOffsetRecord of one producer
    and the batch is of its transaction."""

    tag: int
    partition: TopicPartition
    leader_epoch: int
    records: tuple[Any, ...]
    timeout_ms: int
    transactional_id: str = ""
    adds_partitions: bool = False


@dataclass(frozen=True, slots=True)
class ReadGroupRecords:
    """Read committed records of a partition of the coordinator's topic from `offset` on, or from the log start where
    that is higher; a GroupRecordsRead of that epoch and offset follows."""

    partition: TopicPartition
    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Send the markers of a transaction to the leader of their partitions, this broker perhaps; a MarkersReplied with
    `tag` follows, also where the response is lost."""

    tag: int
    leader: int
    request: WriteMarkersRequest


@dataclass(frozen=True, slots=True)
class SendAddPartitions:
    """Have the coordinator of a transactional id, this broker perhaps, verify or add partitions of its transaction; an
    AddPartitionsReplied with `tag` follows, also where the response is lost."""

    tag: int
    coordinator: int
    request: AddPartitionsToTxnRequest


@dataclass(frozen=True, slots=True)
class WallClock:
    """Read the wall clock. Answer: int, milliseconds since 1970."""


# Effects of one core on the others, and on the process


@dataclass(frozen=True, slots=True)
class Deliver:
    """Queue `event` for another core of this process."""

    core: Core
    event: Event


@dataclass(frozen=True, slots=True)
class SyncFiles:
    """Fsync the replicas created so far (their directories and first segments), then perform what
    BrokerCores.files_synced(applied) returns; see FileSyncs."""

    applied: LeaderAndIsrApplied


@dataclass(frozen=True, slots=True)
class ClearUncleanMark:
    """Durably clear the unclean mark, that this broker may lack acknowledged records, in every working log
    directory."""


@dataclass(frozen=True, slots=True)
class CloseControlChannel:
    """The control channel to that broker has ended: close its connection."""

    broker: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The process may stop serving. all_moved: according to the controller this broker leads no
    partition of several replicas any more."""

    all_moved: bool


# State-change log


@dataclass(frozen=True, slots=True)
class StateChange:
    """A line for the state-change log."""

    level: Literal["info", "warning", "error"]
    text: str


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """Possible data loss: `leader` was elected from outside the in-sync replicas."""

    partition: TopicPartition
    leader: int
    leader_epoch: int


Effect = (
    OpenLog
    | AppendAsLeader
    | AppendMarker
    | AppendAsFollower
    | EndOfRecords
    | AssignLeaderEpoch
    | TruncateTo
    | TruncateFullyAndStartAt
    | DeleteRecordsBefore
    | EnforceRetention
    | ReplaceLog
    | SyncReplacement
    | ConfigureLog
    | ConfigureBroker
    | ReadLog
    | ReadStable
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
    | Pause
    | Send
    | SendControl
    | DrainControlChannels
    | ConnectPeer
    | DisconnectPeer
    | Reply
    | LeaderAndIsrApplied
    | SendShutdown
    | AppendGroupRecords
    | SendMarkers
    | SendAddPartitions
    | ReadGroupRecords
    | WallClock
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
"""A step, or a part of one that returns T."""

Nodes = Sequence[Node | None]


class Core(Protocol):
    """The interface of a broker's cores."""

    def step(self, event: Any, now_ms: int) -> Steps[None]: ...

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the next Tick is due, at the latest; None for never."""
