"""A controller that says nothing empties no broker: what an INIT does not name is set aside, and taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kreplog
from kreplog.core.messages import LeaderAndIsrRequest
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.monitoring.metrics import render
from kreplog.types import TopicPartition
from tests.hostile.test_names import control
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.test_broker import Client

TP = TopicPartition("topic", 0)
RECORDS = 20


async def until_led(broker: Broker) -> None:
    async def led() -> bool:
        partition = broker.manager.partitions.get(TP)
        return partition is not None and partition.role.name == "LEADER"

    await eventually(led)


async def forged_silence(broker: Broker) -> None:
    """An INIT in the newest epochs that names no replica at all."""
    answer = await control(broker, LeaderAndIsrRequest, (), is_init=True)
    assert answer.error is ErrorCode.NONE
    assert TP not in broker.manager.partitions


async def log_end(broker: Broker) -> int:
    return broker.manager.partitions[TP].log.leo


def test_an_empty_init_loses_nothing_and_the_next_one_has_it_all_back(tmp_path: Path) -> None:
    data = tmp_path / "data-1"
    batch = _batch(tmp_path)

    async def attack() -> None:
        async with serving(tmp_path, 1) as (broker,):
            await until_controlled(broker)
            client = Client(broker)
            assert await client.create("topic") == 0
            for _ in range(RECORDS):
                assert (await client.produce(batch)).partitions[0].error is ErrorCode.NONE
            client.peer.close()
            await forged_silence(broker)
            (stray,) = data.glob("topic-0.*-stray")
            assert (stray / f"{0:020}.log").stat().st_size >= RECORDS * len(batch)
            assert b"kafka_log_logmanager_strayreplicacount 1\n" in await render(broker)

    async def recover() -> None:
        async with serving(tmp_path, 1) as (broker,):
            await until_led(broker)
            assert await log_end(broker) == RECORDS
            assert not list(data.glob("*-stray"))
            assert b"kafka_log_logmanager_strayreplicacount 0\n" in await render(broker)

    asyncio.run(attack())
    asyncio.run(recover())


def test_a_stray_is_taken_back_within_the_same_life(tmp_path: Path) -> None:
    batch = _batch(tmp_path)

    async def attack() -> None:
        async with serving(tmp_path, 1) as (broker,):
            await until_controlled(broker)
            client = Client(broker)
            assert await client.create("topic") == 0
            for _ in range(RECORDS):
                await client.produce(batch)
            client.peer.close()
            state = broker.manager.metadata.partitions[TP]._replace(is_new=False)

            async def synced() -> bool:
                return not broker.hosted.busy_strays  # until then it is refused, and a restart takes it back

            for _ in range(3):
                await forged_silence(broker)
                await eventually(synced)
                state = state._replace(state=state.state._replace(leader_epoch=state.state.leader_epoch + 1))
                answer = await control(broker, LeaderAndIsrRequest, (state,))
                assert answer.error is ErrorCode.NONE
                assert dict(answer.partitions) == {TP: ErrorCode.NONE}  # type: ignore[union-attr]
                assert await log_end(broker) == RECORDS

    asyncio.run(attack())


def _batch(root: Path) -> bytes:
    with kreplog.Log.open(root / "source-0") as log:
        log.append(b"value")
        return bytes(log.fetch(0).data)
