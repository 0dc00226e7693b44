"""compression.type of a topic: its leader recompresses what comes under another codec."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog._native.batch import build, decode_values
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.server.brokers import serving, until_controlled
from tests.server.test_broker import Client

VALUES = [b"value %d " % number * 30 for number in range(40)]
NONE, GZIP, ZSTD = 0, 1, 4


def codec(batch: Any) -> int:
    return bytes(batch)[22] & 7


async def create(client: Client, name: str, **settings: str) -> TopicPartition:
    configs = [{"name": setting.replace("_", "."), "value": value} for setting, value in settings.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
    answer = await client.call(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False)
    assert answer.topics[0].error_code == 0
    return TopicPartition(name, 0)


async def stored(client: Client, at: TopicPartition, batch: bytes) -> int:
    """Produce a batch; returns its codec in the log, once its values are found unchanged there."""
    (answer,) = (await client.produce(batch, at=at)).partitions
    assert answer.error is ErrorCode.NONE
    (found,) = (await client.fetch(at, offset=answer.base_offset)).partitions
    assert decode_values(bytes(found.records)) == VALUES
    return codec(found.records)


def test_batches_are_compressed_as_their_topic_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1, compression_type="zstd") as (broker,):
            await until_controlled(broker)
            client = Client(broker)
            plain, packed = build(VALUES), build(VALUES, compression="gzip")
            gzip, none, producers, usual = [
                await create(client, "gzip", compression_type="gzip"),
                await create(client, "none", compression_type="uncompressed"),
                await create(client, "producers", compression_type="producer"),
                await create(client, "usual"),
            ]
            for at, of_plain, of_packed in (
                (gzip, GZIP, GZIP),
                (none, NONE, NONE),
                (producers, NONE, GZIP),
                (usual, ZSTD, ZSTD),
            ):
                assert (await stored(client, at, plain), await stored(client, at, packed)) == (of_plain, of_packed)
            setting = {"name": "compression.type", "value": "uncompressed", "config_operation": 0}
            resource = {"resource_type": 2, "resource_name": "gzip", "configs": [setting]}
            await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, resources=[resource], validate_only=False)
            assert await stored(client, gzip, packed) == NONE
            client.peer.close()

    asyncio.run(main())


def test_what_is_refused_is_refused_before_and_after(tmp_path: Path) -> None:
    """A damaged batch, one that is too large as it comes, one that has become too large, and a repeated one."""

    async def main() -> None:
        async with serving(tmp_path, 1) as (broker,):
            await until_controlled(broker)
            client = Client(broker)
            packed, plain = build(VALUES, compression="gzip"), build(VALUES)
            limit = str(len(plain) - 1)
            grows = await create(client, "grows", compression_type="uncompressed", max_message_bytes=limit)
            shrinks = await create(client, "shrinks", compression_type="gzip", max_message_bytes=limit)
            damaged = bytearray(packed)
            damaged[70] ^= 1
            for at, batch, error in (
                (grows, packed, ErrorCode.MESSAGE_TOO_LARGE),
                (shrinks, plain, ErrorCode.MESSAGE_TOO_LARGE),
                (grows, bytes(damaged), ErrorCode.CORRUPT_MESSAGE),
                (shrinks, packed, ErrorCode.NONE),
            ):
                (answer,) = (await client.produce(batch, at=at)).partitions
                assert answer.error is error
            closed = await create(client, "closed", compression_type="gzip", max_message_bytes="0")
            for batch in (plain, packed):
                (answer,) = (await client.produce(batch, at=closed)).partitions
                assert answer.error is ErrorCode.MESSAGE_TOO_LARGE
            usual = await create(client, "usual", compression_type="zstd")
            batch = build(VALUES, producer_id=5, producer_epoch=0, base_sequence=0)
            answers = [(await client.produce(batch, at=usual)).partitions[0] for _ in range(2)]
            assert [(answer.error, answer.base_offset) for answer in answers] == [(ErrorCode.NONE, 0)] * 2
            assert broker.hosted.of(usual).log.log_end_offset == len(VALUES)
            client.peer.close()

    asyncio.run(main())
