"""ConsumerGroup: the members, epochs and assignments of a group whose coordinator assigns the partitions (KIP-848).

Its state is what its records say, in memory and in the log alike: `apply` is the only way to change it, when a shard is
loaded as when a member's heartbeat has changed it. Memory may be ahead of the log; nobody is answered before the log
has caught up (group_writes.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import repeat

from kreplog.core.consumer_group_messages import (
    STATIC_LEAVE_EPOCH,
    ConsumerGroupLogRecord,
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    ConsumerMemberMetadata,
    ConsumerMemberRecord,
    CurrentAssignment,
    CurrentAssignmentRecord,
    MemberState,
    ResolvedRegex,
    ResolvedRegexRecord,
    TargetAssignmentRecord,
    TargetEpochRecord,
)
from kreplog.core.group_messages import MemberRequest
from kreplog.core.groups.assignments import NEW, NOTHING, held, to_assignment, to_partitions
from kreplog.core.groups.assignors import Partition, Partitions
from kreplog.core.groups.group_writes import GroupWrites
from kreplog.core.groups.subscribed_topics import SubscribedTopics
from kreplog.core.memory import text_size
from kreplog.core.timers import Deadline
from kreplog.errors import ErrorCode

MEMBER_BYTES = 2500
"""Memory that a member takes besides its texts and assignments."""

PARTITION_BYTES = 250
"""Memory that a partition takes in an assignment."""

MAX_SUBSCRIPTION_BYTES = 128 << 10
"""Of the names of a member's topics and the metadata of its classic protocols: its record has to fit in a batch of
`__consumer_offsets`, beside others'."""

MAX_UNWRITTEN_BYTES = 512 << 10
"""Of the members of a group that its log lacks: their records may be one batch, besides the assignments."""

RECORD_BYTES = 400
"""What a member's records take besides its texts and bytes, at most about."""

KEYS = 4
"""Records that name a member, of which each key has the group's id and the member's: three, and in a conversion one
more."""


class ConsumerGroupState(StrEnum):
    """The states of such a group: no table of transitions, since they follow from its members and epochs (KIP-848).

    Empty        it has no members
    Assigning    the group epoch is ahead of the target assignment's
    Reconciling  a member has not followed the target assignment yet
    Stable       all members have
    Dead         deleted, or its coordinator has moved
    """

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


def record_key(record: ConsumerGroupLogRecord) -> Hashable:
    """The key of a record within a group: a compaction leaves the latest record of each."""
    match record:
        case ConsumerGroupRecord() | TargetEpochRecord():
            return (type(record),)
        case ResolvedRegexRecord(_, regex, _):
            return type(record), regex
        case _:
            return type(record), record.member_id


