"""The table of authorization: for each API requests, the ACLs that they need, and the error without each of them.

Brokers of kreplog (test_table.py) and a real Kafka (tests/interop/test_acls.py) run the same cases. The resources have
the names below; those of a topic or group are made by whoever runs the cases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from kreplog.core.messages import (
    CONSUMER,
    FetchPartition,
    FetchRequest,
    ProducePartition,
    ProduceRequest,
)
from kreplog.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH, TopicPartition
from kreplog.wire import fetch, generic, produce
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import TO_CLIENTS, ApiKey

TOPIC = "acl-topic"
"""A topic of one partition."""

GROUP = "acl-group"
TRANSACTION = "acl-transaction"
NEW_TOPIC = "acl-new"
"""A topic that does not exist."""

DOOMED = "acl-doomed"
"""A topic that exists before every request of a case that deletes topics."""

AUTHORIZATION = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The errors of requests that are denied."""

_TOPIC_ERROR = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_GROUP_ERROR = ErrorCode.GROUP_AUTHORIZATION_FAILED
_CLUSTER_ERROR = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_ID_ERROR = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class Need(NamedTuple):
    """An ACL that a request needs, and the error of the response without it."""

    operation: Operation
    kind: ResourceType
    name: str
    error: ErrorCode


def on_topic(operation: Operation, name: str = TOPIC) -> Need:
    return Need(operation, ResourceType.TOPIC, name, _TOPIC_ERROR)


def on_group(operation: Operation) -> Need:
    return Need(operation, ResourceType.GROUP, GROUP, _GROUP_ERROR)


def on_cluster(operation: Operation) -> Need:
    return Need(operation, ResourceType.CLUSTER, CLUSTER_NAME, _CLUSTER_ERROR)


def on_transaction(operation: Operation = Operation.WRITE) -> Need:
    return Need(operation, ResourceType.TRANSACTIONAL_ID, TRANSACTION, _ID_ERROR)


class Case(NamedTuple):
    """A request of one API. needs: all of them. alternatives: each set of other needs that suffices too. version: of
    the request, None for the newest."""

    label: str
    key: ApiKey
    fields: Mapping[str, Any]
    needs: Sequence[Need] = ()
    alternatives: Sequence[Sequence[Need]] = ()
    version: int | None = None

    def header(self, correlation_id: int, client_id: str) -> RequestHeader:
        version = TO_CLIENTS[self.key][1] if self.version is None else self.version
        return RequestHeader(self.key, version, correlation_id, client_id)

    def request(self, header: RequestHeader) -> bytes:
        if self.key == ApiKey.PRODUCE:
            buffers = produce.encode_request(self.fields["request"], header, self.fields.get("transactional_id"))
        elif self.key == ApiKey.FETCH:
            buffers = fetch.encode_request(self.fields["request"], header)
        else:
            buffers = generic.encode_request(header, **self.fields)
        return b"".join(bytes(buffer) for buffer in buffers)

    def errors(self, frame: bytes, header: RequestHeader) -> set[ErrorCode]:
        """Every error code in a response, and NONE where there is one."""
        if self.key == ApiKey.PRODUCE:
            return set(_codes(produce.decode_response(frame, header)))
        if self.key == ApiKey.FETCH:
            return set(_codes(fetch.decode_response(frame, header)))
        return set(_codes(generic.decode_response(frame, header)))


