"""Departed: what clients are told of a broker in the moments after it has gone, so that they do not lose a second.

A client that loses its leader asks another broker at once who leads now, often before the controller has said so. Told
the old leader, it asks again only after a pause, in librdkafka up to a second. So a broker that the leader has hung up
on as well waits for the news instead, for a moment. And librdkafka, told in one answer of a new leader and that the old
one is no broker any more, closes that one down before it has taken the partitions over, and finds them a second later.
So a broker that has gone is listed a little longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kreplog.core.replication.metadata import MetadataCache
from kreplog.types import BrokerRegistration

DOUBT_S = 0.5
"""How long a hang-up counts: after it the broker has been told to be gone, or it is not."""

LISTED_S = 5.0
"""How long a broker that is gone is listed, if no newer registration of it is."""


class Departed:
    """now: monotonic, in s."""

    def __init__(self, metadata: MetadataCache, now: Callable[[], float]) -> None:
        self._metadata = metadata
        self._now = now
        self._hung_up: dict[int, float] = {}
        self._listed = dict(metadata.brokers)
        self._gone: dict[int, tuple[BrokerRegistration, float]] = {}

    def hung_up(self, broker: int) -> None:
        """A connection that we had made to it was closed at its end."""
        self._hung_up[broker] = self._now()

    def changed(self) -> None:
        """The metadata may have: who is in them no more has gone now."""
        brokers = self._metadata.brokers
        for broker, found in self._listed.items():
            if broker not in brokers:
                self._gone[broker] = found, self._now()
        self._listed = dict(brokers)

    def doubted(self) -> set[int]:
        """Those who live as far as we were told, but have just hung up."""
        if not self._hung_up:
            return set()
        since = self._now() - DOUBT_S
        self._hung_up = {broker: at for broker, at in self._hung_up.items() if at > since}
        return self._hung_up.keys() & self._metadata.brokers.keys()

    def lately_gone(self) -> Iterator[BrokerRegistration]:
        """Those to be listed although they are gone."""
        if self._gone:
            since = self._now() - LISTED_S
            self._gone = {broker: one for broker, one in self._gone.items() if one[1] > since}
            yield from (found for broker, (found, _) in self._gone.items() if broker not in self._metadata.brokers)
