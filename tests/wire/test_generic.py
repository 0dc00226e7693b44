"""The messages of kafka-python behind our own door: all versions offered, what the library trusts, what it is given."""

from __future__ import annotations

import math
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBufferPool

from kreplog.client.bulk_connection import SUPPORTED
from kreplog.core.messages import (
    EpochPartition,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetsForLeaderEpochRequest,
    OffsetsForLeaderEpochResponse,
)
from kreplog.errors import ErrorCode, PeerProtocolError, UsageError
from kreplog.types import EpochEndOffset, TopicPartition
from kreplog.wire import generic, offsets
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import BETWEEN_BROKERS, FLEXIBLE_FROM, NEVER_FLEXIBLE, TO_CLIENTS, ApiKey
from tests.wire.messages import IDS, body_of, header

COLD = [key for key in TO_CLIENTS if key not in (ApiKey.PRODUCE, ApiKey.FETCH)]
CASES = [(key, version) for key in COLD for version in range(TO_CLIENTS[key][0], TO_CLIENTS[key][1] + 1)]
every_message = pytest.mark.parametrize(
    ("key", "version"), CASES, ids=[f"{ApiKey(key).name.lower()}-{version}" for key, version in CASES]
)
ID = uuid.UUID(bytes=b"\1" * 16)

SIMPLE: dict[str, Any] = {
    "bool": True,
    "int8": 1,
    "int16": 3,
    "uint16": 3,
    "int32": 5,
    "int64": 7,
    "float64": 0.5,
    "uuid": ID,
    "string": "text",
    "bytes": b"bytes",
    "records": b"bytes",
    "bitfield": {1, 4},
}


def example(struct: Any, version: int) -> dict[str, Any]:
    """A value for every field that `version` has: two items in each array."""
    return {name: value_of(field, version) for name, field in struct.fields.items() if field.for_version_q(version)}


def value_of(field: Any, version: int) -> Any:
    if field.is_struct_array():
        return [example(field.array_of, version), example(field.array_of, version)]
    if field.is_struct():
        return example(field, version)
    if field.is_array():
        return [value_of(field.array_of, version)] * 2
    return SIMPLE[field.type_str]


def request_and_answer(key: int, version: int) -> tuple[bytes, bytes, RequestHeader]:
    request_header = header(key, version)
    request, response = generic._MESSAGES[key]
    fields = example(response._struct, version)
    if key == ApiKey.API_VERSIONS:
        fields["error_code"] = 0
    return (
        body_of(generic.encode_request(request_header, **example(request._struct, version))),
        body_of(generic.encode_response(request_header, **fields)),
        request_header,
    )


def simplified(value: Any) -> Any:
    """A decoded message as plain values."""
    if isinstance(value, list):
        return [simplified(item) for item in value]
    if hasattr(value, "_struct"):
        return {name: simplified(getattr(value, name)) for name in value._struct.fields}
    return value


def test_the_tables_agree_with_the_library() -> None:
    for key, kinds in generic._MESSAGES.items():
        for kind in kinds:
            first, last = BETWEEN_BROKERS.get(key) or SUPPORTED[ApiKey(key)]
            assert key == kind.API_KEY
            flexible = kind._flexible_versions[0]
            assert (NEVER_FLEXIBLE if flexible < 0 else flexible) == FLEXIBLE_FROM[key]
            assert kind._valid_versions[0] <= last <= kind._valid_versions[1]
            assert first <= last


def integer(bits: int) -> Callable[[Random], int]:
    """Signed; one in three at an end of its range or beside zero."""
    ends = (-(1 << bits - 1), (1 << bits - 1) - 1, -1, 0, 1)
    return lambda random: random.choice(ends) if random.random() < 1 / 3 else random.randint(*ends[:2])


