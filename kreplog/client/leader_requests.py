"""Requests about partitions that their leaders answer at once, sent again to new leaders after a change.

`list_offsets` and `epoch_end_offsets` are such requests: what is requested of each partition differs, not how leaders
are found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from kreplog.client.bulk_errors import PartitionUnavailableError
from kreplog.client.cluster_connections import RETRY_BACKOFF_S, ClusterConnections, by_leader, unauthorized
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER, TopicPartition
from kreplog.wire.versions import ApiKey

_Result = TypeVar("_Result")


def request_from_leaders(
    cluster: ClusterConnections,
    partitions: Sequence[TopicPartition],
    api: ApiKey,
    fields: Callable[[Sequence[TopicPartition]], dict[str, Any]],
    results: Callable[[Any], Iterable[tuple[TopicPartition, ErrorCode, _Result]]],
    purpose: str,
    deadline: float,
) -> dict[TopicPartition, _Result]:
    """The result of each partition, from whichever broker leads it.

    fields: of the request to the leader of these partitions. results: of its response. purpose: for the message, as in
    "lists its offsets". Every error of a leader but a denial is taken for one that passes: leaders are looked up
    again until `deadline` (time.monotonic). Raises UnknownTopicError, TopicAuthorizationError,
    PartitionUnavailableError, BrokersUnreachableError, UnsupportedBrokerError."""
    found: dict[TopicPartition, _Result] = {}
    waiting = dict.fromkeys(partitions)
    errors: dict[TopicPartition, ErrorCode] = {}
    cluster.require(waiting, deadline)
    while True:
        for broker_id, led in by_leader(cluster.metadata, waiting).items():
            if broker_id == NO_LEADER:
                continue
            try:
                response = cluster.call_leader(broker_id, api, deadline, **fields(led))
            except OSError:
                errors.update(dict.fromkeys(led, ErrorCode.BROKER_NOT_AVAILABLE))
                continue
            for at, error, result in results(response):
                if at not in waiting:
                    continue
                if error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    raise unauthorized(at)
                if error is ErrorCode.NONE:
                    found[at] = result
                else:
                    errors[at] = error
        waiting = {at: None for at in waiting if at not in found}
        if not waiting:
            return {at: found[at] for at in partitions}
        if time.monotonic() + RETRY_BACKOFF_S >= deadline:
            at = next(iter(waiting))
            code = errors.get(at, ErrorCode.LEADER_NOT_AVAILABLE)
            raise PartitionUnavailableError(f"{at}: no leader {purpose} ({code.name})", partition=str(at), code=code)
        for at in waiting:
            cluster.metadata = cluster.metadata.without_leader(at)
        time.sleep(RETRY_BACKOFF_S)  # an election may be under way, which clients are not notified of
        cluster.refresh({at.topic for at in waiting}, deadline)
        cluster.require(waiting, deadline)
