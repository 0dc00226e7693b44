"""The table of authorization at a broker: every API, by the kinds of principals and patterns that ACLs have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core.security.acls import EVERY_USER, AclBinding, PatternType, Permission, ResourceType
from kreplog.errors import ErrorCode
from kreplog.server.authorization.authorization_table import ADMINISTRATIVE, RULES
from kreplog.server.broker import Broker
from kreplog.wire.versions import TO_CLIENTS, ApiKey
from tests.reference import sent
from tests.server.authorization.cases import (
    AUTHORIZATION,
    DOOMED,
    GROUP,
    NEW_TOPIC,
    TOPIC,
    TRANSACTION,
    Case,
    Need,
    cases,
)
from tests.server.authorization.clients import ADMIN, Client, authorizing, set_acls
from tests.server.brokers import eventually, unlimited

CASES = cases(sent(1000, 0, b"value", transactional=False), sent(1001, 0, b"value"))


def test_every_api_that_clients_are_offered_has_a_row_and_a_case() -> None:
    offered = set(TO_CLIENTS)
    assert set(RULES) >= offered
    assert {case.key for case in CASES} == offered
    assert set(ADMINISTRATIVE) <= offered


def acls_of(needs: Sequence[Need], **changes: Any) -> list[AclBinding]:
    return [
        AclBinding(
            need.kind, PatternType.LITERAL, need.name, "User:alice", "*", need.operation, Permission.ALLOW
        )._replace(**changes)
        for need in needs
    ]


def of_named(acls: Sequence[AclBinding], **changes: Any) -> list[AclBinding]:
    """The ACLs with changes in those of resources that have names of their own."""
    return [acl if acl.resource_type is ResourceType.CLUSTER else acl._replace(**changes) for acl in acls]


def prefixed(acls: Sequence[AclBinding]) -> list[AclBinding]:
    return of_named(acls, pattern_type=PatternType.PREFIXED, name="acl-")


def wildcard(acls: Sequence[AclBinding]) -> list[AclBinding]:
    return of_named(acls, name="*")


def of_everybody(acls: Sequence[AclBinding]) -> list[AclBinding]:
    return [acl._replace(principal=EVERY_USER) for acl in acls]


def at_host(acls: Sequence[AclBinding]) -> list[AclBinding]:
    return [acl._replace(host="127.0.0.1") for acl in acls]


SUFFICIENT: Sequence[Callable[[Sequence[AclBinding]], list[AclBinding]]] = (
    list,
    prefixed,
    wildcard,
    of_everybody,
    at_host,
)
"""Other ACLs that allow the same."""


def insufficient(acls: Sequence[AclBinding]) -> Iterator[list[AclBinding]]:
    """ACLs that look alike, and allow nothing."""
    yield [acl._replace(principal="User:bob") for acl in acls]
    yield [acl._replace(principal="User:Alice") for acl in acls]
    yield [acl._replace(host="127.0.0.2") for acl in acls]
    named = [acl for acl in acls if acl.resource_type is not ResourceType.CLUSTER]
    yield [acl._replace(name=acl.name.upper()) for acl in named]
    yield [acl._replace(name="acl-*") for acl in named]
    yield [acl._replace(name="acl-") for acl in named]
    yield [acl._replace(name=acl.name + "-", pattern_type=PatternType.PREFIXED) for acl in named]
    yield [*acls, *(acl._replace(permission=Permission.DENY) for acl in acls)]
    yield [*acls, *(acl._replace(permission=Permission.DENY, principal=EVERY_USER) for acl in prefixed(acls))]
    yield [*acls, *(acl._replace(permission=Permission.DENY) for acl in wildcard(acls))]


class World:
    """One broker, its super user, and a user."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.admin = Client(broker, ADMIN)
        self.alice = Client(broker, "alice")

    async def create(self, name: str) -> None:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        await self.admin.call(ApiKey.CREATE_TOPICS, topics=[topic], timeout_ms=10_000, validate_only=False)

    async def await_coordinators(self) -> None:
        """Until the broker coordinates the group and the transactional id of the cases."""
        for key_type, key in enumerate((GROUP, TRANSACTION)):
            await self.admin.call(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=[key])
        group = {"group_id": GROUP, "topics": None, "member_id": None, "member_epoch": -1}

        async def coordinates() -> bool:
            found = await self.admin.call(ApiKey.OFFSET_FETCH, groups=[group], require_stable=False)
            listed = await self.admin.call(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=[TRANSACTION])
            (state,) = listed.transaction_states
            return not found.groups[0].error_code and state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

        await eventually(coordinates)

    async def errors(self, case: Case, client: Client) -> set[ErrorCode]:
        if case.key is ApiKey.DELETE_TOPICS:
            await self.create(DOOMED)
        header = case.header(1, client.user)
        return case.errors(await client.frame(case.request(header)), header)

    async def denied(self, case: Case, acls: Sequence[AclBinding]) -> set[ErrorCode]:
        """The errors of authorization that alice gets with these ACLs."""
        await set_acls(self.admin, *acls)
        found = await self.errors(case, self.alice)
        print(case.label, found)
        return found & AUTHORIZATION

    async def delete_new_topic(self) -> None:
        await self.admin.call(ApiKey.DELETE_TOPICS, topics=[{"name": NEW_TOPIC, "topic_id": None}], timeout_ms=10_000)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def world(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory: Path = tmp_path_factory.mktemp("authorizing")
    stop, ready, made = asyncio.Event(), asyncio.Event(), []

    async def serve() -> None:
        async with authorizing(directory, 0, run=unlimited) as (broker,):
            made.append(World(broker))
            await made[0].create(TOPIC)
            await made[0].await_coordinators()
            ready.set()
            await stop.wait()

    async def start() -> asyncio.Task[None]:
        task = asyncio.ensure_future(serve())
        waiting = asyncio.ensure_future(ready.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        return task

    task = runner.run(start())
    yield made[0]
    stop.set()
    runner.run(asyncio.wait_for(task, 60))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_request_needs_its_acls(case: Case, world: World, runner: asyncio.Runner) -> None:
    async def check() -> None:
        await world.delete_new_topic()
        first = {case.needs[0].error} if case.needs else set()
        assert await world.denied(case, []) == first
        for missing in case.needs:
            left = [need for need in case.needs if need is not missing]
            assert await world.denied(case, acls_of(left)) == {missing.error}, missing
        if case.needs:
            for acls in insufficient(acls_of(case.needs)):
                assert await world.denied(case, acls), acls
        for needs in (case.needs, *case.alternatives):
            for variant in SUFFICIENT:
                assert not await world.denied(case, variant(acls_of(needs))), variant
        await set_acls(world.admin)
        assert not await world.errors(case, world.admin) & AUTHORIZATION

    runner.run(check())
