"""Produce to a cluster and consume from it with confluent-kafka.

Usage: python cluster_confluent_kafka.py [HOST:PORT [TOPIC]]
"""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition


def delivered(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise KafkaException(error)
    print("offset", message.offset())


def main(bootstrap: str = "127.0.0.1:9092", topic: str = "orders") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    for number in range(3):
        producer.produce(topic, b"record %d" % number, partition=0, on_delivery=delivered)
    producer.flush(30)

    # librdkafka wants a group id though partitions are assigned by hand, and must not commit offsets to it.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    for message in consumer.consume(3, timeout=30):
        print(message.offset(), message.value())
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
