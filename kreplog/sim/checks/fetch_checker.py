"""The checker of fetches that wait at a leader, and of the sessions of followers (KIP-227).

fetch left waiting   a fetch waits although its partition has records for it   after each step
session taken away   a follower's session, in use, made way for another        after each step

Either would hold up acks=all until the fetch has waited for its whole time, or have all fetchers begin a session for
each fetch.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplog.core.messages import CONSUMER, READ_COMMITTED
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.core.replication.sessions import EVICTION_MS


class FetchChecker:
    """Checks the fetches of all brokers of one run. violate: takes the kind and the text of a violation."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._sessions: dict[int, tuple[ReplicaManager, dict[int, tuple[int, int]]]] = {}

    def partition_changed(self, broker: int, manager: ReplicaManager, replica: Partition) -> None:
        """A step has changed a replica."""
        if replica.role is not Role.LEADER or replica.interrupted or manager.leader_quota.is_listed(replica):
            return
        for fetch, listed in manager.fetches_waiting_for(replica.topic_partition):
            request = fetch.request
            stable = request.replica_id == CONSUMER and request.isolation_level == READ_COMMITTED
            end = replica.limit(request.replica_id == CONSUMER, stable)
            if request.min_bytes <= 1 and replica.log.log_start <= listed.fetch_offset < end:
                text = (
                    f"a fetch of {replica.topic_partition} by replica {request.replica_id} waits at broker {broker} "
                    f"from {listed.fetch_offset}, below {end}"
                )
                self._violate("fetch left waiting", text)

    def stepped(self, broker: int, manager: ReplicaManager, now_ms: int) -> None:
        """A step of a replication core has ended."""
        held = {session: (replica_id, used_ms) for session, replica_id, used_ms in manager.sessions_of_followers()}
        process, before = self._sessions.get(broker, (manager, {}))
        if process is manager and len(before.keys() - held.keys()):
            begun = {replica_id for session, (replica_id, _) in held.items() if session not in before}
            for session in before.keys() - held.keys():
                replica_id, used_ms = before[session]
                if begun and replica_id not in begun and now_ms - used_ms < EVICTION_MS:
                    text = f"session {session} of broker {replica_id} at broker {broker} made way for one of {begun}"
                    self._violate("session taken away", text)
        self._sessions[broker] = manager, held