class ConsumerGroup:
    """The state of one group of the consumer protocol.

    epoch: of the members and what they are subscribed to, 0 before the first. metadata_hash: of the subscribed topics
    in that epoch. members: what each member has stated, by id. static: member ids by instance id. target_epoch: the
    epoch that the target assignment is for. target: what each member is to own. current: what each may own. owners: the
    member that may own a partition, or has yet to revoke it. unacknowledged: members that have not reported
    since their assignment has changed here that they own exactly that. regexes: the topics of each expression, by
    resolved_version, that of the metadata and that of the view of a member. missing: topics among those that these
    metadata lack. topics: those that it reads.
    assigned_ms: when the target was last computed here. writes: what its log lacks still. sessions, revocations:
    deadlines by member id. rejoins: by when a member of the classic protocol has to send its next JoinGroup or
    SyncGroup. rewrite: when what an append has failed to write is written again. size: the memory that it takes, about;
    charged: that it is charged.
    classic: the members that use the classic protocol; protocols: how many of them support each of their protocols.
    deferred: requests, and where they are answered, that wait until it has become a classic group, or is deleted; None
    while neither is under way. refused_version: of the metadata by which it could not become one, None once its
    records have changed.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.deferred: list[tuple[Hashable, MemberRequest]] | None = None
        self.refused_version: int | None = None
        self.classic = 0
        self.protocols: Counter[str] = Counter()
        self.epoch = 0
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMemberMetadata] = {}
        self.static: dict[str, str] = {}
        self.target_epoch = 0
        self.target: dict[str, Partitions] = {}
        self.current: dict[str, CurrentAssignment] = {}
        self.owners: dict[Partition, str] = {}
        self.unacknowledged: set[str] = set()
        self.regexes: dict[str, ResolvedRegex] = {}
        self.resolved_version = (-1, -1)
        self.missing: frozenset[str] = frozenset()
        self._readers: Counter[str] = Counter()
        self._expressions: Counter[str] = Counter()
        self._subscribed: frozenset[str] | None = None
        self.assigned_ms: int | None = None
        self.topics = SubscribedTopics()
        self.writes = GroupWrites()
        self.sessions: dict[str, Deadline] = {}
        self.revocations: dict[str, Deadline] = {}
        self.rejoins: dict[str, Deadline] = {}
        self.rewrite: Deadline | None = None
        self.size = 0
        self.charged = 0

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self._follows(member_id) for member_id in self.members):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def _follows(self, member_id: str) -> bool:
        current = self.assignment_of(member_id)
        return current.state is MemberState.STABLE and current.member_epoch == self.target_epoch

    def assignment_of(self, member_id: str) -> CurrentAssignment:
        return self.current.get(member_id, NEW)

    def is_classic(self, member_id: str) -> bool:
        """Whether a member uses the classic protocol."""
        return self.members[member_id].classic is not None

    def supports(self, names: Iterable[str]) -> bool:
        """Whether the other members of the classic protocol support one of a member's protocols: if these are left
        alone, they have to be a group of that protocol."""
        return any(self.protocols[name] == self.classic for name in names)

    def has_left(self, member_id: str) -> bool:
        """Whether a static member is to return."""
        return self.assignment_of(member_id).member_epoch == STATIC_LEAVE_EPOCH

    def subscription_of(self, member_id: str) -> Iterator[str]:
        """The names of the topics that a member reads, some of them twice, or none that exist."""
        metadata = self.members[member_id]
        yield from metadata.subscribed_topics
        if metadata.subscribed_regex is not None:
            yield from _topics_of(self.regexes.get(metadata.subscribed_regex))

    def subscribed_topics(self) -> frozenset[str]:
        """The same object until a member, or an expression, has other topics."""
        if self._subscribed is None:
            matched = (topic for regex in self.expressions for topic in _topics_of(self.regexes.get(regex)))
            self._subscribed = frozenset((*self._readers, *matched))
        return self._subscribed

    @property
    def expressions(self) -> Collection[str]:
        """The expressions that members are subscribed to."""
        return self._expressions.keys()

    def refusal_to_read(self, member_id: str, member_epoch: int) -> ErrorCode:
        """Why a member may not read offsets: as those of commits, but in an earlier epoch than its own never."""
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_epoch != self.assignment_of(member_id).member_epoch:
            return self._stale_error(member_id)
        return ErrorCode.NONE

    def commit_refusals(
        self, member_id: str, member_epoch: int, partitions: Sequence[Partition | None]
    ) -> Iterator[ErrorCode]:
        """Why a member may not commit offsets of partitions, each None if it is not known: UNKNOWN_MEMBER_ID; or in
        another epoch than its own STALE_MEMBER_EPOCH, to a member of the classic protocol ILLEGAL_GENERATION. Except
        that of an earlier epoch, of partitions that it has had since."""
        if member_id not in self.members:
            yield from repeat(ErrorCode.UNKNOWN_MEMBER_ID, len(partitions))
            return
        current = self.assignment_of(member_id)
        if member_epoch == current.member_epoch:
            yield from repeat(ErrorCode.NONE, len(partitions))
            return
        since = dict(held(current)) if member_epoch < current.member_epoch else {}
        for partition in partitions:
            is_own = self._has_had(since.get(partition) if partition else None, member_epoch)
            yield ErrorCode.NONE if is_own else self._stale_error(member_id)

    def _has_had(self, assignment_epoch: int | None, member_epoch: int) -> bool:
        """Whether a member has had a partition since an earlier epoch of its own: if not, another may have read on and
        committed meanwhile. assignment_epoch: None of a partition that it does not have."""
        return assignment_epoch is not None and assignment_epoch <= member_epoch

    def _stale_error(self, member_id: str) -> ErrorCode:
        return ErrorCode.ILLEGAL_GENERATION if self.is_classic(member_id) else ErrorCode.STALE_MEMBER_EPOCH

    # Records

    def apply(self, record: ConsumerGroupLogRecord) -> None:
        """Take the value of a record, in place of the former one of its key."""
        match record:
            case ConsumerGroupRecord(_, group):
                self.epoch, self.metadata_hash, *_ = group or ConsumerGroupMetadata(0)
            case ConsumerMemberRecord(_, member_id, member):
                self._apply_member(member_id, member)
            case TargetEpochRecord(_, epoch):
                self.target_epoch = epoch or 0
            case TargetAssignmentRecord(_, member_id, target):
                self.size -= PARTITION_BYTES * len(self.target.pop(member_id, NOTHING))
                if target is not None:
                    self.target[member_id] = to_partitions(target)
                    self.size += PARTITION_BYTES * len(self.target[member_id])
            case CurrentAssignmentRecord(_, member_id, current):
                self._apply_current(member_id, current)
            case ResolvedRegexRecord(_, regex, resolved):
                before = self.regexes.pop(regex, None)
                if resolved is not None:
                    self.regexes[regex] = resolved
                self.size += _regex_size(regex, resolved) - _regex_size(regex, before)
                self._subscribed = None

    def _apply_member(self, member_id: str, member: ConsumerMemberMetadata | None) -> None:
        before = self.members.get(member_id)
        self._count(before, -1)
        self._count(member, 1)
        if before is not None:
            self.size -= member_size(member_id, before)
            if before.instance_id is not None and self.static.get(before.instance_id) == member_id:
                del self.static[before.instance_id]
        if member is None:
            self.members.pop(member_id, None)
            for deadlines in (self.sessions, self.revocations, self.rejoins):
                deadline = deadlines.pop(member_id, None)
                if deadline is not None:
                    deadline.cancel()
            return
        if member.classic is None and member_id in self.rejoins:
            self.rejoins.pop(member_id).cancel()
        self.members[member_id] = member
        self.size += member_size(member_id, member)
        if member.instance_id is not None:
            self.static[member.instance_id] = member_id

    def _count(self, member: ConsumerMemberMetadata | None, change: int) -> None:
        """Count a member's subscription in or out."""
        if member is not None:
            _add(self._readers, member.subscribed_topics, change)
            _add(self._expressions, () if member.subscribed_regex is None else (member.subscribed_regex,), change)
            if member.classic is not None:
                self.classic += change
                _add(self.protocols, {name for name, _ in member.classic.protocols}, change)
            self._subscribed = None

    def _apply_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        before = self.current.pop(member_id, NEW)
        for partition, _ in held(before):
            self.size -= PARTITION_BYTES
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
        if current is None:
            self.unacknowledged.discard(member_id)
        else:
            self.current[member_id] = current
            for partition, _ in held(current):
                self.size += PARTITION_BYTES
                self.owners[partition] = member_id

    def deadlines(self) -> Iterator[Deadline]:
        yield from self.sessions.values()
        yield from self.revocations.values()
        yield from self.rejoins.values()
        if self.rewrite is not None:
            yield self.rewrite

    def records(self) -> Iterator[ConsumerGroupLogRecord]:
        """Records of all that is stored of it."""
        for member_id, member in self.members.items():
            yield ConsumerMemberRecord(self.group_id, member_id, member)
        for regex, resolved in self.regexes.items():
            yield ResolvedRegexRecord(self.group_id, regex, resolved)
        yield ConsumerGroupRecord(self.group_id, ConsumerGroupMetadata(self.epoch, self.metadata_hash))
        for member_id, target in self.target.items():
            yield TargetAssignmentRecord(self.group_id, member_id, to_assignment(target))
        yield TargetEpochRecord(self.group_id, self.target_epoch)
        for member_id, current in self.current.items():
            yield CurrentAssignmentRecord(self.group_id, member_id, current)

    def tombstones(self) -> Iterator[ConsumerGroupLogRecord]:
        """Records that delete all that is stored of it."""
        for member_id in list(self.members):
            yield from self.member_tombstones(member_id)
        for regex in list(self.regexes):
            yield ResolvedRegexRecord(self.group_id, regex, None)
        yield TargetEpochRecord(self.group_id, None)
        yield ConsumerGroupRecord(self.group_id, None)

    def member_tombstones(self, member_id: str) -> Iterator[ConsumerGroupLogRecord]:
        yield CurrentAssignmentRecord(self.group_id, member_id, None)
        yield TargetAssignmentRecord(self.group_id, member_id, None)
        yield ConsumerMemberRecord(self.group_id, member_id, None)


