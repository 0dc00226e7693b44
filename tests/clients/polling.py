"""Polled: a consumer of kafka-python that a thread polls."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, Self

POLL_MS = 1000


class Polled:
    """A member of a group, polled by a thread of its own, for long at a time: kafka-python loses the assignment that
    arrives between two polls. values: of the records so far. Closed at the end."""

    def __init__(self, consumer: Any) -> None:
        self.values: list[bytes] = []
        self._consumer = consumer
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()

    @property
    def assignment(self) -> set[Any]:
        return set(self._consumer.assignment())

    def _poll(self) -> None:
        while not self._ended.is_set():
            for records in self._consumer.poll(POLL_MS).values():
                self.values += [record.value for record in records]
