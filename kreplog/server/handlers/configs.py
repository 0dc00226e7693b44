"""AlterConfigs and IncrementalAlterConfigs: new settings for topics, written to the store on condition that nobody else
has written them meanwhile. The controller finds them there and tells the replicas.

Requests are messages of kreplog.wire.generic; what is given back are the fields of the answers.
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
    answer_one,
    by_name,
    refuse_repeated,
    stored_topic,
)
from kreplog.server.handlers.topics import Topics
from kreplog.server.network.slices import in_slices
from kreplog.server.runtime.store import AnySession
from kreplog.server.topic_settings import Change, InvalidSettingError, changed, default_for

TOPIC_RESOURCE = 2
"""Of the things that have settings: a topic."""

SEEN_S = 2.0
"""How long an answer waits for this broker to hear of the settings itself."""


class Altering:
    """default: what a topic's settings are when none are given."""

    def __init__(self, store: AnySession, topics: Topics, default: TopicConfig) -> None:
        self._store = store
        self._topics = topics
        self._default = default

    async def replace(self, request: Any) -> Fields:
        """AlterConfigs: what is not given is as if the topic had just been made."""
        return await self._alter(request, lambda one: Change(one.name, one.value), keep=False)

    async def change(self, request: Any) -> Fields:
        """IncrementalAlterConfigs: what is not given stays as it is."""
        return await self._alter(request, lambda one: Change(one.name, one.value, one.config_operation), keep=True)

    async def _alter(self, request: Any, change_of: Callable[[Any], Change], *, keep: bool) -> Fields:
        responses = []
        resources, repeated = by_name(request.resources, lambda one: (one.resource_type, one.resource_name))
        async for resource in in_slices(resources):
            kind, name = resource.resource_type, resource.resource_name
            changes = [change_of(config) for config in resource.configs]
            work = (
                refuse_repeated(name)
                if (kind, name) in repeated
                else self._alter_resource(kind, name, changes, request.validate_only, keep)
            )
            responses.append(await answer_one({"resource_type": kind, "resource_name": name}, work))
        return {"responses": responses}

    async def _alter_resource(
        self, kind: int, name: str, changes: Sequence[Change], validate_only: bool, keep: bool
    ) -> Fields:
        if kind != TOPIC_RESOURCE:
            raise RefusedError(
                ErrorCode.INVALID_REQUEST,
                "only settings of topics are changed here; those of a broker are read when it starts: change them in "
                "its file and start it anew",
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
            await self._topics.until(partial(self._goes_by, name, config), SEEN_S)
            return {}
        raise RefusedError(ErrorCode.REQUEST_TIMED_OUT, f"others change the settings of {name} all the time: ask again")

    async def _changed(self, name: str, changes: Sequence[Change], keep: bool) -> tuple[TopicConfig, int]:
        """The new settings, and the version of those that they are made from. Raises RefusedError."""
        topic = await stored_topic(self._store, name)
        replicas = len(topic.partitions[min(topic.partitions)].target)
        path = nodes.topic_config(name)
        (node,) = await self._store.get_nodes((path,))
        if node is None:
            raise _no_topic(name)
        before = default = default_for(self._default, replicas)
        if keep:
            try:
                before = nodes.decode_topic_config(path, node)
            except CoordinationError as error:
                raise RefusedError(INVALID_CONFIG, f"{error}; AlterConfigs replaces it") from error
        try:
            return changed(before, changes, default, replicas), node.stat.version
        except InvalidSettingError as error:
            raise RefusedError(INVALID_CONFIG, str(error)) from error

    def _goes_by(self, name: str, config: TopicConfig) -> bool:
        """Whether this broker has been told; who asks next what holds should hear it."""
        view = self._topics.get(name)
        return view is None or all(partition.config == config for partition in view.partitions.values())


def _no_topic(name: str) -> RefusedError:
    return RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
