"""CommittedOffsets: commits of a group's offsets, their reading, deletion and retention.

A commit is answered, and seen by others, once its record is committed by all in-sync replicas. Source: Kafka,
GroupMetadataManager; KIP-211 for retention, KIP-496 for deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Sized
from functools import partial
from itertools import repeat

from kreplog.config import GroupConfig
from kreplog.core.deletion_batches import deletion_batches
from kreplog.core.effects import Reply, Steps, WallClock
from kreplog.core.group_messages import (
    NO_OFFSET,
    CommitPartition,
    FetchedOffsets,
    GroupRecord,
    LogRecord,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchGroup,
    OffsetRecord,
    PendingOffsetRecord,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kreplog.core.groups.assignors import Partition
from kreplog.core.groups.consumer_group import ConsumerGroup, record_key
from kreplog.core.groups.group import Group, StoredOffset, group_size, offset_size
from kreplog.core.groups.log_writer import GroupLogWriter
from kreplog.core.groups.shard import GroupShard
from kreplog.core.groups.states import GroupState
from kreplog.core.groups.subscribed_topics import ClusterTopics
from kreplog.core.groups.subscription import CONSUMER_PROTOCOL
from kreplog.core.groups.totals import GroupTotals
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

_NOTHING = OffsetAndMetadata(NO_OFFSET)


class CommittedOffsets:
    """Commits, reads, deletes and expires the offsets of groups. cluster: this broker's metadata. resume: takes the
    requests that have waited for a deletion to end."""

    def __init__(
        self,
        config: GroupConfig,
        log: GroupLogWriter,
        cluster: ClusterTopics,
        totals: GroupTotals,
        resume: Callable[[GroupShard, Group, ConsumerGroup, ErrorCode, int], Steps[None]],
    ) -> None:
        self._resume = resume
        self._config = config
        self._totals = totals
        self._log = log
        self._cluster = cluster

    # OffsetCommit

    def commit(self, shard: GroupShard, reply_to: Hashable, request: OffsetCommitRequest) -> Steps[None]:
        group = shard.groups.get(request.group_id)
        errors = self._refusals(group, request)
        accepted = [commit for commit in request.partitions if errors[commit.partition] is ErrorCode.NONE]
        if not accepted:
            yield Reply(reply_to, OffsetCommitResponse(tuple(errors.items())))
            return
        if group is None:
            group = self._create(shard, request.group_id)
        if group is None:
            yield Reply(reply_to, _commit_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        yield from self._append(shard, group, reply_to, request, accepted, errors)

    def _create(self, shard: GroupShard, group_id: str) -> Group | None:
        """A group without members; None if the memory for groups is used up."""
        group = Group(group_id)
        if not shard.reserve(group, group_size(group_id)):
            return None
        shard.groups[group_id] = group
        return group

    def _refusals(
        self, group: Group | None, request: OffsetCommitRequest | TxnOffsetCommitRequest
    ) -> dict[TopicPartition, ErrorCode]:
        """Why a commit is refused, by partition; NONE of one that is not."""
        refusals: Iterator[ErrorCode]
        if group is not None and group.consumer is not None:
            refusals = self._refusals_of_member(group.consumer, request)
        else:
            refusals = repeat(self._refusal(group, request))
        return {
            commit.partition: refusal or self._refusal_of(commit)
            for commit, refusal in zip(request.partitions, refusals, strict=False)
        }

    def _refusal(self, group: Group | None, request: OffsetCommitRequest | TxnOffsetCommitRequest) -> ErrorCode:
        """In a classic group, or none. Members commit in their generation; others only while the group has no members,
        or with a transaction, whose producer need not know the generation (before KIP-447). A transaction may also
        commit before its generation is assigned: its producer could not begin again as a consumer does. In a group that
        is gone a generation is illegal in every version: Kafka's GROUP_ID_NOT_FOUND, from OffsetCommit 9 on, does not
        have a consumer join again."""
        transactional = isinstance(request, TxnOffsetCommitRequest)
        from_member = request.generation_id >= 0 or request.member_id or request.instance_id is not None
        if group is None or group.state is GroupState.EMPTY:
            if request.generation_id < 0:
                return ErrorCode.NONE
            return ErrorCode.ILLEGAL_GENERATION if group is None else ErrorCode.UNKNOWN_MEMBER_ID
        if not from_member:
            return ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
        member = group.identified(request.member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            return member
        if self._is_other_generation(group, request.generation_id):
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.COMPLETING_REBALANCE and not transactional:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _refusals_of_member(
        self, consumer: ConsumerGroup, request: OffsetCommitRequest | TxnOffsetCommitRequest
    ) -> Iterator[ErrorCode]:
        """As for classic groups, with the member's epoch in place of the generation. The producer of a transaction does
        not know STALE_MEMBER_EPOCH (before KIP-1319) and would fail for good; nor does a client that commits in a
        version without member epochs, for a member that is not of the classic protocol."""
        epoch, member_id = request.generation_id, request.member_id
        transactional = isinstance(request, TxnOffsetCommitRequest)
        if epoch < 0 and (not consumer.members or (transactional and not (member_id or request.instance_id))):
            return repeat(ErrorCode.NONE)
        partitions = [self._by_id(commit.partition) for commit in request.partitions]
        refusals = consumer.commit_refusals(member_id, epoch, partitions)
        if isinstance(request, TxnOffsetCommitRequest):
            stale = ErrorCode.STALE_MEMBER_EPOCH
            return (ErrorCode.ILLEGAL_GENERATION if refusal is stale else refusal for refusal in refusals)
        if request.has_member_epoch or member_id not in consumer.members or consumer.is_classic(member_id):
            return refusals
        return repeat(ErrorCode.UNSUPPORTED_VERSION)

    def _by_id(self, partition: TopicPartition) -> Partition | None:
        state = self._cluster.partitions.get(partition)
        return None if state is None else (state.topic_id, partition.partition)

    def _is_other_generation(self, group: Group, generation_id: int) -> bool:
        """A member of an earlier generation commits what another may have read on since."""
        return generation_id != group.generation

    def _refusal_of(self, commit: CommitPartition) -> ErrorCode:
        if len(commit.metadata.encode()) > self._config.offset_metadata_max_bytes:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        if commit.partition not in self._cluster.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _append(
        self,
        shard: GroupShard,
        group: Group,
        reply_to: Hashable,
        request: OffsetCommitRequest,
        accepted: list[CommitPartition],
        errors: dict[TopicPartition, ErrorCode],
    ) -> Steps[None]:
        size = sum(max(0, self._growth(group, commit)) for commit in accepted)
        if size and not shard.reserve(group, size):
            if group.is_gone:
                shard.remove(group)
            yield Reply(reply_to, _commit_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        wall_ms: int = yield WallClock()
        expire_ms = -1 if request.retention_ms < 0 else wall_ms + request.retention_ms
        records = tuple(
            OffsetRecord(
                group.group_id,
                commit.partition,
                OffsetAndMetadata(commit.offset, commit.leader_epoch, commit.metadata, wall_ms, expire_ms),
            )
            for commit in accepted
        )

        def committed(error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
            if shard.groups.get(group.group_id) is group:
                shard.release(group, size)  # each offset is charged as it is taken
            if error is ErrorCode.NONE:
                self._totals.commits += len(records)
            for at, record in enumerate(records, base_offset):
                if error is ErrorCode.NONE:
                    shard.take_offset(group, record.partition, record.value, at)
                errors[record.partition] = error
            if group.is_gone and shard.groups.get(group.group_id) is group:
                shard.remove(group)
            yield Reply(reply_to, OffsetCommitResponse(tuple(errors.items())))

        yield from self._log.append(shard, group, records, committed)

    def _growth(self, group: Group, commit: CommitPartition) -> int:
        """The memory that a commit takes beyond what its partition's offset takes already."""
        held = group.offsets.get(commit.partition)
        return offset_size(commit.metadata) - (0 if held is None else offset_size(held.value.metadata))

    # TxnOffsetCommit

    def commit_in_transaction(
        self, shard: GroupShard, reply_to: Hashable, request: TxnOffsetCommitRequest
    ) -> Steps[None]:
        """The offsets are pending, and unstable for readers, from now on: an offset that another member reads
        meanwhile would have it process again what this transaction commits (KIP-447)."""
        group = shard.groups.get(request.group_id)
        errors = self._refusals(group, request)
        accepted = {
            commit.partition: commit for commit in request.partitions if errors[commit.partition] is ErrorCode.NONE
        }
        if accepted and group is None:
            group = self._create(shard, request.group_id)
        size = sum(offset_size(commit.metadata) for commit in accepted.values())
        if accepted and (group is None or not shard.reserve(group, size)):
            if group is not None and group.is_gone:
                shard.remove(group)
            errors.update(dict.fromkeys(accepted, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            accepted = {}
        if not accepted or group is None:
            yield Reply(reply_to, TxnOffsetCommitResponse(tuple(errors.items())))
            return
        yield from self._append_pending(shard, group, reply_to, request, tuple(accepted.values()), errors)

    def _append_pending(
        self,
        shard: GroupShard,
        group: Group,
        reply_to: Hashable,
        request: TxnOffsetCommitRequest,
        accepted: tuple[CommitPartition, ...],
        errors: dict[TopicPartition, ErrorCode],
    ) -> Steps[None]:
        wall_ms: int = yield WallClock()
        records = tuple(
            PendingOffsetRecord(
                group.group_id,
                commit.partition,
                OffsetAndMetadata(commit.offset, commit.leader_epoch, commit.metadata, wall_ms),
                request.producer_id,
                request.producer_epoch,
            )
            for commit in accepted
        )
        size = sum(offset_size(record.value.metadata) for record in records)
        group.appending.update(record.partition for record in records)

        def appended(error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
            """The append has ended. Its offsets stay if it has failed but may still be committed: the transaction's
            marker decides."""
            group.appending.subtract(record.partition for record in records)
            if shard.groups.get(group.group_id) is group:
                shard.release(group, size)  # each offset is charged as it is taken
                if base_offset >= 0:
                    for at, record in enumerate(records, base_offset):
                        shard.add_pending(group, record.producer_id, record.partition, StoredOffset(record.value, at))
                if group.is_gone:
                    shard.remove(group)
            errors.update(dict.fromkeys((record.partition for record in records), error))
            yield Reply(reply_to, TxnOffsetCommitResponse(tuple(errors.items())))

        yield from self._log.append(shard, group, records, appended, request)

    # OffsetFetch

    def fetch(self, shard: GroupShard, requested: OffsetFetchGroup, require_stable: bool = False) -> FetchedOffsets:
        """The committed offsets; none of a group or partition that has none. require_stable: nor of a partition that
        has a pending one."""
        group = shard.groups.get(requested.group_id)
        if group is not None and group.consumer is not None and requested.member_id is not None:
            error = group.consumer.refusal_to_read(requested.member_id, requested.member_epoch)
            if error is not ErrorCode.NONE:
                return FetchedOffsets(requested.group_id, error)
        held = {} if group is None else group.offsets
        if requested.partitions is None:
            found = tuple((partition, stored.value) for partition, stored in held.items())
        else:
            found = tuple(
                (partition, held[partition].value if partition in held else _NOTHING)
                for partition in requested.partitions
            )
        unstable = group.unstable if group is not None and self._hides_pending(require_stable) else frozenset()
        if unstable:
            found = tuple((name, _NOTHING if name in unstable else value) for name, value in found)
        return FetchedOffsets(requested.group_id, ErrorCode.NONE, found, unstable)

    def _hides_pending(self, require_stable: bool) -> bool:
        return require_stable

    # OffsetDelete, DeleteGroups

    def delete(self, shard: GroupShard, reply_to: Hashable, request: OffsetDeleteRequest) -> Steps[None]:
        group = shard.groups.get(request.group_id)
        if group is None:
            yield Reply(reply_to, OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND))
            return
        if group.members and group.protocol_type != CONSUMER_PROTOCOL:
            yield Reply(reply_to, OffsetDeleteResponse(ErrorCode.NON_EMPTY_GROUP))
            return
        topics = group.subscribed_topics()
        known = frozenset(group.all_partitions)
        errors = {
            partition: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if topics is None or partition.topic in topics
            else ErrorCode.NONE
            for partition in request.partitions
        }
        found = [partition for partition in errors if errors[partition] is ErrorCode.NONE and partition in known]

        def deleted(error: ErrorCode, now_ms: int) -> Steps[None]:
            failed = error is not ErrorCode.NONE
            yield Reply(reply_to, OffsetDeleteResponse(error, () if failed else tuple(errors.items())))

        if found:
            self._totals.deletions += len(found)
            yield from self._delete(shard, group, found, deleted)
        else:
            yield from deleted(ErrorCode.NONE, 0)

    def delete_group(
        self, shard: GroupShard, group_id: str, then: Callable[[ErrorCode, int], Steps[None]], now_ms: int
    ) -> Steps[None]:
        """Delete a group that has no members, with its offsets; `then` gets the error."""
        group = shard.groups.get(group_id)
        if group is None:
            yield from then(ErrorCode.GROUP_ID_NOT_FOUND, now_ms)
        elif group.members or group.pending or not group.is_empty:
            yield from then(ErrorCode.NON_EMPTY_GROUP, now_ms)
        elif group.consumer is not None and group.consumer.deferred is not None:  # another deletion is under way
            yield from then(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, now_ms)
        else:
            self._totals.deletions += len(group.offsets)
            yield from self._delete(shard, group, group.all_partitions, then, whole=True)

    def _delete(
        self,
        shard: GroupShard,
        group: Group,
        partitions: list[TopicPartition],
        then: Callable[[ErrorCode, int], Steps[None]],
        *,
        whole: bool = False,
    ) -> Steps[None]:
        """Write tombstones, in as many batches as they need. whole: of the group too, with the last of them, unless it
        has come back to life meanwhile. Members of a consumer group wait until the log has them: what they change is
        written by itself, without what is deleted here. `then` gets the first error."""
        own: tuple[LogRecord, ...] = ()
        consumer = group.consumer if whole else None
        if consumer is not None:
            # What a failed append lacks may be the end of a member, whose records the log has still.
            tombstones = {record_key(record): record for record in consumer.tombstones()}
            others = (record for key, record in consumer.writes.lacking().items() if key not in tombstones)
            own = (*others, *tombstones.values())
            consumer.deferred = []
        elif whole:
            own = (GroupRecord(group.group_id, None),)
        if not partitions and not own:
            yield from then(ErrorCode.NONE, 0)
            return
        incarnation = group.incarnation
        id_bytes = len(group.group_id.encode())
        batches = deletion_batches(partitions, lambda name: id_bytes + len(name.topic))
        last = len(batches) - 1
        errors: dict[int, ErrorCode] = {}

        def deleted(number: int, error: ErrorCode, base_offset: int, now_ms: int) -> Steps[None]:
            errors[number] = error
            if error is ErrorCode.NONE:
                for at, partition in enumerate(batches[number], base_offset):
                    shard.take_offset(group, partition, None, at)
                if whole and number == last and group.is_empty and group.incarnation == incarnation:
                    if group.consumer is not None:
                        yield from group.consumer.writes.end()
                    shard.forget(group)
                if group.is_gone and shard.groups.get(group.group_id) is group:
                    shard.remove(group)
            if len(errors) == len(batches):
                yield from then(next(filter(None, errors.values()), ErrorCode.NONE), now_ms)
                if consumer is not None:
                    yield from self._resume(shard, group, consumer, errors[last], now_ms)

        for number, batch in enumerate(batches):
            offsets = tuple(OffsetRecord(group.group_id, name, None) for name in batch)
            records = (*offsets, *own) if number == last else offsets
            yield from self._log.append(shard, group, records, partial(deleted, number))

    # Retention, deleted topics

    def expire(self, shard: GroupShard, group: Group, wall_ms: int) -> Steps[None]:
        """Delete the offsets whose retention is over, and the group if nothing else is left of it."""
        expired = list(self._expired(group, wall_ms))
        whole = self._is_left_empty(group, expired)
        if expired or whole:
            self._totals.expirations += len(expired)
            yield from self._delete(shard, group, expired, _done, whole=whole)

    def forget(self, shard: GroupShard, group: Group, partitions: Container[TopicPartition]) -> Steps[None]:
        """Delete the offsets of deleted partitions, and the group if nothing else is left of it."""
        found = [partition for partition in group.all_partitions if partition in partitions]
        if found:
            self._totals.deletions += len(found)
            yield from self._delete(shard, group, found, _done, whole=self._is_left_empty(group, found))

    def _is_left_empty(self, group: Group, deleted: Sized) -> bool:
        """Whether nothing is left of the group without these of its offsets."""
        rest = len(group.offsets) - len(deleted)
        busy = group.pending or group.pending_offsets or group.in_flight
        return group.is_empty and not busy and not rest

    def _expired(self, group: Group, wall_ms: int) -> Iterator[TopicPartition]:
        retention_ms = self._config.offsets_retention_minutes * 60_000
        empty = group.is_empty
        by_commit = group.protocol_type is None  # simple consumers, and groups of the consumer protocol
        unsettled = group.consumer is None and group.state is not GroupState.STABLE
        topics = None if empty or unsettled else group.subscribed_topics()
        unstable = group.unstable
        for partition, stored in group.offsets.items():
            value = stored.value
            if partition in unstable:
                continue
            if not empty and (topics is None or partition.topic in topics):
                continue
            if value.expire_ms >= 0:
                over = wall_ms >= value.expire_ms
            else:
                since_ms = value.commit_ms if by_commit or not empty else max(group.state_ms, value.commit_ms)
                over = wall_ms - since_ms >= retention_ms
            if over:
                yield partition


def _done(error: ErrorCode, now_ms: int) -> Steps[None]:
    return
    yield


def _commit_response(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(tuple((commit.partition, error) for commit in request.partitions))
