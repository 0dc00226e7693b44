"""Messages: the requests and responses between brokers, from the controller, and from clients.

Offsets, epochs and names are those of Kafka; times are in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kreplog.config import TopicConfig
from kreplog.errors import ErrorCode, InvalidTopicError
from kreplog.types import (
    NO_EPOCH,
    NO_LEADER,
    BrokerRegistration,
    EpochEndOffset,
    LeaderAndIsr,
    TopicPartition,
    check_partition,
)

CONSUMER = -1
"""The replica_id of a fetch that comes from no replica."""

DEBUGGING = -2
"""The replica_id of a client that reads one replica, leader or not, up to its log end."""

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
"""Isolation levels of Fetch and ListOffsets (KIP-98)."""

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
"""Special timestamps of ListOffsets: the high watermark, the log start offset, the record with the greatest timestamp
(KIP-734), the first offset on the local disk, which is EARLIEST here (KIP-405), and two that no log without remote
storage has: the last offset there (KIP-1005), and the first that is not there yet (KIP-1023)."""

UP_TO_HIGH_WATERMARK = -1
"""The offset of a DeleteRecords that deletes all committed records."""


class PartitionState(NamedTuple):
    """The state of one partition in the controller's requests. A tuple, since thousands are made at once.

    replicas: assigned replicas (AR), the preferred leader first, those being added included. adding, removing: of a
    reassignment in progress (RAR is replicas without removing). is_new: the topic has just been created, so a replica
    is created empty; otherwise one that is missing on disk was lost.
    """

    partition: TopicPartition
    topic_id: str
    state: LeaderAndIsr
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False
    config: TopicConfig = TopicConfig()


Configs = tuple[tuple[str, str], ...]
"""Names and values of settings, sorted by name."""


class BrokerConfigs(NamedTuple):
    """The dynamic configs that apply to one broker (KIP-226). own: of the broker; default: of the whole cluster."""

    own: Configs = ()
    default: Configs = ()


NO_CONFIGS = BrokerConfigs()


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """Become leader or follower of these partitions. broker_epoch: of the registration it is for (KIP-380).

    is_init: `partitions` are all that are assigned to this broker; other replicas it has are strays. sequence: rises
    with every request of a controller epoch, so that a late copy of a request sent again is recognised; here and below.
    configs: the dynamic ones that apply to this broker.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[PartitionState, ...]
    is_init: bool = False
    sequence: int = 0
    configs: BrokerConfigs = NO_CONFIGS


@dataclass(frozen=True, slots=True)
class LeaderAndIsrResponse:
    """A broker's response to a LeaderAndIsr. error: of the whole request, of which then no part is applied. partitions:
    the error of each. So for StopReplica."""

    error: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class StopReplica:
    """A controller's request that a broker stop a replica. leader_epoch: refused if older than the broker's; NO_EPOCH
    for a topic that is deleted."""

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
    """Metadata for clients, to every broker. brokers: all live ones; partitions: the changed ones; deleted: those
    gone. configs: as in LeaderAndIsrRequest."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    brokers: tuple[BrokerRegistration, ...]
    partitions: tuple[PartitionState, ...] = ()
    deleted: tuple[TopicPartition, ...] = ()
    sequence: int = 0
    configs: BrokerConfigs = NO_CONFIGS


@dataclass(frozen=True, slots=True)
class UpdateMetadataResponse:
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest:
    """A broker that is about to stop requests that the controller move its leaders."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ControlledShutdownResponse:
    """The controller's response to a ControlledShutdown. remaining: partitions of several replicas that this broker
    still leads, since no other replica can; it may retry."""

    error: ErrorCode
    remaining: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """One partition of a fetch request. current_leader_epoch: NO_EPOCH if the client knows none. last_fetched_epoch: of
    the record before fetch_offset, NO_EPOCH if there is none; by it the leader detects divergence (KIP-595).
    log_start_offset: the follower's. max_bytes: at least one batch is returned nevertheless."""

    partition: TopicPartition
    topic_id: str
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int = NO_EPOCH
    log_start_offset: int = 0
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A fetch by a follower or a consumer. replica_id: broker id of a follower, CONSUMER or DEBUGGING; broker_epoch: of
    a follower's registration (KIP-903).

    session_id, session_epoch: of an incremental fetch session (KIP-227): (0, -1) for none, (0, 0) for a new one; in a
    session `partitions` lists only the changes since the last request, `forgotten` those that left it. isolation_level:
    READ_COMMITTED is for records up to the last stable offset, and rack for a replica in that rack, to which the leader
    sends the consumer (KIP-392); "" for none.
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
    isolation_level: int = 0
    rack: str = ""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a fetch response. diverging: set if the logs diverge at or before that epoch's end (KIP-595);
    the other fields then mean nothing.

    leader, leader_epoch: the current leader, for a client that used a wrong broker or a stale epoch (KIP-951).
    records: encoded batches, bytes-like; b"" for none. topic_id: of the request, since a response names the topic that
    was requested, not one that was created again under its name; "" if it was requested by name. Not decoded: the topic
    of `partition` is the one with this id.
    aborted: (producer id, first offset) of the aborted transactions in records that were requested READ_COMMITTED.
    preferred_read_replica: the broker to fetch from instead (KIP-392), -1 for none. last_stable_offset: -1 where it is
    the high watermark.
    """

    partition: TopicPartition
    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: EpochEndOffset | None = None
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    records: Any = b""
    topic_id: str = ""
    aborted: tuple[tuple[int, int], ...] = ()
    preferred_read_replica: int = -1
    last_stable_offset: int = -1


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """In a session it has only partitions that have changed."""

    error: ErrorCode
    session_id: int = 0
    partitions: tuple[FetchedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ProducePartition:
    partition: TopicPartition
    records: Any


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """A request to append batches to partitions. acks: 0, 1 or -1 (all in-sync replicas)."""

    acks: int
    timeout_ms: int
    partitions: tuple[ProducePartition, ...]


class TransactionMarker(NamedTuple):
    """A marker, which a coordinator of transactions has appended in the place of records: it ends the producer's
    transaction in a partition. coordinator_epoch: of the coordinator, by which an earlier one is refused."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class WriteMarkersRequest(ProduceRequest):
    """The markers of one or more transactions, in the place of the partitions' records; acks is -1."""


