"""One rule turned wrong at a time, to see that the checkers notice: `kreplog simulate --mutate NAME`.

Each mutation replaces a small function or method of the cores by a wrong one, for as long as `applied` lasts, and is
known by the flaw of the reliability notes that it brings back. A mutation that no seed finds is a hole in the checkers
or in the faults; but for those of `harmless`, where it is the promise that no seed finds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from kreplog.core import elr, failures
from kreplog.core.broker import control_channel
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.broker.control_channel import ControlChannel
from kreplog.core.broker.flush_queue import FlushQueue
from kreplog.core.broker.shutdown import ControlledShutdown
from kreplog.core.controller import fencing, leader_and_isr_writer, selectors
from kreplog.core.controller.broker_changes import BrokerChanges
from kreplog.core.controller.context import ControllerContext, PartitionAndReplica
from kreplog.core.controller.deletion import Deletion
from kreplog.core.controller.transitions import ReplicaStatus
from kreplog.core.effects import Deliver, LogState, OpenedLog, Steps
from kreplog.core.events import ControlReplied, Event, WatchFired
from kreplog.core.failures import FailureDetector
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import ControlRequest, ControlResponse, FetchedPartition, FetchPartition, PartitionState
from kreplog.core.registration import Registration, State
from kreplog.core.replication import epochs, isr, local_replica, manager
from kreplog.core.replication.control_fencing import ControlFencing
from kreplog.core.replication.fetcher import Fetcher, FetchOutcome, FetchPosition
from kreplog.core.replication.follower import FollowerRole
from kreplog.core.replication.isr import RemoteReplica
from kreplog.core.replication.isr_proposer import IsrProposer
from kreplog.core.replication.leader import LeaderRole
from kreplog.core.replication.local_replica import LocalReplica
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.core.replication.sequence_grace import SequenceGapGrace
from kreplog.core.replication.sessions import ACCOUNT as SESSIONS
from kreplog.core.replication.sessions import FetchSessions
from kreplog.errors import ErrorCode, UsageError
from kreplog.sim.model_log import ModelLog
from kreplog.types import NO_EPOCH, EpochEndOffset, LeaderAndIsr, StoreOperation, TopicPartition

Patch = tuple[Any, str, Any]
"""(module or class, attribute, what takes its place)."""

_MUTATIONS: dict[str, Callable[[], list[Patch]]] = {}
_WHAT: dict[str, str] = {}
_HARMLESS: list[str] = []


def names() -> list[str]:
    return list(_MUTATIONS)


def harmless() -> list[str]:
    """Those that cost elections and time, and break no promise."""
    return list(_HARMLESS)


def describe(name: str) -> str:
    """What the rule says now, in one line, and the flaw that it brings back."""
    return _WHAT[name]


@contextmanager
def applied(name: str) -> Iterator[None]:
    """Turn one rule wrong, and right again at the end. Raises UsageError for an unknown name."""
    if name not in _MUTATIONS:
        raise UsageError(f"there is no mutation {name!r}: `kreplog simulate --list-mutations` prints those there are")
    with ExitStack() as stack:
        for owner, attribute, wrong in _MUTATIONS[name]():
            right = owner.__dict__[attribute]
            setattr(owner, attribute, wrong)
            stack.callback(setattr, owner, attribute, right)
        yield


def _mutation(name: str, *, harmless: bool = False) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    def register(make: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        if harmless:
            _HARMLESS.append(name)
        _MUTATIONS[name] = make
        _WHAT[name] = " ".join((make.__doc__ or "").split())
        return make

    return register


# Producers


@_mutation("gaps-taken-from-strangers")
def _gaps_taken_from_strangers() -> list[Patch]:
    """A new leader lets a producer that it does not know begin anywhere (KIP-360), while its first batch is still on
    its way to the leader before."""
    return [(SequenceGapGrace, "applies", lambda self, now_ms: False)]


# Truncation and epochs


@_mutation("truncate-to-watermark")
def _truncate_to_watermark() -> list[Patch]:
    """A new follower truncates to its high watermark, not to where its log parts from the leader's (F1)."""
    return [(FollowerRole, "_must_truncate_to_watermark", lambda self: self.log.leo > self.high_watermark)]


