"""SASL on a connection: every state, what is allowed in it, and re-authentication (KIP-368)."""

from __future__ import annotations

import random

import pytest

from kreplog.core.security.credentials import UserCredentials
from kreplog.core.security.plain import PLAIN, PlainServer, plain_message
from kreplog.core.security.principal import ANONYMOUS, Principal
from kreplog.core.security.sasl import (
    ILLEGAL_AUTHENTICATE,
    ILLEGAL_HANDSHAKE,
    MAX_API_VERSIONS,
    AuthenticateResponse,
    SaslConnection,
    SaslMechanism,
)
from kreplog.core.security.scram import SCRAM_SHA_256, ScramClient, ScramServer
from kreplog.errors import ErrorCode
from kreplog.wire.versions import ApiKey

SCRAM = SCRAM_SHA_256.name
ALICE = plain_message("alice", "pencil")
USERS = UserCredentials(b"secret")
for name in ("alice", "bob"):
    USERS.put(name, {SCRAM: SCRAM_SHA_256.credential(SCRAM_SHA_256.salted_password("pencil", b"s", 4096), b"s", 4096)})

ALL = [api.name for api in ApiKey]
BEFORE = {"API_VERSIONS", "SASL_HANDSHAKE"}


def connection(max_reauth_ms: int = 0) -> SaslConnection:
    scram = SaslMechanism(lambda: ScramServer(SCRAM_SHA_256, lambda user: USERS.find(SCRAM_SHA_256, user), "server"))
    plain = SaslMechanism(lambda: PlainServer(USERS.is_password), is_costly=True)
    return SaslConnection({SCRAM: scram, PLAIN: plain}, max_reauth_ms)


def authenticated(max_reauth_ms: int = 0, now_ms: int = 0) -> SaslConnection:
    sasl = connection(max_reauth_ms)
    sasl.handshake(PLAIN, 1, now_ms)
    assert sasl.authenticate(ALICE, now_ms).error is ErrorCode.NONE
    return sasl


def test_scram_authenticates_in_two_rounds() -> None:
    sasl, client = connection(), ScramClient(SCRAM_SHA_256, "alice", "pencil", "client")
    handshake = sasl.handshake(SCRAM, 1, 0)
    assert (handshake.error, handshake.mechanisms) == (ErrorCode.NONE, (SCRAM, PLAIN))
    assert not sasl.is_costly
    first = sasl.authenticate(client.first(), 0)
    assert (first.error, first.session_lifetime_ms) == (ErrorCode.NONE, 0)
    assert (sasl.is_authenticated, sasl.principal) == (False, ANONYMOUS)
    last = sasl.authenticate(client.respond(first.auth_bytes), 0)
    assert client.respond(last.auth_bytes) == b""
    assert (sasl.is_authenticated, sasl.principal) == (True, Principal("alice"))


def test_a_user_named_anonymous_is_authenticated() -> None:
    users = UserCredentials(b"secret")
    users.put("ANONYMOUS", USERS.users["alice"])
    sasl = SaslConnection({PLAIN: SaslMechanism(lambda: PlainServer(users.is_password))}, 0)
    sasl.handshake(PLAIN, 1, 0)
    sasl.authenticate(plain_message("ANONYMOUS", "pencil"), 0)
    assert sasl.is_authenticated
    assert sasl.allows("METADATA", 0)


@pytest.mark.parametrize("api", ALL)
def test_which_requests_are_allowed_in_which_state(api: str) -> None:
    sasl = connection()
    assert sasl.allows(api, 0) is (api in BEFORE)
    assert bool(sasl.failure) is (api not in BEFORE)
    if api not in BEFORE:
        assert sasl.failure.startswith(f"Unexpected Kafka request of type {api} during SASL handshake: ")
        assert "security.protocol SSL or PLAINTEXT" in sasl.failure
    sasl = connection()
    sasl.handshake(PLAIN, 1, 0)
    assert sasl.allows(api, 0) is (api == "SASL_AUTHENTICATE")
    assert authenticated().allows(api, 10**12)
    expiring = authenticated(5000)
    assert expiring.allows(api, 5000)
    assert expiring.allows(api, 5001) is (api == "SASL_HANDSHAKE")
    failed = connection()
    failed.handshake("GSSAPI", 1, 0)
    assert not failed.allows(api, 0)


