"""Record batches of a log as they are stored, for tools that show logs: headers, records, leader epochs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from kreplog._native import batch
from kreplog._native.batch import BatchInfo, decode
from kreplog._native.checkpoint import EpochCache
from kreplog._native.compression import CODECS
from kreplog.errors import CorruptBatchError
from kreplog.log import Log

__all__ = ["CODEC_NAMES", "BatchInfo", "check_record", "decode", "leader_epochs", "read_batches"]

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
                header = batch.validate(data)
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
    batch.build([value], [key], None if timestamp_ms is None else [timestamp_ms], [headers])
