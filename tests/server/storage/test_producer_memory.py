"""Idempotent producers that a broker's logs remember are charged to its memory account."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kreplog._native.batch import build
from kreplog.core import effects
from kreplog.core.memory import PRODUCERS, MemoryAccount
from kreplog.errors import ErrorCode, TooManyProducersError
from kreplog.server.storage.producer_memory import PRODUCER_BYTES
from kreplog.types import TopicPartition
from tests.server.loop import run, until
from tests.server.storage.life import TP, Life, appended, opened


def produced_by(producer_id: int, sequence: int = 0, base_offset: int = 0) -> bytes:
    return build([b"x"], producer_id=producer_id, producer_epoch=0, base_sequence=sequence, base_offset=base_offset)


def test_producer_ids_are_charged_and_new_ones_refused(tmp_path: Path) -> None:
    """Of all logs together they may take a quarter of the account. Known ones go on, and a follower takes what its
    leader's log has. They are charged again after a restart, and no more once their log is deleted."""
    pool = ThreadPoolExecutor(1)
    life = Life(tmp_path, pool)
    memory = MemoryAccount(4 * 3 * PRODUCER_BYTES)
    other = TopicPartition("topic", 1)
    logs = life.open(memory=memory)
    for partition in (TP, other):
        opened(logs, partition=partition)
    appended(logs, produced_by(1))
    appended(logs, produced_by(2), partition=other)
    appended(logs, produced_by(3), partition=other)
    assert memory.held[PRODUCERS] == 3 * PRODUCER_BYTES
    with pytest.raises(TooManyProducersError) as refused:
        appended(logs, produced_by(4))
    assert refused.value.kafka_code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert memory.held[PRODUCERS] == 3 * PRODUCER_BYTES
    appended(logs, produced_by(1, 1))
    logs.execute(effects.AppendAsFollower(TP, produced_by(5, 0, 2)))
    assert memory.held[PRODUCERS] == 4 * PRODUCER_BYTES
    life.crash()

    memory = MemoryAccount(4 * 3 * PRODUCER_BYTES)
    logs = life.open(memory=memory)
    assert memory.held[PRODUCERS] == 4 * PRODUCER_BYTES

    async def delete() -> None:
        logs.execute(effects.DeleteLog(TP))
        await until(lambda: logs.hosted.background.idle)

    run(delete)
    assert memory.held[PRODUCERS] == 2 * PRODUCER_BYTES
    appended(logs, produced_by(4), partition=other)
    life.crash()
    pool.shutdown()
