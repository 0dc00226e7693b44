"""Names from outside never become a path beyond the log directory, whoever sends or writes them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kreplog
from kreplog.core import nodes
from kreplog.core.messages import (
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.errors import CoordinationError, ErrorCode, InvalidTopicError, LogLockedError, StorageError
from kreplog.managed_log import ManagedLog
from kreplog.server.broker import Broker
from kreplog.server.storage.directories import DataDirectory, known_topic_id
from kreplog.types import BrokerRegistration, Create, LeaderAndIsr, Node, NodeStat, TopicPartition, check_partition
from tests.server.brokers import eventually, serving, until_controlled

ID = "AAAAAAAAAAAAAAAAAAAAAA"

ILLEGAL_TOPICS = ("../../victim", "..", ".", "", "a/b", "a\0b", 'a"b', "a\nb", "a b", "x" * 250, "/tmp/victim")

ILLEGAL = (
    *(TopicPartition(topic, 0) for topic in ILLEGAL_TOPICS),
    TopicPartition("topic", -1),
    TopicPartition("topic", 2**31),
)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory of somebody else's, beside the cluster's, named as a partition directory."""
    folder = tmp_path / "victim-0"
    folder.mkdir()
    (folder / "precious").write_text("data")
    return folder


def listing(root: Path) -> Iterator[tuple[str, bytes]]:
    """Every path and file content under `root`."""
    for path in sorted(root.rglob("*")):
        yield str(path.relative_to(root)), path.read_bytes() if path.is_file() else b""


async def control(broker: Broker, request: type[Any], *content: Any, **more: Any) -> ControlResponse:
    """The answer to a control request that is forged well: its epochs are the newest, and it comes after the others."""
    manager = broker.manager
    more["sequence"] = manager.fencing.last_sequence + 1
    return await broker.api.handle_local_control(
        request(broker.id, manager.controller_epoch, manager.broker_epoch, *content, **more)
    )


@pytest.mark.parametrize("illegal", ILLEGAL, ids=repr)
def test_no_illegal_name_is_a_partition(illegal: TopicPartition) -> None:
    with pytest.raises(InvalidTopicError):
        check_partition(illegal)
    if illegal.partition >= 0:  # with -1 it is the name of partition 1 of "topic-"
        with pytest.raises(InvalidTopicError):
            TopicPartition.parse(str(illegal))


