"""Rules at the limits of a request: a step for each entry, and none for each byte that nobody has checked."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

from kreplog.core.messages import ProducePartition, ProduceRequest
from kreplog.core.security.authorizer import Access, AclIndex, everything
from kreplog.core.security.principal import Principal
from kreplog.errors import ErrorCode
from kreplog.server.authorization import admin_rules, partition_rules
from kreplog.server.authorization.checks import AuthorizationCheck
from kreplog.types import TopicPartition

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
