"""A process of its own: a read_committed reader that checks, as it goes, the copy of a topic that copy_member.py makes.

Each partition of the copy has the records of the same partition of the topic, each once and in its order, and none of
an aborted transaction. Prints a line for each violation, as text, and now and then how far it has come: a JSON list of
how many records of each partition it has seen.

Arguments: librdkafka's settings of connections, as JSON, the topic, the number of its partitions.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, KafkaException, TopicPartition


class CopyCheck:
    """The records that a copy has to have next. seen: by partition, the offset of the next one in the topic read."""

    def __init__(self, partitions: int) -> None:
        self.seen = [0] * partitions

    def violation(self, partition: int, offset: int, copied: bytes) -> str:
        """What is wrong with the record at this offset of the copy; empty for nothing."""
        outcome, number, _ = copied.split(b"/", 2)
        source, expected = int(number), self.seen[partition]
        self.seen[partition] = max(expected, source + 1)
        where = f"partition {partition}, offset {offset} of the copy: the record at offset {source}"
        if outcome == b"abort":
            return f"aborted: {where} is of an aborted transaction"
        if source < expected:
            return f"twice: {where} is seen again after {expected - 1}"
        if source > expected:
            return f"gap: {where} comes where {expected} is due"
        return ""


def main(connection: str, topic: str, partitions: int) -> None:
    consumer = Consumer(
        {
            **json.loads(connection),
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    check = CopyCheck(partitions)
    while True:
        messages = consumer.consume(500, 0.2)
        for message in messages:
            error = message.error()
            if error is not None:
                if error.name() == "_AUTO_OFFSET_RESET":
                    raise KafkaException(error)
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None and offset is not None and value is not None
            if violation := check.violation(partition, offset, value):
                print(violation, flush=True)
        if messages:
            print(json.dumps(check.seen), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
