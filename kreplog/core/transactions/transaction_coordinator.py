"""TransactionCoordinator: the transactional ids whose partitions of `__transaction_state` this broker leads.

A decision is a record, committed by all in-sync replicas before anybody learns of it: PrepareCommit and PrepareAbort
decide, and then markers are written to every partition of the transaction until all have one. A coordinator that takes
over reads the records and goes on. A transaction that is not ended in its time is aborted, under another producer
epoch, so that what its producer still sends is refused. Source: Kafka, TransactionCoordinator; KIP-98, KIP-360.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable
from functools import partial
from itertools import islice
from typing import TypeGuard

from kreplog.config import TransactionConfig
from kreplog.core.append_errors import reported
from kreplog.core.effects import AppendGroupRecords, ReadGroupRecords, Reply, StateChange, Steps, WallClock
from kreplog.core.events import (
    Event,
    GroupRecordsAppended,
    GroupRecordsRead,
    LeadershipChanged,
    MarkersReplied,
    Received,
    Tick,
)
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.core.memory import MemoryAccount
from kreplog.core.timers import Deadline, Timers
from kreplog.core.transaction_messages import (
    LAST_EPOCH,
    NO_PRODUCER_ID,
    TRANSACTIONS_TOPIC,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    TransactionMetadata,
    TransactionRecord,
    TransactionRequest,
    TransactionResponse,
    partition_of_transaction,
)
from kreplog.core.transactions.id_expiration import IdExpiration
from kreplog.core.transactions.marker_writer import KnownPartitions, MarkerWriter
from kreplog.core.transactions.transaction_listing import TransactionListings, describe
from kreplog.core.transactions.transaction_shard import PartitionsToAdd, TransactionalId, TransactionShard
from kreplog.core.transactions.transaction_states import DECIDED, ENDED, IDLE, TransactionState
from kreplog.errors import ErrorCode, InvariantError
from kreplog.types import TopicPartition

MAX_FIRED_PER_STEP = 200
"""Deadlines that one step takes."""

RELOAD_MS = 10
"""Pause before a shard reads on whose log is not committed up to its end yet."""

RETRY_MS = 100
"""Pause after a failed read or append, and before an expired transaction is looked at again that is busy."""

PATIENCE_MS = 500
"""How long a request that adds partitions waits for the markers of the transaction before. After that its sender has to
retry."""

_S = TransactionState

Then = Callable[[ErrorCode, int], Steps[None]]
"""The step after an append: called with its error as a coordinator reports it, and the time."""


class TransactionCoordinator:
    """The coordinator core of one broker. metadata: the cluster's, as this broker has them. shards: by number of their
    partition. last_epoch: after which a producer gets another id; lower in the simulator. patience_ms: as PATIENCE_MS;
    0 for requests that are refused at once."""

    def __init__(
        self,
        config: TransactionConfig,
        metadata: KnownPartitions,
        memory: MemoryAccount | None = None,
        last_epoch: int = LAST_EPOCH,
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        self.config = config
        self._last_epoch = last_epoch
        self._patience_ms = patience_ms
        self.shards: dict[int, TransactionShard] = {}
        self._memory = memory or MemoryAccount()
        self._metadata = metadata
        self._timers = Timers()
        self._tags = itertools.count(1)
        self._appends: dict[int, Then] = {}
        self._markers = MarkerWriter(self._timers, metadata, self._complete, self._is_led)
        self._listings = TransactionListings(self._timers, self.shards.values, self._is_led)
        self._expiration = IdExpiration(
            config, self._timers, self.shards.values, self._is_led, self._append_records, self._add_parked
        )

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        match event:
            case Received(reply_to, DescribeTransactionsRequest(transactional_ids)):
                described = tuple(describe(name, self._shard_of(name)) for name in transactional_ids)
                yield Reply(reply_to, DescribeTransactionsResponse(described))
            case Received(reply_to, ListTransactionsRequest() as query):
                yield from self._listings.begin(reply_to, query, now_ms)
            case Received(reply_to, request):
                yield from self._received(reply_to, request, now_ms)  # type: ignore[arg-type]
            case GroupRecordsAppended(tag, error):
                yield from self._appends.pop(tag)(reported(error), now_ms)
            case LeadershipChanged(partition, leader_epoch, end):
                yield from self._leadership(partition, leader_epoch, end)
            case GroupRecordsRead():
                yield from self._read(event, now_ms)
            case MarkersReplied():
                yield from self._markers.replied(event, now_ms)
            case Tick():
                for deadline in islice(self._timers.due(now_ms), MAX_FIRED_PER_STEP):
                    yield from deadline.action(now_ms)
            case _:
                raise InvariantError(f"the transaction coordinator does not handle {type(event).__name__}")

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the next Tick is due, at the latest; None for never."""
        return self._timers.next_ms()

    @property
    def charged(self) -> int:
        """Bytes of memory that its transactional ids are to be charged."""
        ids = (transaction for shard in self.shards.values() for transaction in shard.transactions.values())
        return sum(transaction.charged if transaction.pending else transaction.size for transaction in ids)

    def needs_producer_id(self, request: EndTxnRequest) -> bool:
        """Whether the producer's epochs are used up, so that `new_producer_id` is to be set before `step` gets the
        request."""
        return request.bumps_epoch and request.producer_epoch == self._last_epoch

    # Shards

    def _shard_of(self, transactional_id: str) -> TransactionShard | ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        count = self._metadata.partition_count(TRANSACTIONS_TOPIC)
        shard = self.shards.get(partition_of_transaction(transactional_id, count)) if count else None
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return shard if self._may_answer(shard) else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _may_answer(self, shard: TransactionShard) -> bool:
        return shard.active

    def _is_led(self, shard: TransactionShard) -> bool:
        return self.shards.get(shard.partition.partition) is shard

    def _leadership(self, partition: TopicPartition, leader_epoch: int | None, end: int) -> Steps[None]:
        if partition.topic != TRANSACTIONS_TOPIC:
            return
        shard = self.shards.get(partition.partition)
        if leader_epoch is None:
            if shard is not None:
                del self.shards[partition.partition]
                for transaction in shard.transactions.values():
                    yield from self._refuse_parked(transaction, ErrorCode.NOT_COORDINATOR)
                shard.close()
                yield StateChange("info", f"{partition}: this broker no longer coordinates its transactions")
        elif shard is not None:  # no other broker has led it in between: what is loaded still holds
            shard.leader_epoch = leader_epoch
        else:
            shard = self.shards[partition.partition] = TransactionShard(partition, leader_epoch, end, self._memory)
            yield ReadGroupRecords(partition, leader_epoch, shard.next_offset)

    def _read(self, event: GroupRecordsRead, now_ms: int) -> Steps[None]:
        shard = self.shards.get(event.partition.partition)
        if shard is None or shard.active or event.offset != shard.next_offset:
            return  # the result of an earlier time as leader
        if event.failure:
            yield StateChange("error", f"{event.partition}: its transactions cannot be loaded: {event.failure}")
            self._timers.set(Deadline(partial(self._read_again, shard)), now_ms + RETRY_MS)
            return
        shard.load(event.records)
        progress = event.next_offset > shard.next_offset
        shard.next_offset = event.next_offset
        if shard.next_offset >= shard.end:
            yield from self._loaded(shard, now_ms)
        elif progress:
            yield ReadGroupRecords(shard.partition, shard.leader_epoch, shard.next_offset)
        else:
            self._timers.set(Deadline(partial(self._read_again, shard)), now_ms + RELOAD_MS)

    def _read_again(self, shard: TransactionShard, now_ms: int) -> Steps[None]:
        if self._is_led(shard) and not shard.active:
            yield ReadGroupRecords(shard.partition, shard.leader_epoch, shard.next_offset)

    def _loaded(self, shard: TransactionShard, now_ms: int) -> Steps[None]:
        """Send the markers of the transactions that are decided, and start the time-outs of those that are open."""
        shard.active = True
        wall_ms: int = yield WallClock()
        yield StateChange("info", f"{shard.partition}: {len(shard.loaded)} transactional ids are loaded")
        for transactional_id, stored in shard.loaded.items():
            transaction = self._new(shard, transactional_id, stored)
            shard.add(transaction, force=True)
            if transaction.state is _S.ONGOING:
                left_ms = stored.start_ms + stored.timeout_ms - wall_ms
                self._timers.set(transaction.deadline, now_ms + max(0, min(left_ms, stored.timeout_ms)))
            elif transaction.state in DECIDED:
                yield from self._markers.begin(shard, transaction, now_ms)
        shard.loaded.clear()
        self._expiration.loaded(now_ms)

    def _new(self, shard: TransactionShard, transactional_id: str, stored: TransactionMetadata) -> TransactionalId:
        transaction = TransactionalId(
            transactional_id,
            stored,
            Deadline(lambda now_ms: self._timed_out(shard, transaction, now_ms)),
            Deadline(lambda now_ms: self._refuse_parked(transaction, ErrorCode.CONCURRENT_TRANSACTIONS)),
        )
        return transaction

    # Requests

    def _received(self, reply_to: Hashable, request: TransactionRequest, now_ms: int) -> Steps[None]:
        shard = self._shard_of(request.transactional_id)
        if isinstance(shard, ErrorCode):
            yield Reply(reply_to, _refusal(request, shard))
            return
        match request:
            case InitProducerIdRequest():
                yield from self._init(shard, reply_to, request, now_ms)
            case AddPartitionsToTxnRequest(verify_only=True):
                yield Reply(reply_to, self._verified(shard, request))
            case AddPartitionsToTxnRequest(partitions=partitions):
                yield from self._add(shard, PartitionsToAdd(reply_to, request, partitions), now_ms)
            case AddOffsetsToTxnRequest():
                yield from self._add_offsets(shard, reply_to, request, now_ms)
            case EndTxnRequest():
                yield from self._end(shard, reply_to, request, now_ms)

    def _init(
        self, shard: TransactionShard, reply_to: Hashable, request: InitProducerIdRequest, now_ms: int
    ) -> Steps[None]:
        if not 0 < request.timeout_ms <= self.config.transaction_max_timeout_ms:
            yield Reply(reply_to, InitProducerIdResponse(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
            return
        wall_ms: int = yield WallClock()
        transaction = shard.transactions.get(request.transactional_id)
        if transaction is None:
            first = TransactionMetadata(request.new_producer_id, -1, request.timeout_ms, 0, (), wall_ms, -1)
            transaction = self._new(shard, request.transactional_id, first)
            if not shard.add(transaction):
                yield Reply(reply_to, InitProducerIdResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return
        stored = transaction.stored
        if transaction.is_busy:
            yield Reply(reply_to, InitProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS))
        elif request.producer_id != NO_PRODUCER_ID and self._is_retry(transaction, request):
            yield Reply(reply_to, InitProducerIdResponse(ErrorCode.NONE, stored.producer_id, stored.producer_epoch))
        elif request.producer_id != NO_PRODUCER_ID and self._is_fenced(transaction, request):
            yield Reply(reply_to, InitProducerIdResponse(ErrorCode.PRODUCER_FENCED))
        elif transaction.state is _S.ONGOING:
            yield from self._abort(shard, transaction, wall_ms, now_ms)
            yield Reply(reply_to, InitProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS))
        else:
            yield from self._renew(shard, transaction, reply_to, request, wall_ms)

    def _is_retry(self, transaction: TransactionalId, request: InitProducerIdRequest) -> bool:
        """Whether the response to the same request was lost: the epoch was renewed, and nothing has happened since."""
        return (
            request.producer_epoch >= 0
            and (request.producer_id, request.producer_epoch) == transaction.former
            and transaction.state is _S.EMPTY
        )

    def _is_fenced(self, transaction: TransactionalId, request: InitProducerIdRequest) -> bool:
        """Whether another producer has the id. Nobody has one that was just created: its producer comes back after the
        id has expired."""
        stored = transaction.stored
        return stored.producer_epoch >= 0 and (request.producer_id, request.producer_epoch) != (
            stored.producer_id,
            stored.producer_epoch,
        )

    def _renew(
        self,
        shard: TransactionShard,
        transaction: TransactionalId,
        reply_to: Hashable,
        request: InitProducerIdRequest,
        wall_ms: int,
    ) -> Steps[None]:
        """Another producer epoch, or another id where they are used up."""
        former = transaction.stored
        producer_id, epoch = former.producer_id, former.producer_epoch + 1
        if self._is_used_up(epoch):
            producer_id, epoch = request.new_producer_id, 0
        wanted = transaction.changed(
            _S.EMPTY,
            wall_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=request.timeout_ms,
            partitions=(),
            start_ms=-1,
            previous_producer_id=NO_PRODUCER_ID,  # its producer is not the one that ended a transaction under that id
        )

        def renewed(error: ErrorCode, now_ms: int) -> Steps[None]:
            if error is ErrorCode.NONE:
                given = request.producer_id != NO_PRODUCER_ID
                transaction.former = (former.producer_id, former.producer_epoch) if given else None
                yield Reply(reply_to, InitProducerIdResponse(error, producer_id, epoch))
                return
            if transaction.stored.producer_epoch < 0:  # no record of it is known
                shard.remove(transaction.transactional_id)
            yield Reply(reply_to, InitProducerIdResponse(error))

        yield from self._append(shard, transaction, wanted, renewed)

    def _is_used_up(self, epoch: int) -> bool:
        """Whether no producer may have this epoch, which is left to fence the one before."""
        return epoch > self._last_epoch

    def _add_offsets(
        self, shard: TransactionShard, reply_to: Hashable, request: AddOffsetsToTxnRequest, now_ms: int
    ) -> Steps[None]:
        """Add the partition of `__consumer_offsets` that has the group."""
        count = self._metadata.partition_count(OFFSETS_TOPIC)
        if not request.group_id:
            yield Reply(reply_to, AddOffsetsToTxnResponse(ErrorCode.INVALID_GROUP_ID))
        elif not count:  # retriable: the topic is being created
            yield Reply(reply_to, AddOffsetsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            partition = TopicPartition(OFFSETS_TOPIC, partition_of_group(request.group_id, count))
            yield from self._add(shard, PartitionsToAdd(reply_to, request, (partition,)), now_ms)

    def _add(self, shard: TransactionShard, added: PartitionsToAdd, now_ms: int) -> Steps[None]:
        """Add partitions, at once or when the transaction is not busy any more: a producer begins its next transaction
        before the markers of the one before are written, and would retry after a pause. Requests that have waited are
        added by one record; those of leaders, which come at once, wait for an append in any case."""
        reply_to, request, partitions = added
        transaction = shard.transactions.get(request.transactional_id)
        error = self._identity_error(transaction, request)
        unknown = {name for name in partitions if name not in self._metadata.partitions}
        if transaction is not None and transaction.pending and _is_from_leader(request):
            transaction.parked.append(added)
        elif error is not ErrorCode.NONE or transaction is None:
            yield Reply(reply_to, _refusal(request, error))
        elif transaction.is_busy and self._patience_ms:
            if transaction.patience.at_ms is None:
                self._timers.set(transaction.patience, now_ms + self._patience_ms)
            transaction.parked.append(added)
        elif transaction.is_busy:
            yield Reply(reply_to, _refusal(request, ErrorCode.CONCURRENT_TRANSACTIONS))
        elif unknown:
            found, others = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
            errors = tuple((name, found if name in unknown else others) for name in partitions)
            yield Reply(reply_to, AddPartitionsToTxnResponse(errors))
        elif transaction.state is _S.ONGOING and set(partitions) <= set(transaction.stored.partitions):
            yield Reply(reply_to, self._added(shard, request, ErrorCode.NONE))
        else:
            yield from self._append_partitions(shard, transaction, [added])

    def _added(
        self, shard: TransactionShard, request: AddPartitionsToTxnRequest | AddOffsetsToTxnRequest, error: ErrorCode
    ) -> TransactionResponse:
        if _is_from_leader(request):
            errors = tuple((name, error) for name in request.partitions)
            return AddPartitionsToTxnResponse(errors, shard.leader_epoch)
        return _refusal(request, error)

    def _append_partitions(
        self, shard: TransactionShard, transaction: TransactionalId, together: list[PartitionsToAdd]
    ) -> Steps[None]:
        """Append a record of the transaction with the partitions of these requests too."""
        ongoing = transaction.state is _S.ONGOING
        before = transaction.stored.partitions if ongoing else ()
        wall_ms: int = yield WallClock()
        first = together[0].request
        wanted = transaction.changed(
            _S.ONGOING,
            wall_ms,
            partitions=tuple(dict.fromkeys((*before, *(name for added in together for name in added.partitions)))),
            start_ms=transaction.stored.start_ms if ongoing else wall_ms,
            client_version=2 if _is_from_leader(first) else 0,
        )
        if not shard.reserve(transaction, wanted.partitions):
            for added in together:
                refused = self._added(shard, added.request, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                yield Reply(added.reply_to, refused)
            return

        def appended(error: ErrorCode, now_ms: int) -> Steps[None]:
            if error is ErrorCode.NONE and not ongoing:
                self._timers.set(transaction.deadline, now_ms + transaction.stored.timeout_ms)
            for added in together:
                yield Reply(added.reply_to, self._added(shard, added.request, error))

        yield from self._append(shard, transaction, wanted, appended)

    def _add_parked(self, shard: TransactionShard, transaction: TransactionalId, now_ms: int) -> Steps[None]:
        """Add what has waited for an append, or leave it waiting for the markers."""
        parked = self._take_parked(transaction)
        present = shard.transactions.get(transaction.transactional_id)
        together = []
        for added in parked:
            known = all(name in self._metadata.partitions for name in added.partitions)
            if known and not transaction.is_busy and self._identity_error(present, added.request) is ErrorCode.NONE:
                together.append(added)
            else:
                yield from self._add(shard, added, now_ms)
        if together:
            yield from self._append_partitions(shard, transaction, together)

    def _take_parked(self, transaction: TransactionalId) -> list[PartitionsToAdd]:
        parked, transaction.parked = transaction.parked, []
        transaction.patience.cancel()
        return parked

    def _refuse_parked(self, transaction: TransactionalId, error: ErrorCode) -> Steps[None]:
        for reply_to, request, _ in self._take_parked(transaction):
            yield Reply(reply_to, _refusal(request, error))

    def _verified(self, shard: TransactionShard, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        """Whether the partitions are part of the ongoing transaction (KIP-890)."""
        transaction = shard.transactions.get(request.transactional_id)
        error = self._identity_error(transaction, request)
        if error is ErrorCode.NONE and transaction is not None and transaction.state in DECIDED:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is not ErrorCode.NONE or transaction is None:
            return AddPartitionsToTxnResponse(tuple((name, error) for name in request.partitions))
        found = tuple(
            (name, ErrorCode.NONE if self._is_part(transaction, name) else ErrorCode.TRANSACTION_ABORTABLE)
            for name in request.partitions
        )
        return AddPartitionsToTxnResponse(found, shard.leader_epoch)

    def _is_part(self, transaction: TransactionalId, partition: TopicPartition) -> bool:
        return transaction.state is _S.ONGOING and partition in transaction.stored.partitions

    def _identity_error(
        self,
        transaction: TransactionalId | None,
        request: AddPartitionsToTxnRequest | AddOffsetsToTxnRequest | EndTxnRequest,
    ) -> ErrorCode:
        """NONE if the request comes from the present producer of the id. Where its epochs are used up, it has the next
        id since the decision, before the markers are written; the epoch that is left to fence is no producer's."""
        if transaction is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if request.producer_epoch == 0 and self._is_next_id(transaction, request.producer_id):
            return ErrorCode.NONE
        if transaction.stored.producer_id != request.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if self._is_other_epoch(transaction, request.producer_epoch) or self._is_used_up(request.producer_epoch):
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def _is_next_id(self, transaction: TransactionalId, producer_id: int) -> bool:
        return transaction.stored.next_producer_id == producer_id != NO_PRODUCER_ID

    def _is_other_epoch(self, transaction: TransactionalId, producer_epoch: int) -> bool:
        return producer_epoch != transaction.stored.producer_epoch

    def _end(self, shard: TransactionShard, reply_to: Hashable, request: EndTxnRequest, now_ms: int) -> Steps[None]:
        transaction = shard.transactions.get(request.transactional_id)
        retried = (
            transaction is not None
            and self._is_retried_end(transaction, request)
            and not self._is_aborted_before_commit(transaction, request)
        )
        error = ErrorCode.NONE if retried else self._identity_error(transaction, request)
        if error is ErrorCode.NONE and transaction is not None and transaction.is_busy:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        prepared = _S.PREPARE_COMMIT if request.committed else _S.PREPARE_ABORT
        if error is not ErrorCode.NONE or transaction is None:
            yield Reply(reply_to, EndTxnResponse(error))
        elif not retried and self._may_end(transaction, request):
            wall_ms: int = yield WallClock()
            fields = self._next_epoch(transaction, request) if request.bumps_epoch else {}
            yield from self._decide(shard, transaction, transaction.changed(prepared, wall_ms, **fields), reply_to)
        elif (retried or not request.bumps_epoch) and transaction.state is (
            _S.COMPLETE_COMMIT if request.committed else _S.COMPLETE_ABORT
        ):
            yield Reply(reply_to, _ended(transaction.stored))  # the response to the same request was lost
        else:
            yield Reply(reply_to, EndTxnResponse(ErrorCode.INVALID_TXN_STATE))

    def _may_end(self, transaction: TransactionalId, request: EndTxnRequest) -> bool:
        """A producer that leaves it to leaders to add partitions does not know whether its transaction has begun: to
        abort none takes another epoch all the same, which fences what may be on its way."""
        empty_abort = request.bumps_epoch and not request.committed and transaction.state in IDLE
        return transaction.state is _S.ONGOING or empty_abort

    def _is_retried_end(self, transaction: TransactionalId, request: EndTxnRequest) -> bool:
        """Whether the epoch was bumped by the same request, whose response was lost. The coordinator's own abort may
        have bumped it, which looks the same to an abort, as in Kafka; the epoch that is left for that is nobody's."""
        stored = transaction.stored
        if not request.bumps_epoch or stored.client_version < 2 or transaction.state not in ENDED:
            return False
        if request.producer_id == stored.producer_id:
            given = stored.next_producer_id != NO_PRODUCER_ID or not self._is_used_up(stored.producer_epoch)
            return given and request.producer_epoch == stored.producer_epoch - 1
        return (
            stored.producer_epoch == 0  # a later one is of another producer, which has begun since
            and request.producer_id == stored.previous_producer_id
            and request.producer_epoch == self._last_epoch
        )

    def _is_aborted_before_commit(self, transaction: TransactionalId, request: EndTxnRequest) -> bool:
        """Whether the coordinator has aborted the transaction that its producer wants to commit: a producer never tries
        both. That one is fenced, with its epoch. Source: KAFKA-20785."""
        return request.committed and transaction.state is _S.COMPLETE_ABORT

    def _next_epoch(self, transaction: TransactionalId, request: EndTxnRequest) -> dict[str, int]:
        """Fields of a decision: markers are of the next epoch, so that they fence what is late (KIP-890)."""
        fields = {"producer_epoch": transaction.stored.producer_epoch + 1, "client_version": 2}
        if self._is_used_up(fields["producer_epoch"]):
            fields["next_producer_id"] = request.new_producer_id
        return fields

    # Decisions

    def _decide(
        self,
        shard: TransactionShard,
        transaction: TransactionalId,
        wanted: TransactionMetadata,
        reply_to: Hashable = None,
    ) -> Steps[None]:
        """Store the decision, then write the markers. The producer learns of it in between, as in Kafka."""

        def decided(error: ErrorCode, now_ms: int) -> Steps[None]:
            if reply_to is not None:
                yield Reply(reply_to, EndTxnResponse(error) if error is not ErrorCode.NONE else _ended(wanted))
            if not self._is_led(shard):
                return
            if error is ErrorCode.NONE:
                yield from self._markers.begin(shard, transaction, now_ms)
            elif reply_to is None:
                self._timers.set(transaction.deadline, now_ms + RETRY_MS)

        yield from self._append(shard, transaction, wanted, decided)

    def _abort(self, shard: TransactionShard, transaction: TransactionalId, wall_ms: int, now_ms: int) -> Steps[None]:
        """Abort without its producer, which is fenced by another epoch."""
        stored = transaction.stored
        epoch = min(stored.producer_epoch + 1, self._last_epoch + 1)
        yield from self._decide(
            shard, transaction, transaction.changed(_S.PREPARE_ABORT, wall_ms, producer_epoch=epoch)
        )

    def _complete(self, shard: TransactionShard, transaction: TransactionalId, now_ms: int) -> Steps[None]:
        """Every partition has its marker."""
        wall_ms: int = yield WallClock()
        committed, stored = transaction.state is _S.PREPARE_COMMIT, transaction.stored
        fields = {}
        if stored.next_producer_id != NO_PRODUCER_ID:
            fields = {
                "producer_id": stored.next_producer_id,
                "producer_epoch": 0,
                "previous_producer_id": stored.producer_id,
                "next_producer_id": NO_PRODUCER_ID,
            }
        wanted = transaction.changed(
            _S.COMPLETE_COMMIT if committed else _S.COMPLETE_ABORT, wall_ms, partitions=(), start_ms=-1, **fields
        )

        def completed(error: ErrorCode, now_ms: int) -> Steps[None]:
            if error is not ErrorCode.NONE and self._is_led(shard):
                self._timers.set(transaction.deadline, now_ms + RETRY_MS)
            yield from ()

        yield from self._append(shard, transaction, wanted, completed)

    def _timed_out(self, shard: TransactionShard, transaction: TransactionalId, now_ms: int) -> Steps[None]:
        """The deadline of a transaction has passed: abort it if it is open, send its markers again if it is decided."""
        if not self._is_led(shard):
            return
        if transaction.pending:
            self._timers.set(transaction.deadline, now_ms + RETRY_MS)
        elif transaction.state in DECIDED:
            yield from self._markers.send(shard, transaction, now_ms)
        elif transaction.state is _S.ONGOING:
            yield StateChange("info", f"transaction {transaction.transactional_id} is aborted: its timeout has passed")
            wall_ms: int = yield WallClock()
            yield from self._abort(shard, transaction, wall_ms, now_ms)

    def _append(
        self, shard: TransactionShard, transaction: TransactionalId, wanted: TransactionMetadata, then: Then
    ) -> Steps[None]:
        """Append the record of a state; it is the state once it is committed, before `then`."""

        def appended(error: ErrorCode, now_ms: int) -> Steps[None]:
            transaction.pending = False
            if error is ErrorCode.NONE:
                if wanted.state != _S.ONGOING:
                    transaction.deadline.cancel()
                transaction.stored = wanted
            shard.settle(transaction)
            yield from then(error, now_ms)
            if transaction.parked and not transaction.pending:
                yield from self._add_parked(shard, transaction, now_ms)

        transaction.pending = True
        yield from self._append_records(shard, (TransactionRecord(transaction.transactional_id, wanted),), appended)

    def _append_records(
        self, shard: TransactionShard, records: tuple[TransactionRecord, ...], appended: Then
    ) -> Steps[None]:
        tag = next(self._tags)
        self._appends[tag] = appended
        timeout_ms = self.config.transaction_state_log_commit_timeout_ms
        yield AppendGroupRecords(tag, shard.partition, shard.leader_epoch, records, timeout_ms)


def _ended(stored: TransactionMetadata) -> EndTxnResponse:
    """The response to an EndTxn: with which id and epoch the producer goes on."""
    if stored.client_version < 2:
        return EndTxnResponse(ErrorCode.NONE)
    if stored.next_producer_id != NO_PRODUCER_ID:
        return EndTxnResponse(ErrorCode.NONE, stored.next_producer_id, 0)
    return EndTxnResponse(ErrorCode.NONE, stored.producer_id, stored.producer_epoch)


def _is_from_leader(
    request: AddPartitionsToTxnRequest | AddOffsetsToTxnRequest,
) -> TypeGuard[AddPartitionsToTxnRequest]:
    return isinstance(request, AddPartitionsToTxnRequest) and request.from_leader


def _refusal(request: TransactionRequest, error: ErrorCode) -> TransactionResponse:
    """The response with one error for all of the request."""
    match request:
        case InitProducerIdRequest():
            return InitProducerIdResponse(error)
        case AddPartitionsToTxnRequest():
            return AddPartitionsToTxnResponse(tuple((name, error) for name in request.partitions))
        case AddOffsetsToTxnRequest():
            return AddOffsetsToTxnResponse(error)
        case EndTxnRequest():
            return EndTxnResponse(error)