def text(random: Random) -> str:
    """Up to 8 characters: of one to four bytes each in UTF-8, but no surrogates, which have none."""
    ranges = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))
    return "".join(chr(random.randint(*random.choice(ranges))) for _ in range(random.randint(0, 8)))


def some_bytes(random: Random) -> bytes:
    return random.randbytes(random.randint(0, 8))


SIMPLE_VALUES: dict[str, Callable[[Random], Any]] = {
    "bool": lambda random: random.random() < 0.5,
    "int8": integer(8),
    "int16": integer(16),
    "uint16": lambda random: integer(16)(random) & 0xFFFF,
    "int32": integer(32),
    "int64": integer(64),
    "float64": lambda random: random.choice((0.0, -0.0, math.inf, 5e-324, random.gauss(0, 1e9))),
    "uuid": lambda random: random.choice((None, uuid.UUID(int=random.randint(1, (1 << 128) - 1)))),
    "string": text,
    "bytes": some_bytes,
    "records": some_bytes,
    "bitfield": lambda random: random.choice((None, set(random.sample(range(31), random.randint(0, 31))))),
}


def any_values(struct: Any, version: int, random: Random) -> dict[str, Any]:
    """Any value for every field that `version` has."""
    return {
        name: any_value(field, version, random) for name, field in struct.fields.items() if field.for_version_q(version)
    }


def any_value(field: Any, version: int, random: Random, in_array: bool = False) -> Any:
    """The library takes the items of an array for nullable where the array is; for Kafka they are not."""
    if field.nullable_for_version_q(version) and not in_array and random.random() < 1 / 4:
        return None
    if field.is_struct_array():
        return [any_values(field.array_of, version, random) for _ in range(random.randint(0, 2))]
    if field.is_struct():
        return any_values(field, version, random)
    if field.is_array():
        return [any_value(field.array_of, version, random, in_array=True) for _ in range(random.randint(0, 3))]
    return SIMPLE_VALUES[field.type_str](random)


def full(struct: Any, value: dict[str, Any]) -> dict[str, Any]:
    """`value` as simplified() gives it, with the defaults of the fields that its version lacks."""

    def converted(field: Any, value: Any) -> Any:
        if value is None:
            return None
        if field.is_struct_array():
            return [full(field.array_of, item) for item in value]
        return full(field, value) if field.is_struct() else value

    return {
        name: converted(field, value[name]) if name in value else field.default for name, field in struct.fields.items()
    }


@every_message
def test_all_fields_are_kept_in_every_version(key: int, version: int) -> None:
    """Fifty random messages of each, which Hypothesis takes twenty times as long to make."""
    request_header = header(key, version)
    request, response = generic._MESSAGES[key]
    random = Random(f"{key} {version}")
    for _ in range(50):
        fields = any_values(request._struct, version, random)
        frame = body_of(generic.encode_request(request_header, **fields))
        assert simplified(generic.decode_request(frame, decode_request_header(frame))) == full(request._struct, fields)
        fields = any_values(response._struct, version, random)
        if key == ApiKey.API_VERSIONS:
            fields["error_code"] = 0  # or it would be taken for one of version 0
        answer = body_of(generic.encode_response(request_header, **fields))
        assert simplified(generic.decode_response(answer, request_header)) == full(response._struct, fields)


@every_message
def test_bytes_behind_a_message(key: int, version: int) -> None:
    """Of an answer they are refused; of a client's request they are passed over, as Kafka does."""
    request, answer, request_header = request_and_answer(key, version)
    read = decode_request_header(request)
    for more in (b"\0", b"\1\0\0", request):
        assert simplified(generic.decode_request(request + more, read)) == simplified(
            generic.decode_request(request, read)
        )
        with pytest.raises(PeerProtocolError, match="behind the end"):
            generic.decode_response(answer + more, request_header)


