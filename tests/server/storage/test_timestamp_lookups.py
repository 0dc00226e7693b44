"""Lookups of timestamps that fail."""

from __future__ import annotations

import pytest

from kreplog.core import effects
from kreplog.core.events import OffsetFound
from kreplog.errors import CorruptBatchError
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.background import BackgroundTasks
from tests.server.loop import run, until
from tests.server.storage.life import TP, Life, opened


def test_an_error_that_no_lookup_is_made_for_stops_the_broker(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would wait for the answer for good."""
    failures: list[tuple[str, BaseException]] = []
    error = RuntimeError("a fault of the program")

    def find(log: ManagedLog, timestamp: int) -> None:
        raise error

    monkeypatch.setattr(ManagedLog, "record_for_timestamp", find)
    monkeypatch.setattr(BackgroundTasks, "fail", lambda tasks, *failure: failures.append(failure))
    logs = life.open()
    opened(logs)

    async def work() -> None:
        logs.execute(effects.OffsetForTimestamp((1, 2), TP, 0))
        await until(lambda: bool(failures))

    run(work)
    assert failures == [("a lookup of a timestamp", error)]
    assert life.events == []
    life.crash()


def test_lookups_in_a_damaged_log_find_nothing_and_do_not_fill_the_server_log(
    life: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def find(log: ManagedLog, timestamp: int) -> None:
        raise CorruptBatchError("damaged")

    monkeypatch.setattr(ManagedLog, "record_for_timestamp", find)
    logs = life.open()
    opened(logs)

    async def work() -> None:
        for number in range(10):
            logs.execute(effects.OffsetForTimestamp((number, 0), TP, 0))
        await until(lambda: len(life.events) == 10)

    run(work)
    assert {event.tag for event in life.events if isinstance(event, OffsetFound) and event.offset == -1} == {
        (number, 0) for number in range(10)
    }
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"topic-0: lookup of a timestamp failed: damaged; such failures: {count}" for count in (1, 2, 4, 8)
    ]
    life.crash()
