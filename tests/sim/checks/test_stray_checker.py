"""The checker of strays: one that is assigned again within its retention time is still there."""

from __future__ import annotations

import pytest

from kreplog.sim.checks.stray_checker import StrayChecker
from kreplog.types import TopicPartition

STRAY = 1, TopicPartition("t", 0), "id"
RETENTION_MS = 500


@pytest.fixture
def kinds() -> list[str]:
    return []


@pytest.fixture
def checker(kinds: list[str]) -> StrayChecker:
    checker = StrayChecker(RETENTION_MS, lambda kind, text: kinds.append(kind))
    checker.set_aside(*STRAY, now_ms=1000)
    return checker


@pytest.mark.parametrize(("now_ms", "restored", "expected"), [(1499, False, 1), (1499, True, 0), (1500, False, 0)])
def test_a_stray_is_there_within_its_retention(
    checker: StrayChecker, kinds: list[str], now_ms: int, restored: bool, expected: int
) -> None:
    checker.assigned_again(*STRAY, now_ms=now_ms, restored=restored)
    assert kinds == ["stray lost"] * expected


def test_a_stray_that_a_request_deleted_is_not_lost(checker: StrayChecker, kinds: list[str]) -> None:
    checker.deleted(*STRAY)
    checker.assigned_again(*STRAY, now_ms=1001, restored=False)
    assert kinds == []


@pytest.mark.parametrize(("broker", "expected"), [(1, []), (2, ["stray lost"])])
def test_a_replaced_disk_excuses_its_own_strays(
    checker: StrayChecker, kinds: list[str], broker: int, expected: list[str]
) -> None:
    checker.disk_replaced(broker)
    checker.assigned_again(*STRAY, now_ms=1001, restored=False)
    assert kinds == expected


@pytest.mark.parametrize(
    ("broker", "strays", "now_ms", "expected"),
    [(1, [], 1499, ["stray lost"]), (1, [STRAY[1:]], 1499, []), (1, [], 1500, []), (2, [], 1499, [])],
)
def test_a_stray_stays_on_its_disk(
    checker: StrayChecker,
    kinds: list[str],
    broker: int,
    strays: list[tuple[TopicPartition, str]],
    now_ms: int,
    expected: list[str],
) -> None:
    checker.on_disk(broker, strays, now_ms)
    assert kinds == expected