def _codes(value: Any) -> Iterator[ErrorCode]:
    if isinstance(value, ErrorCode) and isinstance(value, Enum):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _codes(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _codes(getattr(value, field.name))
    elif hasattr(value, "to_dict"):
        yield from _coded(value.to_dict())


def _coded(value: Any) -> Iterator[ErrorCode]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name.endswith("error_code"):
                yield generic.error_of(item)
            else:
                yield from _coded(item)
    elif isinstance(value, list):
        for item in value:
            yield from _coded(item)


_P0 = TopicPartition(TOPIC, 0)


def _new_topic(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}


def _config(kind: int, name: str, **more: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **more}


_RETENTION = {"name": "retention.ms", "value": "3600000"}
_COMMIT = {
    "partition_index": 0,
    "committed_offset": 0,
    "committed_leader_epoch": -1,
    "committed_metadata": "",
}
_COMMITTED = [{"name": TOPIC, "partitions": [_COMMIT]}]
_TOPICS = [{"name": TOPIC, "partition_indexes": [0]}]


_REMOVED_QUOTA = {
    "entity": [{"entity_type": "user", "entity_name": "acl-nobody"}],
    "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}],
}


_FEATURE = {"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}


def cases(records: bytes, transactional_records: bytes) -> list[Case]:
    """All cases. records: an encoded batch; and one of a transaction."""
    return [*_data(records, transactional_records), *_groups(), *_transactions(), *_administration()]


def _data(records: bytes, transactional_records: bytes) -> list[Case]:
    fetched = FetchPartition(_P0, "", NO_EPOCH, 0)
    read, write, describe = Operation.READ, Operation.WRITE, Operation.DESCRIBE
    epochs = [{"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}]
    listed = [{"name": TOPIC, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}]
    return [
        Case(
            "Produce",
            ApiKey.PRODUCE,
            {"request": ProduceRequest(1, 1000, (ProducePartition(_P0, records),))},
            [on_topic(write)],
        ),
        Case(
            "Produce of a transaction",
            ApiKey.PRODUCE,
            {
                "request": ProduceRequest(-1, 1000, (ProducePartition(_P0, transactional_records),)),
                "transactional_id": TRANSACTION,
            },
            [on_transaction(), on_topic(write)],
        ),
        Case(
            "Fetch",
            ApiKey.FETCH,
            {"request": FetchRequest(CONSUMER, -1, 0, 0, 1 << 20, (fetched,))},
            [on_topic(read)],
            version=12,
        ),
        Case(
            "Fetch that begins a session",
            ApiKey.FETCH,
            {"request": FetchRequest(CONSUMER, -1, 0, 0, 1 << 20, (fetched,), session_epoch=0)},
            [on_topic(read)],
            version=12,
        ),
        Case(
            "ListOffsets",
            ApiKey.LIST_OFFSETS,
            {"replica_id": -1, "isolation_level": 0, "topics": listed, "timeout_ms": 1000},
            [on_topic(describe)],
        ),
        Case(
            "OffsetForLeaderEpoch",
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            {"replica_id": -1, "topics": epochs},
            [on_topic(describe)],
            [[on_cluster(Operation.CLUSTER_ACTION)]],
        ),
        Case(
            "DeleteRecords",
            ApiKey.DELETE_RECORDS,
            {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}], "timeout_ms": 1000},
            [on_topic(Operation.DELETE)],
        ),
        Case("DescribeProducers", ApiKey.DESCRIBE_PRODUCERS, {"topics": _TOPICS}, [on_topic(read)]),
        Case(
            "Metadata",
            ApiKey.METADATA,
            {"topics": [{"topic_id": None, "name": TOPIC}], "allow_auto_topic_creation": False},
            [on_topic(describe)],
        ),
        Case(
            "Metadata of a topic that may be created",
            ApiKey.METADATA,
            {"topics": [{"topic_id": None, "name": NEW_TOPIC}], "allow_auto_topic_creation": True},
            [on_topic(describe, NEW_TOPIC), on_topic(Operation.CREATE, NEW_TOPIC)],
            [[on_topic(describe, NEW_TOPIC), on_cluster(Operation.CREATE)]],
        ),
        Case("Metadata of all topics", ApiKey.METADATA, {"topics": None, "allow_auto_topic_creation": True}),
        Case(
            "DescribeTopicPartitions",
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            {"topics": [{"name": TOPIC}], "response_partition_limit": 100, "cursor": None},
            [on_topic(describe)],
        ),
        Case("ApiVersions", ApiKey.API_VERSIONS, {"client_software_name": "t", "client_software_version": "1"}),
        Case("SaslHandshake", ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}),
        Case("SaslAuthenticate", ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b""}),
    ]


