"""Lookups of timestamps that fail."""

from __future__ import annotations

import pytest

from kreplog.core import effects
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
