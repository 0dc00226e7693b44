"""UserCredentialHandlers: AlterUserScramCredentials and DescribeUserScramCredentials (KIP-554).

Requests are messages of kreplog.wire.generic, results the fields of their responses.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kreplog.core.controller.admin_requests import admin_error
from kreplog.core.security.credentials import SECRET_BYTES, Credentials
from kreplog.core.security.scram import SCRAM_MECHANISMS
from kreplog.core.security.user_requests import CredentialDeletion, CredentialUpsertion, alter_user, changes_of
from kreplog.errors import ErrorCode, KreplogError
from kreplog.server.handlers.admin import Fields
from kreplog.server.network.slices import in_slices
from kreplog.server.runtime.store import AnySession
from kreplog.server.runtime.store_steps import carry_out
from kreplog.server.security.credential_cache import CredentialCache

CACHE_WAIT_S = 2.0
"""How long a response waits until this broker's own cache has the new credentials."""


class UserCredentialHandlers:
    """Handlers of requests of users' credentials."""

    def __init__(self, store: AnySession, cache: CredentialCache) -> None:
        self._store = store
        self._cache = cache

    async def alter(self, request: Any) -> Fields:
        """Each user's changes are applied together or not at all."""
        alterations: dict[str, list[CredentialDeletion | CredentialUpsertion]] = {}
        for given in request.deletions:
            alterations.setdefault(given.name, []).append(CredentialDeletion(given.name, given.mechanism))
        for given in request.upsertions:
            alterations.setdefault(given.name, []).append(
                CredentialUpsertion(
                    given.name, given.mechanism, given.iterations, bytes(given.salt), bytes(given.salted_password)
                )
            )
        results = [await self._alter(*item) async for item in in_slices(alterations.items())]
        altered = [result["user"] for result in results if result["error_code"] is ErrorCode.NONE]
        if altered:
            await self._cache.reread(altered, CACHE_WAIT_S)
        return {"results": results}

    async def _alter(self, user: str, alterations: Sequence[CredentialDeletion | CredentialUpsertion]) -> Fields:
        try:
            steps = alter_user(user, changes_of(alterations), secrets.token_bytes(SECRET_BYTES))
            await carry_out(steps, self._store)
        except KreplogError as error:
            return {"user": user, "error_code": admin_error(error), "error_message": str(error)}
        return {"user": user, "error_code": ErrorCode.NONE, "error_message": None}

    def describe(self, request: Any) -> tuple[int, Any]:
        """The number of users in the response, and a function that returns its fields."""
        users = self._cache.credentials.users
        names = Counter(user.name for user in request.users or ())
        found = {name: users.get(name) for name in names or sorted(users)}

        def make() -> Fields:
            results = [_described(name, credentials, names[name] > 1) for name, credentials in found.items()]
            return {"error_code": ErrorCode.NONE, "error_message": None, "results": results}

        return len(found), make


def _described(user: str, credentials: Credentials | None, repeated: bool) -> Fields:
    error, message = ErrorCode.NONE, None
    if repeated:
        error = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif credentials is None:
        error = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {user}"
    infos = [
        {"mechanism": SCRAM_MECHANISMS[name].number, "iterations": credential.iterations}
        for name, credential in (credentials or {}).items()
        if error is ErrorCode.NONE
    ]
    return {"user": user, "error_code": error, "error_message": message, "credential_infos": infos}
