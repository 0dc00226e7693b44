"""Partition: one broker's replica of a partition, as leader or follower; what is appended, committed, shown and cut.

    role      | is entered by                                        | does
    IDLE      | creation, StopReplica, no leader, deposed, fenced    | answers NOT_LEADER_OR_FOLLOWER
    LEADER    | LeaderAndIsr naming this broker                      | appends, serves, keeps the ISR and the watermark
    FOLLOWER  | LeaderAndIsr naming another                          | takes over what its leader sends, truncates
    OFFLINE   | a failed log                                         | nothing, until the broker is started anew

Where the process has no descriptor or memory left, no log has failed: the operation is refused, and whoever wanted it
tries again. A log that such an operation left half changed is opened anew at the next tick.

Waiting requests, fetchers and the other partitions are the manager's; isr_change.py judges what the store answers to an
ISR change. Every generator here is part of a step: its log effects are answered before anything else happens to the
partition. A partition with `news`, which the manager must react to, puts itself on the list of those that have changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import replace
from enum import Enum, auto
from typing import Protocol

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core import eligible, nodes
from kreplog.core.effects import (
    AdvanceHighWatermark,
    AppendAsFollower,
    AppendAsLeader,
    AssignLeaderEpoch,
    ConfigureLog,
    DeleteRecordsBefore,
    EndOfRecords,
    EnforceRetention,
    Flush,
    LogState,
    OpenedLog,
    OpenLog,
    ReadLog,
    SizeFrom,
    StateChange,
    Steps,
    SubmitMulti,
    SubmitRead,
    TruncateFullyAndStartAt,
    TruncateTo,
)
from kreplog.core.events import StoreReplied
from kreplog.core.messages import UP_TO_HIGH_WATERMARK, FetchedPartition, FetchPartition, PartitionState
from kreplog.core.replication import epochs, isr
from kreplog.core.replication.follower import FetchOutcome, FetchPosition
from kreplog.core.replication.isr import Replica
from kreplog.core.replication.isr_change import IsrChange, Outcome, isr_operations
from kreplog.errors import (
    CorruptBatchError,
    ErrorCode,
    FencedLeaderEpochError,
    LogFailedError,
    OffsetOutOfRangeError,
    StorageError,
    is_exhaustion,
)
from kreplog.types import (
    NO_EPOCH,
    NO_LEADER,
    AppendInfo,
    EpochEndOffset,
    LeaderAndIsr,
    StoreOperation,
    TopicPartition,
)

MISSING_MS = 60_000
"""How long a batch that a producer has sent elsewhere, or was refused here, may take to be sent again: longer than the
common clients wait for an answer (30 s, librdkafka 60 s)."""

NOT_HEARD = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.STALE_BROKER_EPOCH,
    }
)
"""What a leader answers that the controller has not told yet of the epoch, of a new topic, or of this registration."""


class Role(Enum):
    """See the module."""

    IDLE = auto()
    LEADER = auto()
    FOLLOWER = auto()
    OFFLINE = auto()


class News(Enum):
    """APPENDED: the log end moved. COMMITTED: the high watermark did. DELETED: the log start did. UNSETTLED: an ISR
    change has no outcome yet, or somebody who has caught up may not join yet. SHRUNK: the ISR has become too small to
    commit. ROLE: it leads, follows or does neither, or does so in another epoch."""

    APPENDED = auto()
    COMMITTED = auto()
    DELETED = auto()
    UNSETTLED = auto()
    SHRUNK = auto()
    ROLE = auto()

    __hash__ = object.__hash__  # that of Enum is slow, and this is asked for with every change of every partition


FOR_READERS = frozenset({News.APPENDED, News.COMMITTED, News.DELETED, News.ROLE})
"""News that may change what a fetch of the partition is answered; a change of the ISR alone does not."""


class Eligibility(Protocol):
    """Who lives, and who may join an ISR; MetadataCache in a broker."""

    def lives(self, broker_id: int) -> bool: ...

    def epoch_of(self, broker_id: int) -> int: ...

    def eligible(self, broker_id: int, broker_epoch: int) -> bool: ...


class Partition:
    """One replica. topic_id: of the topic it belongs to; another's messages are never taken for its own (KIP-516)."""

    def __init__(
        self,
        broker_id: int,
        topic_partition: TopicPartition,
        topic_id: str,
        config: ReplicationConfig,
        brokers: Eligibility,
        changed: deque[Partition],
    ) -> None:
        self.broker_id = broker_id
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.role = Role.IDLE
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        self.assigned_replicas: tuple[int, ...] = ()
        self.reassigned_replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.eligible: tuple[int, ...] = ()
        self.controller_epoch = -1
        self.config = TopicConfig()
        self.log = LogState()
        self.high_watermark = 0
        self.epoch_start = 0
        self.flushed = 0
        self.replicas: dict[int, Replica] = {}
        self.pending: IsrChange | None = None
        self.news: set[News] = set()
        self.interrupted = False
        self._missing_until_ms = 0
        self._settings = config
        self._brokers = brokers
        self._changed = changed
        self._submitted = 0

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Committed and proposed members together: any of them may be elected (KIP-497)."""
        if self.pending is None:
            return self.isr
        return tuple(sorted({*self.isr, *self.pending.proposed.isr}))

    @property
    def catching_up(self) -> tuple[int, ...]:
        """Assigned replicas that are not in sync (the sources' CUR)."""
        return tuple(replica for replica in self.assigned_replicas if replica not in self.isr)

    # Opening, and what the controller says

    def open(self, topic_config: TopicConfig) -> Steps[None]:
        """Recover the local log. Raises StorageError."""
        opened: OpenedLog = yield OpenLog(self.topic_partition, self.topic_id, topic_config)
        self.config = topic_config
        self.log = opened.state
        self.high_watermark = self._recovered_high_watermark(opened)
        self.flushed = opened.state.log_start  # what is in the page cache of an earlier life is not known to be on disk

    def _recovered_high_watermark(self, opened: OpenedLog) -> int:
        """min(checkpointed high watermark, LEO), and not below the log start."""
        return max(opened.state.log_start, min(opened.high_watermark, opened.state.leo))

    def apply(self, told: PartitionState, now_ms: int) -> Steps[ErrorCode]:
        """Carry out one partition of a LeaderAndIsr. FENCED_LEADER_EPOCH: it is older than what is known here, or asks
        for what only a new leader epoch can bring. Raises StorageError; of an exhausted process it can be applied
        again."""
        if self.role is Role.OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._is_stale(told.state.leader_epoch):
            return ErrorCode.FENCED_LEADER_EPOCH
        wanted = self._role_in(told.state)
        if self._needs_new_epoch(told) or (wanted is Role.LEADER and self._has_led(told.state.leader_epoch)):
            return ErrorCode.FENCED_LEADER_EPOCH
        if told.config is not self.config and told.config != self.config:
            self.config = told.config
            yield ConfigureLog(self.topic_partition, told.config)
        self.assigned_replicas = told.replicas
        self.reassigned_replicas = tuple([one for one in told.replicas if one not in told.removing])
        if told.state.leader_epoch == self.leader_epoch and self.role is wanted:
            if told.state.partition_epoch > self.partition_epoch:
                self._adopt(told.state)
            yield from self._reconsider()
            return ErrorCode.NONE
        if self.interrupted:
            yield from self._open_anew(now_ms)
        self._adopt(told.state)
        self.leader = told.state.leader
        self.leader_epoch = told.state.leader_epoch
        if wanted is Role.LEADER:
            yield from self._become_leader(now_ms)
        elif wanted is Role.FOLLOWER:
            yield from self._become_follower()
        else:
            self.step_down()
        return ErrorCode.NONE

    def _is_stale(self, leader_epoch: int) -> bool:
        return leader_epoch < self.leader_epoch

    def _has_led(self, leader_epoch: int) -> bool:
        """Led in this epoch, and then stepped down or died: never again, since what was written or proposed in it then
        may be lost, or still on its way. The controller has to raise the epoch."""
        return self.role is not Role.LEADER and bool(self.log.epochs) and self.log.epochs[-1][0] >= leader_epoch

    def _needs_new_epoch(self, told: PartitionState) -> bool:
        """With another flush.messages the offsets that followers ask for promise something else. A leader must not
        count what was fetched in this epoch for it; a follower that fsyncs before it asks goes on to do so, since its
        leader may hear of a weaker setting later."""
        return (
            told.state.leader_epoch == self.leader_epoch
            and told.config.flush_messages != self.config.flush_messages
            and (self.role is Role.LEADER or self.config.flushes_every_record)
        )

    def _reconsider(self) -> Steps[None]:
        """Settings or the ISR have changed, and neither leader nor epoch."""
        if self.role is Role.LEADER and not self.in_sync_enough():
            self._tell(News.SHRUNK)
        elif self.needs_tick():
            self._tell(News.UNSETTLED)
        yield from self._flush_tail()
        yield from self._shrink_by_bytes()
        yield from self._advance()

    def _role_in(self, state: LeaderAndIsr) -> Role:
        if state.leader == self.broker_id:
            return Role.LEADER
        return Role.IDLE if state.leader == NO_LEADER else Role.FOLLOWER

    def _adopt(self, state: LeaderAndIsr) -> None:
        """Take the store's word for the ISR; a change of ours that is still on its way fails on its version."""
        self.isr = state.isr
        self.eligible = state.eligible
        self.partition_epoch = state.partition_epoch
        self.controller_epoch = state.controller_epoch
        self.pending = None

    def _become_leader(self, now_ms: int) -> Steps[None]:
        """The epoch and its start are on disk before anything is served (KIP-101, F4); the high watermark stays what
        it was, since others may hold less than this log (F20)."""
        self._set_role(Role.LEADER)
        self.await_missing(now_ms)
        self.log = yield AssignLeaderEpoch(self.topic_partition, self.leader_epoch)
        self.epoch_start = self.log.leo
        self.replicas = {
            replica: Replica(replica, last_caught_up_ms=now_ms if replica in self.isr else 0)
            for replica in self.assigned_replicas
            if replica != self.broker_id
        }
        yield from self._flush_tail()
        yield from self._advance()

    def _become_follower(self) -> Steps[None]:
        """Fetching starts over and reconciles with the leader first, at every change of epoch, whoever leads (F5)."""
        self._set_role(Role.FOLLOWER)
        if self._must_truncate_to_watermark():
            yield from self._truncate(self.high_watermark)
        elif self._has_empty_epoch():
            self.log = yield TruncateTo(self.topic_partition, self.log.leo)
        yield from self._flush_tail()

    def _has_empty_epoch(self) -> bool:
        """It led and wrote nothing: the next leader's older records must fit behind what is here."""
        return bool(self.log.epochs) and self.log.epochs[-1][1] >= self.log.leo

    def _must_truncate_to_watermark(self) -> bool:
        """Without any epoch in the log nobody can tell where it parts from the leader's; only then (KIP-101)."""
        return not self.log.epochs and self.log.leo > self.high_watermark

    def step_down(self) -> None:
        """Neither lead nor follow until the controller says so."""
        self.leader = NO_LEADER
        self._set_role(Role.IDLE)

    def go_offline(self) -> None:
        """The log has failed: nothing of it is believed any more, until the broker is started anew."""
        if self.role is not Role.OFFLINE:
            self._set_role(Role.OFFLINE)

    def storage_failed(self, error: StorageError) -> bool:
        """An operation on the log has failed, and the log with it, unless the process alone was short of something.
        Whether the same can be tried again, the log being what it was."""
        if not is_exhaustion(error):
            self.go_offline()
            return False
        if isinstance(error, LogFailedError):
            self.interrupted = True
            self._tell(News.UNSETTLED)
        return not self.interrupted

    def _open_anew(self, now_ms: int) -> Steps[None]:
        """Recovery finishes the change that was interrupted: it takes no records but those that were to be cut off, and
        keeps those of an append that was half done. A follower fetches again only now: where it asks from tells its
        leader what it has. Raises StorageError."""
        opened: OpenedLog = yield OpenLog(self.topic_partition, self.topic_id, self.config)
        end_before = self.log.leo
        if self.role is Role.LEADER and opened.state.leo < end_before:
            raise LogFailedError(
                f"{self.topic_partition}: it ends at {opened.state.leo} when opened anew, and ended at {end_before}"
            )
        self.interrupted = False
        self.log = opened.state
        if self.role is Role.LEADER and self.log.leo > end_before:
            isr.leader_appended(self.replicas.values(), end_before, now_ms)
            self._tell(News.APPENDED)
        watermark = max(opened.high_watermark, self.log.log_start, min(self.high_watermark, self.log.leo))
        self.high_watermark = opened.high_watermark
        if watermark > self.high_watermark:
            yield from self._set_high_watermark(watermark)
        self.flushed = min(self.flushed, self.log.leo)
        yield from self._flush_tail()
        if self.role is Role.FOLLOWER:
            self._tell(News.ROLE)

    def _tell(self, news: News) -> None:
        if not self.news:
            self._changed.append(self)
        self.news.add(news)

    def _set_role(self, role: Role) -> None:
        self.role = role
        self.pending = None
        self.replicas = {}
        self._tell(News.ROLE)

    # Leading

    def refusal(self, current_leader_epoch: int, topic_id: str = "", any_role: bool = False) -> ErrorCode:
        """Why this replica cannot serve one who believes in `current_leader_epoch` (KIP-320); NONE if it can.

        any_role: whoever asks wants this replica, whether it leads or not."""
        if self.role is Role.OFFLINE:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if topic_id and topic_id != self.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if current_leader_epoch != NO_EPOCH:
            if self._is_fenced(current_leader_epoch):
                return ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch > self.leader_epoch:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if any_role or self.role is Role.LEADER else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def _is_fenced(self, current_leader_epoch: int) -> bool:
        return current_leader_epoch < self.leader_epoch

    def refuses_produce(self, acks: int) -> ErrorCode:
        """Why nothing may be appended under `acks` (F18); NONE if it may."""
        if (error := self.refusal(NO_EPOCH)) is not ErrorCode.NONE:
            return error
        if acks == -1 and not self.in_sync_enough():
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def append(self, records: object, now_ms: int) -> Steps[AppendInfo]:
        """Append a producer's batches; a batch that is there already is answered with its first offset (KIP-98).

        Raises what AppendAsLeader throws; OutOfOrderSequenceError may be over when a batch that is awaited has come.
        """
        end_before = self.log.leo
        info: AppendInfo
        info, self.log = yield AppendAsLeader(
            self.topic_partition, records, self.leader_epoch, strict=self.awaits_missing(now_ms)
        )
        if self.log.leo > end_before:
            isr.leader_appended(self.replicas.values(), end_before, now_ms)
            self._tell(News.APPENDED)
            yield from self._flush_tail()
            yield from self._shrink_by_bytes()
        yield from self._advance()
        return info

    def await_missing(self, now_ms: int) -> None:
        """Idempotent producers may have sent a batch to the leader before this one, or it was refused here; it will be
        sent again, but others may come before it. To append those would be to lose it: whoever sees a later batch
        acknowledged, as librdkafka does, may take the earlier one for acknowledged as well."""
        self._missing_until_ms = now_ms + MISSING_MS

    def awaits_missing(self, now_ms: int) -> bool:
        """Whether a gap in a producer's sequences may be filled yet."""
        return now_ms < self._missing_until_ms

    def is_committed(self, next_offset: int) -> bool:
        """Whether everything below `next_offset` may be acknowledged to an acks=all producer."""
        return self.high_watermark >= next_offset

    def flushed_to(self, recovery_point: int) -> Steps[None]:
        """Everything below `recovery_point` has been fsynced; what was truncated since counts no more."""
        self.flushed = min(max(self.flushed, recovery_point), self.log.leo)
        if self.role is Role.LEADER:
            yield from self._advance()

    def record_fetch(
        self, request: FetchPartition, replica_id: int, broker_epoch: int, now_ms: int
    ) -> Steps[FetchedPartition | None]:
        """A follower's fetch: take note of what it holds. The answer, when it is anything but records; else None."""
        if (error := self.refusal(request.current_leader_epoch, request.topic_id)) is not ErrorCode.NONE:
            return self._refused(error)
        replica = self.replicas.get(replica_id)
        if replica is None:
            return self._refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._is_old_registration(replica, broker_epoch) or self._is_future_registration(replica, broker_epoch):
            return self._refused(ErrorCode.STALE_BROKER_EPOCH)
        parted = self._diverging(request)
        if parted is not None:
            start = self.log.log_start
            return FetchedPartition(self.topic_partition, ErrorCode.NONE, log_start_offset=start, diverging=parted)
        if not self.log.log_start <= request.fetch_offset <= self.log.leo:
            return self._out_of_range()
        replica.broker_epoch = broker_epoch
        replica.log_start = request.log_start_offset
        isr.record_fetch(replica, request.fetch_offset, self.log.leo, now_ms)
        yield from self._advance()
        if replica_id in self.isr:
            yield from self._shrink_by_bytes()
        else:
            yield from self._maybe_expand(now_ms)
            if self.needs_tick():
                self._tell(News.UNSETTLED)
        return None

    def _is_old_registration(self, replica: Replica, broker_epoch: int) -> bool:
        """A message that an earlier life of the follower sent says nothing of what it holds now (KIP-903)."""
        return broker_epoch < replica.broker_epoch

    def _is_future_registration(self, replica: Replica, broker_epoch: int) -> bool:
        """One that this leader has not heard of: believed, it would keep out the follower that is registered."""
        return broker_epoch > self._brokers.epoch_of(replica.broker_id)

    def _diverging(self, request: FetchPartition) -> EpochEndOffset | None:
        return epochs.diverging(
            self.log.epochs, self.log.leo, request.fetch_offset, request.last_fetched_epoch, self.log.log_start
        )

    def check_readable(self, request: FetchPartition, any_role: bool = False) -> FetchedPartition | None:
        """The answer to a fetch that can have no records here and now; else None. any_role: as for refusal."""
        if (error := self.refusal(request.current_leader_epoch, request.topic_id, any_role)) is not ErrorCode.NONE:
            return self._refused(error)
        if not self.log.log_start <= request.fetch_offset <= self.log.leo:
            return self._out_of_range()
        return None

    def limit(self, consumer: bool) -> int:
        """The end of what may be read: a consumer sees only what is committed."""
        return self.high_watermark if consumer else self.log.leo

    def read(self, request: FetchPartition, consumer: bool, max_bytes: int) -> Steps[FetchedPartition]:
        """Records from request.fetch_offset on, as far as there are any and max_bytes > 0 allows."""
        limit = self.limit(consumer)
        records: object = b""
        if max_bytes > 0 and self.log.log_start <= request.fetch_offset < limit:
            records = yield ReadLog(
                self.topic_partition, request.fetch_offset, limit, min(max_bytes, request.max_bytes)
            )
        return FetchedPartition(
            self.topic_partition,
            ErrorCode.NONE,
            self.visible_high_watermark() if consumer else self.high_watermark,
            self.log.log_start,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            records=records,
        )

    def visible_high_watermark(self) -> int:
        """What clients are told: -1 while a new leader's lags behind what its predecessor may have told (KIP-207)."""
        return self.high_watermark if self.high_watermark >= self.epoch_start else -1

    def end_offset_for(self, epoch: int) -> EpochEndOffset:
        """The answer to OffsetsForLeaderEpoch; as epochs.end_offset_for."""
        return epochs.end_offset_for(self.log.epochs, self.log.leo, epoch)

    def _refused(self, error: ErrorCode) -> FetchedPartition:
        return FetchedPartition(self.topic_partition, error, leader=self.leader, leader_epoch=self.leader_epoch)

    def _out_of_range(self) -> FetchedPartition:
        return FetchedPartition(
            self.topic_partition,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            self.high_watermark,
            self.log.log_start,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
        )

    # The log start

    def delete_records(self, offset: int) -> Steps[int]:
        """A leader deletes what is below `offset`, UP_TO_HIGH_WATERMARK for all that is committed; returns the offset
        that every replica has to reach. Raises OffsetOutOfRangeError for more than that, and StorageError."""
        wanted = self.high_watermark if offset == UP_TO_HIGH_WATERMARK else offset
        if not 0 <= wanted <= self._deletable_end():
            raise OffsetOutOfRangeError(
                f"{self.topic_partition}: records are deleted up to the high watermark {self.high_watermark} at most, "
                f"not up to {offset}",
                partition=str(self.topic_partition),
                offset=offset,
            )
        if wanted > self.log.log_start:
            yield from self._delete_before(wanted)
        return wanted

    def _deletable_end(self) -> int:
        """What is not committed may yet be needed by any replica (F39)."""
        return self.high_watermark

    def _delete_before(self, offset: int) -> Steps[None]:
        self.log = yield DeleteRecordsBefore(self.topic_partition, offset)
        self._tell(News.DELETED)

    def enforce_retention(self) -> Steps[None]:
        """Delete what is too old or too much, whatever the role: each replica by its own size and clock. Raises
        StorageError."""
        start = self.log.log_start
        self.log = yield EnforceRetention(self.topic_partition)
        if self.log.log_start > start:
            self._tell(News.DELETED)

    def low_watermark(self) -> int:
        """The smallest log start of all replicas that live, as far as they have told; -1 until all have (KIP-107)."""
        starts = [one.log_start for one in self.replicas.values() if self._brokers.lives(one.broker_id)]
        return min([self.log.log_start, *starts])

    # The high watermark

    def _advance(self) -> Steps[None]:
        """Raise the leader's high watermark as the maximal ISR allows; not while the ISR is too small, nor while the
        store still says that others are eligible, which promises that they hold all that is committed (KIP-966)."""
        if self.role is not Role.LEADER or not self.in_sync_enough() or self._has_eligible():
            return
        watermark = isr.high_watermark(
            self.high_watermark, self._local_end(), self.broker_id, self.maximal_isr, self.replicas
        )
        if watermark > self.high_watermark:
            yield from self._set_high_watermark(watermark)

    def _set_high_watermark(self, offset: int) -> Steps[None]:
        self.high_watermark = offset
        self._tell(News.COMMITTED)
        yield AdvanceHighWatermark(self.topic_partition, offset)

    def in_sync_enough(self) -> bool:
        """Whether the committed ISR is large enough to commit (KIP-966)."""
        return isr.enough_in_sync(self.isr, self.config.min_insync_replicas, self.assigned_replicas)

    def _has_eligible(self) -> bool:
        return bool(self.eligible)

    def _flush_tail(self) -> Steps[None]:
        if self.log.leo - self.flushed >= self.config.flush_messages:
            yield Flush(self.topic_partition)

    @property
    def awaits_flush(self) -> bool:
        """With flush.messages=1 an offset that is asked for promises that all below is on disk."""
        return self.config.flushes_every_record and self.flushed < self.log.leo

    def _local_end(self) -> int:
        """What this replica counts as held: with flush.messages=1 only what has been fsynced."""
        return self.flushed if self.config.flushes_every_record else self.log.leo

    # The ISR

    def tick(self, now_ms: int) -> Steps[None]:
        """Drop who lags, and try again what the store has not answered, or what the process had no resources for."""
        if self.interrupted and self.role is not Role.OFFLINE:
            try:
                yield from self._open_anew(now_ms)
            except StorageError as error:
                yield StateChange("error", f"{self.topic_partition}: cannot be opened anew: {error}")
                self.storage_failed(error)
                return
        if self.role is not Role.LEADER:
            return
        if self.pending is not None:
            if self.pending.tag is None and now_ms >= self.pending.retry_ms:
                yield from self._submit(self.pending)
            return
        if self.eligible and self.in_sync_enough():  # fewer are asked for than when they left
            yield from self._propose(self.isr, None)
        yield from self._maybe_expand(now_ms)
        if self.pending is None:
            lagging = [member for member in self._followers_in_sync() if self._is_lagging(member, now_ms)]
            yield from self._shrink(lagging)
            yield from self._shrink_by_bytes()

    def needs_tick(self) -> bool:
        """Whether time alone can change anything here: somebody in sync is behind, somebody else could join, or a write
        has no outcome, or a log has to be opened anew."""
        if self.interrupted:
            return self.role is not Role.OFFLINE
        if self.role is not Role.LEADER:
            return False
        if self.pending is not None or (self.eligible and self.in_sync_enough()):
            return True
        for replica in self.replicas.values():
            if self._is_behind(replica) if replica.broker_id in self.isr else self._may_join(replica):
                return True
        return False

    def _followers_in_sync(self) -> list[Replica]:
        return [self.replicas[member] for member in self.isr if member in self.replicas]

    def _is_lagging(self, replica: Replica, now_ms: int) -> bool:
        return isr.is_lagging(replica, self.log.leo, now_ms, self._settings.replica_lag_time_max_ms)

    def _is_lagging_in_bytes(self, replica: Replica) -> Steps[bool]:
        """False while its position is unknown, or its lag cannot be read: then it is judged by time alone."""
        max_bytes = self._settings.replica_lag_max_bytes
        if max_bytes < 0 or not isr.UNKNOWN_OFFSET < replica.leo < self.log.leo:
            return False
        try:
            behind: int = yield SizeFrom(self.topic_partition, max(replica.leo, self.log.log_start))
        except StorageError:
            return False
        return isr.is_lagging_in_bytes(behind, max_bytes)

    def _shrink_by_bytes(self) -> Steps[None]:
        """Where replica.lag.max.bytes is set: after whatever may have moved a member, or the log end away from it."""
        if self.role is not Role.LEADER or self.pending is not None or self._settings.replica_lag_max_bytes < 0:
            return
        members = self._followers_in_sync()
        lagging = {}
        for member in members:
            lagging[member.broker_id] = yield from self._is_lagging_in_bytes(member)
        yield from self._shrink([member for member in members if lagging[member.broker_id]])

    def _shrink(self, lagging: list[Replica]) -> Steps[None]:
        if lagging:
            leaving = [replica.broker_id for replica in lagging]
            yield StateChange("info", f"{self.topic_partition}: {leaving} lag and leave the ISR {self.isr}")
            yield from self._propose([member for member in self.isr if member not in leaving], None)

    def _maybe_expand(self, now_ms: int) -> Steps[None]:
        """Take in the first that may join and would not be dropped again at once; the others follow when the store has
        answered."""
        for replica in self._joiners():
            if (
                self.pending is None
                and not self._is_lagging(replica, now_ms)
                and self._brokers.eligible(replica.broker_id, replica.broker_epoch)
                and not (yield from self._is_lagging_in_bytes(replica))
            ):
                yield StateChange(
                    "info", f"{self.topic_partition}: {replica.broker_id} has caught up, joins {self.isr}"
                )
                yield from self._propose([*self.isr, replica.broker_id], replica)

    def _joiners(self) -> list[Replica]:
        return [one for one in self.replicas.values() if one.broker_id not in self.isr and self._may_join(one)]

    def _may_join(self, replica: Replica) -> bool:
        return isr.is_caught_up(replica, self.high_watermark, self.epoch_start)

    def _is_behind(self, replica: Replica) -> bool:
        return replica.leo < self.log.leo

    def _propose(self, members: Collection[int], joiner: Replica | None) -> Steps[None]:
        """Write a new ISR, on condition that nobody has written since; one change in flight (KIP-497)."""
        members = tuple(sorted(members))
        min_isr = self.config.min_isr(len(self.assigned_replicas))
        proposed = LeaderAndIsr(
            self.leader,
            self.leader_epoch,
            members,
            eligible.eligible_after(self.isr, self.eligible, members, min_isr),
            self.controller_epoch,
            self.partition_epoch,
        )
        path = nodes.leader_and_isr(self.topic_partition)
        yield from self._submit(IsrChange(proposed, path, self._isr_operations(proposed, joiner), None))

    def _submit(self, change: IsrChange) -> Steps[None]:
        tag = self._next_tag()
        self.pending = replace(change, tag=tag)
        self._tell(News.UNSETTLED)
        yield SubmitMulti(tag, change.operations)

    def _isr_operations(self, proposed: LeaderAndIsr, joiner: Replica | None) -> tuple[StoreOperation, ...]:
        return isr_operations(self.topic_partition, proposed, self._expected_version(), joiner)

    def _expected_version(self) -> int:
        return self.partition_epoch

    def _next_tag(self) -> Hashable:
        self._submitted += 1
        return ("isr", self.topic_partition, self.leader_epoch, self._submitted)

    def store_replied(self, event: StoreReplied, now_ms: int) -> Steps[None]:
        """The outcome of an ISR write, or of the read that follows a refused one; isr_change.py judges it."""
        change = self.pending
        if self.role is not Role.LEADER or change is None or change.tag != event.tag:
            return
        match change.outcome(event):
            case Outcome.ADOPTED, LeaderAndIsr() as state:
                self._adopt(state)
                yield from self._reconsider()
                yield from self._maybe_expand(now_ms)
            case Outcome.OVERTAKEN, _:
                tag = self._next_tag()
                self.pending = replace(change, tag=tag)
                yield SubmitRead(tag, (change.path,))
            case Outcome.DROPPED, _:
                yield StateChange("info", f"{self.topic_partition}: {change.proposed.isr} is not to be: {event.error}")
                self.pending = None
                yield from self._shrink_by_bytes()
                yield from self._advance()
            case Outcome.DEPOSED, state:
                yield StateChange("warning", f"{self.topic_partition}: deposed, the store says {state}")
                self.step_down()
            case Outcome.UNKNOWN, _:
                retry_ms = now_ms + self._settings.replica_fetch_backoff_ms
                self.pending = replace(change, tag=None, retry_ms=retry_ms)

    # Following

    def fetch_position(self) -> FetchPosition:
        """Where the next fetch starts, and the epoch of the record before it, by which the leader sees divergence."""
        return FetchPosition(self.log.leo, epochs.epoch_at(self.log.epochs, self.log.leo - 1), self.log.log_start)

    def position_after(self, request: FetchPartition, data: FetchedPartition) -> Steps[FetchPosition | None]:
        """Where fetch_position will be once these records have been taken; None where they must be taken before that is
        asked for: see _may_claim, and with flush.messages=1 a fetch says that all below it is on disk."""
        if self.role is not Role.FOLLOWER or self._is_late(request) or self.config.flushes_every_record:
            return None
        end: EpochEndOffset | None = yield EndOfRecords(self.topic_partition, data.records)
        if end is None or end.end_offset <= self.log.leo or not self._may_claim(end.end_offset, data.high_watermark):
            return None  # records that end before they begin are damaged: they are not worth a claim of less either
        return FetchPosition(end.end_offset, end.leader_epoch, self.log.log_start)

    def _may_claim(self, offset: int, leaders_watermark: int) -> bool:
        """Whether this replica may ask for `offset`, which tells its leader that it has all below, before it has.

        Below the watermark that the leader told in this epoch it does no harm if the append then fails. Nothing is
        committed by it, since every member of the ISR has those records; and it does not bring this replica into the
        ISR, which takes an offset at the watermark or beyond."""
        return offset < leaders_watermark

    def take_fetched(self, request: FetchPartition, data: FetchedPartition, now_ms: int) -> Steps[FetchOutcome]:
        """Take over what the leader answered to `request`; late answers, which fit no more, are dropped (F7)."""
        if self.role is not Role.FOLLOWER:
            return FetchOutcome.REMOVE
        if self._is_late(request):
            return FetchOutcome.IDLE
        if data.error in NOT_HEARD:
            return FetchOutcome.LEADER_NOT_READY
        if data.error not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            return FetchOutcome.BACK_OFF
        try:
            if data.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                return (yield from self._leave_leaders_range(data))
            if data.diverging is not None:
                return (yield from self._reconcile(data.diverging, data.log_start_offset))
            return (yield from self._take_records(data))
        except StorageError as error:
            yield StateChange("error", f"{self.topic_partition}: {error}")
            return FetchOutcome.BACK_OFF if self.storage_failed(error) else FetchOutcome.REMOVE

    def _is_late(self, request: FetchPartition) -> bool:
        return request.current_leader_epoch != self.leader_epoch or request.fetch_offset != self.log.leo

    def _reconcile(self, parted: EpochEndOffset, leaders_start: int) -> Steps[FetchOutcome]:
        """Cut where the logs part; what else the answer says does not count, least of all its watermark (F8).

        Where they part at the leader's log start or before it, nobody can tell whether what is left here ever was in
        the leader's log: it goes too."""
        offset = epochs.truncation_offset(self.log.epochs, self.log.leo, parted)
        if leaders_start > 0 and max(offset, self.high_watermark) <= leaders_start:
            yield from self._start_at(leaders_start)
        else:
            yield from self._truncate(offset)
        yield from self._flush_tail()
        return FetchOutcome.AWAIT_FLUSH if self.awaits_flush else FetchOutcome.TRUNCATED

    def _truncate(self, offset: int) -> Steps[None]:
        if offset < self.log.log_start:
            self.log = yield TruncateFullyAndStartAt(self.topic_partition, offset)
        elif offset < self.log.leo:
            self.log = yield TruncateTo(self.topic_partition, offset)
        if self.high_watermark > self.log.leo:
            yield StateChange(
                "warning",
                f"{self.topic_partition}: cut to {self.log.leo}, below the high watermark {self.high_watermark}: "
                "records that were committed are lost, as after an unclean election",
            )
            self.high_watermark = self.log.leo
        self.flushed = min(self.flushed, self.log.leo)

    def _leave_leaders_range(self, data: FetchedPartition) -> Steps[FetchOutcome]:
        """Behind the leader's log start: start anew there, watermark included (F9). Past its end, with no epoch to tell
        where the logs part: what is not known to be committed goes, then everything (F10)."""
        if data.log_start_offset > self.log.leo:
            yield from self._start_at(data.log_start_offset)
        elif self.log.leo > self.high_watermark:
            yield from self._truncate(self.high_watermark)
        else:
            self.log = yield TruncateFullyAndStartAt(self.topic_partition, max(0, data.log_start_offset))
            self.flushed = self.high_watermark = self.log.leo
        return FetchOutcome.TRUNCATED

    def _start_at(self, leaders_start: int) -> Steps[None]:
        """Keep nothing, and begin where the leader's log does: all below is committed."""
        self.log = yield TruncateFullyAndStartAt(self.topic_partition, leaders_start)
        self.flushed = self.log.leo
        yield from self._set_high_watermark(self.log.leo)

    def _take_records(self, data: FetchedPartition) -> Steps[FetchOutcome]:
        progress = bool(len(data.records))
        if progress:
            try:
                yield from self._append_fetched(data.records)
            except (CorruptBatchError, OffsetOutOfRangeError, FencedLeaderEpochError) as error:
                yield StateChange("warning", f"{self.topic_partition}: refused what leader {self.leader} sent: {error}")
                return FetchOutcome.BACK_OFF
        yield from self._follow_high_watermark(data.high_watermark)
        yield from self._follow_log_start(data.log_start_offset)
        yield from self._flush_tail()
        if self.awaits_flush:
            return FetchOutcome.AWAIT_FLUSH
        return FetchOutcome.PROGRESS if progress else FetchOutcome.IDLE

    def _follow_log_start(self, leaders: int) -> Steps[None]:
        """What the leader has deleted goes here too; a log start of its own, from retention, may be further on."""
        if self.log.log_start < leaders <= self.high_watermark:
            yield from self._delete_before(leaders)

    def _append_fetched(self, records: object) -> Steps[None]:
        """A log start may lie inside a batch, which is sent whole: an empty log then begins where the batch does."""
        try:
            self.log = yield AppendAsFollower(self.topic_partition, records)
        except OffsetOutOfRangeError as error:
            empty = self.log.leo == self.log.log_start
            if not empty or error.offset is None or error.offset >= self.log.leo:
                raise
            self.log = yield TruncateFullyAndStartAt(self.topic_partition, error.offset)
            self.flushed = self.high_watermark = self.log.leo
            self.log = yield AppendAsFollower(self.topic_partition, records)

    def _follow_high_watermark(self, leaders: int) -> Steps[None]:
        """min(the leader's, own LEO); it does not go back when a new leader's is older."""
        watermark = min(leaders, self.log.leo)
        if watermark > self.high_watermark:
            yield from self._set_high_watermark(watermark)
