"""Users and their SCRAM credentials, over the Kafka protocol (KIP-554)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import raise_for_error
from kreplog.core.security.credentials import SALT_BYTES
from kreplog.core.security.scram import SCRAM_MECHANISMS, scram_mechanism
from kreplog.core.security.user_requests import CredentialDeletion, CredentialUpsertion
from kreplog.errors import ErrorCode, UnknownCredentialError, UnsupportedMechanismError
from kreplog.wire.versions import ApiKey

Users = dict[str, dict[str, int]]
"""Iterations of the credentials of users, by user and mechanism."""


def new_credentials(
    user: str, password: str, mechanisms: Iterable[str], iterations: int
) -> tuple[CredentialUpsertion, ...]:
    """Credentials with salts of their own. Raises UnsupportedMechanismError."""
    made = []
    for name in mechanisms:
        if name not in SCRAM_MECHANISMS:
            raise UnsupportedMechanismError(
                f"{name} is no mechanism that a user has credentials of: they are {', '.join(SCRAM_MECHANISMS)}"
            )
        scram, salt = SCRAM_MECHANISMS[name], secrets.token_bytes(SALT_BYTES)
        salted = scram.salted_password(password, salt, iterations)
        made.append(CredentialUpsertion(user, scram.number, iterations, salt, salted))
    return tuple(made)


def put_user(admin: AdminClient, credentials: Sequence[CredentialUpsertion]) -> None:
    """Create or replace credentials of one user. Raises TopicRequestError, UnreachableError."""
    fields = [
        {
            "name": each.user,
            "mechanism": each.mechanism,
            "iterations": each.iterations,
            "salt": each.salt,
            "salted_password": each.salted_password,
        }
        for each in credentials
    ]
    _alter(admin, upsertions=fields, deletions=[])


def remove_user(admin: AdminClient, user: str) -> None:
    """Delete all credentials of a user. Raises UnknownCredentialError, TopicRequestError, UnreachableError."""
    present = users(admin, user).get(user)
    if not present:
        raise UnknownCredentialError(f"there is no user {user}; `kreplog user list` lists the users")
    deletions = [CredentialDeletion(user, SCRAM_MECHANISMS[name].number) for name in present]
    _alter(admin, upsertions=[], deletions=[{"name": each.user, "mechanism": each.mechanism} for each in deletions])


def users(admin: AdminClient, user: str | None = None) -> Users:
    """All users, or one, with the iterations of their credentials. Raises TopicRequestError, UnreachableError."""
    names = None if user is None else [{"name": user}]
    response = admin.request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=names)
    raise_for_error("list of", "users", response)
    found: Users = {}
    for result in response.results:
        if result.error_code != ErrorCode.RESOURCE_NOT_FOUND:
            raise_for_error("user", result.user, result)
            found[result.user] = {
                scram_mechanism(info.mechanism).name: info.iterations for info in result.credential_infos
            }
    return found


def _alter(admin: AdminClient, **fields: Sequence[Mapping[str, object]]) -> None:
    for result in admin.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, **fields).results:
        raise_for_error("user", result.user, result)
