"""MetadataHandlers: requests that describe the cluster, from this broker's metadata: topics, brokers, settings, logs.

Requests are messages of kreplog.wire.generic, results are Descriptions. Repeated entries of a request count once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kreplog.config import TopicConfig
from kreplog.core.broker.advertised_brokers import AdvertisedBrokers, advertised_brokers
from kreplog.core.broker.described_partitions import START, PartitionCursor, portion, portion_limit, topics_from
from kreplog.core.broker.recently_failed import RecentlyFailedBrokers
from kreplog.core.dynamic_configs import DEFAULT, DYNAMIC, config_text, resource_error
from kreplog.core.groups.group_configs import GroupConfigs, group_error
from kreplog.core.groups.group_configs import described as described_group
from kreplog.core.messages import PartitionState
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.topic_settings import Described
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.managed_log import ManagedLog
from kreplog.server.dynamic_settings import DynamicSettings
from kreplog.server.handlers.admin import Fields, Mutate, partitions_by_topic, unlimited
from kreplog.server.handlers.topics import TopicView, TopicViews
from kreplog.server.settings import SETTINGS
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.types import NO_LEADER, BrokerRegistration, ConfigResource, TopicPartition, endpoints_of
from kreplog.wire import generic

FIRST_ALLOWING_CREATION = 4
"""Metadata version from which a client says whether topics may be created; earlier ones always may."""

FIRST_LISTENER_NOT_FOUND = 6
"""Metadata version from which the error is LISTENER_NOT_FOUND where the leader lacks the request's listener, before
that LEADER_NOT_AVAILABLE. Source: Kafka, MetadataCache.getPartitionMetadata."""

FIRST_OFFLINE_REPLICAS, FIRST_LEADER_EPOCH = 5, 7
"""Versions of Metadata from which partitions have these (KIP-112, KIP-320)."""

_BROKERS, _CONTROLLERS = 1, 2
"""Endpoint types of DescribeCluster (KIP-919)."""

_NO_ID = uuid.UUID(int=0)
_NO_PARTITIONS: Fields = {"topic_id": _NO_ID, "is_internal": False, "partitions": []}

Description = tuple[int, Callable[[], Fields]]
"""(number of entries, function that makes the response's fields). The function works on a snapshot of the state, so a
large response can be made in a thread."""


@dataclass(frozen=True, slots=True)
class _Clients(AdvertisedBrokers):
    """The brokers that clients of one listener get. without_listener: live brokers that do not have it."""

    without_listener: Collection[int]

    def error_of(self, state: PartitionState, leader: int, version: int) -> ErrorCode:
        """The error of a partition in a Metadata response: of one without a leader for these clients. leader: that of
        `leader_of`."""
        if leader != NO_LEADER:
            return ErrorCode.NONE
        known = version >= FIRST_LISTENER_NOT_FOUND and state.state.leader in self.without_listener
        return ErrorCode.LISTENER_NOT_FOUND if known else ErrorCode.LEADER_NOT_AVAILABLE


class MetadataHandlers:
    """Handlers of requests that describe the cluster, the brokers by their addresses at the listener of the request.

    cluster_id: returns the id once it is known. own: returns this broker with its addresses. missing: the error for
    a topic that does not exist, see AutomaticTopics.
    """

    def __init__(
        self,
        settings: DynamicSettings,
        metadata: MetadataCache,
        topics: TopicViews,
        hosted: HostedReplicas,
        recently_failed: RecentlyFailedBrokers,
        cluster_id: Callable[[], str | None],
        own: Callable[[], BrokerRegistration],
        missing: Callable[[str, bool, Mutate], ErrorCode],
        now_ms: Callable[[], int],
        group_configs: GroupConfigs,
    ) -> None:
        self._settings = settings
        self._group_configs = group_configs
        self._broker_id = settings.static.broker_id
        self._metadata = metadata
        self._topics = topics
        self._hosted = hosted
        self._recently_failed = recently_failed
        self._cluster_id = cluster_id
        self._own = own
        self._missing = missing
        self._now_ms = now_ms

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """Live brokers by id, with the addresses of their first listeners."""
        return self._brokers().live

    def brokers_at(self, listener: str) -> Mapping[int, BrokerRegistration]:
        """Live brokers by id that have that listener, with its addresses. A listener that no broker has an address of,
        being a unix socket, stands for the first of this broker's."""
        return self._for_clients(listener).live

    def _brokers(self) -> AdvertisedBrokers:
        return advertised_brokers(self._metadata, self._recently_failed, self._own, self._now_ms())

    def _for_clients(self, listener: str) -> _Clients:
        found, own = self._brokers(), self._own()
        if own.at(listener) is None:
            listener = endpoints_of(own)[0].listener
        live = {broker.id: at for broker in found.live.values() if (at := broker.at(listener)) is not None}
        listed = tuple(at for broker in found.listed if (at := broker.at(listener)) is not None)
        return _Clients(live, listed, found.live.keys() - live.keys())

    # Metadata

    def metadata(self, request: Any, version: int, listener: str, mutate: Mutate) -> Description:
        """The response to Metadata. mutate: charges topics that are created for the request."""
        clients, known = self._for_clients(listener), self._topics.all
        fields = {
            "brokers": [_endpoint(broker, "node_id") for broker in clients.listed],
            "cluster_id": self._cluster_id(),
            "controller_id": self._metadata.controller_id,
        }
        errors: dict[str, ErrorCode] = {}
        make = partial(_topic, clients, errors, self._metadata.topic_error(by_id=True), version)
        if lists_all(request, version):
            return _description(fields, "topics", [(None, view) for view in known.values()], make)
        requested: dict[Any, tuple[Any, TopicView | None]] = {}
        for topic in request.topics:
            name = self._name_of(topic)
            view = None if name is None else known.get(name)
            requested[topic.topic_id if is_by_id(topic) else topic.name] = topic, view
        for topic, view in requested.values():
            if view is None and not is_by_id(topic):
                errors[topic.name] = self._missing(topic.name, may_create(request, version), mutate)
        return _description(fields, "topics", list(requested.values()), make)

    def leaders(self, request: Any) -> set[int]:
        """Leaders of the partitions of a Metadata request that this broker knows."""
        views = self._topics.all
        names = views if request.topics is None else map(self._name_of, request.topics)
        known = [view for name in names if name is not None and (view := views.get(name)) is not None]
        return {state.state.leader for view in known for state in view.partitions.values()}

    def _name_of(self, topic: Any) -> str | None:
        """The name of a topic of a Metadata request; None for an unknown id."""
        if is_by_id(topic):
            return self._topics.names.get(generic.topic_id(topic.topic_id))
        name: str = topic.name
        return name

    def topic_partitions(self, request: Any, listener: str) -> Description:
        """DescribeTopicPartitions: partitions by topic and number, in portions, each from a cursor on (KIP-966).

        Raises PeerProtocolError for a cursor before partition 0."""
        clients, known, given = self._for_clients(listener), self._topics.all, request.cursor
        cursor = START if given is None else PartitionCursor(given.topic_name, given.partition_index)
        if cursor.partition < 0:
            raise PeerProtocolError(
                f"DescribeTopicPartitions from partition {cursor.partition} of {cursor.topic!r}: there is none below 0"
            )
        names = topics_from(cursor, {topic.name for topic in request.topics}, known)
        limit = portion_limit(request.response_partition_limit)
        errors = {name: self._missing(name, False, unlimited) for name in names if name not in known}

        def described_in(name: str, number: int) -> Fields:
            return _described_partition(number, known[name].partitions[number], clients)

        def make() -> Fields:
            partitions = {name: known[name].partitions for name in names if name in known}
            topics, following = portion(cursor, names, partitions, limit)
            return {
                "topics": [
                    {**_NO_PARTITIONS, "error_code": errors[name], "name": name}
                    if numbers is None
                    else {**_topic_fields(known[name]), "partitions": [described_in(name, each) for each in numbers]}
                    for name, numbers in topics
                ],
                "next_cursor": None
                if following is None
                else {"topic_name": following.topic, "partition_index": following.partition},
            }

        return limit, make

    def cluster(self, request: Any, listener: str) -> Description:
        """The response to DescribeCluster: live brokers, and as fenced (KIP-1073) those that have just failed, whose
        addresses are still known. A client that looks for controllers (KIP-919) is refused."""
        if (refused := _endpoint_error(request.endpoint_type)) is not None:
            return 0, lambda: refused
        clients = self._for_clients(listener)
        brokers = clients.listed if request.include_fenced_brokers else clients.live.values()
        fields: Fields = {
            "error_code": 0,
            "error_message": None,
            "endpoint_type": _BROKERS,
            "cluster_id": self._cluster_id() or "",
            "controller_id": self._metadata.controller_id,
            "brokers": [
                {**_endpoint(broker, "broker_id"), "is_fenced": broker.id not in clients.live} for broker in brokers
            ],
        }
        return 0, lambda: fields

    # Settings

    def configs(self, request: Any) -> Description:
        known = self._topics.all
        resources = {
            (resource.resource_type, resource.resource_name): resource for resource in request.resources
        }.values()
        extent = request.include_synonyms, request.include_documentation
        return len(TopicConfig.__dataclass_fields__) * len(resources), lambda: {
            "results": [self._describe_resource(resource, extent, known) for resource in resources]
        }

    def _describe_resource(self, resource: Any, extent: tuple[bool, bool], known: Mapping[str, TopicView]) -> Fields:
        """The configs of one resource. extent: whether synonyms and documentation are requested."""
        response: Fields = {
            "error_code": 0,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": [],
        }
        if resource.resource_type == ConfigResource.TOPIC:
            view = known.get(resource.resource_name)
            if view is None:
                return response | {
                    "error_code": self._metadata.topic_error(),
                    "error_message": f"there is no topic {resource.resource_name}",
                }
            found = self._settings.topic_settings(next(iter(view.partitions.values())).config)
        elif resource.resource_type == ConfigResource.BROKER:
            refused = resource_error(resource.resource_name, self._broker_id)
            if refused is not None:
                return response | {"error_code": ErrorCode.INVALID_REQUEST, "error_message": refused}
            found = self._broker_settings() if resource.resource_name else self._cluster_settings()
        elif resource.resource_type == ConfigResource.GROUP:
            refused = group_error(resource.resource_name)
            if refused is not None:
                return response | {"error_code": ErrorCode.INVALID_REQUEST, "error_message": refused}
            texts = self._group_configs.texts.get(resource.resource_name, {})
            found = described_group(texts, self._settings.synonyms)
        else:
            return response | {
                "error_code": ErrorCode.INVALID_REQUEST,
                "error_message": "only settings of brokers, topics and groups can be described",
            }
        keys = None if resource.configuration_keys is None else set(resource.configuration_keys)
        return response | {
            "configs": [_config(setting, *extent) for setting in found if keys is None or setting.name in keys]
        }

    def _broker_settings(self) -> Iterator[Described]:
        for name, setting in sorted(SETTINGS.items()):
            yield Described(name, setting.type.config_type, name in DYNAMIC, tuple(self._settings.synonyms(name)))

    def _cluster_settings(self) -> Iterator[Described]:
        """The cluster-wide default of dynamic configs."""
        for name in sorted(DYNAMIC):
            config_type = SETTINGS[name].type.config_type
            yield Described(name, config_type, True, tuple(self._settings.default_synonyms(name)))

    def config_resources(self, request: Any, version: int) -> Description:
        """ListConfigResources: names of what has configs, by type (KIP-1142); before version 1 of client metrics alone.
        Those of groups are the ones that have dynamic configs, whether they have members or not."""
        requested = set(request.resource_types or ConfigResource) if version else {ConfigResource.CLIENT_METRICS}
        if not requested <= set(ConfigResource):
            return 0, lambda: {"error_code": ErrorCode.UNSUPPORTED_VERSION, "config_resources": []}
        names: dict[ConfigResource, Collection[str]] = {
            ConfigResource.TOPIC: self._topics.all,
            ConfigResource.BROKER: [str(broker_id) for broker_id in self.brokers],
            ConfigResource.GROUP: self._group_configs.texts,
        }
        found = [(kind, names[kind]) for kind in sorted(requested & names.keys())]
        return sum(len(of_type) for _, of_type in found), lambda: {
            "error_code": 0,
            "config_resources": [
                {"resource_name": name, "resource_type": kind} for kind, of_type in found for name in sorted(of_type)
            ],
        }

    # Log directories

    def log_dirs(self, request: Any) -> Description:
        requested = (
            None
            if request.topics is None
            else partitions_by_topic((topic.topic, topic.partitions) for topic in request.topics)
        )
        logs = {
            directory: [
                *((partition, log, None) for partition, log in self._hosted.in_directory(directory)),
                *((move.future.partition, move.log, move.replica.log) for move in self._hosted.moves_to(directory)),
            ]
            for directory in self._hosted.directories
        }
        return sum(map(len, logs.values())), partial(self._log_dirs, requested, logs)

    def _log_dirs(
        self,
        requested: Mapping[str, Collection[int]] | None,
        logs: Mapping[DataDirectory, list[tuple[TopicPartition, ManagedLog, ManagedLog | None]]],
    ) -> Fields:
        opened = {directory.path for directory in logs}
        results: list[Fields] = [
            {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "log_dir": str(path), "topics": []}
            for path in (Path(log_dir).absolute() for log_dir in self._settings.static.log_dirs)
            if path not in opened  # it could not be opened when the broker started
        ]
        for directory, opened_logs in logs.items():
            topics: dict[str, list[Fields]] = {}
            for partition, log, source in opened_logs:
                if not log.closed and (requested is None or partition.partition in requested.get(partition.topic, ())):
                    size = {"partition_index": partition.partition, "partition_size": log.size}
                    lag = 0 if source is None else max(0, source.log_end_offset - log.log_end_offset)
                    fields = size | {"offset_lag": lag, "is_future_key": source is not None}
                    topics.setdefault(partition.topic, []).append(fields)
            results.append(
                {
                    "error_code": ErrorCode.KAFKA_STORAGE_ERROR if directory.failed else 0,
                    "log_dir": str(directory.path),
                    "topics": [{"name": name, "partitions": sizes} for name, sizes in topics.items()],
                }
            )
        return {"error_code": 0, "results": results}


def _description(
    fields: Fields,
    name: str,
    requested: list[tuple[Any, TopicView | None]],
    make: Callable[[Any, TopicView | None], Fields],
) -> Description:
    entries = len(requested) + sum(len(view.partitions) for _, view in requested if view is not None)
    return entries, lambda: {**fields, name: [make(topic, view) for topic, view in requested]}


def _topic(
    clients: _Clients,
    errors: Mapping[str, ErrorCode],
    unknown_id: ErrorCode,
    version: int,
    requested: Any,
    view: TopicView | None,
) -> Fields:
    """A topic of a Metadata response; without a view an unknown topic. errors: of unknown topics by name."""
    if view is not None:
        partitions = [partition_fields(number, state, clients, version) for number, state in view.partitions.items()]
        return {**_topic_fields(view), "partitions": partitions}
    by_id = is_by_id(requested)
    name = None if by_id else requested.name
    return {
        "error_code": unknown_id if name is None else errors[name],
        "name": name if version >= 12 else name or "",
        "topic_id": requested.topic_id if by_id else _NO_ID,
        "is_internal": False,
        "partitions": [],
    }


def is_by_id(topic: Any) -> bool:
    """Whether a topic of a Metadata request is named by its id: Java's client sends an empty name beside it."""
    return topic.name is None or bool(generic.topic_id(topic.topic_id))


def may_create(request: Any, version: int) -> bool:
    """Whether a Metadata request creates topics that do not exist, as those of the first clients always do."""
    return bool(version < FIRST_ALLOWING_CREATION or request.allow_auto_topic_creation)


def lists_all(request: Any, version: int) -> bool:
    """Whether a Metadata request is for all topics."""
    return request.topics is None or (version == 0 and not request.topics)


def _endpoint_error(endpoint_type: int) -> Fields | None:
    """The refusal of a DescribeCluster for other endpoints than brokers; None for brokers. As Kafka's AuthHelper."""
    if endpoint_type == _BROKERS:
        return None
    if endpoint_type == _CONTROLLERS:
        code, text = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "this is a broker, not a controller: use bootstrap.servers"
    else:
        code, text = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"there is no endpoint type {endpoint_type}"
    return {
        "error_code": code,
        "error_message": text,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": [],
    }


def _endpoint(broker: BrokerRegistration, id_name: str) -> Fields:
    return {id_name: broker.id, "host": broker.host, "port": broker.port, "rack": broker.rack}


def _topic_fields(view: TopicView) -> Fields:
    """The fields of a topic that exists, without its partitions."""
    return {
        "error_code": 0,
        "name": view.name,
        "topic_id": view.topic_id,
        "is_internal": view.name in INTERNAL_TOPICS,
    }


def _described_partition(number: int, partition: PartitionState, clients: _Clients) -> Fields:
    """A partition of DescribeTopicPartitions. Kafka's Java client fails at null in place of an empty list."""
    state, leader = partition.state, clients.leader_of(partition)
    return {
        "error_code": clients.error_of(partition, leader, FIRST_LISTENER_NOT_FOUND),
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": list(partition.replicas),
        "isr_nodes": list(state.isr),
        "offline_replicas": clients.offline_replicas(partition),
        "eligible_leader_replicas": list(partition.state.elr),
        "last_known_elr": [],
    }


def partition_fields(number: int, partition: PartitionState, clients: _Clients, version: int) -> tuple[Any, ...]:
    """A partition of a Metadata response: error, number, leader, leader epoch, replicas, ISR, offline replicas, those
    that the version has. A tuple is encoded without a check, in a quarter of the time: a topic may have thousands."""
    state, leader = partition.state, clients.leader_of(partition)
    return (
        clients.error_of(partition, leader, version),
        number,
        leader,
        *((state.leader_epoch,) if version >= FIRST_LEADER_EPOCH else ()),
        partition.replicas,
        state.isr,
        *((clients.offline_replicas(partition),) if version >= FIRST_OFFLINE_REPLICAS else ()),
    )


def _config(setting: Described, with_synonyms: bool, with_documentation: bool) -> Fields:
    def shown(value: Any) -> str | None:
        return None if setting.is_secret else config_text(value)

    return {
        "name": setting.name,
        "value": shown(setting.value),
        "read_only": not setting.alterable,
        "is_default": setting.source == DEFAULT,
        "config_source": setting.source,
        "is_sensitive": setting.is_secret,
        "synonyms": [synonym._asdict() | {"value": shown(synonym.value)} for synonym in setting.synonyms]
        if with_synonyms
        else [],
        "config_type": setting.config_type,
        "documentation": setting.documentation if with_documentation else None,
    }
