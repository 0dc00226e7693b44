"""SaslConnection: the server's end of SASL on one connection, from the first request to the last re-authentication.

    HANDSHAKE        ApiVersions and SaslHandshake are allowed
    AUTHENTICATE     SaslAuthenticate alone; after SaslHandshake version 0 frames are tokens without a header
    AUTHENTICATED    all but SaslAuthenticate; once the session has expired SaslHandshake alone
    FAILED           nothing: the connection is closed

A SaslHandshake on an authenticated connection whose session has a lifetime begins a re-authentication, which goes
through AUTHENTICATE again, by the same mechanism and for the same principal (KIP-368). A session ends with the
credential that began it, such as a token, or connections.max.reauth.ms later, if that is earlier.
Source: KIP-43, KIP-152, KIP-368; Kafka's SaslServerAuthenticator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from kreplog.core.security.principal import ANONYMOUS, Principal
from kreplog.core.security.scram import MAX_MESSAGE_BYTES
from kreplog.errors import AuthenticationError, ErrorCode, InvalidCredentialsError

MAX_API_VERSIONS = 8
"""Requests of ApiVersions before a SaslHandshake: a client needs one, and another for each version that is refused."""

REAUTHENTICATION_PAUSE_MS = 1000
"""A connection is re-authenticated once in this time at most, as in Kafka."""


class SaslExchange(Protocol):
    """The server's end of one exchange of a mechanism. lifetime_ms: how long its credential is valid; 0 for no end."""

    is_complete: bool
    username: str
    lifetime_ms: int

    def respond(self, message: bytes) -> bytes:
        """The response to the client's next message. Raises AuthenticationError."""


