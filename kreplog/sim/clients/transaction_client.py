"""Producers with transactional ids and readers of committed transactions in the simulator, without I/O.

A process begins as the producer of its transactional id, which other processes share and fence, and writes transactions
over several partitions: most are committed, some aborted, some left alone. A copier also reads the committed offset of
a group, writes a record with that number, and commits the next offset with its transaction, so that every number is
copied once. Some processes use the first version of the protocol: they add partitions themselves, and after a request
without response they take a new epoch before the next transaction, so that the late request is refused. The others use
the second (KIP-890): leaders add the partitions, and each end of a transaction bumps the epoch. A process of either
kind may abort a transaction while a batch is on its way, which must not open another one. In some seeds copiers are
members of the group, and commit in their generation (KIP-447): some before it is assigned, some also in the one before.
Where there are other members whose coordinator assigns, so does that of the copiers, and their epoch is the generation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from kreplog.core.group_messages import (
    NO_GENERATION,
    OFFSETS_TOPIC,
    CommitPartition,
    OffsetFetchGroup,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from kreplog.core.messages import (
    CONSUMER,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    ProducePartition,
    TransactionalProduce,
)
from kreplog.core.transaction_messages import (
    NO_PRODUCER_ID,
    TRANSACTIONS_TOPIC,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    partition_of_transaction,
)
from kreplog.errors import ErrorCode
from kreplog.sim.clients.group_membership import GroupMembership
from kreplog.sim.clients.workload import (
    RETRIABLE,
    Call,
    Client,
    ClientContext,
    ClientEffect,
    ClientMetadata,
    Sleep,
)
from kreplog.sim.faults import MANY_TRANSACTED, TRANSACTED_TOPIC, TRANSACTION_TIMEOUTS_MS
from kreplog.sim.history import (
    ProducerBeginning,
    ProducerBegun,
    ProducerRefused,
    StableEnd,
    StableRead,
    TransactionalCommit,
    TransactionEnded,
    TransactionEnding,
    TransactionRecordSent,
    TransactionRecordWritten,
)
from kreplog.sim.machines.records import RecordCodec
from kreplog.types import NO_LEADER, TopicPartition

GROUP = "copies"
COPIER = "copier"

HASTE_MS = 2
"""The first time-out of a hasty process: about what a coordinator takes to decide."""

COMPLETION_MS = 8
"""Within which most transactions that are decided are completed."""

_RETRIABLE = RETRIABLE | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}

Steps = Generator[ClientEffect, Any, Any]


@dataclass(frozen=True, slots=True)
class TransactionTopics:
    """The numbers of partitions: of the topic that transactions write to, and of `__transaction_state`."""

    transacted: int
    transactions: int

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(TRANSACTED_TOPIC, number) for number in range(self.transacted)]

    def home_of(self, transactional_id: str) -> TopicPartition:
        return TopicPartition(TRANSACTIONS_TOPIC, partition_of_transaction(transactional_id, self.transactions))


class TransactionalProcess:
    """One process; `run` is its client. done: it has ended. misuses: it also sends what brokers refuse. hasty: it waits
    for the response to an EndTxn only as long as a coordinator takes to decide, and soon sends it again: most often
    while the markers are written, or the record of the completed transaction. joins: how a copier is a member of its
    group, None if it is not."""

    def __init__(
        self,
        context: ClientContext,
        transactional_id: str,
        topics: TransactionTopics,
        *,
        misuses: bool = False,
        hasty: bool = False,
        joins: type[GroupMembership] | None = None,
    ) -> None:
        self.done = False
        self._misuses = misuses
        self._hasty = hasty
        self._name = context.name
        self._id = transactional_id
        self._topics = topics
        self._home = topics.home_of(transactional_id)
        self._settings = context.settings
        self._history = context.history
        self._codec = context.codec
        self._random = context.random
        self._switch = context.switch
        self._metadata = ClientMetadata(context, internal=True)
        self._producer = (-1, -1)
        self._sequences: dict[TopicPartition, int] = {}
        self._count = 0
        self._unsure = False
        self._choices = Random(f"{context.name} of {context.random.getrandbits(32)}")
        self._is_second = self._choices.random() < 0.5
        self._membership: GroupMembership | None = None
        if joins is not None and transactional_id == COPIER:
            self._membership = joins(context, self._metadata, GROUP)

    def run(self) -> Client:
        yield from self._metadata.refresh()
        while not self._switch.off:
            yield Sleep(self._random.randint(0, 1500))
            goes_on = yield from self._begin()
            while goes_on and not self._is_to_end():
                goes_on = yield from self._transaction()
                if goes_on:
                    yield Sleep(self._random.choice((0, self._random.randint(0, self._settings.pause_ms))))
        self.done = True

    def _is_to_end(self) -> bool:
        return self._switch.off

    # Requests

    def _coordinator(self) -> int:
        return self._metadata.coordinator_of(TRANSACTIONS_TOPIC, self._id)

    def _group_coordinator(self) -> int:
        return self._metadata.coordinator_of(OFFSETS_TOPIC, GROUP)

    def _call(
        self,
        find: Callable[[], int],
        request: Any,
        errors: Callable[[Any], Sequence[ErrorCode]],
        *,
        hasty: bool = False,
    ) -> Steps:
        """The final response of a broker: all is done, or an error is not retriable. find: returns the broker by the
        newest metadata, NO_LEADER for none. hasty: the first time-out, and the pause after it, are short."""
        while True:
            broker = find()
            response = None
            if broker != NO_LEADER:
                (response,) = yield Call(broker, (request,), HASTE_MS if hasty else self._settings.request_ms)
                self._unsure = self._unsure or response is None
            if response is not None and _RETRIABLE.isdisjoint(found := errors(response)):
                refused = next((error for error in found if error is not ErrorCode.NONE), None)
                if refused is not None:
                    self._history.add(ProducerRefused(*self._where(), self._name, self._id, refused.name, broker))
                return response
            yield Sleep(self._choices.randint(0, COMPLETION_MS) if hasty else self._settings.backoff_ms)
            if not hasty:
                yield from self._metadata.refresh()
            hasty = False

    def _error(self, find: Callable[[], int], request: Any) -> Steps:
        """The final error of a request that has one error."""
        response = yield from self._call(find, request, lambda found: (found.error,))
        return response.error

    def _error_of_partitions(self, find: Callable[[], int], request: Any) -> Steps:
        """The first final error of a request whose response has one for each partition."""
        response = yield from self._call(find, request, _partition_errors)
        return next((error for error in _partition_errors(response) if error is not ErrorCode.NONE), ErrorCode.NONE)

    def _begin(self) -> Steps:
        """Become the producer of the id; whether that succeeds."""
        timeout_ms = self._random.choice(TRANSACTION_TIMEOUTS_MS)
        request = InitProducerIdRequest(self._id, timeout_ms, NO_PRODUCER_ID)
        self._unsure = False
        self._history.add(ProducerBeginning(*self._where(), self._name, self._id))
        response = yield from self._call(self._coordinator, request, lambda found: (found.error,))
        if response.error is not ErrorCode.NONE:
            return False
        self._producer = response.producer_id, response.producer_epoch
        self._sequences = {}
        if self._unsure:
            self._history.add(ProducerBeginning(*self._where(), self._name, self._id, late=True))
        self._unsure = False
        self._history.add(ProducerBegun(*self._where(), self._name, self._id, *self._producer))
        return True

    def _where(self) -> tuple[int, TopicPartition, str]:
        return self._history.now_ms(), self._home, ""

    def _transaction(self) -> Steps:
        """One transaction; whether another may follow in this epoch."""
        random = self._random
        self._count += 1
        name = f"{self._name}.{self._count}"
        offset = -1
        if self._membership is not None and not (yield from self._membership.renew()):
            return False
        if self._id == COPIER:
            offset = yield from self._offset()
        chosen = random.sample(self._topics.partitions, random.randint(1, self._topics.transacted))
        if not (yield from self._add(chosen)):
            return False
        values = [(partition, f"{name}:{place}") for place, partition in enumerate(chosen)]
        if offset >= 0:
            values.append((chosen[0], f"{name}:copy:{offset}"))
        elif random.random() < 0.5:
            values.append((random.choice(chosen), f"{name}:more"))
        if self._topics.transacted == MANY_TRANSACTED:
            yield from self._send_at_once(name, values)
        for partition, value in values:
            written = yield from self._write(name, partition, value)
            if written is None:
                ended = yield from self._end(name, committed=False)
                return ended and self._is_second
            if not written:
                return False
        if offset >= 0 and not (yield from self._commit_offset(offset + 1)):
            return False
        if random.random() < 0.1:  # the process is gone: its transaction ends without it
            yield Sleep(random.randint(0, 4000))
            return False
        return (yield from self._end(name, committed=random.random() < 0.7)) and (self._is_second or not self._unsure)

    def _add(self, partitions: Sequence[TopicPartition]) -> Steps:
        if self._is_second:
            return True
        request = AddPartitionsToTxnRequest(self._id, *self._producer, tuple(partitions))
        error = yield from self._error_of_partitions(self._coordinator, request)
        return error is ErrorCode.NONE

    def _offset(self) -> Steps:
        """The committed offset of the copies, which no transaction may change any more."""
        partition = self._topics.partitions[0]
        request = OffsetFetchRequest((OffsetFetchGroup(GROUP, (partition,)),), require_stable=True)

        def errors(response: Any) -> Sequence[ErrorCode]:
            (group,) = response.groups
            return (ErrorCode.UNSTABLE_OFFSET_COMMIT,) if group.unstable else (group.error,)

        response = yield from self._call(self._group_coordinator, request, errors)
        ((_, value),) = response.groups[0].offsets
        return max(0, value.offset)

    def _write(self, name: str, partition: TopicPartition, value: str) -> Steps:
        """Write a record until it is acknowledged; False if it is refused, None if its process gives it up while it is
        on its way."""
        sequence = self._sequences.get(partition, 0)
        request = self._produce(name, partition, value)
        if self._misuses and self._choices.random() < 0.3:
            yield from self._write_without_acks_all(name, value, request)
        if self._choices.random() < 0.1:
            known = self._metadata.partitions.get(partition)
            if known is not None and known.state.leader != NO_LEADER:
                yield Call(known.state.leader, (request,), self._choices.randint(1, 60))
                return None
        find = partial(self._metadata.leader_of, partition)
        response = yield from self._call(find, request, lambda found: (found.partitions[0].error,))
        if response.partitions[0].error is not ErrorCode.NONE:
            return False
        self._sequences[partition] = sequence + 1
        self._history.add(TransactionRecordWritten(*self._where(), self._name, name, value))
        return True

    def _write_without_acks_all(self, name: str, value: str, request: TransactionalProduce) -> Steps:
        """Try what a producer of transactions may not."""
        known = self._metadata.partitions.get(request.partitions[0].partition)
        if known is not None and known.state.leader != NO_LEADER:
            (response,) = yield Call(known.state.leader, (replace(request, acks=1),), self._settings.request_ms)
            if response is not None and response.partitions[0].error is ErrorCode.NONE:
                self._history.add(TransactionRecordWritten(*self._where(), self._name, name, value, acks=1))

    def _send_at_once(self, name: str, values: Sequence[tuple[TopicPartition, str]]) -> Steps:
        """Send the first record of each partition, all that one leader has without waiting in between; `_write` sends
        each again until it is acknowledged."""
        requests: dict[int, list[TransactionalProduce]] = {}
        for partition, value in dict(reversed(values)).items():
            known = self._metadata.partitions.get(partition)
            if known is not None and known.state.leader != NO_LEADER:
                requests.setdefault(known.state.leader, []).append(self._produce(name, partition, value))
        for leader, together in requests.items():
            yield Call(leader, tuple(together), self._settings.request_ms)

    def _produce(self, name: str, partition: TopicPartition, value: str) -> TransactionalProduce:
        """The request that writes the partition's next record."""
        records = self._codec.encode(
            *self._producer,
            self._sequences.get(partition, 0),
            [value.encode()],
            self._history.now_ms(),
            transactional=True,
        )
        timeout_ms = self._settings.request_ms * 3 // 4
        self._history.add(TransactionRecordSent(*self._where(), self._name, name, partition, value))
        return TransactionalProduce(-1, timeout_ms, (ProducePartition(partition, records),), self._id, self._is_second)

    def _commit_offset(self, offset: int) -> Steps:
        if not self._is_second:
            error = yield from self._error(self._coordinator, AddOffsetsToTxnRequest(self._id, *self._producer, GROUP))
            if error is not ErrorCode.NONE:
                return False
        commits = (CommitPartition(self._topics.partitions[0], offset),)
        request = TxnOffsetCommitRequest(
            self._id, GROUP, *self._producer, NO_GENERATION, "", None, commits, self._is_second
        )
        if self._membership is not None:
            return (yield from self._commit_as_member(request, self._membership))
        error = yield from self._error_of_partitions(self._group_coordinator, request)
        return error is ErrorCode.NONE

    def _commit_as_member(self, request: TxnOffsetCommitRequest, membership: GroupMembership) -> Steps:
        """Commit in the member's generation; perhaps in the one before first, which is refused, and perhaps in another
        that it has just joined, before that is assigned."""
        if membership.former != NO_GENERATION and self._choices.random() < 0.5:
            yield from self._commit_as_former(request, membership)
        rejoins = self._choices.random() < 0.3 and (yield from membership.join())
        request = replace(request, generation_id=membership.generation, member_id=membership.member_id)
        error = yield from self._error_of_partitions(self._group_coordinator, request)
        if rejoins:
            yield from membership.synchronize()
        return error is ErrorCode.NONE

    def _commit_as_former(self, request: TxnOffsetCommitRequest, membership: GroupMembership) -> Steps:
        generation, latest = membership.former, membership.assigned
        request = replace(request, generation_id=generation, member_id=membership.member_id)
        coordinator = self._group_coordinator()
        if coordinator != NO_LEADER:
            (response,) = yield Call(coordinator, (request,), self._settings.request_ms)
            if response is not None:
                ((_, error),) = response.partitions
                self._history.add(
                    TransactionalCommit(*self._where(), self._name, self._id, generation, latest, error.name)
                )

    def _end(self, name: str, committed: bool) -> Steps:
        self._history.add(TransactionEnding(*self._where(), self._name, name, committed))
        request = EndTxnRequest(self._id, *self._producer, committed, self._is_second)
        response = yield from self._call(self._coordinator, request, lambda found: (found.error,), hasty=self._hasty)
        error: ErrorCode = response.error
        self._history.add(TransactionEnded(*self._where(), self._name, name, committed, error.name))
        if error is ErrorCode.NONE and self._is_second:
            self._producer = response.producer_id, response.producer_epoch
            self._sequences = {}
            self._history.add(ProducerBegun(*self._where(), self._name, self._id, *self._producer))
        return error is ErrorCode.NONE