@_mutation("one-round-truncation")
def _one_round_truncation() -> list[Patch]:
    """A leader that does not know the follower's last epoch finds nothing wrong with its log (F3)."""

    def diverging(self: Partition, request: FetchPartition) -> EpochEndOffset | None:
        if request.last_fetched_epoch not in dict(self.log.epochs) and request.fetch_offset <= self.log.leo:
            return None
        return epochs.diverging(self.log.epochs, self.log.leo, request.fetch_offset, request.last_fetched_epoch)

    return [(LeaderRole, "_diverging", diverging)]


@_mutation("epoch-start-forgotten")
def _epoch_start_forgotten() -> list[Patch]:
    """A leader's epochs do not say where its own begins, so the one before seems to go on (F4)."""

    def diverging(self: Partition, request: FetchPartition) -> EpochEndOffset | None:
        known = tuple(entry for entry in self.log.epochs if entry[0] < self.leader_epoch)
        if request.last_fetched_epoch >= self.leader_epoch:
            return None
        return epochs.diverging(known, self.log.leo, request.fetch_offset, request.last_fetched_epoch)

    return [(LeaderRole, "_diverging", diverging)]


@_mutation("same-leader-skips-truncation")
def _same_leader_skips_truncation() -> list[Patch]:
    """A follower that is told of the leader it has already goes on fetching, whatever the epoch (F5)."""
    apply, position = Partition.apply, FollowerRole.fetch_position

    def applied_as_told(self: Partition, told: PartitionState, now_ms: int) -> Steps[ErrorCode]:
        before = (self.role, self.leader, self.leader_epoch)
        error = yield from apply(self, told, now_ms)
        if self.leader_epoch != before[2]:
            same = before[:2] == (Role.FOLLOWER, self.leader)
            vars(self)["unchecked"] = self.leader_epoch if same else NO_EPOCH
        return error

    def fetch_position(self: Partition) -> FetchPosition:
        found = position(self)
        if vars(self).get("unchecked") == self.leader_epoch:
            return replace(found, last_fetched_epoch=NO_EPOCH)
        return found

    return [(Partition, "apply", applied_as_told), (FollowerRole, "fetch_position", fetch_position)]


@_mutation("zombie-fetch-counts")
def _zombie_fetch_counts() -> list[Patch]:
    """A leader counts fetches that were made in an older epoch of its own, as they come (F6)."""
    right = LeaderRole._diverging

    def diverging(self: Partition, request: FetchPartition) -> EpochEndOffset | None:
        return None if request.current_leader_epoch < self.leader_epoch else right(self, request)

    return [
        (LocalReplica, "_is_fenced", lambda self, current_leader_epoch: False),
        (LeaderRole, "_diverging", diverging),
    ]


@_mutation("late-response-taken")
def _late_response_taken() -> list[Patch]:
    """A follower takes an answer to a fetch of an older epoch, if it seems to fit (F7)."""

    remove = Fetcher.remove

    def removed(self: Fetcher, topic_partition: TopicPartition) -> None:
        entry = self._entries.get(topic_partition)
        if entry is not None:
            vars(self).setdefault("former", {})[topic_partition] = entry
        remove(self, topic_partition)

    def asked(self: Fetcher, topic_partition: TopicPartition) -> Any:
        entry = self._entries.get(topic_partition) or vars(self).get("former", {}).get(topic_partition)
        held = self._held.get(topic_partition)
        return None if entry is None or held is None else (entry, held)

    return [
        (FollowerRole, "_is_late", lambda self, request: False),
        (Fetcher, "_asked", asked),
        (Fetcher, "remove", removed),
    ]


@_mutation("claims-what-is-not-committed")
def _claims_what_is_not_committed() -> list[Patch]:
    """A follower in sync asks ahead too, so what it has yet to append counts for the watermark."""
    return [(FollowerRole, "_may_pipeline", lambda self, offset, leaders_watermark: True)]


