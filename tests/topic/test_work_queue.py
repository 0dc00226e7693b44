"""Work queues: deliveries, acknowledgements, locks, dead letters, owners."""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kreplog import DeliveredRecord, Topic, WorkQueue, errors
from kreplog.topic import cursor_log, queue_member, work_queue
from kreplog.topic.cursor_log import CursorOffset
from kreplog.topic.dead_letters import DeadLetterTopic
from tests.faults.forked import result_of
from tests.waiting import InChild, InThread, until

LOCK_MS = 30_000
WAIT_MS = int(1000 * cursor_log.LOCK_TIMEOUT_S)


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    with Topic.open(path, 2) as opened:
        for number in range(10):
            opened.append(b"%d" % number, b"k", partition=number % 2)
        yield opened


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[now in ms], of queues."""
    now = [1000]
    monkeypatch.setattr(queue_member, "now_ms", lambda: now[0])
    monkeypatch.setattr(work_queue, "now_ms", lambda: now[0])
    return now


def taken(queue: WorkQueue, most: int = 100) -> list[tuple[int, int, int]]:
    """(partition, offset, delivery count) of what it delivers now."""
    queue._balanced_s = -1.0
    return [(record.partition, record.offset, record.delivery_count) for record in queue.take(most, timeout=0)]


def everything(queue: WorkQueue) -> dict[tuple[int, int], DeliveredRecord]:
    return {(record.partition, record.offset): record for record in queue.take(100, timeout=0)}


def dead_letters(path: Path, name: str = "orders.dead") -> list[tuple[Any, dict[str, bytes | None]]]:
    with Topic.open(path.parent / name, read_only=True) as topic:
        return [(record.value, dict(record.headers)) for record in topic.read()]


class TestAcknowledging:
    def test_what_is_acknowledged_in_any_order_is_not_delivered_again(self, topic: Topic) -> None:
        with topic.work_queue("a") as queue:
            records = everything(queue)
            assert len(records) == 10 and taken(queue) == []
            queue.ack(records[0, 3], records[0, 1], records[1, 0])
            assert queue.committed == {0: 0, 1: 1} == topic.committed_offsets()["a"]
        with topic.work_queue("a") as queue:
            again = taken(queue)
            assert again == [(0, n, 2) for n in (0, 2, 4)] + [(1, n, 2) for n in (1, 2, 3, 4)]
        with topic.work_queue("a") as queue:
            queue.ack(*queue.take(100), durable=True)
            assert queue.committed == {0: 5, 1: 5} and taken(queue) == []
            topic.append(b"new", partition=1)
            assert taken(queue) == [(1, 5, 1)]
            assert [record.value for record in topic.read(1, 5)] == [b"new"]

    def test_each_delivery_is_the_only_one(self, topic: Topic) -> None:
        with topic.work_queue("a") as queue:
            (record,) = queue.take()
            assert record[:5] == (0, 0, record.timestamp_ms, b"k", b"0") and record.delivery_count == 1
            queue.nack(record)
            for call in (queue.ack, queue.nack, queue.renew):
                with pytest.raises(errors.DeliveryExpiredError, match="offset 0") as raised:
                    call(record)
                assert (raised.value.partition, raised.value.offset) == ("orders-0", 0)
            (again,) = queue.take()
            assert again == record._replace(delivery_count=2)
            with pytest.raises(errors.DeliveryExpiredError):
                queue.ack(record)
            other = queue.take()[0]
            with pytest.raises(errors.DeliveryExpiredError):
                queue.ack(record, other)
            queue.ack(again)
            assert queue.committed[0] == 2, "the other was acknowledged beside the one that had expired"

    def test_a_lock_ends_and_is_renewed(self, topic: Topic, clock: list[int]) -> None:
        with topic.work_queue("a", record_lock_duration_ms=100) as queue:
            records = everything(queue)
            clock[0] += 99
            assert taken(queue) == []
            queue.renew(records[0, 2])
            clock[0] += 1
            queue.ack(records[0, 1])  # its lock has ended, but nobody has the record yet
            assert taken(queue, 2) == [(0, 0, 2), (0, 3, 2)]
            with pytest.raises(errors.DeliveryExpiredError):
                queue.ack(records[0, 3])
            queue.ack(*(records[1, n] for n in range(5)))
            clock[0] += 98
            assert taken(queue) == [(0, 4, 2)]
            clock[0] += 1
            assert taken(queue) == [(0, 2, 2)]

    def test_a_released_record_comes_after_its_delay(self, topic: Topic, clock: list[int]) -> None:
        with topic.work_queue("a") as queue:
            records = everything(queue)
            queue.nack(records[0, 3], delay_ms=50)
            queue.nack(records[0, 4])
            assert taken(queue) == [(0, 4, 2)]
            clock[0] += 50
            assert taken(queue) == [(0, 3, 2)]

    def test_a_partition_waits_when_too_many_records_are_not_done(self, topic: Topic) -> None:
        with topic.work_queue("a", partition_max_record_locks=3) as queue:
            records = everything(queue)
            assert sorted(records) == [(number, offset) for number in (0, 1) for offset in range(3)]
            queue.ack(records[0, 1])
            assert taken(queue) == [(0, 3, 1)], "the first is not done, and others go on beyond it"
            assert taken(queue) == [] and queue.committed == {0: 0, 1: 0}

    def test_threads_share_the_partitions_of_a_process(self, topic: Topic) -> None:
        with topic.work_queue("a") as queue:
            found: list[tuple[int, int]] = []

            def work() -> None:
                for record in queue:
                    queue.ack(record)
                    found.append((record.partition, record.offset))

            workers = [InThread(work) for _ in range(4)]
            until(lambda: len(found) == 10)
            for number in range(40):
                topic.append(b"", partition=number % 2)
            until(lambda: len(found) == 50)
            assert queue.committed == {0: 25, 1: 25}
            queue.close()
            for worker in workers:
                worker.result()
        assert sorted(found) == [(number, offset) for number in (0, 1) for offset in range(25)]

    def test_a_thread_that_waits_takes_what_another_releases(self, topic: Topic) -> None:
        with topic.work_queue("a") as queue:
            records = everything(queue)
            waiting = [InThread(lambda: queue.take(timeout=30)) for _ in range(2)]
            until(lambda: queue._sleeping)
            queue.nack(records[0, 0])
            queue.nack(records[1, 1])
            assert sorted(record[:2] for worker in waiting for record in worker.result()) == [(0, 0), (1, 1)]


class TestDeadLetters:
    def test_a_record_whose_deliveries_are_used_up(self, path: Path, topic: Topic, clock: list[int]) -> None:
        topic.append(b"with headers", b"k", headers={"trace": b"7"}, partition=0)
        with topic.work_queue("a", dead_letter="orders.dead", delivery_count_limit=2) as queue:
            records = everything(queue)
            queue.ack(*(records[1, n] for n in range(5)))
            queue.nack(records[0, 5], error="first")
            (again,) = queue.take()
            queue.nack(again, error=ValueError("no such customer"))
            assert dead_letters(path) == [
                (
                    b"with headers",
                    {
                        "trace": b"7",
                        "__dlq.errors.topic": b"orders",
                        "__dlq.errors.partition": b"0",
                        "__dlq.errors.offset": b"5",
                        "__dlq.errors.group": b"a",
                        "__dlq.errors.delivery.count": b"2",
                        "__dlq.errors.message": b"ValueError: no such customer",
                    },
                )
            ]
            clock[0] += LOCK_MS
            assert len(taken(queue)) == 5
            clock[0] += LOCK_MS
            assert taken(queue) == [] and queue.committed == {0: 6, 1: 5}
            letters = dead_letters(path)
            assert [headers["__dlq.errors.offset"] for _, headers in letters[1:]] == [b"0", b"1", b"2", b"3", b"4"]
            assert b"lock" in (letters[1][1]["__dlq.errors.message"] or b"")

    def test_rejected_at_once(self, path: Path, topic: Topic) -> None:
        with topic.work_queue("a") as queue, pytest.raises(errors.UsageError, match="no dead-letter topic"):
            queue.reject(queue.take()[0])
        with Topic.open(path.parent / "dead", 3) as dead, topic.work_queue("a", dead_letter=dead) as queue:
            records = everything(queue)
            queue.reject(records[1, 2], "not wanted")
            assert [(record.partition, record.value) for record in dead.read()] == [(1, b"5")]
            with pytest.raises(errors.DeliveryExpiredError):
                queue.ack(records[1, 2])

    def test_a_record_that_does_not_decode(self, path: Path, topic: Topic) -> None:
        topic.append(b"{", partition=0)
        with Topic.open(path, read_only=True, value_codec="json") as reader:
            with reader.work_queue("a") as queue:
                records = everything(queue)
                assert sorted(records) == [(0, n) for n in range(5)], "those before it"
                with pytest.raises(errors.RecordDecodeError) as raised:
                    queue.take(100, timeout=0)
                queue.ack(*records.values())
                assert taken(queue) == [(1, n, 1) for n in range(5)]
                queue.nack(raised.value.record)
            with reader.work_queue("a", dead_letter="orders.dead") as queue:
                assert taken(queue) == [(1, n, 2) for n in range(5)] and queue.committed[0] == 6
                ((value, headers),) = dead_letters(path)
                assert value == b"{" and b"json" in (headers["__dlq.errors.message"] or b"")

    def test_a_take_goes_on_past_a_dead_letter_that_waits(self, path: Path, topic: Topic, clock: list[int]) -> None:
        with (
            Topic.open(path.parent / "orders.dead", 1),
            Topic.open(path, read_only=True, value_codec="json") as reader,
            reader.work_queue("a", dead_letter="orders.dead") as queue,
        ):
            records = everything(queue)
            topic.append(b"{", partition=1)
            assert taken(queue) == []
            queue.nack(records[1, 0], delay_ms=queue_member.RETRY_MS + 1)
            clock[0] += queue_member.RETRY_MS + 1
            assert taken(queue, 1) == [(1, 0, 2)], "which is due after the other"

    def test_a_topic_that_cannot_be_written_loses_no_record(self, path: Path, topic: Topic, clock: list[int]) -> None:
        with topic.work_queue("a", dead_letter="orders.dead", delivery_count_limit=1) as queue:
            records = everything(queue)
            queue.ack(*(record for place, record in records.items() if place not in ((0, 0), (1, 1))))
            with Topic.open(path.parent / "orders.dead", 1):
                with pytest.raises(errors.LogLockedError, match=r"orders\.dead") as raised:
                    queue.nack(records[0, 0], error="no such customer", timeout=0)
                assert "offset 0 of orders-0" in raised.value.__notes__[0]
                clock[0] += LOCK_MS - 1
                queue.renew(records[1, 1])
                assert taken(queue) == [], "it is tried again a lock's duration later"
                clock[0] += 1
                topic.append(b"new", partition=1)
                assert taken(queue) == [(1, 5, 1)] and queue.committed == {0: 0, 1: 1}, "others go on"
                clock[0] += WAIT_MS - 1
                assert taken(queue) == []
                clock[0] += 1
                assert taken(queue) == [], "it is tried at intervals"
                clock[0] += queue_member.RETRY_MS
                with pytest.raises(errors.LogLockedError, match=r"orders\.dead.*process") as raised:
                    taken(queue)
                assert "offset 0 of orders-0" in raised.value.__notes__[0]
                clock[0] += LOCK_MS - 1
                queue.renew(records[1, 1])
                assert taken(queue) == [], "it is tried again a lock's duration later"
                with pytest.raises(errors.LogLockedError):
                    queue.reject(records[1, 1], timeout=0)
            clock[0] += LOCK_MS
            assert taken(queue) == [] and queue.committed == {0: 5, 1: 6}
        messages = {value: headers["__dlq.errors.message"] for value, headers in dead_letters(path)}
        assert messages == {
            b"0": b"no such customer",
            b"3": b"released without an error",
            b"new": queue_member.LOCK_ENDED.encode(),
        }

    def test_a_topic_that_is_open_elsewhere_is_waited_for_as_long_as_the_caller_says(
        self, path: Path, topic: Topic, clock: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with (
            topic.work_queue("a", dead_letter="orders.dead", delivery_count_limit=1) as queue,
            Topic.open(path.parent / "orders.dead", 1),
            monkeypatch.context() as patch,
        ):
            patch.setattr(time, "sleep", pytest.fail)
            records = everything(queue)
            with pytest.raises(errors.LogLockedError, match=r"orders\.dead.*process"):
                queue.nack(records[0, 0], timeout=0)
            with pytest.raises(errors.LogLockedError, match=r"orders\.dead.*process"):
                queue.reject(records[0, 1], timeout=0)
            clock[0] += LOCK_MS
            assert queue.take(timeout=0) == [] and queue.committed == {0: 0, 1: 0}

    def test_others_take_and_acknowledge_while_another_process_has_the_topic(
        self, path: Path, topic: Topic, clock: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A record whose deliveries are used up, and one that does not decode; neither keeps the queue's lock."""
        monkeypatch.setattr(cursor_log, "LOCK_TIMEOUT_S", 3600.0)  # a wait under the queue's lock would be for good
        monkeypatch.setattr(queue_member, "LOCK_TIMEOUT_S", 3600.0)
        opened, closing = os.pipe(), os.pipe()

        def hold() -> None:
            with Topic.open(path.parent / "orders.dead", 1):
                os.write(opened[1], b"x")
                os.read(closing[0], 1)

        with (
            Topic.open(path, read_only=True, value_codec="json") as reader,
            reader.work_queue("a", dead_letter="orders.dead", delivery_count_limit=1) as queue,
        ):
            records = everything(queue)
            queue.ack(*(record for place, record in records.items() if place != (0, 0)))
            topic.append(b"{", partition=1)
            holder = InChild(hold)
            os.read(opened[0], 1)
            clock[0] += LOCK_MS
            waiting = InThread(lambda: queue.take(timeout=30))
            until(lambda: queue._locked_ms is not None)
            assert taken(queue, 1) == [] and queue.committed == {0: 0, 1: 5}
            clock[0] += queue_member.RETRY_MS
            topic.append(b"7", partition=0)
            (record,) = waiting.result()
            queue.ack(record)
            assert queue.committed == {0: 0, 1: 5} and record.offset == 5
            os.write(closing[1], b"x")
            holder.result()
            clock[0] += queue_member.RETRY_MS
            assert taken(queue) == [] and queue.committed == {0: 6, 1: 6}
        for end in (*opened, *closing):
            os.close(end)
        counts = {value: headers["__dlq.errors.delivery.count"] for value, headers in dead_letters(path)}
        assert counts == {b"0": b"1", b"{": b"1"}, "what was tried and could not be delivered counts once"

    def test_many_dead_letters_that_wait_keep_nobody(
        self, path: Path, topic: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They wait for a topic that is open elsewhere. To look at all of them takes longer than until the first is due
        again; a call looks at each once, and tries the topic no more often than for a single one."""
        ticks = itertools.count(1000)
        now = [0]

        def tick() -> int:
            now[0] = next(ticks)
            assert now[0] < give_up[0], "the call goes round and round"
            return now[0]

        give_up = [50_000]
        tried_ms: list[int] = []
        append = DeadLetterTopic.append

        def counted(*arguments: Any) -> None:
            tried_ms.append(now[0])
            append(*arguments)

        monkeypatch.setattr(DeadLetterTopic, "append", counted)
        monkeypatch.setattr(queue_member, "now_ms", tick)
        monkeypatch.setattr(work_queue, "now_ms", tick)
        monkeypatch.setattr(queue_member, "LOCK_TIMEOUT_S", math.inf)
        with (
            Topic.open(path, read_only=True, value_codec="json") as reader,
            reader.work_queue("a", dead_letter="orders.dead", record_lock_duration_ms=1 << 40) as queue,
        ):
            records = everything(queue)
            topic.append_many([b"{"] * 200, partition=0)
            with Topic.open(path.parent / "orders.dead", 1):
                for most in (1, 100, 1):
                    assert queue.take(most, timeout=0) == []
                queue.nack(records[0, 1])
                queue.nack(records[1, 1])
                topic.append(b"7", partition=1)
                assert [queue.take(timeout=0)[0][:2] for _ in range(3)] == [(0, 1), (1, 1), (1, 5)]
                assert len(tried_ms) > 10, "a call takes longer than RETRY_MS"
                assert min(np.diff(tried_ms)) >= queue_member.RETRY_MS
                give_up[0] = sys.maxsize
                waiting = InThread(lambda: queue.take(timeout=30))
                until(lambda: queue._sleeping)
                assert InThread(lambda: queue.committed).result() == {0: 0, 1: 0} and waiting.running
                topic.append(b"8", partition=1)
                assert [record.value for record in waiting.result()] == [8]

    def test_a_call_leaves_dead_letters_that_take_long_to_the_next(
        self, path: Path, topic: Topic, clock: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = DeadLetterTopic.append

        def slow(*arguments: Any) -> None:
            append(*arguments)
            clock[0] += queue_member.DEAD_LETTERS_MS // 2

        monkeypatch.setattr(DeadLetterTopic, "append", slow)
        with (
            Topic.open(path, read_only=True, value_codec="json") as reader,
            reader.work_queue("a", dead_letter="orders.dead", delivery_count_limit=1) as queue,
        ):
            records = everything(queue)
            topic.append_many([b"{"] * 3 + [b"7"], partition=0)
            assert taken(queue, 1) == [(0, 8, 1)], "what is behind them can be taken"
            assert len(dead_letters(path)) == 2
            clock[0] += queue_member.RETRY_MS
            assert taken(queue) == [] and len(dead_letters(path)) == 3
            queue.ack(*(records[1, n] for n in range(5)))
            clock[0] += LOCK_MS
            assert taken(queue) == [] and len(dead_letters(path)) == 5, "nor those whose deliveries are used up"
            clock[0] += queue_member.RETRY_MS
            assert taken(queue) == [] and len(dead_letters(path)) == 7

    def test_other_threads_use_the_queue_while_a_dead_letter_waits(
        self, path: Path, topic: Topic, clock: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        retried = threading.Event()
        append = DeadLetterTopic.append

        def signalled(*arguments: Any) -> None:
            try:
                append(*arguments)
            except errors.LogLockedError:
                retried.set()
                raise

        monkeypatch.setattr(DeadLetterTopic, "append", signalled)
        monkeypatch.setattr(cursor_log, "LOCK_TIMEOUT_S", 3600.0)  # a wait under the queue's lock would be for good
        with topic.work_queue("a", dead_letter="orders.dead", delivery_count_limit=1) as queue:
            records = everything(queue)
            with Topic.open(path.parent / "orders.dead", 1):
                waiting = InThread(lambda: queue.nack(records[0, 0], timeout=None))
                assert retried.wait(30)
                queue.ack(*(records[1, n] for n in range(5)))
                assert queue.committed == {0: 0, 1: 5} and waiting.running
            waiting.result()
            assert queue.committed == {0: 1, 1: 5}
            assert [value for value, _ in dead_letters(path)] == [b"0"]


class TestOwners:
    def test_a_killed_worker_leaves_its_records_with_their_deliveries(self, path: Path, topic: Topic) -> None:
        def work() -> None:
            with Topic.open(path, read_only=True) as reader, reader.work_queue("a") as queue:
                records = everything(queue)
                queue.ack(records[0, 0], records[0, 2])
                os.kill(os.getpid(), signal.SIGKILL)

        with pytest.raises(AssertionError, match="killed"):
            InChild(work).result()
        with topic.work_queue("a") as queue:
            assert taken(queue) == [(0, n, 2) for n in (1, 3, 4)] + [(1, n, 2) for n in range(5)]
            assert queue.committed == {0: 1, 1: 0}

    def test_a_partition_passes_on_when_no_record_of_it_is_locked(self, topic: Topic) -> None:
        with topic.work_queue("a") as first:
            records = everything(first)
            second = topic.work_queue("a")
            topic.append(b"new", partition=1)
            assert taken(second) == [] == taken(first) and second.committed == {}, "what is above the share waits"
            first.ack(*(records[1, n] for n in (0, 1, 2, 4)))
            assert taken(second) == []
            first.nack(records[1, 3])
            assert taken(second) == [(1, 3, 2), (1, 5, 1)] and second.committed == {1: 3}
            with pytest.raises(errors.DeliveryExpiredError, match="another process"):
                first.ack(records[1, 3])

    def test_records_go_on_to_a_cursor_and_back(self, topic: Topic) -> None:
        with topic.work_queue("a") as queue:
            records = everything(queue)
            queue.ack(records[0, 0], records[0, 3], records[1, 1])
            with pytest.raises(errors.CursorLockedError):
                topic.cursor("a")
        with topic.cursor("a") as cursor:
            assert cursor.committed == {0: 1, 1: 0}
            cursor.seek(0, 2)
            cursor.commit()
        with topic.work_queue("a") as queue:
            assert taken(queue) == [(1, n, 2) for n in (0, 2, 3, 4)] + [(0, n, 1) for n in (2, 3, 4)]

    def test_a_forked_child_has_none(self, topic: Topic) -> None:
        with topic.work_queue("a") as queue:
            (record,) = queue.take()

            def child() -> str:
                try:
                    queue.ack(record)
                except errors.LogClosedError as error:
                    return str(error)
                return ""

            with queue._changed:
                assert "closed" in result_of(child)
            queue.ack(record)

    def test_a_lock_file_that_was_deleted_fences_its_members(self, path: Path, topic: Topic) -> None:
        with topic.work_queue("a") as queue:
            (record,) = queue.take()
            os.unlink(f"{path}@a.lock")
            with pytest.raises(errors.CursorFencedError):
                queue.ack(record)
            with topic.work_queue("a") as other:
                assert (0, 0, 2) in taken(other)

    def test_closing_ends_those_that_wait(self, topic: Topic) -> None:
        queue = topic.work_queue("a")
        queue.ack(*queue.take(100))
        waiting = [InThread(lambda: list(queue)) for _ in range(3)]
        until(lambda: queue._sleeping)
        topic.close()
        assert [worker.result() for worker in waiting] == [[], [], []]
        with pytest.raises(errors.LogClosedError):
            queue.take()
        with pytest.raises(errors.LogClosedError):
            topic.work_queue("a")


class TestMetadata:
    @pytest.mark.parametrize("metadata", ["by another tool", "kreplog-queu"])
    def test_of_another_tool_is_replaced(self, topic: Topic, metadata: str, caplog: pytest.LogCaptureFixture) -> None:
        topic._cursor_log.commit("a", "orders", {0: CursorOffset(3, metadata)}, False)
        with topic.work_queue("a") as queue:
            assert (0, 3, 1) in taken(queue)
        assert metadata in caplog.text and "orders-0" in caplog.text

    @pytest.mark.parametrize("metadata", ["kreplog-queue/2:b", "kreplog-queue/1:z", "kreplog-queue/1:b0"])
    def test_that_cannot_be_read_is_refused_until_it_is_reset(self, path: Path, topic: Topic, metadata: str) -> None:
        topic._cursor_log.commit(
            "a", "orders", {0: CursorOffset(3, metadata), 1: CursorOffset(1, "kreplog-queue/1:b.2")}, False
        )
        with topic.work_queue("a") as queue:
            with pytest.raises(errors.CorruptWorkQueueError, match=r"reset .* a --to-offset 3 --partition 0") as raised:
                taken(queue)
            assert (raised.value.partition, raised.value.offset) == ("orders-0", 3)
            assert queue.committed == {}
        with topic.cursor("a") as cursor:
            cursor.seek(0, 3)
            cursor.commit(durable=True)
        with topic.work_queue("a") as queue:
            assert taken(queue) == [(1, 1, 2), (0, 3, 1), (0, 4, 1), (1, 4, 1)], "that of the other partition stays"


def test_deleted_and_truncated_records(topic: Topic, caplog: pytest.LogCaptureFixture, clock: list[int]) -> None:
    with topic.work_queue("a") as queue:
        records = everything(queue)
        queue.ack(records[0, 1])
        topic.log(0).delete_records_before(3)
        clock[0] += LOCK_MS
        assert taken(queue) == [(0, 3, 2), (0, 4, 2)] + [(1, n, 2) for n in range(5)]
        assert queue.committed == {0: 3, 1: 0}
        topic.log(1).truncate_to(2)
        clock[0] += LOCK_MS
        with pytest.raises(errors.LogTruncatedError) as raised:
            taken(queue)
        assert (raised.value.partition, raised.value.offset) == ("orders-1", 2)
        topic.append(b"other", partition=1)
        assert taken(queue) == [(0, 3, 3), (0, 4, 3), (1, 0, 3), (1, 1, 3), (1, 2, 1)]
    topic.log(0).delete_records_before(4)
    with topic.work_queue("a") as queue:
        assert taken(queue) == [(0, 4, 4), (1, 0, 4), (1, 1, 4), (1, 2, 2)]
    assert "retention has deleted" in caplog.text


def test_a_record_from_before_a_truncation_is_not_the_one_that_has_its_offset(topic: Topic, clock: list[int]) -> None:
    """Whether the queue sees the truncation, or its partitions were another's meanwhile."""
    with topic.work_queue("a") as queue:
        (before,) = [record for record in queue.take(100) if record[:2] == (1, 4)]
        topic.log(1).truncate_to(4)
        clock[0] += LOCK_MS
        with pytest.raises(errors.LogTruncatedError):
            taken(queue)
        topic.append(b"other", partition=1)
        (other,) = [record for record in queue.take(100) if record[:2] == (1, 4)]
        assert before.delivery_count == other.delivery_count == 1
        with pytest.raises(errors.DeliveryExpiredError):
            queue.ack(before)
        queue._follows.drop(1)
        queue._locks.release(1)
        del queue._positions[1]
        queue._disown(1)
        topic._cursor_log.commit("a", "orders", {1: CursorOffset(4, "")}, False)
        assert taken(queue) == [(1, 4, 1)]
        for gone in (before, other):
            with pytest.raises(errors.DeliveryExpiredError):
                queue.ack(gone)
        assert queue.committed[1] == 4


@pytest.mark.parametrize("stop", [3, 1])
def test_a_log_that_ends_before_what_was_done(topic: Topic, caplog: pytest.LogCaptureFixture, stop: int) -> None:
    """As after a loss of power: what is appended at those offsets is other work."""
    with topic.work_queue("a") as queue:
        records = everything(queue)
        queue.ack(*(record for place, record in records.items() if place != (0, 2)), durable=True)
    topic.log(0).truncate_to(stop)
    with topic.work_queue("a") as queue:
        assert taken(queue) == ([(0, 2, 2)] if stop == 3 else [])
        topic.append(b"other", partition=0)
        assert taken(queue) == [(0, stop, 1)]
    assert "had come to 5" in caplog.text


def test_bad_arguments(path: Path, topic: Topic) -> None:
    wrong: list[dict[str, Any]] = [
        {"record_lock_duration_ms": 0},
        {"record_lock_duration_ms": 1.5},
        {"delivery_count_limit": 11},
        {"delivery_count_limit": True},
        {"partition_max_record_locks": 4001},
        {"start": "now"},
        {"dead_letter": "a/b"},
        {"dead_letter": "orders"},
        {"dead_letter": 7},
        {"dead_letter": topic},
    ]
    for arguments in wrong:
        with pytest.raises(errors.UsageError):
            topic.work_queue("a", **arguments)
    with pytest.raises(errors.InvalidTopicError):
        topic.work_queue("a/b")
    assert not list(path.parent.glob("*@*"))
    with topic.work_queue("a") as queue:
        with pytest.raises(errors.UsageError):
            queue.take(0)
        with pytest.raises(errors.UsageError):
            queue.take(timeout=-1)
        (record,) = queue.take()
        with pytest.raises(errors.UsageError):
            queue.nack(record, delay_ms=-1)
        with pytest.raises(errors.ArgumentTypeError):
            queue.ack(record[:6])  # type: ignore[arg-type]  # as a caller whose types nobody checks


def test_values_that_do_not_compare_are_acknowledged(path: Path) -> None:
    """Such as arrays, of which `==` makes another."""

    def decode(data: bytes) -> Any:
        return np.frombuffer(data, dtype=np.uint8)

    with Topic.open(path, 1, value_codec=(lambda array: array.tobytes(), decode)) as topic:
        topic.append_many([np.arange(3, dtype=np.uint8)] * 2)
        with topic.work_queue("sums") as queue:
            first, second = queue.take(2)
            queue.nack(first)
            (again,) = queue.take(2)
            assert again.offset == first.offset
            with pytest.raises(errors.DeliveryExpiredError):
                queue.ack(first, again, second)
            assert queue.committed == {0: 2}, "the others are done"


def test_interrupted_takes_count_no_delivery(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that fails: nothing was taken, or acknowledged."""
    with topic.work_queue("a") as queue:
        failing = threading.Event()
        commit = topic._cursor_log.commit

        def commit_or_fail(*arguments: Any) -> None:
            if failing.is_set():
                raise errors.DiskFullError("no space left")
            commit(*arguments)

        monkeypatch.setattr(topic._cursor_log, "commit", commit_or_fail)
        failing.set()
        for _ in range(2):
            with pytest.raises(errors.DiskFullError):
                taken(queue)
        failing.clear()
        records = everything(queue)
        assert len(records) == 10 and {record.delivery_count for record in records.values()} == {1}
        failing.set()
        with pytest.raises(errors.DiskFullError):
            queue.ack(*records.values())
        failing.clear()
        queue.ack(*records.values())
        assert queue.committed == {0: 5, 1: 5}
