"""Requests that come to a broker in virtual time, until a core gets them, by the rules that brokers have for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kreplog.core.broker.client_requests import is_forged, refused_produce, topic_names
from kreplog.core.messages import FetchedPartition, FetchRequest, FetchResponse, ProduceRequest
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.sessions import without_unknown_topics
from kreplog.errors import ErrorCode
from kreplog.sim.brokers.core_runner import LocalReply
from kreplog.sim.checks.session_checker import FetchSessionChecker
from kreplog.sim.clients.session_consumer import FetchByIds
from kreplog.types import TopicPartition


class IncomingRequests:
    """The requests to one process. reply: sends a response as soon as the process is not paused. serve: passes
    (reply_to, request) to the request's core. violate: as in FetchSessionChecker."""

    def __init__(
        self,
        manager: ReplicaManager,
        reply: Callable[[int, Callable[[], Any]], None],
        serve: Callable[[Any, Any], None],
        violate: Callable[[str, str], None],
    ) -> None:
        self._manager = manager
        self._reply = reply
        self._serve = serve
        self._sessions = FetchSessionChecker(manager.broker_id, manager.fetch_session, violate)

    def receive(self, reply_to: int, request: Any, internal: bool) -> None:
        """Take a request.

        internal: it came by the listener that only brokers use. A fetch that a client has forged gets no response,
        as if its connection were closed."""
        if isinstance(request, FetchByIds):
            self._fetch_by_ids(reply_to, request)
        elif isinstance(request, FetchRequest) and is_forged(request, internal):
            return
        elif not internal and isinstance(request, ProduceRequest) and (refused := refused_produce(request)) is not None:
            self._reply(reply_to, lambda: refused)
        else:
            self._serve(reply_to, request)

    def _fetch_by_ids(self, reply_to: int, fetch: FetchByIds) -> None:
        states = self._manager.metadata.partitions.values()
        listed = ((state.topic_id, state.partition.topic) for state in states)
        names = topic_names(listed, self._manager.partitions)
        served, error, unknown = _with_names(fetch, names)

        def respond(response: FetchResponse) -> None:
            complete = replace(response, partitions=(*response.partitions, *unknown))
            if error is not ErrorCode.NONE:
                complete = FetchResponse(error)
            self._sessions.responds(fetch, complete)
            self._reply(reply_to, lambda: complete)

        self._serve(LocalReply(respond), served)


def _with_names(
    fetch: FetchByIds, names: Mapping[str, str]
) -> tuple[FetchRequest, ErrorCode, tuple[FetchedPartition, ...]]:
    """The request to serve; the error of the whole response, if any; and the responses for the topics that it fetches
    and that have no name."""
    partitions, unknown = [], []
    for listed in fetch.request.partitions:
        name, number = names.get(listed.topic_id), listed.partition.partition
        if name is None:
            unknown.append(FetchedPartition(listed.partition, ErrorCode.UNKNOWN_TOPIC_ID, topic_id=listed.topic_id))
        else:
            partitions.append(replace(listed, partition=TopicPartition(name, number)))
    forgotten = tuple(
        TopicPartition(names[topic_id], number) for topic_id, number in fetch.forgotten if topic_id in names
    )
    request = replace(fetch.request, partitions=tuple(partitions), forgotten=forgotten)
    if not unknown and len(forgotten) == len(fetch.forgotten):
        return request, ErrorCode.NONE, ()
    return *without_unknown_topics(request, bool(unknown)), tuple(unknown)