@_mutation("joins-by-a-claim")
def _joins_by_a_claim() -> list[Patch]:
    """A follower asks ahead from the watermark itself, and so joins the ISR before it has appended."""
    return [(FollowerRole, "_may_pipeline", lambda self, offset, leaders_watermark: offset <= leaders_watermark)]


@_mutation("watermark-before-truncation")
def _watermark_before_truncation() -> list[Patch]:
    """A follower whose log parts from the leader's takes the watermark of that answer first (F8)."""
    record_fetch, reconcile = LeaderRole.record_fetch, FollowerRole._reconcile

    def recorded(self: Partition, *arguments: Any) -> Steps[FetchedPartition | None]:
        answer = yield from record_fetch(self, *arguments)
        if answer is not None and answer.diverging is not None:
            answer = replace(answer, high_watermark=self.high_watermark)
        return answer

    take = FollowerRole.take_fetched

    def taken(self: Partition, request: FetchPartition, data: FetchedPartition, now_ms: int) -> Steps[FetchOutcome]:
        if data.diverging is not None and self.role is Role.FOLLOWER and not self._is_late(request):
            yield from self._follow_high_watermark(data.high_watermark)
            return (yield from reconcile(self, data.diverging, data.log_start_offset))
        return (yield from take(self, request, data, now_ms))

    return [(LeaderRole, "record_fetch", recorded), (FollowerRole, "take_fetched", taken)]


@_mutation("old-leader-epoch-accepted")
def _old_leader_epoch_accepted() -> list[Patch]:
    """A broker obeys a LeaderAndIsr of an older leader epoch, such as the late copy of one sent twice (F26, F30)."""
    return [
        (Partition, "_is_stale", lambda self, leader_epoch: False),
        (ControlFencing, "is_late_copy", lambda self, request: False),
    ]


@_mutation("late-copy-obeyed")
def _late_copy_obeyed() -> list[Patch]:
    """A broker obeys the late copy of a control request that was sent again, whatever came after it (F30)."""
    return [(ControlFencing, "is_late_copy", lambda self, request: False)]


# ISR, high watermark, acknowledgement


@_mutation("joins-before-epoch-start")
def _joins_before_epoch_start() -> list[Patch]:
    """A follower joins the ISR at the leader's high watermark, however long the epoch that began above it (F12)."""
    right = IsrProposer._is_lagging

    def caught_up(replica: RemoteReplica, watermark: int, epoch_start: int) -> bool:
        return replica.leo >= watermark

    def lagging(self: Partition, replica: RemoteReplica, now_ms: int) -> bool:
        return replica.broker_id in self.isr and right(self, replica, now_ms)

    return [(isr, "is_caught_up", caught_up), (IsrProposer, "_is_lagging", lagging)]


@_mutation("joins-at-once")
def _joins_at_once() -> list[Patch]:
    """A follower counts as caught up with its first fetch."""
    return [(isr, "is_caught_up", lambda replica, watermark, epoch_start: replica.leo >= 0)]


@_mutation("watermark-ignores-pending-isr")
def _watermark_ignores_pending() -> list[Patch]:
    """The watermark goes by the ISR as the leader would have it, before the store has agreed (F13)."""

    def proposed(self: Partition) -> tuple[int, ...]:
        return self.isr if self.pending is None else self.pending.proposed.isr

    return [(IsrProposer, "maximal_isr", property(proposed))]


@_mutation("watermark-without-slowest")
def _watermark_without_slowest() -> list[Patch]:
    """The watermark is counted without the slowest member of the ISR."""

    def high_watermark(
        current: int, local_end: int, local_id: int, maximal_isr: Collection[int], replicas: Mapping[int, RemoteReplica]
    ) -> int:
        ends = sorted(local_end if member == local_id else isr._known_end(member, replicas) for member in maximal_isr)
        return max(current, ends[1] if len(ends) > 1 else ends[0] if ends else current)

    return [(isr, "high_watermark", high_watermark)]


