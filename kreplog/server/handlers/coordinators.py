"""CoordinatorHandlers: FindCoordinator, and the internal topics that coordinators need, created when a coordinator is
first looked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kreplog.config import GroupConfig, TransactionConfig
from kreplog.core.broker.coordinator_lookup import (
    GROUP,
    InternalTopicCreation,
    find_coordinator,
    internal_topics,
    key_type_refusal,
)
from kreplog.errors import ErrorCode, KreplogError
from kreplog.server.clock import monotonic_ms
from kreplog.server.handlers.admin import AdminHandlers, Fields
from kreplog.server.handlers.topics import TopicViews
from kreplog.types import BrokerRegistration

_log = logging.getLogger("kreplog.server")

CREATION_S = 10.0
"""How long FindCoordinator waits until a new internal topic has leaders."""


class CoordinatorHandlers:
    """Handler of FindCoordinator. brokers_at: returns the live brokers by id, with their addresses at a listener."""

    def __init__(
        self,
        admin: AdminHandlers,
        topics: TopicViews,
        brokers_at: Callable[[str], Mapping[int, BrokerRegistration]],
        groups: GroupConfig,
        transactions: TransactionConfig,
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._brokers_at = brokers_at
        wanted = internal_topics(groups, transactions)
        self._creations = {key_type: InternalTopicCreation(topic) for key_type, topic in wanted.items()}
        self._locks = {key_type: asyncio.Lock() for key_type in wanted}

    async def find(self, request: object, listener: str) -> Fields:
        """FindCoordinator for a group or transactional id, or from version 4 on for several; `listener`: that of the
        request, whose address the coordinator gets."""
        key_type = getattr(request, "key_type", GROUP)
        keys = list(dict.fromkeys(getattr(request, "coordinator_keys", None) or ()))
        single = getattr(request, "key", None)
        refusal = key_type_refusal(key_type)
        if refusal is None:
            failure = await self._create(key_type)
        else:
            failure = _failure(refusal.error, refusal.error_message)
        if failure is not None:
            return {**failure, "coordinators": [{**failure, "key": key} for key in keys]}
        leaders, brokers = self._leaders(key_type), self._brokers_at(listener)
        found = [{**self._coordinator(key_type, key, leaders, brokers), "key": key} for key in keys]
        return {**self._coordinator(key_type, single or "", leaders, brokers), "coordinators": found}

    async def create_offsets_topic(self) -> None:
        """Create `__consumer_offsets` if it does not exist; a failure is logged."""
        await self._create(GROUP)

    async def _create(self, key_type: int) -> Fields | None:
        """Create the internal topic if it does not exist; the response if that fails."""
        creation = self._creations[key_type]
        topic = creation.topic
        if self._topics.get(topic.name) is not None:
            return None
        async with self._locks[key_type]:
            if self._topics.get(topic.name) is not None:
                return None
            problem = creation.failure(monotonic_ms())
            if problem is None:
                try:
                    await self._admin.create_internal_topic(
                        topic.name, topic.partitions, topic.replication_factor, topic.settings, CREATION_S
                    )
                except KreplogError as error:
                    problem = creation.failed(error, monotonic_ms())
                    _log.warning("%s", problem)
        return None if problem is None else _failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, problem)

    def _leaders(self, key_type: int) -> dict[int, int]:
        """Leaders of the internal topic's partitions, by number; none while its metadata are not here."""
        view = self._topics.get(self._creations[key_type].topic.name)
        return {} if view is None else {number: each.state.leader for number, each in view.partitions.items()}

    def _coordinator(
        self, key_type: int, key: str, leaders: Mapping[int, int], brokers: Mapping[int, BrokerRegistration]
    ) -> Fields:
        found = find_coordinator(self._creations[key_type].topic.name, key, leaders, brokers)
        if found.error:
            return _failure(found.error, found.error_message)
        broker = brokers[found.broker]
        return {
            "error_code": 0,
            "error_message": None,
            "node_id": broker.id,
            "host": broker.host,
            "port": broker.port,
        }


def _failure(error: ErrorCode, message: str) -> Fields:
    return {"error_code": int(error), "error_message": message, "node_id": -1, "host": "", "port": -1}
