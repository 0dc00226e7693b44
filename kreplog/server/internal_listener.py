"""The listener for other brokers, by Kafka's settings or this project's own, and what they leave to clients.

Brokers speak to each other over a listener of their own, where each proves the cluster's key. By default that is a unix
socket; `inter.broker.listener` has another address; or it is the listener of `listeners` that
`inter.broker.listener.name` names, or security.inter.broker.protocol by its protocol, as at Kafka. Clients have the
others.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from kreplog.errors import UsageError
from kreplog.server.listeners import Listener
from kreplog.types import SecurityProtocol, is_loopback

LISTENER_NAME = "inter.broker.listener.name"
SECURITY_PROTOCOL = "security.inter.broker.protocol"
_OWN_NAMES = ("inter.broker.listener", "inter.broker.security.protocol")
_HOW = (
    "listeners = ...,INTERNAL://HOST:PORT, listener.security.protocol.map = ...,INTERNAL:SSL (or PLAINTEXT), "
    "inter.broker.listener.name = INTERNAL, inter.broker.key.file = PATH"
)


class Listeners(NamedTuple):
    """The listeners of a broker. internal: that for other brokers. name: of that, None if it is not in `listeners`.
    advertised_internal: the address by which other brokers reach it, None for its own. clients, advertised: the
    listeners for clients, and their advertised addresses."""

    internal: Listener
    name: str | None
    advertised_internal: Listener | None
    clients: tuple[Listener, ...]
    advertised: tuple[Listener, ...]


def separate(values: Mapping[str, Any], given: Collection[str]) -> Listeners:
    """The listeners for brokers and for clients. values: the settings by name. given: names of those that
    have been set.

    Raises UsageError, which says what to write instead."""
    name = _internal_name(values, given)
    listeners, advertised = values["listeners"], values["advertised.listeners"]
    if name is None:
        own = values["inter.broker.listener"] or _internal_socket(values)
        protocol = SecurityProtocol[values["inter.broker.security.protocol"]]
        return Listeners(replace(own, security_protocol=protocol), None, None, listeners, advertised)
    named = [listener for listener in listeners if listener.name == name]
    clients = tuple(listener for listener in listeners if listener.name != name)
    if len(named) != 1:
        has = ", ".join(sorted({listener.name for listener in listeners}))
        raise UsageError(
            f"{LISTENER_NAME} = {name}: {len(named)} of listeners have that name, not one: there are {has}"
        )
    (internal,) = named
    if internal.security_protocol.authenticates:
        possible = "SSL" if internal.security_protocol.encrypts else "PLAINTEXT"
        raise UsageError(
            f"{LISTENER_NAME} = {name}: brokers authenticate each other by the cluster's key (inter.broker.key.file), "
            f"not by {internal.security_protocol.name}: write {name}:{possible} in listener.security.protocol.map, and "
            "give clients a listener of another name"
        )
    if not any(listener.host for listener in clients):
        raise UsageError(
            f"{LISTENER_NAME} = {name} is the only address of listeners, and is for brokers alone: give clients a "
            f"listener of another name, or brokers one: {_HOW}"
        )
    return Listeners(
        internal,
        name,
        next((listener for listener in advertised if listener.name == name), None),
        clients,
        tuple(listener for listener in advertised if listener.name != name),
    )


def _internal_name(values: Mapping[str, Any], given: Collection[str]) -> str | None:
    """The name of the listener of `listeners` that is for brokers. Raises UsageError for settings that contradict."""
    ways = [name for name in (LISTENER_NAME, SECURITY_PROTOCOL) if name in given]
    others = [name for name in _OWN_NAMES if name in given]
    if len(ways) > 1 or (ways and others):
        first, second, *_ = [*ways, *others]
        raise UsageError(f"only one of {first} and {second} can be set: both say where brokers reach this one")
    if not ways:
        return None
    return str(values[ways[0]]).upper()


def _internal_socket(values: Mapping[str, Any]) -> Listener:
    """The default internal listener, for brokers of one host. Raises UsageError if the cluster may span hosts."""
    remote = any(listener.host and not is_loopback(listener.host) for listener in values["listeners"])
    if remote and values["coordination"].startswith("zookeeper:"):
        raise UsageError(
            "brokers on other hosts cannot reach this one: set inter.broker.listener to host:port (and "
            "inter.broker.key.file), or to unix:PATH if all brokers of the cluster are on this host"
        )
    return Listener(path=os.path.join(os.path.abspath(values["log.dirs"][0]) + ".internal", "broker.sock"))