def test_librdkafka_requests_all_topics() -> None:
    """Byte for byte what its 2.16 sends: three bytes too many."""
    frame = body_of(generic.encode_request(header(ApiKey.METADATA, 12)))
    read = decode_request_header(frame)
    decoded = generic.decode_request(frame[: read.body] + bytes.fromhex("00000000010000"), read)
    assert (decoded.topics, decoded.allow_auto_topic_creation) == (None, False)


def test_bytes_behind_what_a_broker_sends() -> None:
    frame = body_of(generic.encode_request(header(ApiKey.CONTROLLED_SHUTDOWN, 3), broker_id=1, broker_epoch=2))
    with pytest.raises(PeerProtocolError, match="behind the end"):
        generic.decode_request(frame + b"\0", decode_request_header(frame, BETWEEN_BROKERS))


@every_message
def test_damaged_messages_are_other_messages_or_refused(key: int, version: int) -> None:
    request, answer, request_header = request_and_answer(key, version)
    for length in range(len(request)):
        with pytest.raises(PeerProtocolError):
            generic.decode_request(request[:length], decode_request_header(request[:length]))
    for length in range(4, len(answer)):
        with pytest.raises(PeerProtocolError):
            generic.decode_response(answer[:length], request_header)
    for changed in damaged(request):
        with suppress(PeerProtocolError):
            known = decode_request_header(changed)
            if known.known and known.api_key == key:
                generic.decode_request(changed, known)
    for changed in damaged(answer):
        with suppress(PeerProtocolError):
            generic.decode_response(changed, request_header)


def damaged(frame: bytes) -> Iterator[bytes]:
    for at, byte in enumerate(frame):
        for other in {0, 1, 0x7F, 0x80, 0xFF, (byte + 1) & 0xFF}:
            yield frame[:at] + bytes([other]) + frame[at + 1 :]
        yield frame[:at] + b"\xff\xff\xff\xff\x0f" + frame[at + 1 :]
        yield frame[:at] + b"\x7f\xff\xff\xff" + frame[at + 4 :]


TOPIC = b"\0" * 18  # an id, no name, no tags
BOMBS = [
    pytest.param(12, b"\xff\xff\xff\xff\x0f", "array is longer", id="array"),
    pytest.param(12, b"\xe1\xa7\x12" + TOPIC * 300_000, "too many items", id="array with content"),
    pytest.param(1, b"\x7f\xff\xff\xff", "array is longer", id="plain array"),
    pytest.param(1, b"\x00\x40\x00\x00" + b"\0\0" * (4 << 20), "too many items", id="plain array with content"),
    pytest.param(12, b"\0\0\0" + b"\xff\xff\xff\xff\x0f", "more tagged fields", id="tags"),
    pytest.param(12, b"\x81" + b"\x80" * (4 << 20), "wider than 32 bits", id="endless varint"),
    pytest.param(12, b"\x80\x80\x04" + (TOPIC[1:] + b"\1\0\0") * 65535, "too many items", id="tags to copy"),
]


@pytest.mark.parametrize(("version", "bomb", "reason"), BOMBS)
def test_bombs_take_neither_memory_nor_time(version: int, bomb: bytes, reason: str) -> None:
    """A Metadata request of topics; the library would build all of them, or copy the rest for each tagged field."""
    request_header = header(ApiKey.METADATA, version)
    whole = body_of(generic.encode_request(request_header, topics=[]))
    known = decode_request_header(whole)
    frame = whole[: known.body] + bomb
    generic._shape_of(generic._MESSAGES[ApiKey.METADATA][0], version)
    tracemalloc.start()
    try:
        with pytest.raises(PeerProtocolError, match=reason):
            generic.decode_request(frame, known)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_tags_that_are_not_known_are_passed_over() -> None:
    request_header = header(ApiKey.METADATA, 9)
    frame = body_of(generic.encode_request(request_header, topics=[{"name": "flights"}]))
    at = frame.index(b"flights") + 7
    tagged = frame[:at] + b"\x01\x07\x03abc" + frame[at + 1 : -1] + b"\x02\x03\x00\x09\x01x"
    message = generic.decode_request(tagged, decode_request_header(tagged))
    assert [topic.name for topic in message.topics] == ["flights"]


