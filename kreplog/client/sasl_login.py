"""SaslLogin: a client's mechanism, name and password, and the requests by which it authenticates itself.

Settings have Kafka's names: sasl.mechanism, and sasl.username and sasl.password as librdkafka has them, or
sasl.jaas.config as Java's clients have it; those of OAUTHBEARER are in oauth_token.py.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kreplog.client.oauth_token import OAUTH_NAMES, TokenSource, extensions_of, token_source
from kreplog.core.security.oauthbearer import OAUTHBEARER, OauthClient
from kreplog.core.security.plain import PLAIN, PlainClient
from kreplog.core.security.scram import SCRAM_MECHANISMS, ScramClient
from kreplog.errors import AuthenticationError, ErrorCode, UsageError
from kreplog.wire.versions import ApiKey

MECHANISMS = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
CLIENT_SASL_NAMES = ("sasl.mechanism", "sasl.username", "sasl.password", "sasl.jaas.config", *OAUTH_NAMES)

SESSION_SHARE = 0.85
"""Part of a session's lifetime after which a connection is authenticated again, as by Kafka's clients."""

_NONCE_BYTES = 24
_JAAS = re.compile(r"\s*[\w.]+\s+required\b\s*(?P<options>.*?);?\s*", re.DOTALL)
_JAAS_OPTION = re.compile(r"(\w+)\s*=\s*\"((?:[^\"\\]|\\.)*)\"\s*")


@dataclass(frozen=True, slots=True)
class SaslLogin:
    """A client's mechanism of SASL, name and password; tokens and extensions in their place of OAUTHBEARER."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    tokens: TokenSource | None = None
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> SaslLogin:
        """From settings by Kafka's names. Raises UsageError, which does not quote a password or secret."""
        mechanism = settings.get("sasl.mechanism", "")
        if mechanism not in MECHANISMS:
            raise UsageError(f"sasl.mechanism = {mechanism or 'nothing'}: it is one of {', '.join(MECHANISMS)}")
        entry = _jaas_options(settings["sasl.jaas.config"]) if "sasl.jaas.config" in settings else {}
        if mechanism == OAUTHBEARER:
            return cls(mechanism, tokens=token_source(settings, entry), extensions=extensions_of(entry))
        username = settings.get("sasl.username", entry.get("username", ""))
        password = settings.get("sasl.password", entry.get("password", ""))
        if not username or not password:
            raise UsageError("SASL needs sasl.username and sasl.password, or sasl.jaas.config with both")
        return cls(mechanism, username, password)

    @property
    def of_kafka_python(self) -> dict[str, Any]:
        """The arguments of kafka-python's clients."""
        if self.tokens is not None:
            from kreplog.client.kafka_python_tokens import TokenProvider

            provider = TokenProvider(self.tokens, self.extensions)
            return {"sasl_mechanism": self.mechanism, "sasl_oauth_token_provider": provider}
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.username,
            "sasl_plain_password": self.password,
        }

    def prepare(self) -> None:
        """Have a token where one is needed, before a connection waits for it. Takes the time of a request to the token
        endpoint; raises AuthenticationError."""
        if self.tokens is not None:
            self.tokens.token()

    def requests(self) -> Requests:
        """The requests by which a client of a listener with SASL authenticates itself; PBKDF2, and the request for a
        new token, are carried out in between."""
        handshake = yield ApiKey.SASL_HANDSHAKE, {"mechanism": self.mechanism}
        if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            raise AuthenticationError(
                f"the broker does not offer {self.mechanism}: set sasl.mechanism to {' or '.join(handshake.mechanisms)}"
            )
        if handshake.error_code:
            raise AuthenticationError(
                f"the broker refuses SASL with error {handshake.error_code}: has its listener this security.protocol?"
            )
        token = "" if self.tokens is None else self.tokens.token()
        exchange = self._exchange(token)
        message = exchange.first()
        while True:
            response = yield ApiKey.SASL_AUTHENTICATE, {"auth_bytes": message}
            if response.error_code:
                if self.tokens is not None:
                    self.tokens.refused(token)
                user = f"user {self.username}" if self.tokens is None else f"token of {self.tokens.origin}"
                raise AuthenticationError(f"{response.error_message or 'authentication failed'} ({user})")
            message = exchange.respond(response.auth_bytes)
            if exchange.is_complete:
                return int(response.session_lifetime_ms)

    def _exchange(self, token: str) -> PlainClient | ScramClient | OauthClient:
        if self.mechanism == OAUTHBEARER:
            return OauthClient(token, self.extensions)
        if self.mechanism == PLAIN:
            return PlainClient(self.username, self.password)
        scram, nonce = SCRAM_MECHANISMS[self.mechanism], secrets.token_urlsafe(_NONCE_BYTES)
        return ScramClient(scram, self.username, self.password, nonce)


Requests = Generator[tuple[ApiKey, dict[str, Any]], Any, int]
"""Yields requests, API and fields, and is sent the responses; returns the lifetime of the session in ms, 0 for no end.
Raises AuthenticationError."""


def _jaas_options(jaas: str) -> dict[str, str]:
    """The options of a JAAS entry: MODULE required name="value" ...; Raises UsageError, without the text."""
    entry = _JAAS.fullmatch(jaas)
    if entry is None or _JAAS_OPTION.sub("", entry["options"]).strip():
        raise UsageError('sasl.jaas.config is not MODULE required username="NAME" password="PASSWORD";')
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS_OPTION.findall(entry["options"])}
