"""Group: the members, the generation and the committed offsets of one group; it changes nothing by itself.

membership.py decides when members join and leave and when a generation begins; committed_offsets.py about the offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from kreplog.core.effects import Steps
from kreplog.core.group_messages import DescribedGroup, GroupMetadata, JoinedMember, OffsetAndMetadata
from kreplog.core.groups.consumer_group import ConsumerGroup
from kreplog.core.groups.member import Member
from kreplog.core.groups.states import GROUP_TRANSITIONS, GroupState
from kreplog.core.groups.subscription import CONSUMER_PROTOCOL, subscribed_topics
from kreplog.core.memory import text_size
from kreplog.core.timers import Deadline
from kreplog.errors import ErrorCode, check
from kreplog.types import TopicPartition

GROUP_BYTES = 2000
"""Memory that a group takes besides its name, members and offsets."""

PENDING_BYTES = 600
"""Memory that a new member which has not joined yet with its id takes besides that."""

OFFSET_BYTES = 500
"""Memory that a committed offset takes besides its metadata."""


def offset_size(metadata: str) -> int:
    """The memory that a committed offset takes, about."""
    return OFFSET_BYTES + text_size(metadata)


def group_size(group_id: str) -> int:
    """The memory that a group without members and offsets takes, about."""
    return GROUP_BYTES + text_size(group_id)


def pending_size(member_id: str) -> int:
    """The memory that a new member which has not joined yet with its id takes, about."""
    return PENDING_BYTES + text_size(member_id)


class StoredOffset(NamedTuple):
    """A committed offset, and the offset of its record in the group's log."""

    value: OffsetAndMetadata
    at: int


def _never(now_ms: int) -> Steps[None]:
    return
    yield


