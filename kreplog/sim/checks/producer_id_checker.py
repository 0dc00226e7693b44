"""The checker of producer ids.

producer id twice   a broker hands out an id that it or another one has handed out
"""

from __future__ import annotations

from collections.abc import Callable


class ProducerIdChecker:
    """Judges the ids that brokers hand out. violate: called with the kind of a violation and its text."""

    def __init__(self, violate: Callable[[str, str], None]) -> None:
        self._violate = violate
        self._owners: dict[int, int] = {}

    def given(self, broker: int, producer_id: int) -> None:
        if producer_id in self._owners:
            text = f"broker {broker} hands out producer id {producer_id}, as broker {self._owners[producer_id]} has"
            self._violate("producer id twice", text)
        self._owners[producer_id] = broker
