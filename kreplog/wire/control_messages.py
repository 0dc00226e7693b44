"""Requests between controllers and brokers, to and from the messages of `core`.

LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown are Kafka's, each in its last version. Fields that
kreplog adds stand in tags at the end of the whole message, by position: the library copies all that follows for each
struct that has tags, which for every partition of 10,000 would be slow. Neighbours of the same topic, topic id and
settings are written as one topic; the order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kreplog.config import INHERITED, RANGES, TOPIC_LOG_SETTINGS, TopicConfig
from kreplog.core.messages import (
    BrokerConfigs,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from kreplog.errors import PeerProtocolError
from kreplog.types import (
    BrokerRegistration,
    Endpoint,
    LeaderAndIsr,
    SecurityProtocol,
    TopicPartition,
    endpoints_of,
    named_endpoints,
)
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.nesting import by_topic
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

Request = ControlRequest | ControlledShutdownRequest
Response = ControlResponse | ControlledShutdownResponse
T = TypeVar("T")


class _Topic(NamedTuple):
    """The facts that the states of one topic's partitions share."""

    name: str
    id: str
    config: TopicConfig


_SOME_PARTITIONS, _ALL_PARTITIONS = 1, 2
"""Kafka's type of a LeaderAndIsr."""

_INTERNAL = "INTERNAL"
"""The name of the endpoint for other brokers, which is the last; a listener for clients may have the same name."""

_DEFAULT_CONFIG = TopicConfig()

_NAMED = (
    *("flush_ms", "cleanup_policy", "compression_type"),
    *(f"compression_{codec}_level" for codec in ("gzip", "lz4", "zstd")),
    *("offset_gaps", "inherited"),
    *TOPIC_LOG_SETTINGS,
)
"""Fields of a TopicConfig that are sent with their names, where they differ from the default."""


KEYS: dict[type[Any], ApiKey] = {
    LeaderAndIsrRequest: ApiKey.LEADER_AND_ISR,
    StopReplicaRequest: ApiKey.STOP_REPLICA,
    UpdateMetadataRequest: ApiKey.UPDATE_METADATA,
    ControlledShutdownRequest: ApiKey.CONTROLLED_SHUTDOWN,
}
"""The API of each request; its version is the only one in BETWEEN_BROKERS."""


def encode_request(request: Request, header: RequestHeader) -> list[Buffer]:
    """The whole frame."""
    return generic.encode_request(header, **_REQUESTS[header.api_key][0](request))


def decode_request(frame: Buffer, header: RequestHeader) -> Request:
    """Raises PeerProtocolError."""
    return _read(_REQUESTS[header.api_key][1], generic.decode_request(frame, header))


def encode_response(response: Response, header: RequestHeader) -> list[Buffer]:
    """The whole frame of the response to the request `header`."""
    return generic.encode_response(header, **_RESPONSES[header.api_key][0](response))


def decode_response(frame: Buffer, header: RequestHeader) -> Response:
    """The response to the request `header`. Raises PeerProtocolError."""
    return _read(_RESPONSES[header.api_key][1], generic.decode_response(frame, header))


def _read(read: Callable[[Any], T], message: Any) -> T:
    """Positions out of range and settings out of bounds are the peer's fault."""
    try:
        return read(message)
    except (IndexError, ValueError) as error:
        raise PeerProtocolError(f"{type(message).__name__} contradicts itself: {error}") from error


# LeaderAndIsr and UpdateMetadata: the state of partitions


def _write_leader_and_isr(request: LeaderAndIsrRequest) -> dict[str, Any]:
    return {
        **_write_controller(request),
        "extent": _ALL_PARTITIONS if request.is_init else _SOME_PARTITIONS,
        "topic_states": _topic_states(request.partitions, _leader_and_isr_state),
        "live_leaders": [],
        "eligible_replicas": [
            (position, partition_state.state.elr)
            for position, partition_state in enumerate(request.partitions)
            if partition_state.state.elr
        ],
        "topic_configs": _topic_configs(request.partitions),
        "flush_every_record": _flushing(request.partitions),
        **_write_configs(request.configs),
    }


def _read_leader_and_isr(message: Any) -> LeaderAndIsrRequest:
    elrs = {extra.position: tuple(extra.replicas) for extra in message.eligible_replicas}
    flushing = frozenset(message.flush_every_record)
    partitions = [
        _partition_state(
            topic,
            state,
            state.partition_epoch,
            elrs.get(position, ()),
            state.adding_replicas,
            state.removing_replicas,
            state.is_new,
            position in flushing,
        )
        for position, (topic, state) in enumerate(_states(message))
    ]
    _check_positions(elrs, partitions)
    _check_positions(flushing, partitions)
    return LeaderAndIsrRequest(
        *_read_controller(message),
        tuple(partitions),
        message.extent == _ALL_PARTITIONS,
        message.sequence,
        _read_configs(message),
    )


