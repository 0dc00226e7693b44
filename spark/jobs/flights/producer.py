"""A live feed: the flights in the order of their hours, by a Kafka client, a day at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flights.source import DAY_MS, TOPIC, Event, check

DAY_S = 0.15
"""A day of flights takes at least this long."""

WITHIN_S = 60

SETTINGS: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "lz4",
    "partitioner": "murmur2_random",
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 20,
    "topic.metadata.refresh.fast.interval.ms": 20,
    "log_level": 2,  # librdkafka reports every broken connection on stderr, and here a broker is killed on purpose
}


class LiveProducer:
    """Sends events that are in the order of time. Attribute acknowledged: how many are.

    Every event of a day is acknowledged before the next day begins. So no event is more than a day behind another that
    a reader of the topic has seen, whichever partition waits for a new leader: a watermark of a day drops none.
    """

    def __init__(self, bootstrap: str, events: Iterable[Event], total: int, console: Console) -> None:
        self.acknowledged = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, **SETTINGS})
        self._days = groupby(events, key=lambda event: event.timestamp_ms // DAY_MS)
        self._total = total
        self._console = console

    def send_until(self, count: int) -> float:
        """Send whole days until `count` events or more are acknowledged; return the seconds of the first day."""
        seconds: list[float] = []
        columns = TextColumn("flights acknowledged"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task("", total=self._total, completed=self.acknowledged)
            while self.acknowledged < count:
                _, day = next(self._days)
                started = time.perf_counter()
                self.send(day)
                seconds.append(time.perf_counter() - started)
                bar.update(task, completed=self.acknowledged)
                time.sleep(max(0.0, DAY_S - seconds[-1]))  # live: a day is not sent before it has passed
        return seconds[0]

    def send(self, events: Iterable[Event]) -> None:
        """Send these events, and wait until all of them are acknowledged. Raises DemoError if one is not."""
        sent = self.acknowledged
        for event in events:
            self._producer.produce(TOPIC, event.value, event.key, timestamp=event.timestamp_ms, on_delivery=self._count)
            sent += 1
        self._producer.flush(WITHIN_S)
        check(self.acknowledged == sent, f"{sent - self.acknowledged:,} records were not acknowledged in {WITHIN_S} s")

    def _count(self, error: KafkaError | None, message: Message) -> None:
        check(error is None, f"a record of {TOPIC}-{message.partition()} was not acknowledged: {error}")
        self.acknowledged += 1
