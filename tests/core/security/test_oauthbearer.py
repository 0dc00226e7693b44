"""OAUTHBEARER: messages of RFC 7628, refusals, and sessions that end with their tokens (KIP-368)."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from kreplog.core.security.oauthbearer import MAX_TOKEN_MESSAGE_BYTES, OAUTHBEARER, AcceptedToken, OauthServer
from kreplog.core.security.principal import Principal
from kreplog.core.security.sasl import AuthenticateResponse, SaslConnection, SaslMechanism
from kreplog.errors import AuthenticationError, ErrorCode

FIRST = b"n,,\1auth=Bearer token\1\1"
DENIED = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"


def validate(token: str) -> AcceptedToken:
    """The principal named in a token `NAME`, or `NAME:LIFETIME_MS`."""
    name, _, lifetime_ms = token.partition(":")
    if name == "forged":
        raise AuthenticationError("the token is forged")
    return AcceptedToken("a,b=c" if name == "token" else name, int(lifetime_ms or 5000))


def message(token: str) -> bytes:
    return b"n,,\1auth=Bearer " + token.encode() + b"\1\1"


def connection(max_reauth_ms: int = 0) -> SaslConnection:
    oauth = SaslMechanism(lambda: OauthServer(validate), True, MAX_TOKEN_MESSAGE_BYTES)
    sasl = SaslConnection({OAUTHBEARER: oauth}, max_reauth_ms)
    sasl.handshake(OAUTHBEARER, 1, 0)
    return sasl


@pytest.mark.parametrize(
    "accepted",
    [
        FIRST,
        b"n,a=a=2Cb=3Dc,\1auth=Bearer token\1\1",
        b"n,,\1auth=bearer  token\1\1",
        b"n,,\1traceId=1\1auth=Bearer token\1host=broker=0\1\1",
    ],
)
def test_a_message_with_a_token(accepted: bytes) -> None:
    server = OauthServer(validate)
    assert server.respond(accepted) == b""
    assert (server.is_complete, server.username, server.lifetime_ms) == (True, "a,b=c", 5000)


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"\1",
        b"token",
        b"n,,",
        b"n,,\1\1",
        b"n,,\1auth=Bearer token\1",
        b"n,,\1auth=Bearer token",
        b"n,,\1auth=Bearer token\1\1\1",
        b"n,,\1auth=Bearer \1\1",
        b"n,,\1auth=Basic token\1\1",
        b"n,,\1auth=Bearer token\1auth=Bearer forged\1\1",
        b"n,,\1auth=Bearer token\1no separator\1\1",
        b"n,,\1auth=Bearer token\1k1=v\1\1",
        b"y,,\1auth=Bearer token\1\1",
        b"p=tls-unique,,\1auth=Bearer token\1\1",
        b"n,,x\1auth=Bearer token\1\1",
        b"n,,,\1auth=Bearer token\1\1",
        b"n,,\1auth=Bearer t\xc3\xb6ken\1\1",
        b"n,,\1auth=Bearer " + b"x" * MAX_TOKEN_MESSAGE_BYTES + b"\1\1",
    ],
)
def test_what_is_no_message_with_one_token_is_refused(malformed: bytes) -> None:
    with pytest.raises(AuthenticationError):
        OauthServer(validate).respond(malformed)


def test_another_authorization_id_is_refused() -> None:
    with pytest.raises(AuthenticationError, match="authorization id that is different from the token's"):
        OauthServer(validate).respond(FIRST.replace(b"n,,", b"n,a=bob,"))


def test_random_messages_fail_and_nothing_else() -> None:
    source = random.Random(7628)
    for _ in range(2000):
        data = bytearray(FIRST)
        for _ in range(source.randrange(1, 6)):
            data[source.randrange(len(data))] = source.randrange(256)
        del data[source.randrange(len(data)) + 1 :]
        with suppress(AuthenticationError):
            OauthServer(validate).respond(bytes(data))


@pytest.mark.parametrize("answer", [b"\1", FIRST, b""])
def test_a_refused_token_gets_an_error_as_json_and_then_the_failure(answer: bytes) -> None:
    """Whatever the client sends then: it cannot try tokens one after the other."""
    sasl = connection()
    assert sasl.authenticate(message("forged"), 0) == AuthenticateResponse(auth_bytes=b'{"status":"invalid_token"}')
    assert not sasl.is_authenticated
    assert sasl.authenticate(answer, 0) == AuthenticateResponse(ErrorCode.SASL_AUTHENTICATION_FAILED, DENIED)
    assert sasl.failure == "the token is forged"
    assert not sasl.is_authenticated


@pytest.mark.parametrize(("max_reauth_ms", "lifetime_ms"), [(0, 5000), (2000, 2000), (9000, 5000)])
def test_a_session_ends_with_its_token_or_earlier(max_reauth_ms: int, lifetime_ms: int) -> None:
    sasl = connection(max_reauth_ms)
    assert sasl.authenticate(message("alice:5000"), 100).session_lifetime_ms == lifetime_ms
    assert sasl.principal == Principal("alice")
    assert sasl.allows("PRODUCE", 100 + lifetime_ms)
    assert not sasl.allows("PRODUCE", 101 + lifetime_ms)


def test_a_session_goes_on_with_another_token_of_the_same_principal() -> None:
    sasl = connection()
    sasl.authenticate(message("alice:5000"), 0)
    assert sasl.handshake(OAUTHBEARER, 1, 4000).error is ErrorCode.NONE
    assert sasl.authenticate(message("alice:7000"), 4000).session_lifetime_ms == 7000
    assert sasl.allows("PRODUCE", 11_000)
    assert sasl.handshake(OAUTHBEARER, 1, 10_000).error is ErrorCode.NONE
    assert sasl.authenticate(message("bob:7000"), 10_000).error is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in sasl.failure