@dataclass(frozen=True, slots=True)
class SaslMechanism:
    """A mechanism that clients may choose. begin: begins an exchange. is_costly: whether its `respond` takes
    milliseconds of CPU. max_message_bytes: maximum of a client's message."""

    begin: Callable[[], SaslExchange]
    is_costly: bool = False
    max_message_bytes: int = MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class HandshakeResponse:
    """The response to a SaslHandshake. mechanisms: the enabled ones."""

    error: ErrorCode
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AuthenticateResponse:
    """The response to a SaslAuthenticate. session_lifetime_ms: time until a re-authentication; 0 for none."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0


class _State(Enum):
    HANDSHAKE = auto()
    AUTHENTICATE = auto()
    AUTHENTICATED = auto()
    FAILED = auto()


class SaslConnection:
    """The state of SASL on one connection. mechanisms: the enabled ones by name. max_reauth_ms: maximum lifetime of a
    session, 0 for no end.

    principal: whose connection it is; ANONYMOUS until that is authenticated. failure: why it is to be closed, for the
    log; "" while it is not.
    """

    def __init__(self, mechanisms: Mapping[str, SaslMechanism], max_reauth_ms: int) -> None:
        self.principal = ANONYMOUS
        self.failure = ""
        self._mechanisms = mechanisms
        self._max_reauth_ms = max_reauth_ms
        self._state = _State.HANDSHAKE
        self._mechanism = ""  # of the exchange, or of the last one
        self._other_mechanism = ""  # requested for a re-authentication, in place of the first one
        self._exchange: SaslExchange | None = None
        self._has_headers = True
        self._api_versions = 0  # before the handshake
        self._authenticated_ms = 0
        self._lifetime_ms = 0  # of the session, 0 for no end

    @property
    def mechanism(self) -> str:
        """The mechanism of the exchange, or of the last one; "" before the first."""
        return self._mechanism

    @property
    def max_message_bytes(self) -> int:
        """Maximum of the next token."""
        mechanism = self._mechanisms.get(self._mechanism)
        return MAX_MESSAGE_BYTES if mechanism is None else mechanism.max_message_bytes

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a token without a request header."""
        return self._state is _State.AUTHENTICATE and not self._has_headers

    @property
    def is_costly(self) -> bool:
        """Whether `authenticate` takes milliseconds of CPU."""
        return self._state is _State.AUTHENTICATE and self._mechanisms[self._mechanism].is_costly

    @property
    def is_authenticated(self) -> bool:
        """Whether the first authentication has succeeded."""
        return self.principal is not ANONYMOUS

    def allows(self, api: str, now_ms: int) -> bool:
        """Whether a request may be handled; otherwise the connection is to be closed. api: its name in ApiKey."""
        if self._state is _State.AUTHENTICATED:
            if api == "SASL_HANDSHAKE" or not self._is_expired(now_ms):
                return True
            self._fail("its session has expired without a re-authentication")
        elif self._state is _State.HANDSHAKE:
            if api == "API_VERSIONS":
                self._api_versions += 1
                if self._api_versions <= MAX_API_VERSIONS:
                    return True
                self._fail(f"more than {MAX_API_VERSIONS} requests of ApiVersions without a SASL handshake")
                return False
            if api == "SASL_HANDSHAKE":
                return True
            self._fail(
                f"Unexpected Kafka request of type {api} during SASL handshake: "
                "is the client's security.protocol SSL or PLAINTEXT, in place of one with SASL?"
            )
        elif self._state is _State.AUTHENTICATE:
            if api == "SASL_AUTHENTICATE":
                return True
            self._fail(f"Unexpected Kafka request of type {api} during SASL authentication.")
        return False

    def is_login(self, api: str, now_ms: int) -> bool:
        """Whether a request that is allowed is part of a login or of a re-authentication: not one of SASL where there
        is nothing to authenticate."""
        if self._state is not _State.AUTHENTICATED:
            return True
        return api == "SASL_HANDSHAKE" and self._may_authenticate_again(now_ms)

    def _may_authenticate_again(self, now_ms: int) -> bool:
        return self._lifetime_ms > 0 and now_ms - self._authenticated_ms >= REAUTHENTICATION_PAUSE_MS

    def handshake(self, mechanism: str, version: int, now_ms: int) -> HandshakeResponse:
        """The response to a SaslHandshake that is allowed."""
        enabled = tuple(self._mechanisms)
        if self._state is _State.AUTHENTICATED and not self._may_authenticate_again(now_ms):
            return ILLEGAL_HANDSHAKE
        if mechanism not in self._mechanisms:
            self._fail(f"Unsupported SASL mechanism {mechanism[:100]}")
            return HandshakeResponse(ErrorCode.UNSUPPORTED_SASL_MECHANISM, enabled)
        if self.is_authenticated and mechanism != self._mechanism:
            self._other_mechanism = mechanism
        else:
            self._mechanism = mechanism
        self._exchange = self._mechanisms[mechanism].begin()
        self._has_headers = version > 0
        self._state = _State.AUTHENTICATE
        return HandshakeResponse(ErrorCode.NONE, enabled)

    def authenticate(self, token: bytes, now_ms: int) -> AuthenticateResponse:
        """The response to a token of the client: to a SaslAuthenticate that is allowed, or to a frame without header;
        of the latter's response auth_bytes are sent, and nothing if it has failed."""
        exchange = self._exchange
        if self._state is not _State.AUTHENTICATE or exchange is None:
            return ILLEGAL_AUTHENTICATE
        again = self.is_authenticated
        try:
            if self._other_mechanism:
                raise AuthenticationError(
                    f"SASL mechanism '{self._other_mechanism}' requested by client is not supported for "
                    f"re-authentication of mechanism '{self._mechanism}'"
                )
            response = exchange.respond(token)
            if not exchange.is_complete:
                return AuthenticateResponse(auth_bytes=response)
            principal = Principal(exchange.username)
            if again and principal != self.principal:
                raise AuthenticationError(
                    "Cannot change principals during re-authentication from "
                    f"{_dotted(self.principal)}: {_dotted(principal)}"
                )
        except AuthenticationError as error:
            self._fail(str(error))
            message = str(error)
            if isinstance(error, InvalidCredentialsError):
                message = (
                    f"Authentication failed during {'re-' * again}authentication due to invalid credentials with SASL "
                    f"mechanism {self._mechanism}"
                )
            return AuthenticateResponse(error.kafka_code, message)
        self._exchange, self._state = None, _State.AUTHENTICATED
        self.principal, self._authenticated_ms = principal, now_ms
        self._lifetime_ms = min((each for each in (exchange.lifetime_ms, self._max_reauth_ms) if each), default=0)
        return AuthenticateResponse(auth_bytes=response, session_lifetime_ms=self._lifetime_ms)

    def _is_expired(self, now_ms: int) -> bool:
        return self._lifetime_ms > 0 and now_ms - self._authenticated_ms > self._lifetime_ms

    def _fail(self, reason: str) -> None:
        self._exchange, self._state, self.failure = None, _State.FAILED, reason


ILLEGAL_HANDSHAKE = HandshakeResponse(ErrorCode.ILLEGAL_SASL_STATE, ())
"""The response to a SaslHandshake where there is nothing to authenticate."""

ILLEGAL_AUTHENTICATE = AuthenticateResponse(
    ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate request received after successful authentication"
)
"""The response to a SaslAuthenticate where there is nothing to authenticate."""


def _dotted(principal: Principal) -> str:
    return f"{principal.kind}.{principal.name}"
