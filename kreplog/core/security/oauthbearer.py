"""OAUTHBEARER (RFC 7628, KIP-255): the client sends a token, from which the broker has the name of the principal.

    message    n,[a=NAME],^A auth=Bearer TOKEN ^A [KEY=VALUE ^A ...] ^A
    refused    {"status":"invalid_token"}, to which the client responds with ^A; then the exchange has failed

^A is the byte 1. Whether a token is valid is the decision of the function that a server has for it. As in Kafka the
extensions KEY=VALUE change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kreplog.core.security.scram import escaped_name
from kreplog.errors import AuthenticationError, InvalidCredentialsError

OAUTHBEARER = "OAUTHBEARER"

MAX_TOKEN_MESSAGE_BYTES = 32 << 10
"""Maximum of a client's message; tokens of identity providers have one to a few thousand bytes."""

_REFUSED = b'{"status":"invalid_token"}'
_SEPARATOR = "\1"


class AcceptedToken(NamedTuple):
    """A valid token. name: of the principal. lifetime_ms: time until it is no longer valid, above 0."""

    name: str
    lifetime_ms: int


class OauthClient:
    """The client's end of one exchange. token: of the characters of RFC 6750. extensions: KEY=VALUE, letters and
    printable ASCII (KIP-342)."""

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self.is_complete = False
        self._is_refused = False
        pairs = "".join(f"{key}={value}{_SEPARATOR}" for key, value in extensions.items())
        self._message = f"n,,{_SEPARATOR}auth=Bearer {token}{_SEPARATOR}{pairs}{_SEPARATOR}".encode("ascii")

    def first(self) -> bytes:
        return self._message

    def respond(self, message: bytes) -> bytes:
        """A message of the server is the reason of its refusal, after whose acknowledgement the exchange fails. Raises
        AuthenticationError for a server that goes on."""
        if self._is_refused:
            raise AuthenticationError("the broker refuses the token, and goes on with the exchange")
        self._is_refused = bool(message)
        self.is_complete = not message
        return _SEPARATOR.encode() if message else b""


class OauthServer:
    """The server's end of one exchange. validate: accepts a token, or raises AuthenticationError with the reason, which
    is for the broker's log alone; takes milliseconds of CPU. lifetime_ms: of the token that was accepted."""

    def __init__(self, validate: Callable[[str], AcceptedToken]) -> None:
        self.is_complete = False
        self.username = ""
        self.lifetime_ms = 0
        self._validate = validate
        self._refusal = ""

    def respond(self, message: bytes) -> bytes:
        """The empty response to a valid token, an error as JSON to another. Raises AuthenticationError."""
        if self._refusal:
            raise InvalidCredentialsError(self._refusal)
        authorization, token = _parse(message)
        try:
            name, lifetime_ms = self._validate(token)
        except AuthenticationError as error:
            self._refusal = str(error)
            return _REFUSED
        if authorization not in ("", f"a={escaped_name(name)}"):
            raise AuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        self.is_complete, self.username, self.lifetime_ms = True, name, lifetime_ms
        return b""


def _parse(message: bytes) -> tuple[str, str]:
    """The authorization id as it was sent, and the token. Raises InvalidCredentialsError."""
    if len(message) > MAX_TOKEN_MESSAGE_BYTES:
        raise InvalidCredentialsError(f"a message of {len(message)} bytes: {MAX_TOKEN_MESSAGE_BYTES} at most")
    try:
        header, *pairs, last, end = message.decode("ascii").split(_SEPARATOR)
        flag, authorization, rest = header.split(",")
        fields = [pair.partition("=") for pair in pairs]
        (value,) = [value for key, _, value in fields if key == "auth"]
        scheme, _, token = value.partition(" ")
        if (flag, rest, last, end, scheme.lower()) != ("n", "", "", "", "bearer") or not token.strip():
            raise ValueError
        if not all(key.isalpha() and sign for key, sign, _ in fields):
            raise ValueError
    except ValueError as error:
        raise InvalidCredentialsError("not the first message of an OAUTHBEARER client") from error
    return authorization, token.strip(" ")
