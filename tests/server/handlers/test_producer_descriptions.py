"""DescribeProducers and WriteTxnMarkers: what the leader's log knows of producers, and the end of a transaction that no
coordinator knows (KIP-664)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.errors import ErrorCode
from kreplog.server.handlers.producer_descriptions import ProducerHandlers
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.reference import sent
from tests.server.brokers import serving, until_controlled
from tests.server.loop import until
from tests.server.test_broker import Client

TP = TopicPartition("topic", 0)


async def described(client: Client, *partitions: TopicPartition) -> list[tuple[int, list[Any]]]:
    """The error of each partition, and what is said of its producers, but for timestamps."""
    topics = [{"name": name, "partition_indexes": [number]} for name, number in partitions]
    response = await client.call(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics)
    return [
        (
            partition.error_code,
            [
                (
                    *(producer.producer_id, producer.producer_epoch, producer.last_sequence),
                    *(producer.coordinator_epoch, producer.current_txn_start_offset),
                )
                for producer in partition.active_producers
            ],
        )
        for topic in response.topics
        for partition in topic.partitions
    ]


def test_a_leader_describes_the_producers_of_its_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1) as (broker,):
            await until_controlled(broker)
            client = Client(broker)
            assert await client.create("topic") == 0
            assert await described(client, TP) == [(ErrorCode.NONE, [])]
            first = sent(8, 0, b"a", b"b", epoch=3, transactional=False)
            for records in (first, sent(7, 0, b"c", transactional=False)):
                assert (await client.produce(records)).partitions[0].error is ErrorCode.NONE
            log = broker.hosted.of(TP).log
            log.append_batches(sent(9, 0, b"d"), transactional=True)
            log.append_batches(sent(6, 0, b"e"), transactional=True)
            log.append_transaction_marker(6, 1, committed=True, coordinator_epoch=5)
            assert await described(client, TP, TopicPartition("topic", 1), TopicPartition("no", 0)) == [
                (ErrorCode.NONE, [(8, 3, 1, -1, -1), (7, 0, 0, -1, -1), (9, 0, 0, -1, 3), (6, 1, -1, 5, -1)]),
                (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
                (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
            ]
            response = await client.call(
                ApiKey.DESCRIBE_PRODUCERS, 0, topics=[{"name": "topic", "partition_indexes": [0]}]
            )
            (found,) = response.topics[0].partitions
            stamps = {producer.producer_id: producer.last_timestamp for producer in found.active_producers}
            assert stamps[6] >= stamps[9] > 0

            request = SimpleNamespace(topics=[SimpleNamespace(name="topic", partition_indexes=[0])])
            entries, make = ProducerHandlers(broker.manager, broker.hosted).describe(request)
            assert entries == 4
            deletion = {"topics": [], "topic_names": ["topic"], "timeout_ms": 10_000}
            await client.call(ApiKey.DELETE_TOPICS, 5, **deletion)
            await until(lambda: log.closed)
            assert make()["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
            client.peer.close()

    asyncio.run(main())


def test_a_follower_does_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1, 2) as brokers:
            for broker in brokers:
                await until_controlled(broker)
            clients = [Client(broker) for broker in brokers]
            elsewhere = TopicPartition("elsewhere", 0)
            for at, ids in ((elsewhere, [2]), (TP, [2, 1])):
                topic = {"name": at.topic, "num_partitions": -1, "replication_factor": -1, "configs": []}
                topic["assignments"] = [{"partition_index": 0, "broker_ids": ids}]
                await clients[0].call(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False)
            await until(lambda: all(TP in broker.manager.partitions for broker in brokers))
            response = await clients[1].produce(sent(8, 0, b"a", transactional=False))
            assert response.partitions[0].error is ErrorCode.NONE
            found = [(8, 0, 0, -1, -1)]
            await until(lambda: brokers[0].hosted.of(TP).log.log_end_offset == 1)
            for client in clients:
                assert await described(client, TP) == [(ErrorCode.NONE, found)]
            assert await described(clients[0], elsewhere) == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, [])]
            for client in clients:
                client.peer.close()

    asyncio.run(main())


def test_a_client_ends_a_transaction_that_no_coordinator_knows(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1) as (broker,):
            await until_controlled(broker)
            client = Client(broker)
            assert await client.create("topic") == 0
            log = broker.hosted.of(TP).log
            log.append_batches(sent(6, 0, b"a", epoch=2), transactional=True)
            log.append_batches(sent(9, 0, b"b", epoch=3), transactional=True)
            log.append_transaction_marker(6, 2, committed=True, coordinator_epoch=5)

            async def end(*marker: int, number: int = 0) -> list[int]:
                producer_id, epoch, coordinator_epoch = marker
                sent_markers = [(producer_id, epoch, False, [("topic", [number])], coordinator_epoch)]
                response = await client.call(ApiKey.WRITE_TXN_MARKERS, 1, markers=sent_markers)
                (found,) = response.markers
                assert found.producer_id == producer_id
                return [each.error_code for topic in found.topics for each in topic.partitions]

            end_before = log.log_end_offset
            assert await end(9, 2, -1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
            assert await end(6, 2, 4) == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]
            assert await end(-1, 2, 4) == [ErrorCode.INVALID_REQUEST]
            assert await end(9, 3, -1, number=1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            assert log.log_end_offset == end_before
            assert await described(client, TP) == [(ErrorCode.NONE, [(6, 2, 0, 5, -1), (9, 3, 0, -1, 1)])]
            assert await end(9, 3, -1) == [ErrorCode.NONE]
            assert log.log_end_offset == end_before + 1
            assert await described(client, TP) == [(ErrorCode.NONE, [(6, 2, 0, 5, -1), (9, 3, 0, 0, -1)])]
            client.peer.close()

    asyncio.run(main())
