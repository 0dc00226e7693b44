"""Messages of consumer groups: requests of members and tools, their responses, and the records of their log.

The log of a group is a partition of `__consumer_offsets`; its leader is the group's coordinator. Times are in
milliseconds; those in records are wall-clock time since 1970. Source: Kafka protocol guide; KIP-345, KIP-394.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

from kreplog.core.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupLogRecord,
)
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH, TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
"""The internal topic with the committed offsets and the metadata of all groups."""

NO_GENERATION = -1
"""The generation of a commit from outside of the group's members."""

NO_OFFSET = -1
"""The committed offset of a partition for which there is none."""


_CHUNK = 128
_CHUNK_POWER = pow(31, _CHUNK, 1 << 32)
_POWERS = tuple(pow(31, exponent, 1 << 32) for exponent in range(_CHUNK - 1, -1, -1))
_BYTE_POWERS = tuple(factor * power for power in _POWERS for factor in (256, 1))


def java_hash(text: str) -> int:
    """Java's String.hashCode, a signed 32-bit number, over UTF-16 code units.

    In chunks, since names are anybody's choice, and a loop over the units of a megabyte of them takes long."""
    if text.isascii():
        data, powers, size = text.encode(), _POWERS, _CHUNK
    else:
        data, powers, size = text.encode("utf-16-be", "surrogatepass"), _BYTE_POWERS, 2 * _CHUNK
    first = len(data) % size
    value: int = sum(map(mul, data[:first], powers[size - first :])) & 0xFFFFFFFF
    for at in range(first, len(data), size):
        chunk = sum(map(mul, data[at : at + size], powers))
        value = (value * _CHUNK_POWER + chunk) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of_group(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that has the group. Source: Kafka, GroupMetadataManager.partitionFor."""
    value = java_hash(group_id)
    return 0 if value == -(1 << 31) else abs(value) % partitions


# Requests of members


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    """Join a group, or rejoin it for its next generation.

    member_id: "" for a new member. instance_id: of a static member (KIP-345). protocols: (name, metadata) of each
    assignor that the member supports, the preferred first. requires_member_id: a new member gets its id first, and
    joins with it (KIP-394). can_skip_assignment: a static leader that returns may learn that there is nothing to
    assign (KIP-814).
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    requires_member_id: bool = False
    can_skip_assignment: bool = False


class JoinedMember(NamedTuple):
    """A member as the leader of its group learns of it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """The response to a JoinGroup: the generation that has begun. members: of the generation, for its leader alone."""

    error: ErrorCode
    member_id: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    """A member's request for its assignment. assignments: (member id, assignment), from the leader alone.
    protocol_type, protocol: None if not given."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    error: ErrorCode


class MemberIdentity(NamedTuple):
    """A member that leaves: by its id, or by its instance id alone, as an administrator removes a static one."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    group_id: str
    members: tuple[MemberIdentity, ...]


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    error: ErrorCode
    members: tuple[tuple[MemberIdentity, ErrorCode], ...] = ()


# Requests for offsets


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset. expire_ms: -1 where the retention of the broker applies."""

    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    commit_ms: int = 0
    expire_ms: int = -1


class CommitPartition(NamedTuple):
    """The offset of the next record that the group is to read from a partition. metadata: the client's own text."""

    partition: TopicPartition
    offset: int
    leader_epoch: int = NO_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    """A commit of offsets by a member, or from outside of the group. generation_id: NO_GENERATION, with member_id "",
    from outside of the group. retention_ms: -1 for the broker's. has_member_epoch: whether its version has the member
    epoch of KIP-848, OffsetCommit 9."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    partitions: tuple[CommitPartition, ...]
    retention_ms: int = -1
    has_member_epoch: bool = True


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...]


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitRequest:
    """Commit offsets with a producer's transaction: they are pending until it is committed, and dropped if it is
    aborted (KIP-98). generation_id, member_id, instance_id: of the consumer that has read them, or as for a commit from
    outside of the group where the producer does not know it (before KIP-447). adds_partitions: as in a
    TransactionalProduce."""

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: int
    member_id: str
    instance_id: str | None
    partitions: tuple[CommitPartition, ...]
    adds_partitions: bool = False


@dataclass(frozen=True, slots=True)
class TxnOffsetCommitResponse:
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...]


class OffsetFetchGroup(NamedTuple):
    """The part of an OffsetFetch request for one group. partitions: None for all that have a committed offset.
    member_id, member_epoch: of a member of a consumer group (KIP-848); None and -1 from anybody else."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
    member_id: str | None = None
    member_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    """The committed offsets of groups; several in versions from 8 on. require_stable: none of a partition that has a
    pending one, which a transaction may still commit (KIP-447)."""

    groups: tuple[OffsetFetchGroup, ...]
    require_stable: bool = False


@dataclass(frozen=True, slots=True)
class FetchedOffsets:
    """The committed offsets of one group. error: of the group; then offsets has none. An offset is NO_OFFSET where none
    was committed, and for those that are unstable: UNSTABLE_OFFSET_COMMIT, or refused with an error of their own."""

    group_id: str
    error: ErrorCode
    offsets: tuple[tuple[TopicPartition, OffsetAndMetadata], ...] = ()
    unstable: frozenset[TopicPartition] = frozenset()
    refused: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    groups: tuple[FetchedOffsets, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    """Delete committed offsets, of topics that no member of the group is subscribed to (KIP-496)."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    error: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


# Requests of tools


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    """A request to describe groups. includes_operations: the response has the authorized operations (KIP-430)."""

    group_ids: tuple[str, ...]
    includes_operations: bool = False


class DescribedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group in the response to a DescribeGroups. state: of the table in kreplog.core.groups.states; "Dead" for a
    group that does not exist. authorized_operations: numbers of ACL operations, None where they are not requested."""

    group_id: str
    error: ErrorCode
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    authorized_operations: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class DescribeGroupsResponse:
    groups: tuple[DescribedGroup, ...]


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    """A request for the groups of a coordinator. states, types: only groups in one of these, in any case of letters;
    empty for all."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class ListedGroup(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class ListGroupsResponse:
    """The groups that this broker coordinates."""

    error: ErrorCode
    groups: tuple[ListedGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    group_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    results: tuple[tuple[str, ErrorCode], ...]


MemberRequest = (
    JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest | ConsumerGroupHeartbeatRequest
)
"""A request of a group's membership protocol, the classic or the consumer one (KIP-848)."""

RequestOfGroup = MemberRequest | OffsetCommitRequest | TxnOffsetCommitRequest | OffsetDeleteRequest
"""A request about one group."""

GroupRequest = (
    RequestOfGroup
    | OffsetFetchRequest
    | DescribeGroupsRequest
    | ListGroupsRequest
    | DeleteGroupsRequest
    | ConsumerGroupDescribeRequest
)
"""A request to the coordinator of a group."""

GroupResponse = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | TxnOffsetCommitResponse
    | OffsetFetchResponse
    | OffsetDeleteResponse
    | DescribeGroupsResponse
    | ListGroupsResponse
    | DeleteGroupsResponse
    | ConsumerGroupHeartbeatResponse
    | ConsumerGroupDescribeResponse
)


# Records of a group's log


class StoredMember(NamedTuple):
    """A member in the record of its group's generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A generation of a group as it is stored. protocol, leader: None for a group without members; leader: for
    one that was downgraded, too, whose members have to rejoin. state_ms: when it
    came into its state, -1 if that is not known."""

    protocol_type: str
    generation_id: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[StoredMember, ...]


class OffsetRecord(NamedTuple):
    """The record of a committed offset in `__consumer_offsets`. value: None for a tombstone; here and below."""

    group_id: str
    partition: TopicPartition
    value: OffsetAndMetadata | None


class PendingOffsetRecord(NamedTuple):
    """An offset that the end of its producer's transaction commits or drops."""

    group_id: str
    partition: TopicPartition
    value: OffsetAndMetadata
    producer_id: int
    producer_epoch: int


class MarkerRecord(NamedTuple):
    """The marker that ends the transaction of a producer."""

    producer_id: int
    committed: bool


class GroupRecord(NamedTuple):
    group_id: str
    value: GroupMetadata | None


LogRecord = OffsetRecord | PendingOffsetRecord | MarkerRecord | GroupRecord | ConsumerGroupLogRecord
"""A record of `__consumer_offsets`."""
