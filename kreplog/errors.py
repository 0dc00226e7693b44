"""All exceptions that kreplog raises, each with a Kafka error code.

The class is the kind of failure; the message has the cause, the place, and what to do next; the fields have the same
facts for programs. Whether to retry is the caller's decision.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from typing import Any, ClassVar


class ErrorCode(IntEnum):
    """The error codes of Kafka's protocol that kreplog returns. Source: Kafka protocol guide, error codes."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    INVALID_REGULAR_EXPRESSION = 128


class KreplogError(Exception):
    """Base of all kreplog errors.

    Fields are None where they do not apply: `partition` is "<topic>-<partition>", `offset` counts records, `path` is a
    file or directory, `position` counts bytes from the start of that file.
    """

    kafka_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(
        self,
        message: str,
        *,
        partition: str | None = None,
        offset: int | None = None,
        path: str | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.path = path
        self.position = position

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[KreplogError], args: tuple[Any, ...], fields: dict[str, Any]) -> KreplogError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class UsageError(KreplogError, ValueError):
    """The call was used wrongly; nothing was changed."""

    kafka_code = ErrorCode.INVALID_REQUEST


class ArgumentTypeError(UsageError, TypeError):
    """An argument has a type that the call does not accept; nothing was changed."""


class InvalidTopicError(UsageError):
    """The name of a topic or partition directory breaks Kafka's rules: 1 to 249 of [a-zA-Z0-9._-], not "." or "..", nor
    one that differs from another topic's only in `.` and `_`, when a broker creates it."""

    kafka_code = ErrorCode.INVALID_TOPIC_EXCEPTION


class InvalidReplicationFactorError(UsageError):
    """The replication factor is below 1 or above the number of brokers; nothing was changed."""

    kafka_code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidPartitionsError(UsageError):
    """The number of partitions is below 1, above what is allowed, not greater than the one that the topic has, or not
    that one where it is to be; or the topic is internal. Nothing was changed.

    existing: how many the topic has, None where there is none."""

    kafka_code = ErrorCode.INVALID_PARTITIONS

    def __init__(self, message: str, *, existing: int | None = None, path: str | None = None) -> None:
        super().__init__(message, path=path)
        self.existing = existing


class InvalidReplicaAssignmentError(UsageError):
    """A replica assignment has a broker twice, an unknown broker, or none; nothing was changed. partition: which."""

    kafka_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class RecordTooLargeError(UsageError):
    """A record or batch is larger than max_message_bytes; nothing was written."""

    kafka_code = ErrorCode.MESSAGE_TOO_LARGE


class RecordBatchTooLargeError(UsageError):
    """A producer's batch is larger than segment_bytes, in a broker's log; nothing was written."""

    kafka_code = ErrorCode.RECORD_LIST_TOO_LARGE


class InvalidRecordError(UsageError):
    """A record has no key, in a log that is compacted; nothing was written."""

    kafka_code = ErrorCode.INVALID_RECORD


class InvalidTimestampError(UsageError):
    """A producer's record is older or newer than the log allows; nothing was written."""

    kafka_code = ErrorCode.INVALID_TIMESTAMP


class RecordEncodeError(UsageError):
    """A codec does not take a key or value; nothing was written."""


class RecordDecodeError(KreplogError):
    """A codec does not take the key or value of a record that was read; the record itself is sound.

    field: "key" or "value". record: as it is stored, to be set aside.
    """

    kafka_code = ErrorCode.CORRUPT_MESSAGE

    def __init__(self, message: str, *, field: str, record: Any, partition: str, offset: int) -> None:
        super().__init__(message, partition=partition, offset=offset)
        self.field = field
        self.record = record


class SchemaRegistryError(KreplogError):
    """A schema registry cannot be reached, answers what it should not, or refuses a schema; nothing was written."""


class TooManyProducersError(KreplogError):
    """The partition has reached its limit of idempotent producers; nothing was written. Retriable."""

    kafka_code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class UnsupportedCompressionError(KreplogError):
    """The codec is unknown, or its package is not installed; the message names the extra to install."""

    kafka_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class PeerProtocolError(KreplogError):
    """A peer sent bytes that are not a Kafka message, or a request beyond the limits; it had no effect.

    `position` counts from the start of the decoded bytes. The connection must be closed: its framing is lost.
    """

    kafka_code = ErrorCode.INVALID_REQUEST


