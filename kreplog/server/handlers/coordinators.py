"""CoordinatorHandlers: FindCoordinator, and the internal topics that coordinators need, created when a coordinator is
first looked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from kreplog.config import GroupConfig, TransactionConfig
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC
from kreplog.errors import ErrorCode, KreplogError
from kreplog.server.handlers.admin import AdminHandlers, Fields, RefusedError
from kreplog.server.handlers.topics import TopicView, TopicViews
from kreplog.types import BrokerRegistration

_log = logging.getLogger("kreplog.server")

_GROUP = 0
_TRANSACTION = 1
"""Coordinator types."""

CREATION_S = 10.0
"""How long FindCoordinator waits until a new internal topic has leaders."""

RETRY_S = 0.25
"""How long clients get the outcome of a creation that failed: they repeat the request until there is a coordinator."""


@dataclass
class _Kind:
    """The internal topic of one coordinator type. failure: the outcome of a creation that failed, and when."""

    topic: str
    partitions: int
    replicas: int
    settings: Mapping[str, str]
    factor: str
    creation: asyncio.Lock = field(default_factory=asyncio.Lock)
    failure: tuple[float, Fields] | None = None


class CoordinatorHandlers:
    """Handler of FindCoordinator. brokers: returns the live brokers by id."""

    def __init__(
        self,
        admin: AdminHandlers,
        topics: TopicViews,
        brokers: Callable[[], Mapping[int, BrokerRegistration]],
        groups: GroupConfig,
        transactions: TransactionConfig,
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._brokers = brokers
        self._kinds = {
            _GROUP: _Kind(
                OFFSETS_TOPIC,
                groups.offsets_topic_num_partitions,
                groups.offsets_topic_replication_factor,
                {"segment.bytes": str(groups.offsets_topic_segment_bytes), "cleanup.policy": "compact"},
                "offsets.topic.replication.factor",
            ),
            _TRANSACTION: _Kind(
                TRANSACTIONS_TOPIC,
                transactions.transaction_state_log_num_partitions,
                transactions.transaction_state_log_replication_factor,
                {
                    "segment.bytes": str(transactions.transaction_state_log_segment_bytes),
                    "min.insync.replicas": str(transactions.transaction_state_log_min_isr),
                    "cleanup.policy": "compact",
                },
                "transaction.state.log.replication.factor",
            ),
        }

    async def find(self, request: object) -> Fields:
        """FindCoordinator for a group or transactional id, or from version 4 on for several."""
        kind = self._kinds.get(getattr(request, "key_type", _GROUP))
        keys = list(dict.fromkeys(getattr(request, "coordinator_keys", None) or ()))
        single = getattr(request, "key", None)
        if kind is None:
            refused = _failure(ErrorCode.UNSUPPORTED_VERSION, "coordinators are those of groups and transactions")
            return {**refused, "coordinators": [{**refused, "key": key} for key in keys]}
        failure = await self._create(kind)
        found = [{**(failure or self._coordinator(kind, key)), "key": key} for key in keys]
        return {**(failure or self._coordinator(kind, single or "")), "coordinators": found}

    async def create_offsets_topic(self) -> None:
        """Create `__consumer_offsets` if it does not exist; a failure is logged."""
        await self._create(self._kinds[_GROUP])

    async def _create(self, kind: _Kind) -> Fields | None:
        """Create the internal topic if it does not exist; the response if that fails."""
        if self._topics.get(kind.topic) is not None:
            return None
        async with kind.creation:
            if self._topics.get(kind.topic) is not None:
                return None
            if kind.failure is not None and monotonic() < kind.failure[0] + RETRY_S:
                return kind.failure[1]
            try:
                await self._admin.create_internal_topic(
                    kind.topic, kind.partitions, kind.replicas, dict(kind.settings), CREATION_S
                )
            except (RefusedError, KreplogError) as error:
                text = f"{kind.topic} cannot be created with {kind.factor} = {kind.replicas}: {error}"
                _log.warning("%s", text)
                kind.failure = monotonic(), _failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
                return kind.failure[1]
        return None

    def _coordinator(self, kind: _Kind, key: str) -> Fields:
        view: TopicView | None = self._topics.get(kind.topic)
        if view is None:
            return _failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{kind.topic} is being created")
        number = partition_of_group(key, len(view.partitions))
        state = view.partitions.get(number)
        broker = None if state is None else self._brokers().get(state.state.leader)
        if broker is None:
            return _failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{kind.topic}-{number} has no leader")
        return {
            "error_code": 0,
            "error_message": None,
            "node_id": broker.id,
            "host": broker.host,
            "port": broker.port,
        }


def _failure(error: ErrorCode, message: str) -> Fields:
    return {"error_code": int(error), "error_message": message, "node_id": -1, "host": "", "port": -1}
