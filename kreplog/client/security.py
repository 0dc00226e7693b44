"""ClientSecurity: how clients connect: Kafka's security.protocol and ssl.* settings of a client."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kreplog.errors import UsageError
from kreplog.tls import (
    CLIENT_TLS_NAMES,
    PROTOCOLS,
    TlsSettings,
    TlsSocket,
    client_context,
    complete_handshake,
    connect_tls,
)
from kreplog.types import SecurityProtocol

_PROTOCOL = "security.protocol"
_OF_SECURITY = ("security.", "ssl.", "sasl.")
_OFFERED = (SecurityProtocol.PLAINTEXT, SecurityProtocol.SSL)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """The security protocol of a client's connections, PLAINTEXT or SSL. context: of TLS; None for PLAINTEXT."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    context: ssl.SSLContext | None = None

    @classmethod
    def of(cls, settings: Mapping[str, str] | None) -> ClientSecurity:
        """From settings by Kafka's names, of which those that do not concern security are ignored.

        Raises UsageError for unknown names and values, and for files that cannot be used."""
        own = {name: value for name, value in (settings or {}).items() if name.startswith(_OF_SECURITY)}
        text = own.pop(_PROTOCOL, SecurityProtocol.PLAINTEXT.name)
        offered = {protocol.name: protocol for protocol in _OFFERED}
        if text not in offered:
            raise UsageError(f"{_PROTOCOL} = {text}: this client offers {', '.join(offered)}")
        for name in own:
            if name not in CLIENT_TLS_NAMES:
                raise UsageError(
                    f"{name} is not a setting of a client's security: these are {_PROTOCOL}, "
                    f"{', '.join(CLIENT_TLS_NAMES)}"
                )
        protocol = offered[text]
        return cls(protocol, client_context(_tls_settings(own)) if protocol.encrypts else None)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> ClientSecurity:
        """From a properties file, as Kafka's tools take with --command-config: lines of `name=value`. Raises as `of`,
        and UsageError for a file that cannot be read."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"the properties {path} cannot be read: {reason}", path=str(path)) from error
        return cls.of(dict(_properties(text)))

    def secure(self, sock: socket.socket, host: str, deadline: float) -> socket.socket:
        """A connected socket, which it owns, or that of TLS over it after the handshake; non-blocking then.

        deadline: by the monotonic clock. Raises OSError, TimeoutError; the socket is closed then."""
        sock.setblocking(False)
        if self.context is None:
            return sock
        secured = connect_tls(sock, self.context, host)
        try:
            complete_handshake(secured, max(0.0, deadline - time.monotonic()))
        except BaseException:
            secured.close()
            raise
        return secured

    def of_kafka_python(self) -> dict[str, Any]:
        """The arguments of kafka-python's clients."""
        return {} if self.context is None else {"security_protocol": self.protocol.name, "ssl_context": self.context}


PLAINTEXT = ClientSecurity()


def has_input(sock: socket.socket) -> bool:
    """Whether a socket can be read although the system has nothing to read of it."""
    return isinstance(sock, TlsSocket) and sock.has_input


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
    """The lines `name=value` or `name: value`, without comments. Raises UsageError for other lines."""
    found = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line[0] in "#!":
            continue
        at = min((line.index(sign) for sign in "=:" if sign in line), default=-1)
        if at < 1:
            raise UsageError(f"line {number} of the properties is not name=value: {line!r}")
        found.append((line[:at].strip(), line[at + 1 :].strip()))
    return found