def _groups() -> list[Case]:
    read, describe, delete = Operation.READ, Operation.DESCRIBE, Operation.DELETE
    member = {"group_id": GROUP, "member_id": "m", "generation_id": 1, "group_instance_id": None}
    committed = {"group_id": GROUP, "member_id": "", "generation_id_or_member_epoch": -1, "topics": _COMMITTED}
    heartbeat = {
        "group_id": GROUP,
        "member_id": "AAAAAAAAAAAAAAAAAAAAAA",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": 10_000,
        "subscribed_topic_names": [TOPIC],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    fetched = {"group_id": GROUP, "member_id": None, "member_epoch": -1}
    return [
        Case(
            "FindCoordinator of a group",
            ApiKey.FIND_COORDINATOR,
            {"key_type": 0, "coordinator_keys": [GROUP]},
            [on_group(describe)],
        ),
        Case(
            "FindCoordinator of one group",
            ApiKey.FIND_COORDINATOR,
            {"key_type": 0, "key": GROUP},
            [on_group(describe)],
            version=3,
        ),
        Case(
            "FindCoordinator of a transactional id",
            ApiKey.FIND_COORDINATOR,
            {"key_type": 1, "coordinator_keys": [TRANSACTION]},
            [on_transaction(describe)],
        ),
        Case(
            "JoinGroup",
            ApiKey.JOIN_GROUP,
            {
                "group_id": GROUP,
                "member_id": "m",
                "group_instance_id": None,
                "protocol_type": "consumer",
                "session_timeout_ms": 10_000,
                "rebalance_timeout_ms": 10_000,
                "reason": None,
                "protocols": [{"name": "range", "metadata": b""}],
            },
            [on_group(read)],
        ),
        Case(
            "SyncGroup",
            ApiKey.SYNC_GROUP,
            {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": []},
            [on_group(read)],
        ),
        Case("Heartbeat", ApiKey.HEARTBEAT, member, [on_group(read)]),
        Case(
            "LeaveGroup",
            ApiKey.LEAVE_GROUP,
            {"group_id": GROUP, "members": [{"member_id": "m", "group_instance_id": None, "reason": None}]},
            [on_group(read)],
        ),
        Case(
            "ConsumerGroupHeartbeat",
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            {**heartbeat, "member_epoch": 7},
            [on_group(read), on_topic(describe)],
        ),
        Case("OffsetCommit", ApiKey.OFFSET_COMMIT, committed, [on_group(read), on_topic(read)]),
        Case(
            "OffsetFetch",
            ApiKey.OFFSET_FETCH,
            {"groups": [{**fetched, "topics": _TOPICS}], "require_stable": False},
            [on_group(describe), on_topic(describe)],
        ),
        Case(
            "OffsetFetch of all offsets",
            ApiKey.OFFSET_FETCH,
            {"groups": [{**fetched, "topics": None}], "require_stable": False},
            [on_group(describe)],
        ),
        Case(
            "OffsetFetch of one group",
            ApiKey.OFFSET_FETCH,
            {"group_id": GROUP, "topics": _TOPICS, "require_stable": False},
            [on_group(describe), on_topic(describe)],
            version=7,
        ),
        Case(
            "OffsetDelete",
            ApiKey.OFFSET_DELETE,
            {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]},
            [on_group(delete), on_topic(read)],
        ),
        Case("ListGroups", ApiKey.LIST_GROUPS, {"states_filter": [], "types_filter": []}),
        Case(
            "DescribeGroups",
            ApiKey.DESCRIBE_GROUPS,
            {"groups": [GROUP], "include_authorized_operations": False},
            [on_group(describe)],
        ),
        Case(
            "ConsumerGroupDescribe",
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            {"group_ids": [GROUP], "include_authorized_operations": False},
            [on_group(describe)],
        ),
        Case("DeleteGroups", ApiKey.DELETE_GROUPS, {"groups_names": [GROUP]}, [on_group(delete)]),
    ]


def _transactions() -> list[Case]:
    read, write = Operation.READ, Operation.WRITE
    producer = {"transactional_id": TRANSACTION, "producer_id": 1, "producer_epoch": 0}
    added = {f"v3_and_below_{name}": value for name, value in producer.items()}
    initial = {"transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
    return [
        Case(
            "InitProducerId",
            ApiKey.INIT_PRODUCER_ID,
            {"transactional_id": None, **initial},
            [on_cluster(Operation.IDEMPOTENT_WRITE)],
            [[on_topic(write)], [on_topic(write, "anything")]],
        ),
        Case(
            "InitProducerId of a transactional id",
            ApiKey.INIT_PRODUCER_ID,
            {"transactional_id": TRANSACTION, **initial},
            [on_transaction()],
        ),
        Case(
            "AddPartitionsToTxn",
            ApiKey.ADD_PARTITIONS_TO_TXN,
            {**added, "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}]},
            [on_transaction(), on_topic(write)],
        ),
        Case(
            "AddOffsetsToTxn",
            ApiKey.ADD_OFFSETS_TO_TXN,
            {**producer, "group_id": GROUP},
            [on_transaction(), on_group(read)],
        ),
        Case("EndTxn", ApiKey.END_TXN, {**producer, "committed": False}, [on_transaction()]),
        Case(
            "WriteTxnMarkers",
            ApiKey.WRITE_TXN_MARKERS,
            {"markers": [(1 << 40, 0, False, [(TOPIC, [0])], 0)]},
            [on_cluster(Operation.ALTER)],
            [[on_cluster(Operation.CLUSTER_ACTION)]],
        ),
        Case(
            "TxnOffsetCommit",
            ApiKey.TXN_OFFSET_COMMIT,
            {**producer, "group_id": GROUP, "member_id": "", "generation_id": -1, "topics": _COMMITTED},
            [on_transaction(), on_group(read), on_topic(read)],
            version=4,
        ),
        Case(
            "DescribeTransactions",
            ApiKey.DESCRIBE_TRANSACTIONS,
            {"transactional_ids": [TRANSACTION]},
            [on_transaction(Operation.DESCRIBE)],
        ),
        Case(
            "ListTransactions",
            ApiKey.LIST_TRANSACTIONS,
            {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": None},
        ),
    ]


def _administration() -> list[Case]:
    describe, alter, create = Operation.DESCRIBE, Operation.ALTER, Operation.CREATE
    describe_configs, alter_configs = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
    described = {"include_synonyms": False, "include_documentation": False}
    acl = {
        "resource_type": 2,
        "resource_pattern_type": 3,
        "resource_name": "acl-of-a-case",
        "principal": "User:nobody",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    acl_filter = {
        "resource_type_filter": 2,
        "resource_name_filter": "acl-of-a-case",
        "pattern_type_filter": 3,
        "principal_filter": "User:nobody",
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return [
        Case(
            "CreateTopics",
            ApiKey.CREATE_TOPICS,
            {"topics": [_new_topic(NEW_TOPIC)], "timeout_ms": 10_000, "validate_only": True},
            [on_topic(create, NEW_TOPIC), on_topic(describe_configs, NEW_TOPIC)],
            [[on_cluster(create), on_topic(describe_configs, NEW_TOPIC)]],
        ),
        Case(
            "DeleteTopics",
            ApiKey.DELETE_TOPICS,
            {"topics": [{"name": DOOMED, "topic_id": None}], "timeout_ms": 10_000},
            [on_topic(Operation.DELETE, DOOMED)],
            [[on_cluster(Operation.DELETE)]],
        ),
        Case(
            "CreatePartitions",
            ApiKey.CREATE_PARTITIONS,
            {
                "topics": [{"name": TOPIC, "count": 2, "assignments": None}],
                "timeout_ms": 1000,
                "validate_only": True,
            },
            [on_topic(alter)],
        ),
        Case(
            "DescribeConfigs of a topic",
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [_config(2, TOPIC, configuration_keys=None)], **described},
            [on_topic(describe_configs)],
        ),
        Case(
            "DescribeConfigs of a broker",
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [_config(4, "0", configuration_keys=None)], **described},
            [on_cluster(describe_configs)],
        ),
        Case(
            "DescribeConfigs of a group",
            ApiKey.DESCRIBE_CONFIGS,
            {"resources": [_config(32, GROUP, configuration_keys=None)], **described},
            [on_group(describe_configs)],
        ),
        Case(
            "ListConfigResources",
            ApiKey.LIST_CONFIG_RESOURCES,
            {"resource_types": [32]},
            [on_cluster(describe_configs)],
        ),
        Case(
            "AlterConfigs of a topic",
            ApiKey.ALTER_CONFIGS,
            {"resources": [_config(2, TOPIC, configs=[_RETENTION])], "validate_only": True},
            [on_topic(alter_configs)],
        ),
        Case(
            "IncrementalAlterConfigs of a topic",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            {
                "resources": [_config(2, TOPIC, configs=[{**_RETENTION, "config_operation": 0}])],
                "validate_only": True,
            },
            [on_topic(alter_configs)],
        ),
        Case(
            "IncrementalAlterConfigs of a broker",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            {"resources": [_config(4, "0", configs=[])], "validate_only": True},
            [on_cluster(alter_configs)],
        ),
        Case(
            "IncrementalAlterConfigs of a group",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            {"resources": [_config(32, GROUP, configs=[])], "validate_only": True},
            [on_group(alter_configs)],
        ),
        Case(
            "AlterReplicaLogDirs",
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            {"dirs": [{"path": "/elsewhere", "topics": [{"name": TOPIC, "partitions": [0]}]}]},
            [on_cluster(alter)],
        ),
        Case("DescribeLogDirs", ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, [on_cluster(describe)]),
        Case(
            "ElectLeaders",
            ApiKey.ELECT_LEADERS,
            {"election_type": 0, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout_ms": 1000},
            [on_cluster(alter)],
        ),
        Case(
            "AlterPartitionReassignments",
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            {
                "timeout_ms": 1000,
                "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}],
            },
            [on_cluster(alter)],
        ),
        Case(
            "ListPartitionReassignments",
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            {"timeout_ms": 1000, "topics": None},
            [on_cluster(describe)],
        ),
        Case(
            "DescribeCluster",
            ApiKey.DESCRIBE_CLUSTER,
            {"include_cluster_authorized_operations": True, "endpoint_type": 1},
        ),
        Case(
            "DescribeUserScramCredentials",
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            {"users": [{"name": "acl-nobody"}]},  # Kafka 4.4 gives no response where it refuses a request for all
            [on_cluster(describe)],
        ),
        Case(
            "AlterUserScramCredentials",
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            {"deletions": [{"name": "acl-nobody", "mechanism": 1}], "upsertions": []},
            [on_cluster(alter)],
        ),
        Case(
            "DescribeClientQuotas",
            ApiKey.DESCRIBE_CLIENT_QUOTAS,
            {"components": [], "strict": False},
            [on_cluster(Operation.DESCRIBE_CONFIGS)],
        ),
        Case(
            "AlterClientQuotas",
            ApiKey.ALTER_CLIENT_QUOTAS,
            {"entries": [_REMOVED_QUOTA], "validate_only": False},
            [on_cluster(Operation.ALTER_CONFIGS)],
        ),
        Case(
            "UpdateFeatures",
            ApiKey.UPDATE_FEATURES,
            {"timeout_ms": 1000, "feature_updates": [_FEATURE], "validate_only": True},
            [on_cluster(alter)],
        ),
        Case("DescribeAcls", ApiKey.DESCRIBE_ACLS, acl_filter, [on_cluster(describe)]),
        Case("CreateAcls", ApiKey.CREATE_ACLS, {"creations": [acl]}, [on_cluster(alter)]),
        Case("DeleteAcls", ApiKey.DELETE_ACLS, {"filters": [acl_filter]}, [on_cluster(alter)]),
    ]


Send = Callable[[Case, str], "set[ErrorCode]"]
"""Sends the request of a case for a user, and returns the error codes of the response."""
