"""What a broker logs: one line for each event whatever is in it, decisions by partition, files that are bounded."""

from __future__ import annotations

import asyncio
import errno
import io
import itertools
import json
import logging
import re
from collections.abc import Iterator
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
from kreplog.errors import ErrorCode
from kreplog.server.monitoring.logs import (
    DRAIN_S,
    MAX_ROWS,
    STATE_CHANGES,
    LogSettings,
    log_applied,
    log_sent,
    log_state_change,
    set_up,
)
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition

TP = TopicPartition("topic", 3)
STATE = LeaderAndIsr(1, 4, (1, 2), (), 7, 9)
PARTITION_STATE = PartitionState(TP, "id", STATE, (1, 2, 0))


@pytest.fixture(autouse=True)
def loggers() -> Iterator[None]:
    """Restore the handlers, level and propagation of both loggers after the test."""
    both = logging.getLogger(), logging.getLogger(STATE_CHANGES)
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in both]
    yield
    for logger, (handlers, level, propagate) in zip(both, before, strict=True):
        for handler in logger.handlers:
            if handler not in handlers:
                handler.close()
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_a_json_line(tmp_path: Path) -> None:
    set_up(7, tmp_path)
    log = logging.getLogger("kreplog.server")
    hostile = 'client "x"\n{"level":"error"}\0\u2028'
    log.warning("%s came", hostile, extra={"facts": {"offset": 5}})
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed")
    log.debug("below the level")
    first, second = lines(tmp_path / "server.log")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first.pop("time"))
    assert first == {
        "level": "warning",
        "broker": 7,
        "logger": "kreplog.server",
        "message": f"{hostile} came",
        "offset": 5,
    }
    assert second["error"].endswith("ValueError: broken")


def test_an_event_is_a_text_line(tmp_path: Path) -> None:
    set_up(7, tmp_path, LogSettings("text", "debug"))
    logging.getLogger("kreplog.server").debug("two\nlines", extra={"facts": {"isr": [1, 2], "path": "/a b"}})
    (line,) = (tmp_path / "server.log").read_text().splitlines()
    assert line.split(" ", 1)[1] == (
        r'level=debug broker=7 logger=kreplog.server message="two\nlines" isr="1,2" path="/a b"'
    )


def test_control_requests_are_logged_by_partition(tmp_path: Path) -> None:
    set_up(1, tmp_path)
    log_sent(LeaderAndIsrRequest(0, 7, 5, (PARTITION_STATE, PARTITION_STATE), is_init=True), 2)
    applied = LeaderAndIsrRequest(0, 7, 5, (PARTITION_STATE,))
    log_applied(applied, ErrorCode.NONE, ((TP, ErrorCode.KAFKA_STORAGE_ERROR),))
    log_applied(applied, ErrorCode.STALE_CONTROLLER_EPOCH)
    log_sent(StopReplicaRequest(0, 7, 5, (StopReplica(TP, "id", 4, True),)), 1)
    log_sent(UpdateMetadataRequest(0, 7, 5, (BrokerRegistration(1, 5), BrokerRegistration(2, 6)), (), (TP,)), 1)
    log_sent(UpdateMetadataRequest(0, 7, 5, ()), 1)
    log_state_change("warning", "deposed")
    result = lines(tmp_path / "state-change.log")
    for line in result:
        assert (line.pop("broker"), line.pop("logger")) == (1, STATE_CHANGES)
        del line["time"], line["level"]
    controller = {"controller": 0, "controller_epoch": 7}
    state = {"leader": 1, "leader_epoch": 4, "isr": [1, 2], "replicas": [1, 2, 0], "partition_epoch": 9}
    init = {"message": "LeaderAndIsr sent", **controller, "to": 2, "init": True, "partition": "topic-3", **state}
    assert result == [
        init,
        init,
        {
            "message": "LeaderAndIsr applied",
            **controller,
            "partition": "topic-3",
            "error": "KAFKA_STORAGE_ERROR",
            **state,
        },
        {
            "message": "LeaderAndIsr refused",
            **controller,
            "error": "STALE_CONTROLLER_EPOCH",
            "partition": "topic-3",
            **state,
        },
        {
            "message": "StopReplica sent",
            **controller,
            "to": 1,
            "partition": "topic-3",
            "leader_epoch": 4,
            "delete": True,
        },
        {
            "message": "UpdateMetadata sent",
            **controller,
            "to": 1,
            "brokers": [1, 2],
            "partition": "topic-3",
            "deleted": True,
        },
        {"message": "UpdateMetadata sent", **controller, "to": 1, "brokers": []},
        {"message": "deposed"},
    ]
    assert (tmp_path / "server.log").read_text() == ""


