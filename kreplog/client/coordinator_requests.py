"""Requests to the coordinator of a group or a transactional id, sent again while that moves or is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kreplog.client.broker_client import Address
from kreplog.client.bulk_errors import GroupRequestError, TransactionRequestError
from kreplog.client.cluster_connections import RETRY_BACKOFF_S, ClusterConnections
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.types import TopicPartition
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey

RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors of a coordinator that pass."""

GROUP = 0
TRANSACTION = 1
"""Coordinator types of FindCoordinator."""

T = TypeVar("T")

Refusal = tuple[ErrorCode, str]
"""An error of a response, and what was refused; for the message."""


@dataclass(frozen=True, slots=True)
class _Answered:
    response: Any
    address: Address


def call_coordinator(
    cluster: ClusterConnections,
    name: str,
    api: ApiKey,
    deadline: float,
    refusal: Callable[[Any], Refusal | None],
    /,
    failure: type[GroupRequestError] = GroupRequestError,
    kind: int = GROUP,
    **fields: Any,
) -> tuple[Any, Address]:
    """The response of the coordinator of the group, or of the transactional id, `name`, and the address of that.

    refusal: the error in a response, None for none. Errors that pass are retried until `deadline` (time.monotonic).
    Raises `failure`, BrokersUnreachableError, UnsupportedBrokerError where brokers have no groups."""
    cluster.refresh((), deadline)
    cluster.version_of_any(api, deadline)
    while True:
        found = _try(cluster, (kind, name), api, deadline, refusal, fields)
        if isinstance(found, _Answered):
            return found.response, found.address
        code, text = found
        if code not in RETRIABLE or time.monotonic() + RETRY_BACKOFF_S >= deadline:
            if kind == TRANSACTION:
                message = f"transactional id {name}: {text}: {code.name}"
                raise TransactionRequestError(message, transactional_id=name, code=code)
            raise failure(f"group {name}: {text}: {code.name}", group=name, code=code)
        time.sleep(RETRY_BACKOFF_S)  # the coordinator may be moving, which clients are not notified of


def _try(
    cluster: ClusterConnections,
    key: tuple[int, str],
    api: ApiKey,
    deadline: float,
    refusal: Callable[[Any], Refusal | None],
    fields: dict[str, Any],
) -> _Answered | Refusal:
    try:
        kind, name = key
        found = cluster.call_any(ApiKey.FIND_COORDINATOR, deadline, key=name, key_type=kind)
        if found.error_code:
            return generic.error_of(found.error_code), "the brokers name no coordinator"
        address = _address(found)
        response = cluster.call_at(address, api, deadline, **fields)
    except OSError as error:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator cannot be reached ({error})"
    return refusal(response) or _Answered(response, address)


def from_all_coordinators(
    cluster: ClusterConnections, deadline: float, listed_by: Callable[[int], list[T] | ErrorCode]
) -> tuple[list[T], tuple[int, ErrorCode] | None]:
    """The listings of all brokers, or the first broker that refuses its own and the error. One that is loading, or
    cannot be reached, is retried until `deadline` (time.monotonic). Raises BrokersUnreachableError,
    UnsupportedBrokerError."""
    while True:
        found: list[T] = []
        failed: tuple[int, ErrorCode] | None = None
        for broker_id in list(cluster.refresh((), deadline).brokers):
            try:
                listed = listed_by(broker_id)
            except OSError:
                listed = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if isinstance(listed, ErrorCode):
                failed = broker_id, listed
                break
            found += listed
        if failed is None or failed[1] not in RETRIABLE or time.monotonic() + RETRY_BACKOFF_S >= deadline:
            return found, failed
        time.sleep(RETRY_BACKOFF_S)  # they are being loaded, which clients are not notified of


def refused_offsets(response: Any) -> Refusal | None:
    """The refusal of offsets in a coordinator's response to OffsetCommit, TxnOffsetCommit or OffsetFetch."""
    if getattr(response, "error_code", 0):
        return generic.error_of(response.error_code), "the coordinator refuses offsets"
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code:
                at = TopicPartition(topic.name, partition.partition_index)
                return generic.error_of(partition.error_code), f"the coordinator refuses the offset of {at}"
    return None


def _address(found: Any) -> Address:
    if not found.host or not 0 < found.port < 65536:
        raise PeerProtocolError(f"a coordinator at {found.host!r}:{found.port}")
    return found.host, found.port
