"""Cursor groups: members in threads and processes, their partitions, deaths, commits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kreplog import GroupCursor, Topic, TopicRecord, errors
from kreplog._native import batch
from tests.faults.forked import result_of
from tests.waiting import InChild, InThread, until, until_waiting


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    with Topic.open(path, 4) as opened:
        for number in range(20):
            opened.append(b"%d" % number, partition=number % 4)
        yield opened


def turn(cursor: GroupCursor) -> list[TopicRecord]:
    """What it reads once it has balanced."""
    cursor._balanced_s = -1.0
    return list(cursor.follow(timeout=0))


def settle(*cursors: GroupCursor) -> None:
    for _ in range(3):
        for cursor in cursors:
            turn(cursor)
            cursor.commit()


def test_partitions_are_split_and_come_back(topic: Topic) -> None:
    with topic.group_cursor("billing") as first:
        assert len(turn(first)) == 20 and first.positions == dict.fromkeys(range(4), 5)
        with topic.group_cursor("billing") as second:
            assert turn(second) == [] == turn(first) and second.positions == {}
            topic.append(b"new", partition=3)
            assert turn(first) == [], "a partition above the share is read no more"
            assert len(first.positions) == 4, "and stays until what was returned is committed"
            first.commit()
            assert first.positions == {0: 5, 1: 5}, "those that it has had longest"
            assert [record.value for record in turn(second)] == [b"new"] and second.positions == {2: 5, 3: 6}
            with pytest.raises(errors.UsageError, match="does not own"):
                second.seek(0, 0)
        assert [record.value for record in turn(first)] == [b"new"], "which the other has not committed"
        assert len(first.positions) == 4


@contextmanager
def stopped(call: Callable[[], None]) -> Iterator[int]:
    """The process id of a child that has stopped itself; it is killed at the end."""
    child = InChild(call)
    try:
        until_stopped(child.pid)
        yield child.pid
    finally:
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(AssertionError, match="killed"):
            child.result()


def until_stopped(pid: int) -> None:
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])


def test_a_new_member_and_a_death_move_no_other_partition(topic: Topic) -> None:
    with topic.group_cursor("billing") as first, topic.group_cursor("billing") as second:
        settle(first, second)
        assert set(first.positions) == {0, 1} and set(second.positions) == {2, 3}
        with topic.group_cursor("billing") as third:
            settle(first, second, third)
            assert (set(first.positions), set(second.positions), set(third.positions)) == ({0, 1}, {2}, {3})
            first.close()
            settle(second, third)
            assert set(second.positions) == {0, 2} and set(third.positions) == {1, 3}


def test_partitions_that_are_added(topic: Topic) -> None:
    with topic.group_cursor("a", start="latest") as cursor:
        assert turn(cursor) == []
        topic.add_partitions(5)
        topic.append(b"new", partition=4)
        assert [record.value for record in turn(cursor)] == [b"new"]


def test_records_since_the_start_of_a_member_that_has_committed_nothing(topic: Topic) -> None:
    with topic.group_cursor("a", start="latest") as cursor:
        assert turn(cursor) == []
        topic.append(b"new", partition=1)
        assert len(turn(cursor)) == 1
    with topic.group_cursor("a", start="latest") as cursor:
        assert [record.value for record in turn(cursor)] == [b"new"]


def test_members_that_come_together_begin_at_the_latest(topic: Topic) -> None:
    """Not at the start of the partitions that the first to read has left to the others."""
    with topic.group_cursor("a", start="latest") as first, topic.group_cursor("a", start="latest") as second:
        assert turn(first) == []
        topic.append(b"new", partition=3)
        assert len(first.positions) == 2 and [record.value for record in turn(second)] == [b"new"]
        topic.add_partitions(5)
        topic.append(b"newer", partition=4)
        assert [record.value for record in turn(first) + turn(second)] == [b"newer"]
    with topic.work_queue("b", start="latest") as queue, topic.work_queue("b", start="latest") as other:
        assert queue.take(100, timeout=0) == other.take(100, timeout=0) == []


def test_lists_seek_and_the_end_of_an_iteration(topic: Topic) -> None:
    with topic.group_cursor("a") as cursor:
        lists = list(cursor.follow_batches(timeout=0, max_records=3))
        assert [len(records) for records in lists] == [3, 2] * 4
        assert all(len({record.partition for record in records}) == 1 for records in lists)
        cursor.seek(2, 3)
        iteration = cursor.follow(timeout=0)
        assert next(iteration)[:2] == (2, 3)
        assert [record[:2] for record in cursor.follow(timeout=0)] == [(2, 4)], "it begins at the place"
        with pytest.raises(errors.UsageError, match="another iteration"):
            next(iteration)
        for offset in (6, -1, True):
            with pytest.raises(errors.UsageError):
                cursor.seek(2, offset)
        waiting = InThread(lambda: list(cursor))
        until_waiting(Path(f"{topic.path}-2"), 5)
        topic.close()
        assert waiting.result() == [] and cursor.closed
        with pytest.raises(errors.LogClosedError):
            cursor.commit()


def test_deleted_and_truncated_records(topic: Topic) -> None:
    with topic.group_cursor("a") as cursor:
        topic.log(1).delete_records_before(2)
        iteration = cursor.follow()
        records = [next(iteration) for _ in range(18)]
        assert min(record.offset for record in records if record.partition == 1) == 2, "it begins at the log start"
        cursor.commit()
        topic.log(0).truncate_to(3)
        with pytest.raises(errors.LogTruncatedError):
            next(iteration)
        topic.append(b"new", partition=0)
        assert [record[:2] for record in turn(cursor)] == [(0, 3)]
        cursor.seek(1, 3)
        cursor.commit()
    topic.log(1).delete_records_before(4)
    with topic.group_cursor("a") as cursor:
        with pytest.raises(errors.OffsetOutOfRangeError):
            turn(cursor)
        cursor.seek(1, 4)
        assert [record[:2] for record in turn(cursor)] == [(1, 4)]


def test_truncated_records_that_were_committed(topic: Topic) -> None:
    with topic.group_cursor("a") as cursor:
        assert len(turn(cursor)) == 20
        cursor.commit()
    topic.log(0).truncate_to(3)
    topic.log(1).truncate_to(3)
    topic.log(1).append_batches(batch.build([b"other"] * 4), leader_epoch=2)
    with topic.group_cursor("a") as cursor:
        for partition in range(2):
            with pytest.raises(errors.LogTruncatedError, match=f"orders-{partition}: cursor a") as raised:
                turn(cursor)
            assert raised.value.offset == 3
        topic.append(b"other", partition=0)
        assert sorted(record[:2] for record in turn(cursor)) == [(0, 3), (1, 3), (1, 4), (1, 5), (1, 6)]
        cursor.seek(1, 5)
        cursor.commit()
    with topic.group_cursor("a") as cursor:
        assert [record[:2] for record in turn(cursor)] == [(1, 5), (1, 6)], "committed with the epoch that it is of now"


def test_a_record_that_does_not_decode_is_returned_again(path: Path, topic: Topic) -> None:
    with Topic.open(path, read_only=True, value_codec="json") as reader, reader.group_cursor("a") as cursor:
        topic.append(b"{", partition=0)
        for _ in range(2):
            with pytest.raises(errors.RecordDecodeError) as raised:
                turn(cursor)
            assert raised.value.offset == 5 == cursor.positions[0]
        list(cursor.follow(timeout=0, on_error="skip"))
        assert cursor.positions == {0: 6, 1: 5, 2: 5, 3: 5}


class TestOwners:
    def test_a_cursor_and_a_group_exclude_each_other(self, topic: Topic) -> None:
        with topic.cursor("a"), pytest.raises(errors.CursorLockedError, match=f"process {os.getpid()}"):
            topic.group_cursor("a")
        with topic.group_cursor("a"), pytest.raises(errors.CursorLockedError, match="members of a group"):
            topic.cursor("a")
        with topic.cursor("a") as cursor:
            assert cursor.positions == dict.fromkeys(range(4), 0)

    def test_a_killed_member_leaves_its_partitions(self, path: Path, topic: Topic) -> None:
        def work() -> None:
            with Topic.open(path, read_only=True) as reader, reader.group_cursor("a") as cursor:
                for record in cursor:
                    if record.offset == 2:
                        cursor.commit()
                        os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(AssertionError, match="killed"):
            InChild(work).result()
        with topic.group_cursor("a") as cursor:
            assert len(turn(cursor)) == 17 and cursor.committed == {0: 3, 1: 0, 2: 0, 3: 0}

    def test_a_stopped_member_keeps_its_partitions_and_commits_when_it_goes_on(self, path: Path, topic: Topic) -> None:
        """The kernel frees no lock of a stopped process: nobody else owns its partitions, and its commit is no harm."""

        def work() -> None:
            with Topic.open(path, read_only=True) as reader, reader.group_cursor("a") as cursor:
                assert len(turn(cursor)) == 20
                os.kill(os.getpid(), signal.SIGSTOP)
                assert turn(cursor) == [], "it sees the other"
                cursor.commit()
                os.kill(os.getpid(), signal.SIGSTOP)

        with ExitStack() as stack:
            with stopped(work) as pid:
                cursor = stack.enter_context(topic.group_cursor("a"))
                assert [turn(cursor) for _ in range(3)] == [[], [], []] and cursor.positions == {}
                os.kill(pid, signal.SIGCONT)
                until_stopped(pid)
                assert topic.committed_offsets()["a"] == dict.fromkeys(range(4), 5)
                assert turn(cursor) == [] and cursor.positions == {2: 5, 3: 5}, "what it has given up at its commit"
            assert turn(cursor) == [] and cursor.positions == dict.fromkeys(range(4), 5)

    def test_a_lock_file_that_was_deleted_fences_its_members(self, path: Path, topic: Topic) -> None:
        with topic.group_cursor("a") as first:
            assert len(turn(first)) == 20
            os.unlink(f"{path}@a.lock")
            with topic.group_cursor("a") as second:
                assert len(turn(second)) == 20
                second.commit()
                for call in (first.commit, lambda: turn(first)):
                    with pytest.raises(errors.CursorFencedError, match="deleted or replaced"):
                        call()

    def test_a_forked_child_has_none(self, topic: Topic) -> None:
        with topic.group_cursor("a") as cursor:
            turn(cursor)

            def child() -> str:
                try:
                    cursor.commit()
                except errors.LogClosedError as error:
                    return str(error)
                return ""

            assert "closed" in result_of(child)
            with topic.group_cursor("a") as other:
                assert turn(other) == [] and other.positions == {}, "the parent has the locks still"
            cursor.commit()

    def test_a_member_that_waits_takes_what_a_dead_one_had(self, path: Path, topic: Topic) -> None:
        def work() -> None:
            with Topic.open(path, read_only=True) as reader, reader.group_cursor("a") as cursor:
                turn(cursor)
                os.kill(os.getpid(), signal.SIGSTOP)

        with ExitStack() as stack:
            with stopped(work):
                cursor = stack.enter_context(topic.group_cursor("a"))
                iteration = cursor.follow()
                waiting = InThread(lambda: next(iteration))
                until(lambda: cursor._balanced_s > 0)
                assert waiting.running
            assert waiting.result().offset == 0


def test_bad_arguments(path: Path, topic: Topic) -> None:
    with pytest.raises(errors.InvalidTopicError):
        topic.group_cursor("a/b")
    with pytest.raises(errors.UsageError):
        topic.group_cursor("a", start="now")
    assert not list(path.parent.glob("*@*"))
    with topic.group_cursor("a") as cursor:
        for timeout in (-1, True):
            with pytest.raises(errors.UsageError):
                cursor.follow(timeout)
        with pytest.raises(errors.UsageError):
            cursor.follow_batches(max_records=0)
