"""Api: which request goes where, and how its answer is written.

Produce, Fetch, offsets and what a controller says go to the cores, which answer when they will; all else is answered
here, at once or by a task of its own. What a broker does not offer never gets this far: it ends its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from kreplog.core.events import Event, Received
from kreplog.core.messages import (
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    FetchResponse,
    LeaderAndIsrRequest,
    PartitionState,
    ProduceRequest,
    StopReplicaRequest,
)
from kreplog.core.replication.manager import ReplicaManager
from kreplog.errors import CoordinationError, ErrorCode, KreplogError, NodeExistsError, PeerProtocolError
from kreplog.server.handlers.admin import Admin, Fields
from kreplog.server.handlers.configs import Altering
from kreplog.server.handlers.inspection import inspected, refusals
from kreplog.server.handlers.metadata import Describing, Description
from kreplog.server.handlers.stored_metadata import StoredMetadata
from kreplog.server.handlers.topics import Topics
from kreplog.server.monitoring.logs import log_applied
from kreplog.server.network.connections import Frame
from kreplog.server.network.internal import Address
from kreplog.server.network.serving import LocalRequest, RequestContext
from kreplog.server.network.slices import INLINE_BYTES, INLINE_ENTRIES, make_pool, max_entries
from kreplog.server.replication.recently_failed import SUSPECTED_S, RecentlyFailedBrokers
from kreplog.server.runtime.store import AnySession, StoreLink
from kreplog.server.settings import BrokerSettings
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.types import BrokerRegistration, Create
from kreplog.wire import control_messages, delete_records, fetch, generic, offsets, produce
from kreplog.wire.frames import MAX_ITEMS, RequestHeader
from kreplog.wire.versions import FIRST_REAL_PRODUCE, TO_CLIENTS, ApiKey

_log = logging.getLogger("kreplog.server")

CLUSTER_ID = "/cluster_id"
"""In the store: 22 characters that no other cluster has."""


MAX_WAIT_MS = 60_000
"""The longest that a fetch may wait, since one whose client has left waits all the same."""

MAX_DELETION_MS = 3_600_000
"""The longest that a DeleteRecords may wait, for the same reason."""

REPLICAS_AT_ONCE = 20
"""Replicas that are created or deleted in one iteration of the event loop: each takes up to a millisecond."""

CHANGE_WAITS_S = 5.0
"""How long a request that changes the cluster waits for a controller's metadata after a start, before the store."""

QUERY_WAITS_S = 1.0
"""The same for a request that reads metadata."""

