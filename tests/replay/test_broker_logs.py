"""Log files of brokers as a recording, as the brokers' own formatter writes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kreplog.core.messages import (
    LeaderAndIsrRequest,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.errors import ErrorCode, UsageError
from kreplog.replay import broker_logs
from kreplog.replay.recording import Recording
from kreplog.server.monitoring import logs
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition

T0 = TopicPartition("t", 0)
AT = datetime(2026, 3, 4, 12, 3, 7, tzinfo=UTC)


@pytest.fixture
def wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Has a broker log, at so many milliseconds after AT."""
    touched = [
        logging.getLogger(name) for name in ("", logs.STATE_CHANGES, "kreplog.authorizer", "kreplog.administration")
    ]
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in touched]

    def write(broker: int, ms: int, call: Any, *arguments: Any, **settings: Any) -> None:
        logs.set_up(broker, folder_of(tmp_path, broker), logs.LogSettings(**settings))
        made = logging.LogRecord.__init__

        def dated(self: logging.LogRecord, *of: Any, **more: Any) -> None:
            made(self, *of, **more)
            self.created = AT.timestamp() + ms / 1000

        with monkeypatch.context() as patch:
            patch.setattr(logging.LogRecord, "__init__", dated)
            call(*arguments)
        for logger in touched:
            for handler in logger.handlers:
                handler.close()

    yield write
    for logger, handlers, level, propagates in before:
        logger.handlers[:], logger.propagate = handlers, propagates
        logger.setLevel(level)


def folder_of(tmp_path: Path, broker: int) -> Path:
    return tmp_path / f"broker-{broker}" / "logs"


def read(tmp_path: Path, **bounds: Any) -> Recording:
    return broker_logs.record({broker: folder_of(tmp_path, broker) for broker in (1, 2)}, **bounds)


def leader_and_isr(leader: int, epoch: int, *isr: int) -> LeaderAndIsrRequest:
    state = PartitionState(T0, "", LeaderAndIsr(leader, epoch, isr), (1, 2))
    return LeaderAndIsrRequest(1, 5, 9, (state,))


