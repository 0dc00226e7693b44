"""All messages but Produce and Fetch, as classes of kafka-python's `kafka.protocol`; only this module imports that.

One class of the library per message serves all versions. Received bytes are checked against the schema first
(kreplog/_native/wire_shape.pyx), since the library trusts what it reads; the library writes what is sent. The
messages between brokers, which it lacks, run on the same engine from schema files of our own (kreplog/wire/schemas).

Field names are Kafka's in snake_case; a field that the version lacks has its default. `authorized_operations` in
Metadata and DescribeCluster is the library's own name: a set of bit numbers, or None.
Needs kafka-python, the extra `cluster`.
"""

from __future__ import annotations

import contextlib
import threading
import types
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_header import ResponseClassRegistry
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBufferPool

from kreplog._native.wire import topic_id_bytes, topic_id_of
from kreplog._native.wire_shape import ARRAY, BYTES, FIXED, RUN, STRUCT, TAGLESS, TEXT, check_shape
from kreplog.errors import ErrorCode, PeerProtocolError, UsageError
from kreplog.wire.frames import (
    MAX_ITEMS,
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    flexible,
)
from kreplog.wire.versions import ApiKey, Ranges

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SCHEMAS = "kreplog.wire.schemas"
_MAX_POOLED_BUFFER = 1 << 20
_SIZE = Struct(">i")
_BROKER_BUDGET = 10_000_000


def _own(name: str) -> tuple[Any, Any]:
    """The classes of a request and its response, from our own schema files."""
    request, response = (
        types.new_class(name + kind, (ApiMessage,), {"load_json": _SCHEMAS}) for kind in ("Request", "Response")
    )
    return request, response


def _own_response(name: str, theirs: Any) -> Any:
    """The class of a response that the library has too: its own clients in this process go on with theirs, which is the
    last that is registered."""
    response = types.new_class(name + "Response", (ApiMessage,), {"load_json": _SCHEMAS})
    ResponseClassRegistry.register_response_class(weakref.proxy(theirs))
    return response


