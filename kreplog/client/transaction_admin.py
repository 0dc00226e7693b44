"""Transactions for tools: list and describe them, and abort one whose producer is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from kreplog.client.bulk_errors import TransactionRequestError
from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.coordinator_requests import TRANSACTION, Refusal, call_coordinator, from_all_coordinators
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey

_ABORT_TIMEOUT_MS = 60_000
"""Transaction time-out of the producer that takes the place of the one before; it begins no transaction."""


class TransactionOverview(NamedTuple):
    transactional_id: str
    state: str
    producer_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator describes it. start_ms: milliseconds since 1970, -1 where no transaction is
    open. partitions: to which it has written."""

    transactional_id: str
    state: str
    timeout_ms: int
    start_ms: int
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


def list_transactions(cluster: ClusterConnections, deadline: float) -> list[TransactionOverview]:
    """The transactional ids of all coordinators, by name. Raises TransactionRequestError, BrokersUnreachableError,
    UnsupportedBrokerError."""

    def listed(broker_id: int) -> list[TransactionOverview] | ErrorCode:
        filters: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
        response = cluster.call_leader(broker_id, ApiKey.LIST_TRANSACTIONS, deadline, **filters)
        if response.error_code:
            return generic.error_of(response.error_code)
        return [
            TransactionOverview(found.transactional_id, found.transaction_state, found.producer_id)
            for found in response.transaction_states
        ]

    found, refused = from_all_coordinators(cluster, deadline, listed)
    if refused is not None:
        broker_id, code = refused
        text = f"broker {broker_id} does not list its transactions: {code.name}"
        raise TransactionRequestError(text, transactional_id="", code=code)
    return sorted(found)


def describe_transaction(
    cluster: ClusterConnections, transactional_id: str, deadline: float
) -> TransactionDescription | None:
    """The state of a transactional id; None if no coordinator has it. Raises as call_coordinator."""

    def refusal(response: Any) -> Refusal | None:
        code = generic.error_of(response.transaction_states[0].error_code)
        if code in (ErrorCode.NONE, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND):
            return None
        return code, "its coordinator does not describe it"

    response, _ = call_coordinator(
        cluster,
        transactional_id,
        ApiKey.DESCRIBE_TRANSACTIONS,
        deadline,
        refusal,
        kind=TRANSACTION,
        transactional_ids=[transactional_id],
    )
    (found,) = response.transaction_states
    if found.error_code:
        return None
    return TransactionDescription(
        transactional_id,
        found.transaction_state,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms,
        found.producer_id,
        found.producer_epoch,
        tuple(TopicPartition(topic.topic, number) for topic in found.topics for number in topic.partitions),
    )


def abort_transaction(cluster: ClusterConnections, transactional_id: str, deadline: float) -> None:
    """Abort the id's open transaction by taking the place of its producer, which is fenced. The id exists.

    Returns once every partition has its marker. Raises as call_coordinator."""

    def refusal(response: Any) -> Refusal | None:
        code = generic.error_of(response.error_code)
        return None if code is ErrorCode.NONE else (code, "its coordinator does not abort it")

    call_coordinator(
        cluster,
        transactional_id,
        ApiKey.INIT_PRODUCER_ID,
        deadline,
        refusal,
        kind=TRANSACTION,
        transactional_id=transactional_id,
        transaction_timeout_ms=_ABORT_TIMEOUT_MS,
        producer_id=-1,
        producer_epoch=-1,
    )
