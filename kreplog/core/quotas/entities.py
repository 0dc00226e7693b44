"""QuotaEntity: the clients or addresses that a quota is for; and QuotaLimits: which quota holds for one of them.

The first entity of these that has a quota of the kind counts, as Kafka's ClientQuotaCallback has it (KIP-55):

    user and client id            default user and client id            client id
    user and default client id    default user and default client id    default client id
    user                          default user

Clients that one entity matches by its user, its client id or both share the quota by just these: a quota of a user is
of all its client ids together, a quota of the default client id of each id by itself.

Quotas of new connections are of IP addresses alone, or of the default address, which is each by itself (KIP-612).
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from kreplog.errors import UsageError

DEFAULT = ""
"""In place of a name: the entity is of all names of that type without an entity of their own."""

MAX_NAME_BYTES = 32_767
"""The longest name that the protocol has."""

_ROUNDING_ERROR = 1e-6
"""How far from an integer the number of bytes may be, as at Kafka."""


class QuotaKey(StrEnum):
    """The kinds of quotas: bytes by the second of produce requests and of consumers' fetch responses, CPU time of
    requests in percent of a processor, partitions created and deleted by the second; of addresses, connections accepted
    by the second."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    REQUEST_PERCENTAGE = "request_percentage"
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
    CONNECTION_CREATION_RATE = "connection_creation_rate"


OF_ADDRESSES = (QuotaKey.CONNECTION_CREATION_RATE,)
OF_CLIENTS = tuple(key for key in QuotaKey if key not in OF_ADDRESSES)
"""The kinds that an entity of each sort may have."""

_LARGEST_INTEGERS = {
    QuotaKey.PRODUCER_BYTE_RATE: 2**63 - 1,
    QuotaKey.CONSUMER_BYTE_RATE: 2**63 - 1,
    QuotaKey.CONNECTION_CREATION_RATE: 2**31 - 1,
}
"""The kinds whose values are whole numbers, with Kafka's maximum."""


class QuotaEntity(NamedTuple):
    """An entity. user, client_id, ip: a name, DEFAULT, or None where it does not matter."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __str__(self) -> str:
        parts = zip(ENTITY_TYPES, self, strict=True)
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in parts if name is not None)

    @property
    def keys(self) -> tuple[QuotaKey, ...]:
        """The kinds of quotas that it may have."""
        return OF_CLIENTS if self.ip is None else OF_ADDRESSES


USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
"""As requests name them, in the order of the fields of a QuotaEntity."""

Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""The quotas of a cluster by entity and QuotaKey."""


def check_entity(types: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity of (type, name) of a request, whose name is None for the default. Raises UsageError, with Kafka's
    messages where Kafka has the error."""
    found: dict[str, str] = {}
    for kind, name in types:
        if kind in found:
            raise UsageError(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in ENTITY_TYPES:
            raise UsageError(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise UsageError(f"Empty {kind} not supported")
        found[kind] = DEFAULT if name is None else name
    if not found:
        raise UsageError("Invalid empty client quota entity")
    if IP in found and len(found) > 1:
        raise UsageError("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    ip = found.get(IP)
    return QuotaEntity(found.get(USER), found.get(CLIENT_ID), ip if not ip else plain_address(ip))


def plain_address(text: str) -> str:
    """An IP address as connections have it: IPv6 in its shortest form, and one that stands for IPv4 as IPv4. Raises
    UsageError."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise UsageError(f"{text} is not a valid IP address, such as 192.0.2.1: quotas are not for names") from None
    return str(getattr(address, "ipv4_mapped", None) or address)


def check_quota(entity: QuotaEntity, key: str, value: float) -> float:
    """Raises UsageError for a key that the entity has not, and for a value that no client could respect or that is no
    limit."""
    if key not in entity.keys:
        raise UsageError(f"Invalid configuration key {key} of {entity}: allowed are {', '.join(entity.keys)}")
    kind = QuotaKey(key)
    if kind in _LARGEST_INTEGERS and math.isfinite(value):
        if value > _LARGEST_INTEGERS[kind] or abs(round(value) - value) > _ROUNDING_ERROR:
            raise UsageError(f"Configuration {key} must be a whole number up to {_LARGEST_INTEGERS[kind]}, not {value}")
        value = round(value)
    if not 0 < value < math.inf:
        raise UsageError(f"Quota {key} must be greater than 0, and finite, not {value}: to allow nothing, use ACLs")
    return value if kind in _LARGEST_INTEGERS else float(value)


ClientLimits = Mapping[str, tuple[QuotaEntity, float]]
"""The quotas that hold for a client by QuotaKey, each with its entity."""

MAX_CLIENTS = 10_000
MAX_NAME_CHARS = 300
"""Clients whose quotas are remembered, none with a longer client id: names come from clients."""


class QuotaLimits:
    """The quotas of a cluster, for look-ups. quotas: as they are stored."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._by_client: dict[tuple[str, str], ClientLimits] = {}

    def of_client(self, user: str, client_id: str) -> ClientLimits:
        """The quotas that hold for a client."""
        found = self._by_client.get((user, client_id))
        if found is None:
            found = {key: limit for key in OF_CLIENTS if (limit := self._find(key, user, client_id)) is not None}
            if len(self._by_client) >= MAX_CLIENTS:
                self._by_client.clear()
            if len(client_id) <= MAX_NAME_CHARS:
                self._by_client[user, client_id] = found
        return found

    def find(self, key: QuotaKey, user: str, client_id: str) -> tuple[QuotaEntity, float] | None:
        """The entity whose quota holds for a client, and the quota; None if there is none."""
        return self.of_client(user, client_id).get(key)

    def of_address(self, address: str) -> tuple[QuotaEntity, float] | None:
        """As `find`, of the connections of an IP address."""
        for entity in (QuotaEntity(ip=address), QuotaEntity(ip=DEFAULT)):
            limit = self.quotas.get(entity, _NONE).get(QuotaKey.CONNECTION_CREATION_RATE)
            if limit is not None:
                return entity, limit
        return None

    def _find(self, key: QuotaKey, user: str, client_id: str) -> tuple[QuotaEntity, float] | None:
        for entity in _precedence(user, client_id):
            limit = self.quotas.get(entity, _NONE).get(key)
            if limit is not None:
                return entity, limit
        return None


_NONE: Mapping[str, float] = {}


def _precedence(user: str, client_id: str) -> Iterator[QuotaEntity]:
    for name in (user, DEFAULT, None):
        yield QuotaEntity(name, client_id)
        yield QuotaEntity(name, DEFAULT)
        if name is not None:
            yield QuotaEntity(name)
