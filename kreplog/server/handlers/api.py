"""Api: dispatches every request of a broker to its handler, and encodes the response.

Produce, Fetch, ListOffsets, DeleteRecords, the requests of groups and those of controllers go to the cores, which reply
later; all other requests are handled here, at once or in a task. An API or version that a broker does not offer closes
the connection before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from kreplog.core.broker.add_partitions import GatheredResponses
from kreplog.core.broker.client_requests import is_forged, refused_produce
from kreplog.core.broker.coordinator_lookup import needs_offsets_topic
from kreplog.core.broker.metadata_waits import MetadataNeed, MetadataWaits, Until
from kreplog.core.broker.request_parts import PartResponses, split_control, split_entries
from kreplog.core.consumer_group_messages import ConsumerGroupHeartbeatRequest
from kreplog.core.events import Received
from kreplog.core.group_messages import OFFSETS_TOPIC, JoinGroupRequest
from kreplog.core.groups.group_configs import GroupConfigs
from kreplog.core.messages import (
    CONSUMER,
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    FetchResponse,
    ProduceRequest,
    TransactionalProduce,
    WriteMarkersRequest,
    refusal_of_produce,
)
from kreplog.core.quotas.quota_manager import ClientQuotaManager
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.sessions import without_unknown_topics
from kreplog.core.security.authorizer import Authorizer
from kreplog.core.transaction_messages import AddPartitionsToTxnResponse, EndTxnRequest
from kreplog.core.transactions.marker_writer import APPEND_TIMEOUT_MS
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.errors import ErrorCode, KreplogError, PeerProtocolError
from kreplog.server.authorization.acl_cache import AclCache
from kreplog.server.authorization.checks import Authorized
from kreplog.server.authorization.fetch_sessions import SessionChecks
from kreplog.server.authorization.guard import Guard
from kreplog.server.clock import loop_ms
from kreplog.server.dynamic_settings import DynamicSettings
from kreplog.server.handlers.acl_handlers import AclHandlers
from kreplog.server.handlers.admin import AdminHandlers, Fields, Mutate, unlimited
from kreplog.server.handlers.automatic_topics import AutomaticTopics
from kreplog.server.handlers.cluster_id import ClusterId
from kreplog.server.handlers.configs import ConfigHandlers
from kreplog.server.handlers.coordinators import CoordinatorHandlers
from kreplog.server.handlers.feature_handlers import FeatureHandlers
from kreplog.server.handlers.handler_tables import commands, mutations, queries
from kreplog.server.handlers.inspection import Recompression, inspected, recompressions, refusals
from kreplog.server.handlers.log_dir_handlers import LogDirHandlers
from kreplog.server.handlers.metadata import MetadataHandlers, lists_all
from kreplog.server.handlers.new_producer_ids import ProducerIdHandlers
from kreplog.server.handlers.producer_descriptions import ProducerHandlers
from kreplog.server.handlers.quota_handlers import QuotaHandlers
from kreplog.server.handlers.sasl_requests import SaslHandlers
from kreplog.server.handlers.stored_metadata import StoredMetadata
from kreplog.server.handlers.topics import TopicViews
from kreplog.server.handlers.user_credentials import UserCredentialHandlers
from kreplog.server.monitoring.logs import log_applied
from kreplog.server.network.client_quotas import MeasuredWork
from kreplog.server.network.connections import Frame
from kreplog.server.network.internal import Address
from kreplog.server.network.serving import LocalRequest, RequestContext
from kreplog.server.network.slices import ALLOWANCE, INLINE_BYTES, INLINE_ENTRIES, make_pool, max_entries
from kreplog.server.runtime.feature_cache import FeatureCache
from kreplog.server.runtime.group_config_cache import GroupConfigCache
from kreplog.server.runtime.quota_cache import QuotaCache
from kreplog.server.runtime.store import AnySession, StoreLink
from kreplog.server.security.credential_cache import CredentialCache
from kreplog.server.settings import BrokerSettings
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.replica_moves import ReplicaMoves
from kreplog.types import BrokerRegistration, Endpoint, named_endpoints
from kreplog.wire import (
    consumer_protocol,
    control_messages,
    delete_records,
    fetch,
    generic,
    groups,
    offsets,
    produce,
    transactions,
)
from kreplog.wire.frames import MAX_ITEMS, RequestHeader
from kreplog.wire.versions import ADDS_PARTITIONS_FROM, FIRST_REAL_PRODUCE, TO_CLIENTS, ApiKey

_log = logging.getLogger("kreplog.server")

_OF_SEVERAL_GROUPS: dict[int, tuple[str, str]] = {
    ApiKey.DESCRIBE_GROUPS: ("group_ids", "groups"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ("group_ids", "groups"),
    ApiKey.DELETE_GROUPS: ("group_ids", "results"),
    ApiKey.OFFSET_FETCH: ("groups", "groups"),
}
"""Requests for several groups: (request field, response field) that hold an entry for each group."""

_GROUP_ENCODERS = {**groups.ENCODERS, **consumer_protocol.ENCODERS}

_DECODERS: dict[int, Callable[[Frame, RequestHeader, int], Any]] = {
    ApiKey.LIST_OFFSETS: offsets.decode_list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.decode_offset_for_leader_epoch,
    ApiKey.DELETE_RECORDS: delete_records.decode_delete_records,
    **groups.DECODERS,
    **consumer_protocol.DECODERS,
    **transactions.DECODERS,
    ApiKey.WRITE_TXN_MARKERS: partial(transactions.decode_write_markers, timeout_ms=APPEND_TIMEOUT_MS),
}
"""Requests that are decoded into messages of the cores; those that are not here have messages of wire.generic."""

_ENCODERS: dict[int, Callable[[Any, RequestHeader], Sequence[Any]]] = {
    ApiKey.LIST_OFFSETS: offsets.encode_list_offsets_response,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.encode_offset_for_leader_epoch_response,
    ApiKey.DELETE_RECORDS: delete_records.encode_delete_records_response,
    **_GROUP_ENCODERS,
    **transactions.ENCODERS,
}
"""Encoders of the responses of cores, which reply later."""

NO_PARTITIONS = FetchResponse(ErrorCode.NONE)
"""The response to the authorized part of a fetch that has none."""

ACLS_WAIT_S = 5.0
"""How long a request waits for the first read of the ACLs, before its connection is closed."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Host:
    """The parts of a broker that Api needs. address, endpoints: of its client listeners, the first and all.
    max_replicas: max.broker.partitions, lowered to what the limit on open files allows. receive: passes a request
    to its core. after_steps: calls a function once the replication core has stepped all that it has received."""

    settings: BrokerSettings
    dynamic: DynamicSettings
    address: Address
    endpoints: tuple[Endpoint, ...]
    manager: ReplicaManager
    transactions: TransactionCoordinator
    store: StoreLink
    user_credentials: CredentialCache
    topics: TopicViews
    metadata_waits: MetadataWaits
    hosted: HostedReplicas
    moves: ReplicaMoves
    max_replicas: int
    receive: Callable[[Received], None]
    after_steps: Callable[[Callable[[], None]], None]
    authorizer: Authorizer | None
    acl_cache: AclCache | None
    quotas: ClientQuotaManager
    quota_cache: QuotaCache
    group_configs: GroupConfigs
    group_config_cache: GroupConfigCache
    feature_cache: FeatureCache


