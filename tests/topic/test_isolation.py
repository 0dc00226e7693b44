"""Cursors, cursor groups and work queues that read what transactions have committed: nothing that is aborted, nothing
twice, and no record of a transaction that is committed later is passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplog import Topic, errors
from tests.reference import sent

COMMITTED = "read_committed"


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with Topic.open(tmp_path / "orders", 1) as topic:
        yield topic


def begin(topic: Topic, producer: int, value: bytes, sequence: int = 0) -> None:
    topic.log(0).append_batches(sent(producer, sequence, value), transactional=True)


def end(topic: Topic, producer: int, *, committed: bool) -> None:
    topic.log(0).append_transaction_marker(producer, 0, committed=committed, coordinator_epoch=0)


def write(topic: Topic) -> None:
    """The values a and z, in between an aborted transaction and an open one of producer 8."""
    topic.append(b"a")
    begin(topic, 7, b"aborted")
    begin(topic, 8, b"open")
    end(topic, 7, committed=False)
    topic.append(b"z")


@pytest.mark.parametrize("order", ["partition", "time"])
@pytest.mark.parametrize("committed", [True, False])
def test_a_cursor_stays_before_an_open_transaction(topic: Topic, order: str, committed: bool) -> None:
    write(topic)
    with topic.cursor("c") as cursor:
        assert [record.value for record in cursor.read(order=order, isolation=COMMITTED)] == [b"a"]
        assert cursor.positions == {0: 2}
        cursor.commit()
    with topic.cursor("c") as cursor:
        assert [record.value for record in cursor.read(isolation=COMMITTED)] == []
        end(topic, 8, committed=committed)
        rest = [b"open", b"z"] if committed else [b"z"]
        assert [record.value for record in cursor.read(order=order, isolation=COMMITTED)] == rest
        assert cursor.positions == {0: topic.log(0).high_watermark}


def test_a_cursor_that_has_read_further_does_not_go_back(topic: Topic) -> None:
    write(topic)
    with topic.cursor("c") as cursor:
        assert [record.value for record in cursor] == [b"a", b"aborted", b"open", b"z"]
        before = cursor.positions
        assert list(cursor.read(isolation=COMMITTED)) == []
        assert cursor.positions == before


@pytest.mark.parametrize("committed", [True, False])
def test_a_cursor_group_stays_before_an_open_transaction(topic: Topic, committed: bool) -> None:
    write(topic)
    with topic.group_cursor("g", isolation=COMMITTED) as cursor:
        assert [record.value for record in cursor.follow(timeout=0)] == [b"a"]
        cursor.commit()
        assert cursor.committed[0] <= 2
    with topic.group_cursor("g", isolation=COMMITTED) as cursor:
        assert list(cursor.follow(timeout=0)) == []
        end(topic, 8, committed=committed)
        rest = [b"open", b"z"] if committed else [b"z"]
        assert [record.value for record in cursor.follow(timeout=0)] == rest


def test_a_group_that_begins_at_the_latest_begins_before_an_open_transaction(topic: Topic) -> None:
    write(topic)
    with topic.group_cursor("g", start="latest", isolation=COMMITTED) as cursor:
        assert list(cursor.follow(timeout=0)) == []
    end(topic, 8, committed=True)
    with topic.group_cursor("g", start="latest", isolation=COMMITTED) as cursor:
        assert [record.value for record in cursor.follow(timeout=0)] == [b"open", b"z"]
    with topic.group_cursor("h", start="latest") as cursor:
        assert list(cursor.follow(timeout=0)) == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_work_queue_delivers_what_is_committed(topic: Topic, committed: bool) -> None:
    write(topic)
    with topic.work_queue("q", isolation=COMMITTED) as queue:
        (first,) = queue.take(10, timeout=0)
        assert first.value == b"a"
        queue.ack(first)
        assert queue.take(10, timeout=0) == []
    with topic.work_queue("q", isolation=COMMITTED) as queue:
        end(topic, 8, committed=committed)
        taken = queue.take(10, timeout=0)
        assert [record.value for record in taken] == ([b"open", b"z"] if committed else [b"z"])
        queue.nack(taken[0])
        (again,) = queue.take(10, timeout=0)
        assert again.value == taken[0].value
        queue.ack(again, *taken[1:])
        assert queue.take(10, timeout=0) == []
    with topic.work_queue("q") as queue:
        assert queue.take(10, timeout=0) == []


def test_an_unknown_isolation_level_is_refused(topic: Topic) -> None:
    with topic.cursor("c") as cursor, pytest.raises(errors.UsageError, match="read_committed"):
        cursor.read(isolation="committed")
    for open_it in (topic.group_cursor, topic.work_queue):
        with pytest.raises(errors.UsageError, match="read_committed"):
            open_it("g", isolation="committed")
    topic.group_cursor("g").close()
