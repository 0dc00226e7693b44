"""Tombstones that coordinators write, in batches of a limited size: a log refuses those above max.message.bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

MAX_BATCH_BYTES = 256 * 1024
"""Of the tombstones of one batch: a quarter of the default of max.message.bytes."""

RECORD_BYTES = 40
"""What a tombstone takes beside the texts of its key, at most."""

T = TypeVar("T")


def deletion_batches(names: Sequence[T], key_bytes: Callable[[T], int]) -> list[list[T]]:
    """Split what is deleted by one request or check, in order; one empty batch for nothing. key_bytes: of the texts in
    a tombstone's key. One key of any size has a batch."""
    batches: list[list[T]] = [[]]
    size = 0
    for name in names:
        added = RECORD_BYTES + key_bytes(name)
        if batches[-1] and size + added > MAX_BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(name)
        size += added
    return batches
