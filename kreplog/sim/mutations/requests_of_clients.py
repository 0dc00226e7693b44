"""Mutations of the rules for requests of clients: what is refused before a core gets it, and how fetches are read."""

from __future__ import annotations

from kreplog.core.broker import client_requests
from kreplog.core.messages import FetchRequest
from kreplog.core.replication import fetch_purgatory
from kreplog.core.replication.sessions import without_unknown_topics
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


@MUTATIONS.add("clients-fetch-as-followers")
def _clients_fetch_as_followers() -> list[Patch]:
    """Whoever names a follower's id in a fetch acknowledges records for it."""
    return [(incoming_requests, "is_forged", lambda request, internal: False)]


@MUTATIONS.add("partition-fetched-twice")
def _partition_fetched_twice() -> list[Patch]:
    """A partition that a fetch lists twice is read and returned twice."""
    return [(fetch_purgatory, "each_partition_once", lambda request: request)]


@MUTATIONS.add("session-goes-on-with-unknown-topic")
def _session_goes_on_with_unknown_topic() -> list[Patch]:
    """An incremental fetch that names an unknown topic id goes on: the session keeps a deleted topic that its consumer
    has forgotten."""

    def served(request: FetchRequest, listed: bool) -> FetchRequest | ErrorCode:
        return request if request.session_epoch > 0 else without_unknown_topics(request, listed)

    return [(incoming_requests, "without_unknown_topics", served)]
