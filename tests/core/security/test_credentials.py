"""Credentials of users, of unknown ones too, and passwords by PLAIN."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from typing import Any

import pytest

from kreplog.core.security import credentials as module
from kreplog.core.security import scram
from kreplog.core.security.credentials import UserCredentials, credential_text, parse_credential
from kreplog.core.security.plain import PlainServer, plain_message
from kreplog.core.security.scram import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
)
from kreplog.errors import AuthenticationError, InvalidCredentialsError


def made(mechanism: ScramMechanism, password: str, salt: bytes = b"16 bytes of salt", times: int = 4096) -> Any:
    return mechanism.credential(mechanism.salted_password(password, salt, times), salt, times)


@pytest.fixture
def users() -> UserCredentials:
    found = UserCredentials(b"the cluster's secret")
    found.put("alice", {"SCRAM-SHA-256": made(SCRAM_SHA_256, "pencil")})
    found.put("bob", {"SCRAM-SHA-512": made(SCRAM_SHA_512, "paper", times=5000)})
    return found


def test_unknown_users_have_stable_credentials_that_look_like_those_of_users(users: UserCredentials) -> None:
    carol = users.find(SCRAM_SHA_256, "carol")
    assert carol == users.find(SCRAM_SHA_256, "carol")
    assert carol != users.find(SCRAM_SHA_256, "dave")
    assert (len(carol.salt), carol.iterations) == (16, 4096)
    assert users.find(SCRAM_SHA_512, "alice").iterations == 5000
    other = UserCredentials(b"another secret")
    assert other.find(SCRAM_SHA_256, "carol").salt != carol.salt
    other.secret = users.secret
    other.put("bob", users.users["alice"])
    assert other.find(SCRAM_SHA_256, "carol") == carol


def test_shapes_of_removed_credentials_are_forgotten(users: UserCredentials) -> None:
    users.put("alice", {"SCRAM-SHA-256": made(SCRAM_SHA_256, "pencil", b"salt", 9000)})
    assert {users.find(SCRAM_SHA_256, f"user {number}").iterations for number in range(20)} == {9000}
    users.put("alice", {})
    unknown = users.find(SCRAM_SHA_256, "alice")
    assert (len(unknown.salt), unknown.iterations) == (32, 4096)
    users.put("bob", {})
    users.put("bob", {})
    assert users.users == {}


def test_an_unknown_user_looks_like_some_of_several_kinds_of_users(users: UserCredentials) -> None:
    users.put("carol", {"SCRAM-SHA-256": made(SCRAM_SHA_256, "pencil", b"x" * 300, 4100)})
    found = {
        (len(unknown.salt), unknown.iterations)
        for unknown in (users.find(SCRAM_SHA_256, f"user {number}") for number in range(50))
    }
    assert found == {(16, 4096), (300, 4100)}


def test_the_salts_of_unknown_users_have_no_pattern(users: UserCredentials) -> None:
    users.put("alice", {"SCRAM-SHA-256": made(SCRAM_SHA_256, "pencil", bytes(range(200)))})
    for number in range(20):
        salt = users.find(SCRAM_SHA_256, f"user {number}").salt
        assert len(salt) == 200
        assert max(map(salt.count, (salt[at : at + 4] for at in range(196)))) == 1


@pytest.mark.parametrize("given", [b"1f8q0zk3jd9s8a7vbn2m4x6c5y", b"f8q0zk3jd9s8a7vbn2m4x6c5y"])
def test_unknown_users_have_salts_of_kafkas_admin_client_where_users_have(given: bytes, users: UserCredentials) -> None:
    """BigInteger(130, random).toString(36): 25 digits, or 26 that begin with 1."""
    users.put("alice", {"SCRAM-SHA-256": made(SCRAM_SHA_256, "pencil", given)})
    salts = [users.find(SCRAM_SHA_256, f"user {number}").salt for number in range(100)]
    assert {len(salt) for salt in salts} >= {25, 26}
    assert all(int(salt, 36) < 1 << 130 for salt in salts)
    assert len(set(salts)) == 100


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests and derivations made from now on."""
    calls: list[str] = []

    def count(name: str, function: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            calls.append(name + str([len(each) if isinstance(each, bytes) else each for each in arguments[2:]]))
            return function(*arguments)

        return counting

    counting_hmac = type("counting_hmac", (), {})()
    counting_hmac.digest = count("hmac", hmac.digest)
    counting_hmac.compare_digest = count("compare", hmac.compare_digest)
    monkeypatch.setattr(scram, "hmac", counting_hmac)
    monkeypatch.setattr(module, "hmac", counting_hmac)
    monkeypatch.setattr(scram, "pbkdf2_hmac", count("pbkdf2", hashlib.pbkdf2_hmac))
    monkeypatch.setattr(scram, "new_hash", count("hash", hashlib.new))
    return calls


def test_an_unknown_user_costs_the_work_of_a_wrong_password(
    users: UserCredentials, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, messages = [], []
    for user in ("alice", "carol"):
        client = ScramClient(SCRAM_SHA_256, user, "wrong", "c")
        server = ScramServer(SCRAM_SHA_256, lambda name: users.find(SCRAM_SHA_256, name), "s")
        with monkeypatch.context() as patch:
            calls = counted(patch)
            response = server.respond(client.first())
        final = client.respond(response)
        with monkeypatch.context() as patch:
            more = counted(patch)
            with pytest.raises(InvalidCredentialsError) as refused:
                server.respond(final)
        work.append(calls + more)
        messages.append((len(response), str(refused.value).replace(user, "")))
    assert work[0] == work[1]
    assert len(work[0]) > 4
    assert messages[0] == messages[1]


def test_a_wrong_password_costs_the_same_by_plain(users: UserCredentials, monkeypatch: pytest.MonkeyPatch) -> None:
    work = []
    for user in ("alice", "carol"):
        with monkeypatch.context() as patch:
            calls = counted(patch)
            assert not users.is_password(user, "wrong")
        work.append([call.partition("[")[0] for call in calls])
    assert work[0] == work[1]
    assert work[0].count("pbkdf2") == 2


def test_plain_compares_with_the_credential_of_any_mechanism(users: UserCredentials) -> None:
    assert users.is_password("alice", "pencil")
    assert users.is_password("bob", "paper")
    assert not users.is_password("bob", "pencil")
    assert not users.is_password("carol", "")
    for user, password in (("alice", "pencil"), ("bob", "paper")):
        server = PlainServer(users.is_password)
        assert server.respond(plain_message(user, password)) == b""
        assert server.is_complete
        assert server.username == user


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "expected 3 tokens, got 1"),
        (b"alice\0pencil", "expected 3 tokens, got 2"),
        (b"\0alice\0pencil\0", "expected 3 tokens, got 4"),
        (b"\0\0pencil", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0\xff\0pencil", "not UTF-8"),
        (b"\0alice\0pen", "Invalid username or password"),
        (b"\0carol\0pencil", "Invalid username or password"),
        (b"bob\0alice\0pencil", "different from username"),
        (b"bob\0alice\0wrong", "Invalid username or password"),
    ],
)
def test_plain_refuses(users: UserCredentials, message: bytes, reason: str) -> None:
    server = PlainServer(users.is_password)
    with pytest.raises(AuthenticationError, match=reason):
        server.respond(message)
    assert not server.is_complete


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512], ids=str)
def test_texts_of_credentials(mechanism: ScramMechanism) -> None:
    credential = made(mechanism, "pencil")
    text = credential_text(credential)
    assert text.startswith("salt=MTYgYnl0ZXMgb2Ygc2FsdA==,stored_key=")
    assert text.endswith(",iterations=4096")
    assert parse_credential(mechanism, text) == credential


def test_texts_that_are_no_credentials_are_refused_without_quoting_them() -> None:
    credential = made(SCRAM_SHA_256, "pencil")
    text = credential_text(credential)
    key = b64encode(credential.stored_key).decode()
    wrong = [
        "",
        "salt",
        text[:-4] + "4095",
        text[:-4] + "x",
        text + ",more=1",
        text.replace(key, ""),
        text.replace(key, "AAAA"),
        text.replace(key, "*" + key),
        text.partition(",")[2],
        credential_text(ScramCredential(b"", credential.stored_key, credential.server_key, 4096)),
        credential_text(made(SCRAM_SHA_512, "pencil")),
    ]
    for each in wrong:
        with pytest.raises(ValueError, match="not a SCRAM credential") as refused:
            parse_credential(SCRAM_SHA_256, each)
        assert key not in str(refused.value)
