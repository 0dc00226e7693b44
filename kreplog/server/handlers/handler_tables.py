"""Handlers of requests by API key: of those that describe the cluster, of those that run in a task of their own, and of
those that quotas of mutations are for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kreplog.server.handlers.acl_handlers import AclHandlers
from kreplog.server.handlers.admin import AdminHandlers, Fields, Mutate
from kreplog.server.handlers.configs import ConfigHandlers
from kreplog.server.handlers.feature_handlers import FeatureHandlers
from kreplog.server.handlers.log_dir_handlers import LogDirHandlers
from kreplog.server.handlers.metadata import Description, MetadataHandlers
from kreplog.server.handlers.new_producer_ids import ProducerIdHandlers
from kreplog.server.handlers.producer_descriptions import ProducerHandlers
from kreplog.server.handlers.quota_handlers import QuotaHandlers
from kreplog.server.handlers.user_credentials import UserCredentialHandlers
from kreplog.wire.versions import ApiKey


def queries(
    metadata: MetadataHandlers, producers: ProducerHandlers, users: UserCredentialHandlers
) -> dict[int, Callable[[Any, int, str, Mutate], Description]]:
    """Handlers of requests that describe the cluster, by API key; called with a request, its version, the name of its
    listener, and the quota of its client for topics that are created for it (KIP-599)."""
    return {
        ApiKey.METADATA: metadata.metadata,
        ApiKey.DESCRIBE_CLUSTER: lambda request, version, listener, _: metadata.cluster(request, listener),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda request, version, listener, _: metadata.topic_partitions(
            request, listener
        ),
        ApiKey.DESCRIBE_CONFIGS: lambda request, *_: metadata.configs(request),
        ApiKey.LIST_CONFIG_RESOURCES: lambda request, version, *_: metadata.config_resources(request, version),
        ApiKey.DESCRIBE_LOG_DIRS: lambda request, *_: metadata.log_dirs(request),
        ApiKey.DESCRIBE_PRODUCERS: lambda request, *_: producers.describe(request),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda request, *_: users.describe(request),
    }


def commands(
    admin: AdminHandlers,
    configs: ConfigHandlers,
    producer_ids: ProducerIdHandlers,
    acls: AclHandlers,
    users: UserCredentialHandlers,
    quotas: QuotaHandlers,
    features: FeatureHandlers,
    log_dirs: LogDirHandlers,
) -> dict[int, Callable[[Any], Awaitable[Fields]]]:
    """Handlers that run in a task of their own, most of which change the cluster, by API key."""
    return {
        ApiKey.INIT_PRODUCER_ID: producer_ids.init_producer_id,
        ApiKey.DESCRIBE_ACLS: acls.describe,
        ApiKey.CREATE_ACLS: acls.create,
        ApiKey.DELETE_ACLS: acls.delete,
        ApiKey.ALTER_CONFIGS: configs.replace,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.change,
        ApiKey.ELECT_LEADERS: admin.elect_leaders,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: admin.alter_reassignments,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: admin.list_reassignments,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: users.alter,
        ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.describe,
        ApiKey.ALTER_CLIENT_QUOTAS: quotas.alter,
        ApiKey.UPDATE_FEATURES: features.update,
        ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs.alter,
    }


def mutations(admin: AdminHandlers) -> dict[int, Callable[[Any, Mutate], Awaitable[Fields]]]:
    """Handlers of requests that create and delete partitions; called with the quota of their client too (KIP-599)."""
    return {
        ApiKey.CREATE_TOPICS: admin.create_topics,
        ApiKey.DELETE_TOPICS: admin.delete_topics,
        ApiKey.CREATE_PARTITIONS: admin.create_partitions,
    }