def test_api_versions_without_a_handshake_end() -> None:
    sasl = connection()
    assert [sasl.allows("API_VERSIONS", 0) for _ in range(MAX_API_VERSIONS + 1)] == [True] * MAX_API_VERSIONS + [False]
    assert "requests of ApiVersions without a SASL handshake" in sasl.failure
    assert not sasl.allows("SASL_HANDSHAKE", 0)


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are() -> None:
    sasl = connection()
    response = sasl.handshake("GSSAPI", 1, 0)
    assert (response.error, response.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, (SCRAM, PLAIN))
    assert sasl.failure == "Unsupported SASL mechanism GSSAPI"
    assert sasl.authenticate(ALICE, 0) == ILLEGAL_AUTHENTICATE


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("carol", "pencil")], ids=["wrong password", "unknown user"]
)
def test_a_failure_by_scram_says_nothing_of_the_user(user: str, password: str) -> None:
    sasl, client = connection(), ScramClient(SCRAM_SHA_256, user, password, "client")
    sasl.handshake(SCRAM, 1, 0)
    response = sasl.authenticate(client.respond(sasl.authenticate(client.first(), 0).auth_bytes), 0)
    assert response == AuthenticateResponse(
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256",
    )
    assert user in sasl.failure
    assert sasl.principal is ANONYMOUS
    assert sasl.authenticate(ALICE, 0) == ILLEGAL_AUTHENTICATE


def test_version_0_has_tokens_without_headers() -> None:
    sasl = connection()
    states = [sasl.expects_raw_token]
    sasl.handshake(PLAIN, 0, 0)
    states.append(sasl.expects_raw_token)
    assert sasl.authenticate(ALICE, 0).auth_bytes == b""
    states.append(sasl.expects_raw_token)
    assert states == [False, True, False]
    sasl = connection()
    sasl.handshake(PLAIN, 1, 0)
    assert not sasl.expects_raw_token


def test_an_authenticated_connection_answers_that_there_is_nothing_to_authenticate() -> None:
    sasl = authenticated()
    assert sasl.handshake(PLAIN, 1, 10_000) == ILLEGAL_HANDSHAKE
    assert sasl.authenticate(ALICE, 10_000) == ILLEGAL_AUTHENTICATE
    assert not sasl.failure
    assert sasl.allows("METADATA", 10_000)


def test_a_login_is_from_the_first_request_to_the_last_token() -> None:
    """Quotas hold for all other requests of SASL."""
    sasl = connection()
    assert sasl.is_login("API_VERSIONS", 0)
    assert sasl.is_login("SASL_HANDSHAKE", 0)
    sasl.handshake(PLAIN, 1, 0)
    assert sasl.is_login("SASL_AUTHENTICATE", 0)
    sasl.authenticate(ALICE, 0)
    assert not sasl.is_login("SASL_HANDSHAKE", 10_000)
    assert not sasl.is_login("SASL_AUTHENTICATE", 10_000)
    assert not sasl.is_login("METADATA", 10_000)


# Re-authentication


def test_a_reauthentication_is_a_login_once_in_a_second() -> None:
    sasl = authenticated(5000)
    assert not sasl.is_login("SASL_HANDSHAKE", 999)
    assert sasl.is_login("SASL_HANDSHAKE", 1000)
    assert not sasl.is_login("METADATA", 1000)
    sasl.handshake(PLAIN, 1, 1000)
    assert sasl.is_login("SASL_AUTHENTICATE", 1000)
    sasl.authenticate(ALICE, 1000)
    assert not sasl.is_login("SASL_HANDSHAKE", 1999)


