"""Dynamic configs of brokers (KIP-226): DescribeConfigs and IncrementalAlterConfigs, sent to the broker concerned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import UnreachableError, raise_for_error
from kreplog.client.broker_client import BrokerClient
from kreplog.types import ConfigResource
from kreplog.wire.versions import ApiKey

_DYNAMIC_BROKER_CONFIG, _DYNAMIC_DEFAULT_BROKER_CONFIG = 2, 3
_SET, _DELETE = 0, 1


def broker_configs(admin: AdminClient, broker_id: int | None) -> dict[str, str]:
    """The dynamic configs of a broker; None: the cluster-wide default. Raises TopicRequestError, UnreachableError."""
    resource = {"resource_type": ConfigResource.BROKER, "resource_name": _name(broker_id), "configuration_keys": None}
    response = _request(admin, broker_id, ApiKey.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=False)
    (result,) = response.results
    raise_for_error("broker", _name(broker_id), result)
    source = _DYNAMIC_DEFAULT_BROKER_CONFIG if broker_id is None else _DYNAMIC_BROKER_CONFIG
    return {config.name: config.value for config in result.configs if config.config_source == source}


def alter_broker_configs(admin: AdminClient, broker_id: int | None, changes: Mapping[str, str | None]) -> None:
    """Set dynamic configs of a broker, or delete those with the value None; all of them or none. None for the id: the
    cluster-wide default. Raises TopicRequestError, UnreachableError."""
    configs = [
        {"name": name, "value": value, "config_operation": _DELETE if value is None else _SET}
        for name, value in changes.items()
    ]
    resource = {"resource_type": ConfigResource.BROKER, "resource_name": _name(broker_id), "configs": configs}
    response = _request(admin, broker_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    raise_for_error("broker", _name(broker_id), response.responses[0])


def _name(broker_id: int | None) -> str:
    return "" if broker_id is None else str(broker_id)


def _request(admin: AdminClient, broker_id: int | None, api: ApiKey, **fields: Any) -> Any:
    """Any broker responds for the cluster-wide default, each only for itself."""
    if broker_id is None:
        return admin.request(api, 1, **fields)

    async def request(_: int, client: BrokerClient) -> Any:
        return await client.request(api, 1, **fields)

    admin.metadata([])
    responses = admin.request_each([broker_id], request)
    if broker_id not in responses:
        live = ", ".join(map(str, sorted(admin.live)))
        raise UnreachableError(f"broker {broker_id} does not respond, live are {live}: is it running?")
    return responses[broker_id]
