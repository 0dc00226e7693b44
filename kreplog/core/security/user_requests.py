"""AlterUserScramCredentials (KIP-554): its checks, and the steps that it takes in the coordination store.

A broker carries them out for its clients, `kreplog user` for its user while no broker runs. The credentials of a user
are one node, written on condition that nobody else has written it in between; else they are made again from what is
there then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kreplog.core import nodes
from kreplog.core.effects import GetChildren, GetNodes, Multi, Steps
from kreplog.core.security.credentials import Credentials, credential_text, parse_credential
from kreplog.core.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramCredential,
    scram_mechanism,
)
from kreplog.errors import (
    BadVersionError,
    CoordinationError,
    DuplicateResourceError,
    NodeExistsError,
    NoNodeError,
    UnacceptableCredentialError,
    UnknownCredentialError,
)
from kreplog.types import Create, Delete, Node, SetData, StoreOperation

ATTEMPTS = 5
"""Maximum of attempts to write a user's credentials: others may be first each time."""

MAX_SALT_BYTES = 1024
MAX_NAME_BYTES = 255
"""Of a user's name: a byte takes up to three characters of a path, of which the stores allow 1,024."""


class CredentialDeletion(NamedTuple):
    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class CredentialUpsertion:
    """A credential that is created or replaced; salted_password: what PBKDF2 has made of the password."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes = field(repr=False)


_PARENTS = ("/config", nodes.USERS)
"""The nodes above a user's, of which none exists before the first broker starts."""

Changes = dict[str, ScramCredential | None]
"""The changes of a user's credentials by the name of the mechanism; None deletes one."""


def changes_of(alterations: Iterable[CredentialDeletion | CredentialUpsertion]) -> Changes:
    """The changes of one user; of several mechanisms in one request, too, which Kafka refuses.

    Raises UnacceptableCredentialError, UnsupportedMechanismError, DuplicateResourceError, with Kafka's messages where
    Kafka has the error."""
    changes: Changes = {}
    for alteration in alterations:
        check_name(alteration.user)
        mechanism = scram_mechanism(alteration.mechanism)
        credential = None
        if isinstance(alteration, CredentialUpsertion):
            _check(alteration, mechanism.key_bytes)
            credential = mechanism.credential(alteration.salted_password, alteration.salt, alteration.iterations)
        if mechanism.name in changes:
            raise DuplicateResourceError("A user credential cannot be altered twice in the same request")
        changes[mechanism.name] = credential
    return changes


def check_name(user: str) -> None:
    """Raises UnacceptableCredentialError."""
    if not user:
        raise UnacceptableCredentialError("Username must not be empty")
    if len(user.encode()) > MAX_NAME_BYTES or "\0" in user:
        raise UnacceptableCredentialError(f"a username has at most {MAX_NAME_BYTES} bytes of UTF-8, and none is 0")


def _check(alteration: CredentialUpsertion, key_bytes: int) -> None:
    if alteration.iterations < MIN_ITERATIONS:
        raise UnacceptableCredentialError("Too few iterations")
    if alteration.iterations > MAX_ITERATIONS:
        raise UnacceptableCredentialError("Too many iterations")
    if not 0 < len(alteration.salt) <= MAX_SALT_BYTES:
        raise UnacceptableCredentialError(f"a salt of {len(alteration.salt)} bytes: allowed are 1 to {MAX_SALT_BYTES}")
    if len(alteration.salted_password) != key_bytes:
        raise UnacceptableCredentialError(
            f"a salted password of {len(alteration.salted_password)} bytes: those of the mechanism have {key_bytes}"
        )


def alter_user(user: str, changes: Mapping[str, ScramCredential | None], secret: bytes) -> Steps[Credentials]:
    """Write the credentials of a user, and return them; none of the changes is applied if one cannot be.

    secret: random bytes, which become the cluster's secret if it has none. Raises UnknownCredentialError (a credential
    to be deleted does not exist), CoordinationError.
    """
    path = nodes.user(user)
    for _ in range(ATTEMPTS):
        *parents, node = yield GetNodes((*_PARENTS, path))
        credentials = dict(stored_credentials(path, node))
        for mechanism, credential in changes.items():
            if credential is not None:
                credentials[mechanism] = credential
            elif credentials.pop(mechanism, None) is None:
                raise UnknownCredentialError("Attempt to delete a user credential that does not exist")
        writes: list[StoreOperation] = [
            Create(parent, data)
            for parent, data, found in zip(_PARENTS, (b"", secret), parents, strict=True)
            if found is None
        ]
        version = -1 if node is None else node.stat.version
        if not credentials:
            writes.append(Delete(path, version))
        else:
            data = nodes.encode_user({name: credential_text(given) for name, given in credentials.items()})
            writes.append(Create(path, data) if node is None else SetData(path, data, version))
        try:
            yield Multi(tuple(writes))
        except (NodeExistsError, NoNodeError, BadVersionError):
            continue
        return credentials
    raise CoordinationError(f"too many concurrent changes of the credentials of {user}: try again", path=path)


def remove_user(user: str) -> Steps[None]:
    """Delete all credentials of a user, readable or not. Raises UnknownCredentialError, CoordinationError."""
    try:
        yield Multi((Delete(nodes.user(user)),))
    except NoNodeError as error:
        raise UnknownCredentialError(f"there is no user {user}") from error


def stored_users() -> Steps[dict[str, Credentials]]:
    """The credentials of all users by name. Raises CoordinationError."""
    names = yield GetChildren(nodes.USERS)
    paths = [f"{nodes.USERS}/{name}" for name in names or ()]
    found = yield GetNodes(tuple(paths))
    users = {nodes.user_name(path): stored_credentials(path, node) for path, node in zip(paths, found, strict=True)}
    return {user: credentials for user, credentials in users.items() if credentials}


def stored_credentials(path: str, node: Node | None) -> Credentials:
    """The credentials in a user's node, none if there is no node; those of other mechanisms, such as a newer version's,
    are left out. Raises CoordinationError."""
    texts = nodes.decode_user(path, node)
    try:
        return {
            name: parse_credential(mechanism, texts[name])
            for name, mechanism in SCRAM_MECHANISMS.items()
            if name in texts
        }
    except ValueError as error:
        raise CoordinationError(f"the node {path} has {error}: delete it, or the user", path=path) from error
