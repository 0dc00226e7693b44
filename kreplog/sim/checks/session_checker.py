"""FetchSessionChecker: a broker has the fetch sessions of consumers as these have them (KIP-227, KIP-516).

session differs     a session holds other partitions than its consumer has listed in it and not forgotten
session left over   a session that a response has ended, or that its consumer has ended, is still held

Both are checked as a response leaves the broker. A consumer does not list again what it has in a session, and does not
use one again that has ended: it would wait for the one for ever, and the other would take memory and one of the slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kreplog.core.messages import FetchPartition, FetchResponse
from kreplog.core.replication.sessions import INITIAL_EPOCH
from kreplog.errors import ErrorCode
from kreplog.sim.clients.session_consumer import FetchByIds, Key

Held = Callable[[int], Iterable[FetchPartition] | None]


class FetchSessionChecker:
    """Checks the sessions of one process of a broker. held: returns the partitions of a session, None if there is no
    such. violate: called with the kind of a violation and its text."""

    def __init__(self, broker: int, held: Held, violate: Callable[[str, str], None]) -> None:
        self._broker = broker
        self._held = held
        self._violate = violate
        self._listed: dict[int, set[Key]] = {}

    def responds(self, fetch: FetchByIds, response: FetchResponse) -> None:
        """A response to a fetch is on its way."""
        request, session_id = fetch.request, response.session_id
        is_full = request.session_epoch <= INITIAL_EPOCH
        if is_full or response.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._listed.pop(request.session_id, None)
            if self._held(request.session_id) is not None:
                text = f"broker {self._broker} holds session {request.session_id}, which its response has ended"
                self._violate("session left over", text)
        held = self._held(session_id)
        if held is None:  # there is no session, or it has been evicted while the fetch waited
            self._listed.pop(session_id, None)
            return
        before = set() if is_full else self._listed.get(session_id, set())
        listed = {_key(partition) for partition in request.partitions}
        self._listed[session_id] = expected = (before - set(fetch.forgotten)) | listed
        if (found := {_key(partition) for partition in held}) != expected:
            text = f"session {session_id} of broker {self._broker} has {sorted(found)}, its consumer {sorted(expected)}"
            self._violate("session differs", text)


def _key(partition: FetchPartition) -> Key:
    return partition.topic_id, partition.partition.partition
