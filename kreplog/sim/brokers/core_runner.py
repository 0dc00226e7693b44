"""CoreRunner: steps one core in virtual time, effect by effect, and suspends the step while it waits for an answer.

The cores of one process do not wait for each other. A crash can happen between any two effects: the step under way is
dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kreplog.core import effects, events
from kreplog.errors import KreplogError
from kreplog.sim.descriptions import describe_effect, describe_event
from kreplog.sim.machines.scheduler import MS, Timer
from kreplog.sim.trace import partitions_of
from kreplog.types import WatchEvent

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess


class _Awaited:
    """Type of AWAITED: the answer of an effect comes later."""


AWAITED = _Awaited()


@dataclass(frozen=True, slots=True)
class LocalReply:
    """The reply_to of a request that a process has itself. reply: called with the response."""

    reply: Callable[[Any], None]


class CoreRunner:
    """One core, its queue of events, and the step under way."""

    def __init__(self, process: BrokerProcess, name: str, core: effects.Core) -> None:
        self.core = core
        self.name = f"{name} {process.id}"
        self._process = process
        self._inbox: deque[events.Event] = deque()
        self.event: events.Event | None = None
        self._steps: effects.Steps[None] | None = None
        self._answer: Any = None
        self._error: BaseException | None = None
        self._awaiting = False
        self._running = False
        self._timer: Timer | None = None

    @property
    def idle(self) -> bool:
        return self._steps is None and not self._inbox

    def put(self, event: events.Event) -> None:
        """Queue an event; it is processed now if no other is before it."""
        self._inbox.append(event)
        if not self._running:
            self.run()

    def on_watch(self, event: WatchEvent) -> None:
        self.put(events.WatchFired(event))

    def run(self) -> None:
        """Continue until the step waits or the queue is empty."""
        if self._running or not self._may_run():
            return
        self._running = True
        try:
            while self._may_run():
                if self._steps is None:
                    if not self._inbox:
                        break
                    self._begin(self._inbox.popleft())
                self._advance()
        finally:
            self._running = False
        if self._may_run():
            self.arm()

    def _may_run(self) -> bool:
        return self._process.running and not self._awaiting

    def resume(self, answer: Any, error: BaseException | None = None) -> None:
        """Resume the step with the answer that it was waiting for."""
        self._awaiting = False
        self._answer, self._error = answer, error
        self.run()

    def arm(self) -> None:
        """Schedule the next Tick of the core."""
        process = self._process
        wakeup_ms = self.core.next_wakeup(process.now_ms)
        timer = self._timer
        if wakeup_ms is None:
            return
        # Never at the same instant: a core that is always due must not stop virtual time.
        at_us = max(process.clock.instant_of(wakeup_ms), process.cluster.scheduler.now_us + MS)
        if timer is not None and timer.pending:
            if timer.at_us <= at_us:
                return
            timer.cancel()
        self._timer = process.cluster.scheduler.at(at_us, self._tick)

    def _tick(self) -> None:
        process = self._process
        if not process.running or self._awaiting or self._steps is not None:
            return  # it is armed again when it continues
        now_ms = process.now_ms
        wakeup_ms = self.core.next_wakeup(now_ms)
        if wakeup_ms is not None and wakeup_ms <= now_ms:
            self.put(events.Tick())
        else:
            self.arm()

    def _begin(self, event: events.Event) -> None:
        process = self._process
        trace = process.cluster.trace
        if trace.enabled and not isinstance(event, events.Tick):
            trace.note(self.name, describe_event(event), *partitions_of(event))
        self.event = event
        self._steps = self.core.step(event, process.now_ms)
        self._answer = self._error = None

    def _advance(self) -> None:
        """Run the step until it ends, waits, or its process stops."""
        process, steps = self._process, self._steps
        assert steps is not None
        answer, error = self._answer, self._error
        while True:
            try:
                effect = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                self._steps = None
                process.stepped(self)
                return
            except Exception as failure:
                process.cluster.core_failed(process, self.name, failure)
                return
            answer = error = None
            try:
                answer = process.apply(self, effect)
            except KreplogError as refused:
                error = refused
            if process.cluster.trace.enabled:
                self._note(effect, answer, error)
            if answer is AWAITED:
                self._awaiting = True
                return
            if process.fuse is not None:
                process.count_effect()
            if not process.running:
                self._answer, self._error = answer, error
                return

    def _note(self, effect: effects.Effect, answer: Any, error: BaseException | None) -> None:
        if isinstance(effect, effects.GetNodes | effects.GetChildren):
            return
        answer = None if answer is AWAITED else answer
        self._process.cluster.trace.note(self.name, describe_effect(effect, answer, error), *partitions_of(effect))
