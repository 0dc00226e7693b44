"""Rules at the limits of a request: a step for each entry, and none for each byte that nobody has checked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from kreplog.core.messages import FetchRequest, FetchResponse, ProducePartition, ProduceRequest
from kreplog.core.replication.sessions import INITIAL_EPOCH
from kreplog.core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from kreplog.core.security.authorizer import Access, AclIndex, Authorizer, everything
from kreplog.core.security.principal import Principal
from kreplog.errors import ErrorCode
from kreplog.server.authorization import acl_cache, admin_rules, partition_rules
from kreplog.server.authorization.checks import AuthorizationCheck
from kreplog.server.authorization.fetch_sessions import MAX_CHECKED, SessionChecks
from kreplog.server.handlers.acl_handlers import AclHandlers
from kreplog.types import Node, NodeStat, TopicPartition

NAMES = 2000


class Topics:
    all: Mapping[str, Any] = MappingProxyType({})

    def name_of(self, topic_id: str) -> str | None:
        return None


def denying() -> AuthorizationCheck:
    access = Access(AclIndex(()), "User:mallory", "10.0.0.7", is_super=False, allows_without_acl=False)
    return AuthorizationCheck(access, 7, Topics(), creates_topics=False)


class CountedName(str):
    """A name that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_denied_creations_are_left_out_without_comparing_each_with_all() -> None:
    for rule in (admin_rules.create_topics, admin_rules.create_partitions):
        CountedName.compared = 0
        request = SimpleNamespace(topics=[SimpleNamespace(name=CountedName(f"t-{number}")) for number in range(NAMES)])
        assert rule(denying(), request).request is None
        assert CountedName.compared < 10 * NAMES


def test_a_page_of_topics_costs_no_walk_over_all_of_them_where_everything_is_allowed() -> None:
    """Without an authorizer, and for super users."""

    class Unlisted(Topics):
        all = property()  # unreadable: what takes the names of all topics fails

    request = SimpleNamespace(topics=[], cursor=None)
    check = AuthorizationCheck(everything(Principal("admin"), "10.0.0.7"), 0, Unlisted(), creates_topics=False)
    authorized = partition_rules.topic_partitions(check, request)
    assert authorized.request is request and request.topics == []
    page = authorized.finished({"topics": [{"name": "t"}], "next_cursor": None})
    assert page["topics"][0]["topic_authorized_operations"]


class CountedBytes(bytes):
    """Records that count how often something looks into them."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        CountedBytes.looks += 1
        return super().__getitem__(key)


def test_records_that_nobody_has_checked_are_not_looked_into() -> None:
    request = ProduceRequest(-1, 1000, (ProducePartition(TopicPartition("t", 0), CountedBytes(100_000)),))
    refused = partition_rules.produce(denying(), request).finished(None)
    assert [each.error for each in refused.partitions] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    assert not CountedBytes.looks


def acls_of(*principals: str, name: str = "t", permission: Permission = Permission.ALLOW) -> list[AclBinding]:
    kind = ResourceType.TOPIC, PatternType.PREFIXED
    return [AclBinding(*kind, name, principal, "*", Operation.WRITE, permission) for principal in principals]


class HashedName(str):
    """A name that counts how often it is looked up."""

    hashed = 0

    def __hash__(self) -> int:
        HashedName.hashed += 1
        return str.__hash__(self)


def test_rights_on_any_topic_cost_no_step_for_the_acls_of_others() -> None:
    others = [acl for number in range(NAMES) for acl in acls_of(f"User:{number}", name=f"t-{number}")]
    index = AclIndex([*others, *acls_of("User:alice")])
    HashedName.hashed = 0
    assert [entry.acl.principal for entry in index.entries(ResourceType.TOPIC, [HashedName("User:alice")])] == [
        "User:alice"
    ]
    assert HashedName.hashed < 10


class SlicedName(str):
    """A name that counts how often a part of it is taken."""

    sliced = 0

    def __getitem__(self, key: Any) -> str:
        SlicedName.sliced += 1
        return str.__getitem__(self, key)


def test_rights_on_any_topic_cost_no_step_for_each_character_of_a_name() -> None:
    allowed = [acl._replace(name=SlicedName("long" * 2000)) for acl in acls_of("User:alice")]
    index = AclIndex([*allowed, *acls_of("User:alice", name="other", permission=Permission.DENY)])
    access = Access(index, "User:alice", "10.0.0.7", is_super=False, allows_without_acl=False)
    SlicedName.sliced = 0
    assert access.allows_on_any(Operation.WRITE, ResourceType.TOPIC)
    assert SlicedName.sliced < 10


def test_thousands_of_fetch_sessions_are_not_walked_for_each_new_one() -> None:
    looked_up: list[int] = []

    def partitions_of(session_id: int) -> tuple[()]:
        looked_up.append(session_id)
        return ()

    checks = SessionChecks(partitions_of)
    request = FetchRequest(-1, -1, 0, 0, 1 << 20, (), session_epoch=INITIAL_EPOCH)
    for session_id in range(1, 4 * MAX_CHECKED):
        checks.answered(denying(), request, FetchResponse(ErrorCode.NONE, session_id, ()))
    assert len(looked_up) < 4 * MAX_CHECKED
    checks = SessionChecks(lambda session_id: None if session_id % 2 else ())
    for session_id in range(1, 4 * MAX_CHECKED):
        checks.answered(denying(), request, FetchResponse(ErrorCode.NONE, session_id, ()))
    assert len(checks._checked) <= 4 * MAX_CHECKED


def test_acls_that_this_broker_has_written_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads them after its own write, and as the watch fires."""
    decoded: list[object] = []

    def decode(node: Node | None) -> list[AclBinding]:
        decoded.append(node)
        return []

    monkeypatch.setattr(acl_cache, "decode", decode)
    node = Node(b"first", NodeStat(0, 0, 0, 0, 0))

    async def get_nodes(paths: object, on_watch: object) -> list[Node]:
        return [node]

    async def work() -> None:
        nonlocal node
        store: Any = SimpleNamespace(get_nodes=get_nodes)
        cache = acl_cache.AclCache(store, Authorizer())
        for content in (b"first", b"first", b"second", b"second"):
            node = Node(content, NodeStat(0, 0, 0, 0, 0))
            await cache.refresh()
        assert len(decoded) == 2

    asyncio.run(work())


def test_acls_are_described_outside_of_the_event_loop() -> None:
    threads: list[int] = []

    class Read(Authorizer):
        @property
        def acls(self) -> tuple[AclBinding, ...]:
            threads.append(threading.get_ident())
            return ()

    store: Any = None
    request = SimpleNamespace(
        **dict.fromkeys(("resource_type_filter", "pattern_type_filter", "operation", "permission_type"), 1),
        **dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter")),
    )
    found = asyncio.run(AclHandlers(store, Read(), None).describe(request))
    assert found == {"error_code": 0, "error_message": None, "resources": []}
    assert threads and threading.get_ident() not in threads
