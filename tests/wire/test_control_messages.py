"""What controllers and brokers say to each other comes out of its bytes as it went in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog.config import INHERITED, TOPIC_COMPRESSION_TYPES, TOPIC_LOG_SETTINGS, TopicConfig
from kreplog.core.messages import (
    BrokerConfigs,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.types import BrokerRegistration, Endpoint, LeaderAndIsr, SecurityProtocol, TopicPartition
from kreplog.wire import control_messages, generic
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import BETWEEN_BROKERS, ApiKey
from tests.wire.messages import IDS, body_of, errors, int32s, int64s, partitions, tuples_of

replicas = tuples_of(int32s)
topic_ids = st.sampled_from(["", *IDS.values()])
configs = st.just(TopicConfig()) | st.builds(
    TopicConfig,
    st.integers(1, 2**31 - 1),
    st.booleans(),
    st.integers(1, 2**63 - 1),
    flush_ms=st.integers(1, 2**63 - 1),
    cleanup_policy=st.sampled_from(["delete", "compact", "delete,compact"]),
    compression_type=st.sampled_from(TOPIC_COMPRESSION_TYPES),
    compression_gzip_level=st.sampled_from([-1, 1, 9]),
    compression_zstd_level=st.sampled_from([3, -131072]),
    offset_gaps=st.booleans(),
    min_cleanable_dirty_ratio=st.none() | st.floats(0, 1),
    retention_ms=st.none() | st.integers(-1, 2**63 - 1),
    message_timestamp_type=st.sampled_from([None, "LogAppendTime"]),
    unused=st.sampled_from([(), (("preallocate", "true"), ("segment.jitter.ms", "5"))]),
    inherited=st.sampled_from([(), INHERITED, INHERITED[:1], INHERITED[2:5]]),
)
states = st.builds(
    PartitionState,
    partition=partitions,
    topic_id=topic_ids,
    state=st.builds(LeaderAndIsr, int32s, int32s, replicas, replicas, int32s, int32s, st.booleans()),
    replicas=replicas,
    adding=replicas,
    removing=replicas,
    is_new=st.booleans(),
    config=configs,
)
broker_configs = st.builds(
    BrokerConfigs, *(tuples_of(st.tuples(st.text(max_size=9), st.text(max_size=9))) for _ in range(2))
)
registrations = st.builds(
    BrokerRegistration,
    *(int32s, int64s, st.text(max_size=9), int32s, st.none() | st.text(max_size=5), st.booleans(), st.booleans()),
)
answers = tuples_of(st.tuples(partitions, errors))
requests: st.SearchStrategy[control_messages.Request] = st.one_of(
    st.builds(LeaderAndIsrRequest, int32s, int32s, int64s, tuples_of(states), st.booleans(), int64s, broker_configs),
    st.builds(
        StopReplicaRequest,
        *(int32s, int32s, int64s),
        tuples_of(st.builds(StopReplica, partitions, topic_ids, int32s, st.booleans())),
        int64s,
    ),
    st.builds(
        UpdateMetadataRequest,
        *(int32s, int32s, int64s, tuples_of(registrations), tuples_of(states), tuples_of(partitions), int64s),
        broker_configs,
    ),
    st.builds(ControlledShutdownRequest, int32s, int64s),
)
responses: st.SearchStrategy[tuple[ApiKey, control_messages.Response]] = st.one_of(
    st.tuples(st.just(ApiKey.LEADER_AND_ISR), st.builds(LeaderAndIsrResponse, errors, answers)),
    st.tuples(st.just(ApiKey.STOP_REPLICA), st.builds(StopReplicaResponse, errors, answers)),
    st.tuples(st.just(ApiKey.UPDATE_METADATA), st.builds(UpdateMetadataResponse, errors)),
    st.tuples(
        st.just(ApiKey.CONTROLLED_SHUTDOWN), st.builds(ControlledShutdownResponse, errors, tuples_of(partitions))
    ),
)

PLACES = (TopicPartition("flights", 1), TopicPartition("flights", 2), TopicPartition("a", 0))
STATES = tuple(
    PartitionState(
        place,
        IDS[place.topic],
        LeaderAndIsr(1, 5, (1, 2), (3,), 7, 9),
        (1, 2, 3),
        (3,),
        (4,),
        True,
        TopicConfig(2, True, 1),
    )
    for place in PLACES
)
BROKERS = (
    BrokerRegistration(1, 2, "localhost", 9092, "rack", True, True, ("10.0.0.1", 9093)),
    BrokerRegistration(2, 3, "localhost", 9093, None, internal=("/run/kreplog/broker.sock", 0)),
    BrokerRegistration(3, 4, "localhost", 9094),
    BrokerRegistration(
        *(4, 5, "localhost", 9095),
        internal=("::1", 9096),
        endpoints=(
            Endpoint("OUTSIDE", "localhost", 9095, SecurityProtocol.SASL_SSL),
            Endpoint("INTERNAL", "10.0.0.4", 9097, SecurityProtocol.PLAINTEXT),
        ),
    ),
)
EXAMPLES: list[control_messages.Request] = [
    LeaderAndIsrRequest(1, 2, 3, STATES, True),
    StopReplicaRequest(1, 2, 3, tuple(StopReplica(place, IDS[place.topic], 4, True) for place in PLACES)),
    UpdateMetadataRequest(1, 2, 3, BROKERS, STATES, PLACES),
    ControlledShutdownRequest(1, 2),
]
ANSWERS: list[tuple[ApiKey, control_messages.Response]] = [
    (ApiKey.LEADER_AND_ISR, LeaderAndIsrResponse(ErrorCode.NONE, ((PLACES[0], ErrorCode.STALE_BROKER_EPOCH),))),
    (ApiKey.STOP_REPLICA, StopReplicaResponse(ErrorCode.NONE, ((PLACES[0], ErrorCode.STALE_BROKER_EPOCH),))),
    (ApiKey.UPDATE_METADATA, UpdateMetadataResponse(ErrorCode.STALE_CONTROLLER_EPOCH)),
    (ApiKey.CONTROLLED_SHUTDOWN, ControlledShutdownResponse(ErrorCode.NONE, PLACES)),
]


def header_for(key: ApiKey) -> RequestHeader:
    return RequestHeader(key, BETWEEN_BROKERS[key][1], 4711, "controller")


def read_request(frame: bytes) -> object:
    return control_messages.decode_request(frame, decode_request_header(frame, BETWEEN_BROKERS))


def test_every_setting_of_a_topic_is_encoded() -> None:
    """A setting that TopicConfig gains must be written and read, too."""
    assert tuple(TopicConfig.__dataclass_fields__) == (
        "min_insync_replicas",
        "unclean_leader_election_enable",
        "flush_messages",
        "flush_ms",
        "cleanup_policy",
        "compression_type",
        "compression_gzip_level",
        "compression_lz4_level",
        "compression_zstd_level",
        "offset_gaps",
        *TOPIC_LOG_SETTINGS,
        "unused",
        "inherited",
    )


@settings(max_examples=200)
@given(request=requests)
def test_requests_are_kept(request: control_messages.Request) -> None:
    frame = body_of(control_messages.encode_request(request, header_for(control_messages.KEYS[type(request)])))
    assert read_request(frame) == request


@settings(max_examples=100)
@given(answer=responses)
def test_answers_are_kept(answer: tuple[ApiKey, control_messages.Response]) -> None:
    key, response = answer
    header = header_for(key)
    frame = body_of(control_messages.encode_response(response, header))
    assert control_messages.decode_response(frame, header) == response


def hostile(frame: bytes) -> Iterator[bytes]:
    """Cut short at every byte, and each byte changed but those that say which API it is."""
    for length in range(len(frame)):
        yield frame[:length]
    for at, byte in list(enumerate(frame))[4:]:
        for other in {0, 1, 2, 0x7F, 0x80, 0xFF, byte ^ 1, (byte + 1) & 0xFF}:
            yield frame[:at] + bytes([other]) + frame[at + 1 :]
        yield frame[:at] + b"\xff\xff\xff\xff\x0f" + frame[at + 1 :]


@pytest.mark.parametrize("request_", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_damaged_request_is_another_request_or_refused(request_: control_messages.Request) -> None:
    frame = body_of(control_messages.encode_request(request_, header_for(control_messages.KEYS[type(request_)])))
    assert read_request(frame) == request_
    refused = 0
    for changed in hostile(frame):
        try:
            read_request(changed)
        except PeerProtocolError:
            refused += 1
    assert refused >= len(frame)


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda example: type(example[1]).__name__)
def test_a_damaged_answer_is_another_answer_or_refused(answer: tuple[ApiKey, control_messages.Response]) -> None:
    key, response = answer
    header = header_for(key)
    frame = body_of(control_messages.encode_response(response, header))
    refused = 0
    for changed in hostile(frame):
        try:
            control_messages.decode_response(changed, header)
        except PeerProtocolError:
            refused += 1
    assert refused >= len(frame)


def sent(key: ApiKey, **fields: Any) -> bytes:
    return body_of(generic.encode_request(header_for(key), **fields))


@pytest.mark.parametrize(
    "frame",
    [
        sent(ApiKey.LEADER_AND_ISR, topic_states=[], live_leaders=[], eligible_replicas=[(0, [1])]),
        sent(ApiKey.LEADER_AND_ISR, topic_states=[], live_leaders=[], topic_configs=[([0], 1, False, 1, [])]),
        sent(ApiKey.LEADER_AND_ISR, topic_states=[], live_leaders=[], topic_configs=[([], 0, False, 1, [])]),
        sent(
            ApiKey.LEADER_AND_ISR,
            topic_states=[],
            live_leaders=[],
            topic_configs=[([], 1, False, 1, [("retention_ms", "x")])],
        ),
        sent(ApiKey.LEADER_AND_ISR, topic_states=[], live_leaders=[], flush_every_record=[0]),
        sent(ApiKey.STOP_REPLICA, topic_states=[("a", [])]),
        sent(ApiKey.UPDATE_METADATA, topic_states=[], live_brokers=[(1, [], None)], registrations=[(1, False, False)]),
        sent(ApiKey.UPDATE_METADATA, topic_states=[], live_brokers=[(1, [], None)]),
        sent(ApiKey.UPDATE_METADATA, topic_states=[], live_brokers=[], partition_extras=[(-1, [], [], [], True)]),
        sent(ApiKey.UPDATE_METADATA, topic_states=[], live_brokers=[], flush_every_record=[0]),
    ],
)
def test_a_request_that_contradicts_itself(frame: bytes) -> None:
    with pytest.raises(PeerProtocolError, match="contradicts itself"):
        read_request(frame)


def test_an_error_that_is_not_known_is_an_unknown_one() -> None:
    header = header_for(ApiKey.UPDATE_METADATA)
    frame = body_of(generic.encode_response(header, error_code=9999))
    assert control_messages.decode_response(frame, header) == UpdateMetadataResponse(ErrorCode.UNKNOWN_SERVER_ERROR)


def test_ten_thousand_partitions_with_every_field() -> None:
    """What our messages add stands at their end: no copy of the rest for each partition."""
    many = tuple(
        STATES[0]._replace(partition=TopicPartition(f"topic-{n // 10}", n % 10), config=TopicConfig(1 + n // 10 % 3))
        for n in range(10_000)
    )
    request = UpdateMetadataRequest(1, 2, 3, (BrokerRegistration(1, 2),), many)
    frame = body_of(control_messages.encode_request(request, header_for(ApiKey.UPDATE_METADATA)))
    assert read_request(frame) == request
