"""What controllers and brokers say to each other, to and from the messages of the cores.

LeaderAndIsr, StopReplica, UpdateMetadata and ControlledShutdown are Kafka's, each in its last version. What our
messages carry beyond them stands in tags at the end of the whole message, by position: the library takes a copy of all
that follows for each struct that has tags, which for every partition of 10,000 would be slow. Partitions that stand
together and share topic, topic id and settings are written together; the order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from kreplog.config import RANGES, TOPIC_LOG_SETTINGS, TopicConfig
from kreplog.core.messages import (
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
from kreplog.errors import PeerProtocolError, UsageError
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

if TYPE_CHECKING:
    from typing_extensions import Buffer

Request = ControlRequest | ControlledShutdownRequest
Response = ControlResponse | ControlledShutdownResponse
T = TypeVar("T")

_SOME, _ALL = 1, 2

_FOR_CLIENTS, _INTERNAL = "PLAINTEXT", "INTERNAL"
"""Names of listeners."""

_DEFAULT_CONFIG = TopicConfig()

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
    """The whole frame of the answer to the request `header`."""
    return generic.encode_response(header, **_RESPONSES[header.api_key][0](response))


def decode_response(frame: Buffer, header: RequestHeader) -> Response:
    """The answer to the request `header`. Raises PeerProtocolError."""
    return _read(_RESPONSES[header.api_key][1], generic.decode_response(frame, header))


def _read(read: Callable[[Any], T], message: Any) -> T:
    """Positions that lead nowhere and settings out of range are the peer's fault."""
    try:
        return read(message)
    except (IndexError, ValueError) as error:
        raise PeerProtocolError(f"{type(message).__name__} contradicts itself: {error}") from error


def _write_leader_and_isr(request: LeaderAndIsrRequest) -> dict[str, Any]:
    return {
        "controller_id": request.controller_id,
        "controller_epoch": request.controller_epoch,
        "broker_epoch": request.broker_epoch,
        "extent": _ALL if request.is_init else _SOME,
        "sequence": request.sequence,
        "topic_states": _topic_states(request.partitions, _leader_and_isr_state),
        "live_leaders": [],
        "eligible_replicas": [
            (position, told.state.eligible) for position, told in enumerate(request.partitions) if told.state.eligible
        ],
        "topic_configs": _topic_configs(request.partitions),
    }


def _leader_and_isr_state(told: PartitionState) -> tuple[Any, ...]:
    state = told.state
    return (
        told.partition.partition,
        state.controller_epoch,
        state.leader,
        state.leader_epoch,
        state.isr,
        state.partition_epoch,
        told.replicas,
        told.adding,
        told.removing,
        told.is_new,
        0,
    )


def _read_leader_and_isr(message: Any) -> LeaderAndIsrRequest:
    eligible = {extra.position: tuple(extra.replicas) for extra in message.eligible_replicas}
    partitions = [
        PartitionState(
            TopicPartition(topic.topic_name, state.partition_index),
            topic_id,
            _state(state, eligible.get(position, ()), state.partition_epoch),
            tuple(state.replicas),
            tuple(state.adding_replicas),
            tuple(state.removing_replicas),
            state.is_new,
            config,
        )
        for position, (topic, topic_id, config, state) in enumerate(_states(message))
    ]
    _within(eligible, partitions)
    return LeaderAndIsrRequest(
        message.controller_id,
        message.controller_epoch,
        message.broker_epoch,
        tuple(partitions),
        message.extent == _ALL,
        message.sequence,
    )


def _write_update_metadata(request: UpdateMetadataRequest) -> dict[str, Any]:
    return {
        "controller_id": request.controller_id,
        "controller_epoch": request.controller_epoch,
        "broker_epoch": request.broker_epoch,
        "topic_states": _topic_states(request.partitions, _update_metadata_state),
        "live_brokers": [(broker.id, list(_endpoints(broker)), broker.rack) for broker in request.brokers],
        "partition_extras": [
            (position, told.state.eligible, told.adding, told.removing, told.is_new)
            for position, told in enumerate(request.partitions)
            if told.state.eligible or told.adding or told.removing or told.is_new
        ],
        "topic_configs": _topic_configs(request.partitions),
        "registrations": [(broker.epoch, broker.stopping, broker.unclean) for broker in request.brokers],
        "deleted_topics": [
            (topic, [partition.partition for partition in group])
            for topic, group in _by_topic(request.deleted, lambda partition: partition)
        ],
        "sequence": request.sequence,
    }


