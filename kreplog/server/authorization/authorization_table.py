"""The ACLs that each API of clients needs, as Kafka's KafkaApis and ControllerApis have it.

A broker does not start while an API of clients has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from kreplog.core.group_messages import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)
from kreplog.core.security.acls import Operation
from kreplog.server.authorization import admin_rules, group_rules, partition_rules
from kreplog.server.authorization.checks import Rule, on_cluster, passes
from kreplog.wire.versions import ApiKey

RULES: Mapping[int, Rule] = MappingProxyType(
    {
        # Records and offsets
        ApiKey.PRODUCE: partition_rules.produce,
        ApiKey.FETCH: partition_rules.fetch,
        ApiKey.LIST_OFFSETS: partition_rules.list_offsets,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: partition_rules.leader_epochs,
        ApiKey.DELETE_RECORDS: partition_rules.delete_records,
        ApiKey.DESCRIBE_PRODUCERS: partition_rules.describe_producers,
        # Groups
        ApiKey.FIND_COORDINATOR: group_rules.find_coordinator,
        ApiKey.JOIN_GROUP: group_rules.member(JoinGroupResponse),
        ApiKey.SYNC_GROUP: group_rules.member(SyncGroupResponse),
        ApiKey.HEARTBEAT: group_rules.member(HeartbeatResponse),
        ApiKey.LEAVE_GROUP: group_rules.member(LeaveGroupResponse),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: group_rules.consumer_heartbeat,
        ApiKey.OFFSET_COMMIT: group_rules.offset_commit,
        ApiKey.OFFSET_FETCH: group_rules.offset_fetch,
        ApiKey.OFFSET_DELETE: group_rules.offset_delete,
        ApiKey.LIST_GROUPS: group_rules.list_groups,
        ApiKey.DESCRIBE_GROUPS: group_rules.describe_groups,
        ApiKey.CONSUMER_GROUP_DESCRIBE: group_rules.describe_consumer_groups,
        ApiKey.DELETE_GROUPS: group_rules.delete_groups,
        # Transactions
        ApiKey.INIT_PRODUCER_ID: partition_rules.init_producer_id,
        ApiKey.ADD_PARTITIONS_TO_TXN: partition_rules.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: partition_rules.add_offsets,
        ApiKey.END_TXN: partition_rules.end_transaction,
        ApiKey.TXN_OFFSET_COMMIT: group_rules.txn_offset_commit,
        ApiKey.WRITE_TXN_MARKERS: partition_rules.write_markers,
        ApiKey.DESCRIBE_TRANSACTIONS: partition_rules.describe_transactions,
        ApiKey.LIST_TRANSACTIONS: partition_rules.list_transactions,
        # Metadata and topics
        ApiKey.API_VERSIONS: passes,
        ApiKey.SASL_HANDSHAKE: passes,
        ApiKey.SASL_AUTHENTICATE: passes,
        ApiKey.METADATA: partition_rules.metadata,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: partition_rules.topic_partitions,
        ApiKey.DESCRIBE_CLUSTER: admin_rules.describe_cluster,
        ApiKey.CREATE_TOPICS: admin_rules.create_topics,
        ApiKey.DELETE_TOPICS: admin_rules.delete_topics,
        ApiKey.CREATE_PARTITIONS: admin_rules.create_partitions,
        # Settings and the cluster
        ApiKey.DESCRIBE_CONFIGS: admin_rules.describe_configs,
        ApiKey.LIST_CONFIG_RESOURCES: on_cluster(Operation.DESCRIBE_CONFIGS, admin_rules.refused_config_resources),
        ApiKey.ALTER_CONFIGS: admin_rules.alter_configs,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: admin_rules.alter_configs,
        ApiKey.ALTER_REPLICA_LOG_DIRS: on_cluster(Operation.ALTER, admin_rules.refused_moves),
        ApiKey.DESCRIBE_LOG_DIRS: on_cluster(Operation.DESCRIBE, admin_rules.refused_log_dirs),
        ApiKey.ELECT_LEADERS: on_cluster(Operation.ALTER, admin_rules.refused_election),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: on_cluster(Operation.ALTER, admin_rules.refused_reassignment),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: on_cluster(Operation.DESCRIBE, admin_rules.refused_listing),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: on_cluster(Operation.DESCRIBE, admin_rules.refused_users),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: on_cluster(Operation.ALTER, admin_rules.refused_alterations),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: on_cluster(Operation.DESCRIBE_CONFIGS, admin_rules.refused_quotas),
        ApiKey.ALTER_CLIENT_QUOTAS: on_cluster(Operation.ALTER_CONFIGS, admin_rules.refused_quota_alterations),
        ApiKey.UPDATE_FEATURES: on_cluster(Operation.ALTER, admin_rules.refused_features),
        ApiKey.DESCRIBE_ACLS: on_cluster(Operation.DESCRIBE, admin_rules.refused_acls),
        ApiKey.CREATE_ACLS: on_cluster(Operation.ALTER, admin_rules.refused_creations),
        ApiKey.DELETE_ACLS: on_cluster(Operation.ALTER, admin_rules.refused_deletions),
    }
)
"""By API key."""

_WITH_OPERATIONS: Mapping[int, tuple[str, ...]] = MappingProxyType(
    {
        ApiKey.METADATA: ("include_topic_authorized_operations", "include_cluster_authorized_operations"),
        ApiKey.DESCRIBE_CLUSTER: ("include_cluster_authorized_operations",),
        ApiKey.DESCRIBE_GROUPS: ("includes_operations",),
        ApiKey.CONSUMER_GROUP_DESCRIBE: ("includes_operations",),
    }
)


def has_operations(key: int, request: Any) -> bool:
    """Whether the response has the authorized operations, without an authorizer too (KIP-430): where they are
    requested, and always in that to DescribeTopicPartitions."""
    fields = _WITH_OPERATIONS.get(key, ())
    return key == ApiKey.DESCRIBE_TOPIC_PARTITIONS or any(getattr(request, field) for field in fields)


ADMINISTRATIVE: Mapping[int, Callable[[Any], Iterable[object]]] = MappingProxyType(
    {
        ApiKey.CREATE_TOPICS: lambda request: [topic.name for topic in request.topics],
        ApiKey.DELETE_TOPICS: lambda request: [
            *request.topic_names,
            *(topic.topic_id if topic.name is None else topic.name for topic in request.topics),
        ],
        ApiKey.CREATE_PARTITIONS: lambda request: [topic.name for topic in request.topics],
        ApiKey.DELETE_RECORDS: lambda request: [deleted.partition for deleted in request.partitions],
        ApiKey.WRITE_TXN_MARKERS: lambda request: [written.partition for written in request.partitions],
        ApiKey.DELETE_GROUPS: lambda request: request.group_ids,
        ApiKey.OFFSET_DELETE: lambda request: [f"{request.group_id} at {each}" for each in request.partitions],
        ApiKey.ALTER_CONFIGS: admin_rules.altered_configs,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: admin_rules.altered_configs,
        ApiKey.ELECT_LEADERS: lambda request: [named.topic for named in request.topic_partitions or ()] or ["all"],
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda request: [topic.name for topic in request.topics],
        ApiKey.ALTER_REPLICA_LOG_DIRS: admin_rules.moved_replicas,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: admin_rules.altered_users,
        ApiKey.ALTER_CLIENT_QUOTAS: admin_rules.altered_quotas,
        ApiKey.UPDATE_FEATURES: admin_rules.updated_features,
        ApiKey.CREATE_ACLS: lambda request: map(admin_rules.acl_text, request.creations),
        ApiKey.DELETE_ACLS: lambda request: map(admin_rules.acl_text, request.filters),
    }
)
"""APIs of administrators, whose allowed requests are in the audit log too: what a request changes."""

OF_RIGHTS = frozenset({ApiKey.ALTER_USER_SCRAM_CREDENTIALS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS})
"""Those by which principals get and lose rights."""
