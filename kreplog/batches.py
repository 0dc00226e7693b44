"""Record batches of a log as they are stored, for tools that show logs: headers, records, leader epochs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from kreplog._native.batch import BatchInfo, build, decode, validate
from kreplog._native.checkpoint import EpochCache
from kreplog._native.compression import CODECS
from kreplog._native.markers import committed_of
from kreplog.errors import CorruptBatchError
from kreplog.log import Log

__all__ = [
    "CODEC_NAMES",
    "BatchInfo",
    "batch_facts",
    "build",
    "check_record",
    "committed_of",
    "decode",
    "leader_epochs",
    "read_batches",
    "validate",
]

CODEC_NAMES = {number: name for name, number in CODECS.items()}
"""Names of compression codecs by `BatchInfo.codec`."""

FETCH_BYTES = 1 << 20


def read_batches(
    log: Log, start: int, stop: int, *, isolation: str = "committed"
) -> Iterator[tuple[BatchInfo, memoryview]]:
    """Header and bytes of every batch with an offset in [start, stop), in order, their CRC checked.

    isolation: "committed" or "log_end", as of Log.fetch. Raises CorruptBatchError."""
    offset = start
    while offset < stop:
        fetched = log.fetch(offset, max_bytes=FETCH_BYTES, isolation=isolation)
        data = fetched.data
        while len(data):
            try:
                header = validate(data)
            except CorruptBatchError as error:
                raise CorruptBatchError(
                    f"{log.path}, offset {offset}: {error}; `kreplog log verify` finds all damage", path=log.path
                ) from error
            if header.base_offset >= stop:
                return
            yield header, data[: header.size]
            data = data[header.size :]
            offset = header.last_offset + 1
        if not len(fetched.data):
            return


def leader_epochs(log: Log) -> list[tuple[int, int]]:
    """(leader epoch, start offset) of every epoch in the log's leader-epoch-checkpoint. Raises StorageError."""
    return EpochCache(os.path.join(log.path, "leader-epoch-checkpoint")).entries


def check_record(
    value: bytes | None, key: bytes | None, timestamp_ms: int | None, headers: Sequence[tuple[str, bytes | None]]
) -> None:
    """Raise UsageError if this cannot be a record."""
    build([value], [key], None if timestamp_ms is None else [timestamp_ms], [headers])


def batch_facts(header: BatchInfo) -> dict[str, Any]:
    """The fields of a header as JSON, by Kafka's names."""
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "leader_epoch": header.leader_epoch,
        "compression": CODEC_NAMES.get(header.codec, str(header.codec)),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "control": header.is_control,
    }