T = TypeVar("T")


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
    recently_failed: RecentlyFailedBrokers
    hosted: HostedReplicas
    max_replicas: int

    @property
    def replicas(self) -> Runner: ...

    @property
    def control(self) -> Runner: ...

    def metadata_changed(self) -> None: ...


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
            host.hosted,
            host.recently_failed,
            lambda: self._cluster_id,
            lambda: BrokerRegistration(settings.broker_id, -1, *host.address, settings.rack),
        )
        describing = self._describing
        self._stored = StoredMetadata(host.store, self._take_stored)
        store = AnySession(host.store)
        self._admin = Admin(
            store,
            host.topics,
            lambda: describing.brokers,
            settings.topic,
            settings.max_partitions,
            host.max_replicas,
        )
        admin = self._admin
        altering = Altering(store, host.topics, settings.topic)
        self._handlers: dict[int, Callable[[RequestContext, Frame], None]] = {
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.LEADER_AND_ISR: self._control,
            ApiKey.STOP_REPLICA: self._control,
            ApiKey.UPDATE_METADATA: self._control,
            ApiKey.CONTROLLED_SHUTDOWN: self._control,
            ApiKey.API_VERSIONS: self._api_versions,
        }
        self._decoders: dict[int, Callable[[Frame, RequestHeader, int], Any]] = {
            ApiKey.LIST_OFFSETS: offsets.decode_list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.decode_offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: delete_records.decode_delete_records,
        }
        self._encoders: dict[int, Callable[[Any, RequestHeader], Sequence[Any]]] = {
            ApiKey.LIST_OFFSETS: offsets.encode_list_offsets_response,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.encode_offset_for_leader_epoch_response,
            ApiKey.DELETE_RECORDS: delete_records.encode_delete_records_response,
        }
        self._answers: dict[int, Callable[[Any, int], Description]] = {
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
        known = {*self._handlers, *self._encoders, *self._answers, *self._works}
        self._pool = make_pool()
        self._offered = {key: versions for key, versions in TO_CLIENTS.items() if key in known}

    def handle(self, exchange: RequestContext, frame: Frame) -> None:
        """Take one request. Raises PeerProtocolError for what no peer may send."""
        key = exchange.header.api_key
        handler = self._handlers.get(key)
        if handler is not None:
            handler(exchange, frame)
        elif key not in self._encoders and key not in self._answers and key not in self._works:
            exchange.close()
        elif len(frame) <= INLINE_BYTES:
            self._dispatch(exchange, self._decode(exchange, frame, self._max_entries(key)))
        else:
            self._start(self._dispatch_large(exchange, frame))

    def _max_entries(self, key: int) -> int:
        """The limit by the metadata of the cluster; the general one while there are none."""
        manager = self._host.manager
        if not self._has_metadata():
            return MAX_ITEMS
        return max_entries(key, max(len(manager.metadata.partitions), len(manager.partitions)))

    def _decode(self, exchange: RequestContext, frame: Frame, budget: int) -> Any:
        header = exchange.header
        return self._decoders.get(header.api_key, generic.decode_request)(frame, header, budget)

    async def _dispatch_large(self, exchange: RequestContext, frame: Frame) -> None:
        """Decode a request in a thread and carry it out; the connection's later requests wait for that."""
        exchange.hold(len(frame))
        try:
            with _closing_on_error(exchange):
                budget = self._max_entries(exchange.header.api_key)
                request = await self._in_thread(self._decode, exchange, frame, budget)
                exchange.offload = self._answer_from_thread
                self._dispatch(exchange, request)
        finally:
            exchange.release(len(frame))

    def _dispatch(self, exchange: RequestContext, request: Any) -> None:
        key = exchange.header.api_key
        if key == ApiKey.DELETE_RECORDS and request.timeout_ms > MAX_DELETION_MS:
            request = replace(request, timeout_ms=MAX_DELETION_MS)
        if key in self._encoders:
            exchange.encode = lambda response: self._encoders[key](response, exchange.header)
            self._put(exchange, request)
        elif key in self._answers and self._has_metadata() and not (key == ApiKey.METADATA and self._in_doubt(request)):
            self._describe(exchange, request)
        else:
            self._start(self._work(exchange, request))

    def _describe(self, exchange: RequestContext, request: Any) -> None:
        """Answer from the state as of now; a large response is made and encoded in a thread."""
        header = exchange.header
        entries, make = self._answers[header.api_key](request, header.api_version)
        if entries <= INLINE_ENTRIES:
            exchange.answer(generic.encode_response(header, **make()))
        else:
            self._answer_from_thread(lambda: generic.encode_response(header, **make()), exchange)

    def _answer_from_thread(self, encode: Callable[[], Sequence[Any]], exchange: RequestContext) -> None:
        self._start(self._encode(encode, exchange))

    async def _encode(self, encode: Callable[[], Sequence[Any]], exchange: RequestContext) -> None:
        try:
            if not exchange.client.closed:
                exchange.answer(await self._in_thread(encode))
        except Exception:
            _log.exception("%s: the answer to %s cannot be written", exchange.client.peer, exchange.header)
            exchange.close()

    async def _in_thread(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    def _put(self, exchange: RequestContext, request: Any) -> None:
        """Hand a request to the core; a large one in parts, between which the event loop serves others and the
        connection's later requests wait."""
        partitions = request.partitions
        if len(partitions) <= INLINE_ENTRIES:
            self._host.replicas.put(Received(exchange, request))
            return
        exchange.hold(0)
        parts = [
            replace(request, partitions=partitions[start : start + INLINE_ENTRIES])
            for start in range(0, len(partitions), INLINE_ENTRIES)
        ]
        put = self._start(self._put_parts(parts, exchange.reply))
        put.add_done_callback(lambda _: exchange.release(0))

    async def _put_parts(self, parts: Sequence[Any], reply: Callable[[Any], None]) -> None:
        """Hand each part of a request to the core in an iteration of its own; reply once, with all partitions and the
        first error."""
        answers: list[Any] = [None] * len(parts)

        def gather(index: int, answer: Any) -> None:
            answers[index] = answer
            if all(answers):
                whole = tuple(itertools.chain.from_iterable(one.partitions for one in answers))
                refused = next((one for one in answers if getattr(one, "error", None)), answer)
                reply(replace(refused, partitions=whole))

        for index, part in enumerate(parts):
            self._host.replicas.put(Received(LocalRequest(partial(gather, index)), part))
            await asyncio.sleep(0)  # the event loop serves others

    def _has_metadata(self) -> bool:
        """Whether a controller has sent its metadata to this process."""
        return self._host.manager.metadata.from_controller

    async def _await_metadata(self, wait_s: float) -> None:
        """Wait for a controller's metadata, then read the store: no existing topic must be reported as unknown."""
        wait_s = 0 if self._host.manager.metadata.from_store else wait_s
        if not await self._host.topics.until(self._has_metadata, wait_s):
            await self._stored.refresh()

    def _take_stored(self, live: list[BrokerRegistration], states: list[PartitionState]) -> None:
        self._host.manager.metadata.read(live, states, self._host.settings.broker_id)
        self._host.recently_failed.metadata_changed()
        self._host.topics.replaced()

    def _in_doubt(self, request: Any) -> bool:
        """Whether somebody leads what is asked for who has just hung up on us; soon we are told who leads instead."""
        doubted = self._host.recently_failed.suspected()
        return bool(doubted) and not doubted.isdisjoint(self._describing.leaders(request))

    async def _work(self, exchange: RequestContext, request: Any) -> None:
        key = exchange.header.api_key
        with _closing_on_error(exchange):
            if not self._has_metadata():
                await self._await_metadata(QUERY_WAITS_S if key in self._answers else CHANGE_WAITS_S)
            if key == ApiKey.METADATA:
                await self._host.topics.until(lambda: not self._in_doubt(request), SUSPECTED_S)
                if self._describing.would_deny(request, exchange.header.api_version):
                    exchange.close()  # the client tries another broker
                    return
            if key in self._answers:
                self._describe(exchange, request)
            else:
                header, fields = exchange.header, await self._works[key](request)
                large = exchange.offload is not None or len(self._host.manager.metadata.partitions) > INLINE_ENTRIES
                encode = partial(generic.encode_response, header, **fields)
                exchange.answer(await self._in_thread(encode) if large else encode())

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # What goes to the replication core

    def _produce(self, exchange: RequestContext, frame: Frame) -> None:
        header = exchange.header
        request, transactional_id = produce.decode_request(frame, header, self._max_entries(ApiKey.PRODUCE))
        if header.api_version < FIRST_REAL_PRODUCE:
            refused = produce.refusal(request, ErrorCode.UNSUPPORTED_VERSION)
        elif transactional_id is not None:
            refused = produce.refusal(request, ErrorCode.INVALID_REQUEST, "there are no transactions here")
        else:
            refused = None
            exchange.encode = lambda response: produce.encode_response(response, header)
            oversized = refusals(request, len(frame))
            if oversized is None:
                self._put(exchange, request)
            else:
                exchange.hold(len(frame))
                self._start(self._inspect(exchange, request, oversized, len(frame)))
        if request.acks == 0:
            exchange.answer(())
        elif refused is not None:
            exchange.answer(produce.encode_response(refused, header))

    async def _inspect(
        self, exchange: RequestContext, request: ProduceRequest, refused: dict[int, KreplogError], size: int
    ) -> None:
        """Inspect batches in a thread, then append them. The connection's later requests wait, so that its batches are
        appended in order."""
        try:
            with _closing_on_error(exchange):
                self._put(exchange, await self._in_thread(inspected, request, refused))
        finally:
            exchange.release(size)

    def _fetch(self, exchange: RequestContext, frame: Frame) -> None:
        header, topics = exchange.header, self._host.topics
        nameless = []

        def name_of(topic_id: str) -> str | None:
            name = topics.name_of(topic_id)
            if name is None:
                nameless.append(topic_id)
            return name

        request, unknown = fetch.decode_request(frame, header, name_of, self._max_entries(ApiKey.FETCH))
        if len(request.partitions) > 1:
            listed = {partition.partition: partition for partition in request.partitions}
            if len(listed) < len(request.partitions):
                request = replace(request, partitions=tuple(listed.values()))
        exchange.follower = request.replica_id >= 0
        if exchange.follower and not exchange.client.internal:
            raise PeerProtocolError(
                f"a fetch as replica {request.replica_id} on a client listener: brokers fetch on the internal one"
            )
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
            leaders = {partition.leader for partition in response.partitions if partition.error is not ErrorCode.NONE}
            live = self._describing.brokers
            nodes = [live[leader] for leader in sorted(leaders) if leader in live]
            frame: list[Any] = fetch.encode_response(response, header, id_of, unknown=unknown, nodes=nodes)
            return frame

        exchange.encode = encode
        self._host.replicas.put(Received(exchange, request))

    # Requests of the controller

    def _control(self, exchange: RequestContext, frame: Frame) -> None:
        header = exchange.header
        request = control_messages.decode_request(frame, header)
        if isinstance(request, ControlledShutdownRequest):
            exchange.encode = lambda response: control_messages.encode_response(response, header)
            self._host.control.put(Received(exchange, request))
            return

        def encode(response: Any) -> Sequence[Any]:
            _log_response(request, response)
            return control_messages.encode_response(response, header)

        exchange.encode = encode
        self._dispatch_control(exchange, request)

    def handle_local_control(self, request: ControlRequest) -> asyncio.Future[ControlResponse]:
        """Apply a request of the controller in this process. Raises ConnectionError in place of a lost response."""
        answer: asyncio.Future[ControlResponse] = asyncio.get_running_loop().create_future()

        def reply(response: ControlResponse) -> None:
            if not answer.done():
                _log_response(request, response)
                answer.set_result(response)

        self._dispatch_control(LocalRequest(reply), request)
        return answer

    def _dispatch_control(self, reply_to: RequestContext | LocalRequest, request: ControlRequest) -> None:
        parts = _paced(request, self._host.manager)
        if len(parts) == 1:
            self._host.replicas.put(Received(reply_to, request))
            self._changed(request)
        else:
            put = self._start(self._put_parts(parts, reply_to.reply))
            put.add_done_callback(lambda _: self._changed(request))

    def _changed(self, request: ControlRequest) -> None:
        self._host.metadata_changed()
        self._host.topics.changed(request)

    # What is answered here

    def _api_versions(self, exchange: RequestContext, frame: Frame) -> None:
        exchange.answer(generic.api_versions(exchange.header, self._offered))

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


@contextlib.contextmanager
def _closing_on_error(exchange: RequestContext) -> Iterator[None]:
    """Log what a request raises, and close its connection; no other request suffers from it."""
    try:
        yield
    except PeerProtocolError as error:
        _log.warning("%s: %s; its connection is closed", exchange.client.peer, error)
        exchange.close()
    except Exception:
        _log.exception("%s: request %s failed; its connection is closed", exchange.client.peer, exchange.header)
        exchange.close()


def _log_response(request: ControlRequest, response: Any) -> None:
    log_applied(request, response.error, getattr(response, "partitions", ()))


def _paced(request: Any, manager: ReplicaManager) -> list[Any]:
    """The request in parts that each create or delete at most REPLICAS_AT_ONCE replicas, and share its sequence number.
    An INIT stays whole, since it says which replicas there are; those are open already."""
    match request:
        case LeaderAndIsrRequest(is_init=False):
            is_slow = [partition.partition not in manager.partitions for partition in request.partitions]
        case StopReplicaRequest():
            is_slow = [partition.delete for partition in request.partitions]
        case _:
            return [request]
    parts, start, count = [], 0, 0
    for at, slow in enumerate(is_slow):
        count += slow
        if count > REPLICAS_AT_ONCE:
            parts.append(replace(request, partitions=request.partitions[start:at]))
            start, count = at, 1
    return [*parts, replace(request, partitions=request.partitions[start:])] if parts else [request]
