"""Offsets that compaction has removed from a log: a table that stands before them may lack a tombstone."""

from __future__ import annotations

from kreplog.log import Log


def has_removed_offsets(log: Log, start: int) -> bool:
    """Whether an offset of [start, last stable offset), from the log start on, is in no batch. Reads the headers and
    checks the CRC of all batches there. Raises CorruptBatchError, OffsetOutOfRangeError, StorageError."""
    expected, stop = max(start, log.log_start_offset), log.last_stable_offset
    for rows in log.batches(expected, stop):
        for base, last, count in zip(
            rows["base_offset"].tolist(), rows["last_offset"].tolist(), rows["record_count"].tolist(), strict=True
        ):
            if base > expected or count != last - base + 1:
                return True
            expected = last + 1
    return expected < stop
