"""FeatureCache: this broker's copy of the level of kreplog.version that its cluster has finalized."""

from __future__ import annotations

import logging

from kreplog.core import features, nodes
from kreplog.core.features import FinalizedVersion
from kreplog.server.runtime.store import StoreLink
from kreplog.server.runtime.whole_node_cache import WholeNodeCache
from kreplog.types import KREPLOG_VERSION

_log = logging.getLogger("kreplog.server")

_LEAST = "; until then this broker uses level 1"


class FeatureCache(WholeNodeCache[FinalizedVersion]):
    """Keeps `finalized` up to date, the gate of what this broker writes and sends: level 1 until it has been read."""

    def __init__(self, store: StoreLink) -> None:
        super().__init__(store, nodes.FEATURE, f"finalized {KREPLOG_VERSION}", _LEAST, features.decode, self._replace)
        self.finalized = FinalizedVersion()

    def _replace(self, finalized: FinalizedVersion) -> None:
        if finalized.level != self.finalized.level:
            _log.info("%s %d is finalized", KREPLOG_VERSION, finalized.level)
        self.finalized = finalized
