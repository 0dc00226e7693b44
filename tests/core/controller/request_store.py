"""A coordination store in which tests carry out the steps of administrative requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any

import pytest

from kreplog.config import TopicConfig
from kreplog.coord.memory import MemoryStore
from kreplog.core import nodes
from kreplog.core.controller import admin_requests
from kreplog.core.controller.admin_requests import RefusedError
from kreplog.core.effects import Effect, GetChildren, GetNodes, Multi, Pause, Steps
from kreplog.errors import CoordinationError, ErrorCode

BROKERS = (1, 2, 3)


class RequestStore:
    """A store with the topic t of three partitions. paused_ms: by the steps of requests. writes: how many there
    were."""

    def __init__(self) -> None:
        self.session = MemoryStore().connect(1000)
        for path in nodes.PERSISTENT:
            self.session.create(path)
        self.paused_ms: list[int] = []
        self.writes = 0
        self.create("t")

    def create(self, name: str) -> None:
        replicas = {0: (1, 2), 1: (2, 3), 2: (3, 1)}
        self.carry_out(admin_requests.create_topic(name, "id", replicas, TopicConfig(), BROKERS))

    def carry_out(self, steps: Steps[Any], before: Mapping[int, Callable[[], object]] | None = None) -> Any:
        """The result of the steps. before: what others do before a write is carried out, by its number from 1 on."""
        self.writes = 0
        answer: Any = None
        error: CoordinationError | None = None
        try:
            while True:
                effect = steps.send(answer) if error is None else steps.throw(error)
                answer, error = self._outcome(effect, before or {})
        except StopIteration as end:
            return end.value

    def carry_out_together(self, requests: Iterable[Steps[None]]) -> None:
        """Carry out the steps of requests of several brokers, each effect of which takes a millisecond."""
        due: list[tuple[int, int, Steps[None], Any, CoordinationError | None]] = []
        for number, steps in enumerate(requests):
            heappush(due, (0, number, steps, None, None))
        while due:
            now_ms, number, steps, answer, error = heappop(due)
            try:
                effect = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration:
                continue
            after_ms = effect.ms if isinstance(effect, Pause) else 1
            heappush(due, (now_ms + after_ms, number, steps, *self._outcome(effect, {})))

    def _outcome(
        self, effect: Effect, before: Mapping[int, Callable[[], object]]
    ) -> tuple[Any, CoordinationError | None]:
        """The answer to an effect, and the error that is thrown into the steps."""
        match effect:
            case GetNodes(paths):
                return self.session.get_many(paths), None
            case GetChildren(path):
                return None if self.session.exists(path) is None else self.session.children(path), None
            case Multi(operations):
                self.writes += 1
                before.get(self.writes, lambda: None)()
                try:
                    return self.session.multi(operations), None
                except CoordinationError as failed:
                    return None, failed
            case Pause(ms):
                self.paused_ms.append(ms)
        return None, None


def refused(code: ErrorCode) -> Any:
    return pytest.raises(RefusedError, check=lambda error: error.code == code)
