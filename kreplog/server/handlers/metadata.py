"""What clients ask of the cluster: metadata, brokers, settings, log directories. Everything is as this broker knows it.

Requests are messages of kreplog.wire.generic; the results are Descriptions. Repeated entries of a request count once.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kreplog.config import TopicConfig
from kreplog.core.messages import PartitionState
from kreplog.core.replication.metadata import MetadataCache
from kreplog.errors import ErrorCode
from kreplog.managed_log import ManagedLog
from kreplog.server.handlers.admin import Fields, numbers_of
from kreplog.server.handlers.configs import TOPIC_RESOURCE
from kreplog.server.handlers.topics import Topics, TopicView
from kreplog.server.replication.recently_failed import RecentlyFailedBrokers
from kreplog.server.settings import SETTINGS, BrokerSettings, given_value
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.topic_settings import DEFAULT, STATIC, TOPIC, Described, described
from kreplog.types import NO_LEADER, BrokerRegistration, TopicPartition
from kreplog.wire import generic

BROKER_RESOURCE = 4

_GROUP = 0
"""What a client wants a coordinator for, as FindCoordinator says it; 1 is a transaction."""

_TYPES: dict[type, int] = {bool: 1, str: 2, int: 5}
_NO_ID = uuid.UUID(int=0)

Description = tuple[int, Callable[[], Fields]]
"""(number of entries, function that makes the response's fields). The function works on a snapshot of the state, so a
large response can be made in a thread."""


class Describing:
    """cluster_id: as told to clients. own: this broker's address, for as long as no controller has told of any."""

    def __init__(
        self,
        settings: BrokerSettings,
        metadata: MetadataCache,
        topics: Topics,
        hosted: HostedReplicas,
        recently_failed: RecentlyFailedBrokers,
        cluster_id: Callable[[], str | None],
        own: Callable[[], BrokerRegistration],
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._topics = topics
        self._hosted = hosted
        self._recently_failed = recently_failed
        self._cluster_id = cluster_id
        self._own = own

    @property
    def brokers(self) -> Mapping[int, BrokerRegistration]:
        """Live brokers by id. This broker is always among them, also if the store was read before it registered."""
        known = self._metadata.brokers
        if self._metadata.from_controller and known:
            return known
        own = self._own()
        return {own.id: own} | known

    # Metadata

    def metadata(self, request: Any, version: int) -> Description:
        live, known = self.brokers, self._topics.all
        fields = {
            "brokers": [_endpoint(one, "node_id") for one in (*live.values(), *self._recently_failed.listed())],
            "cluster_id": self._cluster_id(),
            "controller_id": self._metadata.controller_id,
        }
        make = partial(_topic, live, self._metadata.topic_error(), self._metadata.topic_error(by_id=True), version)
        if _wants_all(request, version):
            return _description(fields, "topics", [(None, view) for view in known.values()], make)
        names = self._topics.names
        wanted: dict[Any, tuple[Any, TopicView | None]] = {}
        for topic in request.topics:
            name = names.get(generic.topic_id(topic.topic_id)) if topic.name is None else topic.name
            wanted[topic.topic_id if topic.name is None else topic.name] = (
                topic,
                None if name is None else known.get(name),
            )
        return _description(fields, "topics", list(wanted.values()), make)

    def leaders(self, request: Any) -> set[int]:
        """Of the partitions that a Metadata request asks for, and that we know of."""
        views = self._topics.all
        names = views if request.topics is None else [topic.name for topic in request.topics]
        known = [view for name in names if (view := views.get(name)) is not None]
        return {state.state.leader for view in known for state in view.partitions.values()}

    def would_deny(self, request: Any, version: int) -> bool:
        """Whether the answer would list no topics only because neither a controller nor the store has been heard."""
        return _wants_all(request, version) and not (self._metadata.from_controller or self._metadata.from_store)

    def cluster(self) -> Description:
        fields: Fields = {
            "error_code": 0,
            "error_message": None,
            "endpoint_type": 1,
            "cluster_id": self._cluster_id() or "",
            "controller_id": self._metadata.controller_id,
            "brokers": [_endpoint(broker, "broker_id") for broker in self.brokers.values()],
        }
        return 0, lambda: fields

    # Groups

    def coordinator(self, request: Any, version: int) -> Description:
        """Who coordinates a group: nobody, and that is to be seen at once, since clients would ask for ever otherwise.

        Those who ask in version 2 or later are sent to this broker: they see that it offers no JoinGroup and raise an
        error that says so, or go on if they assign partitions, as librdkafka does, which asks in any case. Those who
        ask in an earlier one, such as aiokafka, do not look, so they are refused.
        """
        group = request.key_type == _GROUP
        if group and version >= 2:
            own = self._own()
            found = {"error_code": 0, "error_message": None, "node_id": own.id, "host": own.host, "port": own.port}
        else:
            found = {
                "error_code": ErrorCode.UNSUPPORTED_VERSION,
                "error_message": "there are no consumer groups here: assign partitions"
                if group
                else "there are no transactions here",
                "node_id": -1,
                "host": "",
                "port": -1,
            }
        keys = dict.fromkeys(request.coordinator_keys if version >= 4 else ())
        return len(keys), lambda: {**found, "coordinators": [{**found, "key": key} for key in keys]}

    def committed(self, request: Any) -> Description:
        """No group has committed anything; librdkafka asks for what was when partitions are assigned without an offset,
        and dies of a broker that cannot be asked (its issue 4789)."""
        wanted = numbers_of((topic.name, topic.partition_indexes) for topic in request.topics or ())
        return sum(map(len, wanted.values())), lambda: {
            "error_code": 0,
            "topics": [
                {
                    "name": name,
                    "partitions": [
                        {"partition_index": number, "committed_offset": -1, "metadata": "", "error_code": 0}
                        for number in numbers
                    ],
                }
                for name, numbers in wanted.items()
            ],
        }

    # Settings

    def configs(self, request: Any) -> Description:
        known = self._topics.all
        wanted = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}.values()
        return len(TopicConfig.__dataclass_fields__) * len(wanted), lambda: {
            "results": [self._resource(one, request.include_synonyms, known) for one in wanted]
        }

    def _resource(self, asked: Any, synonyms: bool, known: Mapping[str, TopicView]) -> Fields:
        answer: Fields = {
            "error_code": 0,
            "error_message": None,
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
            "configs": [],
        }
        if asked.resource_type == TOPIC_RESOURCE:
            view = known.get(asked.resource_name)
            if view is None:
                return answer | {
                    "error_code": self._metadata.topic_error(),
                    "error_message": f"there is no topic {asked.resource_name}",
                }
            found = self._topic_settings(view)
        elif asked.resource_type == BROKER_RESOURCE and asked.resource_name == str(self._settings.broker_id):
            found = self._own_settings()
        else:
            return answer | {
                "error_code": ErrorCode.INVALID_REQUEST,
                "error_message": f"broker {self._settings.broker_id} knows its own settings and those of topics",
            }
        keys = None if asked.configuration_keys is None else set(asked.configuration_keys)
        return answer | {"configs": [_config(one, synonyms) for one in found if keys is None or one.name in keys]}

    def _topic_settings(self, view: TopicView) -> Iterator[Described]:
        config = next(iter(view.partitions.values())).config
        return described(config, self._settings)

    def _own_settings(self) -> Iterator[Described]:
        for name in sorted(SETTINGS):
            yield Described(name, given_value(self._settings, name), STATIC, False)

    # Log directories

    def log_dirs(self, request: Any) -> Description:
        asked = (
            None if request.topics is None else numbers_of((topic.topic, topic.partitions) for topic in request.topics)
        )
        logs = {directory: self._hosted.in_directory(directory) for directory in self._hosted.directories}
        return sum(map(len, logs.values())), partial(self._log_dirs, asked, logs)

    def _log_dirs(
        self,
        asked: Mapping[str, Collection[int]] | None,
        logs: Mapping[DataDirectory, list[tuple[TopicPartition, ManagedLog]]],
    ) -> Fields:
        opened = {directory.path for directory in logs}
        results: list[Fields] = [
            {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "log_dir": str(path), "topics": []}
            for path in (Path(log_dir).absolute() for log_dir in self._settings.log_dirs)
            if path not in opened  # it could not be used when the broker started
        ]
        for directory, held in logs.items():
            topics: dict[str, list[Fields]] = {}
            for partition, log in held:
                if not log.closed and (asked is None or partition.partition in asked.get(partition.topic, ())):
                    size = {"partition_index": partition.partition, "partition_size": log.size}
                    topics.setdefault(partition.topic, []).append(size | {"offset_lag": 0, "is_future_key": False})
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
    wanted: list[tuple[Any, TopicView | None]],
    make: Callable[[Any, TopicView | None], Fields],
) -> Description:
    entries = len(wanted) + sum(len(view.partitions) for _, view in wanted if view is not None)
    return entries, lambda: {**fields, name: [make(asked, view) for asked, view in wanted]}


