"""All settings of a topic or a broker with their sources, by DescribeConfigs; for tools that show them."""

from __future__ import annotations

from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import UnreachableError, raise_for_error
from kreplog.client.broker_client import BrokerClient
from kreplog.types import ConfigResource
from kreplog.wire.versions import ApiKey

_SOURCES = {
    1: "topic",
    2: "broker, dynamic",
    3: "all brokers, dynamic",
    4: "broker's file",
    5: "default",
    6: "broker's loggers",
}


def topic_settings(admin: AdminClient, topic: str) -> list[dict[str, Any]]:
    """name, value (None where it is sensitive) and source of each. Raises TopicRequestError, UnreachableError."""
    response = admin.request(ApiKey.DESCRIBE_CONFIGS, 1, **_fields(ConfigResource.TOPIC, topic))
    return _settings("topic", topic, response)


def broker_settings(admin: AdminClient, broker_id: int) -> list[dict[str, Any]]:
    """As topic_settings, of a broker in the metadata; it responds for itself alone."""

    async def request(_: int, client: BrokerClient) -> Any:
        return await client.request(ApiKey.DESCRIBE_CONFIGS, 1, **_fields(ConfigResource.BROKER, str(broker_id)))

    response = admin.request_each([broker_id], request).get(broker_id)
    if response is None:
        raise UnreachableError(f"broker {broker_id} does not respond: is it running?")
    return _settings("broker", str(broker_id), response)


def _fields(kind: int, name: str) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return {"resources": [resource], "include_synonyms": False, "include_documentation": False}


def _settings(kind: str, name: str, response: Any) -> list[dict[str, Any]]:
    (result,) = response.results
    raise_for_error(kind, name, result)
    return [
        {
            "name": config.name,
            "value": None if config.is_sensitive else config.value,
            "source": _SOURCES.get(config.config_source, "unknown"),
        }
        for config in sorted(result.configs, key=lambda config: str(config.name))
    ]
