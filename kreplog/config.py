"""Settings of a log under Kafka's names (underscores for dots), validated once, when they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kreplog.errors import ArgumentTypeError, UsageError

COMPRESSION_TYPES = ("none", "gzip", "snappy", "lz4", "zstd")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")

_RANGES = {
    "segment_bytes": (256, 2**31 - 1),
    "segment_ms": (1, 2**63 - 1),
    "index_interval_bytes": (0, 2**31 - 1),
    "segment_index_bytes": (64, 2**31 - 1),
    "max_message_bytes": (128, 2**30),
    "batch_bytes": (1, 2**30),
    "retention_ms": (-1, 2**63 - 1),
    "retention_bytes": (-1, 2**63 - 1),
    "flush_messages": (1, 2**63 - 1),
    "producer_id_expiration_ms": (1, 2**63 - 1),
}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one partition's log behaves.

    replicated: False means this process is the only replica, so what is appended is committed; True means the high
        watermark moves only by `Log.advance_high_watermark`.
    segment_bytes, segment_ms: a new segment is rolled before either would be exceeded (bytes; ms of record time). A
        single encoded batch larger than segment_bytes gets a segment of its own.
    index_interval_bytes: a batch is indexed once more than this many bytes have been written since the last that was.
    segment_index_bytes: a segment is rolled before the next write once either of its indexes may have grown to this.
    max_message_bytes: the largest record batch accepted, bytes, header included.
    batch_bytes: `append_many` closes a batch before it would hold more than this; one large record may.
    retention_ms, retention_bytes: what `Log.enforce_retention` may delete, -1 for no limit. Kafka's default of seven
        days is not ours: an embedded log deletes nothing unasked.
    flush_messages: fsync at least once every so many records, before the append returns (1: every append is durable
        against power loss on return; concurrent appends share one fsync). The default never forces it.
    message_timestamp_type: "CreateTime" keeps the producer's timestamps, "LogAppendTime" overwrites them.
    compression_type: what `append`, `append_many` and, unless told otherwise, `appender` write; encoded batches are
        kept as they come.
    producer_id_expiration_ms: an idempotent producer idle for so long is forgotten when the next segment is rolled.
    """

    replicated: bool = False
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    max_message_bytes: int = 1048588
    batch_bytes: int = 65536
    retention_ms: int = -1
    retention_bytes: int = -1
    flush_messages: int = 2**63 - 1
    message_timestamp_type: str = "CreateTime"
    compression_type: str = "none"
    producer_id_expiration_ms: int = 24 * 3600 * 1000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _RANGES:
                low, high = _RANGES[field.name]
                if isinstance(value, bool) or not isinstance(value, int):
                    raise ArgumentTypeError(f"{field.name} must be an int, not {type(value).__name__} {value!r}")
                if not low <= value <= high:
                    raise UsageError(f"{field.name} = {value} is out of range: allowed are {low} to {high}")
        if not isinstance(self.replicated, bool):
            raise ArgumentTypeError(f"replicated must be a bool, not {self.replicated!r}")
        _one_of("message_timestamp_type", self.message_timestamp_type, TIMESTAMP_TYPES)
        _one_of("compression_type", self.compression_type, COMPRESSION_TYPES)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{name} = {value!r} is not known: choose one of {', '.join(allowed)}")