@_mutation("isr-write-unconditional")
def _isr_write_unconditional() -> list[Patch]:
    """A leader writes the ISR whatever the version of the node (F14)."""
    return [(IsrProposer, "_expected_version", lambda self: -1)]


@_mutation("stale-registration-joins")
def _stale_registration_joins() -> list[Patch]:
    """A replica joins the ISR by what an earlier life of its broker had fetched (F16)."""
    right = IsrProposer._isr_operations

    def operations(self: Partition, proposed: LeaderAndIsr, joiner: int | None) -> Any:
        return right(self, proposed, None)

    return [
        (LeaderRole, "_is_old_registration", lambda self, replica, broker_epoch: False),
        (IsrProposer, "_isr_operations", operations),
        (MetadataCache, "can_join_isr", lambda self, broker_id, broker_epoch: True),
    ]


@_mutation("unclean-return-trusted")
def _unclean_return_trusted() -> list[Patch]:
    """The last replica standing leads again although it may have lost records with its power (F17)."""
    return [(selectors, "drop_unclean", lambda current, broker_id, controller_epoch: None)]


@_mutation("commits-below-min-isr")
def _commits_below_min_isr() -> list[Patch]:
    """The watermark moves, and acks=all is taken, however small the ISR is (F17, F18)."""
    return [(isr, "has_min_isr", lambda members, min_insync_replicas, assigned_replicas: True)]


@_mutation("log-end-becomes-watermark")
def _log_end_becomes_watermark() -> list[Patch]:
    """A new leader takes the end of its log for committed (F20)."""
    become_leader = LeaderRole._become_leader

    def becomes(self: Partition, now_ms: int) -> Steps[None]:
        yield from become_leader(self, now_ms)
        if self.log.leo > self.high_watermark:
            yield from self._set_high_watermark(self.log.leo)

    return [(LeaderRole, "_become_leader", becomes)]


@_mutation("uncommitted-shown")
def _uncommitted_shown() -> list[Patch]:
    """A consumer reads up to the end of the log (F22)."""
    return [(LocalReplica, "limit", lambda self, consumer: self.log.leo)]


@_mutation("acks-before-watermark")
def _acks_before_watermark() -> list[Patch]:
    """acks=all is answered when the leader has the record."""
    return [(LeaderRole, "is_committed", lambda self, next_offset: True)]


@_mutation("producer-state-lost")
def _producer_state_lost() -> list[Patch]:
    """A new leader knows nothing of the batches that producers have written already (F24)."""
    assign = ModelLog.assign_leader_epoch

    def assigned(self: ModelLog, epoch: int) -> None:
        assign(self, epoch)
        self._producers = {}

    return [(ModelLog, "assign_leader_epoch", assigned)]


@_mutation("checkpointed-watermark-ignored")
def _checkpointed_watermark_ignored() -> list[Patch]:
    """After a restart the end of the log is taken for committed, whatever the checkpoint says."""

    def recovered(self: Partition, opened: OpenedLog) -> int:
        state: LogState = opened.state
        return state.leo

    return [(LocalReplica, "_recovered_high_watermark", recovered)]


# Log starts and settings


@_mutation("log-start-ignored-by-followers")
def _log_start_ignored() -> list[Patch]:
    """A follower keeps what its leader has deleted (KIP-107)."""

    def follow(self: Partition, leaders: int) -> Steps[None]:
        return
        yield

    return [(FollowerRole, "_follow_log_start", follow)]


@_mutation("deletes-above-watermark")
def _deletes_above_watermark() -> list[Patch]:
    """Records are deleted before they are committed, by whoever asks and by retention (F39)."""
    delete, enforce = ModelLog.delete_records_before, ModelLog.enforce_retention

    def deleted(self: ModelLog, offset: int) -> None:
        self.high_watermark = max(self.high_watermark, min(offset, self.leo))
        delete(self, offset)

    def enforced(self: ModelLog, keep_bytes: int) -> None:
        watermark, self.high_watermark = self.high_watermark, self.leo
        enforce(self, keep_bytes)
        self.high_watermark = watermark

    return [
        (LeaderRole, "_deletable_end", lambda self: self.log.leo),
        (ModelLog, "delete_records_before", deleted),
        (ModelLog, "enforce_retention", enforced),
    ]


