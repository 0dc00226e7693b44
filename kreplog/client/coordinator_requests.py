"""Requests to the coordinator of a group, sent again to the next one while the group moves or is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kreplog.client.broker_client import Address
from kreplog.client.bulk_errors import GroupRequestError
from kreplog.client.cluster_connections import RETRY_BACKOFF_S, ClusterConnections
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey

RETRIABLE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
"""Errors of a coordinator that pass."""

_GROUP = 0

Refusal = tuple[ErrorCode, str]
"""An error of a response, and what was refused; for the message."""


@dataclass(frozen=True, slots=True)
class _Answered:
    response: Any
    address: Address


def call_coordinator(
    cluster: ClusterConnections,
    group: str,
    api: ApiKey,
    deadline: float,
    refusal: Callable[[Any], Refusal | None],
    /,
    failure: type[GroupRequestError] = GroupRequestError,
    **fields: Any,
) -> tuple[Any, Address]:
    """The response of the group's coordinator, and the address of that.

    refusal: the error in a response, None for none. Errors that pass are retried until `deadline` (time.monotonic).
    Raises `failure`, BrokersUnreachableError, UnsupportedBrokerError where brokers have no groups."""
    cluster.refresh((), deadline)
    cluster.version_of_any(api, deadline)
    while True:
        found = _try(cluster, group, api, deadline, refusal, fields)
        if isinstance(found, _Answered):
            return found.response, found.address
        code, text = found
        if code not in RETRIABLE or time.monotonic() + RETRY_BACKOFF_S >= deadline:
            raise failure(f"group {group}: {text}: {code.name}", group=group, code=code)
        time.sleep(RETRY_BACKOFF_S)  # the coordinator may be moving, which clients are not notified of


def _try(
    cluster: ClusterConnections,
    group: str,
    api: ApiKey,
    deadline: float,
    refusal: Callable[[Any], Refusal | None],
    fields: dict[str, Any],
) -> _Answered | Refusal:
    try:
        found = cluster.call_any(ApiKey.FIND_COORDINATOR, deadline, key=group, key_type=_GROUP)
        if found.error_code:
            return generic.error_of(found.error_code), "the brokers name no coordinator"
        address = _address(found)
        response = cluster.call_at(address, api, deadline, **fields)
    except OSError as error:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator cannot be reached ({error})"
    return refusal(response) or _Answered(response, address)


def _address(found: Any) -> Address:
    if not found.host or not 0 < found.port < 65536:
        raise PeerProtocolError(f"a coordinator at {found.host!r}:{found.port}")
    return found.host, found.port
