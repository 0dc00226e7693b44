"""Mutations of transactions: decisions, fencing, markers, and the offsets that they commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from kreplog.core.broker import add_partitions, coordinator_log, write_markers
from kreplog.core.broker.request_queues import RequestQueues
from kreplog.core.broker.write_markers import CoalescedMarkers
from kreplog.core.effects import Reply, SendAddPartitions, SendMarkers, Steps
from kreplog.core.events import AddPartitionsReplied, MarkersReplied
from kreplog.core.group_messages import LogRecord, OffsetCommitRequest, PendingOffsetRecord, TxnOffsetCommitRequest
from kreplog.core.groups.committed_offsets import CommittedOffsets
from kreplog.core.groups.group import Group
from kreplog.core.groups.shard import GroupShard
from kreplog.core.groups.states import GroupState
from kreplog.core.messages import ProducedPartition, ProduceResponse, TransactionMarker
from kreplog.core.replication.leader import LeaderRole
from kreplog.core.replication.local_replica import LocalReplica
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.produce_purgatory import ProducePurgatory
from kreplog.core.transaction_messages import (
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TransactionMetadata,
)
from kreplog.core.transactions.id_expiration import IdExpiration
from kreplog.core.transactions.marker_writer import MarkerWriter
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.core.transactions.transaction_shard import TransactionalId, TransactionShard
from kreplog.core.transactions.transaction_states import ENDED, TransactionState
from kreplog.errors import ErrorCode
from kreplog.sim.mutations.mutation import MutationGroup, Patch
from kreplog.types import TopicPartition

MUTATIONS = MutationGroup()


@MUTATIONS.add("fenced-producer-acts")
def _fenced_producer_acts() -> list[Patch]:
    """A producer of an earlier epoch goes on with the transaction of the present one."""
    return [(TransactionCoordinator, "_is_other_epoch", lambda self, transaction, producer_epoch: False)]


@MUTATIONS.add("completion-fences-its-producer")
def _completion_fences_its_producer() -> list[Patch]:
    """A producer that ends its transaction once more, since it has had no response, is fenced while the record of the
    completed transaction is being appended."""
    right = TransactionCoordinator._is_retried_end

    def retried(self: TransactionCoordinator, transaction: TransactionalId, request: EndTxnRequest) -> bool:
        return not transaction.pending and right(self, transaction, request)

    return [(TransactionCoordinator, "_is_retried_end", retried)]


@MUTATIONS.add("former-id-ends-again")
def _former_id_ends_again() -> list[Patch]:
    """A producer whose epochs were used up, and which ends its transaction once more since it has had no response, gets
    the epoch of another that has begun since."""
    right, changed = TransactionCoordinator._is_retried_end, TransactionalId.changed

    def retried(self: TransactionCoordinator, transaction: TransactionalId, request: EndTxnRequest) -> bool:
        stored = transaction.stored
        former = stored.client_version >= 2 and request.producer_id == stored.previous_producer_id
        return right(self, transaction, request) or (former and transaction.state in ENDED)

    def remembers(self: TransactionalId, state: TransactionState, update_ms: int, **fields: Any) -> TransactionMetadata:
        if state is TransactionState.EMPTY:
            fields.pop("previous_producer_id")
        return changed(self, state, update_ms, **fields)

    return [(TransactionCoordinator, "_is_retried_end", retried), (TransactionalId, "changed", remembers)]


@MUTATIONS.add("commit-after-abort-invalid")
def _commit_after_abort_invalid() -> list[Patch]:
    """A producer whose transaction was aborted at its time-out is not fenced when it commits, but takes the epoch that
    the abort has bumped for that of its own request."""
    return [(TransactionCoordinator, "_is_aborted_before_commit", lambda self, transaction, request: False)]


@MUTATIONS.add("next-id-unknown")
def _next_id_unknown() -> list[Patch]:
    """A producer is not known under the id that it got at the end of its epochs until the markers are written."""
    return [(TransactionCoordinator, "_is_next_id", lambda self, transaction, producer_id: False)]


@MUTATIONS.add("abort-after-decision-refused")
def _abort_after_decision_refused() -> list[Patch]:
    """A producer that aborts its next transaction, to which nothing was added, is refused for good while the markers of
    the one before are written."""
    right = TransactionCoordinator._end

    def end(
        self: TransactionCoordinator, shard: TransactionShard, reply_to: Hashable, request: EndTxnRequest, now_ms: int
    ) -> Steps[None]:
        transaction = shard.transactions.get(request.transactional_id)
        other = TransactionState.PREPARE_ABORT if request.committed else TransactionState.PREPARE_COMMIT
        if transaction is not None and not transaction.pending and transaction.state is other:
            yield Reply(reply_to, EndTxnResponse(ErrorCode.INVALID_TXN_STATE))
        else:
            yield from right(self, shard, reply_to, request, now_ms)

    return [(TransactionCoordinator, "_end", end)]


@MUTATIONS.add("new-producer-keeps-epoch")
def _new_producer_keeps_epoch() -> list[Patch]:
    """A second producer of a transactional id gets the epoch of the first, which is not fenced."""
    changed = TransactionalId.changed

    def same_epoch(
        self: TransactionalId, state: TransactionState, update_ms: int, **fields: Any
    ) -> TransactionMetadata:
        if state is TransactionState.EMPTY and self.stored.producer_epoch >= 0:
            fields["producer_epoch"] = self.stored.producer_epoch
        return changed(self, state, update_ms, **fields)

    return [(TransactionalId, "changed", same_epoch)]


@MUTATIONS.add("expired-transaction-stays-open")
def _expired_transaction_stays_open() -> list[Patch]:
    """A transaction whose producer is gone is never aborted."""

    def never(self: Any, shard: TransactionShard, transaction: TransactionalId, *others: Any) -> Steps[None]:
        return
        yield

    return [(TransactionCoordinator, "_abort", never)]


@MUTATIONS.add("open-transaction-expires")
def _open_transaction_expires() -> list[Patch]:
    """A transactional id is deleted although its transaction is open."""
    return [(IdExpiration, "_may_expire", lambda self, transaction: not transaction.pending)]


@MUTATIONS.add("transaction-begins-before-markers")
def _transaction_begins_before_markers() -> list[Patch]:
    """The next transaction begins before the markers of the one before are written."""
    return [(TransactionalId, "is_busy", property(lambda self: self.pending))]


@MUTATIONS.add("lost-marker-counts")
def _lost_marker_counts() -> list[Patch]:
    """A marker whose response is lost counts as written."""
    answered = MarkerWriter.replied

    def complete(self: MarkerWriter, event: MarkersReplied, now_ms: int) -> Steps[None]:
        if not event.partitions:
            _, transaction = self._sent[event.tag]
            transaction.unmarked.clear()
        return answered(self, event, now_ms)

    return [(MarkerWriter, "replied", complete)]


@MUTATIONS.add("refused-marker-counts")
def _refused_marker_counts() -> list[Patch]:
    """A marker counts as written whatever its leader has answered."""

    def written(effect: SendMarkers, partitions: Iterable[ProducedPartition]) -> MarkersReplied:
        return MarkersReplied(effect.tag, tuple((produced.partition, ErrorCode.NONE) for produced in partitions))

    return [(coordinator_log, "markers_replied", written)]


@MUTATIONS.add("markers-sent-to-first-leader")
def _markers_sent_to_first_leader() -> list[Patch]:
    """Markers go to the leader that the partition had when it was first looked up."""
    leader_of = MetadataCache.leader_of
    first: dict[tuple[int, TopicPartition], int] = {}

    def stale(self: MetadataCache, partition: TopicPartition) -> int:
        return first.setdefault((id(self), partition), leader_of(self, partition))

    return [(MetadataCache, "leader_of", stale)]


@MUTATIONS.add("undecided-read")
def _undecided_read() -> list[Patch]:
    """Readers of committed transactions get all that is committed in the log."""
    return [(LocalReplica, "last_stable", property(lambda self: self.high_watermark))]


@MUTATIONS.add("aborted-offsets-committed")
def _aborted_offsets_committed() -> list[Patch]:
    """The marker that aborts a transaction commits its offsets."""
    end = GroupShard.end_transaction

    def committed(self: GroupShard, producer_id: int, committed: bool, offset: int) -> None:
        end(self, producer_id, True, offset)

    return [(GroupShard, "end_transaction", committed)]


@MUTATIONS.add("pending-offsets-not-loaded")
def _pending_offsets_not_loaded() -> list[Patch]:
    """A new coordinator of a group forgets the offsets that an open transaction may commit."""
    load = GroupShard.load

    def without(self: GroupShard, records: Iterable[tuple[int, LogRecord]]) -> None:
        load(self, [(at, record) for at, record in records if not isinstance(record, PendingOffsetRecord)])

    return [(GroupShard, "load", without)]


@MUTATIONS.add("pending-offsets-hidden")
def _pending_offsets_hidden() -> list[Patch]:
    """A consumer gets the former offset while a transaction may still commit another (KIP-447)."""
    return [(CommittedOffsets, "_hides_pending", lambda self, require_stable: False)]


@MUTATIONS.add("stale-generation-commits-in-transaction")
def _stale_generation_commits_in_transaction() -> list[Patch]:
    """A member of an earlier generation may commit offsets with a transaction (KIP-447)."""
    refusal = CommittedOffsets._refusal

    def unchecked(
        self: CommittedOffsets, group: Group | None, request: OffsetCommitRequest | TxnOffsetCommitRequest
    ) -> ErrorCode:
        error = refusal(self, group, request)
        stale = error is ErrorCode.ILLEGAL_GENERATION and isinstance(request, TxnOffsetCommitRequest)
        return ErrorCode.NONE if stale else error

    return [(CommittedOffsets, "_refusal", unchecked)]


@MUTATIONS.add("unassigned-generation-refused")
def _unassigned_generation_refused() -> list[Patch]:
    """A transaction cannot commit offsets before the generation of its member is assigned."""
    refusal = CommittedOffsets._refusal

    def refused(
        self: CommittedOffsets, group: Group | None, request: OffsetCommitRequest | TxnOffsetCommitRequest
    ) -> ErrorCode:
        error = refusal(self, group, request)
        unassigned = group is not None and group.state is GroupState.COMPLETING_REBALANCE
        return ErrorCode.REBALANCE_IN_PROGRESS if unassigned and error is ErrorCode.NONE else error

    return [(CommittedOffsets, "_refusal", refused)]


@MUTATIONS.add("markers-not-reported")
def _markers_not_reported() -> list[Patch]:
    """The coordinator of groups does not learn of markers."""

    def none(self: LeaderRole) -> Iterator[tuple[int, TransactionMarker]]:
        return iter(())

    return [(LeaderRole, "committed_markers", none)]


@MUTATIONS.add("markers-reported-at-once")
def _markers_reported_at_once() -> list[Patch]:
    """The coordinator of groups learns of a marker before all in-sync replicas have it."""

    def all_of_them(self: LeaderRole) -> Iterator[tuple[int, TransactionMarker]]:
        while self._markers:
            yield self._markers.popleft()

    return [(LeaderRole, "committed_markers", all_of_them)]


@MUTATIONS.add("no-verification")
def _no_verification() -> list[Patch]:
    """A leader appends a batch that begins a transaction without its coordinator: the transaction may have ended."""
    return [(ProducePurgatory, "_needed_verification", lambda self: 2**31 - 1)]


@MUTATIONS.add("verification-always-right")
def _verification_always_right() -> list[Patch]:
    """A coordinator confirms partitions that are not part of the producer's ongoing transaction."""
    return [(TransactionCoordinator, "_is_part", lambda self, transaction, partition: True)]


