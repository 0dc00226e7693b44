"""Transactions are described and listed, in steps that take little time (KIP-664, 994, 1152)."""

from __future__ import annotations

import pytest

from kreplog.core.events import LeadershipChanged
from kreplog.core.transaction_messages import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)
from kreplog.core.transactions.transaction_listing import CHARACTERS_PER_STEP, IDS_PER_STEP
from kreplog.errors import ErrorCode
from tests.core.transactions.shell import LOG, TIMEOUT_MS, A, B, Shell


def test_kip_664_transactions_are_described() -> None:
    shell = Shell()
    shell.init()
    shell.add(A, B)
    (found, unknown) = shell.request(DescribeTransactionsRequest(("id", "none"))).transactions
    assert found == DescribedTransaction(ErrorCode.NONE, "id", "Ongoing", TIMEOUT_MS, 1_000_000, 100, 0, (A, B))
    assert unknown == DescribedTransaction(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "none")
    shell.step(LeadershipChanged(LOG, None, 0))
    (found,) = shell.request(DescribeTransactionsRequest(("id",))).transactions
    assert found.error is ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (ListTransactionsRequest(), ["id", "other"]),
        (ListTransactionsRequest(("Ongoing", "odd")), ["id"]),
        (ListTransactionsRequest(producer_ids=(200,)), ["other"]),
        (ListTransactionsRequest(longer_than_ms=9), ["id"]),
        (ListTransactionsRequest(longer_than_ms=10), []),
        (ListTransactionsRequest(pattern="o.*|x"), ["other"]),
        (ListTransactionsRequest(("Ongoing", "odd"), pattern="oth(er)?|i."), ["id"]),
        (ListTransactionsRequest(pattern="the"), []),
    ],
)
def test_kip_664_transactions_are_listed(query: ListTransactionsRequest, found: list[str]) -> None:
    shell = Shell()
    shell.init()
    shell.add(A)
    shell.request(InitProducerIdRequest("other", TIMEOUT_MS, 200))
    shell.now_ms += 10
    response = shell.request(query)
    assert [listed.transactional_id for listed in response.transactions] == found
    assert response.unknown_states == (("odd",) if query.states else ())


def test_kip_1152_what_is_no_regular_expression_is_refused() -> None:
    shell = Shell()
    shell.init()
    for pattern in ("i(", r"(i)\1", "(i{1000}){1000}"):
        response = shell.request(ListTransactionsRequest(("odd",), pattern=pattern))
        assert (response.error, response.transactions) == (ErrorCode.INVALID_REGULAR_EXPRESSION, ())


def test_kip_1152_no_pattern_takes_exponential_steps() -> None:
    """A matcher that backtracks takes 2**1000 of them."""
    shell = Shell()
    shell.request(InitProducerIdRequest("a" * 1000, TIMEOUT_MS, 100))
    for pattern in ("(a+)+b", "(a|a)*b", "(a?){40}a{40}b"):
        assert shell.request(ListTransactionsRequest(pattern=pattern)).transactions == ()


def test_nothing_is_listed_while_a_shard_is_loaded() -> None:
    shell = Shell()
    shell.core.shards[0].active = False
    assert shell.request(ListTransactionsRequest()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_many_transactional_ids_are_listed_in_steps() -> None:
    shell = Shell()
    names = [f"id-{number}" for number in range(2 * IDS_PER_STEP)]
    for name in names:
        shell.request(InitProducerIdRequest(name, TIMEOUT_MS, 100))
    assert shell.request(ListTransactionsRequest()) is None
    listing = shell.count
    assert shell.core.next_wakeup(shell.now_ms) == shell.now_ms + 1
    assert shell.init().error is ErrorCode.NONE, "others are served in between"
    shell.tick(1)
    assert listing not in shell.replies
    shell.tick(1)
    assert sorted(listed.transactional_id for listed in shell.replies[listing].transactions) == sorted(names)


def test_a_step_compares_few_characters_with_a_pattern() -> None:
    """A client needs no right for a list, and RE2 takes up to 30 µs for a character."""
    shell = Shell()
    names = [f"{number:0{CHARACTERS_PER_STEP // 4}}" for number in range(9)]
    for name in names:
        shell.request(InitProducerIdRequest(name, TIMEOUT_MS, 100))
    assert shell.request(ListTransactionsRequest(pattern="0+[0-9]")) is None
    listing, steps = shell.count, 1
    while listing not in shell.replies:
        shell.tick(1)
        steps += 1
    assert steps == 3
    assert sorted(listed.transactional_id for listed in shell.replies[listing].transactions) == names


@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_listed_of_a_shard_that_moves_away_meanwhile(again: bool) -> None:
    """Nor of one that is loaded again: what it has by then was not looked at."""
    shell = Shell()
    for number in range(IDS_PER_STEP):
        shell.request(InitProducerIdRequest(f"id-{number}", TIMEOUT_MS, 100))
    assert shell.request(ListTransactionsRequest()) is None
    listing = shell.count
    shell.step(LeadershipChanged(LOG, None, 0))
    if again:
        shell.step(LeadershipChanged(LOG, 2, len(shell.log)))
    shell.tick(1)
    assert (shell.replies[listing].error, shell.replies[listing].transactions) == (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        (),
    )
