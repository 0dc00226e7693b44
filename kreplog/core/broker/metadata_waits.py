"""MetadataWaits: what a request waits for that needs the cluster metadata, and whether it is answered after that.

Before the first UpdateMetadata an existing topic must not be reported as unknown: the request waits for it, and after
that for a read of the coordination store. A Metadata request then waits while a leader that it concerns is suspected to
have failed. It is not answered if all topics are requested and none is known for want of a source: a client would take
that for an empty cluster, and tries another broker if its connection is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass

from kreplog.core.broker.recently_failed import SUSPECTED_MS, RecentlyFailedBrokers
from kreplog.core.messages import PartitionState
from kreplog.core.replication.metadata import MetadataCache
from kreplog.types import BrokerRegistration

CHANGE_WAIT_MS = 5000
"""How long a request that changes the cluster waits for UpdateMetadata after a start, before the store is read."""

QUERY_WAIT_MS = 1000
"""The same for a request that reads metadata."""

FRESH_MS = 1000
"""Minimum between two reads of the store, whatever clients request."""


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until `condition(now_ms)`, evaluated at once and after any change of the metadata, for at most `max_ms`.
    Answer: whether it holds."""

    condition: Callable[[int], bool]
    max_ms: int


@dataclass(frozen=True, slots=True)
class ReadStored:
    """Read the metadata in the store (store_reader.metadata), by `MetadataWaits.read_stored`. Answer: None, also if the
    read has failed."""


Waits = Generator[Until | ReadStored, bool | None, bool]
"""Yields what to wait for, one after the other; returns whether the request is answered."""


@dataclass(frozen=True, slots=True)
class MetadataNeed:
    """The metadata that a request needs. changes: it changes the cluster. leaders: of a Metadata request, returns the
    leaders of the requested partitions that this broker knows; None of other requests. lists_all: it requests all
    topics."""

    changes: bool = False
    leaders: Callable[[], Collection[int]] | None = None
    lists_all: bool = False


class MetadataWaits:
    """The waits of the requests to one broker. recently_failed: the brokers that may have to be waited for."""

    def __init__(self, broker_id: int, metadata: MetadataCache) -> None:
        self.recently_failed = RecentlyFailedBrokers(metadata)
        self._broker_id = broker_id
        self._metadata = metadata
        self._read_ms: int | None = None
        self._readers: list[Callable[[], None]] = []

    def is_ready(self, need: MetadataNeed, now_ms: int) -> bool:
        """Whether there is nothing to wait for."""
        return self._metadata.from_controller and not self._has_suspected_leader(need, now_ms)

    def begin(self, need: MetadataNeed) -> Waits:
        """The waits of one request."""
        metadata = self._metadata
        wait_ms = CHANGE_WAIT_MS if need.changes else QUERY_WAIT_MS
        if not (yield Until(self._is_from_controller, 0 if metadata.from_store else wait_ms)):
            yield ReadStored()
        if need.leaders is None:
            return True
        yield Until(lambda now_ms: not self._has_suspected_leader(need, now_ms), SUSPECTED_MS)
        return self._is_answered(need)

    def read_stored(self, resume: Callable[[], None], now_ms: int) -> bool:
        """Have `resume` called after the read of the store that is under way, or that begins now; at once if the last
        is fresh. Returns whether one begins: the caller passes its result to `take`, and calls `read_ended`.

        Requests share a read, also if it fails: a store that does not respond is waited for once, not by each in turn.
        """
        if not self._readers and self.is_fresh(now_ms):
            resume()
            return False
        self._readers.append(resume)
        return len(self._readers) == 1

    def read_ended(self) -> None:
        """The read under way has succeeded or failed: the requests that share it go on."""
        readers, self._readers = self._readers, []
        for resume in readers:
            resume()

    def is_fresh(self, now_ms: int) -> bool:
        """Whether the store was read less than FRESH_MS ago."""
        return self._read_ms is not None and now_ms < self._read_ms + FRESH_MS

    def take(self, brokers: Iterable[BrokerRegistration], states: Iterable[PartitionState], now_ms: int) -> None:
        """The store has been read."""
        self._metadata.read(brokers, states, self._broker_id)
        self._read_ms = now_ms
        self.recently_failed.metadata_changed(now_ms)

    def _is_answered(self, need: MetadataNeed) -> bool:
        return self._metadata.has_source or not need.lists_all

    def _is_from_controller(self, _now_ms: int) -> bool:
        return self._metadata.from_controller

    def _has_suspected_leader(self, need: MetadataNeed, now_ms: int) -> bool:
        """Whether a leader of the requested partitions is suspected to have failed: a new one is elected soon."""
        if need.leaders is None:
            return False
        suspected = self.recently_failed.suspected(now_ms)
        return bool(suspected) and not suspected.isdisjoint(need.leaders())
