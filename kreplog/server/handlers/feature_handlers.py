"""FeatureHandlers: the features in ApiVersions, and UpdateFeatures (KIP-584).

kreplog.version is written to the store by the steps of core.features; the levels of Kafka's features are fixed.
"""

from __future__ import annotations

import contextlib
from typing import Any

from kreplog.core import features
from kreplog.core.controller.admin_requests import admin_error
from kreplog.errors import CoordinationError, InvalidUpdateVersionError, KreplogError
from kreplog.server.handlers.admin import Fields
from kreplog.server.runtime.feature_cache import FeatureCache
from kreplog.server.runtime.store import AnySession
from kreplog.server.runtime.store_steps import carry_out
from kreplog.types import KREPLOG_VERSION
from kreplog.wire.generic import Feature
from kreplog.wire.versions import FEATURES


class FeatureHandlers:
    """Handlers of what is announced and updated. cache: has the finalized level as this broker knows it."""

    def __init__(self, store: AnySession, cache: FeatureCache) -> None:
        self._store = store
        self._cache = cache

    def announced(self) -> tuple[list[Feature], int]:
        """The features in a response to ApiVersions, and their epoch."""
        finalized = self._cache.finalized
        fixed = [Feature(name, 1, level, level) for name, level in FEATURES.items()]
        own = Feature(KREPLOG_VERSION, *features.SUPPORTED, finalized.level)
        return [*fixed, own], finalized.epoch

    async def update(self, request: Any) -> Fields:
        """All of the updates are done, or none; one that lowers a level is refused, whatever its type."""
        try:
            levels = {update.feature: update.max_version_level for update in request.feature_updates}
            for feature, level in levels.items():
                _check(feature, level)
            if KREPLOG_VERSION in levels:
                level = levels[KREPLOG_VERSION]
                await carry_out(features.raise_version(level, validate_only=bool(request.validate_only)), self._store)
                with contextlib.suppress(CoordinationError):  # it is written: the cache repeats the read
                    await self._cache.refresh()
        except KreplogError as error:
            return {"error_code": int(admin_error(error)), "error_message": str(error), "results": []}
        results = [{"feature": feature, "error_code": 0, "error_message": None} for feature in levels]
        return {"error_code": 0, "error_message": None, "results": results}


def _check(feature: str, level: int) -> None:
    """Raises InvalidUpdateVersionError for what is refused whatever the cluster's level is."""
    if feature == KREPLOG_VERSION:
        return
    if feature not in FEATURES:
        known = ", ".join([KREPLOG_VERSION, *FEATURES])
        raise InvalidUpdateVersionError(f"there is no feature {feature}: there are {known}")
    if level != FEATURES[feature]:
        raise InvalidUpdateVersionError(f"{feature} is fixed at {FEATURES[feature]}: it cannot be updated to {level}")