@_mutation("settings-never-told")
def _settings_never_told() -> list[Patch]:
    """A replica goes by the settings that its topic had when it was opened (F18)."""
    apply = Partition.apply

    def applied_without(self: Partition, told: PartitionState, now_ms: int) -> Steps[ErrorCode]:
        return (yield from apply(self, told._replace(config=self.config), now_ms))

    return [(Partition, "apply", applied_without)]


@_mutation("flush-messages-within-an-epoch")
def _flush_messages_within_an_epoch() -> list[Patch]:
    """What followers asked for under another flush.messages counts as fsynced."""
    return [(Partition, "_needs_new_epoch", lambda self, told: False)]


@_mutation("forgotten-epochs-trusted")
def _forgotten_epochs_trusted() -> list[Patch]:
    """A follower keeps what parts from its leader's log before the leader's log begins (F3, KIP-107)."""

    def reconcile(self: Partition, parted: EpochEndOffset, leaders_start: int) -> Steps[FetchOutcome]:
        yield from self._truncate(epochs.truncation_offset(self.log.epochs, self.log.leo, parted))
        yield from self._flush_tail()
        return FetchOutcome.AWAIT_FLUSH if self.awaits_flush else FetchOutcome.TRUNCATED

    return [(FollowerRole, "_reconcile", reconcile)]


# Exhausted processes


@_mutation("memory-without-bound")
def _memory_without_bound() -> list[Patch]:
    """Consumers get sessions and parked fetches beyond the limit of the memory account."""

    def reserve(self: MemoryAccount, kind: str, size: int, *, force: bool = False) -> bool:
        return right(self, kind, size, force=True)

    right = MemoryAccount.reserve
    return [(MemoryAccount, "reserve", reserve)]


@_mutation("closed-session-stays-charged")
def _closed_session_stays_charged() -> list[Patch]:
    """A closed fetch session stays charged to the memory account, so that in the end none is granted."""

    def close(self: FetchSessions, session: Any) -> None:
        held = self._memory.held[SESSIONS]
        right(self, session)
        self._memory.reserve(SESSIONS, held - self._memory.held[SESSIONS], force=True)

    right = FetchSessions._close
    return [(FetchSessions, "_close", close)]


@_mutation("exhaustion-fails-logs")
def _exhaustion_fails_logs() -> list[Patch]:
    """A replica goes offline as with a failed disk where its process had no descriptors or memory left."""
    return [(local_replica, "is_exhaustion", lambda error: False), (manager, "is_exhaustion", lambda error: False)]


@_mutation("lag-in-bytes-ignored")
def _lag_in_bytes_ignored() -> list[Patch]:
    """replica.lag.max.bytes does not count, and a member leaves the ISR by time alone."""
    return [(isr, "is_lagging_in_bytes", lambda behind, max_bytes: False)]


@_mutation("interrupted-log-trusted")
def _interrupted_log_trusted() -> list[Patch]:
    """A follower whose truncation was interrupted takes its log for what it was before, and fetches from its end."""
    right = Partition._reopen

    def opened_anew(self: Partition, now_ms: int) -> Steps[None]:
        before = self.log
        yield from right(self, now_ms)
        self.log = before

    return [(Partition, "_reopen", opened_anew)]


# Controller


@_mutation("old-controller-epoch-accepted")
def _old_controller_epoch_accepted() -> list[Patch]:
    """A broker obeys a controller that has been followed by another (F26)."""
    return [
        (ControlFencing, "_is_stale_controller", lambda self, controller_epoch: False),
        (MetadataCache, "is_stale", lambda self, controller_epoch: False),
        (Partition, "_is_stale", lambda self, leader_epoch: False),
    ]


