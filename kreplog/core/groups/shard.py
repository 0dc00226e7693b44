"""GroupShard: the groups of one partition of `__consumer_offsets`, which this broker leads.

A shard is loaded from its log before it answers. Its end is where the leader's epoch begins: loading ends only when the
high watermark is there, so that no offset is served that a later leader may not have.
"""

from __future__ import annotations

from collections.abc import Iterable

from kreplog.core.consumer_group_messages import ConsumerGroupLogRecord
from kreplog.core.group_messages import (
    GroupRecord,
    LogRecord,
    MarkerRecord,
    OffsetAndMetadata,
    OffsetRecord,
    PendingOffsetRecord,
)
from kreplog.core.groups.consumer_group import ConsumerGroup
from kreplog.core.groups.group import Group, StoredOffset, group_size, offset_size
from kreplog.core.memory import MemoryAccount
from kreplog.types import TopicPartition

ACCOUNT = "consumer groups"
"""The name of the memory of groups in the account."""


class GroupShard:
    """The groups whose records are in one partition. partition: of `__consumer_offsets`. leader_epoch: in which this
    broker leads it. end: the offset that must be loaded. next_offset: that of the next record to load, -1 for the log
    start. active: it is loaded. deleted: partitions that were deleted, whose offsets are still to be removed. markers:
    (producer id, committed, offset) of those that came while it was loading."""

    def __init__(self, partition: TopicPartition, leader_epoch: int, end: int, memory: MemoryAccount) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.end = end
        self.next_offset = -1
        self.active = False
        self.deleted: frozenset[TopicPartition] = frozenset()
        self.groups: dict[str, Group] = {}
        self.markers: list[tuple[int, bool, int]] = []
        self._with_pending: dict[int, dict[Group, None]] = {}
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
                case PendingOffsetRecord(group_id, partition, value, producer_id):
                    group = self.groups.get(group_id) or self.add(Group(group_id))
                    self.add_pending(group, producer_id, partition, StoredOffset(value, at))
                case MarkerRecord(producer_id, committed):
                    self.end_transaction(producer_id, committed, at)
                case GroupRecord(group_id, metadata):
                    group = self.groups.get(group_id) or self.add(Group(group_id))
                    before = group.members_size
                    if metadata is None:
                        group.forget()
                    else:
                        self._end_consumer(group)  # it has been converted
                        group.restore(metadata)
                    self.reserve(group, group.members_size - before, force=True)
                case _:
                    group = self.groups.get(record.group_id) or self.add(Group(record.group_id))
                    self._load_consumer(group, record)

    def _load_consumer(self, group: Group, record: ConsumerGroupLogRecord) -> None:
        if group.consumer is None:
            if record.value is None:
                return
            self.release(group, group.members_size)
            group.forget()
            group.consumer = ConsumerGroup(group.group_id)
        group.consumer.apply(record)
        group.is_stored = group.is_stored or record.value is not None
        self.charge_consumer(group)

    def forget_unused(self) -> None:
        """Once all is loaded: forget consumer groups of which tombstones have left nothing."""
        for group in self.groups.values():
            if group.consumer is not None and not (group.consumer.members or group.consumer.epoch):
                self.forget(group)

    def drop_unused(self) -> None:
        """Drop the groups of which nothing is left."""
        for group in [group for group in self.groups.values() if group.is_gone]:
            self.remove(group)

    def take_offset(self, group: Group, partition: TopicPartition, value: OffsetAndMetadata | None, at: int) -> None:
        if value is None:
            self._drop_pending(group, partition, at)
        before = group.offsets.get(partition)
        group.take(partition, value, at)
        after = group.offsets.get(partition)
        size = 0 if after is None else offset_size(after.value.metadata)
        size -= 0 if before is None else offset_size(before.value.metadata)
        self.reserve(group, size, force=True)

    # Offsets that are committed with a transaction

    def add_pending(self, group: Group, producer_id: int, partition: TopicPartition, stored: StoredOffset) -> None:
        """Take a pending offset, in place of what the transaction had for the partition. stored: `at` of its record."""
        held = group.pending_offsets.setdefault(producer_id, {})
        before = held.get(partition)
        held[partition] = stored
        self._with_pending.setdefault(producer_id, {})[group] = None
        size = offset_size(stored.value.metadata) - (0 if before is None else offset_size(before.value.metadata))
        self.reserve(group, size, force=True)

    def remove_pending(self, group: Group, producer_id: int, partition: TopicPartition) -> StoredOffset:
        held = group.pending_offsets[producer_id]
        stored = held.pop(partition)
        if not held:
            del group.pending_offsets[producer_id]
            groups = self._with_pending[producer_id]
            groups.pop(group, None)
            if not groups:
                del self._with_pending[producer_id]
        self.release(group, offset_size(stored.value.metadata))
        return stored

    def end_transaction(self, producer_id: int, committed: bool, offset: int) -> None:
        """The marker at `offset` is committed: so are the pending offsets before it, or they are dropped."""
        for group in list(self._with_pending.get(producer_id, ())):
            held = group.pending_offsets[producer_id]
            for partition in [name for name, stored in held.items() if stored.at < offset]:
                stored = self.remove_pending(group, producer_id, partition)
                if committed:
                    self.take_offset(group, partition, stored.value, stored.at)

    def _drop_pending(self, group: Group, partition: TopicPartition, at: int) -> None:
        """The offset is deleted: so is what was pending before, as a compaction would leave it."""
        for producer_id, held in list(group.pending_offsets.items()):
            if partition in held and held[partition].at < at:
                self.remove_pending(group, producer_id, partition)

    # Groups and their memory

    def add(self, group: Group) -> Group:
        """Add a group that has records already, whatever memory is left."""
        self.groups[group.group_id] = group
        self.reserve(group, group_size(group.group_id), force=True)
        return group

    def remove(self, group: Group) -> None:
        self.groups.pop(group.group_id, None)
        for producer_id, held in list(group.pending_offsets.items()):
            for partition in list(held):
                self.remove_pending(group, producer_id, partition)
        self.release(group, group.charged)

    def charge_consumer(self, group: Group) -> None:
        """Charge what a group whose coordinator assigns has more of than before, such as members."""
        consumer = group.consumer
        if consumer is not None:
            self.reserve(group, consumer.size - consumer.charged, force=True)
            consumer.charged = consumer.size

    def forget(self, group: Group) -> None:
        """Nothing is stored of a group without members, besides offsets."""
        group.forget()
        self._end_consumer(group)

    def _end_consumer(self, group: Group) -> None:
        consumer = group.consumer
        if consumer is not None and consumer.writes.is_idle:
            self.release(group, consumer.charged)
            group.consumer = None

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
