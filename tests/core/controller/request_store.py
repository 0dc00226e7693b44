"""A coordination store in which tests carry out the steps of administrative requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kreplog.config import TopicConfig
from kreplog.coord.memory import MemoryStore
from kreplog.core import nodes
from kreplog.core.controller import admin_requests
from kreplog.core.controller.admin_requests import RefusedError
from kreplog.core.effects import GetChildren, GetNodes, Multi, Pause, Steps
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
                answer = error = None
                match effect:
                    case GetNodes(paths):
                        answer = self.session.get_many(paths)
                    case GetChildren(path):
                        answer = None if self.session.exists(path) is None else self.session.children(path)
                    case Multi(operations):
                        self.writes += 1
                        (before or {}).get(self.writes, lambda: None)()
                        try:
                            answer = self.session.multi(operations)
                        except CoordinationError as failed:
                            error = failed
                    case Pause(ms):
                        self.paused_ms.append(ms)
        except StopIteration as end:
            return end.value


def refused(code: ErrorCode) -> Any:
    return pytest.raises(RefusedError, check=lambda error: error.code == code)
