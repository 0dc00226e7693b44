"""FlushQueue: one fsync of a log at a time, and no request without one that began after it."""

from __future__ import annotations

from kreplog.core.broker.flush_queue import FlushQueue
from kreplog.core.events import Flushed
from kreplog.errors import LogFailedError, ResourceExhaustedError
from kreplog.types import TopicPartition

TP = TopicPartition("t", 0)


def test_requests_during_an_fsync_share_the_next() -> None:
    queue = FlushQueue()
    assert queue.request("log")
    assert not queue.request("log") and not queue.request("log")
    assert queue.finished("log", TP, 5) == (Flushed(TP, 5), True)
    assert queue.finished("log", TP, 9) == (Flushed(TP, 9), False)
    assert "log" not in queue and queue.request("log")


def test_logs_do_not_wait_for_each_other() -> None:
    queue = FlushQueue()
    assert queue.request("one") and queue.request("two")
    assert queue.finished("two", TP, 1) == (Flushed(TP, 1), False)
    assert "one" in queue


def test_an_fsync_without_descriptors_is_retried() -> None:
    queue = FlushQueue()
    assert queue.request("log")
    assert not queue.request("log")
    assert queue.failed("log", ResourceExhaustedError("no descriptors"))
    assert not queue.request("log"), "one is to be tried again already"
    assert queue.finished("log", TP, 5) == (Flushed(TP, 5), True)


def test_a_failed_or_closed_log_is_forgotten() -> None:
    queue = FlushQueue()
    assert queue.request("log")
    assert not queue.failed("log", LogFailedError("the disk failed"))
    assert "log" not in queue
    assert queue.request("log")
    queue.forget("log")
    queue.forget("log")
    assert "log" not in queue
