"""Runners: step the cores; each event's step ends before the next event of the same core.

`SyncCoreRunner` runs a core synchronously on the event loop. `AsyncCoreRunner` runs a core
that waits for the store in a task of its own; the other cores go on meanwhile. An InvariantError, or an error that is
not a KreplogError, stops the core and the broker: `on_failure` is called.

Whatever carries out the effects of a core puts events for it, too: a runner is made first, for `put`, and started once
its effects can be carried out.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from kreplog.core.effects import Core, Effect
from kreplog.core.events import Event, Tick, WatchFired
from kreplog.errors import CoordinationError, InvariantError, KreplogError, RegistrationRefusedError
from kreplog.types import WatchEvent

_log = logging.getLogger("kreplog.server")

OnFailure = Callable[[str, BaseException], None]


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
        wakeup_ms = None if self._stopped else self._core.next_wakeup(self.now_ms())
        timer = self._timer
        if wakeup_ms is None:
            if timer is not None:
                timer.cancel()
                self._timer = None
            return
        # A millisecond late rather than early: `now_ms` rounds down.
        at = max(wakeup_ms / 1000 + 0.001, self._loop.time() + 0.001)
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
    """Runs a core synchronously. Events that are put before `start` wait for it."""

    def __init__(self, name: str, core: Core, on_failure: OnFailure) -> None:
        super().__init__(name, core, on_failure)
        self._inbox: deque[Event] = deque()
        self._running = True

    def start(
        self, apply: Callable[[Effect], Any], after: Callable[[], None], before: Callable[[], None] = lambda: None
    ) -> None:
        """Begin to step the core. apply: carries out an effect and returns its answer. after: called after every step,
        before the next. before: called before each run of events, and may put an event that comes first."""
        self._apply = apply
        self._after = after
        self._before = before
        self._running = False
        waiting, self._inbox = self._inbox, deque()
        for event in waiting:
            self.put(event)

    def put(self, event: Event) -> None:
        """Step the core now; an event that is put during a step, or by `after`, is stepped after it."""
        if not self._running:
            self._before()
        self._inbox.append(event)
        if self._running or self._stopped:
            return
        self._running = True
        try:
            while self._inbox and not self._stopped:
                self._step(self._inbox.popleft())
                self._after()
        except Exception as error:
            self._fail(error)
        finally:
            self._running = False
        self.arm()

    def _step(self, event: Event) -> None:
        steps, apply = self._core.step(event, self.now_ms()), self._apply
        answer: Any = None
        try:
            effect = steps.send(None)
            while True:
                try:
                    answer = apply(effect)
                except InvariantError:
                    raise
                except KreplogError as error:
                    effect = steps.throw(error)
                else:
                    effect = steps.send(answer)
        except StopIteration:
            return


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