def _endpoints(broker: BrokerRegistration) -> Iterator[tuple[int, str, str, int]]:
    yield broker.port, broker.host, _FOR_CLIENTS, 0
    if broker.internal is not None:
        host, port = broker.internal
        yield port, host, _INTERNAL, 0


def _update_metadata_state(told: PartitionState) -> tuple[Any, ...]:
    state = told.state
    return (
        told.partition.partition,
        state.controller_epoch,
        state.leader,
        state.leader_epoch,
        state.isr,
        state.partition_epoch,
        told.replicas,
        (),
    )


def _read_update_metadata(message: Any) -> UpdateMetadataRequest:
    extras = {extra.position: extra for extra in message.partition_extras}
    partitions = []
    for position, (topic, topic_id, config, state) in enumerate(_states(message)):
        extra = extras.get(position)
        partitions.append(
            PartitionState(
                TopicPartition(topic.topic_name, state.partition_index),
                topic_id,
                _state(state, () if extra is None else tuple(extra.eligible_replicas), state.zk_version),
                tuple(state.replicas),
                () if extra is None else tuple(extra.adding_replicas),
                () if extra is None else tuple(extra.removing_replicas),
                extra is not None and extra.is_new,
                config,
            )
        )
    _within(extras, partitions)
    return UpdateMetadataRequest(
        message.controller_id,
        message.controller_epoch,
        message.broker_epoch,
        tuple(_brokers(message)),
        tuple(partitions),
        tuple(
            TopicPartition(topic.topic_name, partition)
            for topic in message.deleted_topics
            for partition in topic.partitions
        ),
        message.sequence,
    )


def _brokers(message: Any) -> Iterator[BrokerRegistration]:
    if len(message.registrations) != len(message.live_brokers):
        raise IndexError(f"{len(message.live_brokers)} brokers with {len(message.registrations)} registrations")
    for broker, registration in zip(message.live_brokers, message.registrations, strict=True):
        endpoint = broker.endpoints[0]
        internal = next(((one.host, one.port) for one in broker.endpoints if one.listener == _INTERNAL), None)
        yield BrokerRegistration(
            broker.id,
            registration.broker_epoch,
            endpoint.host,
            endpoint.port,
            broker.rack,
            registration.stopping,
            registration.unclean,
            internal,
        )


def _write_stop_replica(request: StopReplicaRequest) -> dict[str, Any]:
    topics = [
        (topic, topic_id, [(told.partition.partition, told.leader_epoch, told.delete) for told in group])
        for (topic, topic_id), group in groupby(request.partitions, lambda told: (told.partition.topic, told.topic_id))
    ]
    return {
        "controller_id": request.controller_id,
        "controller_epoch": request.controller_epoch,
        "broker_epoch": request.broker_epoch,
        "topic_states": [(topic, states) for topic, _, states in topics],
        "topic_ids": [generic.topic_uuid(topic_id) for _, topic_id, _ in topics],
        "sequence": request.sequence,
    }


