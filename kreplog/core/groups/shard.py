"""GroupShard: the groups of one partition of `__consumer_offsets`, which this broker leads.

A shard is loaded from its log before it answers. Its end is where the leader's epoch begins: loading ends only when the
high watermark is there, so that no offset is served that a later leader may not have.
"""

from __future__ import annotations

from collections.abc import Iterable

from kreplog.core.group_messages import GroupRecord, LogRecord, OffsetAndMetadata, OffsetRecord
from kreplog.core.groups.group import GROUP_BYTES, Group, offset_size
from kreplog.core.memory import MemoryAccount
from kreplog.types import TopicPartition

ACCOUNT = "consumer groups"
"""The name of the memory of groups in the account."""


class GroupShard:
    """partition: of `__consumer_offsets`. leader_epoch: in which this broker leads it. end: the offset that must be
    loaded. next_offset: that of the next record to load, -1 for the log start. active: it is loaded. deleted:
    partitions that were deleted, whose offsets are still to be removed."""

    def __init__(self, partition: TopicPartition, leader_epoch: int, end: int, memory: MemoryAccount) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.end = end
        self.next_offset = -1
        self.active = False
        self.deleted: frozenset[TopicPartition] = frozenset()
        self.groups: dict[str, Group] = {}
        self._memory = memory

    @property
    def is_loaded(self) -> bool:
        """Whether all that may be committed has been read."""
        return self.next_offset >= self.end

    def load(self, records: Iterable[tuple[int, LogRecord]]) -> None:
        """Take records of the log, each with its offset, in order."""
        for at, record in records:
            match record:
                case OffsetRecord(group_id, partition, value):
                    group = self.groups.get(group_id) or self.add(Group(group_id))
                    self.take_offset(group, partition, value, at)
                case GroupRecord(group_id, metadata):
                    group = self.groups.get(group_id) or self.add(Group(group_id))
                    before = group.members_size
                    if metadata is None:
                        group.forget()
                    else:
                        group.restore(metadata)
                    self.reserve(group, group.members_size - before, force=True)

    def drop_unused(self) -> None:
        """Drop the groups of which tombstones have left nothing."""
        for group in [group for group in self.groups.values() if group.is_gone]:
            self.remove(group)

    def take_offset(self, group: Group, partition: TopicPartition, value: OffsetAndMetadata | None, at: int) -> None:
        before = group.offsets.get(partition)
        group.take(partition, value, at)
        after = group.offsets.get(partition)
        size = 0 if after is None else offset_size(after.value.metadata)
        size -= 0 if before is None else offset_size(before.value.metadata)
        self.reserve(group, size, force=True)

    # Groups and their memory

    def add(self, group: Group) -> Group:
        """Add a group that has records already, whatever memory is left."""
        self.groups[group.group_id] = group
        self.reserve(group, GROUP_BYTES + len(group.group_id), force=True)
        return group

    def remove(self, group: Group) -> None:
        self.groups.pop(group.group_id, None)
        self.release(group, group.charged)

    def reserve(self, group: Group, size: int, *, force: bool = False) -> bool:
        """Charge the group; False, with nothing charged, if memory for groups is used up."""
        if not self._memory.reserve(ACCOUNT, size, force=force):
            return False
        group.charged += size
        return True

    def release(self, group: Group, size: int) -> None:
        self._memory.release(ACCOUNT, size)
        group.charged -= size

    def close(self) -> None:
        for group in list(self.groups.values()):
            self.remove(group)
