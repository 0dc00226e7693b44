"""Mutations of the rules for requests of clients: what is refused before a core gets it, and how fetches are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kreplog.core.broker import client_requests, coordinator_lookup
from kreplog.core.group_messages import partition_of_group
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest
from kreplog.core.replication import fetch_purgatory, replica_selectors
from kreplog.core.replication.local_replica import LocalReplica
from kreplog.core.replication.role import Role
from kreplog.core.replication.sessions import NO_SESSION, without_unknown_topics
from kreplog.errors import ErrorCode
from kreplog.sim.brokers import incoming_requests
from kreplog.sim.mutations.mutation import MutationGroup, Patch

MUTATIONS = MutationGroup()


@MUTATIONS.add("clients-write-internal-topics")
def _clients_write_internal_topics() -> list[Patch]:
    """A client's produce to a topic of coordinators is appended, and the next coordinator reads it."""
    return [(client_requests, "INTERNAL_TOPICS", frozenset[str]())]


@MUTATIONS.add("transaction-without-acks-all")
def _transaction_without_acks_all() -> list[Patch]:
    """A producer of transactions chooses its acks."""
    return [(client_requests, "TRANSACTION_ACKS", frozenset({-1, 0, 1}))]


@MUTATIONS.add("coordinator-by-another-partition")
def _coordinator_by_another_partition() -> list[Patch]:
    """Clients are sent to the leader of another partition than the one that has their group."""

    def next_partition(key: str, partitions: int) -> int:
        return (partition_of_group(key, partitions) + 1) % partitions

    return [(coordinator_lookup, "partition_of_group", next_partition)]


@MUTATIONS.add("clients-fetch-as-followers")
def _clients_fetch_as_followers() -> list[Patch]:
    """A client that names a follower's id in a fetch acknowledges records for it."""
    return [(incoming_requests, "is_forged", lambda request, internal: False)]


@MUTATIONS.add("partition-fetched-twice")
def _partition_fetched_twice() -> list[Patch]:
    """A partition that a fetch lists twice is read and returned twice."""
    return [(fetch_purgatory, "each_partition_once", lambda request: request)]


@MUTATIONS.add("session-goes-on-with-unknown-topic")
def _session_goes_on_with_unknown_topic() -> list[Patch]:
    """An incremental fetch that names an unknown topic id goes on: the session keeps a deleted topic that its consumer
    has forgotten."""

    def served(request: FetchRequest, listed: bool) -> tuple[FetchRequest, ErrorCode]:
        return (request, ErrorCode.NONE) if request.session_epoch > 0 else without_unknown_topics(request, listed)

    return [(incoming_requests, "without_unknown_topics", served)]


@MUTATIONS.add("session-lacks-unknown-topic")
def _session_lacks_unknown_topic() -> list[Patch]:
    """A full fetch that lists an unknown topic id begins a session: its consumer takes the topic to be in it, and does
    not list it again once it is known."""

    def served(request: FetchRequest, listed: bool) -> tuple[FetchRequest, ErrorCode]:
        return without_unknown_topics(request, listed and request.session_epoch != 0)

    return [(incoming_requests, "without_unknown_topics", served)]


@MUTATIONS.add("refused-session-stays")
def _refused_session_stays() -> list[Patch]:
    """A session that is refused since its fetch names an unknown topic id stays in memory, in one of the slots."""

    def served(request: FetchRequest, listed: bool) -> tuple[FetchRequest, ErrorCode]:
        ends, error = without_unknown_topics(request, listed)
        return replace(ends, session_id=NO_SESSION), error

    return [(incoming_requests, "without_unknown_topics", served)]


@MUTATIONS.add("consumers-sent-out-of-sync")
def _consumers_sent_out_of_sync() -> list[Patch]:
    """A leader sends a consumer to the replica in its rack, in sync or not: that lacks what the consumer has read."""
    return [(replica_selectors, "can_serve", lambda replica, isr, offset: True)]


@MUTATIONS.add("followers-serve-uncommitted")
def _followers_serve_uncommitted() -> list[Patch]:
    """A follower serves consumers all that it has copied, as it serves nobody else."""
    right = LocalReplica.limit

    def limit(self: LocalReplica, consumer: bool, stable: bool = False) -> int:
        return self.log.leo if self.role is Role.FOLLOWER else right(self, consumer, stable)

    return [(LocalReplica, "limit", limit)]


@MUTATIONS.add("late-followers-refuse")
def _late_followers_refuse() -> list[Patch]:
    """A follower takes an offset beyond the high watermark that it knows for one outside its log."""
    right = LocalReplica.check_readable

    def check_readable(self: LocalReplica, request: FetchPartition, *roles: Any) -> FetchedPartition | None:
        refused = right(self, request, *roles)
        is_late = self.role is Role.FOLLOWER and request.fetch_offset > self.high_watermark
        return self._out_of_range(request) if refused is None and is_late else refused

    return [(LocalReplica, "check_readable", check_readable)]