def _add(counts: Counter[str], names: Iterable[str], change: int) -> None:
    for name in names:
        counts[name] += change
        if not counts[name]:
            del counts[name]


def _topics_of(resolved: ResolvedRegex | None) -> tuple[str, ...]:
    return () if resolved is None else resolved.topics


def member_size(member_id: str, member: ConsumerMemberMetadata) -> int:
    """The memory that a member takes besides its assignments, about."""
    texts = (member_id, member.instance_id, member.rack_id, member.client_id, member.client_host)
    size = MEMBER_BYTES + sum(
        text_size(text or "") for text in (*texts, member.subscribed_regex, member.server_assignor)
    )
    size += sum(100 + text_size(topic) for topic in member.subscribed_topics)
    return size + sum(
        100 + text_size(name) + len(data) for name, data in (member.classic.protocols if member.classic else ())
    )


def unwritten_bytes(consumer: ConsumerGroup, member_id: str, member: ConsumerMemberMetadata) -> int:
    """The bytes that MAX_UNWRITTEN_BYTES limits, with the record of this member, which is about to change."""
    others = (
        _record_bytes(consumer.group_id, record.member_id, record.value)
        for record in consumer.writes.lacking().values()
        if isinstance(record, ConsumerMemberRecord) and record.value is not None and record.member_id != member_id
    )
    return sum(others, _record_bytes(consumer.group_id, member_id, member))


def _record_bytes(group_id: str, member_id: str, member: ConsumerMemberMetadata) -> int:
    texts = (member.instance_id, member.rack_id, member.client_id, member.client_host, member.subscribed_regex)
    keys = KEYS * (len(group_id.encode()) + len(member_id.encode()))
    return RECORD_BYTES + keys + sum(len((text or "").encode()) for text in texts) + subscription_bytes(member)


def subscription_bytes(member: ConsumerMemberMetadata) -> int:
    """The bytes of a member that MAX_SUBSCRIPTION_BYTES limits."""
    protocols = member.classic.protocols if member.classic else ()
    topics = sum(len(topic.encode()) for topic in member.subscribed_topics)
    return topics + sum(len(name.encode()) + len(metadata) for name, metadata in protocols)


def _regex_size(regex: str, resolved: ResolvedRegex | None) -> int:
    return 0 if resolved is None else 500 + text_size(regex) + sum(100 + len(topic) for topic in resolved.topics)
