"""Large requests: limits on their entries, and how their work is sliced or moved to threads to spare the event loop.

A request may have as many entries as there are partitions or topics for it to name, plus a small allowance; a larger
one closes its connection before it is decoded. Requests and responses above the INLINE limits are decoded and encoded
in a thread, and carried out in slices, between which the event loop serves others.
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
"""Responses up to so many entries are encoded on the event loop, and requests are carried out so many at a time."""

THREADS = 2

SLICE_S = 0.005
"""How long one request is worked on before the event loop serves others."""

ALLOWANCE = 1000
"""Entries beyond those that the number of partitions justifies. An entry takes a byte at least."""

_FETCH_ALLOWANCE = 5000
"""The same for Fetch: a follower may learn of thousands of new partitions before their leader does."""

_CREATION_ENTRIES = 60_000
"""Enough for 10,000 new partitions with explicit replica assignments."""

_GROUP_ENTRIES = 60_000
"""Enough for the members of a large group, or the names of all groups of a coordinator."""

_OF_GROUPS = (
    *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.LEAVE_GROUP),
    *(ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DELETE_GROUPS, ApiKey.CONSUMER_GROUP_DESCRIBE),
)

_OF_SETTINGS = (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)

T = TypeVar("T")


def max_entries(api_key: int, partitions: int) -> int:
    """Maximum of entries, of all its arrays together, that a client's request may have in a cluster of `partitions`."""
    if api_key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS):
        return _CREATION_ENTRIES
    if api_key in _OF_GROUPS:
        return _GROUP_ENTRIES
    if api_key == ApiKey.FETCH:
        return min(MAX_ITEMS, _FETCH_ALLOWANCE + 3 * partitions)
    entries = 16 if api_key in _OF_SETTINGS else 8 if api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS else 3
    return min(MAX_ITEMS, ALLOWANCE + entries * partitions)


def make_pool() -> ThreadPoolExecutor:
    """Threads for large requests; few, so that they never starve the event loop of CPU."""
    return ThreadPoolExecutor(THREADS, "kreplog-requests")


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over `items`, and yield to the event loop whenever SLICE_S have passed."""
    began = monotonic()
    for item in items:
        yield item
        if monotonic() - began > SLICE_S:
            await asyncio.sleep(0)  # a turn of the loop for whatever else is due
            began = monotonic()