class AuthenticationError(KreplogError):
    """A peer has not proved who it is; nothing was done for it. On a broker the message is sent to the client."""

    kafka_code = ErrorCode.SASL_AUTHENTICATION_FAILED


class InvalidCredentialsError(AuthenticationError):
    """The name, the password or a message of the exchange is wrong. On a broker the message, which may show whether a
    user exists, is for its log alone."""


class UnsupportedMechanismError(UsageError):
    """There is no such SASL mechanism, or it is not enabled; nothing was changed."""

    kafka_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


class UnacceptableCredentialError(UsageError):
    """A user cannot have this name, number of iterations, salt or password; nothing was changed."""

    kafka_code = ErrorCode.UNACCEPTABLE_CREDENTIAL


class UnknownCredentialError(KreplogError):
    """There is no such user, or the user has no credential of the mechanism; nothing was changed."""

    kafka_code = ErrorCode.RESOURCE_NOT_FOUND


class DuplicateResourceError(UsageError):
    """A request names the same thing twice; nothing was changed."""

    kafka_code = ErrorCode.DUPLICATE_RESOURCE


class InvalidUpdateVersionError(UsageError):
    """A feature cannot be finalized at this level, or there is no such feature; nothing was changed."""

    kafka_code = ErrorCode.INVALID_UPDATE_VERSION


class RegistrationRefusedError(KreplogError):
    """A broker may not be part of its cluster as it is configured: to start it again does not help."""


class DuplicateBrokerIdError(RegistrationRefusedError):
    """Another running broker has the id of this one."""


class UnsupportedFeatureError(RegistrationRefusedError):
    """This version of kreplog cannot run at the level of a feature that its cluster has finalized (KIP-584)."""

    kafka_code = ErrorCode.UNSUPPORTED_VERSION


class InvariantError(KreplogError):
    """An internal invariant of kreplog was violated, which is a bug. The state may be wrong: the process must stop."""


class OffsetOutOfRangeError(KreplogError):
    """The offset is below the log start offset or past the log end offset."""

    kafka_code = ErrorCode.OFFSET_OUT_OF_RANGE


class StorageError(KreplogError):
    """A file could not be read or written."""

    kafka_code = ErrorCode.KAFKA_STORAGE_ERROR


class DiskFullError(StorageError):
    """The file system, or this user's quota on it, has no space left (ENOSPC, EDQUOT)."""


class ResourceExhaustedError(StorageError):
    """No file descriptor, memory or address space is left (EMFILE, ENFILE, ENOMEM); nothing was changed. Retriable."""


class ReplicaRefusedError(StorageError):
    """The broker has no file descriptors for another replica, which was not created."""


class CorruptBatchError(StorageError):
    """Bytes are not a valid record batch. In a leader's response: fetch again; on the local disk: damage."""

    kafka_code = ErrorCode.CORRUPT_MESSAGE


class UnsupportedFormatError(CorruptBatchError):
    """A batch has a magic below 2: it was written by a Kafka before 0.11, or its magic byte is damaged."""

    kafka_code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class CorruptCheckpointError(StorageError):
    """A checkpoint or snapshot file cannot be parsed; callers fall back to a scan of the log."""


class LogFailedError(StorageError):
    """A write or fsync failed, now or earlier; the log refuses further writes until it is reopened. Reads continue."""


class PartitionDeletedError(StorageError):
    """The partition directory was deleted, and perhaps created again, since the log was opened to be read."""

    kafka_code = ErrorCode.UNKNOWN_TOPIC_ID


class LogTruncatedError(KreplogError):
    """Records that were read are no longer in the log: a truncation, or an unclean election (KIP-320), removed them.

    offset: where the logs part; what was read from it on is not in the log. None: not known.
    """

    kafka_code = ErrorCode.OFFSET_OUT_OF_RANGE


class WriterClosedError(KreplogError):
    """No process has the log open for writing, so the record that was waited for does not come. Retriable."""


class WriterDiedError(KreplogError):
    """The process that wrote the log ended without closing it; what it had committed can be read. Retriable, once
    another writer has opened the log."""


class LogLockedError(StorageError):
    """Another process has the partition directory open for writing; the message names it."""


class UnsupportedFileSystemError(StorageError):
    """A log or topic to be written is on a network file system whose locks hold on one host; nothing was changed."""


class NetworkFileSystemWarning(UserWarning):
    """A log or topic was opened for reading on a network file system: it may not show what other hosts append."""


class CursorLockedError(StorageError):
    """Another process, or another Topic of this one, has the cursor open; path: its lock file."""


