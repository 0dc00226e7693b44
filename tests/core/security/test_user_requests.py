"""Changes of credentials: Kafka's checks, two administrators at once, and a store that is as no kreplog left it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kreplog.coord.base import Session
from kreplog.coord.memory import MemoryStore
from kreplog.core import nodes
from kreplog.core.request_calls import carry_out
from kreplog.core.security.credentials import credential_text
from kreplog.core.security.scram import SCRAM_SHA_256, SCRAM_SHA_512
from kreplog.core.security.user_requests import (
    CredentialDeletion,
    CredentialUpsertion,
    alter_user,
    changes_of,
    remove_user,
    stored_users,
)
from kreplog.errors import (
    BadVersionError,
    CoordinationError,
    DuplicateResourceError,
    KreplogError,
    NodeExistsError,
    NoNodeError,
    UnacceptableCredentialError,
    UnknownCredentialError,
    UnsupportedMechanismError,
)
from kreplog.types import StoreOperation

GOOD = CredentialUpsertion("alice", 1, 4096, b"salt", bytes(32))


def test_the_credential_of_a_request_has_the_keys_of_rfc_5802() -> None:
    changes = changes_of([replace(GOOD, salted_password=SCRAM_SHA_256.salted_password("pencil", b"salt", 4096))])
    assert changes == {
        "SCRAM-SHA-256": SCRAM_SHA_256.credential(SCRAM_SHA_256.salted_password("pencil", b"salt", 4096), b"salt", 4096)
    }
    assert changes_of([CredentialDeletion("alice", 2)]) == {"SCRAM-SHA-512": None}


@pytest.mark.parametrize(
    ("alteration", "error", "reason"),
    [
        (replace(GOOD, user=""), UnacceptableCredentialError, "Username must not be empty"),
        (CredentialDeletion("", 1), UnacceptableCredentialError, "Username must not be empty"),
        (replace(GOOD, user="\u00e4" * 128), UnacceptableCredentialError, "255 bytes"),
        (replace(GOOD, user="a\0"), UnacceptableCredentialError, "none is 0"),
        (replace(GOOD, mechanism=0), UnsupportedMechanismError, "Unknown SCRAM mechanism"),
        (CredentialDeletion("alice", 3), UnsupportedMechanismError, "Unknown SCRAM mechanism"),
        (replace(GOOD, iterations=4095), UnacceptableCredentialError, "Too few iterations"),
        (replace(GOOD, iterations=-1), UnacceptableCredentialError, "Too few iterations"),
        (replace(GOOD, iterations=16385), UnacceptableCredentialError, "Too many iterations"),
        (replace(GOOD, salt=b""), UnacceptableCredentialError, "a salt of 0 bytes"),
        (replace(GOOD, salt=bytes(1025)), UnacceptableCredentialError, "a salt of 1025 bytes"),
        (replace(GOOD, salted_password=b""), UnacceptableCredentialError, "a salted password of 0 bytes"),
        (replace(GOOD, mechanism=2), UnacceptableCredentialError, "32 bytes: those of the mechanism have 64"),
    ],
)
def test_what_is_refused(alteration: Any, error: type[KreplogError], reason: str) -> None:
    with pytest.raises(error, match=reason):
        changes_of([alteration])


def test_no_key_of_a_password_is_shown() -> None:
    assert "salted_password" not in repr(replace(GOOD, salted_password=b"secret"))


@pytest.mark.parametrize("second", [GOOD, CredentialDeletion("alice", 1)], ids=["upsertion", "deletion"])
def test_a_credential_altered_twice_is_refused(second: Any) -> None:
    with pytest.raises(DuplicateResourceError, match="altered twice"):
        changes_of([GOOD, second])
    assert list(changes_of([GOOD, CredentialDeletion("alice", 2)])) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]


def test_errors_have_the_codes_of_kafka() -> None:
    kinds = (UnsupportedMechanismError, UnknownCredentialError, DuplicateResourceError, UnacceptableCredentialError)
    assert [int(kind.kafka_code) for kind in kinds] == [33, 91, 92, 93]


# In the store


class Calls:
    """A session's calls; before_write: called before each write, as another administrator."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.before_write: list[Any] = []

    def get_nodes(self, paths: Sequence[str]) -> Any:
        return self.session.get_many(paths)

    def get_children(self, path: str) -> Any:
        try:
            return self.session.children(path)
        except NoNodeError:
            return None

    def multi(self, operations: Sequence[StoreOperation]) -> Any:
        if self.before_write:
            self.before_write.pop(0)()
        return self.session.multi(operations)

    def pause(self, ms: int) -> None:
        raise AssertionError("these steps do not pause")

    def note(self, level: str, text: str) -> None:
        raise AssertionError("these steps note nothing")


@pytest.fixture
def calls() -> Calls:
    return Calls(MemoryStore().connect(10_000))