def _partition_errors(response: Any) -> Sequence[ErrorCode]:
    return [error for _, error in response.partitions]


def stable_reader(context: ClientContext, topics: TransactionTopics, writers: Sequence[TransactionalProcess]) -> Client:
    """Read the committed transactions of all partitions, until the switch is off, the writers are done, and nothing is
    left undecided."""
    metadata = ClientMetadata(context, internal=True)
    readers = [_StableReader(metadata, context.codec, partition) for partition in topics.partitions]
    while True:
        yield from metadata.refresh()
        last = context.switch.off and all(writer.done for writer in writers)
        finished = True
        for reader in readers:
            finished = (yield from reader.poll()) and finished
        if last and finished:
            return
        yield Sleep(context.random.randint(1, context.settings.pause_ms))


class _StableReader:
    """A reader's position in one partition."""

    def __init__(self, metadata: ClientMetadata, codec: RecordCodec, partition: TopicPartition) -> None:
        self._view = metadata
        self._codec = codec
        self._partition = partition
        self._position = 0

    def poll(self) -> Steps:
        """Fetch once; whether all that is committed is decided, and has been read."""
        known = self._view.partitions.get(self._partition)
        if known is None or known.state.leader == NO_LEADER:
            return False
        fetch = FetchPartition(
            self._partition, known.topic_id, known.state.leader_epoch, self._position, max_bytes=1 << 20
        )
        request = FetchRequest(CONSUMER, -1, 0, 1, 1 << 20, (fetch,), isolation_level=READ_COMMITTED)
        (response,) = yield Call(known.state.leader, (request,), self._view.settings.request_ms)
        if response is None or response.error is not ErrorCode.NONE or not response.partitions:
            return False
        found: FetchedPartition = response.partitions[0]
        if found.error is ErrorCode.OFFSET_OUT_OF_RANGE:  # the log has lost records, which the other checkers judge
            self._position = 0
        if found.error is not ErrorCode.NONE or found.high_watermark < 0:
            return False
        stable = found.last_stable_offset if found.last_stable_offset >= 0 else found.high_watermark
        history, name = self._view.history, self._view.name
        history.add(StableEnd(history.now_ms(), self._partition, known.topic_id, name, found.leader_epoch, stable))
        self._take(known.topic_id, found)
        return self._position >= found.high_watermark and stable == found.high_watermark

    def _take(self, topic_id: str, found: FetchedPartition) -> None:
        """The records, without those of aborted transactions. Source: KIP-98, the consumer's part."""
        history = self._view.history
        begun = {batch.base_offset: batch.producer_id for batch in self._codec.transactional(found.records)}
        markers = {marker.offset: marker for marker in self._codec.markers(found.records)}
        aborted = sorted(found.aborted, key=lambda each: each[1])
        skipped: set[int] = set()
        producer_id = -1
        for record in self._codec.decode(found.records):
            producer_id = begun.get(record.offset, producer_id)
            while aborted and aborted[0][1] <= record.offset:
                skipped.add(aborted.pop(0)[0])
            marker = markers.get(record.offset)
            if marker is not None:
                if not marker.committed:
                    skipped.discard(marker.producer_id)
            elif producer_id not in skipped and record.offset >= self._position:
                history.add(
                    StableRead(
                        history.now_ms(),
                        self._partition,
                        topic_id,
                        self._view.name,
                        record.offset,
                        record.value.decode(),
                    )
                )
            self._position = max(self._position, record.offset + 1)
