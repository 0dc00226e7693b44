"""StoreSubmissions: which submissions share a transaction, what each of them gets, and what a refusal of all means."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.core.broker.store_submissions import MAX_SHARED_OPERATIONS, StoreSubmissions, Submission
from kreplog.errors import BadVersionError, ConnectionLossError, CoordinationError, SessionExpiredError
from kreplog.types import Check, Create

SESSION, NEXT_SESSION = object(), object()


class Shell:
    """Submissions of names, and the names of each request."""

    def __init__(self) -> None:
        self.queue: StoreSubmissions[object, str] = StoreSubmissions()

    def multi(self, name: str, operations: int = 1, session: object = SESSION) -> bool:
        return self.queue.submit(Submission(session, (Create(f"/{name}"),) * operations, (), name))

    def read(self, name: str, session: object = SESSION) -> bool:
        return self.queue.submit(Submission(session, (), (f"/{name}",), name))

    def next(self) -> str:
        return " ".join(submission.reply_to for submission in self.queue.next())

    def applied(self, *results: object) -> list[tuple[str, Any]]:
        return [(of.reply_to, own) for of, own, error in self.queue.finished(results, None) if error is None]

    def failed(self, error: CoordinationError) -> list[tuple[str, CoordinationError | None]]:
        return [(of.reply_to, found) for of, own, found in self.queue.finished(None, error) if own is None]


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_what_waits_shares_the_next_transaction_and_gets_its_own_results(shell: Shell) -> None:
    assert [shell.multi("a"), shell.multi("b", 2)] == [True, False]
    assert shell.next() == "a b"
    assert [shell.multi("c"), shell.multi("d", 3)] == [False, False]
    assert shell.applied(1, 2, 3) == [("a", (1,)), ("b", (2, 3))]
    assert not shell.multi("e"), "the shell has not finished with the replies"
    assert shell.next() == "c d e"
    assert shell.applied(1, 2, 3, 4, 5) == [("c", (1,)), ("d", (2, 3, 4)), ("e", (5,))]
    assert shell.next() == ""
    assert shell.multi("f"), "the shell begins again"
    assert shell.next() == "f"


def test_a_read_is_alone_and_in_order(shell: Shell) -> None:
    for submit, name in (
        (shell.read, "a"),
        (shell.read, "b"),
        (shell.multi, "c"),
        (shell.read, "d"),
        (shell.multi, "e"),
    ):
        submit(name)
    requests = []
    while batch := shell.next():
        requests.append(batch)
        assert shell.applied("node") == [(batch, ("node",))]
    assert requests == ["a", "b", "c", "d", "e"]


def test_sessions_share_no_transaction(shell: Shell) -> None:
    for name, session in (
        ("a", SESSION),
        ("b", SESSION),
        ("c", NEXT_SESSION),
        ("d", None),
        ("e", None),
        ("f", SESSION),
    ):
        shell.multi(name, session=session)
    requests = []
    while batch := shell.next():
        requests.append(batch)
        shell.failed(SessionExpiredError("it has ended"))
    assert requests == ["a b", "c", "d e", "f"]


def test_a_transaction_has_a_maximum_of_operations(shell: Shell) -> None:
    for name, operations in (("a", MAX_SHARED_OPERATIONS - 2), ("b", 2), ("c", 1), ("d", MAX_SHARED_OPERATIONS)):
        shell.multi(name, operations)
    shell.multi("e", MAX_SHARED_OPERATIONS + 1)
    shell.multi("f")
    requests = []
    while batch := shell.next():
        requests.append(batch)
        shell.failed(ConnectionLossError("no answer"))
    assert requests == ["a b", "c", "d", "e", "f"]


def test_multis_that_are_refused_together_run_singly_before_later_ones(shell: Shell) -> None:
    for name in "abc":
        shell.multi(name, 2)
    assert shell.next() == "a b c"
    shell.multi("d")
    shell.multi("e")
    assert shell.failed(BadVersionError("moved", index=3)) == []
    assert shell.next() == "a"
    assert shell.applied(1, 2) == [("a", (1, 2))]
    shell.multi("f")
    assert shell.next() == "b"
    moved = BadVersionError("moved", index=1)
    assert shell.failed(moved) == [("b", moved)]
    assert shell.next() == "c"
    assert shell.applied(3, 4) == [("c", (3, 4))]
    assert shell.next() == "d e f"


def test_a_lone_multi_is_refused_itself(shell: Shell) -> None:
    shell.queue.submit(Submission(SESSION, (Check("/a", 1),), (), "a"))
    assert shell.next() == "a"
    moved = BadVersionError("moved", index=0)
    assert shell.failed(moved) == [("a", moved)]
    assert shell.next() == ""


@pytest.mark.parametrize("error", [ConnectionLossError("no answer"), SessionExpiredError("it has ended")])
def test_an_error_without_an_operation_is_the_outcome_of_all(shell: Shell, error: CoordinationError) -> None:
    """With an unknown outcome nothing runs again: it may have been applied."""
    shell.multi("a")
    shell.multi("b")
    assert shell.next() == "a b"
    shell.multi("c")
    assert shell.failed(error) == [("a", error), ("b", error)]
    assert shell.next() == "c"
