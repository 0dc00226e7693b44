"""Mutations of memory accounting, and of the handling of exhausted resources and interrupted truncations."""

from __future__ import annotations

from typing import Any

from kreplog.core.effects import Steps
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import CONSUMER
from kreplog.core.replication import isr, local_replica, manager
from kreplog.core.replication.fetch_purgatory import FetchPurgatory
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.sessions import ACCOUNT as SESSIONS
from kreplog.core.replication.sessions import FetchSessions
from kreplog.core.transactions.transaction_shard import TransactionShard
from kreplog.sim.mutations.mutation import MutationGroup, Patch

MUTATIONS = MutationGroup()


@MUTATIONS.add("memory-without-bound")
def _memory_without_bound() -> list[Patch]:
    """Consumers get sessions and parked fetches beyond the limit of the memory account."""

    def reserve(self: MemoryAccount, kind: str, size: int, *, force: bool = False) -> bool:
        return right(self, kind, size, force=True)

    right = MemoryAccount.reserve
    return [(MemoryAccount, "reserve", reserve)]


@MUTATIONS.add("closed-session-stays-charged")
def _closed_session_stays_charged() -> list[Patch]:
    """A closed fetch session stays charged to the memory account, until no session is granted any more."""

    def close(self: FetchSessions, session: Any) -> None:
        held = self._memory.held[SESSIONS]
        right(self, session)
        self._memory.reserve(SESSIONS, held - self._memory.held[SESSIONS], force=True)

    right = FetchSessions._close
    return [(FetchSessions, "_close", close)]


@MUTATIONS.add("evicted-fetch-waits-on")
def _evicted_fetch_waits_on() -> list[Patch]:
    """A delayed fetch whose session has been closed waits for its whole time, whatever comes for it."""

    def nothing(self: FetchPurgatory, now_ms: int) -> Steps[None]:
        self._sessions.closed.clear()
        yield from ()

    return [(FetchPurgatory, "_complete_closed", nothing)]


@MUTATIONS.add("followers-evict-each-other")
def _followers_evict_each_other() -> list[Patch]:
    """A follower's new session takes the place of another follower's that is in use."""

    def victim(self: FetchSessions, replica_id: int, now_ms: int) -> Any:
        found = right(self, replica_id, now_ms)
        return next(iter(self._followers.values()), None) if found is None and replica_id > CONSUMER else found

    right = FetchSessions._victim
    return [(FetchSessions, "_victim", victim)]


@MUTATIONS.add("ended-transaction-stays-charged")
def _ended_transaction_stays_charged() -> list[Patch]:
    """A transactional id stays charged for the partitions of its transactions that have ended, until its broker adds no
    more partitions for anybody."""
    return [(TransactionShard, "settle", lambda self, transaction: None)]


@MUTATIONS.add("exhaustion-fails-logs")
def _exhaustion_fails_logs() -> list[Patch]:
    """A replica goes offline when its process has no descriptors or memory left, as if its disk had failed."""
    return [(local_replica, "is_exhaustion", lambda error: False), (manager, "is_exhaustion", lambda error: False)]


@MUTATIONS.add("lag-in-bytes-ignored")
def _lag_in_bytes_ignored() -> list[Patch]:
    """replica.lag.max.bytes is ignored, and a replica leaves the ISR by replica.lag.time.max.ms only."""
    return [(isr, "is_lagging_in_bytes", lambda behind, max_bytes: False)]


@MUTATIONS.add("interrupted-log-trusted")
def _interrupted_log_trusted() -> list[Patch]:
    """After an interrupted truncation a follower keeps the old log state, and fetches from its end."""
    right = Partition._reopen

    def reopened(self: Partition, now_ms: int) -> Steps[None]:
        before = self.log
        yield from right(self, now_ms)
        self.log = before

    return [(Partition, "_reopen", reopened)]
