"""The checker of fetches that wait, and of the sessions of followers, on replication cores that hold them."""

from __future__ import annotations

import pytest

from kreplog.config import ReplicationConfig
from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from kreplog.core.replication.sessions import EVICTION_MS
from kreplog.sim import mutations
from kreplog.sim.checks.fetch_checker import FetchChecker
from tests.core.shell import TP, Shell, batch


class Leader:
    """A leader with one slot for sessions and one record, and followers 2 and 3, which are behind. found: kinds of
    violations."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.shell = Shell(config=ReplicationConfig(max_incremental_fetch_session_cache_slots=1))
        self.shell.update_metadata(1, 2, 3)
        self.shell.leader_and_isr(1, 1, (1,), replicas=(1, 2, 3))
        self._checker = FetchChecker(lambda kind, _: self.found.append(kind))
        self.append()

    def fetch(self, replica_id: int) -> None:
        """A fetch that begins a session: a consumer's from the end of the log, a follower's from its start."""
        epoch, offset = (-1, 1) if replica_id == CONSUMER else (1, 0)
        listed = (FetchPartition(TP, "id", 1, offset),)
        self.shell.request(FetchRequest(replica_id, epoch, 60_000, 1, 1 << 20, listed, (), 0, 0), replica_id)
        self._check()

    def append(self) -> None:
        self.shell.request(ProduceRequest(1, 1000, (ProducePartition(TP, batch("a")),)), "producer")
        self._check()

    def _check(self) -> None:
        manager = self.shell.manager
        self._checker.partition_changed(1, manager, manager.partitions[TP])
        self._checker.stepped(1, manager, self.shell.now_ms)


@pytest.mark.parametrize(("mutation", "found"), [(None, []), ("evicted-fetch-waits-on", ["fetch left waiting"])])
def test_a_fetch_that_nothing_wakes_is_found(mutation: str | None, found: list[str]) -> None:
    leader = Leader()

    def course() -> None:
        leader.fetch(CONSUMER)
        leader.fetch(2)
        leader.append()

    if mutation is None:
        course()
    else:
        with mutations.applied(mutation):
            course()
    assert leader.found == found


@pytest.mark.parametrize(("after_ms", "found"), [(EVICTION_MS - 1, ["session taken away"]), (EVICTION_MS, [])])
def test_a_session_in_use_that_makes_way_for_another_follower_is_found(after_ms: int, found: list[str]) -> None:
    leader = Leader()
    with mutations.applied("followers-evict-each-other"):
        leader.fetch(2)
        leader.shell.now_ms = after_ms
        leader.fetch(3)
    assert leader.found == found


def test_a_follower_that_begins_another_session_may_end_its_own() -> None:
    leader = Leader()
    with mutations.applied("followers-evict-each-other"):
        leader.fetch(2)
        leader.fetch(2)
    assert leader.found == []
