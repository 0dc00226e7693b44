"""RecentlyFailedBrokers: what Metadata says of a broker in the seconds after it fails, so that clients lose no second.

A client that loses its leader at once requests metadata from another broker, often before a new leader is elected. If
the response still names the old leader, it waits before it tries again: in librdkafka up to a second. So while a leader
is suspected, since it has just closed its connections to this broker too, Metadata requests wait for the election, for
a moment.

If one response both names a new leader and leaves out the old one, librdkafka closes the old broker before it moves
the partitions over, and notices a second later. So a failed broker stays listed for a while.
"""

from __future__ import annotations

from collections.abc import Iterator

from kreplog.core.replication.metadata import MetadataCache
from kreplog.types import BrokerRegistration

SUSPECTED_MS = 500
"""How long a broker is suspected after it closed a connection: by then the controller has reported a failure."""

LISTED_MS = 5000
"""How long a failed broker stays listed, unless it registers again."""


class RecentlyFailedBrokers:
    """The brokers that have failed in the last seconds."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
        self._closed_ms: dict[int, int] = {}
        self._live = metadata.brokers
        self._failed: dict[int, tuple[BrokerRegistration, int]] = {}

    def connection_closed(self, broker_id: int, now_ms: int) -> None:
        """A broker has closed a connection that this broker had opened."""
        self._closed_ms[broker_id] = now_ms

    def metadata_changed(self, now_ms: int) -> None:
        """The metadata may have changed: a broker that is no longer in them has failed now."""
        former, self._live = self._live, self._metadata.brokers
        for broker_id, broker in former.items():
            if broker_id not in self._live:
                self._failed[broker_id] = broker, now_ms

    def suspected(self, now_ms: int) -> set[int]:
        """Brokers that are live by the metadata, but have just closed a connection."""
        if not self._closed_ms:
            return set()
        since = now_ms - SUSPECTED_MS
        self._closed_ms = {broker_id: at for broker_id, at in self._closed_ms.items() if at > since}
        return self._closed_ms.keys() & self._metadata.brokers.keys()

    def listed(self, now_ms: int) -> Iterator[BrokerRegistration]:
        """Failed brokers that Metadata still lists."""
        if self._failed:
            since = now_ms - LISTED_MS
            self._failed = {broker_id: entry for broker_id, entry in self._failed.items() if entry[1] > since}
            live = self._metadata.brokers
            yield from (broker for broker_id, (broker, _) in self._failed.items() if broker_id not in live)
