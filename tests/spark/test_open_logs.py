"""Logs that stay open between micro-batches: kept while the directory is the same, opened again when it is not."""

from __future__ import annotations

import gc
import os
import resource
import shutil
from pathlib import Path

import pytest

import kreplog
from kreplog.types import TopicPartition
from pyspark_kreplog.open_logs import OpenLogs
from pyspark_kreplog.options import parse_stream

PARTITION = TopicPartition("t", 0)


def fill(path: Path, count: int) -> None:
    with kreplog.Log.open(path / str(PARTITION)) as log:
        log.append_many([b"x"] * count)


def logs_of(path: Path) -> OpenLogs:
    return OpenLogs(parse_stream({"path": str(path), "subscribe": "t"}))


def end_of(logs: OpenLogs) -> int:
    return logs.states([PARTITION])[PARTITION].end_offset


def test_a_log_is_opened_once(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    logs = logs_of(tmp_path)
    with logs.use(PARTITION) as first:
        assert first is not None
    fill(tmp_path, 5)
    assert end_of(logs) == 15
    with logs.use(PARTITION) as second:
        assert second is first
    logs.close()
    assert first.closed


def test_a_directory_that_was_created_again(tmp_path: Path) -> None:
    """Also where the new one has the former topic id."""
    fill(tmp_path, 10)
    logs = logs_of(tmp_path)
    assert end_of(logs) == 10
    metadata = (tmp_path / "t-0" / "partition.metadata").read_bytes()
    shutil.rmtree(tmp_path / "t-0")
    assert logs.states([PARTITION]) == {}
    fill(tmp_path, 3)
    former = logs.states([PARTITION])[PARTITION]
    shutil.rmtree(tmp_path / "t-0")
    fill(tmp_path, 4)
    (tmp_path / "t-0" / "partition.metadata").write_bytes(metadata)
    state = logs.states([PARTITION])[PARTITION]
    assert (former.end_offset, state.end_offset) == (3, 4)
    assert former.topic_id != state.topic_id


def test_another_topic_id_in_the_same_directory(tmp_path: Path) -> None:
    fill(tmp_path, 10)
    logs = logs_of(tmp_path)
    former = logs.states([PARTITION])[PARTITION].topic_id
    (tmp_path / "t-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    assert logs.states([PARTITION])[PARTITION].topic_id == "00000000-0000-0000-0000-000000000001" != former


def test_a_directory_without_a_state_file(tmp_path: Path) -> None:
    """As Kafka writes it: opened for each use, since nothing shows whether it is the same."""
    fill(tmp_path, 10)
    (tmp_path / "t-0" / "kreplog.state").unlink()
    logs = logs_of(tmp_path)
    with logs.use(PARTITION) as log:
        assert log is not None
        assert log.high_watermark == 10
    assert log.closed


def test_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of those that the process may have, at most; the rest of the logs are closed after each use."""
    partitions = [TopicPartition("t", number) for number in range(50)]
    for partition in partitions:
        with kreplog.Log.open(tmp_path / str(partition)) as log:
            log.append(b"x")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (40, 40))
    gc.collect()  # logs of other tests
    before = len(os.listdir("/dev/fd"))
    logs = logs_of(tmp_path)
    for _ in range(2):
        assert len(logs.states(partitions)) == 50
        assert len(os.listdir("/dev/fd")) - before <= 20
    assert len(logs.states(partitions[:5])) == 5
    assert len(os.listdir("/dev/fd")) - before <= 5
    logs.close()
    assert len(os.listdir("/dev/fd")) == before
