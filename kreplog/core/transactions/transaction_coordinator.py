"""TransactionCoordinator: the transactional ids whose partitions of `__transaction_state` this broker leads.

A decision is a record, committed by all in-sync replicas before anybody learns of it: PrepareCommit and PrepareAbort
decide, and then markers are written to every partition of the transaction until all have one. A coordinator that takes
over reads the records and goes on. A transaction that is not ended in its time is aborted, under another producer
epoch, so that what its producer still sends is refused. Source: Kafka, TransactionCoordinator; KIP-98, KIP-360.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Hashable
from functools import partial
from itertools import islice

from kreplog.config import TransactionConfig
from kreplog.core.append_errors import reported
from kreplog.core.effects import AppendGroupRecords, ReadGroupRecords, Reply, StateChange, Steps, WallClock
from kreplog.core.events import (
    Event,
    GroupRecordsAppended,
    GroupRecordsRead,
    LeadershipChanged,
    MarkersAnswered,
    Received,
    Tick,
)
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.core.memory import MemoryAccount
from kreplog.core.timers import Deadline, Timers
from kreplog.core.transaction_messages import (
    NO_PRODUCER_ID,
    TRANSACTIONS_TOPIC,
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionMetadata,
    TransactionRecord,
    TransactionRequest,
    TransactionResponse,
    partition_of_transaction,
)
from kreplog.core.transactions.marker_writer import MarkerWriter
from kreplog.core.transactions.transaction_shard import TransactionalId, TransactionShard
from kreplog.core.transactions.transaction_states import DECIDED, TransactionState
from kreplog.errors import ErrorCode, InvariantError
from kreplog.types import TopicPartition

MAX_FIRED_PER_STEP = 200
"""Deadlines that one step takes."""

RELOAD_MS = 10
"""Pause before a shard reads on whose log is not committed up to its end yet."""

RETRY_MS = 100
"""Pause after a failed read or append, and before an expired transaction is looked at again that is busy."""

LAST_EPOCH = 2**15 - 2
"""After this epoch a producer gets another id; the last one is left to fence it."""

_S = TransactionState

Then = Callable[[ErrorCode, int], Steps[None]]
"""The step after an append: called with its error as a coordinator reports it, and the time."""


class TransactionCoordinator:
    """The coordinator core of one broker. partitions: those in the cluster's metadata. leader_of: the id of a
    partition's leader, -1 for none. shards: by partition number."""

    def __init__(
        self,
        config: TransactionConfig,
        partitions: Callable[[], Container[TopicPartition]],
        leader_of: Callable[[TopicPartition], int],
        memory: MemoryAccount | None = None,
    ) -> None:
        self.config = config
        self.shards: dict[int, TransactionShard] = {}
        self._memory = memory or MemoryAccount()
        self._partitions = partitions
        self._timers = Timers()
        self._tags = itertools.count(1)
        self._appends: dict[int, Then] = {}
        self._markers = MarkerWriter(self._timers, partitions, leader_of, self._complete, self._is_led)

    def step(self, event: Event, now_ms: int) -> Steps[None]:
        match event:
            case Received(reply_to, request):
                yield from self._received(reply_to, request, now_ms)  # type: ignore[arg-type]
            case GroupRecordsAppended(tag, error):
                yield from self._appends.pop(tag)(reported(error), now_ms)
            case LeadershipChanged(partition, leader_epoch, end):
                yield from self._leadership(partition, leader_epoch, end)
            case GroupRecordsRead():
                yield from self._read(event, now_ms)
            case MarkersAnswered():
                yield from self._markers.answered(event, now_ms)
            case Tick():
                for deadline in islice(self._timers.due(now_ms), MAX_FIRED_PER_STEP):
                    yield from deadline.action(now_ms)
            case _:
                raise InvariantError(f"the transaction coordinator does not handle {type(event).__name__}")

    def next_wakeup(self, now_ms: int) -> int | None:
        """When the next Tick is due, at the latest; None for never."""
        return self._timers.next_ms()

    # Shards

    def _shard_of(self, transactional_id: str) -> TransactionShard | ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        count = self._count(TRANSACTIONS_TOPIC)
        shard = self.shards.get(partition_of_transaction(transactional_id, count)) if count else None
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return shard if self._may_answer(shard) else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _may_answer(self, shard: TransactionShard) -> bool:
        return shard.active

    def _count(self, topic: str) -> int:
        """Partitions of an internal topic, 0 while there is none."""
        count, known = 0, self._partitions()
        while TopicPartition(topic, count) in known:
            count += 1
        return count

    def _is_led(self, shard: TransactionShard) -> bool:
        return self.shards.get(shard.partition.partition) is shard

    def _leadership(self, partition: TopicPartition, leader_epoch: int | None, end: int) -> Steps[None]:
        if partition.topic != TRANSACTIONS_TOPIC:
            return
        shard = self.shards.get(partition.partition)
        if leader_epoch is None:
            if shard is not None:
                del self.shards[partition.partition]
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
        """Go on with what the coordinator before has decided, and watch over what is open."""
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

    def _new(self, shard: TransactionShard, transactional_id: str, stored: TransactionMetadata) -> TransactionalId:
        transaction = TransactionalId(
            transactional_id, stored, Deadline(lambda now_ms: self._fire(shard, transaction, now_ms))
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
            case AddPartitionsToTxnRequest(partitions=partitions):
                yield from self._add(shard, reply_to, request, partitions)
            case AddOffsetsToTxnRequest():
                yield from self._add_offsets(shard, reply_to, request)
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
            if request.producer_id != NO_PRODUCER_ID:
                yield Reply(reply_to, InitProducerIdResponse(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
                return
            if not shard.add(transaction):
                yield Reply(reply_to, InitProducerIdResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return
        stored = transaction.stored
        if transaction.pending or transaction.state in DECIDED:
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
            request.producer_id == transaction.stored.producer_id
            and request.producer_epoch == transaction.former_epoch >= 0
            and transaction.state is _S.EMPTY
        )

    def _is_fenced(self, transaction: TransactionalId, request: InitProducerIdRequest) -> bool:
        stored = transaction.stored
        return (request.producer_id, request.producer_epoch) != (stored.producer_id, stored.producer_epoch)

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
        if epoch > LAST_EPOCH:
            producer_id, epoch = request.new_producer_id, 0
        wanted = transaction.changed(
            _S.EMPTY,
            wall_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=request.timeout_ms,
            partitions=(),
            start_ms=-1,
        )

        def renewed(error: ErrorCode, now_ms: int) -> Steps[None]:
            if error is ErrorCode.NONE:
                given = request.producer_id != NO_PRODUCER_ID
                transaction.former_epoch = former.producer_epoch if given and producer_id == former.producer_id else -1
                yield Reply(reply_to, InitProducerIdResponse(error, producer_id, epoch))
                return
            if transaction.stored.producer_epoch < 0:  # no record of it is known
                shard.remove(transaction.transactional_id)
            yield Reply(reply_to, InitProducerIdResponse(error))

        yield from self._append(shard, transaction, wanted, renewed)

    def _add_offsets(self, shard: TransactionShard, reply_to: Hashable, request: AddOffsetsToTxnRequest) -> Steps[None]:
        """Add the partition of `__consumer_offsets` that has the group."""
        count = self._count(OFFSETS_TOPIC)
        if not request.group_id:
            yield Reply(reply_to, AddOffsetsToTxnResponse(ErrorCode.INVALID_GROUP_ID))
        elif not count:  # retriable: the topic is being created
            yield Reply(reply_to, AddOffsetsToTxnResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        else:
            partition = TopicPartition(OFFSETS_TOPIC, partition_of_group(request.group_id, count))
            yield from self._add(shard, reply_to, request, (partition,))

    def _add(
        self,
        shard: TransactionShard,
        reply_to: Hashable,
        request: AddPartitionsToTxnRequest | AddOffsetsToTxnRequest,
        partitions: tuple[TopicPartition, ...],
    ) -> Steps[None]:
        transaction = shard.transactions.get(request.transactional_id)
        error = self._refusal_of(transaction, request)
        if error is ErrorCode.NONE and transaction is not None and transaction.state in DECIDED:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        unknown = {name for name in partitions if name not in self._partitions()}
        if error is not ErrorCode.NONE or transaction is None:
            yield Reply(reply_to, _refusal(request, error))
            return
        if unknown:
            yield Reply(
                reply_to,
                AddPartitionsToTxnResponse(
                    tuple(
                        (
                            name,
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                            if name in unknown
                            else ErrorCode.OPERATION_NOT_ATTEMPTED,
                        )
                        for name in partitions
                    )
                ),
            )
            return
        ongoing = transaction.state is _S.ONGOING
        before = transaction.stored.partitions if ongoing else ()
        if ongoing and set(partitions) <= set(before):
            yield Reply(reply_to, _refusal(request, ErrorCode.NONE))
            return
        wall_ms: int = yield WallClock()
        wanted = transaction.changed(
            _S.ONGOING,
            wall_ms,
            partitions=tuple(dict.fromkeys((*before, *partitions))),
            start_ms=transaction.stored.start_ms if ongoing else wall_ms,
        )

        def added(error: ErrorCode, now_ms: int) -> Steps[None]:
            if error is ErrorCode.NONE and not ongoing:
                self._timers.set(transaction.deadline, now_ms + transaction.stored.timeout_ms)
            yield Reply(reply_to, _refusal(request, error))

        yield from self._append(shard, transaction, wanted, added)

    def _refusal_of(
        self,
        transaction: TransactionalId | None,
        request: AddPartitionsToTxnRequest | AddOffsetsToTxnRequest | EndTxnRequest,
    ) -> ErrorCode:
        """NONE if the request comes from the present producer of the id, and may be served now."""
        if transaction is None or transaction.stored.producer_id != request.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if self._is_other_epoch(transaction, request.producer_epoch):
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if transaction.pending else ErrorCode.NONE

    def _is_other_epoch(self, transaction: TransactionalId, producer_epoch: int) -> bool:
        return producer_epoch != transaction.stored.producer_epoch

    def _end(self, shard: TransactionShard, reply_to: Hashable, request: EndTxnRequest, now_ms: int) -> Steps[None]:
        transaction = shard.transactions.get(request.transactional_id)
        error = self._refusal_of(transaction, request)
        if error is not ErrorCode.NONE or transaction is None:
            yield Reply(reply_to, EndTxnResponse(error))
        elif transaction.state is _S.ONGOING:
            wall_ms: int = yield WallClock()
            wanted = transaction.changed(_S.PREPARE_COMMIT if request.committed else _S.PREPARE_ABORT, wall_ms)
            yield from self._decide(shard, transaction, wanted, reply_to)
        elif transaction.state is (_S.PREPARE_COMMIT if request.committed else _S.PREPARE_ABORT):
            yield Reply(reply_to, EndTxnResponse(ErrorCode.CONCURRENT_TRANSACTIONS))
        elif transaction.state is (_S.COMPLETE_COMMIT if request.committed else _S.COMPLETE_ABORT):
            yield Reply(reply_to, EndTxnResponse(ErrorCode.NONE))  # the response to the same request was lost
        else:
            yield Reply(reply_to, EndTxnResponse(ErrorCode.INVALID_TXN_STATE))

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
                yield Reply(reply_to, EndTxnResponse(error))
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
        epoch = min(stored.producer_epoch + 1, LAST_EPOCH + 1)
        yield from self._decide(
            shard, transaction, transaction.changed(_S.PREPARE_ABORT, wall_ms, producer_epoch=epoch)
        )

    def _complete(self, shard: TransactionShard, transaction: TransactionalId, now_ms: int) -> Steps[None]:
        """Every partition has its marker."""
        wall_ms: int = yield WallClock()
        committed = transaction.state is _S.PREPARE_COMMIT
        wanted = transaction.changed(
            _S.COMPLETE_COMMIT if committed else _S.COMPLETE_ABORT, wall_ms, partitions=(), start_ms=-1
        )

        def completed(error: ErrorCode, now_ms: int) -> Steps[None]:
            if error is not ErrorCode.NONE and self._is_led(shard):
                self._timers.set(transaction.deadline, now_ms + RETRY_MS)
            yield from ()

        yield from self._append(shard, transaction, wanted, completed)

    def _fire(self, shard: TransactionShard, transaction: TransactionalId, now_ms: int) -> Steps[None]:
        """Its deadline has passed: its time is over, or markers are to be written again."""
        if not self._is_led(shard):
            return
        if transaction.pending:
            self._timers.set(transaction.deadline, now_ms + RETRY_MS)
        elif transaction.state in DECIDED:
            yield from self._markers.send(shard, transaction, now_ms)
        elif transaction.state is _S.ONGOING:
            yield StateChange("info", f"transaction {transaction.transactional_id} is aborted: its time is over")
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
            yield from then(error, now_ms)

        transaction.pending = True
        tag = next(self._tags)
        self._appends[tag] = appended
        records = (TransactionRecord(transaction.transactional_id, wanted),)
        timeout_ms = self.config.transaction_state_log_commit_timeout_ms
        yield AppendGroupRecords(tag, shard.partition, shard.leader_epoch, records, timeout_ms)


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
