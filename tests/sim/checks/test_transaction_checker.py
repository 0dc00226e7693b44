"""The checker of transactions finds each violation, and nothing else, in histories that are made for it."""

from __future__ import annotations

import pytest

from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC
from kreplog.sim.checks.transaction_checker import EXPIRATION_MS, TransactionChecker
from kreplog.sim.history import (
    Event,
    ProducerBeginning,
    ProducerBegun,
    ProducerRefused,
    StableEnd,
    StableRead,
    TransactionalCommit,
    TransactionEnded,
    TransactionEnding,
    TransactionRecordSent,
    TransactionRecordWritten,
)
from kreplog.types import TopicPartition

HOME = TopicPartition(TRANSACTIONS_TOPIC, 0)
LEADER = 1
A, B = TopicPartition("transacted", 0), TopicPartition("transacted", 1)
WHERE = (0, HOME, "")


def begun(client: str, epoch: int) -> ProducerBegun:
    return ProducerBegun(*WHERE, client, "id", 7, epoch)


def beginning(client: str, late: bool = False) -> ProducerBeginning:
    return ProducerBeginning(*WHERE, client, "id", late)


def refused(error: str, at_ms: int = 0, client: str = "x", broker: int = LEADER) -> ProducerRefused:
    return ProducerRefused(at_ms, HOME, "", client, "id", error, broker)


def sent(value: str, name: str = "x.1", client: str = "x") -> list[Event]:
    return [
        TransactionRecordSent(*WHERE, client, name, A, value),
        TransactionRecordWritten(*WHERE, client, name, value),
    ]


def ended(committed: bool = True, error: str = "NONE", name: str = "x.1") -> list[Event]:
    return [
        TransactionEnding(*WHERE, "x", name, committed),
        TransactionEnded(*WHERE, "x", name, committed, error),
    ]


def read(value: str, offset: int = 0, partition: TopicPartition = A) -> StableRead:
    return StableRead(0, partition, "topic id", "reader", offset, value)


def end(offset: int, epoch: int) -> StableEnd:
    return StableEnd(0, A, "topic id", "reader", epoch, offset)


def kinds(*events: Event) -> list[str]:
    found: list[str] = []
    checker = TransactionChecker(lambda kind, text: found.append(kind), lambda partition: LEADER)
    checker.last_epoch = 1
    for event in events:
        checker.observe(event)
    checker.judge()
    return found


RIGHT = [begun("x", 0), *sent("a"), *sent("b"), *ended(), read("a"), read("b", 1), read("a")]


def test_nothing_is_found_where_all_is_right() -> None:
    assert kinds(*RIGHT, end(2, 1), end(1, 0), end(3, 1)) == []
    assert kinds(begun("x", 0), *sent("a"), *ended(committed=False)) == []
    assert kinds(begun("x", 0), *sent("a"), *ended(error="PRODUCER_FENCED")) == []
    assert kinds(begun("x", 1), begun("y", 0), *sent("a"), *ended(), read("a")) == []  # the older response came later
    assert kinds(begun("x", 0), TransactionalCommit(*WHERE, "x", "id", 2, 3, "ILLEGAL_GENERATION")) == []


REFUSED = [*sent("a"), *ended(error="PRODUCER_FENCED"), read("a")]


def test_a_commit_is_refused_where_another_producer_may_have_begun() -> None:
    mine = [beginning("x"), begun("x", 0)]
    assert kinds(*mine, beginning("y"), *REFUSED) == []
    assert kinds(*mine, beginning("y"), begun("y", 1), *REFUSED) == ["fenced producer"]
    assert kinds(beginning("y"), *mine, *REFUSED) == []
    assert kinds(beginning("y"), *mine, begun("y", 1), *REFUSED) == ["fenced producer"]
    assert kinds(beginning("x"), beginning("x", late=True), begun("x", 1), *REFUSED) == []
    assert kinds(*mine, *sent("a"), *ended(committed=False, error="PRODUCER_FENCED")) == []


MAPPING = "INVALID_PRODUCER_ID_MAPPING"