def _read_stop_replica(message: Any) -> StopReplicaRequest:
    if len(message.topic_ids) != len(message.topic_states):
        raise IndexError(f"{len(message.topic_states)} topics with {len(message.topic_ids)} ids")
    return StopReplicaRequest(
        message.controller_id,
        message.controller_epoch,
        message.broker_epoch,
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


def _write_controlled_shutdown(request: ControlledShutdownRequest) -> dict[str, Any]:
    return {"broker_id": request.broker_id, "broker_epoch": request.broker_epoch}


def _read_controlled_shutdown(message: Any) -> ControlledShutdownRequest:
    return ControlledShutdownRequest(message.broker_id, message.broker_epoch)


def _write_leader_and_isr_answer(response: LeaderAndIsrResponse) -> dict[str, Any]:
    topics = list(_by_topic(response.partitions, lambda answered: answered[0]))
    return {
        "error_code": int(response.error),
        "topics": [
            (None, [(partition.partition, int(error)) for partition, error in answered]) for _, answered in topics
        ],
        "topic_names": [topic for topic, _ in topics],
    }


def _read_leader_and_isr_answer(message: Any) -> LeaderAndIsrResponse:
    if len(message.topic_names) != len(message.topics):
        raise IndexError(f"{len(message.topics)} topics with {len(message.topic_names)} names")
    return LeaderAndIsrResponse(
        generic.error_of(message.error_code),
        tuple(
            (TopicPartition(name, answered.partition_index), generic.error_of(answered.error_code))
            for name, topic in zip(message.topic_names, message.topics, strict=True)
            for answered in topic.partition_errors
        ),
    )


def _write_stop_replica_answer(response: StopReplicaResponse) -> dict[str, Any]:
    return {
        "error_code": int(response.error),
        "partition_errors": [
            (partition.topic, partition.partition, int(error)) for partition, error in response.partitions
        ],
    }


def _read_stop_replica_answer(message: Any) -> StopReplicaResponse:
    return StopReplicaResponse(
        generic.error_of(message.error_code),
        tuple(
            (TopicPartition(answered.topic_name, answered.partition_index), generic.error_of(answered.error_code))
            for answered in message.partition_errors
        ),
    )


def _write_update_metadata_answer(response: UpdateMetadataResponse) -> dict[str, Any]:
    return {"error_code": int(response.error)}


def _read_update_metadata_answer(message: Any) -> UpdateMetadataResponse:
    return UpdateMetadataResponse(generic.error_of(message.error_code))


def _write_controlled_shutdown_answer(response: ControlledShutdownResponse) -> dict[str, Any]:
    return {
        "error_code": int(response.error),
        "remaining_partitions": [(partition.topic, partition.partition) for partition in response.remaining],
    }


def _read_controlled_shutdown_answer(message: Any) -> ControlledShutdownResponse:
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
    ApiKey.LEADER_AND_ISR: (_write_leader_and_isr_answer, _read_leader_and_isr_answer),
    ApiKey.STOP_REPLICA: (_write_stop_replica_answer, _read_stop_replica_answer),
    ApiKey.UPDATE_METADATA: (_write_update_metadata_answer, _read_update_metadata_answer),
    ApiKey.CONTROLLED_SHUTDOWN: (_write_controlled_shutdown_answer, _read_controlled_shutdown_answer),
}


def _group(told: PartitionState) -> tuple[str, str, TopicConfig]:
    return told.partition.topic, told.topic_id, told.config


def _topic_states(
    partitions: Iterable[PartitionState], state_of: Callable[[PartitionState], tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    return [
        (topic, generic.topic_uuid(topic_id), [state_of(told) for told in group])
        for (topic, topic_id, _), group in groupby(partitions, _group)
    ]


def _topic_configs(partitions: Iterable[PartitionState]) -> list[tuple[Any, ...]]:
    """The settings that are not the defaults, each with the positions of the topic states that have them."""
    positions: dict[TopicConfig, list[int]] = {}
    for position, ((_, _, config), _) in enumerate(groupby(partitions, _group)):
        if config != _DEFAULT_CONFIG:
            positions.setdefault(config, []).append(position)
    return [
        (
            places,
            config.min_insync_replicas,
            config.unclean_leader_election_enable,
            config.flush_messages,
            [(name, str(value)) for name in TOPIC_LOG_SETTINGS if (value := getattr(config, name)) is not None],
        )
        for config, places in positions.items()
    ]


def _states(message: Any) -> Iterator[tuple[Any, str, TopicConfig, Any]]:
    """Each partition's state, with its topic's state, id and settings."""
    configs = [_DEFAULT_CONFIG] * len(message.topic_states)
    for told in message.topic_configs:
        config = TopicConfig(
            told.min_insync_replicas,
            told.unclean_leader_election_enable,
            told.flush_messages,
            **dict(map(_log_setting, told.log_settings)),
        )
        _within(told.positions, configs)
        for position in told.positions:
            configs[position] = config
    for topic, config in zip(message.topic_states, configs, strict=True):
        topic_id = generic.topic_id(topic.topic_id)
        for state in topic.partition_states:
            yield topic, topic_id, config, state


def _log_setting(told: Any) -> tuple[str, Any]:
    if told.name not in TOPIC_LOG_SETTINGS:
        raise UsageError(f"{told.name} is no setting of a topic's logs")
    return told.name, int(told.value) if told.name in RANGES else told.value


def _state(state: Any, eligible: tuple[int, ...], partition_epoch: int) -> LeaderAndIsr:
    return LeaderAndIsr(
        state.leader, state.leader_epoch, tuple(state.isr), eligible, state.controller_epoch, partition_epoch
    )


def _by_topic(items: Iterable[T], place: Callable[[T], TopicPartition]) -> Iterator[tuple[str, list[T]]]:
    for topic, group in groupby(items, lambda item: place(item).topic):
        yield topic, list(group)


def _within(positions: Iterable[int], items: Sequence[Any]) -> None:
    for position in positions:
        if not 0 <= position < len(items):
            raise IndexError(f"position {position} of {len(items)}")
