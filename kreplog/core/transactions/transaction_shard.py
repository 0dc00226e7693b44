"""TransactionShard: the transactional ids of one partition of `__transaction_state`, which this broker leads.

As a shard of groups it is loaded from its log, up to where the leader's epoch begins, before it answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kreplog.core.memory import MemoryAccount, text_size
from kreplog.core.timers import Deadline
from kreplog.core.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    TransactionMetadata,
    TransactionRecord,
)
from kreplog.core.transactions.transaction_states import DECIDED, TRANSACTION_TRANSITIONS, TransactionState
from kreplog.errors import check
from kreplog.types import TopicPartition

ACCOUNT = "transactions"
"""The name of the memory of transactional ids in the account."""

ID_BYTES = 1000
"""The approximate memory of a transactional id, besides its text."""

PARTITION_BYTES = 200
"""The approximate memory of a partition of a transaction, besides the name of its topic."""


class PartitionsToAdd(NamedTuple):
    """Partitions that a request adds to the transaction of its producer."""

    reply_to: Hashable
    request: AddPartitionsToTxnRequest | AddOffsetsToTxnRequest
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True, eq=False)
class TransactionalId:
    """A transactional id. stored: its state as of its last committed record. pending: a record of it is being
    appended, and until that is committed nothing else is accepted. parked: requests that add partitions and wait until
    it is not busy. patience: the deadline of these. former: the id and epoch of its producer before they were renewed
    (KIP-360), None for none. unmarked: partitions that have no marker yet. absent_since: those of them that are in no
    metadata, and since when. fenced: those that have a marker of a later coordinator. in_flight: requests with markers
    that are not answered. deadline: of the transaction, or of the next attempt to write markers. charged: the memory
    that it is charged; while a record of it is being appended more than its size, if the record has more partitions."""

    transactional_id: str
    stored: TransactionMetadata
    deadline: Deadline
    patience: Deadline
    pending: bool = False
    parked: list[PartitionsToAdd] = field(default_factory=list)
    former: tuple[int, int] | None = None
    unmarked: set[TopicPartition] = field(default_factory=set)
    absent_since: dict[TopicPartition, int] = field(default_factory=dict)
    fenced: frozenset[TopicPartition] = frozenset()
    in_flight: int = 0
    charged: int = 0

    @property
    def size(self) -> int:
        """The memory that it takes, about."""
        return self.size_with(self.stored.partitions)

    def size_with(self, partitions: tuple[TopicPartition, ...]) -> int:
        """The memory that it would take with these partitions."""
        names = sum(PARTITION_BYTES + text_size(partition.topic) for partition in partitions)
        return ID_BYTES + text_size(self.transactional_id) + names

    @property
    def state(self) -> TransactionState:
        return TransactionState(self.stored.state)

    @property
    def is_busy(self) -> bool:
        """Whether a record of it is being appended, or the markers of a decided transaction are being written."""
        return self.pending or self.state in DECIDED

    def changed(self, state: TransactionState, update_ms: int, **fields: object) -> TransactionMetadata:
        """The next state, which becomes the stored one once its record is committed."""
        check(self.state in TRANSACTION_TRANSITIONS[state], f"{self.transactional_id}: {self.state} -> {state}")
        return replace(self.stored, state=int(state), update_ms=update_ms, **fields)  # type: ignore[arg-type]


class TransactionShard:
    """The transactional ids whose records are in one partition. partition: of `__transaction_state`. leader_epoch: in
    which this broker leads it, the coordinator epoch of markers. end: the offset that must be loaded. next_offset: that
    of the next record to load, -1 for the log start. active: it is loaded."""

    def __init__(self, partition: TopicPartition, leader_epoch: int, end: int, memory: MemoryAccount) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.end = end
        self.next_offset = -1
        self.active = False
        self.transactions: dict[str, TransactionalId] = {}
        self.loaded: dict[str, TransactionMetadata] = {}
        self._memory = memory

    def load(self, records: Iterable[tuple[int, TransactionRecord]]) -> None:
        """Take records of the log, in order."""
        for _, record in records:
            if record.value is None:
                self.loaded.pop(record.transactional_id, None)
            else:
                self.loaded[record.transactional_id] = record.value

    def add(self, transaction: TransactionalId, *, force: bool = False) -> bool:
        """Add an id; False, with nothing added, if the memory for transactions is used up."""
        if not self._charge(transaction, transaction.size, force=force):
            return False
        self.transactions[transaction.transactional_id] = transaction
        return True

    def reserve(self, transaction: TransactionalId, partitions: tuple[TopicPartition, ...]) -> bool:
        """Charge an id what it takes with these partitions, a record of which is to be appended; False, with nothing
        charged, if the memory for transactions is used up."""
        return self._charge(transaction, max(transaction.charged, transaction.size_with(partitions)))

    def settle(self, transaction: TransactionalId) -> None:
        """Charge an id what it takes: a record of it has been appended, or has not."""
        if self.transactions.get(transaction.transactional_id) is transaction:
            self._charge(transaction, transaction.size, force=True)

    def _charge(self, transaction: TransactionalId, size: int, *, force: bool = False) -> bool:
        growth = size - transaction.charged
        if growth > 0 and not self._memory.reserve(ACCOUNT, growth, force=force):
            return False
        if growth < 0:
            self._memory.release(ACCOUNT, -growth)
        transaction.charged = size
        return True

    def remove(self, transactional_id: str) -> None:
        transaction = self.transactions.pop(transactional_id, None)
        if transaction is not None:
            self._charge(transaction, 0)

    def close(self) -> None:
        for transaction in list(self.transactions.values()):
            transaction.deadline.cancel()
            transaction.patience.cancel()
            self.remove(transaction.transactional_id)