FIRST, SECOND = ({"SCRAM-SHA-256": SCRAM_SHA_256.credential(bytes(32), salt, 4096)} for salt in (b"1", b"2"))
LONG = {"SCRAM-SHA-512": SCRAM_SHA_512.credential(bytes(64), b"3", 4096)}
NONE: Any = {"SCRAM-SHA-256": None}


def alter(calls: Calls, user: str, changes: Any, secret: bytes = b"secret") -> Any:
    return carry_out(alter_user(user, changes, secret), calls)


def users(calls: Calls) -> Any:
    return carry_out(stored_users(), calls)


def test_credentials_are_created_replaced_and_deleted_in_a_store_that_no_broker_has_used(calls: Calls) -> None:
    assert users(calls) == {}
    assert alter(calls, "alice", FIRST) == FIRST
    assert calls.session.get(nodes.USERS).data == b"secret"
    assert alter(calls, "alice", LONG, b"another") == FIRST | LONG
    assert alter(calls, "alice", SECOND) == SECOND | LONG
    assert calls.session.get(nodes.USERS).data == b"secret"
    assert users(calls) == {"alice": SECOND | LONG}
    assert alter(calls, "alice", NONE) == LONG
    assert alter(calls, "alice", {"SCRAM-SHA-512": None}) == {}
    assert users(calls) == {}
    assert calls.session.children(nodes.USERS) == []


def test_a_credential_that_does_not_exist_cannot_be_deleted(calls: Calls) -> None:
    for changes in (NONE, LONG | NONE):
        with pytest.raises(UnknownCredentialError, match="does not exist"):
            alter(calls, "alice", changes)
    assert users(calls) == {}


@pytest.mark.parametrize("user", ["alice", "a/b", "..", ".", "a b", "\u00e4%2F", "\x01", "%", "a.b-c_d", "x" * 255])
def test_a_name_of_any_characters_has_a_node_of_its_own(calls: Calls, user: str) -> None:
    alter(calls, user, FIRST)
    assert users(calls) == {user: FIRST}
    carry_out(remove_user(user), calls)
    assert users(calls) == {}
    with pytest.raises(UnknownCredentialError, match="there is no user"):
        carry_out(remove_user(user), calls)


def test_names_and_nodes_are_one_to_one() -> None:
    rng = random.Random(1)
    names = {"".join(rng.choice("aA.%/2F\u00e4-_\0") for _ in range(rng.randint(1, 6))) for _ in range(2000)}
    assert len({nodes.user(name) for name in names}) == len(names)
    assert {nodes.user_name(nodes.user(name)) for name in names} == names
    for path in (f"{nodes.USERS}/%", f"{nodes.USERS}/%FF", f"{nodes.USERS}/%GG"):
        with pytest.raises(CoordinationError, match="is of no user"):
            nodes.user_name(path)


def test_two_administrators_at_once_lose_no_change(calls: Calls) -> None:
    other = Calls(calls.session)
    calls.before_write = [lambda: alter(other, "alice", LONG)]
    assert alter(calls, "alice", FIRST) == FIRST | LONG
    calls.before_write = [lambda: alter(other, "alice", {"SCRAM-SHA-512": None}), lambda: alter(other, "alice", NONE)]
    assert alter(calls, "alice", SECOND) == SECOND
    calls.before_write = [lambda: alter(other, "alice", NONE)]
    with pytest.raises(UnknownCredentialError):
        alter(calls, "alice", NONE)
    calls.before_write = [partial(alter, other, "alice", salt) for salt in (FIRST, SECOND, FIRST, SECOND, FIRST)]
    with pytest.raises(CoordinationError, match="too many concurrent changes"):
        alter(calls, "alice", LONG)
    assert users(calls) == {"alice": FIRST}


def test_nodes_that_kreplog_does_not_write_are_refused_without_quoting_them(calls: Calls) -> None:
    alter(calls, "alice", FIRST)
    text = credential_text(FIRST["SCRAM-SHA-256"])
    path = nodes.user("alice")
    for data in (b"", b"[]", b"{" + text.encode(), b'{"SCRAM-SHA-256": "' + text.encode() + b'x"}', b"\xff"):
        calls.session.set_data(path, data)
        with pytest.raises(CoordinationError, match="delete it") as refused:
            alter(calls, "alice", SECOND)
        assert text not in str(refused.value)
    calls.session.set_data(path, b'{"SCRAM-SHA-1": "of another version"}')
    assert users(calls) == {}
    carry_out(remove_user("alice"), calls)
    assert calls.session.children(nodes.USERS) == []


def test_a_write_that_the_store_refuses_for_another_reason_is_reported(calls: Calls) -> None:
    calls.session.close()
    with pytest.raises(CoordinationError):
        alter(calls, "alice", FIRST)
    assert issubclass(NodeExistsError, CoordinationError)
    assert issubclass(BadVersionError, CoordinationError)
