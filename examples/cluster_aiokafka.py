"""Produce to a cluster and consume from it with aiokafka. Usage: python cluster_aiokafka.py [HOST:PORT [TOPIC]]"""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition


async def run(bootstrap: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as producer:
        for number in range(3):
            metadata = await producer.send_and_wait(topic, b"record %d" % number, partition=0)
            print("offset", metadata.offset)

    async with AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None) as consumer:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])  # by hand; `subscribe` with a group id shares the partitions
        consumer.seek(partition, 0)
        for _ in range(3):
            record = await consumer.getone()
            print(record.offset, record.value)


def main(bootstrap: str = "127.0.0.1:9092", topic: str = "orders") -> None:
    asyncio.run(run(bootstrap, topic))


if __name__ == "__main__":
    main(*sys.argv[1:])