def test_a_producer_is_unknown_where_its_id_may_have_expired() -> None:
    mine = [beginning("x"), begun("x", 0)]
    assert kinds(*mine, refused(MAPPING)) == kinds(*mine, refused(MAPPING, EXPIRATION_MS - 1)) == ["producer refused"]
    assert kinds(*mine, refused(MAPPING, EXPIRATION_MS)) == []
    late = ProducerBegun(100, HOME, "", "x", "id", 7, 0)
    assert kinds(beginning("x"), late, refused(MAPPING, EXPIRATION_MS)) == [], "its record is older than the response"
    end = [
        TransactionEnding(EXPIRATION_MS, HOME, "", "x", "x.1", False),
        TransactionEnded(EXPIRATION_MS + 100, HOME, "", "x", "x.1", False, "NONE"),
    ]
    assert kinds(*mine, *sent("a"), *end, refused(MAPPING, 2 * EXPIRATION_MS - 1)) == ["producer refused"]
    assert kinds(*mine, *sent("a"), *end, refused(MAPPING, 2 * EXPIRATION_MS)) == []
    assert kinds(*mine, refused("INVALID_TXN_STATE", EXPIRATION_MS)) == ["producer refused"]


@pytest.mark.parametrize("error", [MAPPING, "INVALID_TXN_STATE"])
def test_a_producer_is_unknown_where_it_has_a_rival(error: str) -> None:
    mine = [beginning("x"), begun("x", 0)]
    assert kinds(*mine, refused(error)) == ["producer refused"]
    assert kinds(*mine, refused(error, broker=LEADER + 1)) == [], "another broker leads"
    assert kinds(*mine, beginning("y"), refused(error)) == []
    assert kinds(beginning("x"), beginning("x", late=True), begun("x", 1), refused(error)) == []
    assert kinds(beginning("y"), *mine, refused(error)) == []
    side_by_side = [beginning("x"), beginning("y"), begun("y", 0), begun("x", 1)]
    assert kinds(*side_by_side, refused(error)) == [], "the older response came later"
    assert kinds(*side_by_side, *mine, refused(error)) == ["producer refused"]
    assert kinds(*mine, refused("PRODUCER_FENCED")) == []


@pytest.mark.parametrize(
    ("kind", "events"),
    [
        ("aborted visible", [begun("x", 0), *sent("a"), *ended(committed=False), read("a")]),
        ("aborted visible", [begun("x", 0), *sent("a"), read("a")]),
        ("visible twice", [*RIGHT, read("a", 5)]),
        ("visible twice", [*RIGHT, read("a", 0, B)]),
        (
            "visible twice",
            [
                begun("x", 0),
                *sent("x.1:copy:0"),
                *ended(),
                *sent("x.2:copy:0", "x.2"),
                *ended(name="x.2"),
                read("x.1:copy:0"),
                read("x.2:copy:0", 1),
            ],
        ),
        ("fenced producer", [begun("x", 0), begun("y", 1), *sent("a"), *ended(), read("a")]),
        (
            "fenced producer",
            [begun("x", 1), begun("y", 0), *sent("a", client="y"), *ended(), read("a")],  # the responses overtook
        ),
        ("epoch used up", [begun("x", 1), begun("x", 2)]),
        ("stale commit", [begun("x", 0), TransactionalCommit(*WHERE, "x", "id", 2, 3, "NONE")]),
        ("offsets refused", [begun("x", 0), refused("REBALANCE_IN_PROGRESS")]),
        ("stable end fell", [end(2, 1), end(1, 1)]),
        ("stable end fell", [end(2, 1), end(1, 2)]),
        ("commit lost", [begun("x", 0), *sent("a"), *sent("b"), *ended(), read("a")]),
        ("not atomic", [begun("x", 0), *sent("a"), *sent("b"), *ended(error="PRODUCER_FENCED"), read("a")]),
        ("commit fenced", [beginning("x"), begun("x", 0), *REFUSED]),
        ("commit fenced", [beginning("y"), begun("y", 0), beginning("x"), begun("x", 0), *REFUSED]),
        ("copy lost", [begun("x", 0), *sent("x.1:copy:1"), *ended(), read("x.1:copy:1")]),
    ],
)
def test_a_violation_is_found(kind: str, events: list[Event]) -> None:
    assert kinds(*events) == [kind]


def test_a_record_that_is_acknowledged_without_acks_all() -> None:
    acknowledged = TransactionRecordWritten(*WHERE, "x", "x.1", "a", acks=1)
    assert kinds(begun("x", 0), *sent("a"), acknowledged, *ended(), read("a")) == ["acks not all"]
