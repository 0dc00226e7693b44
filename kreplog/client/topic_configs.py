"""Configurations and partition counts of topics: DescribeConfigs, IncrementalAlterConfigs, CreatePartitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import ADMIN_TIMEOUT_MS, raise_for_error
from kreplog.types import ConfigResource
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey

_DYNAMIC_TOPIC_CONFIG = 1
_SET, _DELETE = 0, 1


def topic_id_text(topic: Any) -> str:
    """The id of a topic of a Metadata response, as Kafka writes it."""
    return str(generic.topic_id(topic.topic_id))


def topic_configs(admin: AdminClient, topic: str) -> dict[str, str]:
    """The settings that were given to the topic itself; all others are its brokers'. Raises TopicRequestError."""
    resource = {"resource_type": ConfigResource.TOPIC, "resource_name": topic, "configuration_keys": None}
    response = admin.request(
        ApiKey.DESCRIBE_CONFIGS, 1, resources=[resource], include_synonyms=False, include_documentation=False
    )
    (result,) = response.results
    raise_for_error("topic", topic, result)
    return {config.name: config.value for config in result.configs if config.config_source == _DYNAMIC_TOPIC_CONFIG}


def alter_topic_configs(admin: AdminClient, topic: str, changes: Mapping[str, str | None], validate_only: bool) -> None:
    """Set settings of a topic, or delete those with the value None. Raises TopicRequestError."""
    configs = [
        {"name": name, "value": value, "config_operation": _DELETE if value is None else _SET}
        for name, value in changes.items()
    ]
    response = admin.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": ConfigResource.TOPIC, "resource_name": topic, "configs": configs}],
        validate_only=validate_only,
    )
    raise_for_error("topic", topic, response.responses[0])


def create_partitions(admin: AdminClient, topic: str, count: int, validate_only: bool) -> None:
    """Add partitions to a topic until it has `count`. Raises TopicRequestError."""
    response = admin.request(
        ApiKey.CREATE_PARTITIONS,
        2,
        topics=[{"name": topic, "count": count, "assignments": None}],
        timeout_ms=ADMIN_TIMEOUT_MS,
        validate_only=validate_only,
    )
    raise_for_error("topic", topic, response.results[0])