@_mutation("strays-deleted")
def _strays_deleted() -> list[Patch]:
    """A broker deletes what an INIT does not name: a controller that knows nothing empties the cluster."""
    return [(ReplicaManager, "_set_aside", ReplicaManager._delete)]


@_mutation("denies-before-told")
def _denies_before_told() -> list[Patch]:
    """A broker without metadata of a controller answers that partitions do not exist, and clients give up."""
    return [(MetadataCache, "from_controller", property(lambda self: True))]


@_mutation("old-registration-told")
def _old_registration_told() -> list[Patch]:
    """A broker obeys what was meant for an earlier life of it (F16, F26, KIP-380)."""
    return [
        (ControlFencing, "_is_stale_registration", lambda self, broker_epoch: False),
        (ControlFencing, "_knows_registration", lambda self, broker_epoch: True),
    ]


@_mutation("controller-writes-unfenced")
def _controller_writes_unfenced() -> list[Patch]:
    """A controller writes without showing that it still is one, whatever the version (F27)."""
    return [(fencing, "fence", lambda context: ()), (leader_and_isr_writer, "expected_version", lambda state: -1)]


@_mutation("unclean-election-by-default")
def _unclean_election_by_default() -> list[Patch]:
    """Any replica that lives may lead when no other does, asked or unasked (F19)."""
    return [(ControllerContext, "unclean_allowed", lambda self, partition: True)]


@_mutation("eligible-forgotten")
def _eligible_forgotten() -> list[Patch]:
    """Nobody who left the ISR may lead, and the last one left is trusted after a power cut (KIP-966, F17)."""
    return [
        (elr, "elr_after", lambda old_isr, old_elr, new_isr, min_isr: ()),
        (selectors, "elr_after", lambda old_isr, old_elr, new_isr, min_isr: ()),
        (selectors, "drop_unclean", lambda current, broker_id, controller_epoch: None),
        (isr, "has_min_isr", lambda members, min_insync_replicas, assigned_replicas: True),
    ]


@_mutation("deletion-forgets-offline-replica")
def _deletion_forgets() -> list[Patch]:
    """A topic is forgotten although a broker that is down still has a replica of it."""
    done = (ReplicaStatus.DELETION_SUCCESSFUL, ReplicaStatus.DELETION_INELIGIBLE)

    def is_deleted(self: Deletion, replica: PartitionAndReplica) -> bool:
        return self._context.replica_status(replica) in done

    return [(Deletion, "is_deleted", is_deleted)]


@_mutation("election-keeps-leader-epoch")
def _election_keeps_leader_epoch() -> list[Patch]:
    """A new leader is elected under the leader epoch of the old one, which may live although it is presumed dead."""
    right = selectors._next

    def kept(current: LeaderAndIsr, controller_epoch: int, **changes: Any) -> LeaderAndIsr:
        return right(current, controller_epoch, **changes)._replace(leader_epoch=current.leader_epoch)

    return [(selectors, "_next", kept)]


@_mutation("failed-log-reported-by-the-dead")
def _failed_log_reported_by_the_dead() -> list[Patch]:
    """A report of a failed log is written whatever registration of its broker stands."""
    right = ReplicaManager._log_dir_event

    def unfenced(self: ReplicaManager, data: bytes) -> tuple[StoreOperation, ...]:
        return right(self, data)[1:]

    return [(ReplicaManager, "_log_dir_event", unfenced)]


@_mutation("future-controller-epoch-believed")
def _future_controller_epoch_believed() -> list[Patch]:
    """A broker follows a controller epoch that it has not heard of, whether the store knows of its election or not."""
    right = ControlFencing.is_unverified

    def follow(self: ControlFencing, controller_epoch: int) -> bool:
        if right(self, controller_epoch):
            self._follow_controller(controller_epoch)
        return False

    return [(ControlFencing, "is_unverified", follow)]


@_mutation("future-broker-epoch-believed")
def _future_broker_epoch_believed() -> list[Patch]:
    """A leader takes a follower's fetch under a registration that it has not heard of."""
    return [(LeaderRole, "_is_future_registration", lambda self, replica, broker_epoch: False)]