def test_a_forged_controller_reaches_no_file_outside_the_log_directory(tmp_path: Path, victim: Path) -> None:
    state = LeaderAndIsr(1, 1, (1,))
    reached = [*ILLEGAL, TopicPartition(str(tmp_path / "victim"), 0), TopicPartition("../victim", 0)]

    async def attack() -> None:
        async with serving(tmp_path / "cluster", 1) as (broker,):
            await until_controlled(broker)
            before = list(listing(tmp_path / "cluster" / "data-1"))
            known = dict(broker.manager.metadata.brokers)
            for illegal in reached:
                result = PartitionState(illegal, ID, state, (1,), is_new=True)
                answer = await control(broker, LeaderAndIsrRequest, (result,))
                assert answer.error is ErrorCode.INVALID_TOPIC_EXCEPTION
                answer = await control(broker, StopReplicaRequest, (StopReplica(illegal, ID, -1, True),))
                assert answer.error is ErrorCode.INVALID_TOPIC_EXCEPTION
                foreign = BrokerRegistration(1, broker.manager.broker_epoch, "192.0.2.1", 1)
                answer = await control(broker, UpdateMetadataRequest, (foreign,), (result,))
                assert answer.error is ErrorCode.INVALID_TOPIC_EXCEPTION
            assert broker.manager.partitions == {} and broker.manager.metadata.partitions == {}
            assert broker.manager.metadata.brokers == known
            assert list(listing(tmp_path / "cluster" / "data-1")) == before

    asyncio.run(attack())
    assert list(listing(victim)) == [("precious", b"data")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster", "victim-0"]


def test_topics_of_illegal_names_in_the_store_are_passed_over(tmp_path: Path) -> None:
    """Whoever can write the store makes no file elsewhere by it, and stops no controller."""
    content = nodes.encode_topic(nodes.TopicNode(ID, {0: nodes.Assignment((1,))}))

    async def write() -> None:
        async with serving(tmp_path / "cluster", 1) as (broker,):
            await until_controlled(broker)
            names = ("a b", "x" * 250, "...", "legal")
            await broker.store.multi([Create(nodes.topic(name), content) for name in names])

            async def made() -> bool:
                return broker.manager.partitions.keys() >= {TopicPartition("legal", 0), TopicPartition("...", 0)}

            await eventually(made)
            assert broker.controller.active
            data = tmp_path / "cluster" / "data-1"
            assert sorted(path.name for path in data.iterdir() if path.is_dir()) == ["...-0", "legal-0"]

    asyncio.run(write())


@pytest.mark.parametrize(
    "topic",
    [nodes.TopicNode(ID + "\nx: y", {0: nodes.Assignment((1,))}), nodes.TopicNode(ID, {2**31: nodes.Assignment((1,))})],
    ids=["id", "number"],
)
def test_a_topic_node_with_what_can_be_no_partition_is_unreadable(topic: nodes.TopicNode) -> None:
    node = Node(nodes.encode_topic(topic), NodeStat(0, 1, 1))
    with pytest.raises(CoordinationError, match="/brokers/topics/t"):
        nodes.decode_topic("/brokers/topics/t", node)


@pytest.mark.parametrize("illegal", ILLEGAL, ids=repr)
def test_the_layer_that_touches_files_takes_no_illegal_name(tmp_path: Path, illegal: TopicPartition) -> None:
    directory = DataDirectory(str(tmp_path / "data"), 1, "boot")
    before = list(listing(tmp_path))
    for touch in (
        directory.folder,
        lambda partition: directory.make(partition, ID),
        directory.mark_deleted,
    ):
        with pytest.raises(InvalidTopicError):
            touch(illegal)
    assert list(listing(tmp_path)) == before
    directory.close(clean=False)


@pytest.mark.parametrize("topic_id", ["", "a\nbroker.id: 2", "../x", "x" * 65])
def test_no_illegal_topic_id_is_written(tmp_path: Path, topic_id: str) -> None:
    directory = DataDirectory(str(tmp_path / "data"), 1, "boot")
    with pytest.raises(InvalidTopicError, match="topic id"):
        directory.make(TopicPartition("topic", 0), topic_id)
    assert not directory.folder(TopicPartition("topic", 0)).exists()
    directory.close(clean=False)


def test_a_symbolic_link_is_no_replica_and_leads_no_deletion_outside(tmp_path: Path, victim: Path) -> None:
    data = tmp_path / "data"
    directory = DataDirectory(str(data), 1, "boot")
    partition = TopicPartition("topic", 0)
    (victim / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID}\n")
    before = list(listing(victim))
    for name in ("topic-0", f"topic-1.{'0' * 32}-delete"):
        (data / name).symlink_to(victim)
    assert directory.replicas() == {}
    with pytest.raises(StorageError, match="symbolic link"):
        directory.make(partition, ID)
    with pytest.raises(StorageError, match="symbolic link"):
        directory.mark_deleted(partition)
    with pytest.raises(StorageError):
        ManagedLog.open(data / "topic-0")
    directory.remove_leftovers()
    directory.remove(data / "topic-0")
    assert list(listing(victim)) == before
    directory.close(clean=False)


def test_only_what_was_renamed_for_deletion_is_removed(tmp_path: Path, victim: Path) -> None:
    """A directory whose name merely ends as those do is somebody else's, and so is one elsewhere."""
    data = tmp_path / "data"
    directory = DataDirectory(str(data), 1, "boot")
    for name in ("backup-delete", "topic-0.old-delete", "topic-0"):
        (data / name).mkdir()
    directory.remove_leftovers()
    for path in (victim, data, data / ".." / "victim-0", data / "topic-0"):
        directory.remove(path)
    assert sorted(path.name for path in data.iterdir() if path.is_dir()) == [
        "backup-delete",
        "topic-0",
        "topic-0.old-delete",
    ]
    assert (victim / "precious").exists()
    moved = directory.mark_deleted(TopicPartition("topic", 0))
    directory.remove(moved)
    assert not os.path.lexists(moved)
    directory.close(clean=False)


def test_a_checkpoint_file_names_no_path(tmp_path: Path) -> None:
    """Lines that no kreplog wrote: the file is damaged, and nothing is looked for where they point."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "replication-offset-checkpoint").write_text("0\n1\n../../victim 0 5\n")
    directory = DataDirectory(str(tmp_path / "data"), 1, "boot")
    directory.make(TopicPartition("topic", 0), ID)
    directory.write_checkpoints(dict)
    assert "victim" not in (tmp_path / "data" / "replication-offset-checkpoint").read_text()
    assert known_topic_id(tmp_path / "data" / "topic-0") == ID
    directory.close(clean=False)


def test_an_embedded_log_is_opened_where_its_path_says(tmp_path: Path) -> None:
    """The embedded log's user chooses the path, through a link too; its name is checked all the same."""
    (tmp_path / "elsewhere" / "topic-0").mkdir(parents=True)
    (tmp_path / "topic-0").symlink_to(tmp_path / "elsewhere" / "topic-0")
    with kreplog.Log.open(tmp_path / "topic-0") as log:
        log.append(b"x")
        with pytest.raises(LogLockedError):
            kreplog.Log.open(tmp_path / "elsewhere" / "topic-0")
    with pytest.raises(InvalidTopicError):
        kreplog.Log.open(tmp_path / "no name")