@dataclass(frozen=True, slots=True)
class TransactionalProduce(ProduceRequest):
    """A request of a producer with a transactional id, whose batches are of its transaction. adds_partitions: the
    leader adds its partitions to the transaction; otherwise the producer has (KIP-890)."""

    transactional_id: str = ""
    adds_partitions: bool = False


@dataclass(frozen=True, slots=True)
class CoordinatorProduce(ProduceRequest):
    """An append of this broker's own coordinator, which is void unless the partitions are led in that epoch.
    transactional_id, adds_partitions: as in a TransactionalProduce; "" for records that are of no transaction."""

    current_leader_epoch: int = NO_EPOCH
    transactional_id: str = ""
    adds_partitions: bool = False


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """One partition of a produce response. base_offset: of the first record, for a duplicate too; -1 with an error,
    unless it was appended all the same and may still be committed."""

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
    """Requests the end offset of `leader_epoch`; current_leader_epoch fences the request (KIP-320)."""

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
    """One partition of a ListOffsets request. timestamp: milliseconds, or a special one, such as LATEST."""

    partition: TopicPartition
    current_leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """A request for offsets by timestamp. replica_id: CONSUMER or DEBUGGING. isolation_level: with READ_COMMITTED the
    latest is the last stable offset. version: of the API, which decides what special timestamps there are."""

    partitions: tuple[ListOffsetsPartition, ...]
    replica_id: int = CONSUMER
    isolation_level: int = READ_UNCOMMITTED
    version: int = 11


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """One partition of a ListOffsets response. offset: -1 if no record is as late as the requested timestamp.
    leader_epoch: of the record there, for LATEST the leader's. timestamp: of the record, in ms, for a request by time;
    else -1."""

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
    """One partition of a DeleteRecords request. offset: the first that is retained, or UP_TO_HIGH_WATERMARK."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    """The response is due when every live replica has deleted, or after timeout_ms (KIP-107)."""

    timeout_ms: int
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True)
class DeletedRecords:
    """One partition of a DeleteRecords response. low_watermark: the smallest log start offset of all live replicas; -1
    with an error."""

    partition: TopicPartition
    error: ErrorCode
    low_watermark: int = -1
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    partitions: tuple[DeletedRecords, ...]


ControlRequest = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
"""A request of the controller to a broker."""

ControlResponse = LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse


def refusal_of(request: ControlRequest, error: ErrorCode) -> ControlResponse:
    """The response to a request that is refused as a whole."""
    match request:
        case LeaderAndIsrRequest():
            return LeaderAndIsrResponse(error)
        case StopReplicaRequest():
            return StopReplicaResponse(error)
        case UpdateMetadataRequest():
            return UpdateMetadataResponse(error)


def refusal_of_produce(request: ProduceRequest, error: ErrorCode, message: str = "") -> ProduceResponse:
    """The response with `error` for every partition."""
    return ProduceResponse(
        tuple(ProducedPartition(produced.partition, error, message=message) for produced in request.partitions)
    )


def illegal_name(request: ControlRequest) -> str:
    """Why a topic or partition in the request is illegal, "" if none is: names become paths."""
    named = [listed.partition for listed in request.partitions]
    if isinstance(request, UpdateMetadataRequest):
        named += request.deleted
    try:
        for partition in named:
            check_partition(partition)
    except InvalidTopicError as error:
        return str(error)
    return ""


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
