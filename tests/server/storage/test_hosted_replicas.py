"""HostedReplicas: replicas that are created, deleted and set aside."""

from __future__ import annotations

import pytest

from kreplog.core import effects
from kreplog.errors import StorageError
from kreplog.server.storage.directories import known_topic_id
from tests.server.loop import run, until
from tests.server.storage.life import ID, OTHER_ID, TP, Life, opened


def test_a_replica_of_another_topic_is_set_aside_and_its_checkpoints_forgotten(life: Life, batch: bytes) -> None:
    """KIP-516: the new log must not believe what was noted down of the old."""
    logs = life.open()

    async def work() -> None:
        opened(logs)
        logs.execute(effects.AppendAsLeader(TP, batch, 4))
        logs.execute(effects.AdvanceHighWatermark(TP, 3))
        await logs.write_checkpoints()
        checkpoint = life.root / "data" / "replication-offset-checkpoint"
        assert "topic 0 3" in checkpoint.read_text()
        logs.execute(effects.SetAsideStray(TP))
        assert opened(logs, OTHER_ID) == effects.OpenedLog(effects.LogState(0, 0, ()), 0)
        assert "topic 0" not in checkpoint.read_text()

    run(work)
    (stray,) = (life.root / "data").glob("topic-0.*-stray")
    assert known_topic_id(stray) == ID
    assert logs.hosted.strays.keys() == [(ID, 0)]
    assert known_topic_id(life.root / "data" / "topic-0") == OTHER_ID
    life.crash()


def test_a_deleted_replica_is_gone_at_once_and_its_files_soon(life: Life, batch: bytes) -> None:
    logs = life.open()

    async def work() -> None:
        opened(logs)
        logs.execute(effects.AppendAsLeader(TP, batch, 0))
        view = logs.execute(effects.ReadLog(TP, 0, 3, 1 << 20))
        logs.execute(effects.Flush(TP))
        logs.execute(effects.DeleteLog(TP))
        assert logs.hosted.topic_ids() == {}
        assert not (life.root / "data" / "topic-0").exists()
        opened(logs, OTHER_ID)
        await until(lambda: not list((life.root / "data").glob("*-delete")))
        assert len(view) == len(batch), "a response that is being sent keeps its bytes"
        assert bytes(view)[61:] == batch[61:]

    run(work)
    assert life.events == [], "nobody hears of the fsync of a log that is gone"
    life.crash()


def test_nothing_is_created_again_that_may_be_on_the_missing_disk(life: Life) -> None:
    logs = life.open(complete=False)
    with pytest.raises(StorageError, match="none of the log directories"):
        opened(logs)
    life.crash()
