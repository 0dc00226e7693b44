"""ConfigHandlers: AlterConfigs and IncrementalAlterConfigs, of topics and of brokers (KIP-226).

New settings are written to the store on condition that no other write came in between; the controller, which watches
them, sends them to the brokers. Requests are messages of kreplog.wire.generic, results the fields of their responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller.admin_operations import set_broker_config_operations, set_config_operations
from kreplog.core.controller.admin_requests import ATTEMPTS, RefusedError, stored_topic, unknown
from kreplog.core.dynamic_configs import Change, InvalidSettingError, altered, parsed, resource_error
from kreplog.core.messages import BrokerConfigs
from kreplog.core.topic_settings import altered as altered_topic
from kreplog.core.topic_settings import without_own
from kreplog.errors import BadVersionError, CoordinationError, ErrorCode, NodeExistsError, NoNodeError
from kreplog.server.dynamic_settings import PARSERS, DynamicSettings
from kreplog.server.handlers.admin import Fields, first_by_name, refuse_repeated, respond_to
from kreplog.server.handlers.topics import TopicViews
from kreplog.server.network.slices import in_slices
from kreplog.server.runtime.store import AnySession
from kreplog.server.runtime.store_steps import carry_out
from kreplog.types import Node

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
"""Resource types."""

METADATA_WAIT_S = 2.0
"""How long a response waits until this broker's metadata have the new settings."""


class ConfigHandlers:
    """Handlers of requests that change settings of topics and brokers."""

    def __init__(self, store: AnySession, topics: TopicViews, settings: DynamicSettings) -> None:
        self._store = store
        self._topics = topics
        self._settings = settings

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
        if kind == BROKER_RESOURCE:
            return await self._alter_broker(name, changes, validate_only, keep)
        if kind != TOPIC_RESOURCE:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "only settings of topics and brokers can be altered")
        for _ in range(ATTEMPTS):
            config, version = await self._changed(name, changes, keep)
            if validate_only:
                return {}
            try:
                await self._store.multi(set_config_operations(name, config, version))
            except BadVersionError:
                continue
            except NoNodeError as error:
                raise unknown(f"topic {name}") from error
            await self._topics.until(partial(self._is_applied, name, config), METADATA_WAIT_S)
            return {}
        raise _contended(name)

    async def _alter_broker(self, name: str, changes: Sequence[Change], validate_only: bool, keep: bool) -> Fields:
        """Alter the dynamic configs of this broker, or with an empty name the cluster-wide default. INVALID_REQUEST
        also for a wrong value: Kafka keeps that error for compatibility (KAFKA-13609)."""
        broker_id = self._settings.static.broker_id
        refused = resource_error(name, broker_id)
        if refused is not None:
            raise RefusedError(ErrorCode.INVALID_REQUEST, refused)
        subject = broker_id if name else None
        path = nodes.broker_config(subject)
        for _ in range(ATTEMPTS):
            parent, node = await self._store.get_nodes((nodes.BROKER_CONFIGS, path))
            before = await self._broker_config(path, node, keep)
            try:
                after = altered(before if keep and before else {}, changes, PARSERS, cluster_wide=not name)
            except InvalidSettingError as error:
                raise RefusedError(ErrorCode.INVALID_REQUEST, str(error)) from error
            if validate_only:
                return {}
            if before != after:
                version = None if node is None else node.stat.version
                try:
                    await self._store.multi(
                        set_broker_config_operations(subject, after, version, directory=parent is None)
                    )
                except (NodeExistsError, NoNodeError, BadVersionError):
                    continue
            configs = tuple(after.items())
            valid, _ = parsed(BrokerConfigs(configs) if name else BrokerConfigs((), configs), PARSERS)
            await self._topics.until(partial(self._applies, subject, valid), METADATA_WAIT_S)
            return {}
        raise _contended("the brokers")

    async def _broker_config(self, path: str, node: Node | None, keep: bool) -> dict[str, str] | None:
        """The dynamic configs in a node; None if it is unreadable, and is to be replaced. Raises RefusedError."""
        try:
            return dict(nodes.decode_broker_config(path, node))
        except CoordinationError as error:
            if keep:
                raise RefusedError(ErrorCode.INVALID_CONFIG, f"{error}; AlterConfigs replaces it") from error
            return None

    def _applies(self, subject: int | None, expected: BrokerConfigs) -> bool:
        """Whether this broker has applied new dynamic configs, given without those that it ignores."""
        configs = self._settings.configs
        if subject is not None:
            return dict(configs.own) == dict(expected.own)
        return dict(configs.default) == dict(expected.default)

    async def _changed(self, name: str, changes: Sequence[Change], keep: bool) -> tuple[TopicConfig, int]:
        """The new settings, and the version of the node with the old ones. Raises RefusedError."""
        topic = await carry_out(stored_topic(name), self._store)
        replicas = len(topic.partitions[min(topic.partitions)].target)
        path = nodes.topic_config(name)
        (node,) = await self._store.get_nodes((path,))
        if node is None:
            raise unknown(f"topic {name}")
        before = None
        try:
            before = nodes.decode_topic_config(path, node)
        except CoordinationError as error:
            if keep:
                raise RefusedError(ErrorCode.INVALID_CONFIG, f"{error}; AlterConfigs replaces it") from error
        default = without_own(self._settings.static.topic)
        try:
            return altered_topic(before, changes, default, replicas, keep=keep), node.stat.version
        except InvalidSettingError as error:
            raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from error

    def _is_applied(self, name: str, config: TopicConfig) -> bool:
        """Whether this broker's metadata have the settings, so that the client's next DescribeConfigs shows them."""
        view = self._topics.get(name)
        return view is None or all(
            partition.config == config.with_defaults(partition.config) for partition in view.partitions.values()
        )


def _contended(subject: str) -> RefusedError:
    return RefusedError(
        ErrorCode.REQUEST_TIMED_OUT, f"too many concurrent changes of the settings of {subject}: try again"
    )
