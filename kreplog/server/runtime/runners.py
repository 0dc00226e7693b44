"""Runners: step the cores; each event's step ends before the next event of the same core.

`SyncCoreRunner` runs a core synchronously on the event loop; only while a thread carries out an effect the loop goes on
within a step, without this core. `AsyncCoreRunner` runs a core that waits for the store in a task of its own; the other
cores go on meanwhile. An InvariantError, or an error that is not a KreplogError, stops the core and the broker:
`on_failure` is called.

Whatever carries out the effects of a core puts events for it, too: a runner is made first, for `put`, and started once
its effects can be carried out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic
from typing import Any

from kreplog.core.effects import Core, Effect, Steps
from kreplog.core.events import Event, Tick, WatchFired
from kreplog.errors import CoordinationError, InvariantError, KreplogError, RegistrationRefusedError
from kreplog.types import WatchEvent

_log = logging.getLogger("kreplog.server")

OnFailure = Callable[[str, BaseException], None]

HANG_S = 1.0
"""Time after which the event loop waits for a thread that carries out an effect, and serves nobody: a disk that hangs
hangs the broker, whose watchdog then ends its session."""

WAITING_S = 0.01
"""Time for events that have waited for such a thread, in one iteration of the event loop."""


@dataclass(frozen=True, slots=True)
class _BetweenSteps:
    """In place of an event: a function that is called between two steps."""

    function: Callable[[], None]


@dataclass(frozen=True, slots=True)
class InThread:
    """An effect that a thread carries out, in place of its answer. finish: called on the event loop once `future` is
    done; returns the answer of the effect, or raises what that throws."""

    future: Future[Any]
    finish: Callable[[], Any]

    def then(self, follow: Callable[[], None]) -> InThread:
        """The same, with `follow` called after `finish` has returned."""

        def finish() -> Any:
            answer = self.finish()
            follow()
            return answer

        return InThread(self.future, finish)


class _Runner:
    """Common to both: ticks of a core at its `next_wakeup`, and failure."""

    def __init__(self, name: str, core: Core, on_failure: OnFailure) -> None:
        self.name = name
        self._core = core
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def put(self, event: Event) -> None:
        raise NotImplementedError

    def on_watch(self, event: WatchEvent) -> None:
        self.put(WatchFired(event))

    def now_ms(self) -> int:
        """Monotonic milliseconds, of the event loop's clock."""
        return int(self._loop.time() * 1000)

    def arm(self) -> None:
        """Schedule the core's next Tick; called after every step."""
        now_s = self._loop.time()
        wakeup_ms = None if self._stopped else self._core.next_wakeup(int(now_s * 1000))
        timer = self._timer
        if wakeup_ms is None:
            if timer is not None:
                timer.cancel()
                self._timer = None
            return
        # A millisecond late rather than early: `now_ms` rounds down.
        at = max(wakeup_ms / 1000, now_s) + 0.001
        if timer is not None:
            if timer.when() <= at and not timer.cancelled():
                return
            timer.cancel()
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        wakeup_ms = self._core.next_wakeup(self.now_ms())
        if wakeup_ms is not None and wakeup_ms <= self.now_ms():
            self.put(Tick())
        else:
            self.arm()

    def stop(self) -> None:
        """Step the core no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, RegistrationRefusedError):
            _log.critical("%s; this broker stops", error)
        else:
            _log.critical("%s: the core has failed, the broker stops", self.name, exc_info=error)
        self.stop()
        self._on_failure(self.name, error)


class SyncCoreRunner(_Runner):
    """Runs a core synchronously. Events that are put before `start` wait for it.

    While a thread carries out an effect of a step, the step is suspended: the event loop goes on without this core, and
    events for it wait.
    """

    def __init__(self, name: str, core: Core, on_failure: OnFailure) -> None:
        super().__init__(name, core, on_failure)
        self._inbox: deque[Event | _BetweenSteps] = deque()
        self._running = True
        self._suspended = False
        self._in_thread: tuple[Steps[None], InThread, asyncio.TimerHandle] | None = None

    def start(
        self, apply: Callable[[Effect], Any], after: Callable[[], None], before: Callable[[], None] = lambda: None
    ) -> None:
        """Begin to step the core. apply: carries out an effect and returns its answer, or InThread. after: called after
        every step, before the next. before: called before each run of events, and may put an event that comes first."""
        self._apply = apply
        self._after = after
        self._before = before
        self._running = False
        waiting, self._inbox = self._inbox, deque()
        for event in waiting:
            self._take(event)

    def put(self, event: Event) -> None:
        """Step the core now; an event that is put during a step, or by `after`, is stepped after it."""
        self._take(event)

    def call_after(self, function: Callable[[], None]) -> None:
        """Call `function` once all events that have been put are stepped: now, unless a step is suspended."""
        if self._running:
            self._inbox.append(_BetweenSteps(function))
        else:
            function()

    def _take(self, event: Event | _BetweenSteps) -> None:
        if not self._running or self._suspended:
            self._before()
        self._inbox.append(event)
        if self._running or self._stopped:
            return
        self._running = True
        try:
            while self._inbox and not self._stopped:
                if not self._step(self._inbox.popleft()):
                    return
        except Exception as error:
            self._fail(error)
        finally:
            self._running = self._suspended
        self.arm()

    def _step(self, event: Event | _BetweenSteps) -> bool:
        """Whether the step has ended; else it is suspended."""
        if isinstance(event, _BetweenSteps):
            event.function()
            return True
        steps = self._core.step(event, self.now_ms())
        return self._advance(steps, steps.send, None)

    def _advance(self, steps: Steps[None], resume: Callable[[Any], Effect], value: Any) -> bool:
        """Go on with a step; whether it has ended. resume: its `send` or `throw`, which gets `value`."""
        apply = self._apply
        try:
            effect = resume(value)
            while True:
                try:
                    answer = apply(effect)
                except InvariantError:
                    raise
                except KreplogError as error:
                    effect = steps.throw(error)
                else:
                    if type(answer) is InThread:
                        self._suspend(steps, answer)
                        return False
                    effect = steps.send(answer)
        except StopIteration:
            pass
        self._after()
        return True

    # An effect in a thread

    def _suspend(self, steps: Steps[None], effect: InThread) -> None:
        self._suspended = True
        self._in_thread = steps, effect, self._loop.call_later(HANG_S, wait, (effect.future,))
        effect.future.add_done_callback(self._thread_done)

    def _thread_done(self, _: Future[Any]) -> None:
        """Called in the thread. A future keeps its callbacks, so this one has no part of the step: its records would
        stay in memory until the cycle is collected."""
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        """The thread is done: go on with the step, and then with the events that wait for it."""
        assert self._in_thread is not None
        (steps, effect, hang), self._in_thread = self._in_thread, None
        hang.cancel()
        self._suspended = False
        try:
            resume: Callable[[Any], Effect]
            try:
                answer, resume = effect.finish(), steps.send
            except InvariantError:
                raise
            except KreplogError as error:
                answer, resume = error, steps.throw
            if not self._stopped and not self._advance(steps, resume, answer):
                return
        except Exception as error:
            self._fail(error)
        self._take_waiting()

    def _take_waiting(self) -> None:
        """Take the events that wait, each as if it was put now, for WAITING_S; the others in later iterations."""
        self._running = self._suspended = False
        began = monotonic()
        waiting, self._inbox = self._inbox, deque()
        while waiting and not self._suspended and monotonic() - began < WAITING_S:
            self._take(waiting.popleft())
        self._inbox.extend(waiting)
        if waiting and not self._suspended:
            self._running = self._suspended = True
            self._loop.call_soon(self._take_waiting)
        elif not self._suspended:
            self.arm()

    def _tick(self) -> None:
        if self._suspended:
            self._timer = None  # the end of the step schedules another
        else:
            super()._tick()


class AsyncCoreRunner(_Runner):
    """Runs a core in a task. Events that are put before `start` wait for it."""

    def __init__(self, name: str, core: Core, on_failure: OnFailure) -> None:
        super().__init__(name, core, on_failure)
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self, apply: Callable[[_Runner, Effect], Any], after: Callable[[], None]) -> None:
        """Begin to step the core. apply: awaited, carries out an effect and returns its answer. after: called after
        every step."""
        self._apply = apply
        self._after = after
        self._task = self._loop.create_task(self._run(), name=f"kreplog-{self.name}")

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._inbox.put_nowait(event)

    @property
    def idle(self) -> bool:
        return self._inbox.empty()

    async def _run(self) -> None:
        try:
            while not self._stopped:
                await self._step(await self._inbox.get())
                self._after()
                if self._inbox.empty():
                    self.arm()
        except Exception as error:
            self._fail(error)

    async def _step(self, event: Event) -> None:
        steps = self._core.step(event, self.now_ms())
        try:
            effect = steps.send(None)
            while True:
                try:
                    answer = await self._apply(self, effect)
                except CoordinationError as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(answer)
        except StopIteration:
            return

    def stop(self) -> None:
        super().stop()
        if self._task is not None:
            self._task.cancel()
