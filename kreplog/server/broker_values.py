"""Types of the settings that brokers alone have: listeners, addresses, limits of hosts."""

from __future__ import annotations

from typing import Any

from kreplog.core.security.acls import super_users
from kreplog.core.setting_values import ConfigType, ValueType, integer, texts
from kreplog.errors import UsageError
from kreplog.server.listeners import Listener, parse_listener, parse_protocol_map
from kreplog.types import DEFAULT_LISTENER, SecurityProtocol


def _replication_factor(value: Any) -> int:
    factor: int = integer(-1, 32767).parse(value)
    if factor == 0:
        raise ValueError("must be an integer from 1 to 32767, or -1")
    return factor


def some_of(*allowed: str) -> ValueType:
    """A list of some of the texts."""

    def parse(value: Any) -> tuple[str, ...]:
        found = texts(value)
        if unknown := set(found).difference(allowed):
            raise ValueError(f"{min(unknown)} is not one of {', '.join(allowed)}")
        return found

    return ValueType(ConfigType.LIST, ", ".join(allowed), parse)


def _super_users(value: Any) -> str:
    text = ";".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    try:
        return ";".join(super_users(text))
    except UsageError as error:
        raise ValueError(str(error)) from error


def _listeners(value: Any) -> tuple[Listener, ...]:
    return tuple(parse_listener(text) for text in texts(value))


def _protocol_map(value: Any) -> tuple[tuple[str, SecurityProtocol], ...]:
    return parse_protocol_map(texts(value))


def _overrides(value: Any) -> tuple[tuple[str, int], ...]:
    found = [text.rpartition(":") for text in texts(value)]
    return tuple((host.removeprefix("[").removesuffix("]"), _LIMIT.parse(limit)) for host, _, limit in found)


_LIMIT = integer(0, 2**31 - 1)


def _address(value: Any) -> Listener:
    """host:port."""
    listener = parse_listener(value) if isinstance(value, str) else Listener()
    if not listener.host or listener.name != DEFAULT_LISTENER:
        raise ValueError("must be host:port")
    return listener


def _internal(value: Any) -> Listener:
    """host:port or unix:PATH."""
    if not isinstance(value, str):
        raise ValueError("must be host:port or unix:PATH")
    listener = parse_listener(value)
    if listener.name != DEFAULT_LISTENER:
        raise ValueError("must be host:port or unix:PATH")
    return listener


def _coordination(value: Any) -> str:
    kind, colon, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind not in ("embedded", "zookeeper") or not colon or not rest:
        raise ValueError("must be embedded:DIRECTORY or zookeeper:HOST:PORT,HOST:PORT[/ROOT]")
    return str(value)


LISTENERS = ValueType(ConfigType.LIST, "[NAME://]host:port (port 0 to 65535) or [NAME://]unix:PATH", _listeners)
ADVERTISED_LISTENERS = ValueType(ConfigType.LIST, "[NAME://]host:port", _listeners)
PROTOCOL_MAP = ValueType(ConfigType.LIST, f"NAME:PROTOCOL, of {', '.join(SecurityProtocol.__members__)}", _protocol_map)
ADDRESS = ValueType(ConfigType.STRING, "host:port", _address)
INTERNAL = ValueType(ConfigType.STRING, "host:port or unix:PATH", _internal)
COORDINATION = ValueType(ConfigType.STRING, "embedded:DIRECTORY or zookeeper:HOST:PORT,HOST:PORT[/ROOT]", _coordination)
SUPER_USERS = ValueType(ConfigType.STRING, "User:NAME, separated by semicolons", _super_users)
OVERRIDES = ValueType(ConfigType.STRING, "HOST:NUMBER", _overrides)
REPLICATION_FACTOR = ValueType(ConfigType.INT, "1 to 32767, or -1", _replication_factor)