# Failure detection


@_mutation("silent-peer-presumed-dead", harmless=True)
def _silent_peer_presumed_dead() -> list[Patch]:
    """Each broker alone presumes dead whom it cannot reach, refused or silent."""
    return [
        (FailureDetector, "_is_evidence", lambda self, peer, refused: True),
        (failures, "is_majority", lambda reporters, registered, suspect: True),
    ]


@_mutation("presumed-dead-stays-eligible")
def _presumed_dead_stays_eligible() -> list[Patch]:
    """A controller goes on counting on brokers whose registration has ended."""
    return [(BrokerChanges, "_remove_broker", lambda self, broker: None)]


@_mutation("presumed-dead-stays-out")
def _presumed_dead_stays_out() -> list[Patch]:
    """A broker that was presumed dead and lives does not register anew while its session stands."""
    right = Registration.step

    def step(self: Registration, event: Event, now_ms: int) -> Steps[None]:
        if not (isinstance(event, WatchFired) and self.state is State.REGISTERED):
            yield from right(self, event, now_ms)

    return [(Registration, "step", step)]


# One broker's cores together


@_mutation("unclean-mark-cleared-early")
def _unclean_mark_cleared_early() -> list[Patch]:
    """A broker counts as clean again once it is registered, before a controller has read that it was not (F17)."""
    return [(BrokerCores, "_lacks_nothing", lambda self, registered: True)]


@_mutation("unclean-mark-cleared-unsynced")
def _unclean_mark_cleared_unsynced() -> list[Patch]:
    """A broker counts as clean again, and answers, before the replicas that an INIT made are durable (F17)."""
    return [(BrokerCores, "applied", BrokerCores.files_synced)]


@_mutation("registration-not-delivered")
def _registration_not_delivered() -> list[Patch]:
    """The replicas do not hear that their broker is registered, and refuse all that a controller sends."""
    return [(BrokerCores, "_to_registered_cores", lambda self, event: [Deliver(self.controller, event)])]


@_mutation("control-requests-reordered")
def _control_requests_reordered() -> list[Patch]:
    """A request that waits is coalesced with later ones of its kind, past those of other kinds in between."""

    def overtakes(waiting: deque[ControlRequest]) -> ControlRequest:
        request = waiting.popleft()
        for later in list(waiting):
            both = control_channel.joined(request, later)
            if both is not None:
                request = both
                waiting.remove(later)
        return request

    return [(control_channel, "coalesce", overtakes)]


@_mutation("control-request-sent-once")
def _control_request_sent_once() -> list[Patch]:
    """A control request whose response is lost is not sent again."""
    replied = ControlChannel.replied

    def gives_up(self: ControlChannel, response: ControlResponse | None, now_ms: int) -> ControlReplied | None:
        if response is None:
            self._in_flight = None
        return replied(self, response, now_ms)

    return [(ControlChannel, "replied", gives_up)]


@_mutation("flush-claimed-too-far")
def _flush_claimed_too_far() -> list[Patch]:
    """An fsync counts for what was appended after it had begun."""
    flushed_to = Partition.flushed_to

    def claims(self: Partition, recovery_point: int) -> Steps[None]:
        return flushed_to(self, self.log.leo)

    return [(Partition, "flushed_to", claims)]


@_mutation("flush-shared-with-one-under-way")
def _flush_shared() -> list[Patch]:
    """A request for an fsync is dropped while one is under way, though that covers nothing that came later."""

    def request(self: FlushQueue, log: Hashable) -> bool:
        return log not in self and self._under_way.setdefault(log, False) is False

    return [(FlushQueue, "request", request)]


@_mutation("exits-before-its-leaders-moved")
def _exits_early() -> list[Patch]:
    """A broker that is to stop takes the controller's first answer for leave, whatever it still leads."""
    return [(ControlledShutdown, "_may_exit", lambda self, response: response is not None)]
