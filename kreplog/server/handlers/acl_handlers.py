"""AclHandlers: DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290).

ACLs are written to the store by the steps of core.security.acl_requests; every broker reads them there. Requests are
messages of kreplog.wire.generic, results the fields of their responses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from kreplog.core.controller.admin_requests import RefusedError, admin_error
from kreplog.core.security.acl_requests import create_acls, delete_acls
from kreplog.core.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
    member,
)
from kreplog.core.security.authorizer import Authorizer, acls_by_resource
from kreplog.errors import CoordinationError, ErrorCode, KreplogError
from kreplog.server.authorization.acl_cache import AclCache
from kreplog.server.handlers.admin import Fields
from kreplog.server.runtime.store import AnySession
from kreplog.server.runtime.store_steps import carry_out

_DISABLED = (
    "No Authorizer is configured: set authorizer.class.name on every broker; `kreplog acl add --offline --cluster DIR` "
    "writes ACLs before"
)


class AclHandlers:
    """Handlers of requests about ACLs. authorizer, cache: None if none is configured."""

    def __init__(self, store: AnySession, authorizer: Authorizer | None, cache: AclCache | None) -> None:
        self._store = store
        self._authorizer = authorizer
        self._cache = cache
        self._writing = asyncio.Lock()  # the requests of this broker need not race each other

    async def describe(self, request: Any) -> Fields:
        """In a thread: thousands of ACLs take long."""
        return await asyncio.get_running_loop().run_in_executor(None, self._describe, request)

    def _describe(self, request: Any) -> Fields:
        try:
            found = sorted(filter(_filter(request).matches, self._enabled().acls))
        except KreplogError as error:
            return {**_failure(error), "resources": []}
        resources = [
            {
                "resource_type": int(kind),
                "pattern_type": int(pattern),
                "resource_name": name,
                "acls": [_entry(acl) for acl in acls],
            }
            for (kind, pattern, name), acls in acls_by_resource(found).items()
        ]
        return {"error_code": 0, "error_message": None, "resources": resources}

    async def create(self, request: Any) -> Fields:
        results: list[Fields] = []
        valid: list[AclBinding] = []
        for creation in request.creations:
            try:
                self._enabled()
                valid.append(check_binding(_binding(creation)))
                results.append(_DONE)
            except KreplogError as error:
                results.append(_failure(error))
        failure = await self._write(valid)
        if failure is not None:
            results = [failure if result is _DONE else result for result in results]
        return {"results": results}

    async def _write(self, acls: Sequence[AclBinding]) -> Fields | None:
        """The failure of all of them, if they cannot be written."""
        if not acls:
            return None
        try:
            async with self._writing:
                await carry_out(create_acls(acls), self._store, in_thread=True)
            await self._apply()
        except KreplogError as error:
            return _failure(error)
        return None

    async def delete(self, request: Any) -> Fields:
        results: list[Fields] = []
        filters: list[AclFilter] = []
        for each in request.filters:
            try:
                self._enabled()
                filters.append(_filter(each))
                results.append(_DONE)
            except KreplogError as error:
                results.append({**_failure(error), "matching_acls": []})
        try:
            deleted = []
            if filters:
                async with self._writing:
                    deleted = await carry_out(delete_acls(filters), self._store, in_thread=True)
                await self._apply()
        except KreplogError as error:
            failed = {**_failure(error), "matching_acls": []}
            return {"filter_results": [failed if result is _DONE else result for result in results]}
        of_each = iter(deleted)
        return {
            "filter_results": [
                {**_DONE, "matching_acls": [{**_DONE, **_described(acl)} for acl in next(of_each)]}
                if result is _DONE
                else result
                for result in results
            ]
        }

    def _enabled(self) -> Authorizer:
        if self._authorizer is None:
            raise RefusedError(ErrorCode.SECURITY_DISABLED, _DISABLED)
        return self._authorizer

    async def _apply(self) -> None:
        """Apply what was written here now; the watch does too, and on the other brokers."""
        if self._cache is not None:
            with contextlib.suppress(CoordinationError):  # it is written: the cache repeats the read
                await self._cache.refresh()


_DONE: Fields = {"error_code": 0, "error_message": None}


def _failure(error: KreplogError) -> Fields:
    return {"error_code": int(admin_error(error)), "error_message": str(error)}


def _binding(creation: Any) -> AclBinding:
    """Raises UsageError."""
    return AclBinding(
        member(ResourceType, creation.resource_type),
        member(PatternType, creation.resource_pattern_type),
        creation.resource_name,
        creation.principal,
        creation.host,
        member(Operation, creation.operation),
        member(Permission, creation.permission_type),
    )


def _filter(given: Any) -> AclFilter:
    """Raises UsageError."""
    return AclFilter(
        member(ResourceType, given.resource_type_filter),
        member(PatternType, given.pattern_type_filter),
        given.resource_name_filter,
        given.principal_filter,
        given.host_filter,
        member(Operation, given.operation),
        member(Permission, given.permission_type),
    )


def _entry(acl: AclBinding) -> Fields:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def _described(acl: AclBinding) -> Fields:
    return {
        "resource_type": int(acl.resource_type),
        "pattern_type": int(acl.pattern_type),
        "resource_name": acl.name,
        **_entry(acl),
    }
