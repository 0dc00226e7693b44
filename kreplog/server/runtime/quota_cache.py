"""QuotaCache: this broker's copy of the client quotas. A broker that has read none yet throttles nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kreplog.core import nodes
from kreplog.core.quotas.entities import QuotaLimits
from kreplog.core.quotas.quota_manager import ClientQuotaManager
from kreplog.core.quotas.quota_requests import decode
from kreplog.server.runtime.store import StoreLink
from kreplog.server.runtime.whole_node_cache import WholeNodeCache
from kreplog.types import Node

_log = logging.getLogger("kreplog.server")

_UNLIMITED = "; until then this broker throttles no client"


class QuotaCache(WholeNodeCache[QuotaLimits]):
    """Keeps the quotas of a manager up to date. unmute: lets everybody go on whom other quotas have throttled."""

    def __init__(self, store: StoreLink, manager: ClientQuotaManager, unmute: Callable[[], None]) -> None:
        super().__init__(store, nodes.CLIENT_QUOTAS, "client quotas", _UNLIMITED, _limits, self._replace)
        self._manager = manager
        self._unmute = unmute

    def _replace(self, limits: QuotaLimits) -> None:
        if limits.quotas != self._manager.limits.quotas:
            self._manager.replace(limits)
            self._unmute()
            _log.info("client quotas of %d entities are in effect", len(limits.quotas))


def _limits(node: Node | None) -> QuotaLimits:
    return QuotaLimits(decode(node))
