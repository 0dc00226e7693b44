"""Lines of state-change logs: newest first over all brokers, filtered, in pages; rotated, torn and unreadable files."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kreplog.cluster import state_change_log
from kreplog.cluster.state_change_log import StateChangeLogs
from kreplog.errors import UsageError

START = datetime(2026, 3, 1, tzinfo=UTC)


def line(ms: int, message: str, **facts: Any) -> str:
    return json.dumps(
        {"time": (START + timedelta(milliseconds=ms)).isoformat(), "level": "info", "message": message, **facts}
    )


def write(folder: Path, name: str, *lines: str, end: str = "\n") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(lines) + end)


def messages(logs: StateChangeLogs, **parameters: str) -> list[str]:
    return [f"{found['broker']} {found['message']}" for found in logs.read(parameters)["lines"]]


@pytest.fixture
def logs(tmp_path: Path) -> StateChangeLogs:
    write(tmp_path / "0", "state-change.log.2", line(1, "broker 0 is the controller of epoch 1"))
    write(tmp_path / "0", "state-change.log.1", line(3, "t-1 has no leader", level="warning"))
    request = {"partition": "t-1", "leader": 1, "isr": [1]}
    write(
        tmp_path / "0",
        "state-change.log",
        line(4, "LeaderAndIsr sent", **request),
        line(5, "ISR of t-10"),
        '{"time',
        end="",
    )
    write(
        tmp_path / "1",
        "state-change.log",
        line(2, "LeaderAndIsr refused", partition="t-1", error="STALE"),
        line(4, "own text"),
    )
    return StateChangeLogs({0: tmp_path / "0", 1: tmp_path / "1", 2: tmp_path / "2"})


def test_all_brokers_newest_first(logs: StateChangeLogs) -> None:
    assert messages(logs) == [
        "0 ISR of t-10",
        "0 LeaderAndIsr sent",
        "1 own text",
        "0 t-1 has no leader",
        "1 LeaderAndIsr refused",
        "0 broker 0 is the controller of epoch 1",
    ]
    found = logs.read({})
    assert (found["next"], found["searched_ms"], found["notes"]) == ("", None, [])
    assert found["lines"][1]["isr"] == [1] and found["lines"][0]["time_ms"] == 1000 * int(START.timestamp()) + 5


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"broker": "1"}, ["1 own text", "1 LeaderAndIsr refused"]),
        ({"partition": "t-1"}, ["0 LeaderAndIsr sent", "0 t-1 has no leader", "1 LeaderAndIsr refused"]),
        ({"partition": "t-10"}, ["0 ISR of t-10"]),
        ({"kind": "problems"}, ["0 t-1 has no leader", "1 LeaderAndIsr refused"]),
        ({"kind": "LeaderAndIsr"}, ["0 LeaderAndIsr sent", "1 LeaderAndIsr refused"]),
        ({"kind": "decisions", "broker": "1"}, ["1 own text"]),
        ({"text": "CONTROLLER of"}, ["0 broker 0 is the controller of epoch 1"]),
        ({"text": "stale"}, ["1 LeaderAndIsr refused"]),
        ({"text": "nowhere"}, []),
    ],
)
def test_filters(logs: StateChangeLogs, parameters: dict[str, str], expected: list[str]) -> None:
    assert messages(logs, **parameters) == expected


def test_decisions_are_not_lost_among_what_follows_from_them(tmp_path: Path) -> None:
    loaded = ("its groups are loaded up to offset 7, epoch 1", "3 groups are loaded", "1 transactional ids are loaded")
    lines = [line(number, f"__consumer_offsets-{number}: {text}") for number, text in enumerate(loaded)]
    write(tmp_path / "0", "state-change.log", line(0, "5 leaders or ISRs are written: t-0: are loaded"), *lines)
    logs = StateChangeLogs({0: tmp_path / "0"})
    assert messages(logs, kind="decisions") == ["0 5 leaders or ISRs are written: t-0: are loaded"]
    assert len(messages(logs)) == 4


@pytest.mark.parametrize(
    "parameters", [{"broker": "7"}, {"broker": "-1"}, {"kind": "other"}, {"next": "soon"}, {"next": "1.-1"}]
)
def test_parameters_that_are_none(logs: StateChangeLogs, parameters: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        logs.read(parameters)


def test_pages_also_within_a_millisecond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_change_log, "LIMIT", 4)
    monkeypatch.setattr(state_change_log, "CHUNK_BYTES", 100)
    write(tmp_path / "0", "state-change.log", *(line(number // 7, f"m{number}") for number in range(20)))
    logs, found, following = StateChangeLogs({0: tmp_path / "0"}), [], ""
    for _ in range(5):
        page = logs.read({"next": following})
        found += [each["message"] for each in page["lines"]]
        following = page["next"]
    assert found == [f"m{number}" for number in reversed(range(20))]
    assert logs.read({"next": following})["lines"] == [] and following


def test_a_search_is_bounded_and_says_how_far_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_change_log, "MAX_BYTES", 3000)
    monkeypatch.setattr(state_change_log, "CHUNK_BYTES", 1000)
    write(tmp_path / "0", "state-change.log", *(line(number, f"m{number}") for number in range(1000)))
    found = StateChangeLogs({0: tmp_path / "0"}).read({"text": "m1"})
    assert found["lines"] == [] and found["next"] == ""
    assert 960 < found["searched_ms"] - 1000 * int(START.timestamp()) < 975


def test_files_that_are_no_json_or_cannot_be_read(tmp_path: Path) -> None:
    write(tmp_path / "0", "state-change.log", "time=now message=x", "[1]", '{"time":1}', "[" * 100_000, line(1, "good"))
    (tmp_path / "1" / "state-change.log").mkdir(parents=True)
    found = StateChangeLogs({0: tmp_path / "0", 1: tmp_path / "1"}).read({})
    assert [each["message"] for each in found["lines"]] == ["good"]
    assert sorted(found["notes"]) == [
        "broker 0: some lines are no JSON (server.log.format) and are left out",
        "broker 1: state-change.log cannot be read: Is a directory",
    ]
    if os.getuid():
        (tmp_path / "0" / "state-change.log").chmod(0)
        assert "Permission denied" in StateChangeLogs({0: tmp_path / "0"}).read({})["notes"][0]