def test_text_that_is_not_utf8() -> None:
    frame = body_of(generic.encode_request(header(ApiKey.METADATA, 9), topics=[{"name": "flights"}]))
    with pytest.raises(PeerProtocolError, match="not UTF-8"):
        generic.decode_request(frame.replace(b"flights", b"fl\xffghts"), decode_request_header(frame))


def test_a_null_where_none_may_be() -> None:
    frame = body_of(generic.encode_request(header(ApiKey.DELETE_TOPICS, 4), topic_names=["a"]))
    assert generic.decode_request(frame, decode_request_header(frame)).topic_names == ["a"]
    null = frame.replace(b"\x02\x02a", b"\x00")
    with pytest.raises(PeerProtocolError, match="a null stands where none may be"):
        generic.decode_request(null, decode_request_header(null))


FEATURE = generic.Feature("kreplog.version", 1, 3, 2)


@pytest.mark.parametrize("version", range(4))
def test_api_versions_lists_what_is_offered(version: int) -> None:
    request_header = header(ApiKey.API_VERSIONS, version)
    answer = generic.decode_response(
        body_of(generic.api_versions(request_header, TO_CLIENTS, [FEATURE], 7)), request_header
    )
    assert answer.error_code == 0
    assert {offered.api_key: (offered.min_version, offered.max_version) for offered in answer.api_keys} == TO_CLIENTS
    if version >= 3:
        (supported,), (finalized,) = answer.supported_features, answer.finalized_features
        assert (supported.name, supported.min_version, supported.max_version) == FEATURE[:3]
        assert (finalized.name, finalized.min_version_level, finalized.max_version_level) == ("kreplog.version", 2, 2)
        assert answer.finalized_features_epoch == 7


def test_api_versions_in_an_unknown_version_is_answered_in_the_first() -> None:
    """KIP-511: UNSUPPORTED_VERSION and the range of ApiVersions, or librdkafka and Java would not fall back."""
    known = decode_request_header(body_of([b"\0\0\0\x0a\0\x12\0\x09\0\0\0\x4d\xff\xff"]))
    frame = body_of(generic.api_versions(known, TO_CLIENTS, [FEATURE], 7))
    assert frame == bytes.fromhex("0000004d 0023 00000001 0012 0000 0003")
    answer = generic.decode_response(frame, header(ApiKey.API_VERSIONS, 3))
    assert (answer.error_code, len(answer.api_keys)) == (35, 1)


def test_fields_of_other_versions_are_left_out_and_wrong_names_reported() -> None:
    topic = {"name": "flights", "topic_id": IDS["flights"], "partitions": [], "error_code": 0}
    for version in (1, 9, 12):
        request_header = header(ApiKey.METADATA, version)
        frame = body_of(
            generic.encode_response(request_header, brokers=[], controller_id=1, cluster_id="c", topics=[topic])
        )
        answer = generic.decode_response(frame, request_header)
        assert answer.topics[0].name == "flights"
        assert generic.topic_id(answer.topics[0].topic_id) == (IDS["flights"] if version >= 10 else "")
    with pytest.raises(UsageError, match="no field 'topik'"):
        generic.encode_response(header(ApiKey.METADATA, 1), topik=[])


def test_tuples_are_written_as_mappings_are() -> None:
    request_header = header(ApiKey.METADATA, 12)
    brokers = [{"node_id": 1, "host": "h", "port": 2, "rack": None}]
    partition = {"partition_index": 1, "leader_id": 2, "leader_epoch": 3, "replica_nodes": [2], "isr_nodes": [2]}
    topic: dict[str, Any] = {"name": "flights", "topic_id": IDS["flights"], "partitions": [partition]}
    fast = {**topic, "partitions": [(0, 1, 2, 3, [2], [2], [])]}
    assert generic.encode_response(request_header, brokers=brokers, topics=[topic]) == generic.encode_response(
        request_header, brokers=[(1, "h", 2, None)], topics=[fast]
    )


