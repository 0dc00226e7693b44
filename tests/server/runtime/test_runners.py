"""Runners: one step to its end before the next event of the same core; ticks; what a broken core does."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from kreplog.core import effects, events
from kreplog.errors import ConnectionLossError, CoordinationError, InvariantError, StorageError
from kreplog.server.runtime import runners
from kreplog.server.runtime.runners import AsyncCoreRunner, InThread, SyncCoreRunner
from kreplog.types import TopicPartition
from tests.server.loop import run, run_in_virtual_time, until

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


class Suspending:
    """A runner whose core has an effect in each step, which a thread carries out until its future is resolved."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.futures: list[Future[Any]] = []
        self.lost = False
        self.core = Core(self._script)
        self.runner = SyncCoreRunner("test", self.core, lambda name, error: self.done.append((name, type(error))))
        self.runner.start(self._apply, lambda: self.done.append("after"), self._before)

    def _script(self, event: Any) -> effects.Steps[None]:
        self.done.append(event)
        if event is LOST:
            return
        try:
            self.done.append((yield effects.StateChange("info", "x")))
        except StorageError as error:
            self.done.append(type(error))

    def _apply(self, effect: effects.Effect) -> InThread:
        future: Future[Any] = Future()
        self.futures.append(future)
        return InThread(future, future.result)

    def _before(self) -> None:
        if self.lost:
            self.lost = False
            self.runner.put(LOST)

    async def turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


def test_events_wait_for_a_step_whose_effect_is_in_a_thread() -> None:
    async def work() -> None:
        it = Suspending()
        it.runner.put(FIRST)
        it.runner.put(SECOND)
        it.runner.call_after(lambda: it.done.append("called"))
        await it.turns()
        assert it.done == [FIRST]
        it.futures[0].set_result("answer")
        await it.turns()
        assert it.done == [FIRST, "answer", "after", SECOND]
        it.futures[1].set_result("another")
        await it.turns()
        assert it.done[4:] == ["another", "after", "called"]
        it.runner.call_after(lambda: it.done.append("at once"))
        assert it.done[-1] == "at once"

    run(work)


def test_a_failure_in_a_thread_is_thrown_into_the_step() -> None:
    async def work() -> None:
        it = Suspending()
        it.runner.put(FIRST)
        it.futures[0].set_exception(StorageError("no"))
        await it.turns()
        assert it.done == [FIRST, StorageError, "after"]
        it.runner.put(SECOND)
        it.runner.put(FIRST)
        it.futures[1].set_exception(ValueError("a thread that is broken"))
        await it.turns()
        assert it.done[3:] == [SECOND, ("test", ValueError)], "and the core is stepped no more"

    run(work)


def test_a_step_that_has_ended_holds_its_records_no_longer() -> None:
    """Of megabytes that a thread appends nothing is left to the collection of cycles, which is rare."""

    class Records:
        pass

    async def work() -> None:
        with ThreadPoolExecutor(1) as pool:
            held: list[weakref.ref[Records]] = []
            begun = threading.Event()

            def script(event: Any) -> effects.Steps[None]:
                records = Records()
                held.append(weakref.ref(records))
                yield records  # type: ignore[misc]  # a runner knows no kinds of effects

            def apply(effect: Any) -> InThread:
                future = pool.submit(lambda records: begun.wait(60), effect)
                return InThread(future, lambda: (effect, future.result()))

            runner = SyncCoreRunner("test", Core(script), unexpected)
            runner.start(apply, lambda: None)
            gc.disable()
            try:
                runner.put(FIRST)
                begun.set()  # a future that is done when it gets a callback does not keep it
                await until(lambda: not runner._suspended)
                assert held[0]() is None
            finally:
                gc.enable()

    run(work)


def test_an_effect_in_a_thread_has_its_follower_after_success_alone() -> None:
    async def work() -> None:
        followed: list[str] = []
        for error in (None, StorageError("no")):
            future: Future[str] = Future()
            effect = InThread(future, future.result).then(lambda: followed.append("followed"))
            if error is None:
                future.set_result("answer")
                assert effect.finish() == "answer"
            else:
                future.set_exception(error)
                with pytest.raises(StorageError):
                    effect.finish()
        assert followed == ["followed"]

    run(work)


def test_an_end_of_the_session_comes_before_the_events_that_waited() -> None:
    """As before those that wait for nothing: the broker may lead no longer."""

    async def work() -> None:
        it = Suspending()
        it.runner.put(FIRST)
        it.runner.put(SECOND)
        it.lost = True  # while the thread is at work
        it.futures[0].set_result("answer")
        await it.turns()
        assert it.done == [FIRST, "answer", "after", LOST, "after", SECOND]
        it.lost = True
        it.runner.put(FIRST)
        it._before()  # by the session's own thread, later
        it.futures[1].set_result("answer")
        await it.turns()
        assert it.done[6:] == ["answer", "after", LOST, "after", FIRST]

    run(work)


def test_a_stopped_core_is_not_resumed() -> None:
    async def work() -> None:
        it = Suspending()
        it.runner.put(FIRST)
        it.runner.put(SECOND)
        it.runner.stop()
        it.futures[0].set_result("answer")
        await it.turns()
        assert it.done == [FIRST]

    run(work)


def test_many_events_that_waited_leave_the_event_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "WAITING_S", 0.0)  # none is taken in the iteration of the step's end

    async def work() -> None:
        it = Suspending()
        it.runner.put(FIRST)
        it.runner.put(LOST)
        it.runner.put(LOST)
        it.futures[0].set_result("answer")
        await until(lambda: "answer" in it.done)
        assert it.done == [FIRST, "answer", "after"]
        it.runner.put(SECOND)
        assert it.done == [FIRST, "answer", "after"], "it does not overtake those that wait"
        monkeypatch.setattr(runners, "WAITING_S", 60.0)
        await it.turns()
        assert it.done[3:] == [LOST, "after", LOST, "after", SECOND]

    run(work)


def test_a_suspended_core_has_no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next_wakeup is not read within a step."""

    async def work() -> None:
        it = Suspending()
        it.core.wakeup_ms = it.runner.now_ms() + 5
        it.runner.arm()
        it.runner.put(FIRST)
        read_at: list[int] = []
        monkeypatch.setattr(it.core, "next_wakeup", lambda now_ms: read_at.append(now_ms))
        await asyncio.sleep(0.05)  # virtual
        assert (read_at, it.core.ticks) == ([], 0)
        monkeypatch.undo()
        it.core.wakeup_ms = it.runner.now_ms() + 5
        it.futures[0].set_result("answer")
        await asyncio.sleep(0.05)
        assert it.core.ticks == 1

    run_in_virtual_time(work)


def test_an_effect_that_hangs_hangs_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose watchdog ends the session then."""

    async def work() -> None:
        waited: list[Any] = []
        monkeypatch.setattr(runners, "wait", waited.append)
        it = Suspending()
        it.runner.put(FIRST)
        await asyncio.sleep(0.9 * runners.HANG_S)
        assert waited == []
        await asyncio.sleep(0.2 * runners.HANG_S)
        assert waited == [(it.futures[0],)]
        it.futures[0].set_result("answer")
        it.runner.put(SECOND)
        await it.turns()
        it.futures[1].set_result("answer")
        await asyncio.sleep(2 * runners.HANG_S)
        assert len(waited) == 1, "the second did not hang"

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