class Api:
    """Handles every request of a broker."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        self._cluster_id = ClusterId(host.store)
        settings = host.settings
        own = BrokerRegistration(
            settings.broker_id, -1, *host.address, settings.rack, endpoints=named_endpoints(host.endpoints)
        )
        self._metadata_handlers = MetadataHandlers(
            host.dynamic,
            host.manager.metadata,
            host.topics,
            host.hosted,
            host.metadata_waits.recently_failed,
            lambda: self._cluster_id.text,
            lambda: own,
            self._missing_topic,
            loop_ms,
            host.group_configs,
        )
        metadata = self._metadata_handlers
        self._stored = StoredMetadata(host.store, host.metadata_waits, host.topics.replaced, settings.topic, loop_ms)
        store = AnySession(host.store)
        self._admin = AdminHandlers(
            store,
            host.topics,
            lambda: metadata.brokers,
            settings,
            host.max_replicas,
            host.dynamic.new_topic_settings,
        )
        self._producer_ids = ProducerIdHandlers(store, host.transactions, host.receive, self._start)
        self._automatic = AutomaticTopics(
            settings.auto_create_topics,
            settings.num_partitions,
            host.manager.metadata,
            self._admin.create_default_topics,
            self._start,
        )
        self.sasl = SaslHandlers(host.user_credentials, settings, self._start)
        self._handlers: dict[int, Callable[[RequestContext, Frame], None]] = {
            ApiKey.SASL_HANDSHAKE: self.sasl.handshake,
            ApiKey.SASL_AUTHENTICATE: self.sasl.authenticate,
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.LEADER_AND_ISR: self._control,
            ApiKey.STOP_REPLICA: self._control,
            ApiKey.UPDATE_METADATA: self._control,
            ApiKey.CONTROLLED_SHUTDOWN: self._control,
            ApiKey.API_VERSIONS: self._api_versions,
        }
        users = UserCredentialHandlers(store, host.user_credentials)
        self._queries = queries(metadata, ProducerHandlers(host.manager, host.hosted), users)
        self._coordinators = CoordinatorHandlers(
            self._admin, host.topics, metadata.brokers_at, settings.groups, settings.transactions
        )
        configs = ConfigHandlers(store, host.topics, host.dynamic, host.group_config_cache)
        acls = AclHandlers(store, host.authorizer, host.acl_cache)
        quotas = QuotaHandlers(store, host.quotas, host.quota_cache)
        self._features = FeatureHandlers(store, host.feature_cache)
        log_dirs = LogDirHandlers(host.moves, host.dynamic)
        self._commands = commands(
            self._admin, configs, self._producer_ids, acls, users, quotas, self._features, log_dirs
        )
        self._mutations = mutations(self._admin)
        self._in_tasks = {ApiKey.FIND_COORDINATOR, *self._commands, *self._mutations}
        self.guard = Guard(
            host.authorizer,
            host.topics,
            SessionChecks(host.manager.fetch_session),
            loop_ms,
            creates_topics=settings.auto_create_topics,
        )
        known = {*self._handlers, *_DECODERS, *self._queries, *self._in_tasks}
        self._pool = make_pool()
        self._offered = {key: versions for key, versions in TO_CLIENTS.items() if key in known}

    def handle(self, context: RequestContext, frame: Frame) -> None:
        """Handle a request. Raises PeerProtocolError for one that no peer may send."""
        if self.guard.must_wait(context):
            self._start(self._handle_with_acls(context, frame))
        else:
            self._handle(context, frame)

    async def _handle_with_acls(self, context: RequestContext, frame: Frame) -> None:
        """Handle a request once the ACLs have been read; later requests of the connection wait."""
        context.hold(len(frame))
        try:
            with _closing_on_error(context):
                cache = self._host.acl_cache
                if cache is None or await cache.until_ready(ACLS_WAIT_S):
                    self._handle(context, frame)
                else:
                    context.close()
        finally:
            context.release(len(frame))

    def _handle(self, context: RequestContext, frame: Frame) -> None:
        key = context.header.api_key
        handler = self._handlers.get(key)
        if key == ApiKey.ADD_PARTITIONS_TO_TXN and context.header.api_version >= transactions.FROM_LEADERS:
            handler = self._add_for_leaders
        if handler is not None:
            handler(context, frame)
        elif key not in _DECODERS and key not in self._queries and key not in self._in_tasks:
            context.close()
        elif len(frame) <= INLINE_BYTES:
            self._dispatch(context, self._decode(context, frame, self._max_entries(key, len(frame))))
        else:
            self._start_for(context, self._dispatch_large(context, frame))

    def _max_entries(self, key: int, size: int) -> int:
        """Maximum of entries of a request, by the size of the cluster; MAX_ITEMS before the first metadata, and for one
        of so few bytes, `size`, that it cannot have more than all requests may."""
        manager = self._host.manager
        if size <= ALLOWANCE or not self._has_metadata():
            return MAX_ITEMS
        return max_entries(key, max(len(manager.metadata.partitions), len(manager.partitions)))

    def _decode(self, context: RequestContext, frame: Frame, budget: int) -> Any:
        header = context.header
        return _DECODERS.get(header.api_key, generic.decode_request)(frame, header, budget)

    async def _dispatch_large(self, context: RequestContext, frame: Frame) -> None:
        """Decode a request in a thread, then dispatch it; later requests of the connection wait."""
        context.hold(len(frame))
        try:
            with _closing_on_error(context):
                budget = self._max_entries(context.header.api_key, len(frame))
                request = await self._in_thread(context, self._decode, context, frame, budget)
                context.offload = self._respond_from_thread
                self._dispatch(context, request)
        finally:
            context.release(len(frame))

    def _dispatch(self, context: RequestContext, request: Any) -> None:
        key = context.header.api_key
        if key == ApiKey.WRITE_TXN_MARKERS:
            self._write_markers(context, request)
        elif key in _ENCODERS:
            self._dispatch_to_core(context, request)
        elif key in self._queries and self._host.metadata_waits.is_ready(self._need(context, request), loop_ms()):
            self._describe(context, request)
        else:
            self._start_for(context, self._work(context, request))

    def _dispatch_to_core(self, context: RequestContext, request: Any) -> None:
        key = context.header.api_key
        authorized = self.guard.authorize(context, request)
        request = authorized.request
        context.encode = _encoder(_ENCODERS[key], context.header, authorized)
        if request is None:
            context.reply(None)
            return
        if needs_offsets_topic(request) and self._host.topics.get(OFFSETS_TOPIC) is None:
            self._start(self._coordinators.create_offsets_topic())
        if isinstance(request, EndTxnRequest) and self._producer_ids.needs_producer_id(request):
            self._start(self._end_with_new_id(context, request))
        elif key in transactions.ENCODERS:
            if key in (ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_TRANSACTIONS):  # of any number of ids or partitions
                context.offload = self._respond_from_thread
            self._host.receive(Received(context, request))
        elif key in _GROUP_ENCODERS:
            if isinstance(request, (JoinGroupRequest, ConsumerGroupHeartbeatRequest)):
                request = replace(request, client_host=context.client.host)
            self._put_list(context, request, *_OF_SEVERAL_GROUPS.get(key, ("", "")))
        else:
            self._put(context, request)

    def _describe(self, context: RequestContext, request: Any) -> None:
        """Respond from the current state; a large response is built and encoded in a thread."""
        header = context.header
        authorized = self.guard.authorize(context, request)
        request = authorized.request
        if request is None:
            context.respond(generic.encode_response(header, **authorized.finished(None)))
            return
        mutate = unlimited if context.charge is None else context.charge.create_automatically
        entries, make = self._queries[header.api_key](request, header.api_version, context.client.listener, mutate)
        if entries <= INLINE_ENTRIES:
            context.respond(generic.encode_response(header, **authorized.finished(make())))
        else:
            self._respond_from_thread(lambda: generic.encode_response(header, **authorized.finished(make())), context)

    def _respond_from_thread(self, encode: Callable[[], Sequence[Any]], context: RequestContext) -> None:
        self._start_for(context, self._encode(encode, context))

    async def _encode(self, encode: Callable[[], Sequence[Any]], context: RequestContext) -> None:
        try:
            if not context.client.closed:
                context.respond(await self._in_thread(context, encode))
        except Exception as error:
            context.failed(error)

    async def _in_thread(self, context: RequestContext, call: Callable[..., T], *arguments: Any) -> T:
        if context.charge is not None:
            call = context.charge.in_thread(call)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    def _put(self, context: RequestContext, request: Any) -> None:
        """Pass a request to the core; a large one in parts, between which the event loop serves others, while later
        requests of the connection wait."""
        if len(request.partitions) <= INLINE_ENTRIES:
            self._host.receive(Received(context, request))
        else:
            self._put_list(context, request, "partitions", "partitions")

    def _put_list(self, context: RequestContext, request: Any, listed: str, answered: str) -> None:
        """As `_put`. listed, answered: the fields of the request and of its response that the parts have a part of;
        "" of a request that is no list."""
        parts = split_entries(request, listed, INLINE_ENTRIES)
        if len(parts) == 1:
            self._host.receive(Received(context, request))
            return
        context.hold(0)
        put = self._start(self._put_parts(parts, answered, context.reply))
        put.add_done_callback(lambda _: context.release(0))

    async def _put_parts(self, parts: Sequence[Any], answered: str, reply: Callable[[Any], None]) -> None:
        """Pass each part of a request to the core, in an event loop iteration of its own; reply once (PartResponses).
        answered: as in `_put_list`."""
        responses = PartResponses(len(parts), answered)

        def gather(index: int, response: Any) -> None:
            complete = responses.add(index, response)
            if complete is not None:
                reply(complete)

        for index, part in enumerate(parts):
            self._host.receive(Received(LocalRequest(partial(gather, index)), part))
            await asyncio.sleep(0)  # the event loop serves others

    def _has_metadata(self) -> bool:
        """Whether a controller has sent UpdateMetadata to this process."""
        return self._host.manager.metadata.from_controller

    def _need(self, context: RequestContext, request: Any) -> MetadataNeed:
        header = context.header
        if header.api_key != ApiKey.METADATA:
            return MetadataNeed(changes=header.api_key not in self._queries)
        leaders = partial(self._metadata_handlers.leaders, request)
        return MetadataNeed(leaders=leaders, lists_all=lists_all(request, header.api_version))

    async def _await_metadata(self, need: MetadataNeed) -> bool:
        """Wait for what a request waits for; returns whether it is answered."""
        waits, holds = self._host.metadata_waits.begin(need), None
        while True:
            try:
                wait = waits.send(holds)
            except StopIteration as end:
                is_answered: bool = end.value
                return is_answered
            if isinstance(wait, Until):
                holds = _holds(wait) or await self._host.topics.until(partial(_holds, wait), wait.max_ms / 1000)
            else:
                holds = None
                await self._stored.refresh()

    def _missing_topic(self, name: str, may_create: bool, mutate: Mutate) -> ErrorCode:
        return self._automatic.missing(name, may_create, mutate)

    async def _work(self, context: RequestContext, request: Any) -> None:
        key = context.header.api_key
        with _closing_on_error(context):
            if not await self._await_metadata(self._need(context, request)):
                context.close()
                return
            if key in self._queries:
                self._describe(context, request)
                return
            authorized = self.guard.authorize(context, request)
            header, left = context.header, authorized.request
            fields = authorized.finished(None if left is None else await self._carry_out(context, left))
            large = context.offload is not None or self._most_entries(key, fields) > INLINE_ENTRIES
            encode = partial(generic.encode_response, header, **fields)
            context.respond(await self._in_thread(context, encode) if large else encode())

    def _most_entries(self, key: int, fields: Fields) -> int:
        """The most entries that a response may have, however small its request was. fields: of the response."""
        if key == ApiKey.CREATE_TOPICS:
            return sum(len(topic.get("configs", ())) for topic in fields["topics"])
        authorizer = self._host.authorizer
        if key in (ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS) and authorizer is not None:
            return len(authorizer.acls)
        if key == ApiKey.DESCRIBE_CLIENT_QUOTAS:
            return len(self._host.quotas.limits.quotas)
        return len(self._host.manager.metadata.partitions)

    async def _carry_out(self, context: RequestContext, request: Any) -> Fields:
        key = context.header.api_key
        if key == ApiKey.FIND_COORDINATOR:
            return await self._coordinators.find(request, context.client.listener)
        if key in self._mutations:
            return await self._mutations[key](request, unlimited if context.charge is None else context.charge.mutate)
        return await self._commands[key](request)

    def _start_for(self, context: RequestContext, work: Coroutine[Any, Any, None]) -> None:
        """Start work whose time is the request's."""
        self._start(work if context.charge is None else MeasuredWork(work, context.charge))

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.sasl.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # Requests to the replication core

    def _produce(self, context: RequestContext, frame: Frame) -> None:
        header = context.header
        request, transactional_id = produce.decode_request(frame, header, self._max_entries(ApiKey.PRODUCE, len(frame)))
        if transactional_id is not None:
            fields = request.acks, request.timeout_ms, request.partitions
            adds = header.api_version >= ADDS_PARTITIONS_FROM[ApiKey.PRODUCE]
            request = TransactionalProduce(*fields, transactional_id, adds)
        authorized = self.guard.authorize(context, request)
        closes = request.acks == 0 and not authorized.is_whole  # which is all that the producer can notice
        request = authorized.request
        if request is None:
            if closes:
                context.close()
            else:
                context.respond(produce.encode_response(authorized.finished(None), header))
            return
        refused = (
            refusal_of_produce(request, ErrorCode.UNSUPPORTED_VERSION)
            if header.api_version < FIRST_REAL_PRODUCE
            else refused_produce(request)
        )
        if refused is None:
            context.encode = lambda response: produce.encode_response(
                produce.known_to(authorized.finished(response), header.api_version), header
            )
            oversized = refusals(request, len(frame))
            codecs = recompressions(request, self._host.manager.metadata.partitions, self._host.dynamic.current.log)
            if oversized is None and not codecs:
                self._put(context, request)
            else:
                context.hold(len(frame))
                self._start_for(context, self._inspect(context, request, oversized or {}, codecs, len(frame)))
        if request.acks == 0:
            context.respond(())
        if closes:
            context.close()
        elif refused is not None:
            context.respond(produce.encode_response(authorized.finished(refused), header))

    async def _inspect(
        self,
        context: RequestContext,
        request: ProduceRequest,
        refused: dict[int, KreplogError],
        codecs: dict[int, Recompression],
        size: int,
    ) -> None:
        """Inspect batches in a thread, where those that `codecs` names are recompressed; then append them. Later
        requests of the connection wait, so that its batches are appended in order."""
        try:
            with _closing_on_error(context):
                self._put(context, await self._in_thread(context, inspected, request, refused, codecs))
        finally:
            context.release(size)

    def _fetch(self, context: RequestContext, frame: Frame) -> None:
        header, topics = context.header, self._host.topics
        unknown_ids = []

        def name_of(topic_id: str) -> str | None:
            name = topics.name_of(topic_id)
            if name is None:
                unknown_ids.append(topic_id)
            return name

        request, unknown = fetch.decode_request(frame, header, name_of, self._max_entries(ApiKey.FETCH, len(frame)))
        context.follower = request.replica_id > CONSUMER
        if is_forged(request, context.client.internal):
            raise PeerProtocolError(
                f"a fetch of replica {request.replica_id} on a client listener: followers use the internal one"
            )
        check, error = self.guard.check(context), ErrorCode.NONE
        authorized = Authorized(request) if check is None else self.guard.fetch(context, check, request)
        left = authorized.request
        if unknown_ids and left is not None:
            left, error = without_unknown_topics(left, bool(unknown))

        def id_of(name: str) -> str:
            return topics.id_of(name) or ""

        def encode(response: FetchResponse) -> Sequence[Any]:
            if error is not ErrorCode.NONE:
                refusal: Sequence[Any] = fetch.encode_response(FetchResponse(error), header)
                return refusal
            if check is not None:
                response = self.guard.fetched(context, request, check, response)
            response = authorized.finished(response)
            leaders = {partition.leader for partition in response.partitions if partition.error is not ErrorCode.NONE}
            live = self._metadata_handlers.brokers_at(context.client.listener) if leaders else {}
            nodes = [live[leader] for leader in sorted(leaders) if leader in live]
            frame: list[Any] = fetch.encode_response(response, header, id_of, unknown=unknown, nodes=nodes)
            return frame

        context.encode = encode
        charge = context.charge
        if left is None:
            context.reply(NO_PARTITIONS)
        elif charge is not None:
            left = charge.within_quota(left)
            charge.withhold = partial(self._host.manager.fetch_not_sent, left)
            self._host.receive(Received(context, left))
        else:
            self._host.receive(Received(context, left))

    # Transactions

    async def _end_with_new_id(self, context: RequestContext, request: EndTxnRequest) -> None:
        context.reply(await self._producer_ids.end_with_new_id(request))

    def _add_for_leaders(self, context: RequestContext, frame: Frame) -> None:
        """The coordinator's part of KIP-890, for the transactions of one request."""
        header = context.header
        requests = transactions.decode_leaders_add_partitions(frame, header)
        if not requests:
            context.respond(transactions.encode_leaders_add_partitions_response({}, header))
        gathered = GatheredResponses(len(requests))

        def gather(transactional_id: str, response: AddPartitionsToTxnResponse) -> None:
            if responses := gathered.add(transactional_id, response):
                context.respond(transactions.encode_leaders_add_partitions_response(responses, header))

        for request in requests:
            self._host.receive(Received(LocalRequest(partial(gather, request.transactional_id)), request))

    def _write_markers(self, context: RequestContext, request: WriteMarkersRequest) -> None:
        authorized = self.guard.authorize(context, request)
        context.encode = lambda response: transactions.encode_write_markers_response(
            authorized.finished(response), request, context.header
        )
        if authorized.request is None:
            context.reply(None)
        else:
            self._put(context, request)

    # Requests of the controller

    def _control(self, context: RequestContext, frame: Frame) -> None:
        header = context.header
        request = control_messages.decode_request(frame, header)
        if isinstance(request, ControlledShutdownRequest):
            context.encode = lambda response: control_messages.encode_response(response, header)
            self._host.receive(Received(context, request))
            return

        def encode(response: Any) -> Sequence[Any]:
            _log_response(request, response)
            return control_messages.encode_response(response, header)

        context.encode = encode
        self._dispatch_control(context, request)

    def handle_local_control(self, request: ControlRequest) -> asyncio.Future[ControlResponse]:
        """Apply a request of the controller in this process. Raises ConnectionError in place of a lost response."""
        result: asyncio.Future[ControlResponse] = asyncio.get_running_loop().create_future()

        def reply(response: ControlResponse) -> None:
            if not result.done():
                _log_response(request, response)
                result.set_result(response)

        self._dispatch_control(LocalRequest(reply), request)
        return result

    def _dispatch_control(self, reply_to: RequestContext | LocalRequest, request: ControlRequest) -> None:
        parts = split_control(request, self._host.manager.partitions)
        if len(parts) == 1:
            self._host.receive(Received(reply_to, request))
            self._after_step(request)
        else:
            put = self._start(self._put_parts(parts, "partitions", reply_to.reply))
            put.add_done_callback(lambda _: self._after_step(request))

    def _after_step(self, request: ControlRequest) -> None:
        self._host.after_steps(partial(self._metadata_changed, request))

    def _metadata_changed(self, request: ControlRequest) -> None:
        self._host.metadata_waits.recently_failed.metadata_changed(loop_ms())
        self._host.topics.changed(request)

    # ApiVersions, and the cluster id

    def _api_versions(self, context: RequestContext, frame: Frame) -> None:
        context.respond(generic.api_versions(context.header, self._offered, *self._features.announced()))

    def registered(self) -> None:
        """The broker has registered with the store."""
        if self._cluster_id.text is None:
            self._start(self._cluster_id.load())


def _encoder(
    encode: Callable[[Any, RequestHeader], Sequence[Any]], header: RequestHeader, authorized: Authorized
) -> Callable[[Any], Sequence[Any]]:
    """Encodes the response to a request."""
    return lambda response: encode(authorized.finished(response), header)


@contextlib.contextmanager
def _closing_on_error(context: RequestContext) -> Iterator[None]:
    """An error of a request closes its connection."""
    try:
        yield
    except Exception as error:
        context.failed(error)


def _holds(wait: Until) -> bool:
    return wait.condition(loop_ms())


def _log_response(request: ControlRequest, response: Any) -> None:
    log_applied(request, response.error, getattr(response, "partitions", ()))
