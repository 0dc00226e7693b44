"""Configs that a topic or a group has of its own: DescribeConfigs and IncrementalAlterConfigs, sent to any broker."""

from __future__ import annotations

from collections.abc import Mapping

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import raise_for_error
from kreplog.types import ConfigResource
from kreplog.wire.versions import ApiKey

_SOURCES = {ConfigResource.TOPIC: 1, ConfigResource.GROUP: 8}
"""By type of resource: the source of its own configs."""

_SET, _DELETE = 0, 1


def own_configs(admin: AdminClient, kind: ConfigResource, name: str) -> dict[str, str]:
    """The settings that were given to the topic or group itself; all others are its brokers'. Raises
    TopicRequestError."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    response = admin.request(
        ApiKey.DESCRIBE_CONFIGS, 1, resources=[resource], include_synonyms=False, include_documentation=False
    )
    (result,) = response.results
    raise_for_error(kind.name.lower(), name, result)
    return {config.name: config.value for config in result.configs if config.config_source == _SOURCES[kind]}


def alter_configs(
    admin: AdminClient,
    kind: ConfigResource,
    name: str,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> None:
    """Set settings of a topic or a group, or delete those with the value None; all of them or none. Raises
    TopicRequestError."""
    configs = [
        {"name": setting, "value": value, "config_operation": _DELETE if value is None else _SET}
        for setting, value in changes.items()
    ]
    response = admin.request(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": kind, "resource_name": name, "configs": configs}],
        validate_only=validate_only,
    )
    raise_for_error(kind.name.lower(), name, response.responses[0])