@MUTATIONS.add("epoch-not-bumped")
def _epoch_not_bumped() -> list[Patch]:
    """A producer goes on in the epoch of the transaction that it has ended."""
    return [(TransactionCoordinator, "_next_epoch", lambda self, transaction, request: {"client_version": 2})]


@MUTATIONS.add("joined-partition-not-added")
def _joined_partition_not_added() -> list[Patch]:
    """The first alone of the partitions that one request joins is sent; the others count as added with it (KIP-890)."""

    def first_alone(waiting: deque[SendAddPartitions]) -> add_partitions.CoalescedAddPartitions:
        coalesced = coalesce(waiting)
        sent = tuple(replace(each, partitions=each.partitions[:1]) for each in coalesced.transactions)
        return replace(coalesced, transactions=sent)

    def of_any(effect: SendAddPartitions, response: AddPartitionsToTxnResponse | None) -> AddPartitionsReplied:
        if response is not None and response.partitions:
            ((_, error), *_) = response.partitions
            response = replace(response, partitions=((effect.request.partitions[0], error),))
        return outcome_of(effect, response)

    coalesce, outcome_of = add_partitions.coalesce, add_partitions.outcome_of
    return [(add_partitions, "coalesce", first_alone), (add_partitions, "outcome_of", of_any)]


