"""ReplicaManager: all partitions of one broker, and what concerns several of them.

It routes each event to its partitions, opens, stops and deletes replicas as the controller orders, and has the
deadlines of delayed requests. control_fencing.py refuses requests of stale controllers and registrations,
fetcher_manager.py has the fetchers, partition.py decides about one partition.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from kreplog.config import RACK_AWARE_SELECTOR, ReplicationConfig
from kreplog.core import nodes
from kreplog.core.dynamic_configs import NUM_REPLICA_FETCHERS, changes_logs, of_replication
from kreplog.core.effects import (
    ConfigureBroker,
    ConfigureLog,
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
    AddPartitionsReplied,
    CopyCaughtUp,
    Event,
    FetchReplied,
    Flushed,
    LeadershipChanged,
    LogFailed,
    MarkerCommitted,
    OffsetFound,
    PartitionsDeleted,
    Received,
    Registered,
    RetentionDue,
    SessionLost,
    StoreReplied,
    Tick,
)
from kreplog.core.group_messages import GroupRequest
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import (
    NO_CONFIGS,
    BrokerConfigs,
    ControlRequest,
    DeleteRecordsRequest,
    FetchPartition,
    FetchRequest,
    FetchResponse,
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
from kreplog.core.quota_windows import QuotaWindow
from kreplog.core.replication.control_fencing import ControlFencing
from kreplog.core.replication.delayed import (
    Deadlines,
    DelayedDeletion,
    DelayedFetch,
    DelayedProduce,
)
from kreplog.core.replication.deletions import Deletions
from kreplog.core.replication.fetch_purgatory import FetchPurgatory
from kreplog.core.replication.fetcher_manager import ReplicaFetcherManager
from kreplog.core.replication.listings import OffsetListings
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.partition_change import CHANGES_FOR_FOLLOWERS, CHANGES_FOR_READERS, PartitionChange
from kreplog.core.replication.produce_purgatory import ProducePurgatory
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.core.replication.role import Role
from kreplog.core.throttled_replicas import (
    FOLLOWER_THROTTLED_RATE,
    FOLLOWER_THROTTLED_REPLICAS,
    LEADER_THROTTLED_RATE,
    LEADER_THROTTLED_REPLICAS,
)
from kreplog.core.transaction_messages import INTERNAL_TOPICS, TransactionQuery, TransactionRequest
from kreplog.errors import (
    ErrorCode,
    InvariantError,
    ReplicaRefusedError,
    StorageError,
    is_exhaustion,
)
from kreplog.types import NO_EPOCH, Check, Create, EpochEndOffset, StoreOperation, TopicPartition

MAX_EXPIRED_PER_STEP = 200
"""Delayed requests that one step completes because their time is over."""

_CHANGES_OF_COMMITTED = frozenset({PartitionChange.COMMITTED, PartitionChange.APPENDED})
"""Changes after which a marker may be committed: its append and the high watermark come in either order."""


class ReplicaManager:
    """The replication core of one broker.

    on_disk: topic ids of the replicas found in its log directories; one that an INIT does not name is set aside as a
    stray. strays: (topic id, partition number) of those that earlier processes set aside.
    memory: the account for state of clients between requests; None for no limit.
    disk_lost: a log directory is new, or could not be opened, so that assigned replicas may be missing.
    configs: the dynamic ones of this broker, as the last controller sent them. leader_quota, follower_quota: of
    replication.
    metadata: the cluster metadata of the last controller. partitions: the open replicas. missing: topic ids of replicas
    that were lost with a disk while this broker counted as in sync. coordinator_events: changes of leadership of
    internal topics, committed markers in them, and deletions of any, in order, for the coordinators of this broker to
    take.
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
        self.coordinator_events: list[LeadershipChanged | PartitionsDeleted | MarkerCommitted] = []
        self._disk_lost = disk_lost
        self.partitions: dict[TopicPartition, Partition] = {}
        self.metadata = MetadataCache()
        self.configs = NO_CONFIGS
        self.config = config
        self._on_disk = dict(on_disk or {})
        self._strays = set(strays)
        window = QuotaWindow(config.replication_quota_window_num, config.replication_quota_window_size_seconds * 1000)
        self.leader_quota = ReplicationQuota(
            broker_id, LEADER_THROTTLED_REPLICAS, config.leader_replication_throttled_rate, window
        )
        self.follower_quota = ReplicationQuota(
            broker_id, FOLLOWER_THROTTLED_REPLICAS, config.follower_replication_throttled_rate, window
        )
        self._fetchers = ReplicaFetcherManager(broker_id, config, self.follower_quota)
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
            config.replica_selector_class == RACK_AWARE_SELECTOR,
            self.leader_quota,
        )
        self._deadlines: Deadlines[DelayedProduce | DelayedFetch | DelayedDeletion] = Deadlines(
            lambda delayed: delayed in self._fetches if isinstance(delayed, DelayedFetch) else bool(delayed.waiting)
        )
        self._failures = itertools.count(1)
        self._failures_to_report: dict[tuple[str, int], TopicPartition] = {}
        self._changed: deque[Partition] = deque()
        self._unsettled: dict[TopicPartition, None] = {}
        self._postponed: dict[TopicPartition, PartitionState] = {}  # not applied for want of descriptors or memory
        self._next_isr_check_ms = 0

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's last registration."""
        return self.fencing.broker_epoch

    @property
    def controller_epoch(self) -> int:
        """The highest that this broker follows."""
        return self.fencing.controller_epoch

    def charges(self) -> Iterator[tuple[str, int, int]]:
        """(account, replica id, bytes) of the state of all fetchers, as charged to `memory`."""
        return self._fetches.charges()

    def fetches_waiting_for(self, partition: TopicPartition) -> Iterator[tuple[DelayedFetch, FetchPartition]]:
        """As FetchPurgatory.waiting_for."""
        return self._fetches.waiting_for(partition)

    def sessions_of_followers(self) -> Iterator[tuple[int, int, int]]:
        """As FetchSessions.of_followers."""
        return self._fetches.sessions_of_followers()

    def fetch_session(self, session_id: int) -> Sequence[FetchPartition] | None:
        """The partitions of a fetch session, as last listed; None if there is no such session."""
        return self._fetches.session(session_id)

    def fetch_not_sent(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        """The response to a consumer that must not have the one to its request now: without partitions, which are left
        for its next request."""
        return FetchResponse(ErrorCode.NONE, self._fetches.not_sent(request, response))

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        """Take one event. Of the delayed requests that are due or can be completed a step completes only so many, since
        thousands may wait; `next_wakeup` is then due at once."""
        self._fetches.begin_step()
        match event:
            case Received(reply_to, request):
                yield from self._received(reply_to, request, now_ms)
            case FetchReplied():
                yield from self._fetchers.on_fetched(event, now_ms, self.broker_epoch)
            case StoreReplied():
                yield from self._store_replied(event, now_ms)
            case AddPartitionsReplied():
                yield from self._produces.verification.replied(event, now_ms)
            case Flushed(partition, recovery_point):
                yield from self._flushed(partition, recovery_point)
            case OffsetFound():
                yield from self._listings.found(event)
            case LogFailed(partition):
                self._go_offline(partition)
            case RetentionDue(partition):
                yield from self._maintain(partition, Partition.enforce_retention)
            case CopyCaughtUp(partition):
                yield from self._maintain(partition, Partition.replace_log)
            case Registered(broker_epoch, _):
                self.fencing.registered(broker_epoch)
                self._disk_lost = self._disk_lost and not event.is_first
            case SessionLost():
                self._fence()
            case Tick():
                yield from self._tick(now_ms)
            case _:
                raise InvariantError(f"the replica manager does not handle {type(event).__name__}")
        yield from self._settle(now_ms)

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the next Tick is due, at the latest; None for never."""
        if self._fetches.has_woken:
            return now_ms
        earliest = self._deadlines.next_ms()
        for time in (self._produces.verification.next_wakeup(), self._fetchers.next_wakeup(now_ms)):
            if time is not None and (earliest is None or time < earliest):
                earliest = time
        if self._unsettled or self._failures_to_report or self._postponed:
            return self._next_isr_check_ms if earliest is None else min(earliest, self._next_isr_check_ms)
        return earliest

    # Requests

    def _received(
        self, reply_to: Hashable, request: Request | GroupRequest | TransactionRequest | TransactionQuery, now_ms: int
    ) -> Steps[None]:
        if isinstance(request, ControlRequest):
            yield from self._control(reply_to, request, now_ms)
            return
        match request:
            case ProduceRequest():
                produce = yield from self._produces.begin(reply_to, request, now_ms)
                if produce is not None:
                    self._deadlines.push(produce.deadline_ms, produce, len(produce.responses))
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
                raise InvariantError(f"the replica manager does not handle {type(request).__name__}")

    def _offsets_for_leader_epoch(self, request: OffsetsForLeaderEpochRequest) -> OffsetsForLeaderEpochResponse:
        responses = []
        for queried in request.partitions:
            partition = self.partitions.get(queried.partition)
            error = self.metadata.replica_error(queried.partition)
            end = EpochEndOffset(NO_EPOCH, -1)
            if partition is not None:
                error = partition.refusal(queried.current_leader_epoch)
                if error is ErrorCode.NONE:
                    end = partition.end_offset_for(queried.leader_epoch)
            responses.append((queried.partition, error, end))
        return OffsetsForLeaderEpochResponse(tuple(responses))

    def _maintain(self, topic_partition: TopicPartition, work: Callable[[Partition], Steps[None]]) -> Steps[None]:
        """Work on the log of a replica, in any role, while it is online."""
        partition = self.partitions.get(topic_partition)
        if partition is None or partition.role is Role.OFFLINE:
            return
        try:
            yield from work(partition)
        except StorageError as error:
            yield StateChange("error", f"{topic_partition}: {error}")
            partition.storage_failed(error)

    # Requests of the controller

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
                yield from self._configure(request.configs, now_ms)
                response = yield from self._leader_and_isr(request, now_ms)
                yield LeaderAndIsrApplied(reply_to, request, response)
            case StopReplicaRequest():
                yield Reply(reply_to, (yield from self._stop_replicas(request)))
            case UpdateMetadataRequest():
                yield from self._configure(request.configs, now_ms)
                error = self.metadata.apply(request)
                if request.deleted and error is ErrorCode.NONE:
                    self.coordinator_events.append(PartitionsDeleted(frozenset(request.deleted)))
                yield Reply(reply_to, UpdateMetadataResponse(error))
                yield from self._deletions.settle_all()

    def _configure(self, configs: BrokerConfigs, now_ms: int) -> Steps[None]:
        """Apply dynamic configs before the rest of a request: no log is opened under others."""
        if configs == self.configs:
            return
        before, self.configs = self.configs, configs
        yield ConfigureBroker(configs)
        self.leader_quota.bytes_per_second = of_replication(configs, LEADER_THROTTLED_RATE, self.config)
        self.follower_quota.bytes_per_second = of_replication(configs, FOLLOWER_THROTTLED_RATE, self.config)
        self._fetchers.resize(of_replication(configs, NUM_REPLICA_FETCHERS, self.config), now_ms)
        if not changes_logs(before, configs):
            return
        for partition in self.partitions.values():
            if partition.role is not Role.OFFLINE:
                yield ConfigureLog(partition.topic_partition, partition.config)

    def _leader_and_isr(self, request: LeaderAndIsrRequest, now_ms: int) -> Steps[LeaderAndIsrResponse]:
        responses: dict[TopicPartition, ErrorCode] = {}
        self.metadata.learn(request.partitions)
        for partition_state in request.partitions:
            responses[partition_state.partition] = yield from self._apply(partition_state, now_ms)
        if request.is_init:
            self._disk_lost = False  # the INIT has named every replica that a lost disk may have held
            yield from self._set_strays_aside({partition_state.partition for partition_state in request.partitions})
        return LeaderAndIsrResponse(ErrorCode.NONE, tuple(responses.items()))

    def _apply(self, partition_state: PartitionState, now_ms: int) -> Steps[ErrorCode]:
        partition = self.partitions.get(partition_state.partition)
        retried = self._postponed.pop(partition_state.partition, None) is not None
        try:
            if self._on_disk.get(partition_state.partition, partition_state.topic_id) != partition_state.topic_id:
                yield from self._set_aside(partition_state.partition)
                partition = None
            if (
                partition_state.partition not in self._on_disk  # else an older stray lies beside the replica
                and (partition_state.topic_id, partition_state.partition.partition) in self._strays
                and not partition_state.is_new
            ):
                yield from self._restore(partition_state)
            if partition is None and self._is_lost(partition_state):
                self.missing[partition_state.partition] = partition_state.topic_id
                yield StateChange(
                    "error",
                    f"{partition_state.partition}: the replica of broker {self.broker_id} is missing: was a disk lost? "
                    "It is recreated after a restart, once the other in-sync replicas have gone on without it; if "
                    "there are none, its records are lost: delete the topic and create it again",
                )
                return ErrorCode.KAFKA_STORAGE_ERROR
            if partition is None:
                partition = yield from self._open(partition_state)
            return (yield from partition.apply(partition_state, now_ms))
        except ReplicaRefusedError as error:
            yield StateChange("error", f"{partition_state.partition}: refused: {error}")
            return ErrorCode.KAFKA_STORAGE_ERROR
        except StorageError as error:
            if not retried:
                yield StateChange("error", f"{partition_state.partition}: {error}")
            opened = self.partitions.get(partition_state.partition)
            if opened is not None:
                opened.storage_failed(error)
            if not is_exhaustion(error):
                return ErrorCode.KAFKA_STORAGE_ERROR
            self._postpone(partition_state)
            return ErrorCode.NONE

    def _open(self, partition_state: PartitionState) -> Steps[Partition]:
        """Open the replica, and create it if it does not exist. Raises StorageError; a replica whose log has failed is
        among `partitions` all the same."""
        topic_partition = partition_state.partition
        partition = Partition(
            self.broker_id, topic_partition, partition_state.topic_id, self.config, self.metadata, self._changed
        )
        try:
            yield from partition.open(partition_state.config)
        except StorageError as error:
            if isinstance(error, ReplicaRefusedError) or is_exhaustion(error):
                raise
            self.partitions[topic_partition] = partition
            self._on_disk[topic_partition] = partition_state.topic_id
            raise
        self.partitions[topic_partition] = partition
        self._on_disk[topic_partition] = partition_state.topic_id
        return partition

    def _postpone(self, partition_state: PartitionState) -> None:
        """Apply it later, as if the controller had been slow: a replica reported as failed would stay offline until
        this broker registers again."""
        partition = self.partitions.get(partition_state.partition)
        if partition is not None:
            partition.step_down()
        self._postponed[partition_state.partition] = partition_state

    def _apply_postponed(self, now_ms: int) -> Steps[None]:
        for partition_state in list(self._postponed.values()):
            error = yield from self._apply(partition_state, now_ms)
            if error is ErrorCode.KAFKA_STORAGE_ERROR and partition_state.partition not in self.partitions:
                yield from self._report_failure(partition_state.partition)

    def _is_lost(self, partition_state: PartitionState) -> bool:
        """True if this broker is in the ISR or ELR but its log is missing: it must not be recreated empty."""
        on_disk = self._on_disk.get(partition_state.partition) == partition_state.topic_id
        suspected = self._disk_lost or self.missing.get(partition_state.partition) == partition_state.topic_id
        return suspected and not on_disk and not partition_state.is_new and self._is_trusted(partition_state)

    def _is_trusted(self, partition_state: PartitionState) -> bool:
        """Whether this broker is in the ISR or ELR, and so must hold all that is committed."""
        return self.broker_id in (*partition_state.state.isr, *partition_state.state.elr)

    def _set_strays_aside(self, assigned: set[TopicPartition]) -> Steps[None]:
        """Set aside the replicas that an INIT does not name: they are no longer assigned to this broker, but are not
        deleted, since the controller may be wrong. Source: Kafka's stray replicas (KAFKA-16234)."""
        for topic_partition in sorted(set(self._on_disk) - assigned):
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
        yield StateChange(
            "warning",
            f"{topic_partition}: no longer assigned to broker {self.broker_id} (topic id {topic_id}): "
            "set aside as a stray",
        )

    def _restore(self, partition_state: PartitionState) -> Steps[None]:
        """Restore a stray that a controller assigns again: with its records it is like one that was down meanwhile. If
        they are gone and it counts as in sync, it is missing like one lost with a disk. Raises StorageError."""
        restored = yield RestoreStray(partition_state.partition, partition_state.topic_id)
        self._strays.discard((partition_state.topic_id, partition_state.partition.partition))
        if restored:
            self._on_disk[partition_state.partition] = partition_state.topic_id
            yield StateChange(
                "warning", f"{partition_state.partition}: assigned again: the stray is restored with its records"
            )
        elif self._is_trusted(partition_state):
            self.missing[partition_state.partition] = partition_state.topic_id

    def _stop_replicas(self, request: StopReplicaRequest) -> Steps[StopReplicaResponse]:
        responses: dict[TopicPartition, ErrorCode] = {}
        for stop in request.partitions:
            responses[stop.partition] = yield from self._stop_replica(stop)
        return StopReplicaResponse(ErrorCode.NONE, tuple(responses.items()))

    def _stop_replica(self, stop: StopReplica) -> Steps[ErrorCode]:
        if stop.delete and (stop.topic_id, stop.partition.partition) in self._strays:
            try:
                yield DeleteStrays(stop.partition, stop.topic_id)
            except StorageError as error:
                yield StateChange("error", f"{stop.partition}: its strays cannot be deleted: {error}")
                return ErrorCode.KAFKA_STORAGE_ERROR
            self._strays.discard((stop.topic_id, stop.partition.partition))
        self._postponed.pop(stop.partition, None)
        partition = self.partitions.get(stop.partition)
        local_id = partition.topic_id if partition is not None else self._on_disk.get(stop.partition)
        if local_id != stop.topic_id:  # that replica is not here, whatever bears its name (F41)
            return ErrorCode.NONE
        if partition is not None:
            if stop.leader_epoch != NO_EPOCH and stop.leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            if partition.role is Role.OFFLINE:
                return ErrorCode.KAFKA_STORAGE_ERROR
            partition.step_down()
            yield from self._settle_partition(partition, 0)
        return (yield from self._delete(stop.partition)) if stop.delete else ErrorCode.NONE

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
        """Drop the partition: complete its delayed requests and stop fetching it."""
        self._postponed.pop(topic_partition, None)
        partition = self.partitions.pop(topic_partition, None)
        if partition is not None:
            self._note_leadership(topic_partition, None)
            self._fetchers.stop(topic_partition)
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
        if partition.flushed >= partition.log.leo:
            self._fetchers.resume(topic_partition)

    def _go_offline(self, topic_partition: TopicPartition) -> None:
        """A failed log is final; its failure is reported as the partition is settled."""
        partition = self.partitions.get(topic_partition)
        if partition is not None:
            partition.go_offline()

    def _report_failure(self, topic_partition: TopicPartition) -> Steps[None]:
        """Report the failed log to the controller, which moves its leader elsewhere."""
        yield StateChange("error", f"{topic_partition}: its log has failed, the replica goes offline")
        tag = ("offline", next(self._failures))
        self._failures_to_report[tag] = topic_partition
        yield from self._submit_report(tag)

    def _submit_report(self, tag: tuple[str, int]) -> Steps[None]:
        """Write it under this registration alone: the write of a dead process may arrive after the broker's next
        process, whose log works, has registered."""
        if not self.fencing.fenced:
            data = nodes.encode_log_dir_event(self.broker_id, [self._failures_to_report[tag]])
            yield SubmitMulti(tag, self._log_dir_event(data))

    def _log_dir_event(self, data: bytes) -> tuple[StoreOperation, ...]:
        current = Check(nodes.broker_epoch(self.broker_id), self.broker_epoch)
        return (current, Create(f"{nodes.LOG_DIR_EVENTS}/event_", data, sequential=True))

    def _fence(self) -> None:
        """Without registration this broker leads and follows nothing."""
        self.fencing.fenced = True
        self._postponed.clear()
        for topic_partition in sorted(self.partitions):
            if self.partitions[topic_partition].role in (Role.LEADER, Role.FOLLOWER):
                self.partitions[topic_partition].step_down()

    def _tick(self, now_ms: int) -> Steps[None]:
        yield from self._fetches.retry_woken(now_ms)
        for waiting in itertools.islice(self._deadlines.due(now_ms), MAX_EXPIRED_PER_STEP):
            match waiting:
                case DelayedFetch():
                    yield from self._fetches.expire(waiting, now_ms)
                case DelayedDeletion():
                    yield from self._deletions.expire(waiting)
                case DelayedProduce():
                    yield from self._produces.expire(waiting)
        yield from self._produces.verification.tick(now_ms)
        if now_ms >= self._next_isr_check_ms:
            self._next_isr_check_ms = now_ms + max(1, self._isr_check_interval_ms())
            for topic_partition in sorted(self._unsettled):
                partition = self.partitions.get(topic_partition)
                if partition is not None:
                    yield from partition.tick(now_ms)
                if partition is None or not partition.needs_tick():
                    del self._unsettled[topic_partition]
            if not self._unsettled:
                self._unsettled.clear()  # else the places of all that were in it are gone through each time
            yield from self._apply_postponed(now_ms)
            for tag in list(self._failures_to_report):
                yield from self._submit_report(tag)

    def _isr_check_interval_ms(self) -> int:
        """Half of replica.lag.time.max.ms, so that a dead follower delays a produce 1.5 times that at most (F23)."""
        return min(self.config.replica_lag_time_max_ms // 2, 1000)

    def _session_ids(self) -> Iterator[int]:
        """Positive int32s; a restarted broker does not soon repeat those of its previous process."""
        for count in itertools.count(1):
            yield (self.broker_epoch * 1_000_003 + count) % (2**31 - 1) + 1

    # After each event

    def _settle(self, now_ms: int) -> Steps[None]:
        """React to the partitions' changes until there are none, then let the fetchers send."""
        while self._changed:
            yield from self._settle_partition(self._changed.popleft(), now_ms)
        yield from self._fetchers.poll(now_ms, self.broker_epoch)

    def _settle_partition(self, partition: Partition, now_ms: int) -> Steps[None]:
        changes, partition.changes = partition.changes, set()
        topic_partition = partition.topic_partition
        if partition.needs_tick():
            self._unsettled[topic_partition] = None
        if PartitionChange.ROLE in changes:
            leads = partition.role is Role.LEADER
            self._note_leadership(topic_partition, partition.leader_epoch if leads else None, partition.epoch_start)
            self._fetchers.stop(topic_partition)
            if topic_partition in self._produces.verification:
                yield from self._produces.verification.fail(topic_partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if partition.role is not Role.LEADER and topic_partition in self._produces:
                yield from self._produces.fail(topic_partition, partition.refusal(NO_EPOCH))
            if partition.role is Role.FOLLOWER:
                self._fetchers.start(partition, now_ms)
            elif partition.role is Role.LEADER:
                yield from self._fetches.expect_followers(partition, now_ms)
            elif partition.role is Role.OFFLINE:
                yield from self._report_failure(topic_partition)
        yield from self._deletions.settle(topic_partition)
        if PartitionChange.DELETED in changes:
            self._fetchers.moved(topic_partition)
        if PartitionChange.COMMITTED in changes and topic_partition in self._produces:
            yield from self._produces.committed(topic_partition, partition.high_watermark)
        if partition.role is Role.LEADER and changes & _CHANGES_OF_COMMITTED:
            self._note_markers(partition)
        if PartitionChange.BELOW_MIN_ISR in changes:
            yield from self._produces.fail(topic_partition, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        if changes & CHANGES_FOR_READERS:
            yield from self._fetches.wake(
                topic_partition, now_ms, followers=not changes.isdisjoint(CHANGES_FOR_FOLLOWERS)
            )

    def _note_leadership(self, partition: TopicPartition, leader_epoch: int | None, end: int = 0) -> None:
        if partition.topic in INTERNAL_TOPICS:
            self.coordinator_events.append(LeadershipChanged(partition, leader_epoch, end))

    def _note_markers(self, partition: Partition) -> None:
        for offset, marker in partition.committed_markers():
            self.coordinator_events.append(
                MarkerCommitted(partition.topic_partition, marker.producer_id, marker.committed, offset)
            )