def test_a_session_is_renewed_by_a_reauthentication() -> None:
    sasl = connection(5000)
    sasl.handshake(PLAIN, 1, 0)
    assert sasl.authenticate(ALICE, 0).session_lifetime_ms == 5000
    assert sasl.handshake(PLAIN, 1, 4000).error is ErrorCode.NONE
    assert not sasl.allows("METADATA", 4000)
    sasl = authenticated(5000)
    sasl.handshake(PLAIN, 1, 4000)
    assert sasl.is_authenticated
    assert sasl.authenticate(ALICE, 4100).session_lifetime_ms == 5000
    assert sasl.allows("METADATA", 9100)
    assert not sasl.allows("METADATA", 9101)
    assert "expired" in sasl.failure


def test_an_expired_session_can_be_renewed() -> None:
    sasl = authenticated(5000)
    assert sasl.allows("SASL_HANDSHAKE", 60_000)
    sasl.handshake(PLAIN, 1, 60_000)
    sasl.authenticate(ALICE, 60_000)
    assert sasl.allows("METADATA", 65_000)


def test_a_reauthentication_within_a_second_is_refused_and_the_connection_stays() -> None:
    sasl = authenticated(5000)
    assert sasl.handshake(PLAIN, 1, 999) == ILLEGAL_HANDSHAKE
    assert sasl.allows("METADATA", 999)
    assert sasl.handshake(PLAIN, 1, 1000).error is ErrorCode.NONE


def test_the_principal_cannot_change() -> None:
    sasl = authenticated(5000)
    sasl.handshake(PLAIN, 1, 2000)
    response = sasl.authenticate(plain_message("bob", "pencil"), 2000)
    assert response.error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.message == "Cannot change principals during re-authentication from User.alice: User.bob"
    assert sasl.principal == Principal("alice")
    assert not sasl.allows("METADATA", 2000)


def test_the_mechanism_cannot_change() -> None:
    sasl = authenticated(5000)
    assert sasl.handshake(SCRAM, 1, 2000).error is ErrorCode.NONE
    response = sasl.authenticate(b"n,,n=alice,r=c", 2000)
    assert response.message == (
        "SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for re-authentication of mechanism 'PLAIN'"
    )
    assert sasl.failure


def test_a_failed_reauthentication_says_so() -> None:
    sasl = connection(5000)
    for now_ms, password in ((0, "pencil"), (2000, "wrong")):
        client = ScramClient(SCRAM_SHA_256, "alice", password, "client")
        sasl.handshake(SCRAM, 1, now_ms)
        response = sasl.authenticate(client.respond(sasl.authenticate(client.first(), now_ms).auth_bytes), now_ms)
    assert response.message == (
        "Authentication failed during re-authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"
    )


def test_no_sequence_of_requests_authenticates_without_the_password() -> None:
    """2,000 random walks; a connection that has failed stays so."""
    for seed in range(2000):
        rng = random.Random(seed)
        sasl, now_ms, failed = connection(rng.choice((0, 5000))), 0, False
        for _ in range(rng.randint(1, 12)):
            now_ms += rng.choice((0, 500, 1500, 6000))
            api = rng.choice(("API_VERSIONS", "SASL_HANDSHAKE", "SASL_AUTHENTICATE", "SASL_AUTHENTICATE", "PRODUCE"))
            allowed = sasl.expects_raw_token or sasl.allows(api, now_ms)
            assert not (failed and allowed)
            if allowed and api == "SASL_HANDSHAKE" and not sasl.expects_raw_token:
                sasl.handshake(rng.choice((SCRAM, SCRAM, "GSSAPI")), rng.randrange(2), now_ms)
            elif allowed and api != "API_VERSIONS":
                sasl.authenticate(rng.choice((b"n,,n=alice,r=c", b"c=biws,r=cserver,p=QSXC", b"", b"\xff")), now_ms)
            failed = bool(sasl.failure)
            assert not sasl.is_authenticated
            assert sasl.principal is ANONYMOUS
