"""A shell for tests of the group coordinator: its logs are lists of records, committed when the test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

from kreplog.config import GroupConfig
from kreplog.core.effects import AppendGroupRecords, Effect, ReadGroupRecords, Reply, StateChange, WallClock
from kreplog.core.events import (
    Event,
    GroupRecordsAppended,
    GroupRecordsRead,
    LeadershipChanged,
    MarkerCommitted,
    PartitionsDeleted,
    Received,
    Tick,
)
from kreplog.core.group_messages import (
    OFFSETS_TOPIC,
    CommitPartition,
    GroupRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LogRecord,
    MarkerRecord,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
    partition_of_group,
)
from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.groups.group import Group
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import PartitionState
from kreplog.core.replication.metadata import MetadataCache
from kreplog.errors import ErrorCode
from kreplog.types import LeaderAndIsr, TopicPartition

PARTITIONS = 3
GROUP = "group"
TOPIC = TopicPartition("topic", 0)
OTHER = TopicPartition("topic", 1)
SESSION_MS = 10_000
REBALANCE_MS = 30_000


def subscription(*topics: str, extra: bytes = b"") -> bytes:
    """As consumers send it, in version 0."""
    listed = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + listed + (extra or b"\xff\xff\xff\xff")


def _numbered(records: list[LogRecord], start: int) -> tuple[tuple[int, LogRecord], ...]:
    return tuple((start + index, record) for index, record in enumerate(records))


class KnownTopics(MetadataCache):
    """A broker's metadata, changed by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.from_store = True
        self._created = 0

    def create(self, topic: str, partitions: int) -> str:
        """Create a topic, or more partitions of it. Returns its id."""
        known = self.partitions.get(TopicPartition(topic, 0))
        self._created += known is None
        topic_id = f"id-{self._created}" if known is None else known.topic_id
        state = LeaderAndIsr(1, 1, (1,))
        for number in range(partitions):
            self.partitions[TopicPartition(topic, number)] = PartitionState(
                TopicPartition(topic, number), topic_id, state, (1,)
            )
        self._count()
        return topic_id

    def delete(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self.partitions.pop(partition, None)
        self._count()

    def restore(self, partitions: dict[TopicPartition, PartitionState]) -> None:
        self.partitions |= partitions
        self._count()

    def _count(self) -> None:
        self._counts = Counter(partition.topic for partition in self.partitions)
        self.topics_version += 1


class GroupShell:
    """One coordinator. logs: the records of each partition, by offset. committed: the high watermark of each; appends
    are answered once they are below it. replies: by request. automatic: whether appends are committed at once."""

    def __init__(self, config: GroupConfig | None = None, memory: MemoryAccount | None = None) -> None:
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self.memory = memory
        self.cluster = KnownTopics()
        self.cluster.create("topic", 2)
        self.cluster.create(OFFSETS_TOPIC, PARTITIONS)
        self.logs: dict[int, list[LogRecord]] = {number: [] for number in range(PARTITIONS)}
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self.waiting: list[tuple[int, int, AppendGroupRecords]] = []
        self.automatic = True
        self.now_ms = 1000
        self.epoch = 0
        self.start()

    def start(self) -> None:
        """A new process over the same logs."""
        self.names = 0
        self.replies: dict[Hashable, Any] = {}
        self.lines: list[str] = []
        self.waiting = []
        self.core = GroupCoordinator(self.config, self.cluster, self._unique, self.memory)

    def _unique(self) -> str:
        self.names += 1
        return f"{self.epoch}.{self.names}"

    def lead(self, number: int | None = None) -> None:
        """Become the leader of a partition, or of all, in a new epoch."""
        self.epoch += 1
        for each in range(PARTITIONS) if number is None else (number,):
            partition = TopicPartition(OFFSETS_TOPIC, each)
            self.step(LeadershipChanged(partition, self.epoch, len(self.logs[each])))

    def resign(self, number: int) -> None:
        self.step(LeadershipChanged(TopicPartition(OFFSETS_TOPIC, number), None))

    def delete(self, *partitions: TopicPartition) -> None:
        """A controller deletes these partitions, and the coordinator takes the time for what follows."""
        self.cluster.delete(*partitions)
        self.step(PartitionsDeleted(frozenset(partitions)))
        self.pass_time(0)

    def step(self, event: Event) -> None:
        steps = self.core.step(event, self.now_ms)
        follow: list[Event] = []
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                break
            answer = self._perform(effect, follow)
        for event in follow:
            self.step(event)
        if self.automatic:
            self.commit()

    def _perform(self, effect: Effect, follow: list[Event]) -> Any:
        match effect:
            case Reply(reply_to, response):
                assert reply_to not in self.replies, f"{reply_to} is answered twice"
                self.replies[reply_to] = response
            case WallClock():
                return 1_700_000_000_000 + self.now_ms
            case StateChange(_, text):
                self.lines.append(text)
            case AppendGroupRecords(_, partition, _, records, _):
                log = self.logs[partition.partition]
                self.waiting.append((partition.partition, len(log), effect))
                log += records
            case ReadGroupRecords(partition, epoch, offset):
                end, start = self.committed[partition.partition], max(offset, 0)
                found = _numbered(self.logs[partition.partition][start:end], start)
                follow.append(GroupRecordsRead(partition, epoch, offset, found, max(start, end)))
            case _:
                raise AssertionError(effect)
        return None

    def commit(self) -> None:
        """Commit all that is appended."""
        waiting, self.waiting = self.waiting, []
        for number, base_offset, effect in waiting:
            self.committed[number] = max(self.committed[number], base_offset + len(effect.records))
            self.step(GroupRecordsAppended(effect.tag, ErrorCode.NONE, base_offset))

    def fail(self, error: ErrorCode) -> None:
        """Have all appends under way fail."""
        waiting, self.waiting = self.waiting, []
        for _, _, effect in waiting:
            self.step(GroupRecordsAppended(effect.tag, error))

    def pass_time(self, ms: int) -> None:
        """Let time pass, with a tick whenever one is due."""
        end = self.now_ms + ms
        for _ in range(100_000):
            due = self.core.next_wakeup(self.now_ms)
            if due is None or due > end:
                break
            self.now_ms = max(self.now_ms, due)
            self.step(Tick())
        else:
            raise AssertionError("a tick is always due")
        self.now_ms = end

    # Requests

    def put(self, name: Hashable, request: GroupRequest) -> Any:
        """The response, None while there is none."""
        self.replies.pop(name, None)
        self.step(Received(name, request))
        return self.replies.get(name)

    def join(self, name: str, member_id: str = "", **fields: Any) -> JoinGroupResponse | None:
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "instance_id": None,
            "client_id": name,
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": (("range", subscription("topic")),),
            **fields,
        }
        response = self.put(f"join {name}", JoinGroupRequest(**values))
        assert response is None or isinstance(response, JoinGroupResponse)
        return response

    def joined(self, name: str) -> JoinGroupResponse:
        response = self.replies[f"join {name}"]
        assert isinstance(response, JoinGroupResponse)
        return response

    def sync(self, name: str, joined: JoinGroupResponse, *assigned: tuple[str, bytes], **fields: Any) -> Any:
        request = SyncGroupRequest(GROUP, joined.generation_id, joined.member_id, assignments=assigned, **fields)
        return self.put(f"sync {name}", request)

    def heartbeat(self, joined: JoinGroupResponse, generation_id: int | None = None) -> ErrorCode:
        generation_id = joined.generation_id if generation_id is None else generation_id
        error = self.put("heartbeat", HeartbeatRequest(GROUP, generation_id, joined.member_id)).error
        assert isinstance(error, ErrorCode)
        return error

    def commit_offset(
        self, offset: int, member: JoinGroupResponse | None = None, partition: TopicPartition = TOPIC, **fields: Any
    ) -> ErrorCode | None:
        """The error, None while there is no response."""
        generation, member_id = (-1, "") if member is None else (member.generation_id, member.member_id)
        commits = (CommitPartition(partition, offset, **fields),)
        response = self.put(f"commit {offset}", OffsetCommitRequest(GROUP, generation, member_id, None, commits))
        if response is None:
            return None
        ((found, error),) = response.partitions
        assert found == partition
        return ErrorCode(error)

    def commit_pending(
        self,
        offset: int,
        producer_id: int = 7,
        member: JoinGroupResponse | None = None,
        partition: TopicPartition = TOPIC,
        **fields: Any,
    ) -> ErrorCode | None:
        """The error of a TxnOffsetCommit, None while there is no response."""
        generation, member_id = (-1, "") if member is None else (member.generation_id, member.member_id)
        commits = (CommitPartition(partition, offset, **fields),)
        request = TxnOffsetCommitRequest("id", GROUP, producer_id, 0, generation, member_id, None, commits)
        response = self.put(f"pending {offset}", request)
        return None if response is None else ErrorCode(dict(response.partitions)[partition])

    def mark(self, committed: bool, producer_id: int = 7) -> None:
        """A marker is appended to the group's log and committed."""
        number = partition_of_group(GROUP, PARTITIONS)
        self.logs[number].append(MarkerRecord(producer_id, committed))
        self.committed[number] = len(self.logs[number])
        at = TopicPartition(OFFSETS_TOPIC, number)
        self.step(MarkerCommitted(at, producer_id, committed, len(self.logs[number]) - 1))

    def offset(self, partition: TopicPartition = TOPIC, *, stable: bool = False) -> int | ErrorCode:
        """The committed offset, or the error. stable: the request requires that no transaction may change it."""
        (group,) = self.put("fetch", OffsetFetchRequest((OffsetFetchGroup(GROUP, (partition,)),), stable)).groups
        if partition in group.unstable:
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        if group.error is not ErrorCode.NONE:
            return ErrorCode(group.error)
        ((found, value),) = group.offsets
        assert found == partition
        return int(value.offset)

    def group_ids(self) -> list[str]:
        return [group_id for shard in self.core.shards.values() for group_id in shard.groups]

    @property
    def group(self) -> Group | None:
        return self.core.shards[partition_of_group(GROUP, PARTITIONS)].groups.get(GROUP)

    def stable(self, *names: str, **fields: Any) -> list[JoinGroupResponse]:
        """Have these members form a generation, each assigned its own name; the first of them leads."""
        for name in names:
            self.join(name, **fields)
        self.pass_time(self.config.group_initial_rebalance_delay_ms)
        members = [self.joined(name) for name in names]
        assigned = [(member.member_id, name.encode()) for name, member in zip(names, members, strict=True)]
        for name, member in zip(names[1:], members[1:], strict=True):
            self.sync(name, member)
        self.sync(names[0], members[0], *assigned)
        return members
