"""Errors of the bulk client, `Consumer` and `Producer`, beside those of kreplog.errors.

`partition` is set where an error concerns one. Whatever the message says to retry has been retried already, for as long
as the client's settings allow.
"""

from __future__ import annotations

from kreplog.errors import ErrorCode, KreplogError


class BrokersUnreachableError(KreplogError):
    """No broker of the cluster answered within the time allowed; the message names the addresses and what failed."""

    kafka_code = ErrorCode.BROKER_NOT_AVAILABLE


class UnsupportedBrokerError(KreplogError):
    """A broker offers no version of a request that this client can send."""

    kafka_code = ErrorCode.UNSUPPORTED_VERSION


class UnknownTopicError(KreplogError):
    """The topic or partition does not exist, by the metadata of the cluster."""

    kafka_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class TopicAuthorizationError(KreplogError):
    """The principal of this client may not read, write or describe the topic: it needs an ACL, or another login."""

    kafka_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class TopicRecreatedError(KreplogError):
    """The topic was deleted and created again under its name: offsets of the old topic mean nothing in the new one.

    topic_id: of the topic that was read or written. new_topic_id: of the topic that has the name now, "" for none.
    """

    kafka_code = ErrorCode.UNKNOWN_TOPIC_ID

    def __init__(self, message: str, *, partition: str, topic_id: str, new_topic_id: str) -> None:
        super().__init__(message, partition=partition)
        self.topic_id = topic_id
        self.new_topic_id = new_topic_id


class PartitionUnavailableError(KreplogError):
    """The partition has had no leader that serves it for as long as the client retries; `code` is the last error."""

    kafka_code = ErrorCode.LEADER_NOT_AVAILABLE

    def __init__(self, message: str, *, partition: str, code: ErrorCode = ErrorCode.LEADER_NOT_AVAILABLE) -> None:
        super().__init__(message, partition=partition)
        self.code = code


class FetchTimeoutError(KreplogError):
    """A bounded read made no progress for longer than its timeout, though the leader answers: its end is not committed.

    offset: of the next row.
    """

    kafka_code = ErrorCode.REQUEST_TIMED_OUT


class GroupRequestError(KreplogError):
    """The coordinator of a group refused a request, or could not be found or reached in time.

    group: its id. code: the error, which Kafka's protocol guide explains."""

    kafka_code = ErrorCode.COORDINATOR_NOT_AVAILABLE

    def __init__(self, message: str, *, group: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.group = group
        self.code = code


class TransactionRequestError(KreplogError):
    """The coordinator of a transactional id refused a request, or could not be found or reached in time.

    transactional_id: "" for all of a broker. code: the error, which Kafka's protocol guide explains."""

    kafka_code = ErrorCode.COORDINATOR_NOT_AVAILABLE

    def __init__(self, message: str, *, transactional_id: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.code = code


class OffsetCommitError(GroupRequestError):
    """A group coordinator did not take committed offsets."""


class ProduceError(KreplogError):
    """Records were not written, or it is not known whether they were; the producer takes no more.

    code: the broker's error. appended: what is known to be written of the call that failed, as append_arrow returns it.
    """

    def __init__(self, message: str, *, partition: str, code: ErrorCode, appended: tuple[object, ...] = ()) -> None:
        super().__init__(message, partition=partition)
        self.code = code
        self.appended = appended
