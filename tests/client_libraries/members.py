"""Member: a consumer of confluent-kafka that a thread polls, by default with group.protocol=consumer (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client_libraries.polling import PollingThread


def confluent() -> Any:
    return pytest.importorskip("confluent_kafka", reason="kafka-python has no group.protocol=consumer")


def consumer_of(bootstrap: str, group: str, **settings: Any) -> Any:
    """settings: librdkafka's, with underscores for dots."""
    return confluent().Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20,
            "topic.metadata.refresh.interval.ms": 500,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


class Member(PollingThread):
    """A member of a group, polled by a thread, which alone uses the consumer and commits each record that it has read:
    librdkafka's Python calls of two threads wait for each other.

    values: of these records. failures: errors of polls and commits. assignment, member_id: as of the last poll."""

    def __init__(self, bootstrap: str, group: str, *topics: str, **settings: Any) -> None:
        super().__init__(consumer_of(bootstrap, group, **settings))
        self.values: list[bytes] = []
        self.failures: list[str] = []
        self.assignment: list[tuple[str, int]] = []
        self.member_id = ""
        self._consumer.subscribe(list(topics))

    def _poll(self) -> None:
        record = self._consumer.poll(0.1)
        self.assignment = sorted((each.topic, each.partition) for each in self._consumer.assignment())
        self.member_id = str(self._consumer.memberid())
        if record is None:
            return
        if record.error():
            self.failures.append(str(record.error()))
            return
        self.values.append(record.value())
        try:
            self._consumer.commit(record, asynchronous=False)
        except confluent().KafkaException as error:  # it may have been committed all the same
            self.failures.append(str(error))
