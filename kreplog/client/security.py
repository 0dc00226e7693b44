"""ClientSecurity: how clients connect: Kafka's security.protocol, ssl.* and sasl.* settings of a client."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kreplog.client.oauth_token import TOKEN_CALLBACK
from kreplog.client.sasl_login import CLIENT_SASL_NAMES, SaslLogin
from kreplog.core.security.oauthbearer import OAUTHBEARER
from kreplog.core.security.plain import PLAIN
from kreplog.errors import AuthenticationError, UsageError
from kreplog.tls import (
    CLIENT_TLS_NAMES,
    PROTOCOLS,
    TlsSettings,
    TlsSocket,
    client_context,
    complete_handshake,
    connect_tls,
)
from kreplog.types import SecurityProtocol, is_loopback

_PROTOCOL = "security.protocol"
_OF_SECURITY = ("security.", "ssl.", "sasl.")


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The security of a client's connections. context: of TLS, login: for SASL; None where the protocol has none."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    context: ssl.SSLContext | None = None
    login: SaslLogin | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any] | None) -> ClientSecurity:
        """From settings by Kafka's names, of which those that do not concern security are ignored; values are texts,
        but for the callable oauth_cb.

        Raises UsageError for unknown names and values, for files that cannot be used, and for a password that would be
        sent unencrypted."""
        own = {name: value for name, value in (settings or {}).items() if _is_of_security(name)}
        text = own.pop(_PROTOCOL, SecurityProtocol.PLAINTEXT.name).strip().upper()
        if text not in SecurityProtocol.__members__:
            raise UsageError(f"{_PROTOCOL} = {text}: this client offers {', '.join(SecurityProtocol.__members__)}")
        for name in own:
            if name not in CLIENT_TLS_NAMES and name not in CLIENT_SASL_NAMES:
                raise UsageError(
                    f"{name} is not a setting of a client's security: these are {_PROTOCOL}, "
                    f"{', '.join((*CLIENT_TLS_NAMES, *CLIENT_SASL_NAMES))}"
                )
        protocol = SecurityProtocol[text]
        login = SaslLogin.of(own) if protocol.authenticates else None
        if login is not None and login.mechanism == PLAIN and not protocol.encrypts:
            raise UsageError(
                f"sasl.mechanism = PLAIN would send the password unencrypted: set {_PROTOCOL} = SASL_SSL, or "
                "sasl.mechanism to one of SCRAM"
            )
        tls = {name: value for name, value in own.items() if name in CLIENT_TLS_NAMES}
        return cls(
            protocol,
            client_context(_tls_settings(tls)) if protocol.encrypts else None,
            login,
        )

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ClientSecurity:
        """From a properties file, as Kafka's tools take with --command-config. Raises as `of` and read_properties."""
        return cls.of(read_properties(path))

    def secure(self, sock: socket.socket, host: str, deadline: float) -> socket.socket:
        """A connected socket, which it owns, or that of TLS over it after the handshake; non-blocking then.

        deadline: by the monotonic clock. Raises OSError, TimeoutError; the socket is closed then."""
        sock.setblocking(False)
        if self.context is None:
            self.check_peer(sock)
            return sock
        secured = connect_tls(sock, self.context, host)
        try:
            complete_handshake(secured, max(0.0, deadline - time.monotonic()))
        except BaseException:
            secured.close()
            raise
        return secured

    def check_peer(self, sock: socket.socket) -> None:
        """Close a connection without TLS, and raise AuthenticationError, if a token would leave this host by it."""
        if self.login is None or self.login.mechanism != OAUTHBEARER or self.protocol.encrypts:
            return
        if sock.family in (socket.AF_INET, socket.AF_INET6) and not is_loopback(sock.getpeername()[0]):
            sock.close()
            raise AuthenticationError(
                f"sasl.mechanism = {OAUTHBEARER} would send the token unencrypted: set {_PROTOCOL} = SASL_SSL"
            )

    def of_kafka_python(self) -> dict[str, Any]:
        """The arguments of kafka-python's clients."""
        tls = {} if self.context is None else {"ssl_context": self.context}
        login = {} if self.login is None else self.login.of_kafka_python
        return {"security_protocol": self.protocol.name, **tls, **login}


PLAINTEXT = ClientSecurity()


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    """The settings security.protocol, ssl.* and sasl.* of a properties file, lines of `name=value`.

    Raises UsageError for a file that cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the properties {path} cannot be read: {reason}", path=str(path)) from error
    return {name: value for name, value in _properties(text) if name.startswith(_OF_SECURITY)}


def has_input(sock: socket.socket) -> bool:
    """Whether a socket can be read although the system has nothing to read of it."""
    return isinstance(sock, TlsSocket) and sock.has_input


def _is_of_security(name: str) -> bool:
    return name.startswith(_OF_SECURITY) or name == TOKEN_CALLBACK


def _tls_settings(values: Mapping[str, str]) -> TlsSettings:
    """Raises UsageError."""
    fields: dict[str, Any] = {CLIENT_TLS_NAMES[name]: value for name, value in values.items()}
    for name in ("protocols", "cipher_suites"):
        if name in fields:
            fields[name] = tuple(part.strip() for part in fields[name].split(","))
    settings = TlsSettings(**fields)
    for name, value, allowed in (
        ("ssl.keystore.type", (settings.keystore_type,), ("PEM",)),
        ("ssl.truststore.type", (settings.truststore_type,), ("PEM",)),
        ("ssl.endpoint.identification.algorithm", (settings.endpoint_identification,), ("https", "")),
        ("ssl.enabled.protocols", settings.protocols, tuple(PROTOCOLS)),
    ):
        if not set(value) <= set(allowed):
            raise UsageError(f"{name} = {','.join(value)}: allowed: {', '.join(allowed)}")
    return settings


def _properties(text: str) -> list[tuple[str, str]]:
    """The lines `name=value` or `name: value`, without comments; a backslash at the end continues a line. Raises
    UsageError for other lines, which it does not quote: there may be a password in them."""
    found = []
    for number, line in enumerate(map(str.strip, text.replace("\\\n", "").splitlines()), 1):
        if not line or line[0] in "#!":
            continue
        at = min((line.index(sign) for sign in "=:" if sign in line), default=-1)
        if at < 1:
            raise UsageError(f"line {number} of the properties is not name=value")
        found.append((line[:at].strip(), line[at + 1 :].strip()))
    return found
