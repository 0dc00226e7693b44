"""The checker of submissions to the store: answered in order, each with what its own operations got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kreplog.errors import BadVersionError, ConnectionLossError, CoordinationError, NoNodeError
from kreplog.sim.checks.submission_checker import SubmissionChecker
from kreplog.types import Check, Create, NodeStat, SetData

OPERATIONS = (SetData("/isr", b"", 4), Check("/ids/1", 0), Create("/changes/c_", sequential=True))
STAT = NodeStat(5, 1, 2)
ANSWER = (STAT, None, "/changes/c_0000000003")


@pytest.fixture
def kinds() -> list[str]:
    return []


@pytest.fixture
def checker(kinds: list[str]) -> SubmissionChecker:
    return SubmissionChecker(1, lambda kind, text: kinds.append(kind))


@pytest.mark.parametrize(
    ("results", "error"),
    [
        (ANSWER, None),
        (None, ConnectionLossError("no answer")),
        (None, BadVersionError("moved", path="/isr", index=0)),
        (None, NoNodeError("gone", path="/ids/1", index=1)),
        (None, CoordinationError("ephemeral", path="/changes/c_0000000003", index=2)),
    ],
)
def test_an_answer_of_its_own(
    checker: SubmissionChecker, kinds: list[str], results: Sequence[Any] | None, error: CoordinationError | None
) -> None:
    checker.answered(1, OPERATIONS, results, error)
    assert kinds == []


@pytest.mark.parametrize(
    ("results", "error"),
    [
        ((*ANSWER, None), None),
        (ANSWER[:2], None),
        ((NodeStat(6, 1, 2), *ANSWER[1:]), None),
        ((STAT, STAT, ANSWER[2]), None),
        ((*ANSWER[:2], "/events/c_0000000003"), None),
        ((*ANSWER[:2], None), None),
        (None, BadVersionError("moved", path="/isr", index=3)),
        (None, BadVersionError("moved", path="/other", index=0)),
        (None, None),
    ],
)
def test_an_answer_for_another(
    checker: SubmissionChecker, kinds: list[str], results: Sequence[Any] | None, error: CoordinationError | None
) -> None:
    checker.answered(1, OPERATIONS, results, error)
    assert kinds == ["submission answer"]


@pytest.mark.parametrize(
    ("numbers", "expected"), [((1, 2, 3), 0), ((2,), 1), ((1, 1), 1), ((1, 2, 4), 1), ((1, 3, 2), 2)]
)
def test_the_order_of_answers(
    checker: SubmissionChecker, kinds: list[str], numbers: tuple[int, ...], expected: int
) -> None:
    for number in numbers:
        checker.answered(number, (), (None,), None)
    assert kinds == ["submission order"] * expected
