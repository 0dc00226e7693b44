"""ACLs as requests name them: filters, validation, and the node of the coordination store that holds them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kreplog.coord.memory import MemoryStore
from kreplog.core import nodes, whole_nodes
from kreplog.core.request_calls import carry_out
from kreplog.core.security.acl_requests import create_acls, decode, delete_acls, encode, read_acls
from kreplog.core.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
    super_users,
)
from kreplog.errors import CoordinationError, UsageError
from kreplog.types import StoreOperation

ORDERS = AclBinding(
    ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:alice", "*", Operation.READ, Permission.ALLOW
)


def test_a_filter_selects_by_each_field() -> None:
    assert AclFilter().matches(ORDERS)
    for name, value in ORDERS._asdict().items():
        assert AclFilter(**{name: value}).matches(ORDERS)
    others: dict[str, Any] = {
        "resource_type": ResourceType.GROUP,
        "pattern_type": PatternType.PREFIXED,
        "name": "Orders",
        "principal": "User:bob",
        "host": "10.0.0.1",
        "operation": Operation.ALL,
        "permission": Permission.DENY,
    }
    for name, value in others.items():
        assert not AclFilter(**{name: value}).matches(ORDERS)


@pytest.mark.parametrize(
    ("pattern", "name", "selected"),
    [
        (PatternType.LITERAL, "orders", {"orders"}),
        (PatternType.PREFIXED, "ord", {"ord+"}),
        (PatternType.ANY, "ord", {"ord+"}),
        (PatternType.MATCH, "orders", {"orders", "ord+", "*"}),
        (PatternType.MATCH, "ord", {"ord+", "*"}),
        (PatternType.MATCH, "other", {"*"}),
        (PatternType.MATCH, None, {"orders", "ord+", "*"}),
        (PatternType.LITERAL, "*", {"*"}),
    ],
)
def test_match_selects_what_a_resource_matches(pattern: PatternType, name: str | None, selected: set[str]) -> None:
    """KIP-290."""
    acls = {
        "orders": ORDERS,
        "ord+": ORDERS._replace(pattern_type=PatternType.PREFIXED, name="ord"),
        "*": ORDERS._replace(name="*"),
    }
    given = AclFilter(pattern_type=pattern, name=name)
    assert {label for label, acl in acls.items() if given.matches(acl)} == selected


@pytest.mark.parametrize(
    "change",
    [
        {"resource_type": ResourceType.ANY},
        {"pattern_type": PatternType.ANY},
        {"pattern_type": PatternType.MATCH},
        {"operation": Operation.ANY},
        {"permission": Permission.ANY},
        {"name": ""},
        {"host": ""},
        {"principal": "alice"},
        {"principal": "User:"},
        {"name": "n" * 10_001},
        {"resource_type": ResourceType.CLUSTER, "name": "orders"},
    ],
)
def test_an_acl_that_decides_nothing_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        check_binding(ORDERS._replace(**change))


def test_the_cluster_has_one_name() -> None:
    check_binding(ORDERS._replace(resource_type=ResourceType.CLUSTER, name=CLUSTER_NAME))


def test_super_users_are_separated_by_semicolons() -> None:
    assert super_users("User:CN=a,OU=b; User:bob;") == ("User:CN=a,OU=b", "User:bob")
    assert super_users("") == ()
    with pytest.raises(UsageError, match="alice"):
        super_users("User:bob;alice")


# Their node


class Calls:
    """Steps on a store in memory. before_write: called before each write, as another writer would."""

    def __init__(self, store: MemoryStore, before_write: Callable[[], None] = lambda: None) -> None:
        self._session = store.connect(10_000)
        self._before_write = before_write

    def get_nodes(self, paths: Sequence[str]) -> Any:
        return self._session.get_many(paths)

    def get_children(self, path: str) -> Any:
        return self._session.children(path)

    def multi(self, operations: Sequence[StoreOperation]) -> Any:
        self._before_write()
        return self._session.multi(operations)

    def pause(self, ms: int) -> None:
        time.sleep(ms / 1000)  # as long as the steps want

    def note(self, level: str, text: str) -> None: ...


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    made = MemoryStore()
    yield made
    made.close()


def numbered(number: int) -> AclBinding:
    return ORDERS._replace(name=f"topic-{number}")


def test_acls_are_created_and_deleted(store: MemoryStore) -> None:
    calls = Calls(store)
    assert carry_out(read_acls(), calls) == []
    carry_out(create_acls([ORDERS, numbered(1), ORDERS]), calls)
    carry_out(create_acls([numbered(1), numbered(2)]), calls)
    assert set(carry_out(read_acls(), calls)) == {ORDERS, numbered(1), numbered(2)}
    assert len(carry_out(read_acls(), calls)) == 3
    both = [AclFilter(name="topic-1"), AclFilter(principal="User:bob"), AclFilter(pattern_type=PatternType.LITERAL)]
    deleted = carry_out(delete_acls(both), calls)
    assert [set(each) for each in deleted] == [{numbered(1)}, set(), {ORDERS, numbered(1), numbered(2)}]
    assert carry_out(read_acls(), calls) == []


def test_any_name_survives_the_store(store: MemoryStore) -> None:
    names = ["a/b", "..", "ü\N{PILE OF POO}", "\x00\n", '"', "*", "\ud800"]
    calls = Calls(store)
    carry_out(create_acls([ORDERS._replace(name=name) for name in names]), calls)
    assert [acl.name for acl in carry_out(read_acls(), calls)] == names


def test_an_invalid_acl_leaves_the_others_of_the_request_out(store: MemoryStore) -> None:
    with pytest.raises(UsageError):
        carry_out(create_acls([ORDERS, ORDERS._replace(name="")]), Calls(store))
    assert carry_out(read_acls(), Calls(store)) == []


def test_another_writer_in_between_loses_nothing(store: MemoryStore) -> None:
    others = iter(range(3))

    def write_before() -> None:
        number = next(others, None)
        if number is not None:
            carry_out(create_acls([numbered(number)]), Calls(store))

    carry_out(create_acls([ORDERS]), Calls(store, write_before))
    assert set(carry_out(read_acls(), Calls(store))) == {ORDERS, numbered(0), numbered(1), numbered(2)}


def test_concurrent_writers_lose_nothing(store: MemoryStore) -> None:
    failures: list[BaseException] = []

    def write(first: int) -> None:
        calls = Calls(store)
        try:
            for number in range(first, first + 10):
                carry_out(create_acls([numbered(number)]), calls)
            carry_out(delete_acls([AclFilter(name=f"topic-{first}")]), calls)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(start,)) for start in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    expected = {numbered(number) for number in range(40) if number % 10}
    assert set(carry_out(read_acls(), Calls(store))) == expected


def test_writers_that_others_always_precede_give_up(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_nodes, "RETRY_MS", 0)
    numbers = iter(range(1000))
    calls = Calls(store, lambda: carry_out(create_acls([numbered(next(numbers))]), Calls(store)))
    with pytest.raises(CoordinationError, match="concurrent"):
        carry_out(create_acls([ORDERS]), calls)
    assert ORDERS not in carry_out(read_acls(), Calls(store))


def test_too_many_acls_are_refused_and_change_nothing(store: MemoryStore) -> None:
    calls = Calls(store)
    carry_out(create_acls([numbered(number) for number in range(10_000)]), calls)
    with pytest.raises(UsageError, match="prefixed patterns"):
        carry_out(create_acls([ORDERS._replace(name=f"{number}" * 50) for number in range(10_000)]), calls)
    assert len(carry_out(read_acls(), calls)) == 10_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"TOPIC":1}',
        b'{"TOPIC":{"LITERAL":[]}}',
        b'{"TOPIC":{"LITERAL":{"t":[["User:a","*","READ"]]}}}',
        b'{"TOPIC":{"LITERAL":{"t":[["User:a","*","FLY","DENY"]]}}}',
        b'{"TOPIC":{"MATCH":{"t":[["User:a","*","READ","DENY"]]}}}',
        b'{"TOPIC":{"LITERAL":{"t":[["a","*","READ","DENY"]]}}}',
    ],
)
def test_a_damaged_node_is_no_set_of_acls(store: MemoryStore, data: bytes) -> None:
    session = store.connect(10_000)
    session.create(nodes.ACLS, data)
    for steps in (read_acls(), create_acls([ORDERS]), delete_acls([AclFilter()])):
        with pytest.raises(CoordinationError, match="/acls"):
            carry_out(steps, Calls(store))
    assert session.get(nodes.ACLS).data == data


def test_what_is_written_is_read(store: MemoryStore) -> None:
    acls = [ORDERS, numbered(1), ORDERS._replace(permission=Permission.DENY, host="10.0.0.1")]
    session = store.connect(10_000)
    session.create(nodes.ACLS, encode(acls))
    assert set(decode(session.get(nodes.ACLS))) == set(acls)
