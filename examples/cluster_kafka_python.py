"""Produce to a cluster and consume from it with kafka-python.

Usage: python cluster_kafka_python.py [HOST:PORT [TOPIC]]
"""

from __future__ import annotations

import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition


def main(bootstrap: str = "127.0.0.1:9092", topic: str = "orders") -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    sent = [producer.send(topic, b"record %d" % number, partition=0) for number in range(3)]
    print("offsets", [future.get(timeout=30).offset for future in sent])
    producer.close()

    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])  # by hand; `subscribe` with a group id shares the partitions
    consumer.seek(partition, 0)
    for _ in range(3):
        record = next(consumer)
        print(record.offset, record.value)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
