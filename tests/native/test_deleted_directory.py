"""A reader of a partition directory that is deleted and created again never mixes the two logs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog.errors import ErrorCode, PartitionDeletedError

CONFIG = LogConfig(segment_bytes=300)
COUNT = 30


def fill(path: Path, value: bytes) -> None:
    with Log.open(path, CONFIG) as log:
        for _ in range(COUNT):
            log.append(value)
        assert len(log.segments) > 5


def remove_state(path: Path) -> None:
    (path / "kreplog.state").unlink()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "t-0", b"former")
    fill(tmp_path / "t-1", b"neighbour")
    return tmp_path / "t-0"


@pytest.mark.parametrize("state_file", [True, False])
@pytest.mark.parametrize("read_before", [0, 1, 8, COUNT])
def test_created_again_under_a_reader(path: Path, state_file: bool, read_before: int) -> None:
    """Whatever it has read before: the records are of the former log, and then there is an error."""
    if not state_file:
        remove_state(path)
    with Log.open(path, read_only=True) as log:
        records = log.read()
        for _ in range(read_before):
            assert next(records).value == b"former"
        shutil.rmtree(path)
        fill(path, b"latter")
        if not state_file:
            remove_state(path)
        with pytest.raises(PartitionDeletedError, match=r"t-0: .* was deleted and created again .*: open it again"):
            for record in records:
                assert record.value == b"former"
            list(log.read(COUNT))
        with pytest.raises(PartitionDeletedError) as raised:
            log.fetch(COUNT)
        assert raised.value.path == str(path) and raised.value.kafka_code == ErrorCode.UNKNOWN_TOPIC_ID
    with Log.open(path, read_only=True) as log:
        assert set(log.values()) == {b"latter"}


def test_deleted_under_a_reader_that_waits(path: Path) -> None:
    with Log.open(path, read_only=True) as log:
        assert not log.fetch(COUNT).data
        shutil.rmtree(path)
        with pytest.raises(PartitionDeletedError, match="was deleted since"):
            log.fetch(COUNT)
        with pytest.raises(PartitionDeletedError, match="was deleted since"):
            list(log.read(COUNT))


def test_incarnation_ids(path: Path, tmp_path: Path) -> None:
    """Each directory has its own, which goes with a copy and stays through truncation and recovery."""

    def id_of(directory: Path) -> str | None:
        with Log.open(directory, read_only=True) as log:
            return log.incarnation_id

    former = id_of(path)
    assert former is not None and len(former) == 16 and former != id_of(tmp_path / "t-1")
    with Log.open(path) as log:
        log.truncate_fully_and_start_at(7)
        assert log.incarnation_id == former
    shutil.copytree(path, tmp_path / "copy" / "t-0")
    assert id_of(path) == id_of(tmp_path / "copy" / "t-0") == former
    topic_id = (path / "partition.metadata").read_bytes()
    shutil.rmtree(path)
    fill(path, b"latter")
    assert (path / "partition.metadata").read_bytes() == topic_id
    assert id_of(path) not in (None, former)


def test_an_incarnation_id_that_is_not_known(path: Path, tmp_path: Path) -> None:
    """Of a log that was there before its state file, and of a replicated one, whose records come from its leader."""
    remove_state(path)
    with Log.open(path) as log:
        assert log.incarnation_id is None
    with Log.open(tmp_path / "t-2", LogConfig(replicated=True)) as log:
        assert log.incarnation_id is None
    state = bytearray((tmp_path / "t-1" / "kreplog.state").read_bytes())
    state[515] ^= 1
    (tmp_path / "t-1" / "kreplog.state").write_bytes(state)
    with Log.open(tmp_path / "t-1", read_only=True) as log:
        assert log.incarnation_id is None and log.high_watermark == COUNT
