"""Listeners of a broker: their names, addresses and security protocols, as settings give them and clients get them.

An entry of `listeners` is NAME://host:port, or host:port alone, whose name is PLAINTEXT; unix:PATH in place of the
address is a unix socket. Names are Kafka's: upper-case here, whatever their case in a setting, and each has a security
protocol by listener.security.protocol.map. A client gets the addresses of the listener by which its request came.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kreplog.config import SaslConfig
from kreplog.errors import UsageError
from kreplog.types import DEFAULT_LISTENER, Endpoint, SecurityProtocol, address_text, is_loopback
from kreplog.web_request import check_url

WILDCARDS = ("0.0.0.0", "::")

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

DEFAULT_PROTOCOLS = tuple((protocol.name, protocol) for protocol in SecurityProtocol)
"""listener.security.protocol.map by default: each protocol is the name of a listener too."""


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on: `host`:`port` (0: any free port), or the unix socket at `path`. name: upper-case."""

    host: str = ""
    port: int = 0
    path: str = ""
    name: str = DEFAULT_LISTENER
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    def __str__(self) -> str:
        name = "" if self.name == DEFAULT_LISTENER else f"{self.name}://"
        return f"{name}unix:{self.path}" if self.path else f"{name}{address_text(self.host, self.port)}"


def parse_listener(text: str) -> Listener:
    """The listener of one entry, whose protocol is not known yet. Raises ValueError."""
    name, separator, address = text.rpartition("://")
    if separator and not _NAME.fullmatch(name):
        raise ValueError(f"{text!r}: the name of a listener is a letter, then letters, digits, '_' and '-'")
    name = name.upper() if separator else DEFAULT_LISTENER
    if address.startswith("unix:") and len(address) > 5:
        return Listener(path=address[5:], name=name)
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is neither host:port (0 to 65535) nor unix:PATH, with or without NAME:// before it")
    return Listener(host, int(port), name=name)


def parse_protocol_map(texts: Iterable[str]) -> tuple[tuple[str, SecurityProtocol], ...]:
    """(listener name, security protocol) of each NAME:PROTOCOL. Raises ValueError."""
    found: dict[str, SecurityProtocol] = {}
    for text in texts:
        name, _, protocol = text.partition(":")
        if not _NAME.fullmatch(name) or protocol.upper() not in SecurityProtocol.__members__:
            raise ValueError(f"{text!r} is not NAME:PROTOCOL: protocols are {', '.join(SecurityProtocol.__members__)}")
        if name.upper() in found:
            raise ValueError(f"{name.upper()} has two protocols")
        found[name.upper()] = SecurityProtocol[protocol.upper()]
    return tuple(found.items())


def with_protocols(
    listeners: Iterable[Listener], protocols: Iterable[tuple[str, SecurityProtocol]]
) -> tuple[Listener, ...]:
    """The listeners with their security protocols. Raises UsageError for a name without one."""
    by_name = dict(protocols)
    found = []
    for listener in listeners:
        if listener.name not in by_name:
            raise UsageError(
                f"listeners = {listener}: there is no security protocol for {listener.name}: name it in "
                f"listener.security.protocol.map, such as {listener.name}:SSL"
            )
        found.append(replace(listener, security_protocol=by_name[listener.name]))
    return tuple(found)


def check_listeners(listeners: Sequence[Listener], advertised: Sequence[Listener]) -> None:
    """Raise UsageError for listeners that clients cannot connect to, or that contradict each other."""
    if not any(listener.host for listener in listeners):
        raise UsageError("listeners must contain a host:port, the address for clients")
    for listener in listeners:
        if listener.path and listener.security_protocol.encrypts:
            raise UsageError(
                f"listeners = {listener}: a unix socket has no TLS: its protocol is PLAINTEXT or SASL_PLAINTEXT"
            )
    _check_names(listeners)
    named = {listener.name for listener in listeners if listener.host}
    given: set[str] = set()
    for listener in advertised:
        if not listener.port or listener.host in WILDCARDS or listener.path:
            raise UsageError(f"advertised.listeners = {listener} is not an address that clients can connect to")
        if listener.name not in named:
            raise UsageError(
                f"advertised.listeners = {listener}: listeners have no address named {listener.name}, but "
                f"{', '.join(sorted(named))}"
            )
        if listener.name in given:
            raise UsageError(f"advertised.listeners has {listener.name} twice")
        given.add(listener.name)
    for endpoint in endpoints(listeners, advertised):
        if endpoint.host in WILDCARDS:
            address = next(listener for listener in listeners if listener.name == endpoint.listener and listener.host)
            raise UsageError(
                f"listeners = {address} is not an address that clients can connect to: set advertised.listeners"
            )


def check_mechanisms(listener: Listener, sasl: SaslConfig) -> None:
    """Raise UsageError for a listener by which clients would send passwords or tokens over a network as they are, and
    for OAUTHBEARER without keys of tokens."""
    if not listener.security_protocol.authenticates:
        return
    exposed = listener.host and not listener.security_protocol.encrypts
    for mechanism, secrets, refused in (
        ("PLAIN", "passwords", exposed),
        ("OAUTHBEARER", "tokens", exposed and not is_loopback(listener.host)),
    ):
        if refused and mechanism in sasl.mechanisms:
            raise UsageError(
                f"listeners = {listener}: clients would send their {secrets} unencrypted: take {mechanism} out of "
                f"sasl.enabled.mechanisms, or make {listener.name} a SASL_SSL listener"
            )
    if "OAUTHBEARER" in sasl.mechanisms:
        _check_jwks_url(sasl.sasl_oauthbearer_jwks_endpoint_url)


def _check_jwks_url(url: str | None) -> None:
    """Raise UsageError for a URL that others on the way could answer in the issuer's place."""
    if url is None:
        raise UsageError(
            "OAUTHBEARER in sasl.enabled.mechanisms needs sasl.oauthbearer.jwks.endpoint.url, where the public keys of "
            "the issuer of tokens are"
        )
    check_url("sasl.oauthbearer.jwks.endpoint.url", url)


def _check_names(listeners: Iterable[Listener]) -> None:
    """Raise UsageError for a name that two entries have, other than the default one, unless one is of IPv4 and the
    other of IPv6, with the same port (KIP-797)."""
    first: dict[str, Listener] = {}
    for listener in listeners:
        if listener.name == DEFAULT_LISTENER:
            continue
        other = first.setdefault(listener.name, listener)
        dual = listener.port == other.port and {_version(listener.host), _version(other.host)} == {4, 6}
        if other is not listener and not dual:
            raise UsageError(
                f"listeners = {other},{listener}: each needs a name of its own, unless one has an IPv4 and the other "
                "an IPv6 address, with the same port"
            )


def _version(host: str) -> int:
    """4 or 6 of an IP address; 0 of a name."""
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0


def endpoints(listeners: Iterable[Listener], advertised: Iterable[Listener] | None) -> tuple[Endpoint, ...]:
    """Where clients reach each listener, by name in the order of `listeners`: at the address that is advertised for the
    name, else at its own. Those of unix sockets are no addresses for clients of other hosts."""
    by_name = {listener.name: listener for listener in advertised or ()}
    found: dict[str, Endpoint] = {}
    for listener in listeners:
        if listener.host and listener.name not in found:
            at = by_name.get(listener.name, listener)
            found[listener.name] = Endpoint(listener.name, at.host, at.port, listener.security_protocol)
    return tuple(found.values())
