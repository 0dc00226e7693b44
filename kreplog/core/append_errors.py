"""Errors of a coordinator's appends to its internal topic, as the requests that needed them report them."""

from __future__ import annotations

from kreplog.errors import ErrorCode

_AS_REPORTED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.TRANSACTION_ABORTABLE,
}
"""Error of a produce -> of the request that needed it. Source: Kafka, GroupMetadataManager.appendGroupRecords."""


def reported(error: ErrorCode) -> ErrorCode:
    """The error of a request whose append failed with `error`; all that is not retriable is UNKNOWN_SERVER_ERROR."""
    if error is ErrorCode.NONE:
        return error
    return _AS_REPORTED.get(error, ErrorCode.UNKNOWN_SERVER_ERROR)
