"""Topics with the longest names that are legal are deleted and set aside like any other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kreplog.server.storage.directories import DataDirectory
from kreplog.types import TopicPartition


@pytest.mark.parametrize("length", [1, 213, 214, 249])
@pytest.mark.parametrize("number", [0, 99_999])
def test_a_topic_of_any_length_is_deleted(tmp_path: Path, length: int, number: int) -> None:
    directory = DataDirectory(str(tmp_path), 1, "boot")
    partition = TopicPartition("t" * length, number)
    directory.make(partition, "5xJvLk2ESNClQL9qcbLzZg")
    moved = directory.mark_deleted(partition)
    assert moved.is_dir() and len(os.fsencode(moved.name)) <= 255
    directory.remove(moved)
    assert not moved.exists() and partition not in directory.replicas()
    directory.close(clean=True)


def test_a_stray_of_a_long_name_is_found_again(tmp_path: Path) -> None:
    directory = DataDirectory(str(tmp_path), 1, "boot")
    partition = TopicPartition("t" * 249, 4)
    directory.make(partition, "5xJvLk2ESNClQL9qcbLzZg")
    directory.set_stray(partition)
    (stray,) = directory.strays()
    assert (stray.topic_id, stray.partition) == ("5xJvLk2ESNClQL9qcbLzZg", 4)
    directory.restore(stray, partition)
    assert list(directory.replicas()) == [partition]
    directory.set_stray(partition)
    (stray,) = directory.strays()
    directory.remove(directory.mark_stray_deleted(stray))
    assert not directory.strays() and not list(tmp_path.glob("t*"))
    directory.close(clean=True)
