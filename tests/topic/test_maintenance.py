"""A topic's background thread: what it does, what ends it, and what becomes of its failures."""

from __future__ import annotations

import gc
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, LogConfig, MaintenanceConfig, MaintenanceError, Topic, errors
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog.types import TopicPartition
from tests.faults.forked import result_of
from tests.waiting import InThread, until

SEGMENT = 1000
SMALL = LogConfig(segment_bytes=SEGMENT, retention_bytes=2 * SEGMENT)
COMPACTED = LogConfig(segment_bytes=SEGMENT, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
OFTEN = MaintenanceConfig(retention_check_interval_ms=1, cleaner_backoff_ms=1)
HOUR_MS = 3_600_000


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kreplog-topic")]


def overwrite(topic: Topic, partition: int, count: int = 100) -> None:
    """Records of two keys, over several segments."""
    for number in range(count):
        topic.append(b"%040d" % number, b"%d" % (number % 2), partition=partition)


def damage(path: Path) -> None:
    """Change a byte of the first record's value."""
    segment = path / f"{0:020d}.log"
    content = bytearray(segment.read_bytes())
    content[80] ^= 1
    segment.write_bytes(content)


class TestTasks:
    def test_records_are_flushed_by_time(self, path: Path) -> None:
        with Topic.open(path, 3, maintenance=MaintenanceConfig(flush_ms=1)) as topic:
            for number in range(2):
                topic.append(b"x", partition=number)
            topic.log(2).append(b"x")
            until(lambda: [topic.log(number).recovery_point for number in range(3)] == [1, 1, 1])
            assert threads() == ["kreplog-topic-orders"]

    def test_nothing_is_flushed_before_it_is_due(self, path: Path) -> None:
        config = MaintenanceConfig(flush_ms=HOUR_MS, high_watermark_checkpoint_interval_ms=1)
        with Topic.open(path, 1, maintenance=config) as topic:
            topic.append(b"x")
            checkpoint = OffsetCheckpoint(str(path.parent / "replication-offset-checkpoint"))
            until(lambda: checkpoint.read().get(TopicPartition("orders", 0)) == 1)
            assert topic.log(0).recovery_point == 0

    def test_many_partitions_are_flushed(self, path: Path) -> None:
        with Topic.open(path, 100, maintenance=MaintenanceConfig(flush_ms=1)) as topic:
            topic.append_many([b"x"] * 1000, [b"%d" % number for number in range(1000)])
            until(lambda: all(topic.log(number).recovery_point for number in range(100)))

    def test_retention_of_all_partitions_also_of_those_that_are_not_in_use(self, path: Path) -> None:
        with Topic.open(path, 2, config=LogConfig(segment_bytes=SEGMENT)) as topic:
            for number in range(2):
                overwrite(topic, number)
        with Topic.open(path, config=SMALL, maintenance=OFTEN), Topic.open(path, read_only=True) as reader:
            until(lambda: all(offsets.start > 50 for offsets in reader.offsets().values()))

    def test_checkpoints_have_what_a_kafka_broker_goes_by(self, path: Path) -> None:
        config = MaintenanceConfig(flush_ms=1, high_watermark_checkpoint_interval_ms=1)
        with Topic.open(path, 2, maintenance=config) as topic:
            for _ in range(3):
                topic.append(b"x", partition=1)
            topic.log(1).delete_records_before(2)
            files = [path.parent / f"{name}-offset-checkpoint" for name in ("recovery-point", "replication")]
            expected = {TopicPartition("orders", 1): 3}
            until(lambda: [OffsetCheckpoint(str(file)).read() for file in files] == [expected, expected])
            starts = OffsetCheckpoint(str(path.parent / "log-start-offset-checkpoint"))
            until(lambda: starts.read() == {TopicPartition("orders", 1): 2})

    def test_compaction_of_all_partitions(self, path: Path) -> None:
        with Topic.open(path, 2, config=COMPACTED, maintenance=OFTEN) as topic:
            for number in range(2):
                overwrite(topic, number)
                topic.log(number).roll()
            until(lambda: len(list(topic.read())) == 4)
            assert topic.maintenance_errors == ()

    def test_flushes_go_on_during_a_compaction(self, path: Path) -> None:
        """Which would take an hour at its rate."""
        config = MaintenanceConfig(flush_ms=1, cleaner_backoff_ms=1, cleaner_io_max_bytes_per_second=1)
        with Topic.open(path, 2, config=COMPACTED, maintenance=config) as topic:
            overwrite(topic, 0)
            topic.log(0).roll()

            def is_flushed(end: int) -> bool:
                return topic.log(1).recovery_point == end

            for offset in range(20):
                topic.append(b"x", b"k", partition=1)
                until(partial(is_flushed, offset + 1))
            overwrite(topic, 0, 1)
            until(lambda: topic.log(0).recovery_point == 101)
        assert not threads(), "and closing ends it"


class TestThread:
    @pytest.mark.parametrize(
        ("config", "maintenance"),
        [(LogConfig(), None), (LogConfig(retention_ms=1, cleanup_policy="compact"), None), (SMALL, None)],
    )
    def test_a_topic_without_work_has_none(self, path: Path, config: LogConfig, maintenance: Any) -> None:
        with Topic.open(path, 1, config=config, maintenance=maintenance):
            assert len(threads()) == (config is SMALL or config.compacts)
            with Topic.open(path, read_only=True, config=config, maintenance=MaintenanceConfig(flush_ms=1)):
                assert len(threads()) == (config is SMALL or config.compacts)
        assert not threads()

    def test_a_topic_that_is_dropped_ends_it_and_releases_its_lock(self, path: Path) -> None:
        topic = Topic.open(path, 1, config=SMALL)
        topic.append(b"x")
        del topic
        gc.collect()
        until(lambda: not threads())
        with Topic.open(path) as again:
            assert again.offsets() == {0: range(1)}

    def test_a_forked_child_has_none(self, path: Path) -> None:
        with Topic.open(path, 1, maintenance=MaintenanceConfig(flush_ms=1)) as topic:

            def child() -> list[str]:
                topic.close()
                return threads()

            assert result_of(child) == []
            topic.append(b"x")
            until(lambda: topic.log(0).recovery_point == 1)

    def test_two_threads_close(self, path: Path) -> None:
        topic = Topic.open(path, 1, config=SMALL, maintenance=OFTEN)
        closing = [InThread(topic.close) for _ in range(2)]
        for call in closing:
            call.result()
        assert topic.closed and not threads()


class TestFailures:
    def test_a_damaged_partition_is_set_aside_and_the_others_go_on(self, path: Path) -> None:
        with Topic.open(path, 3, config=LogConfig(segment_bytes=SEGMENT)) as topic:
            for number in range(3):
                overwrite(topic, number)
        damage(Path(f"{path}-1"))
        seen: list[MaintenanceError] = []
        config = MaintenanceConfig(cleaner_backoff_ms=1, on_error=seen.append)
        with Topic.open(path, config=COMPACTED, maintenance=config) as topic:
            until(lambda: all(len(list(topic.read(number))) < 60 for number in (0, 2)))
            until(lambda: bool(seen))
            (failure,) = topic.maintenance_errors
            assert (failure.task, failure.partition) == ("compaction", 1)
            assert isinstance(failure.error, errors.CorruptBatchError) and failure.error.offset == 0
            overwrite(topic, 2)
            before = len(list(topic.read(2)))
            until(lambda: len(list(topic.read(2))) < before)
            assert topic.maintenance_errors == (failure,) == tuple(seen), "it is tried once"

    def test_what_succeeds_again_is_forgotten(self, path: Path) -> None:
        Topic.open(path, 2, config=LogConfig(segment_bytes=SEGMENT)).close()
        with Log.open(f"{path}-1", LogConfig(segment_bytes=SEGMENT)) as log:
            for _ in range(100):
                log.append(bytes(50))
            with Topic.open(path, config=SMALL, maintenance=OFTEN) as topic:
                until(lambda: bool(topic.maintenance_errors))
                (failure,) = topic.maintenance_errors
                assert (failure.task, failure.partition) == ("retention", 1)
                assert isinstance(failure.error, errors.LogLockedError)
                log.close()
                until(lambda: not topic.maintenance_errors)
                assert topic.log(1).log_start_offset > 0

    def test_on_error_may_not_close_the_topic(self, path: Path) -> None:
        refusals: list[BaseException] = []
        opened = threading.Event()

        def close(_: MaintenanceError) -> None:
            opened.wait(30)  # the thread may be faster than the opening, which has `topic` in the end
            try:
                topic.close()
            except errors.UsageError as error:
                refusals.append(error)

        config = MaintenanceConfig(retention_check_interval_ms=1, on_error=close)
        Topic.open(path, 2).close()
        with Log.open(f"{path}-1"):
            topic = Topic.open(path, config=SMALL, maintenance=config)
            opened.set()
            until(lambda: bool(refusals))
            assert "may not close" in str(refusals[0])
            topic.close()


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("flush_ms", 0),
        ("flush_ms", True),
        ("flush_ms", 1.5),
        ("flush_ms", 1 << 40),
        ("retention_check_interval_ms", None),
        ("cleaner_io_max_bytes_per_second", 0),
        ("on_error", "raise"),
    ],
)
def test_wrong_settings(field: str, wrong: Any) -> None:
    with pytest.raises(errors.UsageError, match=field):
        MaintenanceConfig(**{field: wrong})


def test_maintenance_is_a_maintenance_config(path: Path) -> None:
    settings: Any = {"flush_ms": 1}
    with pytest.raises(errors.ArgumentTypeError, match="maintenance"):
        Topic.open(path, 1, maintenance=settings)
    assert not path.parent.exists()
