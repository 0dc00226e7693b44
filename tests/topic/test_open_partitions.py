"""A topic with more partitions than files: those not appended to lately are flushed and closed, and open again."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kreplog import LogConfig, Topic
from kreplog.errors import LogClosedError, UsageError
from tests.waiting import InChild

PARTITIONS = 150
MOST = 12


def open_files(folder: Path) -> list[str]:
    """The segments that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own
            continue
        if target.startswith(str(folder)) and target.endswith(".log"):
            found.append(target)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t"


def values(topic: Topic) -> list[bytes | None]:
    return sorted(record.value for record in topic.read())


def test_so_many_files_are_open(path: Path) -> None:
    with Topic.open(path, PARTITIONS, max_open_partitions=MOST) as topic:
        for turn in range(3):
            for number in range(PARTITIONS):
                assert topic.append(b"%d" % number, partition=number) == (number, turn)
                assert len(open_files(path.parent)) <= MOST
        assert open_files(path.parent)
    with Topic.open(path) as topic:
        assert values(topic) == sorted(b"%d" % number for number in range(PARTITIONS) for _ in range(3))


def test_what_is_closed_is_flushed(path: Path) -> None:
    with Topic.open(path, 2 * MOST, max_open_partitions=MOST) as topic:
        for number in range(MOST + 1):
            topic.append(b"", partition=number)
        flushed = [number for number in range(MOST + 1) if topic.log(number).recovery_point == 1]
        assert flushed == [*range(MOST // 2)], "those that were appended to first"


def test_columns_for_all_partitions(path: Path) -> None:
    with Topic.open(path, PARTITIONS, max_open_partitions=MOST) as topic:
        keys = [b"key %d" % number for number in range(20 * PARTITIONS)]
        for _ in range(2):
            written = topic.append_many(keys, keys)
            assert len(written) == PARTITIONS
            assert len(open_files(path.parent)) <= MOST
        assert values(topic) == sorted(2 * keys)


def leave_free(count: int) -> None:
    """Let this process open so many files more, whatever numbers its open ones have."""
    free = [os.dup(0) for _ in range(count)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    for number in free:
        os.close(number)


def test_the_process_may_open_no_more_files(path: Path) -> None:
    """Which it finds out by itself: other parts of it take files, too."""

    def append() -> list[bytes | None]:
        with Topic.open(path, PARTITIONS) as topic:
            leave_free(24)
            for _ in range(2):
                for number in range(PARTITIONS):
                    topic.append(b"%d" % number, partition=number)
            return values(topic)

    assert InChild(append).result() == sorted(b"%d" % number for number in range(PARTITIONS) for _ in range(2))


def test_columns_where_the_process_may_open_no_more_files(path: Path) -> None:
    """Also in the middle of a partition's records, for each of its segments."""
    config = LogConfig(segment_bytes=2000, batch_bytes=500)
    sent = [b"%d %s" % (number, b"x" * 50) for number in range(40 * 30)]

    def append() -> bool:
        with Topic.open(path, 30, config=config) as topic:
            for number in range(30):
                topic.append(sent[number], partition=number)
            leave_free(7)
            appended = topic.append_many(pa.table({"value": sent, "partition": [n % 30 for n in range(len(sent))]}))
            assert appended == {number: range(1, 41) for number in range(30)}
            return all(
                [record.value for record in topic.read(number)] == [sent[number], *sent[number::30]]
                for number in range(30)
            )

    assert InChild(append).result()


def test_logs_in_the_users_hands_count(path: Path) -> None:
    with Topic.open(path, 2 * MOST, max_open_partitions=MOST) as topic:
        logs = [topic.log(number) for number in range(2 * MOST)]
        for log in logs[:MOST]:
            log.append(b"x")
        topic.append(b"x", partition=MOST)
        assert len(open_files(path.parent)) <= MOST


def test_a_quarter_of_the_files_at_most(path: Path) -> None:
    def append() -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (80, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with Topic.open(path, PARTITIONS) as topic:
            for number in range(PARTITIONS):
                topic.append(b"", partition=number)
                assert len(open_files(path.parent)) <= 20
            return len(values(topic))

    assert InChild(append).result() == PARTITIONS


def test_after_close(path: Path) -> None:
    with Topic.open(path, 3, max_open_partitions=1) as topic:
        topic.append(b"", partition=0)
        topic.append(b"", partition=1)
    for number in range(3):
        with pytest.raises(LogClosedError):
            topic.append(b"", partition=number)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_bad_limits(path: Path, wrong: Any) -> None:
    with pytest.raises((UsageError, TypeError), match="max_open_partitions"):
        Topic.open(path, 2, max_open_partitions=wrong)
