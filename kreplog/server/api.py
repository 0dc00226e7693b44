"""Api: which request goes where, and how its answer is written.

Produce, Fetch, offsets and what a controller says go to the cores, which answer when they will; all else is answered
here, at once or by a task of its own. What a broker does not offer never gets this far: it ends its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from kreplog.core.events import Event, Received
from kreplog.core.messages import (
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    FetchResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
)
from kreplog.core.replication.manager import ReplicaManager
from kreplog.errors import CoordinationError, ErrorCode, NodeExistsError, PeerProtocolError
from kreplog.server.admin import Admin, Fields
from kreplog.server.altering import Altering
from kreplog.server.departed import DOUBT_S, Departed
from kreplog.server.describing import Describing
from kreplog.server.internal import Address
from kreplog.server.logs import log_applied
from kreplog.server.network import Frame
from kreplog.server.partitions import ReplicaLogs
from kreplog.server.serving import Exchange, Within
from kreplog.server.settings import BrokerSettings
from kreplog.server.store import AnySession, StoreLink
from kreplog.server.stored_metadata import StoredMetadata
from kreplog.server.topics import Topics
from kreplog.types import Broker, Create
from kreplog.wire import brokers, cold, deletion, fetch, offsets, produce
from kreplog.wire.versions import FIRST_REAL_PRODUCE, TO_CLIENTS, ApiKey

_log = logging.getLogger("kreplog.server")

CLUSTER_ID = "/cluster_id"
"""In the store: 22 characters that no other cluster has."""


MAX_WAIT_MS = 60_000
"""The longest that a fetch may wait, since one whose client has left waits all the same."""

MAX_DELETION_MS = 3_600_000
"""The longest that a DeleteRecords may wait, for the same reason."""

TOLD_WITHIN_S = 5.0
"""How long a change waits for a controller to tell a broker that has just started; then it goes by the store."""

ANSWERED_WITHIN_S = 1.0
"""The same for a question."""


class Runner(Protocol):
    """What steps a core."""

    def put(self, event: Event) -> None: ...


class Host(Protocol):
    """The broker, as its Api needs it."""

    settings: BrokerSettings
    address: Address
    manager: ReplicaManager
    store: StoreLink
    topics: Topics
    departed: Departed
    logs: ReplicaLogs

    @property
    def replicas(self) -> Runner: ...

    @property
    def control(self) -> Runner: ...

    def know_safe(self) -> None: ...


class Api:
    """Handles every request of one broker."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        self._cluster_id: str | None = None
        settings = host.settings
        self._describing = Describing(
            settings,
            host.manager.metadata,
            host.topics,
            host.logs,
            host.departed,
            lambda: self._cluster_id,
            lambda: Broker(settings.broker_id, -1, *host.address, settings.rack),
        )
        describing = self._describing
        self._stored = StoredMetadata(host.store, self._take_stored)
        store = AnySession(host.store)
        self._admin = Admin(store, host.topics, lambda: describing.brokers, settings.topic)
        admin = self._admin
        altering = Altering(store, host.topics, settings.topic)
        self._handlers: dict[int, Callable[[Exchange, Frame], None]] = {
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
            ApiKey.DELETE_RECORDS: self._delete_records,
            ApiKey.LEADER_AND_ISR: self._control,
            ApiKey.STOP_REPLICA: self._control,
            ApiKey.UPDATE_METADATA: self._control,
            ApiKey.CONTROLLED_SHUTDOWN: self._control,
            ApiKey.API_VERSIONS: self._api_versions,
        }
        self._answers: dict[int, Callable[[Any, int], Fields]] = {
            ApiKey.METADATA: describing.metadata,
            ApiKey.DESCRIBE_CLUSTER: lambda request, version: describing.cluster(),
            ApiKey.DESCRIBE_CONFIGS: lambda request, version: describing.configs(request),
            ApiKey.DESCRIBE_LOG_DIRS: lambda request, version: describing.log_dirs(request),
            ApiKey.FIND_COORDINATOR: describing.coordinator,
            ApiKey.OFFSET_FETCH: lambda request, version: describing.committed(request),
        }
        self._works: dict[int, Callable[[Any], Awaitable[Fields]]] = {
            ApiKey.INIT_PRODUCER_ID: admin.init_producer_id,
            ApiKey.CREATE_TOPICS: admin.create_topics,
            ApiKey.DELETE_TOPICS: admin.delete_topics,
            ApiKey.CREATE_PARTITIONS: admin.create_partitions,
            ApiKey.ALTER_CONFIGS: altering.replace,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: altering.change,
            ApiKey.ELECT_LEADERS: admin.elect_leaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: admin.alter_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: admin.list_reassignments,
        }
        known = {*self._handlers, *self._answers, *self._works}
        self._offered = {key: versions for key, versions in TO_CLIENTS.items() if key in known}

    def handle(self, exchange: Exchange, frame: Frame) -> None:
        """Take one request. Raises PeerProtocolError for what no peer may send."""
        key = exchange.header.api_key
        handler = self._handlers.get(key)
        if handler is not None:
            handler(exchange, frame)
        elif key in self._answers or key in self._works:
            request = cold.decode_request(frame, exchange.header)
            if key in self._answers and self._is_told() and not (key == ApiKey.METADATA and self._in_doubt(request)):
                self._answer(exchange, self._answers[key](request, exchange.header.api_version))
            else:
                self._start(self._work(exchange, request))
        else:
            exchange.close()

    def _answer(self, exchange: Exchange, fields: Fields) -> None:
        exchange.answer(cold.encode_response(exchange.header, **fields))

    def _is_told(self) -> bool:
        """Whether a controller has told this process of the cluster."""
        return self._host.manager.metadata.is_told

    async def _inform(self, wait_s: float) -> None:
        """Wait for a controller, and where none tells, read the store: what is not known here must not be denied."""
        wait_s = 0 if self._host.manager.metadata.is_read else wait_s
        if not await self._host.topics.until(self._is_told, wait_s):
            await self._stored.refresh()

    def _take_stored(self, live: list[Broker], states: list[PartitionState]) -> None:
        self._host.manager.metadata.read(live, states, self._host.settings.broker_id)
        self._host.departed.changed()
        self._host.topics.replaced()

    def _in_doubt(self, request: Any) -> bool:
        """Whether somebody leads what is asked for who has just hung up on us; soon we are told who leads instead."""
        doubted = self._host.departed.doubted()
        return bool(doubted) and not doubted.isdisjoint(self._describing.leaders(request))

    async def _work(self, exchange: Exchange, request: Any) -> None:
        key, version = exchange.header.api_key, exchange.header.api_version
        try:
            if not self._is_told():
                await self._inform(ANSWERED_WITHIN_S if key in self._answers else TOLD_WITHIN_S)
            if key == ApiKey.METADATA:
                await self._host.topics.until(lambda: not self._in_doubt(request), DOUBT_S)
                if self._describing.would_deny(request, version):
                    exchange.close()  # the client asks another broker
                    return
            if key in self._answers:
                self._answer(exchange, self._answers[key](request, version))
            else:
                self._answer(exchange, await self._works[key](request))
        except Exception:
            _log.exception("%s: request %s failed", exchange.client.peer, exchange.header)
            exchange.close()

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    # What goes to the replication core

    def _produce(self, exchange: Exchange, frame: Frame) -> None:
        header = exchange.header
        request, transactional_id = produce.decode_request(frame, header)
        if header.api_version < FIRST_REAL_PRODUCE:
            refused = produce.refusal(request, ErrorCode.UNSUPPORTED_VERSION)
        elif transactional_id is not None:
            refused = produce.refusal(request, ErrorCode.INVALID_REQUEST, "there are no transactions here")
        else:
            refused = None
            exchange.encode = lambda response: produce.encode_response(response, header)
            self._host.replicas.put(Received(exchange, request))
        if request.acks == 0:
            exchange.answer(())
        elif refused is not None:
            exchange.answer(produce.encode_response(refused, header))

    def _fetch(self, exchange: Exchange, frame: Frame) -> None:
        header, topics = exchange.header, self._host.topics
        nameless = []

        def name_of(topic_id: str) -> str | None:
            name = topics.name_of(topic_id)
            if name is None:
                nameless.append(topic_id)
            return name

        request, unknown = fetch.decode_request(frame, header, name_of)
        exchange.follower = request.replica_id >= 0
        if exchange.follower and not exchange.client.internal:
            raise PeerProtocolError(f"a fetch as replica {request.replica_id}, which a client is not")
        if nameless and request.session_epoch > 0:
            # What else is in the session is not in the request; and what is to be forgotten, since it was deleted, may
            # be in the session by a name that nobody knows any more, and would be told of again and again.
            response = FetchResponse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            exchange.answer(fetch.encode_response(response, header))
            return
        if unknown:
            request = replace(request, session_id=0, session_epoch=-1, max_wait_ms=0)
        if request.max_wait_ms > MAX_WAIT_MS:
            request = replace(request, max_wait_ms=MAX_WAIT_MS)
        ids = {asked.partition.topic: asked.topic_id for asked in request.partitions}

        def id_of(name: str) -> str:
            return ids.get(name) or topics.id_of(name) or ""

        def encode(response: FetchResponse) -> Sequence[Any]:
            leaders = {one.leader for one in response.partitions if one.error is not ErrorCode.NONE}
            live = self._describing.brokers
            nodes = [live[one] for one in sorted(leaders) if one in live]
            frame: list[Any] = fetch.encode_response(response, header, id_of, unknown=unknown, nodes=nodes)
            return frame

        exchange.encode = encode
        self._host.replicas.put(Received(exchange, request))

    def _list_offsets(self, exchange: Exchange, frame: Frame) -> None:
        header = exchange.header
        request = offsets.decode_list_offsets(frame, header)
        exchange.encode = lambda response: offsets.encode_list_offsets_answer(response, header)
        self._host.replicas.put(Received(exchange, request))

    def _epoch_ends(self, exchange: Exchange, frame: Frame) -> None:
        header = exchange.header
        exchange.encode = lambda response: offsets.encode_offset_for_leader_epoch_answer(response, header)
        self._host.replicas.put(Received(exchange, offsets.decode_offset_for_leader_epoch(frame, header)))

    def _delete_records(self, exchange: Exchange, frame: Frame) -> None:
        header = exchange.header
        request = deletion.decode_delete_records(frame, header)
        if request.timeout_ms > MAX_DELETION_MS:
            request = replace(request, timeout_ms=MAX_DELETION_MS)
        exchange.encode = lambda response: deletion.encode_delete_records_answer(response, header)
        self._host.replicas.put(Received(exchange, request))

    # What the controller says, and what it is told

    def _control(self, exchange: Exchange, frame: Frame) -> None:
        header = exchange.header
        request = brokers.decode_request(frame, header)
        if isinstance(request, ControlledShutdownRequest):
            exchange.encode = lambda response: brokers.encode_response(response, header)
            self._host.control.put(Received(exchange, request))
            return

        def encode(response: Any) -> Sequence[Any]:
            self._obeyed(request, response)
            return brokers.encode_response(response, header)

        exchange.encode = encode
        self._told(exchange, request)

    def obey(self, request: ControlRequest) -> asyncio.Future[ControlResponse]:
        """What the controller here says to its own broker. ConnectionError: there is no answer, as from any other."""
        answer: asyncio.Future[ControlResponse] = asyncio.get_running_loop().create_future()

        def reply(response: ControlResponse) -> None:
            if answer.done():
                return
            try:
                self._obeyed(request, response)
                answer.set_result(response)
            except Exception as error:
                _log.exception("%s of this broker's own controller failed", type(request).__name__)
                answer.set_exception(ConnectionError(f"{type(error).__name__}: {error}"))

        self._told(Within(reply), request)
        return answer

    def _told(self, reply_to: Hashable, request: ControlRequest) -> None:
        self._host.replicas.put(Received(reply_to, request))
        self._host.departed.changed()
        self._host.topics.changed(request)

    def _obeyed(self, request: ControlRequest, response: Any) -> None:
        log_applied(request, response.error, getattr(response, "partitions", ()))
        if _tells_all(request, response):
            self._host.know_safe()

    # What is answered here

    def _api_versions(self, exchange: Exchange, frame: Frame) -> None:
        exchange.answer(cold.api_versions(exchange.header, self._offered))

    def registered(self) -> None:
        """There is a session with the store, by which this broker is known."""
        if self._cluster_id is None:
            self._start(self._learn_cluster_id())

    async def _learn_cluster_id(self) -> None:
        """Find, or choose, the id of this cluster; at the next registration when the store does not answer."""
        wanted = urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        try:
            with contextlib.suppress(NodeExistsError):
                await self._host.store.multi((Create(CLUSTER_ID, wanted.encode()),))
            (node,) = await self._host.store.get_nodes((CLUSTER_ID,))
        except CoordinationError as error:
            _log.warning("the cluster's id is not known yet: %s", error)
            return
        if node is not None:
            self._cluster_id = node.data.decode()


def _tells_all(request: Any, response: Any) -> bool:
    """Whether a controller that has read this registration has told everything, and it was taken."""
    return (
        isinstance(request, LeaderAndIsrRequest)
        and request.is_init
        and isinstance(response, LeaderAndIsrResponse)
        and response.error is ErrorCode.NONE
    )