_MESSAGES: dict[int, tuple[Any, Any]] = {
    ApiKey.LIST_OFFSETS: (consumer.ListOffsetsRequest, consumer.ListOffsetsResponse),
    ApiKey.METADATA: (metadata.MetadataRequest, metadata.MetadataResponse),
    ApiKey.LEADER_AND_ISR: _own("LeaderAndIsr"),
    ApiKey.STOP_REPLICA: _own("StopReplica"),
    ApiKey.UPDATE_METADATA: _own("UpdateMetadata"),
    ApiKey.CONTROLLED_SHUTDOWN: _own("ControlledShutdown"),
    ApiKey.OFFSET_COMMIT: (consumer.OffsetCommitRequest, consumer.OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: (consumer.OffsetFetchRequest, consumer.OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: (metadata.FindCoordinatorRequest, metadata.FindCoordinatorResponse),
    ApiKey.JOIN_GROUP: (consumer.JoinGroupRequest, consumer.JoinGroupResponse),
    ApiKey.HEARTBEAT: (consumer.HeartbeatRequest, consumer.HeartbeatResponse),
    ApiKey.LEAVE_GROUP: (consumer.LeaveGroupRequest, consumer.LeaveGroupResponse),
    ApiKey.SYNC_GROUP: (consumer.SyncGroupRequest, consumer.SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: (admin.DescribeGroupsRequest, admin.DescribeGroupsResponse),
    ApiKey.LIST_GROUPS: (admin.ListGroupsRequest, admin.ListGroupsResponse),
    ApiKey.SASL_HANDSHAKE: (sasl.SaslHandshakeRequest, sasl.SaslHandshakeResponse),
    ApiKey.SASL_AUTHENTICATE: (sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        admin.DescribeUserScramCredentialsRequest,
        admin.DescribeUserScramCredentialsResponse,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        admin.AlterUserScramCredentialsRequest,
        admin.AlterUserScramCredentialsResponse,
    ),
    ApiKey.UPDATE_FEATURES: (admin.UpdateFeaturesRequest, admin.UpdateFeaturesResponse),
    ApiKey.DELETE_GROUPS: (admin.DeleteGroupsRequest, admin.DeleteGroupsResponse),
    ApiKey.OFFSET_DELETE: (consumer.OffsetDeleteRequest, consumer.OffsetDeleteResponse),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (admin.DescribeClientQuotasRequest, admin.DescribeClientQuotasResponse),
    ApiKey.ALTER_CLIENT_QUOTAS: (admin.AlterClientQuotasRequest, admin.AlterClientQuotasResponse),
    ApiKey.API_VERSIONS: (metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
    ApiKey.CREATE_TOPICS: (admin.CreateTopicsRequest, admin.CreateTopicsResponse),
    ApiKey.DELETE_TOPICS: (admin.DeleteTopicsRequest, admin.DeleteTopicsResponse),
    ApiKey.DELETE_RECORDS: (admin.DeleteRecordsRequest, admin.DeleteRecordsResponse),
    ApiKey.INIT_PRODUCER_ID: (producer.InitProducerIdRequest, producer.InitProducerIdResponse),
    ApiKey.ADD_PARTITIONS_TO_TXN: (producer.AddPartitionsToTxnRequest, producer.AddPartitionsToTxnResponse),
    ApiKey.ADD_OFFSETS_TO_TXN: (producer.AddOffsetsToTxnRequest, producer.AddOffsetsToTxnResponse),
    ApiKey.TXN_OFFSET_COMMIT: (producer.TxnOffsetCommitRequest, producer.TxnOffsetCommitResponse),
    ApiKey.END_TXN: (producer.EndTxnRequest, producer.EndTxnResponse),
    ApiKey.WRITE_TXN_MARKERS: (producer.WriteTxnMarkersRequest, producer.WriteTxnMarkersResponse),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (consumer.OffsetForLeaderEpochRequest, consumer.OffsetForLeaderEpochResponse),
    ApiKey.DESCRIBE_ACLS: (admin.DescribeAclsRequest, admin.DescribeAclsResponse),
    ApiKey.CREATE_ACLS: (admin.CreateAclsRequest, admin.CreateAclsResponse),
    ApiKey.DELETE_ACLS: (admin.DeleteAclsRequest, admin.DeleteAclsResponse),
    ApiKey.DESCRIBE_CONFIGS: (admin.DescribeConfigsRequest, admin.DescribeConfigsResponse),
    ApiKey.ALTER_CONFIGS: (admin.AlterConfigsRequest, admin.AlterConfigsResponse),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (admin.AlterReplicaLogDirsRequest, admin.AlterReplicaLogDirsResponse),
    ApiKey.DESCRIBE_LOG_DIRS: (admin.DescribeLogDirsRequest, admin.DescribeLogDirsResponse),
    ApiKey.CREATE_PARTITIONS: (admin.CreatePartitionsRequest, admin.CreatePartitionsResponse),
    ApiKey.ELECT_LEADERS: (admin.ElectLeadersRequest, admin.ElectLeadersResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (admin.IncrementalAlterConfigsRequest, admin.IncrementalAlterConfigsResponse),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        admin.AlterPartitionReassignmentsRequest,
        admin.AlterPartitionReassignmentsResponse,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (
        admin.ListPartitionReassignmentsRequest,
        admin.ListPartitionReassignmentsResponse,
    ),
    ApiKey.DESCRIBE_PRODUCERS: (admin.DescribeProducersRequest, admin.DescribeProducersResponse),
    ApiKey.DESCRIBE_TRANSACTIONS: (admin.DescribeTransactionsRequest, admin.DescribeTransactionsResponse),
    ApiKey.LIST_TRANSACTIONS: (admin.ListTransactionsRequest, admin.ListTransactionsResponse),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _own("ConsumerGroupHeartbeat"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _own("ConsumerGroupDescribe"),
    ApiKey.DESCRIBE_CLUSTER: (admin.DescribeClusterRequest, admin.DescribeClusterResponse),
    ApiKey.LIST_CONFIG_RESOURCES: (admin.ListConfigResourcesRequest, admin.ListConfigResourcesResponse),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        admin.DescribeTopicPartitionsRequest,
        admin.DescribeTopicPartitionsResponse,
    ),
}

_FOR_LEADERS: dict[tuple[int, int], Any] = dict.fromkeys(
    ((ApiKey.ADD_PARTITIONS_TO_TXN, 4), (ApiKey.ADD_PARTITIONS_TO_TXN, 5)),
    _own_response("AddPartitionsToTxn", producer.AddPartitionsToTxnResponse),
)
"""Responses of which some versions are between brokers, by API key and version."""

_DEFAULTS: dict[tuple[int, int], dict[str, Any]] = {}
"""Fields of a struct, by the identity of its schema, which the library keeps for ever, and the version."""

_ERRORS = {int(code): code for code in ErrorCode}

_FROM_BROKERS = {
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
}


def decode_request(frame: Buffer, header: RequestHeader, budget: int = MAX_ITEMS) -> Any:
    """The request as an object of the library: fields are attributes, nested structs in lists.

    budget: maximum of entries in arrays and tags, unless it comes from a broker. Bytes after a client's request are
    ignored, as Kafka does: librdkafka leaves three bytes behind a Metadata request for all topics (its issue 5049).
    Raises PeerProtocolError.
    """
    whole = header.api_key in _FROM_BROKERS
    if whole:
        budget = _BROKER_BUDGET
    return _decode(_MESSAGES[header.api_key][0], frame, header.body, header.api_key, header.api_version, budget, whole)


def encode_response(header: RequestHeader, **fields: Any) -> list[Buffer]:
    """The whole frame of a response, in one buffer. fields: of the schema; those that the version lacks are left out.

    A nested struct is a mapping of its fields, a list of structs a list of mappings; or, quicker and without any check,
    of tuples of just the fields that this version has, in order. A topic id is text as in the cores, or a UUID.
    Raises UsageError for a field that is in no version.
    """
    kind = _response_class(header.api_key, header.api_version)
    return [_encoded(kind, header, fields, encode_response_header(header))]


def encode_request(header: RequestHeader, **fields: Any) -> list[Buffer]:
    """The whole frame of a request, in one buffer; fields as for encode_response."""
    return [_encoded(_MESSAGES[header.api_key][0], header, fields, encode_request_header(header))]


def decode_response(frame: Buffer, header: RequestHeader) -> Any:
    """The response to the request `header`, as decode_request returns it. Raises PeerProtocolError."""
    body = decode_response_header(frame, header)
    version = header.api_version
    if header.api_key == ApiKey.API_VERSIONS and bytes(memoryview(frame)[body : body + 2]) != b"\0\0":
        version = 0  # a refusal is always in this form
    budget = _BROKER_BUDGET if header.api_key in _FROM_BROKERS else MAX_ITEMS
    kind = _response_class(header.api_key, version)
    return _decode(kind, frame, body, header.api_key, version, budget, whole=True)


class Feature(NamedTuple):
    """A feature in a response to ApiVersions (KIP-584): the levels that the broker supports, and the finalized one."""

    name: str
    least: int
    greatest: int
    finalized: int


def api_versions(header: RequestHeader, ranges: Ranges, features: Sequence[Feature], epoch: int) -> list[Buffer]:
    """The response to ApiVersions with the APIs and versions of `ranges`. epoch: of the finalized features.

    A request in a version that is not offered gets UNSUPPORTED_VERSION and the range of ApiVersions itself, in the form
    of version 0, which every client reads and falls back by (KIP-511).
    """
    error, offered = ErrorCode.NONE, ranges
    if not header.known:
        header = RequestHeader(header.api_key, 0, header.correlation_id)
        error, offered = ErrorCode.UNSUPPORTED_VERSION, {ApiKey.API_VERSIONS: ranges[ApiKey.API_VERSIONS]}
    keys = [{"api_key": int(key), "min_version": low, "max_version": high} for key, (low, high) in offered.items()]
    return encode_response(
        header,
        error_code=int(error),
        api_keys=keys,
        supported_features=[
            {"name": each.name, "min_version": each.least, "max_version": each.greatest} for each in features
        ],
        finalized_features_epoch=epoch,
        finalized_features=[
            {"name": each.name, "min_version_level": each.finalized, "max_version_level": each.finalized}
            for each in features
        ],
    )


def throttle_time_offset(api_key: int, version: int) -> int | None:
    """Where in the message of a response throttle_time_ms is; None if it has none, or not at a fixed place."""
    place = 0
    for field in _response_class(api_key, version).json["fields"]:
        if _holds(field["versions"], version):
            if field["name"] == "ThrottleTimeMs":
                return place
            size = _SIZES.get(field["type"])
            if size is None:
                return None
            place += size
    return None


def topic_id(value: uuid.UUID | None) -> str:
    """A decoded topic id as the cores have it; "" for none."""
    return "" if value is None else topic_id_of(value.bytes)


def topic_uuid(value: str) -> uuid.UUID:
    """The topic id of the cores as tuples for encode_response need it."""
    return uuid.UUID(bytes=topic_id_bytes(value))


def bit_field(numbers: Iterable[int]) -> int:
    """Authorized operations as a field of our own schemas has them: a bit for each."""
    return sum(1 << number for number in numbers)


def error_of(code: int) -> ErrorCode:
    """The ErrorCode of a number; a number that kreplog does not know is UNKNOWN_SERVER_ERROR."""
    return _ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def _response_class(api_key: int, version: int) -> Any:
    return _FOR_LEADERS.get((api_key, version)) or _MESSAGES[api_key][1]


def _decode(kind: Any, frame: Buffer, body: int, api_key: int, version: int, budget: int, whole: bool) -> Any:
    end = check_shape(frame, body, _shape_of(kind, version), flexible(api_key, version), budget, whole)
    try:
        return kind.decode(memoryview(frame)[body:end], version=version)
    except UnicodeDecodeError as error:
        raise PeerProtocolError(f"a string of {kind.__name__} is not UTF-8: {error}") from None


def _encoded(kind: Any, header: RequestHeader, fields: Mapping[str, Any], start: bytes) -> Buffer:
    """A frame. start: the encoded header."""
    struct, version = kind._struct, header.api_version
    compact = flexible(header.api_key, version)
    encode = struct.compiled_encode_into(version, compact=compact, tagged=compact)
    with EncodeBufferPool.acquire() as out:
        out.pos = _SIZE.size + len(start)
        out.ensure(0)
        out.buf[_SIZE.size : out.pos] = start
        encode(_nested(struct, version, fields), out)
        _SIZE.pack_into(out.buf, 0, out.pos - _SIZE.size)
        frame: bytearray = out.result()
    if len(frame) > _MAX_POOLED_BUFFER:
        del EncodeBufferPool._local.buf  # the library would keep a buffer of this size for this thread for ever
    return frame


def _converted(struct: Any, version: int, fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields that `version` has, with mappings made into the library's own classes."""
    for name, value in fields.items():
        field = struct.fields.get(name)
        if field is None:
            raise UsageError(f"{struct.name} has no field {name!r}: it has {', '.join(struct.fields)}")
        if field.for_version_q(version):
            yield name, _convert(field, version, value)


def _convert(field: Any, version: int, value: Any) -> Any:
    if value is None:
        return None
    if field.is_struct():
        return _nested(field, version, value)
    if field.is_struct_array():
        return [item if isinstance(item, tuple) else _nested(field.array_of, version, item) for item in value]
    if field.type_str == "uuid" and isinstance(value, str):
        return topic_uuid(value)
    return value


def _nested(struct: Any, version: int, value: Mapping[str, Any]) -> types.SimpleNamespace:
    """A struct as the library's encoder reads it: the classes of the library take several times as long to make."""
    defaults = _DEFAULTS.get((id(struct), version))
    if defaults is None:
        defaults = _DEFAULTS[id(struct), version] = dict(_defaults(struct.untagged_fields(version)))
    found = types.SimpleNamespace(**defaults)
    found.__dict__.update(_converted(struct, version, value))
    return found


def _defaults(fields: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for field in fields:
        with contextlib.suppress(NotImplementedError):  # a struct, which has to be given
            yield field.name, field.default


# Shapes, from the schemas as the library has patched them.

_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "bitfield": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}


_SHAPES: dict[tuple[Any, int], tuple[Any, ...]] = {}
_COMPILING = threading.Lock()


def _shape_of(kind: Any, version: int) -> tuple[Any, ...]:
    """Made at first use, as is the library's decoder: by one thread, since the library changes the class meanwhile."""
    shape = _SHAPES.get((kind, version))
    if shape is None:
        compact = flexible(kind.API_KEY, version)
        with _COMPILING:
            kind._struct.compiled_decode_from(version, compact=compact, tagged=compact, data_class=kind)
            shape = _struct_shape(kind.json["fields"], version, compact, tagless=False)
            _SHAPES[kind, version] = shape
    return shape


def _struct_shape(fields: list[dict[str, Any]], version: int, compact: bool, *, tagless: bool) -> tuple[Any, ...]:
    operations: list[tuple[Any, ...]] = []
    tags: dict[int, tuple[Any, ...]] = {}
    for field in fields:
        if not _holds(field["versions"], version):
            continue
        if _holds(field.get("taggedVersions", "none"), version):
            tags[field["tag"]] = _operation(field, version, compact, tagless=True)
        else:
            operations.append(_operation(field, version, compact, tagless=tagless))
    return tuple(operations), (TAGLESS if tagless else tags) if compact else None


def _operation(field: dict[str, Any], version: int, compact: bool, *, tagless: bool) -> tuple[Any, ...]:
    """The operation that encodes a field. tagless: inside of a tagged field, where the library reads no tags."""
    nullable = _holds(field.get("nullableVersions", "none"), version)
    kind = field["type"]
    if kind.startswith("[]"):
        if "fields" not in field and kind[2:] in _SIZES:
            return RUN, nullable, _SIZES[kind[2:]]
        item = _operation({**field, "type": kind[2:], "nullableVersions": "none"}, version, compact, tagless=tagless)
        return ARRAY, nullable, item, _least(item, compact)
    if "fields" in field:
        return STRUCT, nullable, _struct_shape(field["fields"], version, compact, tagless=tagless)
    if kind in _SIZES:
        return FIXED, _SIZES[kind]
    return (TEXT if kind == "string" else BYTES), nullable


def _least(operation: tuple[Any, ...], compact: bool) -> int:
    """The fewest bytes that it takes; above 0."""
    kind = operation[0]
    if kind == FIXED:
        size: int = operation[1]
        return size
    if kind == STRUCT:
        return 1 if operation[1] else sum(_least(field, compact) for field in operation[2][0]) + compact
    if compact:
        return 1
    return 2 if kind == TEXT else 4


def _holds(versions: str, version: int) -> bool:
    """Whether a range of a schema, as in "3", "3+" or "3-7", holds `version`."""
    if versions == "none":
        return False
    first, dash, last = versions.partition("-")
    if dash:
        return int(first) <= version <= int(last)
    if first.endswith("+"):
        return version >= int(first[:-1])
    return version == int(first)
