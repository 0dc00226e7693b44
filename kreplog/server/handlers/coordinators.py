"""CoordinatorHandlers: FindCoordinator, and the internal topic that coordinators need, created when it is first looked
for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic

from kreplog.config import GroupConfig
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.errors import ErrorCode, KreplogError
from kreplog.server.handlers.admin import AdminHandlers, Fields, RefusedError
from kreplog.server.handlers.topics import TopicView, TopicViews
from kreplog.types import BrokerRegistration

_log = logging.getLogger("kreplog.server")

_GROUP = 0
"""Coordinator type of a group; 1 is that of a transaction."""

CREATION_S = 10.0
"""How long FindCoordinator waits until `__consumer_offsets` has leaders."""

RETRY_S = 0.25
"""How long clients get the outcome of a creation that failed: they repeat the request until there is a coordinator."""


class CoordinatorHandlers:
    """brokers: returns the live brokers by id."""

    def __init__(
        self,
        admin: AdminHandlers,
        topics: TopicViews,
        brokers: Callable[[], Mapping[int, BrokerRegistration]],
        config: GroupConfig,
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._brokers = brokers
        self._config = config
        self._creation = asyncio.Lock()
        self._failure: tuple[float, Fields] | None = None

    async def find(self, request: object) -> Fields:
        """FindCoordinator for a group, or from version 4 on for several."""
        key_type = getattr(request, "key_type", _GROUP)
        keys = list(dict.fromkeys(getattr(request, "coordinator_keys", None) or ()))
        single = getattr(request, "key", None)
        if key_type != _GROUP:
            refused = _failure(ErrorCode.UNSUPPORTED_VERSION, "transactions are not supported")
            return {**refused, "coordinators": [{**refused, "key": key} for key in keys]}
        failure = await self._create()
        found = [{**(failure or self._coordinator(key)), "key": key} for key in keys]
        return {**(failure or self._coordinator(single or "")), "coordinators": found}

    async def _create(self) -> Fields | None:
        """Create `__consumer_offsets` if it does not exist; the response if that fails."""
        if self._topics.get(OFFSETS_TOPIC) is not None:
            return None
        async with self._creation:
            if self._topics.get(OFFSETS_TOPIC) is not None:
                return None
            if self._failure is not None and monotonic() < self._failure[0] + RETRY_S:
                return self._failure[1]
            config = self._config
            settings = {
                "segment.bytes": str(config.offsets_topic_segment_bytes),
                "cleanup.policy": "compact",
            }
            partitions, replicas = config.offsets_topic_num_partitions, config.offsets_topic_replication_factor
            try:
                await self._admin.create_internal_topic(OFFSETS_TOPIC, partitions, replicas, settings, CREATION_S)
            except (RefusedError, KreplogError) as error:
                text = f"{OFFSETS_TOPIC} cannot be created with offsets.topic.replication.factor = {replicas}: {error}"
                _log.warning("%s", text)
                self._failure = monotonic(), _failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
                return self._failure[1]
        return None

    def _coordinator(self, group_id: str) -> Fields:
        view: TopicView | None = self._topics.get(OFFSETS_TOPIC)
        if view is None:
            return _failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} is being created")
        number = partition_of_group(group_id, len(view.partitions))
        state = view.partitions.get(number)
        broker = None if state is None else self._brokers().get(state.state.leader)
        if broker is None:
            return _failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}-{number} has no leader")
        return {
            "error_code": 0,
            "error_message": None,
            "node_id": broker.id,
            "host": broker.host,
            "port": broker.port,
        }


def _failure(error: ErrorCode, message: str) -> Fields:
    return {"error_code": int(error), "error_message": message, "node_id": -1, "host": "", "port": -1}
