"""Configurations and partition counts of topics: DescribeConfigs, IncrementalAlterConfigs, CreatePartitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.altered_configs import alter_configs, own_configs
from kreplog.client.bootstrap import ADMIN_TIMEOUT_MS, raise_for_error
from kreplog.types import ConfigResource
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey


def topic_id_text(topic: Any) -> str:
    """The id of a topic of a Metadata response, as Kafka writes it."""
    return str(generic.topic_id(topic.topic_id))


def topic_configs(admin: AdminClient, topic: str) -> dict[str, str]:
    """The settings that were given to the topic itself; all others are its brokers'. Raises TopicRequestError."""
    return own_configs(admin, ConfigResource.TOPIC, topic)


def alter_topic_configs(admin: AdminClient, topic: str, changes: Mapping[str, str | None], validate_only: bool) -> None:
    """Set settings of a topic, or delete those with the value None. Raises TopicRequestError."""
    alter_configs(admin, ConfigResource.TOPIC, topic, changes, validate_only=validate_only)


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
