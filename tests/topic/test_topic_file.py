"""The topic file, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from kreplog import Topic, errors
from kreplog.topic.topic_file import TopicFile, read_topic_file, write_topic_file

CONTENT = TopicFile("AAAAAAAAAAAAAAAAAAAAAQ", 12, 3)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "t.topic")
    assert read_topic_file(path) is None
    write_topic_file(path, CONTENT)
    assert read_topic_file(path) == CONTENT
    assert (
        Path(path)
        .read_bytes()
        .startswith(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\npartitions: 12\ncreated: 3\n")
    )


def test_damage_of_every_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "t.topic"
    write_topic_file(str(path), CONTENT)
    whole = path.read_bytes()
    damaged = [whole[:at] for at in range(len(whole))] + [whole + b"\n", whole * 2, bytes(5000)]
    damaged += [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    ]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(errors.CorruptCheckpointError, match="damaged") as raised:
            read_topic_file(str(path))
        assert raised.value.path == str(path)


def test_more_created_than_wanted_is_damage(tmp_path: Path) -> None:
    path = str(tmp_path / "t.topic")
    write_topic_file(path, TopicFile("AAAAAAAAAAAAAAAAAAAAAQ", 3, 4))
    with pytest.raises(errors.CorruptCheckpointError):
        read_topic_file(path)


def test_a_topic_with_a_damaged_file(tmp_path: Path) -> None:
    """Readers go by the directories; a writer is refused, until the file is deleted."""
    path = tmp_path / "orders"
    with Topic.open(path, 3) as topic:
        topic.append(b"x", partition=2)
    (tmp_path / "orders.topic").write_bytes(b"version: 0\n")
    with Topic.open(path, read_only=True) as reader:
        assert reader.partitions == 3 and len(list(reader.read())) == 1
    with pytest.raises(errors.CorruptCheckpointError, match="delete it"):
        Topic.open(path)
    (tmp_path / "orders.topic").unlink()
    with Topic.open(path) as again:
        assert again.topic_id == topic.topic_id and len(list(again.read())) == 1


def test_partitions_that_are_being_made_are_not_read(tmp_path: Path) -> None:
    with Topic.open(tmp_path / "orders", 3) as topic:
        write_topic_file(str(tmp_path / "orders.topic"), TopicFile(CONTENT.topic_id, 3, 1))
        with Topic.open(topic.path, read_only=True) as reader:
            assert reader.partitions == 1
            write_topic_file(str(tmp_path / "orders.topic"), TopicFile(CONTENT.topic_id, 3, 3))
            assert reader.partitions == 3
