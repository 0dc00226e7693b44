"""Lags of groups over time, in a bounded number of samples."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.console import lag_history
from kreplog.console.lag_history import LagHistory


def offsets(*lags: int | None) -> list[dict[str, Any]]:
    return [{"topic": "t", "partition": number, "lag": lag} for number, lag in enumerate(lags)]


def test_lags_at_each_time_and_unknown_ones() -> None:
    history = LagHistory()
    history.add("g", 1000, offsets(5, None))
    history.add("g", 1500, offsets(6, 6))  # too soon for another sample
    history.add("g", 2000, offsets(None, None))
    found = history.add("g", 3000, offsets(7, 9, 0))
    assert found == {
        "times_ms": [1000, 2000, 3000],
        "lags": {"all": [5, None, 16], "t-1": [None, None, 9], "t-0": [5, None, 7]},
    }
    assert history.add("other", 3000, [])["lags"] == {"all": [None]}


def test_a_long_time_has_a_bounded_number_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_history, "MAX_VALUES", 30)
    history = LagHistory()
    for second in range(100):
        found = history.add("g", 1000 * second, offsets(second, 0, 0))
    times = found["times_ms"]
    assert 5 <= len(times) <= 10 and times[0] == 0 and times[-1] >= 90_000
    assert found["lags"]["all"] == [at // 1000 for at in times]


def test_groups_looked_at_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_history, "MAX_GROUPS", 2)
    history = LagHistory()
    for second, group in enumerate("abac"):
        history.add(group, 1000 * second, offsets(second))
    assert history.add("a", 9000, offsets(1))["times_ms"] == [0, 2000, 9000]
    assert history.add("b", 9000, offsets(1))["times_ms"] == [9000]
