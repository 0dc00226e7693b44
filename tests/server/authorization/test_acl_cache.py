"""The ACLs in the store and in brokers: changes that others make, a store that is away, and content that is damaged."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.coord.base import Session
from kreplog.coord.embedded import EmbeddedStore
from kreplog.core import nodes
from kreplog.core.effects import Multi
from kreplog.core.security import acl_requests
from kreplog.core.security.acl_requests import encode
from kreplog.core.security.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceType
from kreplog.errors import CoordinationError, ErrorCode
from kreplog.server.authorization import acl_cache
from kreplog.server.handlers import api
from kreplog.server.monitoring.health import readiness
from kreplog.server.runtime import whole_node_cache
from kreplog.types import Node, NodeStat, SetData
from kreplog.wire.versions import ApiKey
from tests.server.authorization.clients import (
    ADMIN,
    ANY_FILTER,
    Client,
    allow,
    authorizing,
    creations,
    set_acls,
    users_by_client_id,
)
from tests.server.brokers import eventually

MINE = allow("alice", Operation.DESCRIBE, "mine")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    store = EmbeddedStore(str(tmp_path / "store"))
    yield store.connect(10_000)
    store.close()


async def sees(client: Client, name: str = "mine") -> bool:
    """Whether the client may describe the topic, which does not exist."""
    topics = [{"topic_id": None, "name": name}]
    answered = await client.call(ApiKey.METADATA, topics=topics, allow_auto_topic_creation=False)
    return bool(answered.topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def until(client: Client, seen: bool, name: str = "mine") -> None:
    async def holds() -> bool:
        return await sees(client, name) is seen

    await asyncio.wait_for(eventually(holds), 30)


def test_a_change_is_seen_by_every_broker(tmp_path: Path, session: Session) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0, 1) as brokers:
            admin = Client(brokers[0], ADMIN)
            clients = [Client(broker, "alice") for broker in brokers]
            await set_acls(admin, MINE)
            assert await sees(clients[0])  # at once where it was written
            await until(clients[1], True)
            session.set_data(nodes.ACLS, encode([]))  # as a tool without a broker does
            for client in clients:
                await until(client, False)
            session.set_data(nodes.ACLS, encode([MINE]))
            for client in clients:
                await until(client, True)

    asyncio.run(scenario())


def test_brokers_write_at_once_and_lose_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0, 1) as brokers:
            admins = [Client(broker, ADMIN) for broker in (*brokers, *brokers)]

            async def write(number: int) -> None:
                for at in range(5):
                    acls = creations([allow("alice", Operation.READ, f"t-{number}-{at}")])
                    created = await admins[number].call(ApiKey.CREATE_ACLS, creations=acls)
                    assert not created.results[0].error_code, created

            await asyncio.gather(*(write(number) for number in range(4)))
            written = {f"t-{number}-{at}" for number in range(4) for at in range(5)}

            async def has_all() -> bool:  # the last is another broker's, of which the watch may not have fired yet
                described = await admins[0].call(ApiKey.DESCRIBE_ACLS, **ANY_FILTER)
                return {resource.resource_name for resource in described.resources} == written

            await eventually(has_all)

    asyncio.run(scenario())


def test_acls_stay_in_effect_without_the_store_and_are_read_in_the_next_session(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            alice = Client(broker, "alice")
            await set_acls(Client(broker, ADMIN), MINE)
            connects = broker.store._store.connect
            away = asyncio.Event()

            def connect(*arguments: Any) -> Any:
                if not away.is_set():
                    raise CoordinationError("the store is away")
                return connects(*arguments)

            monkeypatch.setattr(broker.store._store, "connect", connect)
            broker.store.abandon()

            async def is_away() -> bool:
                return not broker.store.connected

            await eventually(is_away)
            other = allow("alice", Operation.DESCRIBE, "other")
            session.set_data(nodes.ACLS, encode([other]))
            assert await sees(alice)
            assert not await sees(alice, "other")
            away.set()
            await until(alice, True, "other")
            await until(alice, False)

    asyncio.run(scenario())


def test_a_broker_that_cannot_read_the_acls_serves_nobody(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api, "ACLS_WAIT_S", 0.1)
    monkeypatch.setattr(whole_node_cache, "RETRY_S", 0.01)
    session.create(nodes.ACLS, b"damaged")

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            for user in (ADMIN, "alice"):
                with pytest.raises(asyncio.IncompleteReadError):
                    await sees(Client(broker, user))
            assert readiness(broker) == (False, "not ready: it has not read the ACLs, without which it refuses clients")
            free: dict[str, Any] = {"client_software_name": "t", "client_software_version": "1"}
            assert not (await Client(broker, ADMIN).call(ApiKey.API_VERSIONS, **free)).error_code
            alice = Client(broker, "alice")
            monkeypatch.setattr(api, "ACLS_WAIT_S", 60.0)
            waiting = asyncio.ensure_future(sees(alice))
            session.set_data(nodes.ACLS, encode([MINE]))
            assert await waiting
            assert readiness(broker) == (True, "ready")

    with caplog.at_level(logging.ERROR, "kreplog.server"):
        asyncio.run(scenario())
    refusals = [record for record in caplog.records if "refuses its clients" in record.getMessage()]
    assert len(refusals) == 1  # once, however often it is repeated


@pytest.mark.parametrize(
    ("settings", "acls", "warnings"),
    [
        ({"super_users": ""}, [], 1),
        ({"super_users": ""}, [MINE], 0),
        ({"super_users": "", "allow_everyone_if_no_acl_found": True}, [], 0),
        ({}, [], 0),
    ],
)
def test_a_broker_warns_where_nobody_may_do_anything(
    tmp_path: Path,
    session: Session,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    acls: list[AclBinding],
    warnings: int,
) -> None:
    session.create(nodes.ACLS, encode(acls))

    async def scenario() -> None:
        async with authorizing(tmp_path, 0, **settings) as (broker,):
            assert broker.acl_cache is not None
            assert await broker.acl_cache.until_ready(60)

    with caplog.at_level(logging.WARNING, "kreplog.server"):
        asyncio.run(scenario())
    assert sum("acl add --offline" in record.getMessage() for record in caplog.records) == warnings


def test_acls_that_become_unreadable_change_nothing(tmp_path: Path, session: Session) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await set_acls(admin, MINE)
            session.set_data(nodes.ACLS, b'{"TOPIC":{"LITERAL":{"mine":[["User:alice","*","DESCRIBE","MAYBE"]]}}}')
            created = await admin.call(ApiKey.CREATE_ACLS, creations=creations([MINE]))
            assert created.results[0].error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "/acls" in created.results[0].error_message
            assert await sees(alice)
            assert not await sees(alice, "other")
            session.set_data(nodes.ACLS, encode([]))
            await until(alice, False)

    asyncio.run(scenario())


def invalid(**changes: Any) -> list[dict[str, Any]]:
    return [{**creations([MINE])[0], **changes}]


@pytest.mark.parametrize(
    "creation",
    [
        *invalid(resource_name=""),
        *invalid(resource_type=1),
        *invalid(resource_type=99),
        *invalid(resource_type=4),  # the cluster has another name
        *invalid(resource_pattern_type=2),
        *invalid(operation=0),
        *invalid(operation=1),
        *invalid(permission_type=1),
        *invalid(principal="alice"),
    ],
)
def test_an_invalid_acl_is_refused_and_the_others_are_created(creation: dict[str, Any], tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin = Client(broker, ADMIN)
            created = await admin.call(ApiKey.CREATE_ACLS, creations=[creation, *creations([MINE])])
            assert [result.error_code for result in created.results] == [ErrorCode.INVALID_REQUEST, 0]
            assert created.results[0].error_message
            assert await sees(Client(broker, "alice"))

    asyncio.run(scenario())


def test_acls_are_described_and_deleted_by_filters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin = Client(broker, ADMIN)
            others: list[AclBinding] = [allow("bob", Operation.READ, "*"), allow("alice", Operation.ALL, "min")]
            await set_acls(admin, MINE, *others)
            match = {**ANY_FILTER, "resource_name_filter": "mine", "pattern_type_filter": 2}
            described = await admin.call(ApiKey.DESCRIBE_ACLS, **match)
            assert {resource.resource_name for resource in described.resources} == {"mine", "*"}
            wrong = {**ANY_FILTER, "resource_type_filter": 0}
            deleted = await admin.call(ApiKey.DELETE_ACLS, filters=[match, wrong, match])
            first, refused, again = deleted.filter_results
            assert {acl.resource_name for acl in first.matching_acls} == {"mine", "*"}
            assert refused.error_code == ErrorCode.INVALID_REQUEST
            assert len(again.matching_acls) == 2
            left = await admin.call(ApiKey.DESCRIBE_ACLS, **ANY_FILTER)
            assert [resource.resource_name for resource in left.resources] == ["min"]

    asyncio.run(scenario())


def test_many_acls_are_read_and_changed_outside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """18,000 take more than half a second to decode, and as long to encode."""
    on_loop: list[bool] = []

    def seen(call: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            on_loop.append(threading.current_thread() is threading.main_thread())
            return call(*arguments)

        return wrapped

    for module in (acl_cache, acl_requests):
        monkeypatch.setattr(module, "decode", seen(acl_requests.decode))
    monkeypatch.setattr(acl_requests, "encode", seen(acl_requests.encode))

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            await set_acls(Client(broker, ADMIN), MINE)

    asyncio.run(scenario())
    assert len(on_loop) > 2
    assert not any(on_loop)


def test_filters_of_one_name_are_compared_with_the_acls_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    matches = AclFilter.matches

    def counted(self: AclFilter, acl: AclBinding) -> bool:
        nonlocal compared
        compared += 1
        return matches(self, acl)

    monkeypatch.setattr(AclFilter, "matches", counted)
    acls = [allow("alice", Operation.READ, f"t-{number}") for number in range(300)]
    filters = [
        AclFilter(ResourceType.TOPIC, pattern, acl.name, None, None, Operation.ANY, Permission.ANY)
        for acl in acls
        for pattern in (PatternType.LITERAL, PatternType.ANY)
    ]
    steps = acl_requests.delete_acls(filters)
    next(steps)
    stat = NodeStat(3, 1, 2, 0, 0)
    written = steps.send([Node(encode(acls), stat)])
    assert written == Multi((SetData(nodes.ACLS, encode([]), 3),))
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    assert end.value.value == [[acl] for acl in acls for _ in range(2)]
    assert compared == len(filters)


def test_brokers_of_the_cluster_need_no_acl(tmp_path: Path) -> None:
    """Replicas follow and the controller controls over the internal listener, as nobody."""

    async def scenario() -> None:
        async with authorizing(tmp_path, 0, 1) as brokers:
            admin = Client(brokers[0], ADMIN)
            request: dict[str, Any] = {"num_partitions": 4, "replication_factor": 2, "assignments": [], "configs": []}
            created = await admin.call(
                ApiKey.CREATE_TOPICS, topics=[{"name": "t", **request}], timeout_ms=20_000, validate_only=False
            )
            assert not created.topics[0].error_code

            async def in_sync() -> bool:
                view = brokers[0].topics.get("t")
                return view is not None and all(len(each.state.isr) == 2 for each in view.partitions.values())

            await eventually(in_sync)

    asyncio.run(scenario())


def test_a_client_cannot_choose_its_principal(tmp_path: Path) -> None:
    """Without the tests' own way to give one, everybody is User:ANONYMOUS."""

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            await set_acls(Client(broker, ADMIN), MINE)
            plain = broker.api.handle
            broker.server.handle = plain
            assert not await sees(Client(broker, ADMIN))
            users_by_client_id(broker)
            assert await sees(Client(broker, "alice"))

    asyncio.run(scenario())
