"""Slices: what large requests may cost the event loop, and how their work is cut up or handed to threads.

A request may have as many entries as there are partitions or topics for it to name, and a small allowance; one that has
more is no request of a client's, and ends its connection before anything is made of it. What is larger than the
INLINE limits is decoded and encoded in a thread, which costs the loop a switch interval now and then, and is carried
out so many entries at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TypeVar

from kreplog.wire.frames import MAX_ITEMS
from kreplog.wire.versions import ApiKey

INLINE_BYTES = 8 << 10
"""Requests up to this size are decoded on the event loop."""

INLINE_ENTRIES = 250
"""Answers up to so many entries are encoded there, and so many entries are carried out at a time."""

THREADS = 2

SLICE_S = 0.005
"""So long one request's work goes on before the others get their turn."""

_ALLOWANCE = 1000
_FETCH_ALLOWANCE = 5000
"""A follower may know of thousands of new partitions before their leader does."""

_CREATION_ITEMS = 60_000
"""Ten thousand new partitions, each with its replicas named."""

_OF_SETTINGS = (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)

T = TypeVar("T")


def most_items(api_key: int, partitions: int) -> int:
    """How many entries, of all its arrays, a client's request may have where so many partitions exist."""
    if api_key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS):
        return _CREATION_ITEMS
    if api_key == ApiKey.FETCH:
        return min(MAX_ITEMS, _FETCH_ALLOWANCE + 3 * partitions)
    each = 16 if api_key in _OF_SETTINGS else 8 if api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS else 3
    return min(MAX_ITEMS, _ALLOWANCE + each * partitions)


def make_pool() -> ThreadPoolExecutor:
    """Threads for large requests: few, so that any number of them leaves the event loop its share of the CPU."""
    return ThreadPoolExecutor(THREADS, "kreplog-requests")


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Each of `items`, with a turn for others after every SLICE_S of work on them."""
    began = monotonic()
    for item in items:
        yield item
        if monotonic() - began > SLICE_S:
            await asyncio.sleep(0)  # a turn of the loop for whatever else is due
            began = monotonic()
