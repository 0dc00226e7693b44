"""Messages of transactions: requests of producers to the coordinator, and the records of its log.

The log of a transactional id is a partition of `__transaction_state`; its leader is the id's coordinator. Source: Kafka
protocol guide; KIP-98, KIP-360.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

TRANSACTIONS_TOPIC = "__transaction_state"
"""The internal topic with the state of all transactional ids."""

INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Topics that coordinators write to, and nobody else."""

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1

LAST_EPOCH = 2**15 - 2
"""After this epoch a producer gets another id; the last one is left to fence it."""


def partition_of_transaction(transactional_id: str, partitions: int) -> int:
    """The partition of `__transaction_state` that has the id. Source: Kafka, TransactionStateManager.partitionFor."""
    return partition_of_group(transactional_id, partitions)


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    """Begin as the one producer of a transactional id: earlier ones are fenced.

    producer_id, producer_epoch: those that the producer has, to go on after an error (KIP-360); else NO_PRODUCER_ID.
    new_producer_id: one that nobody has, for an id that has none yet, or whose epochs are used up.
    """

    transactional_id: str
    timeout_ms: int
    new_producer_id: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class InitProducerIdResponse:
    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnRequest:
    """The transaction, which begins with this if none is open, writes to these partitions too.

    from_leader: it comes from the leader of a partition, not from the producer. verify_only: nothing is added, only
    whether they have been is answered (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    from_leader: bool = False
    verify_only: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitionsToTxnResponse:
    """The response to an AddPartitionsToTxn. coordinator_epoch: of the coordinator that answers a leader, -1
    otherwise."""

    partitions: tuple[tuple[TopicPartition, ErrorCode], ...]
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnRequest:
    """The transaction, which begins with this if none is open, commits offsets of this group too."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


@dataclass(frozen=True, slots=True)
class AddOffsetsToTxnResponse:
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class EndTxnRequest:
    """A producer's request to commit or abort its transaction. bumps_epoch: the producer goes on in another epoch,
    under which nothing late of this transaction is accepted (KIP-890). new_producer_id: one that nobody has, for a
    producer whose epochs are used up; else NO_PRODUCER_ID."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    bumps_epoch: bool = False
    new_producer_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True)
class EndTxnResponse:
    """The response to an EndTxn. producer_id, producer_epoch: with which the producer goes on, of a request that bumps
    the epoch."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True)
class DescribeTransactionsRequest:
    transactional_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """A transactional id in the response to a DescribeTransactions. state: Kafka's name of it. start_ms: wall-clock
    time, -1 where no transaction is open."""

    error: ErrorCode
    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = -1
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeTransactionsResponse:
    transactions: tuple[DescribedTransaction, ...]


@dataclass(frozen=True, slots=True)
class ListTransactionsRequest:
    """All transactional ids of a coordinator: in one of the states and of one of the producer ids where any are given,
    with a transaction that has been open for more than longer_than_ms, where that is not negative, and that as a whole
    match `pattern`, a regular expression, where that is not empty."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    longer_than_ms: int = -1
    pattern: str = ""


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class ListTransactionsResponse:
    """The transactional ids of one coordinator. unknown_states: those of the request that are no states."""

    error: ErrorCode
    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()


TransactionQuery = DescribeTransactionsRequest | ListTransactionsRequest
"""A request to a coordinator that changes nothing."""

TransactionRequest = InitProducerIdRequest | AddPartitionsToTxnRequest | AddOffsetsToTxnRequest | EndTxnRequest
"""A request to the coordinator of a transactional id."""

TransactionResponse = (
    InitProducerIdResponse
    | AddPartitionsToTxnResponse
    | AddOffsetsToTxnResponse
    | EndTxnResponse
    | DescribeTransactionsResponse
    | ListTransactionsResponse
)


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The state of a transactional id as it is stored. state: the number of a TransactionState. update_ms, start_ms:
    wall-clock time of this record, and of the transaction's begin, -1 for none. partitions: to which it writes.
    client_version: of the producer's transaction protocol, 2 if its epoch is bumped with every transaction (KIP-890).
    previous_producer_id: the id before this one, and next_producer_id: the one after this transaction, of a producer
    whose epochs are used up; else NO_PRODUCER_ID."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: int
    partitions: tuple[TopicPartition, ...]
    update_ms: int
    start_ms: int
    client_version: int = 0
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID


class TransactionRecord(NamedTuple):
    """A record of `__transaction_state`. value: None for a tombstone."""

    transactional_id: str
    value: TransactionMetadata | None
