"""The facts of many groups: read by and by, by topic, and kept while a coordinator is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kreplog.client.group_admin import GroupOverview
from kreplog.console import group_lags
from kreplog.console.group_lags import GroupLags
from kreplog.console.lag_times import LagTimes
from kreplog.errors import KreplogError

NAMES = [f"g{number:02}" for number in range(50)]
CLIENTS: Any = SimpleNamespace(connections=SimpleNamespace(metadata=None))


def offset(topic: str, lag: int | None) -> dict[str, Any]:
    return {"topic": topic, "partition": 0, "offset": None, "log_end_offset": lag, "lag": lag, "member_id": "m"}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the groups that are read, each of which reads the topic `all` and one of its own. Each read takes 0.5 s
    of a time that stands still otherwise; none takes a processor, and a second passes before a group is listed."""
    found: list[str] = []
    clock = [1000.0]

    def listed(*_: Any) -> list[GroupOverview]:
        return [GroupOverview(name, "Stable", "consumer", "classic") for name in NAMES]

    def read(_connections: Any, name: str, _deadline: Any) -> dict[str, Any]:
        found.append(name)
        clock[0] += 0.5
        return {"members": [{"member_id": "m"}], "offsets": [offset("all", 0), offset(f"of-{name}", None)]}

    def now() -> float:
        clock[0] += 0.001
        return clock[0]

    monkeypatch.setattr(group_lags, "list_groups", listed)
    monkeypatch.setattr(group_lags, "read_group", read)
    monkeypatch.setattr(group_lags, "MIN_AGE_S", 0.0)
    monkeypatch.setattr(group_lags, "time", SimpleNamespace(monotonic=now, thread_time=lambda: 0.0))
    return found


def test_many_groups_are_read_by_and_by(reads: list[str]) -> None:
    lags = GroupLags(LagTimes())
    first = lags.summary(CLIENTS, {})
    assert first["unread"] == 50 - len(reads) and 3 <= len(reads) <= 5 and len(first["groups"]) == 50
    while lags.summary(CLIENTS, {})["unread"]:
        pass
    lags.summary(CLIENTS, {})
    assert sorted(reads[:50]) == NAMES  # each once, before any is read again
    assert reads[50:] == reads[: len(reads) - 50]  # those read longest ago


def test_all_groups_at_once_for_one_frame(reads: list[str]) -> None:
    found = GroupLags(LagTimes()).facts(CLIENTS, {"all": ""})["groups"]
    assert reads == NAMES == list(found) and all(found.values())


def test_the_groups_of_a_topic_and_their_lag_there(reads: list[str]) -> None:
    lags = GroupLags(LagTimes())
    lags.facts(CLIENTS, {"all": ""})
    (row,) = lags.summary(CLIENTS, {"topic": "of-g07"})["groups"]
    assert (row["group"], row["members"], row["partitions"], row["lag"], row["lag_unknown"]) == ("g07", 1, 1, None, 1)
    everywhere = lags.summary(CLIENTS, {"topic": "all"})["groups"]
    assert [row["group"] for row in everywhere] == NAMES and {row["lag"] for row in everywhere} == {0}
    assert lags.summary(CLIENTS, {"topic": "other"})["groups"] == []


def test_a_group_whose_coordinator_is_away_keeps_its_facts(reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lags = GroupLags(LagTimes())
    lags.facts(CLIENTS, {"all": ""})

    def fails(*_: Any) -> dict[str, Any]:
        raise KreplogError("NOT_COORDINATOR")

    monkeypatch.setattr(group_lags, "read_group", fails)
    lags.facts(CLIENTS, {"all": ""})
    (row,) = lags.summary(CLIENTS, {"topic": "of-g07"})["groups"]
    assert (row["lag_unknown"], row["error"]) == (1, "NOT_COORDINATOR")
