"""Decisions by ACLs: Kafka's rules one by one, and a model of them that looks at every ACL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog.core.security.acls import (
    CLUSTER_NAME,
    EVERY_USER,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kreplog.core.security.authorizer import AclIndex, Authorizer, everything
from kreplog.core.security.principal import ANONYMOUS, Principal
from kreplog.errors import InvariantError

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
ALICE = Principal("alice")


def acl(
    name: str,
    operation: Operation = READ,
    permission: Permission = ALLOW,
    *,
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: ResourceType = TOPIC,
) -> AclBinding:
    return AclBinding(kind, pattern, name, principal, host, operation, permission)


def allows(
    acls: Sequence[AclBinding],
    name: str,
    operation: Operation = READ,
    *,
    principal: Principal = ALICE,
    host: str = "10.0.0.1",
    kind: ResourceType = TOPIC,
    super_users: Sequence[str] = (),
    without_acl: bool = False,
) -> bool:
    authorizer = Authorizer(super_users, allows_without_acl=without_acl)
    authorizer.replace(AclIndex(acls))
    return authorizer.access(principal, host).allows(operation, kind, name)


@pytest.mark.parametrize(
    ("acls", "name", "allowed"),
    [
        ([], "orders", False),
        ([acl("orders")], "orders", True),
        ([acl("orders")], "Orders", False),  # the case of letters counts
        ([acl("orders")], "orders2", False),
        ([acl("orders", pattern=PREFIXED)], "orders2", True),
        ([acl("orders", pattern=PREFIXED)], "orders", True),
        ([acl("orders", pattern=PREFIXED)], "order", False),
        ([acl("*")], "orders", True),
        ([acl("*")], "*", True),
        ([acl("o*")], "orders", False),  # only the whole name * is a wildcard
        ([acl("o*")], "o*", True),
        ([acl("*", pattern=PREFIXED)], "orders", False),  # a prefix is never one
        ([acl("*", pattern=PREFIXED)], "*orders", True),
        ([acl("orders", permission=DENY), acl("*")], "orders", False),
        ([acl("*", permission=DENY), acl("orders")], "orders", False),
        ([acl("o", permission=DENY, pattern=PREFIXED), acl("orders", pattern=PREFIXED)], "orders", False),
        ([acl("orders", pattern=PREFIXED), acl("ord", pattern=PREFIXED, permission=DENY)], "orders-eu", False),
        ([acl("orders", permission=DENY, pattern=PREFIXED), acl("o", pattern=PREFIXED)], "o-ther", True),
        ([acl("orders", principal=EVERY_USER)], "orders", True),
        ([acl("orders", principal=EVERY_USER, permission=DENY), acl("orders")], "orders", False),
        ([acl("orders", principal="User:Alice")], "orders", False),
        ([acl("orders", principal="Group:alice")], "orders", False),
        ([acl("orders", host="10.0.0.1")], "orders", True),
        ([acl("orders", host="10.0.0.2")], "orders", False),
        ([acl("orders", host="10.0.0.2", permission=DENY), acl("orders")], "orders", True),
        ([acl("orders", kind=GROUP)], "orders", False),
        ([acl("orders", Operation.ALL)], "orders", True),
        ([acl("orders", Operation.ALL, DENY), acl("orders")], "orders", False),
    ],
)
def test_an_acl_is_for_the_resources_its_pattern_matches(acls: list[AclBinding], name: str, allowed: bool) -> None:
    assert allows(acls, name) is allowed


@pytest.mark.parametrize("given_operation", [READ, WRITE, Operation.DELETE, Operation.ALTER])
def test_to_allow_an_operation_allows_to_describe_and_to_deny_it_does_not_deny_that(given_operation: Operation) -> None:
    assert allows([acl("t", given_operation)], "t", DESCRIBE)
    assert not allows([acl("t", given_operation)], "t", Operation.DESCRIBE_CONFIGS)
    assert allows([acl("t", given_operation, DENY), acl("t", Operation.ALL)], "t", DESCRIBE)


def test_to_allow_altered_settings_allows_to_describe_them() -> None:
    assert allows([acl("t", Operation.ALTER_CONFIGS)], "t", Operation.DESCRIBE_CONFIGS)
    assert not allows([acl("t", Operation.ALTER_CONFIGS)], "t", DESCRIBE)
    assert not allows([acl("t", Operation.CREATE)], "t", DESCRIBE)


def test_super_users_may_do_everything() -> None:
    denied = [acl("*", Operation.ALL, DENY)]
    assert allows(denied, "t", super_users=("User:alice",))
    assert not allows(denied, "t", super_users=("User:Alice", "User:*"))


def test_a_resource_without_any_acl_may_be_open_to_everybody() -> None:
    others = [acl("t", principal="User:bob")]
    assert allows([], "t", without_acl=True)
    assert not allows(others, "t", without_acl=True)
    assert not allows([acl("*", principal="User:bob")], "t", without_acl=True)
    assert not allows([acl("t", principal="User:bob", pattern=PREFIXED)], "table", without_acl=True)
    assert allows(others, "u", without_acl=True)


@pytest.mark.parametrize(
    ("host", "written"),
    [("::1", "0:0:0:0:0:0:0:1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:DB8::1", "2001:db8:0::1")],
)
def test_addresses_are_compared_and_not_their_texts(host: str, written: str) -> None:
    assert allows([acl("t", host=written)], "t", host=host)
    assert not allows([acl("t", host=written, permission=DENY), acl("t")], "t", host=host)


def test_decisions_end_with_their_acls() -> None:
    authorizer = Authorizer()
    assert not authorizer.is_ready
    authorizer.replace(AclIndex([acl("t")]))
    before = authorizer.access(ALICE, "10.0.0.1")
    assert authorizer.access(ALICE, "10.0.0.1") is before
    assert before.allows(READ, TOPIC, "t")
    authorizer.replace(AclIndex([]))
    after = authorizer.access(ALICE, "10.0.0.1")
    assert after is not before
    assert not after.allows(READ, TOPIC, "t")


def test_a_flood_of_names_and_principals_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kreplog.core.security.authorizer.MAX_DECISIONS", 10)
    monkeypatch.setattr("kreplog.core.security.authorizer.MAX_SUBJECTS", 10)
    authorizer = Authorizer()
    authorizer.replace(AclIndex([acl("t7")]))
    for number in range(50):
        assert not authorizer.access(Principal(f"user{number}"), "h").allows(READ, TOPIC, "t7")
        access = authorizer.access(ALICE, "10.0.0.1")
        assert access.allows(READ, TOPIC, f"t{number}") is (number == 7)
        assert sum(len(each._decisions) for each in authorizer._subjects.values()) <= 10
    assert len(authorizer._subjects) <= 10


def test_long_names_of_clients_take_no_memory() -> None:
    authorizer = Authorizer()
    authorizer.replace(AclIndex([acl("t", pattern=PREFIXED)]))
    access = authorizer.access(ALICE, "10.0.0.1")
    assert access.allows(READ, TOPIC, "t" * 249)
    for number in range(9_000):
        assert access.allows(READ, TOPIC, f"t{number:032000}")
    assert 0 < sum(getsizeof(name) for *_, name in access._decisions) < 1000


def test_the_reason_of_a_decision_is_made_for_the_log_alone() -> None:
    authorizer = Authorizer()
    authorizer.replace(AclIndex([acl("t")]))
    decision = authorizer.access(ALICE, "10.0.0.1").decide(READ, TOPIC, "t")
    assert decision.basis == acl("t")
    assert decision.rule.startswith("MatchingAcl(acl=StandardAcl(resourceType=TOPIC, resourceName=t, patternType=LIT")


def test_nobody_is_authorized_before_the_acls_are_read() -> None:
    with pytest.raises(InvariantError, match="have not been read"):
        Authorizer(allows_without_acl=True).access(ALICE, "10.0.0.1")


def test_the_operations_are_those_of_the_type_that_are_allowed() -> None:
    authorizer = Authorizer()
    authorizer.replace(AclIndex([acl("t", WRITE), acl(CLUSTER_NAME, Operation.ALL, kind=ResourceType.CLUSTER)]))
    access = authorizer.access(ALICE, "10.0.0.1")
    assert access.operations(TOPIC, "t") == {WRITE, DESCRIBE}
    assert access.operations(TOPIC, "u") == set()
    assert access.operations(ResourceType.CLUSTER, CLUSTER_NAME) == SUPPORTED_OPERATIONS[ResourceType.CLUSTER]
    assert everything(ANONYMOUS, "h").operations(GROUP, "g") == SUPPORTED_OPERATIONS[GROUP]


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl("t", WRITE)], True),
        ([acl("t", READ)], False),
        ([acl("t", Operation.ALL, pattern=PREFIXED)], True),
        ([acl("*", WRITE)], True),
        ([acl("*", WRITE), acl("*", WRITE, DENY)], False),
        ([acl("t", WRITE), acl("t", WRITE, DENY)], False),
        ([acl("t", WRITE), acl("t", WRITE, DENY, pattern=PREFIXED)], False),
        ([acl("table", WRITE, pattern=PREFIXED), acl("ta", WRITE, DENY, pattern=PREFIXED)], False),
        ([acl("ta", WRITE, pattern=PREFIXED), acl("table", WRITE, DENY, pattern=PREFIXED)], True),
        ([acl("t", WRITE, pattern=PREFIXED), acl("t", WRITE, DENY)], True),
        ([acl("t", WRITE), acl("*", WRITE, DENY, host="10.0.0.2")], True),
        ([acl("t", WRITE, principal=EVERY_USER)], True),
        ([acl("t", WRITE, host="10.0.0.2")], False),
        ([acl("t", WRITE), acl("t", WRITE, DENY), acl("u", WRITE)], True),
    ],
)
def test_an_operation_on_any_resource_of_a_type(acls: list[AclBinding], allowed: bool) -> None:
    """KIP-679: whether some topic may be written to."""
    authorizer = Authorizer()
    authorizer.replace(AclIndex(acls))
    assert authorizer.access(ALICE, "10.0.0.1").allows_on_any(WRITE, TOPIC) is allowed


# A model without any index

NAMES = ("a", "ab", "abc", "abd", "b", "*", "a*", "A")
HOSTS = ("10.0.0.1", "10.0.0.2")
OPERATIONS = (Operation.ALL, READ, WRITE, DESCRIBE, Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS)

ACLS = st.lists(
    st.builds(
        AclBinding,
        st.sampled_from((TOPIC, GROUP)),
        st.sampled_from((LITERAL, PREFIXED)),
        st.sampled_from(NAMES),
        st.sampled_from(("User:alice", "User:bob", EVERY_USER)),
        st.sampled_from((*HOSTS, WILDCARD)),
        st.sampled_from(OPERATIONS),
        st.sampled_from((ALLOW, DENY)),
    ),
    max_size=8,
)


def model(acls: Sequence[AclBinding], user: str, host: str, operation: Operation, name: str, *, open_: bool) -> bool:
    """The documentation of Kafka, read word by word."""
    of_resource = [
        each
        for each in acls
        if each.resource_type is TOPIC
        and (
            name.startswith(each.name) if each.pattern_type is PREFIXED else each.name == name or each.name == WILDCARD
        )
    ]
    if not of_resource:
        return open_
    mine = [each for each in of_resource if each.principal in (user, EVERY_USER) and each.host in (host, WILDCARD)]
    if any(each.permission is DENY and each.operation in (operation, Operation.ALL) for each in mine):
        return False
    allowing = {operation, Operation.ALL}
    if operation is DESCRIBE:
        allowing |= {READ, WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        allowing.add(Operation.ALTER_CONFIGS)
    return any(each.permission is ALLOW and each.operation in allowing for each in mine)


@given(ACLS, st.booleans())
def test_every_decision_is_that_of_the_model(acls: list[AclBinding], open_: bool) -> None:
    authorizer = Authorizer(allows_without_acl=open_)
    authorizer.replace(AclIndex(acls))
    for user, host, operation, name in product(("alice", "bob"), HOSTS, OPERATIONS[1:], NAMES):
        access = authorizer.access(Principal(user), host)
        expected = model(acls, f"User:{user}", host, operation, name, open_=open_)
        assert access.allows(operation, TOPIC, name) is expected, (user, host, operation, name)


@given(ACLS)
def test_who_may_write_to_a_named_topic_may_write_to_some(acls: list[AclBinding]) -> None:
    authorizer = Authorizer()
    authorizer.replace(AclIndex(acls))
    access = authorizer.access(ALICE, "10.0.0.1")
    if any(access.allows(WRITE, TOPIC, name) for name in NAMES if name != WILDCARD):
        assert access.allows_on_any(WRITE, TOPIC) or any(
            each.permission is DENY and each.name == WILDCARD and each.pattern_type is LITERAL for each in acls
        )
