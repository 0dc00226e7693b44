"""Consumer groups for tools: list, describe and delete them, and read their committed offsets.

group_offsets.py has commits. In groups of the classic protocol members' assignments are their clients' own bytes, of
the layout

    int16 version, int32 n, n times: topic name (int16 length, UTF-8), int32 m, m times int32 partition

for consumers (Kafka, ConsumerProtocolAssignment); in those of the consumer protocol (KIP-848) the coordinator names
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kreplog.client.broker_client import Address
from kreplog.client.bulk_errors import GroupRequestError, UnsupportedBrokerError
from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.coordinator_requests import Refusal, call_coordinator, from_all_coordinators
from kreplog.errors import ErrorCode, KreplogError, PeerProtocolError
from kreplog.types import TopicPartition, check_partition
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey

CONSUMER_PROTOCOL = "consumer"
"""Protocol type of groups whose members read topics."""

DEAD = "Dead"
"""State of a group that does not exist."""

CLASSIC, CONSUMER = "classic", "consumer"
"""Types of groups: the members assign the partitions, or the coordinator does (KIP-848)."""

_MEMBER_TYPES = {0: CLASSIC, 1: CONSUMER}


class GroupOverview(NamedTuple):
    """A group in a list of groups. state, type: "" from brokers that do not report them."""

    group: str
    state: str
    protocol_type: str
    type: str


class GroupMember(NamedTuple):
    """A member of a group, as its coordinator describes it. partitions: assigned to it, as far as its protocol is
    known. epoch, target, protocol: in a group of the consumer protocol the member's epoch, what is to be assigned to it
    once all members have given up what they have to, and the protocol that it uses itself; else None."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members, as the coordinator describes it. state: Empty, PreparingRebalance, CompletingRebalance,
    Assigning, Reconciling, Stable, or Dead. protocol: the assignor, "" without members. coordinator: its address. type:
    CLASSIC or CONSUMER, "" of no group. epoch, assignment_epoch: of a group of the consumer protocol, and the epoch
    that its members' targets are for; else None."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: Address
    members: tuple[GroupMember, ...]
    type: str = ""
    epoch: int | None = None
    assignment_epoch: int | None = None


class CommittedOffset(NamedTuple):
    """The committed offset of a group in one partition. offset: of the next record that the group is to read. metadata:
    the client's own text."""

    offset: int
    leader_epoch: int
    metadata: str


def list_groups(cluster: ClusterConnections, deadline: float) -> list[GroupOverview]:
    """The groups of all brokers, by name. A coordinator that is loading, or cannot be reached, is retried until
    `deadline` (time.monotonic). Raises GroupRequestError, BrokersUnreachableError, UnsupportedBrokerError."""
    listed, refused = from_all_coordinators(
        cluster, deadline, lambda broker_id: _groups_of(cluster, broker_id, deadline)
    )
    if refused is not None:
        broker_id, code = refused
        raise GroupRequestError(f"broker {broker_id} does not list its groups: {code.name}", group="", code=code)
    return sorted({overview.group: overview for overview in listed}.values())


def _groups_of(cluster: ClusterConnections, broker_id: int, deadline: float) -> list[GroupOverview] | ErrorCode:
    response = cluster.call_leader(broker_id, ApiKey.LIST_GROUPS, deadline, states_filter=[], types_filter=[])
    if response.error_code:
        return generic.error_of(response.error_code)
    return [
        GroupOverview(group.group_id, group.group_state or "", group.protocol_type, group.group_type or "")
        for group in response.groups
    ]


def describe_group(cluster: ClusterConnections, group: str, deadline: float) -> GroupDescription:
    """State and members; DEAD and none of a group that does not exist. Raises as call_coordinator."""
    return _describe_consumer_group(cluster, group, deadline) or _describe_classic_group(cluster, group, deadline)


def _describe_consumer_group(cluster: ClusterConnections, group: str, deadline: float) -> GroupDescription | None:
    """None where the group is none of the consumer protocol, or brokers do not know that: those of Kafka 3.7 to 3.9
    offer the API, and refuse it unless the protocol is enabled."""
    try:
        response, coordinator = call_coordinator(
            cluster,
            group,
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            deadline,
            lambda response: _refused_description(group, response, ErrorCode.UNSUPPORTED_VERSION),
            group_ids=[group],
            include_authorized_operations=False,
        )
    except UnsupportedBrokerError:
        return None
    (described,) = response.groups
    if described.error_code:
        return None
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _named_partitions(member.assignment),
            member.member_epoch,
            _named_partitions(member.target_assignment),
            _MEMBER_TYPES.get(member.member_type),
        )
        for member in described.members
    )
    return GroupDescription(
        group,
        described.group_state,
        CONSUMER_PROTOCOL,
        described.assignor_name if members else "",
        coordinator,
        members,
        CONSUMER,
        described.group_epoch,
        described.assignment_epoch,
    )


