"""Clients of brokers with an authorizer, each of a principal of its own, without a listener that authenticates.

A test's broker takes the client id of a request for its user: of `alice` the principal is User:alice. Only here: a
broker takes the principal from its listener alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from kreplog.core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from kreplog.core.security.principal import ANONYMOUS, Principal
from kreplog.server.broker import Broker
from kreplog.server.network.connections import Frame
from kreplog.server.network.serving import RequestContext
from kreplog.server.settings import STANDARD_AUTHORIZER
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import TO_CLIENTS, ApiKey
from tests.server.brokers import serving, until_controlled

ADMIN = "admin"
"""The super user."""

_SMALL = {
    f"{topic}_{setting}": 1
    for topic, settings in {
        "offsets_topic": ("num_partitions", "replication_factor"),
        "transaction_state_log": ("num_partitions", "replication_factor", "min_isr"),
    }.items()
    for setting in settings
}
"""Internal topics of one partition, on one broker."""

_ids = itertools.count(1)


def users_by_client_id(broker: Broker) -> None:
    handle = broker.server.handle

    def as_user(context: RequestContext, frame: Frame) -> None:
        name = context.header.client_id
        context.client.principal = Principal(name) if name else ANONYMOUS
        handle(context, frame)

    broker.server.handle = as_user


@contextlib.asynccontextmanager
async def authorizing(root: Path, *brokers: int, run: Any = serving, **settings: Any) -> AsyncIterator[list[Broker]]:
    """Brokers with an authorizer, whose super user is User:admin. run: starts and stops them."""
    own = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": f"User:{ADMIN}", **_SMALL}
    async with run(root, *brokers, **(own | settings)) as made:
        for broker in made:
            users_by_client_id(broker)
            await until_controlled(broker)
        yield made


class Client:
    """A connection of one user, which sends one request after the other."""

    def __init__(self, broker: Broker, user: str) -> None:
        self._broker = broker
        self.user = user
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def frame(self, frame: bytes) -> bytes:
        """The response to a whole frame. Raises asyncio.IncompleteReadError if the broker closes the connection."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._broker.address)
        reader, writer = self._streams
        writer.write(frame)
        size = int.from_bytes(await reader.readexactly(4))
        return await reader.readexactly(size)

    def header(self, key: int, version: int | None = None) -> RequestHeader:
        return RequestHeader(key, TO_CLIENTS[key][1] if version is None else version, next(_ids), self.user)

    async def call(self, key: int, version: int | None = None, **fields: Any) -> Any:
        """The response to a request, in the newest version unless another is given."""
        header = self.header(key, version)
        frame = await self.frame(b"".join(bytes(part) for part in generic.encode_request(header, **fields)))
        return generic.decode_response(frame, header)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def allow(
    user: str,
    operation: Operation,
    name: str,
    kind: ResourceType = ResourceType.TOPIC,
    *,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    host: str = "*",
) -> AclBinding:
    return AclBinding(kind, pattern, name, f"User:{user}", host, operation, permission)


def deny(user: str, operation: Operation, name: str, kind: ResourceType = ResourceType.TOPIC) -> AclBinding:
    return allow(user, operation, name, kind, permission=Permission.DENY)


def creations(acls: list[AclBinding]) -> list[dict[str, Any]]:
    """As CreateAcls has them."""
    return [
        {
            "resource_type": int(acl.resource_type),
            "resource_pattern_type": int(acl.pattern_type),
            "resource_name": acl.name,
            "principal": acl.principal,
            "host": acl.host,
            "operation": int(acl.operation),
            "permission_type": int(acl.permission),
        }
        for acl in acls
    ]


ANY_FILTER: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
"""A filter of DeleteAcls and DescribeAcls for all ACLs."""


async def set_acls(admin: Client, *acls: AclBinding) -> None:
    """Replace all ACLs of the cluster by these."""
    deleted = await admin.call(ApiKey.DELETE_ACLS, filters=[ANY_FILTER])
    assert not deleted.filter_results[0].error_code
    created = await admin.call(ApiKey.CREATE_ACLS, creations=creations(list(acls)))
    assert all(not result.error_code for result in created.results), created