def _write_update_metadata(request: UpdateMetadataRequest) -> dict[str, Any]:
    return {
        **_write_controller(request),
        "topic_states": _topic_states(request.partitions, _update_metadata_state),
        "live_brokers": [(broker.id, list(_endpoints(broker)), broker.rack) for broker in request.brokers],
        "partition_extras": [
            (position, added.state.elr, added.adding, added.removing, added.is_new)
            for position, added in enumerate(request.partitions)
            if added.state.elr or added.adding or added.removing or added.is_new
        ],
        "topic_configs": _topic_configs(request.partitions),
        "flush_every_record": _flushing(request.partitions),
        "registrations": [(broker.epoch, broker.stopping, broker.unclean) for broker in request.brokers],
        "deleted_topics": [
            (topic, [partition.partition for partition in group])
            for topic, group in by_topic(request.deleted, lambda partition: partition)
        ],
        **_write_configs(request.configs),
    }


def _read_update_metadata(message: Any) -> UpdateMetadataRequest:
    extras = {extra.position: extra for extra in message.partition_extras}
    flushing = frozenset(message.flush_every_record)
    partitions = []
    for position, (topic, state) in enumerate(_states(message)):
        extra = extras.get(position)
        if extra is None:
            partitions.append(_partition_state(topic, state, state.zk_version, flush_every_record=position in flushing))
        else:
            partitions.append(
                _partition_state(
                    topic,
                    state,
                    state.zk_version,
                    extra.eligible_replicas,
                    extra.adding_replicas,
                    extra.removing_replicas,
                    extra.is_new,
                    position in flushing,
                )
            )
    _check_positions(extras, partitions)
    _check_positions(flushing, partitions)
    deleted = (
        TopicPartition(topic.topic_name, number) for topic in message.deleted_topics for number in topic.partitions
    )
    return UpdateMetadataRequest(
        *_read_controller(message),
        tuple(_read_brokers(message)),
        tuple(partitions),
        tuple(deleted),
        message.sequence,
        _read_configs(message),
    )


def _write_configs(configs: BrokerConfigs) -> dict[str, Any]:
    return {"own_configs": list(configs.own), "default_configs": list(configs.default)}


def _read_configs(message: Any) -> BrokerConfigs:
    own, default = message.own_configs, message.default_configs
    return BrokerConfigs(*(tuple((config.name, config.value) for config in configs) for configs in (own, default)))


def _write_controller(request: ControlRequest) -> dict[str, Any]:
    return {
        "controller_id": request.controller_id,
        "controller_epoch": request.controller_epoch,
        "broker_epoch": request.broker_epoch,
        "sequence": request.sequence,
    }


def _read_controller(message: Any) -> tuple[int, int, int]:
    return message.controller_id, message.controller_epoch, message.broker_epoch


def _leader_and_isr_state(partition_state: PartitionState) -> tuple[Any, ...]:
    extras = (partition_state.adding, partition_state.removing, partition_state.is_new, 0)
    return _state_of_both(partition_state) + extras


def _update_metadata_state(partition_state: PartitionState) -> tuple[Any, ...]:
    return (*_state_of_both(partition_state), ())


def _state_of_both(partition_state: PartitionState) -> tuple[Any, ...]:
    """The fields with which a partition's state begins in LeaderAndIsr and in UpdateMetadata."""
    state = partition_state.state
    return (
        partition_state.partition.partition,
        state.controller_epoch,
        state.leader,
        state.leader_epoch,
        state.isr,
        state.partition_epoch,
        partition_state.replicas,
    )


def _partition_state(
    topic: _Topic,
    state: Any,
    partition_epoch: int,
    elr: Iterable[int] = (),
    adding: Iterable[int] = (),
    removing: Iterable[int] = (),
    is_new: bool = False,
    flush_every_record: bool = False,
) -> PartitionState:
    return PartitionState(
        TopicPartition(topic.name, state.partition_index),
        topic.id,
        LeaderAndIsr(
            state.leader,
            state.leader_epoch,
            tuple(state.isr),
            tuple(elr),
            state.controller_epoch,
            partition_epoch,
            flush_every_record,
        ),
        tuple(state.replicas),
        tuple(adding),
        tuple(removing),
        is_new,
        topic.config,
    )


def _topic_of(partition_state: PartitionState) -> tuple[str, str, TopicConfig]:
    return partition_state.partition.topic, partition_state.topic_id, partition_state.config