def _named_partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    named = (_checked(topic.topic_name, each) for topic in assignment.topic_partitions for each in topic.partitions)
    return tuple(sorted(named))


def _describe_classic_group(cluster: ClusterConnections, group: str, deadline: float) -> GroupDescription:
    response, coordinator = call_coordinator(
        cluster,
        group,
        ApiKey.DESCRIBE_GROUPS,
        deadline,
        lambda response: _refused_description(group, response),
        groups=[group],
        include_authorized_operations=False,
    )
    (described,) = response.groups
    if described.error_code:
        return GroupDescription(group, DEAD, "", "", coordinator, ())
    consumers = described.protocol_type == CONSUMER_PROTOCOL
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            assigned_partitions(bytes(member.member_assignment)) if consumers else (),
        )
        for member in described.members
    )
    return GroupDescription(
        group,
        described.group_state,
        described.protocol_type,
        described.protocol_data,
        coordinator,
        members,
        "" if described.group_state == DEAD else CLASSIC,
    )


def _refused_description(group: str, response: Any, *harmless: ErrorCode) -> Refusal | None:
    if [described.group_id for described in response.groups] != [group]:
        raise PeerProtocolError(f"group {group}: its coordinator describes other groups")
    code = generic.error_of(response.groups[0].error_code)
    if code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, *harmless):
        return None
    return code, "the coordinator does not describe it"


def committed_offsets(
    cluster: ClusterConnections, group: str, deadline: float
) -> dict[TopicPartition, CommittedOffset]:
    """The committed offsets of a group by partition, those of deleted topics included. Raises as call_coordinator."""
    response, _ = call_coordinator(
        cluster, group, ApiKey.OFFSET_FETCH, deadline, _refused_fetch, group_id=group, topics=None, require_stable=False
    )
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.committed_offset >= 0:
                at = _checked(topic.name, partition.partition_index)
                epoch = getattr(partition, "committed_leader_epoch", None)
                metadata = partition.metadata or ""
                found[at] = CommittedOffset(partition.committed_offset, -1 if epoch is None else epoch, metadata)
    return dict(sorted(found.items()))


def _refused_fetch(response: Any) -> Refusal | None:
    codes = [response.error_code or 0, *(part.error_code for topic in response.topics for part in topic.partitions)]
    code = generic.error_of(next(filter(None, codes), 0))
    return None if code is ErrorCode.NONE else (code, "the coordinator does not report its offsets")


def delete_group(cluster: ClusterConnections, group: str, deadline: float) -> None:
    """Delete a group without members, with its offsets. Raises as call_coordinator."""

    def refusal(response: Any) -> Refusal | None:
        code = generic.error_of(next((result.error_code for result in response.results), 0))
        if code is ErrorCode.NON_EMPTY_GROUP:
            return code, "it has members, stop its consumers first"
        return None if code is ErrorCode.NONE else (code, "the coordinator does not delete it")

    call_coordinator(cluster, group, ApiKey.DELETE_GROUPS, deadline, refusal, groups_names=[group])


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in an assignment of a consumer; none if these bytes are no such assignment."""
    try:
        return _parse_assignment(assignment)
    except (ValueError, KreplogError):
        return ()


def _parse_assignment(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Raises ValueError, KreplogError for other bytes."""
    found: list[TopicPartition] = []
    at = 2

    def take(size: int) -> bytes:
        nonlocal at
        if not 0 <= size <= len(assignment) - at:
            raise ValueError("an assignment that ends too early")
        at += size
        return assignment[at - size : at]

    def count(size: int) -> int:
        return int.from_bytes(take(size), "big", signed=True)

    if not assignment:
        return ()
    for _ in range(_within(count(4), len(assignment))):
        topic = take(count(2)).decode()
        found += [_checked(topic, count(4)) for _ in range(_within(count(4), len(assignment)))]
    return tuple(found)


def _within(number: int, size: int) -> int:
    if not 0 <= number <= size:
        raise ValueError("a count that its bytes cannot have")
    return number


def _checked(topic: str, number: int) -> TopicPartition:
    """Raises PeerProtocolError for what cannot be a partition."""
    try:
        return check_partition(TopicPartition(topic, number))
    except (KreplogError, TypeError) as error:
        raise PeerProtocolError(f"a partition {number} of {topic!r}: {error}") from None


def owners(members: Sequence[GroupMember]) -> dict[TopicPartition, GroupMember]:
    """The member that each partition is assigned to."""
    return {at: member for member in members for at in member.partitions}