def test_threads_may_be_the_first_to_use_a_message_together() -> None:
    """The library makes its decoders at first use, and one that two threads make at once can be broken."""
    request_header = header(ApiKey.CREATE_TOPICS, 7)
    kind = generic._MESSAGES[ApiKey.CREATE_TOPICS][0]
    frame = body_of(generic.encode_request(request_header, topics=[{"name": "flights"}]))
    known = decode_request_header(frame)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            kind._struct._compiled_encoders.clear()
            generic._SHAPES.clear()
            for message in pool.map(lambda _: generic.decode_request(frame, known), range(8)):
                assert message.topics[0].name == "flights"


def test_a_large_message_leaves_no_large_buffer_behind() -> None:
    request_header = header(ApiKey.METADATA, 12)
    topics = [{"name": "t" * 30000, "partitions": []} for _ in range(100)]
    before = len(generic.encode_response(request_header, brokers=[], topics=topics)[0])  # type: ignore[arg-type]
    assert before > 2 << 20
    assert not hasattr(EncodeBufferPool._local, "buf")
    generic.encode_response(request_header, brokers=[], topics=[])


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_is_kept(version: int) -> None:
    request_header = header(ApiKey.LIST_OFFSETS, version)
    places = [TopicPartition("flights", 1), TopicPartition("flights", 2), TopicPartition("a", 0)]
    epoch = 7 if version >= 4 else -1
    queried = tuple(ListOffsetsPartition(place, epoch, -1) for place in places)
    request = ListOffsetsRequest(queried, -1 - version % 2, version=version)
    frame = body_of(offsets.encode_list_offsets(request, request_header))
    assert offsets.decode_list_offsets(frame, decode_request_header(frame)) == request
    response = ListOffsetsResponse(
        tuple(
            ListedOffset(place, ErrorCode.OFFSET_NOT_AVAILABLE, 5, epoch, timestamp)
            for place, timestamp in zip(places, (-1, 1234, -1), strict=True)
        )
    )
    frame = body_of(offsets.encode_list_offsets_response(response, request_header))
    assert offsets.decode_list_offsets_response(frame, request_header) == response


@pytest.mark.parametrize("version", range(2, 5))
def test_offset_for_leader_epoch_is_kept(version: int) -> None:
    request_header = header(ApiKey.OFFSET_FOR_LEADER_EPOCH, version)
    places = [TopicPartition("flights", 1), TopicPartition("flights", 2), TopicPartition("a", 0)]
    replica_id = 1 if version >= 3 else -2
    request = OffsetsForLeaderEpochRequest(replica_id, tuple(EpochPartition(place, 5, 4) for place in places))
    topics = [
        {
            "topic": topic,
            "partitions": [
                {"partition": place.partition, "current_leader_epoch": 5, "leader_epoch": 4}
                for place in places
                if place.topic == topic
            ],
        }
        for topic in ("flights", "a")
    ]
    frame = body_of(generic.encode_request(request_header, replica_id=replica_id, topics=topics))
    assert offsets.decode_offset_for_leader_epoch(frame, decode_request_header(frame)) == request
    response = OffsetsForLeaderEpochResponse(tuple((place, ErrorCode.NONE, EpochEndOffset(4, 99)) for place in places))
    frame = body_of(offsets.encode_offset_for_leader_epoch_response(response, request_header))
    message = generic.decode_response(frame, request_header)
    found = {
        TopicPartition(topic.topic, fields.partition): (fields.error_code, fields.leader_epoch, fields.end_offset)
        for topic in message.topics
        for fields in topic.partitions
    }
    assert found == dict.fromkeys(places, (0, 4, 99))
