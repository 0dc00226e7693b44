"""A process of its own, to be killed: copies a topic, a few records in each transaction, with the offsets it has read.

Arguments: bootstrap servers, the topic read, the topic written, the group, which is the transactional id too.
"""

from __future__ import annotations

import sys
from typing import Any

import confluent_kafka as confluent

RECORDS = 5
"""Of a transaction, at most."""

WITHIN_S = 60


def main(bootstrap: str, source: str, target: str, group: str) -> None:
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.instance.id": group,  # the next process takes over at once from one that is killed
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": group})
    producer.init_transactions(WITHIN_S)  # ends what the process before has left open, before offsets are read
    consumer.subscribe([source])
    while True:
        messages: list[Any] = [each for each in consumer.consume(RECORDS, timeout=0.2) if each.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value(), partition=message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WITHIN_S
        )
        producer.commit_transaction(WITHIN_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