def kinds(recording: Recording) -> list[tuple[int, str, int]]:
    return [(event.at // 1000, event.kind, event.broker) for event in recording.events]


def test_a_request_is_a_message_that_arrives_where_it_is_applied(tmp_path: Path, wrote: Any) -> None:
    wrote(1, 0, logs.log_state_change, "info", "broker 1 is the controller of epoch 5")
    wrote(1, 10, logs.log_sent, leader_and_isr(2, 0, 1, 2), 2)
    wrote(2, 14, logs.log_applied, leader_and_isr(2, 0, 1, 2), ErrorCode.NONE)
    wrote(1, 20, logs.log_sent, StopReplicaRequest(1, 5, 9, (StopReplica(T0, "", 1, True),)), 2)
    recording = read(tmp_path)
    assert kinds(recording) == [(0, "broker", 1), (10, "message", 1), (14, "broker", 2), (20, "message", 1)]
    controller, sent, applied, stop = recording.events
    assert (sent.label, sent.source, sent.target, sent.until) == ("LeaderAndIsr", "b1", "b2", 14_000)
    assert sent.partitions == ("t-0",) and sent.text == "t-0 leader 2, epoch 0, isr 1 2"
    assert applied.text == "LeaderAndIsr applied: t-0 leader 2, epoch 0, isr 1 2"
    assert stop.until < 0, "no line says that it was applied"
    assert controller.changes == [{"broker": 1, "status": "up"}, {"controller": 1}]
    assert sent.changes == [{"partition": "t-0", "leader": 2, "leader_epoch": 0, "isr": [1, 2], "elr": []}]
    role = {"broker": 2, "partition": "t-0", "role": "leader", "leader_epoch": 0}
    assert applied.changes == [{"broker": 2, "status": "up"}, role]
    assert recording.began == "2026-03-04T12:03:07.000+00:00"
    assert (recording.brokers, recording.partitions) == ([1, 2], ["t-0"])


def test_requests_of_one_text_and_of_one_millisecond_arrive_one_after_the_other(tmp_path: Path, wrote: Any) -> None:
    """Also where the controller's id is the higher one."""
    wrote(2, 10, logs.log_sent, leader_and_isr(1, 0, 1, 2), 1)
    wrote(1, 10, logs.log_applied, leader_and_isr(1, 0, 1, 2), ErrorCode.NONE)
    for sent in (12, 13):
        wrote(2, sent, logs.log_sent, leader_and_isr(2, 0, 1, 2), 1)
    for applied in (14, 15):
        wrote(1, applied, logs.log_applied, leader_and_isr(2, 0, 1, 2), ErrorCode.NONE)
    recording = read(tmp_path)
    assert [(event.at // 1000, event.until // 1000) for event in recording.events if event.kind == "message"] == [
        (0, 0),
        (2, 4),
        (3, 5),
    ]


def test_a_refused_request_changes_nothing(tmp_path: Path, wrote: Any) -> None:
    wrote(1, 0, logs.log_sent, leader_and_isr(2, 0, 1, 2), 2)
    wrote(2, 1, logs.log_applied, leader_and_isr(2, 0, 1, 2), ErrorCode.STALE_CONTROLLER_EPOCH)
    sent, refused = read(tmp_path).events
    assert sent.until == 1000
    assert refused.text == "LeaderAndIsr refused STALE_CONTROLLER_EPOCH: t-0 leader 2, epoch 0, isr 1 2"
    assert refused.changes == [{"broker": 2, "status": "up"}]


def test_brokers_start_fail_and_stop(tmp_path: Path, wrote: Any) -> None:
    """A killed broker writes nothing: it is down once a controller leaves it out of its metadata."""
    live = [BrokerRegistration(broker, 1, "host", 9092) for broker in (1, 2)]
    wrote(2, 0, logging.getLogger("x").info, "broker 2 listens on 127.0.0.1:9092")
    wrote(1, 5, logs.log_sent, UpdateMetadataRequest(1, 5, 9, tuple(live), ()), 1)
    wrote(1, 10, logs.log_state_change, "warning", "brokers 2 are no longer registered")
    wrote(1, 11, logs.log_sent, UpdateMetadataRequest(1, 5, 9, tuple(live[:1]), ()), 1)
    wrote(1, 20, logging.getLogger("x").info, "broker 1 has stopped")
    started, both, warned, alone, stopped = read(tmp_path).events
    assert (started.kind, started.changes) == ("admin", [{"broker": 2, "status": "up"}])
    assert both.changes == [{"broker": 1, "status": "up"}]
    assert (warned.kind, warned.changes) == ("fault", [])
    assert alone.changes == [{"broker": 2, "status": "down"}]
    assert (stopped.kind, stopped.changes) == ("admin", [{"broker": 1, "status": "down"}])


def test_a_window_begins_with_the_state_of_that_time(tmp_path: Path, wrote: Any) -> None:
    for ms, epoch in enumerate(range(20)):
        wrote(1, 1000 * ms, logs.log_sent, leader_and_isr(1 + epoch % 2, epoch, 1, 2), 2)
    at = {"since": datetime(1900, 1, 1, 12, 3, 12), "until": datetime(2026, 3, 4, 12, 3, 14)}
    recording = read(tmp_path, **at)
    assert [event.at for event in recording.events] == [0, 1_000_000, 2_000_000]
    first, *states = recording.events[0].changes
    assert first == {"broker": 1, "status": "up"}
    assert [change["leader_epoch"] for change in states] == list(range(6))
    assert recording.about == "From 2026-03-04 12:03:12 to 12:03:14 UTC."
    with pytest.raises(UsageError, match=r"no log line from 12:05:00\.\d+ to 12:03:26\.\d+ UTC"):
        read(tmp_path, since=datetime(1900, 1, 1, 12, 5))


def test_rotated_files_are_read_in_their_order(tmp_path: Path, wrote: Any) -> None:
    def write() -> None:
        for number in range(30):
            logs.log_state_change("info", f"line {number}")

    wrote(1, 0, write, max_bytes=200, backups=14)
    assert (folder_of(tmp_path, 1) / "state-change.log.10").exists()
    texts = [event.text for event in read(tmp_path).events]
    assert texts == [f"line {number}" for number in range(30 - len(texts), 30)]
    assert len(texts) > 20


def test_lines_that_are_no_events_are_counted(
    tmp_path: Path, wrote: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn line, bytes of anything, other JSON, another format's lines."""
    wrote(1, 0, logs.log_state_change, "info", "a line")
    with open(folder_of(tmp_path, 1) / "state-change.log", "ab") as file:
        for line in (b'{"time":"2026-03', b"\xff\x00", b"[1]", b'{"time":"now","message":"x"}', b'{"time":1}', b"null"):
            file.write(line + b"\n")
    recording = read(tmp_path)
    assert [event.text for event in recording.events] == ["a line"]
    assert recording.notes == ["6 lines that are no log lines are left out."]
    monkeypatch.setattr(broker_logs, "MAX_LINES", 2)
    for ms in range(5):
        wrote(2, ms, logs.log_state_change, "info", f"line {ms}")
    assert "The first 3 lines of broker 2's state-change.log are left out." in read(tmp_path).notes


@pytest.mark.parametrize(
    "facts", [{"partition": 1}, {"partition": "t-0", "leader": "x", "isr": 3}, {"to": [1]}, {"isr": "a"}]
)
def test_facts_of_another_type_are_no_log_line(tmp_path: Path, wrote: Any, facts: Mapping[str, Any]) -> None:
    wrote(1, 0, logs.log_state_change, "info", "a line")
    names = ("LeaderAndIsr sent", "LeaderAndIsr applied", "StopReplica applied", "UpdateMetadata sent")
    for name in names:
        line = {"time": AT.isoformat(), "message": name, "controller": 1, **facts}
        with open(folder_of(tmp_path, 1) / "state-change.log", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    recording = read(tmp_path)
    assert [event.text for event in recording.events] == ["a line"]
    assert recording.notes == [f"{len(names)} lines that are no log lines are left out."]


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b'{"time":"0001-01-01T00:00:00+14:00","message":"x"}'], ids=["nested", "before all years"]
)
def test_lines_that_json_or_a_calendar_cannot_hold_are_counted(tmp_path: Path, wrote: Any, line: bytes) -> None:
    wrote(1, 0, logs.log_state_change, "info", "a line")
    with open(folder_of(tmp_path, 1) / "state-change.log", "ab") as file:
        file.write(line + b"\n")
    recording = read(tmp_path)
    assert [event.text for event in recording.events] == ["a line"]
    assert recording.notes == ["1 lines that are no log lines are left out."]


@pytest.mark.parametrize("number", ["\u00b2", "\u0661", "1" * 5000])
def test_a_partition_may_have_any_name(tmp_path: Path, wrote: Any, number: str) -> None:
    line = {"time": AT.isoformat(), "message": "a line", "partition": f"t-{number}"}
    wrote(1, 0, logs.log_state_change, "info", "a line")
    with open(folder_of(tmp_path, 1) / "state-change.log", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    assert read(tmp_path).partitions == [f"t-{number}"]


def test_logs_as_text_and_no_logs_are_refused(tmp_path: Path, wrote: Any) -> None:
    with pytest.raises(UsageError, match=r"there are no log lines in .*broker-1.*broker-2"):
        read(tmp_path)
    wrote(1, 0, logs.log_state_change, "info", "a line", format="text")
    with pytest.raises(UsageError, match=r"set server\.log\.format to json"):
        read(tmp_path)
