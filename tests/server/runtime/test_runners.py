"""Runners: one step to its end before the next event of the same core; ticks; what a broken core does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kreplog.core import effects, events
from kreplog.errors import ConnectionLossError, CoordinationError, InvariantError, StorageError
from kreplog.server.runtime.runners import AsyncCoreRunner, SyncCoreRunner
from kreplog.types import TopicPartition
from tests.server.loop import run, run_in_virtual_time

FIRST, SECOND = events.LogFailed(TopicPartition("t", 1)), events.LogFailed(TopicPartition("t", 2))
LOST = events.SessionLost()


class Core:
    """Runs a script for each event: a generator function of the event."""

    def __init__(self, script: Callable[[Any], effects.Steps[None]]) -> None:
        self.script = script
        self.wakeup_ms: int | None = None
        self.ticks = 0

    def step(self, event: Any, now_ms: int) -> effects.Steps[None]:
        if isinstance(event, events.Tick):
            self.ticks += 1
            self.wakeup_ms = None
            return
        yield from self.script(event)

    def next_wakeup(self, now_ms: int) -> int | None:
        return self.wakeup_ms


def unexpected(name: str, error: BaseException) -> None:
    pytest.fail(f"{name}: {error}")


def test_events_before_the_start_wait_for_it() -> None:
    async def work() -> None:
        done: list[Any] = []

        def script(event: Any) -> effects.Steps[None]:
            done.append((event, (yield effects.StateChange("info", "x"))))

        runner = SyncCoreRunner("test", Core(script), unexpected)
        runner.put(FIRST)
        runner.put(SECOND)
        assert done == []
        runner.start(lambda effect: "answer", lambda: None)
        assert done == [(FIRST, "answer"), (SECOND, "answer")]

    run(work)


def test_a_step_ends_before_the_next_event_is_stepped() -> None:
    async def work() -> None:
        done: list[Any] = []

        def script(event: Any) -> effects.Steps[None]:
            done.append(("begins", event))
            done.append((yield effects.StateChange("info", "x")))
            done.append(("ends", event))

        def apply(effect: effects.Effect) -> str:
            if len(done) == 1:
                runner.put(SECOND)  # from within the step of FIRST
            return "answer"

        runner = SyncCoreRunner("test", Core(script), unexpected)
        runner.start(apply, lambda: None)
        runner.put(FIRST)
        assert done == [("begins", FIRST), "answer", ("ends", FIRST), ("begins", SECOND), "answer", ("ends", SECOND)]

    run(work)


def test_what_follows_from_a_step_comes_before_the_next_step() -> None:
    """BrokerCores.stepped: of several events in one run, each has its own; none follows from a step that failed."""

    async def work() -> None:
        done: list[Any] = []

        def script(event: Any) -> effects.Steps[None]:
            done.append(event)
            if event is FIRST:
                yield effects.StateChange("info", "x")
            elif event is LOST:
                raise InvariantError("broken")

        def after() -> None:
            done.append("after")
            if done == [FIRST, "after"]:
                runner.put(LOST)

        runner = SyncCoreRunner("test", Core(script), lambda name, error: done.append(name))
        runner.start(lambda effect: runner.put(SECOND), after)
        runner.put(FIRST)
        assert done == [FIRST, "after", SECOND, "after", LOST, "test"]

    run(work)


def test_a_failure_of_an_effect_is_thrown_into_the_step() -> None:
    async def work() -> None:
        caught: list[BaseException] = []

        def script(event: Any) -> effects.Steps[None]:
            try:
                yield effects.StateChange("info", "x")
            except StorageError as error:
                caught.append(error)
                yield effects.StateChange("info", "y")

        def apply(effect: Any) -> None:
            if effect.text == "x":
                raise StorageError("no")

        runner = SyncCoreRunner("test", Core(script), unexpected)
        runner.start(apply, lambda: None)
        runner.put(FIRST)
        assert len(caught) == 1

    run(work)


def test_a_broken_core_is_stepped_no_more() -> None:
    async def work() -> None:
        failures: list[str] = []
        stepped: list[Any] = []

        def script(event: Any) -> effects.Steps[None]:
            stepped.append(event)
            yield effects.StateChange("info", "x")

        def apply(effect: Any) -> None:
            raise InvariantError("broken")

        runner = SyncCoreRunner("test", Core(script), lambda name, error: failures.append(name))
        runner.start(apply, lambda: None)
        runner.put(FIRST)
        runner.put(SECOND)
        assert (failures, stepped) == (["test"], [FIRST])

    run(work)


def test_a_core_gets_its_tick() -> None:
    async def work() -> None:
        core = Core(lambda event: iter(()))  # type: ignore[arg-type,return-value]
        runner = SyncCoreRunner("test", core, unexpected)
        runner.start(lambda effect: None, lambda: None)
        core.wakeup_ms = runner.now_ms() + 20
        runner.put(FIRST)
        while not core.ticks:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.03)
        assert core.ticks == 1
        core.wakeup_ms = runner.now_ms() + 10
        runner.put(FIRST)
        runner.stop()
        await asyncio.sleep(0.03)
        assert core.ticks == 1

    run_in_virtual_time(work)


def test_a_core_that_waits_keeps_its_events_in_order() -> None:
    async def work() -> None:
        done: list[Any] = []
        go_on = asyncio.Event()

        def script(event: Any) -> effects.Steps[None]:
            try:
                done.append((event, (yield effects.GetNodes(("/",)))))
            except CoordinationError as error:
                done.append((event, type(error)))

        async def apply(runner: Any, effect: Any) -> str:
            await go_on.wait()
            if len(done) == 1:
                raise ConnectionLossError("gone")
            return "answer"

        after: list[int] = []
        runner = AsyncCoreRunner("test", Core(script), unexpected)
        runner.put(FIRST)
        runner.start(apply, lambda: after.append(len(done)))
        runner.put(SECOND)
        await asyncio.sleep(0.01)
        assert done == []
        go_on.set()
        while len(after) < 2:
            await asyncio.sleep(0.001)
        assert done == [(FIRST, "answer"), (SECOND, ConnectionLossError)]
        assert after == [1, 2]
        runner.stop()

    run_in_virtual_time(work)
