"""Every exception kreplog raises, each tied to one Kafka error code.

The class says what kind of failure it is; the message says what happened, where, and what to do next; the fields carry
the same facts for programs. Whether to retry is the caller's decision.
"""

from __future__ import annotations

from typing import Any, ClassVar


class KreplogError(Exception):
    """Base of all kreplog errors.

    Fields are None where they do not apply: `partition` is "<topic>-<partition>", `offset` counts records, `path` is a
    file or directory, `position` counts bytes from the start of that file.
    """

    kafka_code: ClassVar[int] = -1

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
    """The caller broke the contract; nothing was changed."""

    kafka_code = 42  # INVALID_REQUEST


class ArgumentTypeError(UsageError, TypeError):
    """An argument has a type this call does not take; nothing was changed."""


class InvalidTopicError(UsageError):
    """A topic or partition directory name against Kafka's rules ([a-zA-Z0-9._-], 1 to 249, not "." or "..")."""

    kafka_code = 17  # INVALID_TOPIC_EXCEPTION


class RecordTooLargeError(UsageError):
    """A record or batch is larger than max_message_bytes; nothing was written."""

    kafka_code = 10  # MESSAGE_TOO_LARGE


class UnsupportedCompressionError(KreplogError):
    """The codec is unknown, or its package is not installed; the message names the extra to install."""

    kafka_code = 76  # UNSUPPORTED_COMPRESSION_TYPE


class InvariantError(KreplogError):
    """kreplog broke its own rule; a bug. Nothing further may be trusted, so the owner must stop."""


class OffsetOutOfRangeError(KreplogError):
    """The offset lies below the log start offset or past the log end offset."""

    kafka_code = 1  # OFFSET_OUT_OF_RANGE


class StorageError(KreplogError):
    """A file could not be read or written as promised."""

    kafka_code = 56  # KAFKA_STORAGE_ERROR


class CorruptBatchError(StorageError):
    """Bytes that are not a valid record batch; on a leader's answer worth refetching, on one's own disk damage."""

    kafka_code = 2  # CORRUPT_MESSAGE


class UnsupportedFormatError(CorruptBatchError):
    """A batch that says it is older than magic 2: written by a Kafka before 0.11, or damaged in that byte."""

    kafka_code = 43  # UNSUPPORTED_FOR_MESSAGE_FORMAT


class CorruptCheckpointError(StorageError):
    """A checkpoint or snapshot file that cannot be parsed; callers fall back to a scan of the log."""


class LogFailedError(StorageError):
    """A write or fsync failed, now or earlier; the log refuses further writes until it is reopened. Readers go on."""


class LogLockedError(StorageError):
    """Another process has the partition directory open for writing; the message names it."""


class LogClosedError(UsageError):
    """The log, or what was made from it, is closed."""


class OutOfOrderSequenceError(KreplogError):
    """An idempotent producer's batch does not follow its last one; nothing was written."""

    kafka_code = 45  # OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequenceError(KreplogError):
    """A batch older than the last five of its producer: already written, its offsets no longer remembered."""

    kafka_code = 46  # DUPLICATE_SEQUENCE_NUMBER


class ProducerFencedError(KreplogError):
    """The producer epoch is older than one already seen; nothing was written."""

    kafka_code = 47  # INVALID_PRODUCER_EPOCH


class FencedLeaderEpochError(KreplogError):
    """The leader epoch is older than one already in the log; nothing was written."""

    kafka_code = 74  # FENCED_LEADER_EPOCH