@MUTATIONS.add("joined-markers-not-sent")
def _joined_markers_not_sent() -> list[Patch]:
    """The markers of the first alone of the transactions that one request joins are sent; the others count as written
    with them."""

    def first_alone(waiting: deque[SendMarkers]) -> CoalescedMarkers:
        coalesced = coalesce(waiting)
        return replace(coalesced, request=coalesced.effects[0].request)

    def of_any(self: CoalescedMarkers, response: ProduceResponse | None) -> Iterator[MarkersReplied]:
        first = next(iter(replied(self, response)))
        yield first
        for effect in self.effects[1:]:
            names = () if response is None else tuple(each.partition for each in effect.request.partitions)
            yield MarkersReplied(effect.tag, tuple((name, ErrorCode.NONE) for name in names))

    coalesce, replied = write_markers.coalesce, CoalescedMarkers.replied
    return [(write_markers, "coalesce", first_alone), (CoalescedMarkers, "replied", of_any)]


@MUTATIONS.add("requests-behind-another-dropped")
def _requests_behind_another_dropped() -> list[Patch]:
    """Markers, and partitions of transactions, that are queued to a broker while a request is in flight are lost."""

    def replied(self: RequestQueues[Any, Any], broker: int) -> None:
        right(self, broker)
        self._waiting[broker].clear()

    right = RequestQueues.replied
    return [(RequestQueues, "replied", replied)]


@MUTATIONS.add("used-up-epochs-go-on")
def _used_up_epochs_go_on() -> list[Patch]:
    """A producer gets no other id at the end of its epochs: it goes on in one left to fence it (KIP-890)."""
    return [(TransactionCoordinator, "needs_producer_id", lambda self, request: False)]


@MUTATIONS.add("begins-in-a-used-up-epoch")
def _begins_in_a_used_up_epoch() -> list[Patch]:
    """A new producer of a transactional id gets an epoch beyond the last."""
    return [(TransactionCoordinator, "_is_used_up", lambda self, epoch: False)]