def _topic(
    live: Mapping[int, BrokerRegistration],
    unknown: ErrorCode,
    unknown_id: ErrorCode,
    version: int,
    asked: Any,
    view: TopicView | None,
) -> Fields:
    """What Metadata says of one topic; without a view, of one that is not known."""
    if view is not None:
        return {
            "error_code": 0,
            "name": view.name,
            "topic_id": view.topic_id,
            "is_internal": False,
            "partitions": [_partition(number, state, live) for number, state in view.partitions.items()],
        }
    by_id = asked.name is None
    return {
        "error_code": unknown_id if by_id else unknown,
        "name": asked.name if version >= 12 else asked.name or "",
        "topic_id": asked.topic_id if by_id else _NO_ID,
        "is_internal": False,
        "partitions": [],
    }


def _wants_all(request: Any, version: int) -> bool:
    return request.topics is None or (version == 0 and not request.topics)


def _endpoint(broker: BrokerRegistration, id_name: str) -> Fields:
    return {id_name: broker.id, "host": broker.host, "port": broker.port, "rack": broker.rack}


def _partition(number: int, told: PartitionState, live: Iterable[int]) -> Fields:
    leader = told.state.leader if told.state.leader in live else NO_LEADER
    return {
        "error_code": ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else 0,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": told.state.leader_epoch,
        "replica_nodes": list(told.replicas),
        "isr_nodes": list(told.state.isr),
        "offline_replicas": [replica for replica in told.replicas if replica not in live],
    }


def _config(one: Described, synonyms: bool) -> Fields:
    told = [(one.name, one.value, one.source)] if one.broker is None or one.source == TOPIC else []
    told += [] if one.broker is None else [one.broker]
    return {
        "name": one.name,
        "value": _text(one.value),
        "read_only": not one.alterable,
        "is_default": one.source == DEFAULT,
        "config_source": one.source,
        "is_sensitive": False,
        "synonyms": [{"name": name, "value": _text(value), "source": source} for name, value, source in told]
        if synonyms
        else [],
        "config_type": _TYPES.get(type(one.value), 2),
        "documentation": None,
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
