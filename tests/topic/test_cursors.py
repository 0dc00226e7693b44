"""Cursors: a reader's place, its commits, its owner. Kills at each file call: tests/faults/test_cursor_calls.py."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from kreplog import Log, LogConfig, Topic, errors
from kreplog._native import batch, recovery
from kreplog._native import log as segmented_log
from kreplog.core.group_messages import partition_of_group
from kreplog.topic import cursor_log
from kreplog.topic.cursor_log import CursorOffset
from tests.faults.boots import reboot
from tests.faults.forked import ends_by, result_of


def test_a_cursor_goes_on_where_it_was_committed(path: Path, topic: Topic) -> None:
    with topic.cursor("billing") as cursor:
        assert cursor.lag() == {0: 5, 1: 5} and cursor.committed == {}
        for record in cursor:
            if record == (1, 2, *record[2:]):
                break
        cursor.commit()
        assert cursor.committed == {0: 5, 1: 3} == cursor.positions and cursor.lag() == {0: 0, 1: 2}
        assert [record.offset for record in cursor] == [3, 4]
    with topic.cursor("billing") as cursor:
        assert [(record.partition, record.offset) for record in cursor] == [(1, 3), (1, 4)], "which was not committed"
        cursor.commit(durable=True)
    topic.append(b"new", partition=0)
    with Topic.open(path, read_only=True) as reader, reader.cursor("billing") as cursor:
        assert [record.value for record in cursor.read(order="time")] == [b"new"]
        assert list(cursor) == []
        cursor.commit()
    with topic.cursor("billing") as cursor:
        assert cursor.positions == {0: 6, 1: 5}


def test_each_cursor_has_its_own_place(topic: Topic) -> None:
    with topic.cursor("a") as first, topic.cursor("b", start="latest") as second:
        assert len(list(first)) == 10 and list(second) == []
        topic.append(b"new", partition=1)
        assert [record.value for record in first] == [record.value for record in second] == [b"new"]
        first.commit()
    with topic.cursor("b") as second:
        assert len(list(second)) == 11, "it has committed nothing"


def test_added_partitions_are_read_from_their_start(topic: Topic) -> None:
    with topic.cursor("a", start="latest") as cursor:
        cursor.commit()
        topic.add_partitions(3)
        topic.append(b"new", partition=2)
        assert [record.value for record in cursor] == [b"new"]


def test_seek(topic: Topic) -> None:
    with topic.cursor("a") as cursor:
        cursor.seek(1, 3)
        assert [record.offset for record in cursor if record.partition == 1] == [3, 4]
        cursor.seek_to_beginning()
        assert len(list(cursor)) == 10
        cursor.seek_to_beginning()
        cursor.seek_to_end()
        assert list(cursor) == []
        for partition, offset in ((2, 0), (0, 6), (0, -1), (0, True)):
            with pytest.raises(errors.UsageError):
                cursor.seek(partition, offset)


def test_records_that_retention_has_deleted_are_an_error(topic: Topic) -> None:
    with topic.cursor("a") as cursor:
        next(iter(cursor))
        topic.log(0).delete_records_before(3)
        with pytest.raises(errors.OffsetOutOfRangeError):
            list(cursor)
        cursor.seek(0, 3)
        assert [record.offset for record in cursor if record.partition == 0] == [3, 4]


class TestTruncated:
    """The log has lost records that a cursor had read: the position is where they end, and others are not skipped."""

    def test_below_the_committed_offset(self, topic: Topic) -> None:
        with topic.cursor("a") as cursor:
            list(cursor)
            cursor.commit()
        topic.log(0).truncate_to(2)
        topic.log(1).truncate_to(4)
        with topic.cursor("a") as cursor:
            for partition, end in ((0, 2), (1, 4)):
                with pytest.raises(
                    errors.LogTruncatedError, match=f"orders-{partition}: cursor a .* end at {end}"
                ) as raised:
                    list(cursor)
                assert (raised.value.partition, raised.value.offset) == (f"orders-{partition}", end)
            assert cursor.positions == {0: 2, 1: 4} and list(cursor) == []
            cursor.commit()
        for _ in range(4):
            topic.append(b"other", partition=0)
        with topic.cursor("a") as cursor:
            assert [record[:2] for record in cursor] == [(0, 2), (0, 3), (0, 4), (0, 5)]

    def test_by_the_leader_epoch_where_the_log_has_grown_since(self, path: Path, topic: Topic) -> None:
        """KIP-320: an unclean election, of brokers that had the folder."""
        with topic.cursor("a") as cursor:
            list(cursor)
            cursor.commit()
        with Topic.open(path, read_only=True) as reader, reader.cursor("a") as cursor:
            topic.log(0).truncate_to(3)
            topic.log(0).append_batches(batch.build([b"other"] * 4), leader_epoch=2)
            with pytest.raises(errors.LogTruncatedError), cursor.transaction(sqlite3.connect(":memory:")):
                list(cursor)  # which is rolled back
            with pytest.raises(errors.LogTruncatedError) as raised:
                list(cursor)
            assert raised.value.offset == 3
            iteration = iter(cursor)
            assert [next(iteration).value for _ in range(2)] == [b"other"] * 2
            assert cursor.positions[0] == 5
            cursor.commit()
        with topic.cursor("a") as cursor:
            assert [record.offset for record in cursor] == [5, 6], (
                "the offset is committed with the epoch that it is of now"
            )

    @pytest.mark.parametrize("ended", ["closed", "killed"])
    def test_where_a_loss_of_power_left_no_trace(
        self, tmp_path: Path, ended: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """KIP-320: of what was appended since it last was whole, nothing is left but a commit."""
        path = tmp_path / "data" / "orders"
        partition = tmp_path / "data" / "orders-0"
        with Topic.open(path, 1) as topic:
            topic.append_many([b"a"] * 5)
            topic.flush()
            if ended == "killed":
                shutil.copytree(partition, tmp_path / "durable")
        if ended == "closed":
            shutil.copytree(partition, tmp_path / "durable")
        with Topic.open(path) as topic, topic.cursor("a") as cursor:
            topic.append_many([b"lost"] * 3)
            assert len(list(cursor)) == 8
            cursor.commit()
            assert topic.log(0).leader_epochs == [(0, 0)], "nothing was lost yet"
        shutil.rmtree(partition)
        shutil.copytree(tmp_path / "durable", partition)
        reboot(monkeypatch)
        with Topic.open(path) as topic:
            topic.append_many([b"other"] * 4)
            with topic.cursor("a") as cursor:
                assert cursor.positions == {0: 8}
                with pytest.raises(errors.LogTruncatedError) as raised:
                    list(cursor)
                assert raised.value.offset == 5
                assert [(record.offset, record.value) for record in cursor] == [(n, b"other") for n in range(5, 9)]
                cursor.commit()
            with topic.cursor("a") as cursor:
                assert list(cursor) == []

    def test_by_a_leader_epoch_that_the_log_has_not(self, topic: Topic) -> None:
        epoch_of_another_copy = CursorOffset(3, leader_epoch=7)
        topic._cursor_log.commit("a", "orders", {0: epoch_of_another_copy}, False)
        with topic.cursor("a") as cursor:
            for _ in range(2):
                with pytest.raises(errors.LogTruncatedError, match=r"epoch 7.*seek") as raised:
                    list(cursor)
                assert raised.value.offset is None
            cursor.seek(0, 1)
            assert [record.offset for record in cursor if record.partition == 0] == [1, 2, 3, 4]

    def test_a_position_in_a_database(self, topic: Topic) -> None:
        database = sqlite3.connect(":memory:")
        with topic.cursor("a") as cursor, cursor.transaction(database):
            list(cursor)
        topic.log(0).truncate_to(2)
        with topic.cursor("a") as cursor:
            for _ in range(2):  # what raises is rolled back
                with pytest.raises(errors.LogTruncatedError), cursor.transaction(database):
                    list(cursor)
            with cursor.transaction(database):
                cursor.seek(0, 2)
        topic.append(b"new", partition=0)
        with topic.cursor("a") as cursor, cursor.transaction(database):
            assert [record[:2] for record in cursor] == [(0, 2)]


def test_positions_are_committed_as_kafka_has_them(path: Path, topic: Topic) -> None:
    with topic.cursor("billing") as cursor:
        list(cursor)
        cursor.commit()
    number = partition_of_group("billing", cursor_log.PARTITIONS)
    with Log.open(path.parent / f"__consumer_offsets-{number}", read_only=True) as log:
        keys = [record.key for record in log.read()]
    assert keys == [b"\0\1\0\7billing\0\6orders\0\0\0%c" % partition for partition in (0, 1)]


def test_the_offsets_are_compacted(path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_log, "CONFIG", LogConfig(cleanup_policy="compact", segment_bytes=2000))
    with topic.cursor("billing") as cursor:
        for offset in range(200):
            cursor.seek(0, offset % 2)
            cursor.commit()
    number = partition_of_group("billing", cursor_log.PARTITIONS)
    with Log.open(path.parent / f"__consumer_offsets-{number}", read_only=True) as log:
        assert log.log_end_offset == 400 and log.size < 8000
    with topic.cursor("billing") as cursor:
        assert cursor.positions == {0: 1, 1: 0}


class TestOwner:
    def test_one_process_has_a_cursor(self, path: Path, topic: Topic) -> None:
        def attempt() -> str:
            with Topic.open(path, read_only=True) as reader:
                try:
                    reader.cursor("billing")
                except errors.CursorLockedError as error:
                    return str(error)
            return ""

        with topic.cursor("billing"):
            assert f"process {os.getpid()}" in result_of(attempt)
            with pytest.raises(errors.CursorLockedError):
                topic.cursor("billing")
        assert result_of(attempt) == ""

    def test_a_killed_owner_leaves_it(self, path: Path, topic: Topic) -> None:
        def die() -> None:
            cursor = Topic.open(path, read_only=True).cursor("billing")
            list(cursor)
            cursor.commit()
            os.kill(os.getpid(), 9)

        assert ends_by(die)[0] == -9
        with topic.cursor("billing") as cursor:
            assert cursor.positions == {0: 5, 1: 5}

    def test_one_that_is_dropped_leaves_it(self, topic: Topic) -> None:
        """Not closed: the lock would last as long as the process, and of a group its partitions be nobody's."""
        for _ in range(2):
            assert len(list(topic.cursor("a"))) == 10
            assert len(list(topic.group_cursor("b").follow(timeout=0))) == 10
            assert len(topic.work_queue("c").take(100, timeout=0)) == 10
            gc.collect()

    def test_processes_commit_in_turn(self, path: Path, topic: Topic) -> None:
        """To one partition of the offsets, whose log each of them has open."""
        same = [f"c{n}" for n in range(2000) if partition_of_group(f"c{n}", cursor_log.PARTITIONS) == 7][:2]
        assert len(same) == 2

        def other(offset: int) -> None:
            with Topic.open(path, read_only=True) as reader, reader.cursor(same[1]) as cursor:
                cursor.seek(0, offset)
                cursor.commit()

        with topic.cursor(same[0]) as cursor:
            for offset in range(5):
                cursor.seek(0, offset)
                cursor.commit()
                result_of(partial(other, offset))
                cursor.seek(1, offset)
                cursor.commit()
        for name in same:
            with topic.cursor(name) as cursor:
                assert cursor.positions == {0: 4, 1: 4 if name == same[0] else 0}

    def test_a_process_that_is_killed_while_it_opens_the_log_of_others(self, path: Path, topic: Topic) -> None:
        """It may have changed files that the others have open: they open the log again."""

        def die(*_: object) -> None:
            os.kill(os.getpid(), 9)

        def open_and_die() -> None:
            vars(recovery)["EpochCache"] = die
            with Topic.open(path, read_only=True) as reader, reader.cursor("billing"):
                pass

        number = partition_of_group("billing", cursor_log.PARTITIONS)
        with topic.cursor("billing") as cursor:
            cursor.seek(0, 1)
            cursor.commit()
            session = segmented_log.session_number(topic._cursor_log._logs[number].log)
        assert ends_by(open_and_die)[0] == -9
        assert segmented_log.session_number(topic._cursor_log._logs[number].log) == session + 1
        with topic.cursor("billing") as cursor:
            assert cursor.positions == {0: 1, 1: 0}
            cursor.commit()

    def test_a_forked_child_has_none(self, topic: Topic) -> None:
        with topic.cursor("billing") as cursor:

            def child() -> str:
                try:
                    cursor.commit()
                except errors.LogClosedError as error:
                    return str(error)
                return ""

            assert "closed" in result_of(child)
            list(cursor)
            cursor.commit()

    def test_a_child_of_a_reader_opens_its_own(self, path: Path, topic: Topic) -> None:
        with Topic.open(path, read_only=True) as reader:
            with reader.cursor("billing") as cursor:
                list(cursor)
                cursor.commit()

            def child() -> dict[int, int]:
                with reader.cursor("billing") as cursor:
                    cursor.seek(0, 1)
                    cursor.commit()
                    return cursor.committed

            assert result_of(child) == {0: 1, 1: 5}
            with reader.cursor("billing") as cursor:
                assert cursor.positions == {0: 1, 1: 5}

    def test_a_topic_that_is_closed_closes_its_cursors(self, path: Path) -> None:
        with Topic.open(path, 1) as topic:
            cursor = topic.cursor("billing")
        assert cursor.closed
        with Topic.open(path) as topic, topic.cursor("billing"):
            pass

    def test_a_closed_cursor_takes_nothing(self, topic: Topic) -> None:
        cursor = topic.cursor("billing")
        iterator = iter(cursor)
        cursor.close()
        cursor.close()
        for call in (cursor.commit, cursor.lag, cursor.seek_to_end, lambda: cursor.seek(0, 0), lambda: next(iterator)):
            with pytest.raises(errors.LogClosedError):
                call()

    @pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 250])
    def test_illegal_names(self, path: Path, topic: Topic, name: str) -> None:
        with pytest.raises(errors.InvalidTopicError):
            topic.cursor(name)
        assert not list(path.parent.glob("*@*"))