def _topic_states(
    partitions: Iterable[PartitionState], state_of: Callable[[PartitionState], tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    return [
        (topic, generic.topic_uuid(topic_id), [state_of(partition_state) for partition_state in group])
        for (topic, topic_id, _), group in groupby(partitions, _topic_of)
    ]


def _flushing(partitions: Iterable[PartitionState]) -> list[int]:
    """Positions of the partitions whose leader epoch has flush.messages=1."""
    return [position for position, partition_state in enumerate(partitions) if partition_state.state.flush_every_record]


def _topic_configs(partitions: Iterable[PartitionState]) -> list[tuple[Any, ...]]:
    """The settings that are not the defaults, each with the positions of the topic states that have them."""
    positions: dict[TopicConfig, list[int]] = {}
    for position, ((_, _, config), _) in enumerate(groupby(partitions, _topic_of)):
        if config != _DEFAULT_CONFIG:
            positions.setdefault(config, []).append(position)
    return [
        (
            places,
            config.min_insync_replicas,
            config.unclean_leader_election_enable,
            config.flush_messages,
            [
                *_named_settings(config),
                *config.unused,
            ],
        )
        for config, places in positions.items()
    ]


def _named_settings(config: TopicConfig) -> Iterator[tuple[str, str]]:
    for name in _NAMED:
        if (value := getattr(config, name)) != getattr(_DEFAULT_CONFIG, name):
            yield name, ",".join(value) if name == "inherited" else str(value)


def _states(message: Any) -> Iterator[tuple[_Topic, Any]]:
    """Each partition's state, with its topic."""
    configs = [_DEFAULT_CONFIG] * len(message.topic_states)
    for topic_config in message.topic_configs:
        config = TopicConfig(
            topic_config.min_insync_replicas,
            topic_config.unclean_leader_election_enable,
            topic_config.flush_messages,
            **dict(_log_setting(setting) for setting in topic_config.log_settings if not _is_unused(setting)),
            unused=tuple((setting.name, setting.value) for setting in topic_config.log_settings if _is_unused(setting)),
        )
        _check_positions(topic_config.positions, configs)
        for position in topic_config.positions:
            configs[position] = config
    for topic_state, config in zip(message.topic_states, configs, strict=True):
        topic = _Topic(topic_state.topic_name, generic.topic_id(topic_state.topic_id), config)
        for state in topic_state.partition_states:
            yield topic, state


def _is_unused(setting: Any) -> bool:
    """Whether it is one of TopicConfig.unused."""
    return setting.name not in _NAMED


def _log_setting(setting: Any) -> tuple[str, Any]:
    """Raises ValueError."""
    name, text = setting.name, setting.value
    if name == "offset_gaps":
        return name, text == "True"
    if name == "inherited":
        names = text.split(",")
        return name, tuple(field for field in INHERITED if field in names)
    return name, int(text) if name in RANGES else float(text) if name == "min_cleanable_dirty_ratio" else text


def _check_positions(positions: Iterable[int], items: Sequence[Any]) -> None:
    for position in positions:
        if not 0 <= position < len(items):
            raise IndexError(f"position {position} of {len(items)}")


def _endpoints(broker: BrokerRegistration) -> Iterator[tuple[int, str, str, int]]:
    for listener, host, port, security_protocol in endpoints_of(broker):
        yield port, host, listener, security_protocol
    if broker.internal is not None:
        host, port = broker.internal
        yield port, host, _INTERNAL, 0


def _read_brokers(message: Any) -> Iterator[BrokerRegistration]:
    if len(message.registrations) != len(message.live_brokers):
        raise IndexError(f"{len(message.live_brokers)} brokers with {len(message.registrations)} registrations")
    for broker, registration in zip(message.live_brokers, message.registrations, strict=True):
        *clients, last = broker.endpoints
        is_internal = bool(clients) and last.listener == _INTERNAL
        if not is_internal:
            clients.append(last)
        endpoint = clients[0]
        yield BrokerRegistration(
            broker.id,
            registration.broker_epoch,
            endpoint.host,
            endpoint.port,
            broker.rack,
            registration.stopping,
            registration.unclean,
            (last.host, last.port) if is_internal else None,
            endpoints=named_endpoints(
                Endpoint(other.listener, other.host, other.port, SecurityProtocol(other.security_protocol))
                for other in clients
            ),
        )


def _write_leader_and_isr_response(response: LeaderAndIsrResponse) -> dict[str, Any]:
    topics = list(by_topic(response.partitions, itemgetter(0)))
    return {
        "error_code": int(response.error),
        "topics": [(None, [(partition.partition, int(error)) for partition, error in group]) for _, group in topics],
        "topic_names": [topic for topic, _ in topics],
    }


def _read_leader_and_isr_response(message: Any) -> LeaderAndIsrResponse:
    if len(message.topic_names) != len(message.topics):
        raise IndexError(f"{len(message.topics)} topics with {len(message.topic_names)} names")
    return LeaderAndIsrResponse(
        generic.error_of(message.error_code),
        tuple(
            (TopicPartition(name, partition.partition_index), generic.error_of(partition.error_code))
            for name, topic in zip(message.topic_names, message.topics, strict=True)
            for partition in topic.partition_errors
        ),
    )


def _write_update_metadata_response(response: UpdateMetadataResponse) -> dict[str, Any]:
    return {"error_code": int(response.error)}


def _read_update_metadata_response(message: Any) -> UpdateMetadataResponse:
    return UpdateMetadataResponse(generic.error_of(message.error_code))


# StopReplica


def _write_stop_replica(request: StopReplicaRequest) -> dict[str, Any]:
    topics = [
        (topic, topic_id, [(stop.partition.partition, stop.leader_epoch, stop.delete) for stop in group])
        for (topic, topic_id), group in groupby(request.partitions, lambda stop: (stop.partition.topic, stop.topic_id))
    ]
    return {
        **_write_controller(request),
        "topic_states": [(topic, states) for topic, _, states in topics],
        "topic_ids": [generic.topic_uuid(topic_id) for _, topic_id, _ in topics],
    }


def _read_stop_replica(message: Any) -> StopReplicaRequest:
    if len(message.topic_ids) != len(message.topic_states):
        raise IndexError(f"{len(message.topic_states)} topics with {len(message.topic_ids)} ids")
    return StopReplicaRequest(
        *_read_controller(message),
        tuple(
            StopReplica(
                TopicPartition(topic.topic_name, state.partition_index),
                generic.topic_id(topic_id),
                state.leader_epoch,
                state.delete_partition,
            )
            for topic, topic_id in zip(message.topic_states, message.topic_ids, strict=True)
            for state in topic.partition_states
        ),
        message.sequence,
    )


def _write_stop_replica_response(response: StopReplicaResponse) -> dict[str, Any]:
    return {
        "error_code": int(response.error),
        "partition_errors": [
            (partition.topic, partition.partition, int(error)) for partition, error in response.partitions
        ],
    }


def _read_stop_replica_response(message: Any) -> StopReplicaResponse:
    return StopReplicaResponse(
        generic.error_of(message.error_code),
        tuple(
            (TopicPartition(stopped.topic_name, stopped.partition_index), generic.error_of(stopped.error_code))
            for stopped in message.partition_errors
        ),
    )


# ControlledShutdown


def _write_controlled_shutdown(request: ControlledShutdownRequest) -> dict[str, Any]:
    return {"broker_id": request.broker_id, "broker_epoch": request.broker_epoch}


def _read_controlled_shutdown(message: Any) -> ControlledShutdownRequest:
    return ControlledShutdownRequest(message.broker_id, message.broker_epoch)


def _write_controlled_shutdown_response(response: ControlledShutdownResponse) -> dict[str, Any]:
    return {
        "error_code": int(response.error),
        "remaining_partitions": [(partition.topic, partition.partition) for partition in response.remaining],
    }


def _read_controlled_shutdown_response(message: Any) -> ControlledShutdownResponse:
    return ControlledShutdownResponse(
        generic.error_of(message.error_code),
        tuple(TopicPartition(left.topic_name, left.partition_index) for left in message.remaining_partitions),
    )


_REQUESTS: dict[int, tuple[Callable[[Any], dict[str, Any]], Callable[[Any], Request]]] = {
    ApiKey.LEADER_AND_ISR: (_write_leader_and_isr, _read_leader_and_isr),
    ApiKey.STOP_REPLICA: (_write_stop_replica, _read_stop_replica),
    ApiKey.UPDATE_METADATA: (_write_update_metadata, _read_update_metadata),
    ApiKey.CONTROLLED_SHUTDOWN: (_write_controlled_shutdown, _read_controlled_shutdown),
}

_RESPONSES: dict[int, tuple[Callable[[Any], dict[str, Any]], Callable[[Any], Response]]] = {
    ApiKey.LEADER_AND_ISR: (_write_leader_and_isr_response, _read_leader_and_isr_response),
    ApiKey.STOP_REPLICA: (_write_stop_replica_response, _read_stop_replica_response),
    ApiKey.UPDATE_METADATA: (_write_update_metadata_response, _read_update_metadata_response),
    ApiKey.CONTROLLED_SHUTDOWN: (_write_controlled_shutdown_response, _read_controlled_shutdown_response),
}
