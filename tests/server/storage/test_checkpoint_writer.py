"""Checkpoint files: written for every replica on disk, once for each directory."""

from __future__ import annotations

import os

import pytest

import kreplog
from kreplog._native.writable import abandon
from kreplog.config import LogConfig
from kreplog.core import effects
from kreplog.errors import StorageError
from kreplog.types import TopicPartition
from tests.server.loop import run
from tests.server.storage.life import ID, TP, Life, appended, opened


def test_a_checkpoint_never_drops_a_replica_that_is_on_disk(life: Life, batch: bytes) -> None:
    """F31, KAFKA-1647: also one that could not be opened in this life."""
    logs = life.open()

    async def write() -> None:
        await life.logs.write_checkpoints()

    opened(logs)
    appended(logs, batch)
    logs.execute(effects.AdvanceHighWatermark(TP, 3))
    run(write)
    life.crash()
    folder = life.root / "data" / "topic-0"
    held = kreplog.Log.open(folder, LogConfig(replicated=True))  # somebody else has it open: it cannot be opened here
    life.open()
    run(write)
    assert "topic 0 3" in (life.root / "data" / "replication-offset-checkpoint").read_text()
    assert life.logs.hosted.topic_ids() == {TP: ID}
    with pytest.raises(StorageError):
        opened(life.logs)
    life.crash()
    abandon(held)


def test_the_end_writes_the_checkpoints_of_a_directory_once(
    life: Life, batch: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each log took minutes for thousands of them."""
    logs = life.open()
    places = [TopicPartition("topic", number) for number in range(20)]
    for place in places:
        opened(logs, partition=place)
        appended(logs, batch, partition=place)
        logs.execute(effects.AdvanceHighWatermark(place, 3))
    replaced: list[str] = []
    replace = os.replace

    def counted(source: str, target: str) -> None:
        replaced.append(target.rpartition("/")[2])
        replace(source, target)

    monkeypatch.setattr(os, "replace", counted)
    assert logs.close()
    assert sorted(name for name in replaced if name.endswith("-offset-checkpoint")) == [
        "log-start-offset-checkpoint",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
    ]
    for name in ("recovery-point", "replication"):
        text = (life.root / "data" / f"{name}-offset-checkpoint").read_text()
        assert text.splitlines()[1:] == [
            "20",
            *sorted((f"topic {place.partition} 3" for place in places), key=by_number),
        ]


def by_number(line: str) -> int:
    return int(line.split()[1])
