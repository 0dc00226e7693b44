"""QuotaHandlers: DescribeClientQuotas and AlterClientQuotas (KIP-546).

Quotas are written to the store by the steps of core.quotas.quota_requests; every broker reads them there. Requests are
messages of kreplog.wire.generic, results the fields of their responses.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from kreplog.core.controller.admin_requests import RefusedError, admin_error
from kreplog.core.quotas.entities import ENTITY_TYPES
from kreplog.core.quotas.quota_manager import ClientQuotaManager
from kreplog.core.quotas.quota_requests import (
    QuotaAlteration,
    QuotaFilter,
    alter_quotas,
    check_alteration,
    check_filters,
    entity_types,
    matching,
)
from kreplog.errors import CoordinationError, ErrorCode, KreplogError
from kreplog.server.authorization.admin_rules import entity_fields
from kreplog.server.handlers.admin import Fields
from kreplog.server.runtime.quota_cache import QuotaCache
from kreplog.server.runtime.store import AnySession
from kreplog.server.runtime.store_steps import carry_out


class QuotaHandlers:
    """Handlers of requests about client quotas. manager: has those that are in effect at this broker."""

    def __init__(self, store: AnySession, manager: ClientQuotaManager, cache: QuotaCache) -> None:
        self._store = store
        self._manager = manager
        self._cache = cache
        self._writing = asyncio.Lock()  # the requests of this broker need not race each other

    async def describe(self, request: Any) -> Fields:
        """In a thread: thousands of entities take long."""
        return await asyncio.get_running_loop().run_in_executor(None, self._describe, request)

    def _describe(self, request: Any) -> Fields:
        try:
            filters = check_filters(
                QuotaFilter(each.entity_type, each.match_type, each.match) for each in request.components
            )
            for component in filters:
                if component.kind not in ENTITY_TYPES:
                    raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {component.kind}")
        except KreplogError as error:
            return {"error_code": int(admin_error(error)), "error_message": str(error), "entries": None}
        found = matching(self._manager.limits.quotas, filters, strict=request.strict)
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity_types(entity)],
                "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
            }
            for entity, values in sorted(found.items(), key=str)
        ]
        return {"error_code": 0, "error_message": None, "entries": entries}

    async def alter(self, request: Any) -> Fields:
        """Entries that are valid are applied together."""
        results: list[Fields | None] = []
        valid: list[QuotaAlteration] = []
        for entry in request.entries:
            types = [(part.entity_type, part.entity_name) for part in entry.entity]
            try:
                valid.append(check_alteration(types, [(each.key, each.value, each.remove) for each in entry.ops]))
                results.append(None)
            except KreplogError as error:
                results.append(_failure(error))
        done: Fields = {"error_code": 0, "error_message": None}
        if valid and not request.validate_only:
            try:
                async with self._writing:
                    await carry_out(alter_quotas(valid), self._store, in_thread=True)
                with contextlib.suppress(CoordinationError):  # it is written: the cache repeats the read
                    await self._cache.refresh()
            except KreplogError as error:
                done = _failure(error)
        return {
            "entries": [
                {**(done if result is None else result), "entity": entity_fields(entry)}
                for entry, result in zip(request.entries, results, strict=True)
            ]
        }


def _failure(error: KreplogError) -> Fields:
    return {"error_code": int(admin_error(error)), "error_message": str(error)}
