"""ReplicaManager: all the partitions of one broker, and what crosses them.

It routes each event to the partitions it concerns, keeps the requests that wait and the fetchers, and fences what
comes from an old controller, an old registration or to a broker that is not registered. What is decided about one
partition is decided in partition.py.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping

from kreplog.config import ReplicationConfig
from kreplog.core import nodes
from kreplog.core.effects import (
    DeleteLog,
    DeleteStrays,
    LeaderAndIsrApplied,
    Reply,
    RestoreStray,
    SetAsideStray,
    StateChange,
    Steps,
    SubmitMulti,
)
from kreplog.core.events import (
    Event,
    Fetched,
    Flushed,
    LogFailed,
    OffsetFound,
    Received,
    Registered,
    RetentionDue,
    SessionLost,
    StoreReplied,
    Tick,
)
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import (
    ControlRequest,
    DeleteRecordsRequest,
    FetchRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ListOffsetsRequest,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
    PartitionState,
    ProduceRequest,
    Request,
    StopReplica,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    illegal_name,
    refusal_of,
)
from kreplog.core.replication.control_fencing import ControlFencing
from kreplog.core.replication.delayed import (
    Deadlines,
    DelayedDeletion,
    DelayedFetch,
    DelayedProduce,
)
from kreplog.core.replication.deletions import Deletions
from kreplog.core.replication.fetch_purgatory import FetchPurgatory
from kreplog.core.replication.fetcher import Fetcher
from kreplog.core.replication.listings import OffsetListings
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.partition_change import CHANGES_FOR_READERS, PartitionChange
from kreplog.core.replication.produce_purgatory import ProducePurgatory
from kreplog.core.replication.role import Role
from kreplog.errors import (
    ErrorCode,
    InvariantError,
    ReplicaRefusedError,
    StorageError,
    is_exhaustion,
)
from kreplog.types import NO_EPOCH, Check, Create, EpochEndOffset, StoreOperation, TopicPartition

DUE_AT_ONCE = 200
"""Requests that are answered in one step because their time is over."""


class ReplicaManager:
    """The replication core of one broker.

    on_disk: topic ids of the replicas found in its log directories; one that an INIT does not name is set aside as a
    stray. strays: (topic id, partition number) of those that were in earlier lives.
    memory: what is remembered for clients between requests is charged to it; None for no limit.
    disk_lost: a log directory is new, or could not be opened, so replicas may be missing that it should have.
    metadata: what the controller said last, for clients. partitions: the open replicas. missing: topic ids of replicas
    that were lost with a disk while this broker counted as in sync.
    """

    def __init__(
        self,
        broker_id: int,
        config: ReplicationConfig,
        on_disk: Mapping[TopicPartition, str] | None = None,
        disk_lost: bool = False,
        strays: Iterable[tuple[str, int]] = (),
        memory: MemoryAccount | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.fencing = ControlFencing()
        self.missing: dict[TopicPartition, str] = {}
        self._disk_lost = disk_lost
        self.partitions: dict[TopicPartition, Partition] = {}
        self.metadata = MetadataCache()
        self.fetchers: dict[tuple[int, int], Fetcher] = {}
        self.config = config
        self._on_disk = dict(on_disk or {})
        self._strays = set(strays)
        self._fetcher_of: dict[TopicPartition, Fetcher] = {}
        self._correlations = itertools.count(1)
        self.memory = memory or MemoryAccount()
        self._produces = ProducePurgatory(self.partitions, self.metadata)
        self._deletions = Deletions(self.partitions, self.metadata)
        self._listings = OffsetListings(self.partitions, self.metadata)
        self._fetches = FetchPurgatory(
            self.partitions,
            self.metadata,
            self._deletions,
            config.max_incremental_fetch_session_cache_slots,
            self._session_ids(),
            self.memory,
        )
        self._deadlines: Deadlines[DelayedProduce | DelayedFetch | DelayedDeletion] = Deadlines(
            lambda one: one in self._fetches if isinstance(one, DelayedFetch) else bool(one.waiting)
        )
        self._failures = itertools.count(1)
        self._failures_to_report: dict[tuple[str, int], TopicPartition] = {}
        self._changed: deque[Partition] = deque()
        self._unsettled: dict[TopicPartition, None] = {}
        self._postponed: dict[TopicPartition, PartitionState] = {}  # what there were no descriptors or memory for
        self._next_isr_check_ms = 0

    @property
    def broker_epoch(self) -> int:
        """Of this broker's last registration."""
        return self.fencing.broker_epoch

    @property
    def controller_epoch(self) -> int:
        """The highest that this broker follows."""
        return self.fencing.controller_epoch

    def charges(self) -> Iterator[tuple[str, int, int]]:
        """(account, replica id, bytes) of all that is remembered for fetchers, as they are charged to `memory`."""
        return self._fetches.charges()

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        """Take one event. Ends with everything done that it, and what follows from it, asks for; but of what waits and
        is due or may be read only so much in a step, since thousands may wait: `next_wakeup` asks for the next."""
        self._fetches.begin_step()
        match event:
            case Received(reply_to, request):
                yield from self._received(reply_to, request, now_ms)
            case Fetched(leader, _, _):
                for key in sorted(self.fetchers):
                    if key[0] == leader:
                        yield from self.fetchers[key].on_fetched(event, now_ms, self.broker_epoch)
            case StoreReplied():
                yield from self._store_replied(event, now_ms)
            case Flushed(partition, recovery_point):
                yield from self._flushed(partition, recovery_point)
            case OffsetFound():
                yield from self._listings.found(event)
            case LogFailed(partition):
                self._go_offline(partition)
            case RetentionDue(partition):
                yield from self._enforce_retention(partition)
            case Registered(broker_epoch, _):
                self.fencing.registered(broker_epoch)
                self._disk_lost = self._disk_lost and not event.is_first
            case SessionLost():
                self._fence()
            case Tick():
                yield from self._tick(now_ms)
            case _:
                raise InvariantError(f"the replica manager takes no {type(event).__name__}")
        yield from self._settle(now_ms)

    def next_wakeup(self, now_ms: int) -> int | None:
        """When it wants the next Tick, at the latest; None while there is nothing to wait for."""
        if self._fetches.has_woken:
            return now_ms
        times = [self._deadlines.next_ms(), *(fetcher.next_wakeup(now_ms) for fetcher in self.fetchers.values())]
        if self._unsettled or self._failures_to_report or self._postponed:
            times.append(self._next_isr_check_ms)
        return min((time for time in times if time is not None), default=None)

    # Requests

    def _received(self, reply_to: Hashable, request: Request, now_ms: int) -> Steps[None]:
        if isinstance(request, ControlRequest):
            yield from self._control(reply_to, request, now_ms)
            return
        match request:
            case ProduceRequest():
                produce = yield from self._produces.begin(reply_to, request, now_ms)
                if produce is not None:
                    self._deadlines.push(produce.deadline_ms, produce, len(produce.answers))
            case FetchRequest():
                fetch = yield from self._fetches.begin(reply_to, request, now_ms)
                if fetch is not None:
                    self._deadlines.push(fetch.deadline_ms, fetch, 1 + len(fetch.request.partitions))
            case OffsetsForLeaderEpochRequest():
                yield Reply(reply_to, self._offsets_for_leader_epoch(request))
            case ListOffsetsRequest():
                yield from self._listings.begin(reply_to, request)
            case DeleteRecordsRequest():
                deletion = yield from self._deletions.begin(reply_to, request, now_ms)
                if deletion is not None:
                    self._deadlines.push(deletion.deadline_ms, deletion)
            case _:
                raise InvariantError(f"the replica manager takes no {type(request).__name__}")

    def _offsets_for_leader_epoch(self, request: OffsetsForLeaderEpochRequest) -> OffsetsForLeaderEpochResponse:
        answers = []
        for asked in request.partitions:
            partition = self.partitions.get(asked.partition)
            error = self.metadata.replica_error(asked.partition)
            end = EpochEndOffset(NO_EPOCH, -1)
            if partition is not None:
                error = partition.refusal(asked.current_leader_epoch)
                if error is ErrorCode.NONE:
                    end = partition.end_offset_for(asked.leader_epoch)
            answers.append((asked.partition, error, end))
        return OffsetsForLeaderEpochResponse(tuple(answers))

    def _enforce_retention(self, topic_partition: TopicPartition) -> Steps[None]:
        partition = self.partitions.get(topic_partition)
        if partition is None or partition.role is Role.OFFLINE:
            return
        try:
            yield from partition.enforce_retention()
        except StorageError as error:
            yield StateChange("error", f"{topic_partition}: {error}")
            partition.storage_failed(error)

    # What the controller says

    def _control(self, reply_to: Hashable, request: ControlRequest, now_ms: int) -> Steps[None]:
        if illegal := illegal_name(request):
            yield StateChange("error", f"{type(request).__name__} refused: {illegal}")
            yield Reply(reply_to, refusal_of(request, ErrorCode.INVALID_TOPIC_EXCEPTION))
            return
        error = self.fencing.refusal(request)
        if error is ErrorCode.NONE and self.fencing.is_unverified(request.controller_epoch):
            yield from self.fencing.verify(reply_to, request)
            return
        if error is not ErrorCode.NONE or self.fencing.is_late_copy(request):
            yield Reply(reply_to, refusal_of(request, error))
            return
        match request:
            case LeaderAndIsrRequest():
                response = yield from self._leader_and_isr(request, now_ms)
                yield LeaderAndIsrApplied(reply_to, request, response)
            case StopReplicaRequest():
                yield Reply(reply_to, (yield from self._stop_replicas(request)))
            case UpdateMetadataRequest():
                yield Reply(reply_to, UpdateMetadataResponse(self.metadata.apply(request)))
                yield from self._deletions.settle_all()

    def _leader_and_isr(self, request: LeaderAndIsrRequest, now_ms: int) -> Steps[LeaderAndIsrResponse]:
        answers: dict[TopicPartition, ErrorCode] = {}
        self.metadata.learn(request.partitions)
        for told in request.partitions:
            answers[told.partition] = yield from self._apply(told, now_ms)
        if request.is_init:
            self._disk_lost = False  # what it should have had was told; what is missing later was never made
            yield from self._set_strays_aside({told.partition for told in request.partitions})
        return LeaderAndIsrResponse(ErrorCode.NONE, tuple(answers.items()))

    def _apply(self, told: PartitionState, now_ms: int) -> Steps[ErrorCode]:
        partition = self.partitions.get(told.partition)
        again = self._postponed.pop(told.partition, None) is not None
        try:
            if self._on_disk.get(told.partition, told.topic_id) != told.topic_id:
                yield from self._set_aside(told.partition)
                partition = None
            if partition is None and (told.topic_id, told.partition.partition) in self._strays and not told.is_new:
                yield from self._restore(told)
            if partition is None and self._is_lost(told):
                self.missing[told.partition] = told.topic_id
                yield StateChange(
                    "error",
                    f"{told.partition}: broker {self.broker_id} should have it and has not: was a disk lost? It is "
                    "made anew after a restart, once the others in sync have gone on without it; where there are no "
                    "others, its records are lost: delete the topic and create it again",
                )
                return ErrorCode.KAFKA_STORAGE_ERROR
            if partition is None:
                partition = yield from self._open(told)
            return (yield from partition.apply(told, now_ms))
        except ReplicaRefusedError as error:
            yield StateChange("error", f"{told.partition}: refused: {error}")
            return ErrorCode.KAFKA_STORAGE_ERROR
        except StorageError as error:
            if not again:
                yield StateChange("error", f"{told.partition}: {error}")
            opened = self.partitions.get(told.partition)
            if opened is not None:
                opened.storage_failed(error)
            if not is_exhaustion(error):
                return ErrorCode.KAFKA_STORAGE_ERROR
            self._postpone(told)
            return ErrorCode.NONE

    def _open(self, told: PartitionState) -> Steps[Partition]:
        """A replica that was not open; made, where there is none. Raises StorageError; it is open then where it has
        failed."""
        topic_partition = told.partition
        partition = Partition(self.broker_id, topic_partition, told.topic_id, self.config, self.metadata, self._changed)
        try:
            yield from partition.open(told.config)
        except StorageError as error:
            if isinstance(error, ReplicaRefusedError) or is_exhaustion(error):
                raise
            self.partitions[topic_partition] = partition
            self._on_disk[topic_partition] = told.topic_id
            raise
        self.partitions[topic_partition] = partition
        self._on_disk[topic_partition] = told.topic_id
        return partition

    def _postpone(self, told: PartitionState) -> None:
        """Done later, as if the controller had been slow: a replica that it is told has failed is one that it counts on
        no more until this broker registers anew."""
        partition = self.partitions.get(told.partition)
        if partition is not None:
            partition.step_down()
        self._postponed[told.partition] = told

    def _apply_postponed(self, now_ms: int) -> Steps[None]:
        for told in list(self._postponed.values()):
            error = yield from self._apply(told, now_ms)
            if error is ErrorCode.KAFKA_STORAGE_ERROR and told.partition not in self.partitions:
                yield from self._tell_failure(told.partition)

    def _is_lost(self, told: PartitionState) -> bool:
        """Counted among those that hold all that is committed, and not on disk: no empty one must take its place."""
        on_disk = self._on_disk.get(told.partition) == told.topic_id
        suspected = self._disk_lost or self.missing.get(told.partition) == told.topic_id
        return suspected and not on_disk and not told.is_new and self._is_trusted(told)

    def _is_trusted(self, told: PartitionState) -> bool:
        """Whether the replica here counts as one that holds all that is committed."""
        return self.broker_id in (*told.state.isr, *told.state.elr)

    def _set_strays_aside(self, wanted: set[TopicPartition]) -> Steps[None]:
        """What an INIT does not name belongs to this broker no more, unless the controller is wrong: so it is kept.
        Source: Kafka's stray replicas (KAFKA-16234)."""
        for topic_partition in sorted(set(self._on_disk) - wanted):
            try:
                yield from self._set_aside(topic_partition)
            except StorageError as error:
                yield StateChange("error", f"{topic_partition}: cannot be set aside: {error}")

    def _set_aside(self, topic_partition: TopicPartition) -> Steps[None]:
        """Raises StorageError."""
        topic_id = self._on_disk[topic_partition]
        yield from self._forget(topic_partition)
        yield SetAsideStray(topic_partition)
        del self._on_disk[topic_partition]
        self._strays.add((topic_id, topic_partition.partition))
        what = f"{topic_partition}: no longer assigned to broker {self.broker_id} (topic id {topic_id})"
        yield StateChange("warning", f"{what}: set aside as a stray")

    def _restore(self, told: PartitionState) -> Steps[None]:
        """A controller names it again, so it was wrong before: with its records it is as one that was down meanwhile.
        Where they are gone, and it counts as in sync, it is as one that was lost with a disk. Raises StorageError."""
        restored = yield RestoreStray(told.partition, told.topic_id)
        self._strays.discard((told.topic_id, told.partition.partition))
        if restored:
            self._on_disk[told.partition] = told.topic_id
            yield StateChange("warning", f"{told.partition}: a stray, and assigned again: taken back with its records")
        elif self._is_trusted(told):
            self.missing[told.partition] = told.topic_id

    def _stop_replicas(self, request: StopReplicaRequest) -> Steps[StopReplicaResponse]:
        answers: dict[TopicPartition, ErrorCode] = {}
        for told in request.partitions:
            answers[told.partition] = yield from self._stop_replica(told)
        return StopReplicaResponse(ErrorCode.NONE, tuple(answers.items()))

    def _stop_replica(self, told: StopReplica) -> Steps[ErrorCode]:
        if told.delete and (told.topic_id, told.partition.partition) in self._strays:
            try:
                yield DeleteStrays(told.partition, told.topic_id)
            except StorageError as error:
                yield StateChange("error", f"{told.partition}: its strays cannot be deleted: {error}")
                return ErrorCode.KAFKA_STORAGE_ERROR
            self._strays.discard((told.topic_id, told.partition.partition))
        self._postponed.pop(told.partition, None)
        partition = self.partitions.get(told.partition)
        local_id = partition.topic_id if partition is not None else self._on_disk.get(told.partition)
        if local_id != told.topic_id:  # that replica is not here, whatever bears its name (F41)
            return ErrorCode.NONE
        if partition is not None:
            if told.leader_epoch != NO_EPOCH and told.leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if partition.role is Role.OFFLINE:
                return ErrorCode.KAFKA_STORAGE_ERROR
            partition.step_down()
            yield from self._settle_partition(partition, 0)
        return (yield from self._delete(told.partition)) if told.delete else ErrorCode.NONE

    def _delete(self, topic_partition: TopicPartition) -> Steps[ErrorCode]:
        yield from self._forget(topic_partition)
        try:
            yield DeleteLog(topic_partition)
        except StorageError as error:
            yield StateChange("error", f"{topic_partition}: cannot be deleted: {error}")
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._on_disk.pop(topic_partition, None)
        return ErrorCode.NONE

    def _forget(self, topic_partition: TopicPartition) -> Steps[None]:
        """The partition is no longer here: nobody waits for it, fetches for it or reads it."""
        self._postponed.pop(topic_partition, None)
        partition = self.partitions.pop(topic_partition, None)
        if partition is not None:
            self._stop_fetching(topic_partition)
            yield from self._produces.fail(topic_partition, self.metadata.replica_error(topic_partition))
            yield from self._deletions.settle(topic_partition)
            yield from self._fetches.wake(topic_partition, 0)

    # Store, disk, session, time

    def _store_replied(self, event: StoreReplied, now_ms: int) -> Steps[None]:
        kind, subject, *_ = event.tag if isinstance(event.tag, tuple) else ("", None)
        if kind == "isr" and subject in self.partitions:
            yield from self.partitions[subject].store_replied(event, now_ms)
        elif kind == "offline" and event.error is None:
            self._failures_to_report.pop(("offline", subject), None)
        elif kind == "controller epoch":
            yield from self.fencing.store_replied(
                event, lambda reply_to, request: self._control(reply_to, request, now_ms)
            )

    def _flushed(self, topic_partition: TopicPartition, recovery_point: int) -> Steps[None]:
        partition = self.partitions.get(topic_partition)
        if partition is None:
            return
        yield from partition.flushed_to(recovery_point)
        fetcher = self._fetcher_of.get(topic_partition)
        if fetcher is not None and partition.flushed >= partition.log.leo:
            fetcher.resume(topic_partition)

    def _go_offline(self, topic_partition: TopicPartition) -> None:
        """A failed log is final: the replica serves nothing more. What follows is done as the partition is settled."""
        partition = self.partitions.get(topic_partition)
        if partition is not None:
            partition.go_offline()

    def _tell_failure(self, topic_partition: TopicPartition) -> Steps[None]:
        """The controller is to move its leader elsewhere."""
        yield StateChange("error", f"{topic_partition}: its log has failed, the replica goes offline")
        tag = ("offline", next(self._failures))
        self._failures_to_report[tag] = topic_partition
        yield from self._report(tag)

    def _report(self, tag: tuple[str, int]) -> Steps[None]:
        """Under the registration whose log it is: the write of a dead process may arrive after the next process of this
        broker has registered, whose log is another."""
        if not self.fencing.fenced:
            data = nodes.encode_log_dir_event(self.broker_id, [self._failures_to_report[tag]])
            yield SubmitMulti(tag, self._log_dir_event(data))

    def _log_dir_event(self, data: bytes) -> tuple[StoreOperation, ...]:
        current = Check(nodes.broker_epoch(self.broker_id), self.broker_epoch)
        return (current, Create(f"{nodes.LOG_DIR_EVENTS}/event_", data, sequential=True))

    def _fence(self) -> None:
        """No registration: nobody may count on this broker, so it leads and follows nothing until the next one."""
        self.fencing.fenced = True
        self._postponed.clear()
        for topic_partition in sorted(self.partitions):
            if self.partitions[topic_partition].role in (Role.LEADER, Role.FOLLOWER):
                self.partitions[topic_partition].step_down()

    def _tick(self, now_ms: int) -> Steps[None]:
        yield from self._fetches.look_again(now_ms)
        for waiting in itertools.islice(self._deadlines.due(now_ms), DUE_AT_ONCE):
            match waiting:
                case DelayedFetch():
                    yield from self._fetches.expire(waiting, now_ms)
                case DelayedDeletion():
                    yield from self._deletions.expire(waiting)
                case DelayedProduce():
                    yield from self._produces.expire(waiting)
        if now_ms >= self._next_isr_check_ms:
            self._next_isr_check_ms = now_ms + max(1, self._isr_check_interval_ms())
            for topic_partition in sorted(self._unsettled):
                partition = self.partitions.get(topic_partition)
                if partition is not None:
                    yield from partition.tick(now_ms)
                if partition is None or not partition.needs_tick():
                    del self._unsettled[topic_partition]
            yield from self._apply_postponed(now_ms)
            for tag in list(self._failures_to_report):
                yield from self._report(tag)

    def _isr_check_interval_ms(self) -> int:
        """Often enough that a produce waits for a dead follower no longer than KeepInSyncTime and half of it (F23)."""
        return min(self.config.replica_lag_time_max_ms // 2, 1000)

    def _session_ids(self) -> Iterator[int]:
        """Positive int32s; a broker that was started anew does not soon use those of its last life again."""
        for count in itertools.count(1):
            yield (self.broker_epoch * 1_000_003 + count) % (2**31 - 1) + 1

    # What follows from it

    def _settle(self, now_ms: int) -> Steps[None]:
        """React to the partitions' changes until there are none, then let the fetchers ask for more."""
        while self._changed:
            yield from self._settle_partition(self._changed.popleft(), now_ms)
        for key in sorted(self.fetchers):
            yield from self.fetchers[key].poll(now_ms, self.broker_epoch)

    def _settle_partition(self, partition: Partition, now_ms: int) -> Steps[None]:
        changes, partition.changes = partition.changes, set()
        topic_partition = partition.topic_partition
        if partition.needs_tick():
            self._unsettled[topic_partition] = None
        if PartitionChange.ROLE in changes:
            self._stop_fetching(topic_partition)
            if partition.role is not Role.LEADER and topic_partition in self._produces:
                yield from self._produces.fail(topic_partition, partition.refusal(NO_EPOCH))
            if partition.role is Role.FOLLOWER:
                self._start_fetching(partition, now_ms)
            elif partition.role is Role.LEADER:
                yield from self._fetches.expect_followers(partition, now_ms)
            elif partition.role is Role.OFFLINE:
                yield from self._tell_failure(topic_partition)
        yield from self._deletions.settle(topic_partition)
        if PartitionChange.DELETED in changes and topic_partition in self._fetcher_of:
            self._fetcher_of[topic_partition].moved(topic_partition)
        if PartitionChange.COMMITTED in changes and topic_partition in self._produces:
            yield from self._produces.committed(topic_partition, partition.high_watermark)
        if PartitionChange.BELOW_MIN_ISR in changes:
            yield from self._produces.fail(topic_partition, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if changes & CHANGES_FOR_READERS:
            yield from self._fetches.wake(topic_partition, now_ms)

    def _start_fetching(self, partition: Partition, now_ms: int) -> None:
        index = fetcher_index(partition.topic_partition, self.config.num_replica_fetchers)
        key = (partition.leader, index)
        if key not in self.fetchers:
            self.fetchers[key] = Fetcher(self.broker_id, partition.leader, self.config, self._correlations, index)
        self.fetchers[key].add(partition, now_ms)
        self._fetcher_of[partition.topic_partition] = self.fetchers[key]

    def _stop_fetching(self, topic_partition: TopicPartition) -> None:
        fetcher = self._fetcher_of.pop(topic_partition, None)
        if fetcher is not None:
            fetcher.remove(topic_partition)


def fetcher_index(topic_partition: TopicPartition, num_replica_fetchers: int) -> int:
    """Which of the fetchers from a partition's leader fetches it, in every process. The partitions of a topic take
    turns."""
    return (sum(topic_partition.topic.encode()) + topic_partition.partition) % num_replica_fetchers