class CursorFencedError(StorageError):
    """Another may own the partitions of this member of a cursor group, for its lock file was deleted or replaced; path:
    that file. Nothing was committed; open the cursor again."""


class DeliveryExpiredError(KreplogError):
    """The delivery of a record of a work queue is not under way any more: the record is done, or it was, or will be,
    delivered again. The record's state is unchanged. partition, offset: of the first such record."""

    kafka_code = ErrorCode.INVALID_RECORD_STATE


class CorruptSchemaFileError(StorageError):
    """A line of a schema file cannot be read, nor records by the schema in it; or the file was deleted or replaced
    since this process read it. Nothing can rebuild it but a copy."""


class CorruptWorkQueueError(StorageError):
    """The metadata of a committed offset is not a work queue's state as this version reads it. Nothing was changed;
    offset: the committed one."""


class LogClosedError(UsageError):
    """The log, or the reader or appender made from it, is closed."""


class OutOfOrderSequenceError(KreplogError):
    """The sequence of an idempotent producer's batch does not follow its last batch; nothing was written."""

    kafka_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequenceError(KreplogError):
    """A batch older than the last five of its producer was sent again: it is written, its offsets are not known."""

    kafka_code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class ProducerFencedError(KreplogError):
    """The producer epoch is older than the latest of this producer id; nothing was written."""

    kafka_code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTransactionStateError(KreplogError):
    """A producer's batch is not part of its open transaction; nothing was written. offset: where that begins."""

    kafka_code = ErrorCode.INVALID_TXN_STATE


class UnverifiedTransactionError(KreplogError):
    """A producer's batch would begin a transaction here which its coordinator has not confirmed (KIP-890); nothing was
    written. producer_id, producer_epoch: of the batch."""

    kafka_code = ErrorCode.INVALID_TXN_STATE

    def __init__(self, text: str, producer_id: int, producer_epoch: int) -> None:
        super().__init__(text)
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


class CoordinatorFencedError(KreplogError):
    """The marker of a transaction comes from a coordinator that another has replaced; nothing was written."""

    kafka_code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class FencedLeaderEpochError(KreplogError):
    """The leader epoch is older than the latest in the log; nothing was written."""

    kafka_code = ErrorCode.FENCED_LEADER_EPOCH


class CoordinationError(KreplogError):
    """The coordination store refused the operation or could not be reached; `path` names the node.

    `index`: in a multi, the operation that failed; None elsewhere. Nothing of that multi was applied.
    """

    def __init__(self, message: str, *, path: str | None = None, index: int | None = None) -> None:
        super().__init__(message, path=path)
        self.index = index


class NoNodeError(CoordinationError):
    """The node, or the parent of a node to be created, does not exist."""


class NodeExistsError(CoordinationError):
    """A node to be created exists already."""


class BadVersionError(CoordinationError):
    """The node has another version than the caller expects: it was written in the meantime."""


class NotEmptyError(CoordinationError):
    """A node to be deleted has children."""


class SessionExpiredError(CoordinationError):
    """The session has ended: its ephemeral nodes are deleted, and it cannot be used again."""


class ConnectionLossError(CoordinationError):
    """The store did not respond, so the operation may have been applied: read before you retry."""


def is_exhaustion(error: BaseException | None) -> bool:
    """Whether an operation failed only because the process had no descriptor or memory left (EMFILE, ENFILE, ENOMEM),
    directly or as the cause of the error raised: the disk has not failed."""
    return _is_caused_by(error, ResourceExhaustedError, (errno.EMFILE, errno.ENFILE, errno.ENOMEM))


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an operation failed because the disk is full (ENOSPC, EDQUOT): the disk itself has not failed."""
    return _is_caused_by(error, DiskFullError, (errno.ENOSPC, errno.EDQUOT))


def is_shortage(error: BaseException | None) -> bool:
    """Whether an operation failed only for lack of disk space, descriptors or memory: a later attempt may succeed."""
    return is_exhaustion(error) or is_disk_full(error)


def _is_caused_by(error: BaseException | None, kind: type[StorageError], numbers: tuple[int, ...]) -> bool:
    while error is not None:
        if isinstance(error, kind) or (isinstance(error, OSError) and error.errno in numbers):
            return True
        error = error.__cause__
    return False


def check(condition: object, message: str) -> None:
    """Raise InvariantError(message) unless `condition` holds; unlike `assert` also under `python -O`."""
    if not condition:
        raise InvariantError(message)
