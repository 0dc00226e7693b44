"""ConfigHandlers: AlterConfigs and IncrementalAlterConfigs, of topics alone.

New settings are written to the store on condition that no other write came in between; the controller, which watches
them, sends them to the replicas. Requests are messages of kreplog.wire.generic, results the fields of their responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller.admin_operations import set_config_operations
from kreplog.errors import BadVersionError, CoordinationError, ErrorCode, NoNodeError
from kreplog.server.handlers.admin import (
    ATTEMPTS,
    INVALID_CONFIG,
    Fields,
    RefusedError,
    first_by_name,
    refuse_repeated,
    respond_to,
    stored_topic,
)
from kreplog.server.handlers.topics import TopicViews
from kreplog.server.network.slices import in_slices
from kreplog.server.runtime.store import AnySession
from kreplog.server.settings import SETTINGS
from kreplog.server.topic_settings import DELETE, Change, InvalidSettingError, changed, default_for, with_gaps_of

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
"""Resource types."""

METADATA_WAIT_S = 2.0
"""How long a response waits until this broker's metadata have the new settings."""


class ConfigHandlers:
    """Handlers of requests that change settings of topics. default: settings of a topic that is created without any."""

    def __init__(self, store: AnySession, topics: TopicViews, default: TopicConfig) -> None:
        self._store = store
        self._topics = topics
        self._default = default

    async def replace(self, request: Any) -> Fields:
        """AlterConfigs: settings that are not given return to their defaults."""
        return await self._alter(request, lambda setting: Change(setting.name, setting.value), keep=False)

    async def change(self, request: Any) -> Fields:
        """IncrementalAlterConfigs: settings that are not given stay unchanged."""
        return await self._alter(
            request, lambda setting: Change(setting.name, setting.value, setting.config_operation), keep=True
        )

    async def _alter(self, request: Any, change_of: Callable[[Any], Change], *, keep: bool) -> Fields:
        responses = []
        resources, repeated = first_by_name(
            request.resources, lambda resource: (resource.resource_type, resource.resource_name)
        )
        async for resource in in_slices(resources):
            kind, name = resource.resource_type, resource.resource_name
            changes = [change_of(config) for config in resource.configs]
            work = (
                refuse_repeated(name)
                if (kind, name) in repeated
                else self._alter_resource(kind, name, changes, request.validate_only, keep)
            )
            responses.append(await respond_to({"resource_type": kind, "resource_name": name}, work))
        return {"responses": responses}

    async def _alter_resource(
        self, kind: int, name: str, changes: Sequence[Change], validate_only: bool, keep: bool
    ) -> Fields:
        if kind == BROKER_RESOURCE and changes and all(map(_is_unset, changes)):
            return {}  # as kafka-reassign-partitions --verify deletes throttles, whether there are any or not
        if kind != TOPIC_RESOURCE:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                "only settings of topics can be altered; a broker reads its own when it starts: change its "
                "broker.toml, and restart it",
            )
        for _ in range(ATTEMPTS):
            config, version = await self._changed(name, changes, keep)
            if validate_only:
                return {}
            try:
                await self._store.multi(set_config_operations(name, config, version))
            except BadVersionError:
                continue
            except NoNodeError as error:
                raise _no_topic(name) from error
            await self._topics.until(partial(self._is_applied, name, config), METADATA_WAIT_S)
            return {}
        raise RefusedError(
            ErrorCode.REQUEST_TIMED_OUT, f"too many concurrent changes of the settings of {name}: try again"
        )

    async def _changed(self, name: str, changes: Sequence[Change], keep: bool) -> tuple[TopicConfig, int]:
        """The new settings, and the version of the node with the old ones. Raises RefusedError."""
        topic = await stored_topic(self._store, name)
        replicas = len(topic.partitions[min(topic.partitions)].target)
        path = nodes.topic_config(name)
        (node,) = await self._store.get_nodes((path,))
        if node is None:
            raise _no_topic(name)
        default = default_for(self._default, replicas)
        try:
            before = nodes.decode_topic_config(path, node)
        except CoordinationError as error:
            if keep:
                raise RefusedError(INVALID_CONFIG, f"{error}; AlterConfigs replaces it") from error
            before = TopicConfig(offset_gaps=True)
        try:
            config = changed(before if keep else default, changes, default, replicas)
            return with_gaps_of(config, before), node.stat.version
        except InvalidSettingError as error:
            raise RefusedError(INVALID_CONFIG, str(error)) from error

    def _is_applied(self, name: str, config: TopicConfig) -> bool:
        """Whether this broker's metadata have the settings, so that the client's next DescribeConfigs shows them."""
        view = self._topics.get(name)
        return view is None or all(partition.config == config for partition in view.partitions.values())


def _is_unset(change: Change) -> bool:
    """Whether it deletes a setting that no broker has."""
    return change.operation == DELETE and change.name not in SETTINGS


def _no_topic(name: str) -> RefusedError:
    return RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
