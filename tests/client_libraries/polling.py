"""Consumers that a thread polls."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, Self

POLL_MS = 1000


class PollingThread(ABC):
    """Calls `_poll` of a consumer again and again, until it is closed at the end of `with`."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._poll()

    @abstractmethod
    def _poll(self) -> None:
        """Poll once."""


class Polled(PollingThread):
    """A member of a group by kafka-python, polled for long at a time: kafka-python loses the assignment that arrives
    between two polls. values: of the records so far."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(consumer)
        self.values: list[bytes] = []

    @property
    def assignment(self) -> set[Any]:
        return set(self._consumer.assignment())

    def _poll(self) -> None:
        for records in self._consumer.poll(POLL_MS).values():
            self.values += [record.value for record in records]