def test_decisions_as_text(tmp_path: Path) -> None:
    set_up(1, tmp_path, LogSettings("text"))
    log_sent(LeaderAndIsrRequest(0, 7, 5, (PARTITION_STATE,)), 2)
    log_applied(StopReplicaRequest(0, 7, 5, (StopReplica(TP, "id", 4, False),)), ErrorCode.NONE)
    sent, applied = (line.split(STATE_CHANGES)[1] for line in (tmp_path / "state-change.log").read_text().splitlines())
    assert sent == (
        ' message="LeaderAndIsr sent" controller=0 controller_epoch=7 to=2 partition=topic-3 leader=1 leader_epoch=4 '
        "isr=(1,2) replicas=(1,2,0) partition_epoch=9"
    )
    assert applied.endswith("partition=topic-3 leader_epoch=4 delete=False")


def test_many_decisions_are_written_a_few_at_a_time_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "state-change.log"
    many = tuple(PartitionState(TopicPartition("topic", number), "id", STATE, (1,)) for number in range(3000))

    async def main() -> None:
        set_up(1, tmp_path)
        log_state_change("info", "before")
        log_sent(LeaderAndIsrRequest(0, 7, 5, many), 2)
        log_state_change("info", "after")
        assert path.read_text() == ""
        sizes = [0]
        while sizes[-1] < 3002:
            await asyncio.sleep(0)
            sizes.append(path.read_text().count("\n"))
        assert max(b - a for a, b in itertools.pairwise(sizes)) <= MAX_ROWS
        log_state_change("info", "late")

    asyncio.run(main())
    log_state_change("info", "last")
    result = lines(path)
    assert [line["message"] for line in (result[0], *result[-3:])] == ["before", "after", "late", "last"]
    assert [line["partition"] for line in result[1:-3]] == [f"topic-{number}" for number in range(3000)]


def test_deferred_records_written_by_a_thread_do_not_block_later_ones(tmp_path: Path) -> None:
    path = tmp_path / "state-change.log"

    async def main() -> list[object]:
        broken: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
        set_up(1, tmp_path)
        log_state_change("info", "first")
        await asyncio.to_thread(log_state_change, "info", "from a thread")
        await asyncio.sleep(2 * DRAIN_S)  # the drain that finds nothing has come
        log_state_change("info", "last")
        async with asyncio.timeout(10):
            while not broken and path.read_text().count("\n") < 3:
                await asyncio.sleep(0)  # what writes is on this loop
        return broken

    assert asyncio.run(main()) == []
    assert [line["message"] for line in lines(path)] == ["first", "from a thread", "last"]


def test_files_are_bounded(tmp_path: Path) -> None:
    set_up(1, tmp_path, LogSettings(max_bytes=10_000, backups=2))
    for number in range(1000):
        logging.getLogger("kreplog.server").info("event %d", number)
        log_state_change("info", f"change {number}")
    for name in ("server.log", "state-change.log"):
        files = sorted(tmp_path.glob(f"{name}*"))
        assert [file.name for file in files] == [name, f"{name}.1", f"{name}.2"]
        assert all(file.stat().st_size < 10_000 + 200 for file in files)
        assert lines(tmp_path / name)[-1]["message"].endswith(" 999")


class Full(io.StringIO):
    """A file on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "full")


def test_records_that_cannot_be_written_are_dropped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    set_up(1, tmp_path)
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.FileHandler)
    file, handler.stream = handler.stream, Full()  # type: ignore[assignment]
    logging.getLogger("kreplog.server").error("nowhere to go")
    handler.stream = file
    logging.getLogger("kreplog.server").error("here")
    assert [line["message"] for line in lines(tmp_path / "server.log")] == ["here"]
    assert "Traceback" not in capfd.readouterr().err
