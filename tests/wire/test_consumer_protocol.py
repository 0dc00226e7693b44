"""Heartbeats and descriptions of consumer groups (KIP-848), in Kafka's bytes."""

from __future__ import annotations

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
    DescribedTopic,
    TopicIdPartitions,
)
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.wire import consumer_protocol, generic
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import TO_CLIENTS, ApiKey

HEARTBEAT, DESCRIBE = ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE
TOPIC = "AAECAwQFBgcICQoLDA0ODw"
OWNED = (TopicIdPartitions(TOPIC, (0, 300)),)

STARTS = ("g", "m", 4, "i", "r", 300_000, ("t", "u"))
REQUESTS: tuple[tuple[ConsumerGroupHeartbeatRequest, str], ...] = (
    (
        ConsumerGroupHeartbeatRequest(*STARTS, None, "uniform", OWNED, needs_member_id=True, client_id="client"),
        "request 0 0267026d0000000402690272000493e0030274027508756e69666f726d"
        "02000102030405060708090a0b0c0d0e0f03000000000000012c0000",
    ),
    (
        ConsumerGroupHeartbeatRequest(*STARTS, "x.*", "uniform", OWNED, client_id="client"),
        "request 1 0267026d0000000402690272000493e0030274027504782e2a08756e69666f726d"
        "02000102030405060708090a0b0c0d0e0f03000000000000012c0000",
    ),
    (
        ConsumerGroupHeartbeatRequest("g", "m", 4, needs_member_id=True, client_id="client"),
        "request 0 0267026d000000040000ffffffff00000000",
    ),
    (
        ConsumerGroupHeartbeatRequest("g", "m", 4, client_id="client"),
        "request 1 0267026d000000040000ffffffff0000000000",
    ),
)

JOINED = ConsumerGroupHeartbeatResponse(ErrorCode.NONE, None, "m", 4, 5000, OWNED)
FENCED = ConsumerGroupHeartbeatResponse(ErrorCode.FENCED_MEMBER_EPOCH, "why")
MEMBER = DescribedConsumer("m", "i", "r", 4, "c", "/h", ("t",), "x.*", (DescribedTopic(TOPIC, "t", (0, 300)),), ())
DESCRIBED = ConsumerGroupDescribeResponse(
    (
        DescribedConsumerGroup("g", ErrorCode.NONE, None, "Stable", 5, 4, "uniform", (MEMBER,)),
        DescribedConsumerGroup("h", ErrorCode.GROUP_ID_NOT_FOUND, "none"),
    )
)
_GROUP = (
    "0000000003000000026707537461626c65000000050000000408756e69666f726d02026d02690272000000040263032f68"
    "02027404782e2a02000102030405060708090a0b0c0d0e0f027403000000000000012c00000100"
)
_UNKNOWN = "0080000000000045056e6f6e6502680100000000000000000101800000000000"
RESPONSES = (
    (
        JOINED,
        "response 0 00000000000000026d00000004000013880102000102030405060708090a0b0c0d0e0f03000000000000012c000000",
    ),
    (FENCED, "response 0 00000000006e04776879000000000000000000ff00"),
    (DESCRIBED, f"described 0 {_GROUP}{_UNKNOWN}"),
    (
        JOINED,
        "response 1 00000000000000026d00000004000013880102000102030405060708090a0b0c0d0e0f03000000000000012c000000",
    ),
    (FENCED, "response 1 00000000006e04776879000000000000000000ff00"),
    (DESCRIBED, f"described 1 {_GROUP}01{_UNKNOWN}"),
)
"""Messages, and name, version and body as Kafka 4.4 writes them: printed by tests/interop/GroupMessages.java."""


def frame_of(key: ApiKey, version: int, body: bytes) -> tuple[bytes, RequestHeader]:
    """A request with that body, behind the header of a client."""
    header = RequestHeader(key, version, 7, "client")
    empty = {"group_id": "", "member_id": "", "member_epoch": 0} if key == HEARTBEAT else {"group_ids": []}
    (frame,) = generic.encode_request(header, **empty)
    start = decode_request_header(bytes(frame)[4:], TO_CLIENTS).body
    data = bytes(frame)[4 : 4 + start] + body
    return data, decode_request_header(data, TO_CLIENTS)


@pytest.mark.parametrize(("request_", "printed"), REQUESTS)
def test_a_heartbeat_is_read(request_: ConsumerGroupHeartbeatRequest, printed: str) -> None:
    _, version, body = printed.split()
    data, header = frame_of(HEARTBEAT, int(version), bytes.fromhex(body))
    assert consumer_protocol.decode_heartbeat(data, header) == request_
    for cut in range(header.body, len(data)):
        with pytest.raises(PeerProtocolError):
            consumer_protocol.decode_heartbeat(data[:cut], header)


@pytest.mark.parametrize(("response", "printed"), RESPONSES)
def test_a_response_is_written(response: object, printed: str) -> None:
    name, version, body = printed.split()
    key = DESCRIBE if name == "described" else HEARTBEAT
    (frame,) = consumer_protocol.ENCODERS[key](response, RequestHeader(key, int(version), 7, "client"))
    size, correlation, no_tags = 4, 4, 1
    assert bytes(frame)[size + correlation + no_tags :].hex() == body


def test_what_a_member_owns_is_in_order_and_named_once() -> None:
    other = "EBESExQVFhcYGRobHB0eHw"
    topics = [
        {"topic_id": each, "partitions": numbers} for each, numbers in ((other, [3]), (TOPIC, [2, 1]), (other, [0, 3]))
    ]
    header = RequestHeader(HEARTBEAT, 1, 7, "client")
    fields = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t", "u", "t"]}
    (frame,) = generic.encode_request(header, **fields, topic_partitions=topics, subscribed_topic_regex="")
    data = bytes(frame)[4:]
    decoded = consumer_protocol.decode_heartbeat(data, decode_request_header(data, TO_CLIENTS))
    assert decoded.owned == (TopicIdPartitions(TOPIC, (1, 2)), TopicIdPartitions(other, (0, 3)))
    assert decoded.subscribed_topics == ("t", "u")
    assert decoded.subscribed_regex == ""


@pytest.mark.parametrize("version", [0, 1])
def test_a_request_to_describe_groups_is_read(version: int) -> None:
    data, header = frame_of(DESCRIBE, version, bytes.fromhex("04 0267 0268 0267 01 00"))
    assert consumer_protocol.decode_describe(data, header) == ConsumerGroupDescribeRequest(("g", "h"), True)


def test_both_apis_have_both() -> None:
    assert consumer_protocol.DECODERS.keys() == consumer_protocol.ENCODERS.keys() == {HEARTBEAT, DESCRIBE}


@pytest.mark.parametrize("field", ["group_id", "member_id", "instance_id", "subscribed_topic_regex"])
def test_a_string_is_no_longer_than_kafka_allows(field: str) -> None:
    """Records have int16 lengths: a longer one could not be stored."""
    fields: dict[str, object] = {"group_id": "g", "member_id": "m", "member_epoch": 0}
    for size in (32767, 32768):
        (frame,) = generic.encode_request(RequestHeader(HEARTBEAT, 1, 7, "client"), **fields | {field: "x" * size})
        data = bytes(frame)[4:]
        header = decode_request_header(data, TO_CLIENTS)
        if size > 32767:
            with pytest.raises(PeerProtocolError, match="a string has 32768 bytes: Kafka's protocol allows 32767"):
                consumer_protocol.decode_heartbeat(data, header)
        else:
            consumer_protocol.decode_heartbeat(data, header)
