"""ConfigHandlers: AlterConfigs and IncrementalAlterConfigs, of topics, of brokers (KIP-226), and of groups (KIP-848).

New settings of topics and brokers are written to the store by the steps of core.controller.config_requests; the
controller, which watches them, sends them to the brokers. Those of groups every broker reads there, see
core.groups.group_configs. Requests are messages of kreplog.wire.generic, results the fields of their responses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kreplog.config import TopicConfig
from kreplog.core.controller.admin_requests import RefusedError
from kreplog.core.controller.config_requests import alter_broker, alter_topic
from kreplog.core.dynamic_configs import Change, InvalidSettingError, altered, parsed, resource_error
from kreplog.core.groups.group_configs import alter_group, group_error
from kreplog.core.groups.group_configs import altered as altered_group
from kreplog.core.messages import BrokerConfigs
from kreplog.core.topic_settings import altered as altered_topic
from kreplog.core.topic_settings import without_own
from kreplog.errors import CoordinationError, ErrorCode
from kreplog.server.dynamic_settings import PARSERS, DynamicSettings
from kreplog.server.handlers.admin import Fields, first_by_name, refuse_repeated, respond_to
from kreplog.server.handlers.topics import TopicViews
from kreplog.server.network.slices import in_slices
from kreplog.server.runtime.group_config_cache import GroupConfigCache
from kreplog.server.runtime.store import AnySession
from kreplog.server.runtime.store_steps import carry_out
from kreplog.types import ConfigResource

METADATA_WAIT_S = 2.0
"""How long a response waits until this broker's metadata have the new settings."""


class ConfigHandlers:
    """Handlers of requests that change settings of topics, brokers and groups. groups: this broker's copy of theirs."""

    def __init__(
        self, store: AnySession, topics: TopicViews, settings: DynamicSettings, groups: GroupConfigCache
    ) -> None:
        self._store = store
        self._groups = groups
        self._topics = topics
        self._settings = settings
        self._writing_groups = asyncio.Lock()  # the requests of this broker need not race each other

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
        if kind == ConfigResource.BROKER:
            return await self._alter_broker(name, changes, validate_only, keep)
        if kind == ConfigResource.GROUP:
            return await self._alter_group(name, changes, validate_only, keep)
        if kind != ConfigResource.TOPIC:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "only settings of topics, brokers and groups can be altered")
        default = without_own(self._settings.static.topic)

        def alter(before: TopicConfig | None, replicas: int) -> TopicConfig:
            return altered_topic(before, changes, default, replicas, keep=keep)

        steps = alter_topic(name, alter, replace_unreadable=not keep, validate_only=validate_only)
        config = await carry_out(steps, self._store)
        if not validate_only:
            await self._topics.until(partial(self._is_applied, name, config), METADATA_WAIT_S)
        return {}

    async def _alter_broker(self, name: str, changes: Sequence[Change], validate_only: bool, keep: bool) -> Fields:
        """Alter the dynamic configs of this broker, or with an empty name the cluster-wide default."""
        broker_id = self._settings.static.broker_id
        refused = resource_error(name, broker_id)
        if refused is not None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, refused)
        subject = broker_id if name else None

        def alter(before: Mapping[str, str]) -> dict[str, str]:
            return altered(before if keep else {}, changes, PARSERS, cluster_wide=not name)

        steps = alter_broker(subject, alter, replace_unreadable=not keep, validate_only=validate_only)
        configs = tuple((await carry_out(steps, self._store)).items())
        if not validate_only:
            valid, _ = parsed(BrokerConfigs(configs) if name else BrokerConfigs((), configs), PARSERS)
            await self._topics.until(partial(self._applies, subject, valid), METADATA_WAIT_S)
        return {}

    async def _alter_group(self, name: str, changes: Sequence[Change], validate_only: bool, keep: bool) -> Fields:
        refused = group_error(name)
        if refused is not None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, refused)

        def alter(before: Mapping[str, str]) -> dict[str, str]:
            try:
                return altered_group(before, changes, self._settings.static.groups, keep=keep)
            except InvalidSettingError as error:
                raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error

        async with self._writing_groups:
            await carry_out(alter_group(name, alter, validate_only=validate_only), self._store, in_thread=True)
        if not validate_only:
            with contextlib.suppress(CoordinationError):  # it is written: the cache repeats the read
                await self._groups.refresh()
        return {}

    def _applies(self, subject: int | None, expected: BrokerConfigs) -> bool:
        """Whether this broker has applied new dynamic configs, given without those that it ignores."""
        configs = self._settings.configs
        if subject is not None:
            return dict(configs.own) == dict(expected.own)
        return dict(configs.default) == dict(expected.default)

    def _is_applied(self, name: str, config: TopicConfig) -> bool:
        """Whether this broker's metadata have the settings, so that the client's next DescribeConfigs shows them."""
        view = self._topics.get(name)
        return view is None or all(
            partition.config == config.with_defaults(partition.config) for partition in view.partitions.values()
        )