class Group:
    """The members, the generation and the committed offsets of one group.

    state_ms: wall-clock time when it came into its state, as last stored. generation: of the members, 0 before the
    first. protocol: the assignor of this generation. leader: the member that assigns. members: by member id, in the
    order in which they joined. static: member id by instance id. pending: new members that have an id and have not
    joined with it. pending_sync: members of this generation that have not requested their assignment.
    rebalance, synchronization: deadlines of the members to join, and to request their assignments.
    initial_ms: while a group without members waits for its first ones, how long it may go on to; else None.
    has_no_leader: the stored generation has none: its members come from a consumer group, and have to rejoin.
    pending_offsets: by producer id, those that its transaction may commit. appending: how many records of pending
    offsets are being appended, by partition.
    consumer: the members and assignments of a group whose coordinator assigns (KIP-848), which has no others; None for
    a classic group. is_stored: the group's log has a record of it. in_flight: its writes to the log that are not
    committed yet. charged: bytes of memory that it is charged.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_ms = -1
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        self.pending: dict[str, Deadline] = {}
        self.pending_sync: set[str] = set()
        self.offsets: dict[TopicPartition, StoredOffset] = {}
        self.pending_offsets: dict[int, dict[TopicPartition, StoredOffset]] = {}
        self.appending: Counter[TopicPartition] = Counter()
        self.rebalance = Deadline(_never)
        self.synchronization = Deadline(_never)
        self.initial_ms: int | None = None
        self.consumer: ConsumerGroup | None = None
        self.has_new_member = False
        self.has_no_leader = False
        self.is_stored = False
        self.in_flight = 0
        self.charged = 0
        self.joining = 0
        self._supported: Counter[str] = Counter()

    def restore(self, metadata: GroupMetadata) -> None:
        """Take the generation of a record, in place of what the group had; the offsets remain."""
        self.begin(metadata, [Member.stored(stored, metadata.protocol) for stored in metadata.members])

    def begin(self, metadata: GroupMetadata, members: Iterable[Member]) -> None:
        """Take a generation that is stored, with these members, in place of what the group had; the offsets remain."""
        self.forget()
        self.state = GroupState.STABLE if metadata.members else GroupState.EMPTY
        self.state_ms = metadata.state_ms
        self.generation = metadata.generation_id
        self.protocol_type = metadata.protocol_type or None
        self.protocol = metadata.protocol
        for member in members:
            self.add(member)
        self.leader = metadata.leader if metadata.leader in self.members else next(iter(self.members), None)
        self.has_no_leader = metadata.leader is None
        self.is_stored = True

    def forget(self) -> None:
        """The group's record is deleted: only the offsets remain."""
        self.members, self.static, self._supported = {}, {}, Counter()
        self.state, self.state_ms, self.generation = GroupState.EMPTY, -1, 0
        self.protocol_type = self.protocol = self.leader = None
        self.has_no_leader = self.is_stored = False

    def metadata(self, state_ms: int, assignments: Mapping[str, bytes]) -> GroupMetadata:
        """The record of this generation with these assignments."""
        self.state_ms = state_ms
        members = (member.to_store(self.protocol, assignments.get(name, b"")) for name, member in self.members.items())
        return GroupMetadata(
            self.protocol_type or "", self.generation, self.protocol, self.leader, state_ms, tuple(members)
        )

    # State

    def enter(self, state: GroupState) -> None:
        allowed = self.state in GROUP_TRANSITIONS[state]
        check(allowed, f"group {self.group_id}: {self.state} to {state} is no transition")
        self.state = state

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left of it: no member, none that is about to join, no offset, no record of it, and none
        under way."""
        if self.consumer is not None and not (self.is_empty and self.consumer.writes.is_idle):
            return False
        return not (
            self.members or self.pending or self.offsets or self.pending_offsets or self.is_stored or self.in_flight
        )

    @property
    def is_empty(self) -> bool:
        """Whether it has no members, and none is joining."""
        if self.consumer is not None:
            return not self.consumer.members
        return self.state is GroupState.EMPTY

    @property
    def incarnation(self) -> tuple[int, int]:
        """Another one whenever members have joined or left."""
        return self.generation, 0 if self.consumer is None else self.consumer.epoch

    # Members

    @property
    def members_size(self) -> int:
        """The memory that its members take, about."""
        return sum(member.size for member in self.members.values())

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self._supported.update({name for name, _ in member.protocols})
        if member.awaiting_join is not None:
            self.joining += 1
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]
        self._supported.subtract({name for name, _ in member.protocols})
        self.pending_sync.discard(member.member_id)
        if member.awaiting_join is not None:
            self.joining -= 1
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        member.session.cancel()

    def rename(self, member: Member, member_id: str) -> None:
        """A static member has come back, and goes by another id from now on."""
        leads = self.leader == member.member_id
        self.members = {member_id if name == member.member_id else name: other for name, other in self.members.items()}
        if member.member_id in self.pending_sync:
            self.pending_sync.remove(member.member_id)
            self.pending_sync.add(member_id)
        member.member_id = member_id
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id
        if leads:
            self.leader = member_id

    def update(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._supported.subtract({name for name, _ in member.protocols})
        member.protocols = protocols
        self._supported.update({name for name, _ in protocols})

    def await_join(self, member: Member, reply_to: Hashable | None) -> Hashable | None:
        """The member waits for the next generation. Returns its earlier request that waited, None for none."""
        earlier, member.awaiting_join = member.awaiting_join, reply_to
        self.joining += (reply_to is not None) - (earlier is not None)
        return earlier

    def identified(self, member_id: str, instance_id: str | None) -> Member | ErrorCode:
        """The member that a request names, or the error: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID for a static member
        that another process has replaced (KIP-345)."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return self.members.get(member_id, ErrorCode.UNKNOWN_MEMBER_ID)

    @property
    def has_all_joined(self) -> bool:
        return self.joining == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Protocols

    def supports(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a member with these protocols can be in it: every other member supports at least one of them."""
        if not self.members:
            return bool(protocol_type)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supported[name] == len(self.members) for name in names)

    def select_protocol(self) -> str | None:
        """The protocol that most members prefer, of those that all of them support; the first by name among equals."""
        everyone = {name for name, count in self._supported.items() if count == len(self.members)}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            preferred = next((name for name, _ in member.protocols if name in everyone), None)
            if preferred is not None:
                votes[preferred] += 1
        return min(votes, key=lambda name: (-votes[name], name), default=None)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    def subscribed_topics(self) -> frozenset[str] | None:
        """The topics that its members are subscribed to; None if one of them does not say."""
        if self.consumer is not None:
            return self.consumer.subscribed_topics()
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER_PROTOCOL or self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            found = subscribed_topics(member.metadata(self.protocol))
            if found is None:
                return None
            topics |= found
        return frozenset(topics)

    # Offsets

    def take(self, partition: TopicPartition, value: OffsetAndMetadata | None, at: int) -> None:
        """A record at offset `at` of the group's log is committed. An earlier one may be reported later."""
        held = self.offsets.get(partition)
        if held is not None and held.at > at:
            return
        if value is None:
            self.offsets.pop(partition, None)
        else:
            self.offsets[partition] = StoredOffset(value, at)

    @property
    def unstable(self) -> frozenset[TopicPartition]:
        """The partitions with a pending offset, also one that is being appended."""
        pending = (partition for offsets in self.pending_offsets.values() for partition in offsets)
        return frozenset((*pending, *(partition for partition, count in self.appending.items() if count)))

    @property
    def all_partitions(self) -> list[TopicPartition]:
        """The partitions with a committed or a pending offset."""
        pending = (partition for offsets in self.pending_offsets.values() for partition in offsets)
        return list(dict.fromkeys((*self.offsets, *pending)))

    # Tools

    def described(self) -> DescribedGroup:
        stable = self.state is GroupState.STABLE
        return DescribedGroup(
            self.group_id,
            ErrorCode.NONE,
            str(self.state),
            self.protocol_type or "",
            (self.protocol or "") if stable else "",
            tuple(member.described(self.protocol if stable else None) for member in self.members.values()),
        )
