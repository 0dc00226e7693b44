"""What each call of `kreplog.Topic` promises, one by one; processes, faults and damage have their own tests."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from kreplog import Log, LogConfig, Topic, errors
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog.topic.sticky import STICKY_BYTES, StickyPartitioner
from kreplog.types import TopicPartition

NOW = 1_700_000_000_000


class TestOpen:
    def test_a_new_topic_has_kafkas_layout(self, path: Path) -> None:
        with Topic.open(path, partitions=3) as topic:
            assert (topic.name, topic.partitions, topic.path) == ("orders", 3, str(path))
            topic.append(b"x", partition=1)
        directories = {entry.name for entry in path.parent.iterdir() if entry.is_dir()}
        assert directories == {"orders-0", "orders-1", "orders-2"}
        for number in range(3):
            with Log.open(path.parent / f"orders-{number}") as log:
                assert (log.topic_id, log.log_end_offset) == (topic.topic_id, int(number == 1))

    def test_an_existing_topic_keeps_its_partitions_and_records(self, path: Path) -> None:
        with Topic.open(path, partitions=3) as topic:
            topic.append(b"x", partition=2)
        with Topic.open(path) as again:
            assert (again.partitions, again.topic_id) == (3, topic.topic_id)
            assert again.offsets() == {0: range(0), 1: range(0), 2: range(1)}
        for read_only in (False, True):
            with pytest.raises(errors.InvalidPartitionsError, match="has 3 partitions, not 2") as refused:
                Topic.open(path, partitions=2, read_only=read_only)
            assert refused.value.existing == 3
        with pytest.raises(errors.InvalidPartitionsError, match=r"add_partitions\(4\)"):
            Topic.open(path, partitions=4)
        assert Topic.open(path, partitions=3).partitions == 3, "the refused opening holds no lock"

    def test_a_missing_topic_is_not_created_by_accident(self, path: Path) -> None:
        with pytest.raises(errors.UsageError, match="no such topic; give `partitions`"):
            Topic.open(path)
        with pytest.raises(errors.StorageError, match="no such topic"):
            Topic.open(path, read_only=True)

    @pytest.mark.parametrize("name", ["a/../..", "or ders", "x" * 250])
    def test_illegal_names(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(errors.InvalidTopicError):
            Topic.open(os.path.join(tmp_path, name) if "/" not in name else "/..", 1)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("partitions", "error"),
        [(0, errors.UsageError), (True, errors.ArgumentTypeError), (2**31 + 1, errors.UsageError)],
    )
    def test_wrong_numbers_of_partitions(self, path: Path, partitions: int, error: type[Exception]) -> None:
        with pytest.raises(error):
            Topic.open(path, partitions)
        assert not path.parent.exists()

    def test_it_takes_over_what_brokers_and_logs_leave(self, path: Path) -> None:
        for number in range(3):
            with Log.open(f"{path}-{number}") as log:
                log.append(b"x")
        with Topic.open(path) as topic:
            assert topic.partitions == 3 and topic.topic_id == log.topic_id
            assert [record.partition for record in topic.read()] == [0, 1, 2]

    def test_partitions_that_a_broker_added_are_found(self, path: Path) -> None:
        with Topic.open(path, 2):
            pass
        Log.open(f"{path}-2").close()
        with Topic.open(path) as topic:
            assert topic.partitions == 3

    def test_a_missing_partition_is_not_recreated(self, path: Path) -> None:
        with Topic.open(path, 3):
            pass
        os.rename(f"{path}-1", f"{path}.away")
        with pytest.raises(errors.StorageError, match=r"1 have no directory \(orders-1\)"):
            Topic.open(path)
        os.rename(f"{path}.away", f"{path}-1")
        Topic.open(path).close()

    def test_a_topic_created_again_by_a_broker_has_its_id(self, path: Path) -> None:
        with Topic.open(path, 1) as topic:
            former = topic.topic_id
        stored = path.parent / "orders-0" / "partition.metadata"
        stored.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
        with Topic.open(path) as topic:
            assert topic.topic_id is not None and topic.topic_id.int == 1 != former
        assert "topic_id: AAAAAAAAAAAAAAAAAAAAAQ\n" in (path.parent / "orders.topic").read_text()

    def test_two_topics_in_one_folder(self, path: Path) -> None:
        with Topic.open(path, 2) as orders, Topic.open(f"{path}-2", 2) as other:
            orders.append(b"a", partition=1)
            other.append(b"b", partition=0)
        with Topic.open(path, read_only=True) as orders, Topic.open(f"{path}-2", read_only=True) as other:
            assert orders.partitions == other.partitions == 2
            assert [r.value for r in orders.read()] == [b"a"] and [r.value for r in other.read()] == [b"b"]


class TestAppend:
    def test_what_is_appended_is_read(self, path: Path) -> None:
        with Topic.open(path, 2) as topic:
            place = topic.append(b"v", b"k", headers=[("h", b"x")], timestamp_ms=NOW, partition=1)
            assert place == (1, 0) and place.partition == 1 and place.offset == 0
            assert list(topic.read()) == [(1, 0, NOW, b"k", b"v", (("h", b"x"),))]
            assert topic.append(None, partition=1) == (1, 1)

    def test_keys_go_where_kafkas_producer_puts_them(self, path: Path) -> None:
        """Vectors of Kafka's own test, UtilsTest.testMurmur2."""
        hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
        with Topic.open(path, 7) as topic:
            for key, number in hashes.items():
                for form in (key, bytearray(key), memoryview(key)):
                    assert topic.append(b"v", form).partition == (number & 0x7FFFFFFF) % 7

    def test_records_without_a_key_stay_together_and_spread_evenly(self, path: Path) -> None:
        with Topic.open(path, 4) as topic:
            chosen = [topic.append(bytes(1000)).partition for _ in range(2000)]
        changes = sum(a != b for a, b in itertools.pairwise(chosen))
        assert changes <= 2000 * 1070 / STICKY_BYTES + 1
        assert min(Counter(chosen).values()) > 200

    def test_sticky_partitions_move_on_by_bytes(self) -> None:
        sticky = StickyPartitioner(random.Random(1))
        chosen = [sticky.choose(STICKY_BYTES // 4, 100) for _ in range(12)]
        assert [len(set(chosen[at : at + 4])) for at in (0, 4, 8)] == [1, 1, 1]
        assert len(set(chosen)) == 3
        assert sticky.choose(1, 1) == 0, "partitions that there are no more are not chosen"

    @pytest.mark.parametrize("partition", [-1, 2, "0", 1.5])
    def test_partitions_that_there_are_not(self, path: Path, partition: int) -> None:
        with Topic.open(path, 2) as topic:
            with pytest.raises(errors.UsageError):
                topic.append(b"x", partition=partition)
            assert topic.offsets() == {0: range(0), 1: range(0)}

    def test_wrong_types(self, path: Path) -> None:
        with Topic.open(path, 2) as topic:
            for value, key in [("text", None), (b"x", "text"), (1, b"k"), (b"x", 5)]:
                with pytest.raises(errors.ArgumentTypeError):
                    topic.append(value, key)
            assert topic.offsets() == {0: range(0), 1: range(0)}

    def test_a_reader_cannot_append(self, path: Path) -> None:
        Topic.open(path, 1).close()
        with Topic.open(path, read_only=True) as topic:
            with pytest.raises(errors.UsageError, match="read-only"):
                topic.append(b"x")
            with pytest.raises(errors.UsageError, match="read-only"):
                topic.add_partitions(2)


class TestAddPartitions:
    def test_they_take_keys_at_once_and_later(self, path: Path) -> None:
        with Topic.open(path, 1) as topic, Topic.open(path, read_only=True) as reader:
            assert topic.append(b"x", b"21").partition == 0
            topic.add_partitions(7)
            assert topic.partitions == 7 and topic.append(b"x", b"21").partition == (-973932308 & 0x7FFFFFFF) % 7
            assert reader.partitions == 7 and len(list(reader.read())) == 2, "a reader finds them"
        with Topic.open(path) as topic:
            assert topic.partitions == 7

    def test_only_more(self, path: Path) -> None:
        with Topic.open(path, 3) as topic:
            topic.add_partitions(3)
            with pytest.raises(errors.UsageError, match="only added"):
                topic.add_partitions(2)


class TestClose:
    def test_checkpoints_have_all_partitions_and_keep_those_of_others(self, path: Path) -> None:
        with Log.open(path.parent / "other-0") as log:
            log.append(b"x")
        with Topic.open(path, 3) as topic:
            for number in range(3):
                for _ in range(number):
                    topic.append(b"x", partition=number)
            topic.offsets()
        for name in ("recovery-point", "replication"):
            offsets = OffsetCheckpoint(str(path.parent / f"{name}-offset-checkpoint")).read()
            assert offsets == {
                TopicPartition("other", 0): 1,
                **{TopicPartition("orders", number): number for number in range(3)},
            }

    def test_a_closed_topic_takes_nothing(self, path: Path) -> None:
        topic = Topic.open(path, 2)
        topic.append(b"x", partition=0)
        topic.close()
        topic.close()
        for partition in (0, 1, None):
            with pytest.raises(errors.LogClosedError):
                topic.append(b"x", partition=partition)
        with pytest.raises(errors.LogClosedError):
            topic.add_partitions(3)
        with pytest.raises(errors.LogClosedError):
            list(topic.read())

    def test_a_partition_that_failed_is_named_and_the_others_are_closed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = Topic.open(path, 2)
        for number in range(2):
            topic.append(b"x", partition=number)
        refused = topic.log(0)
        monkeypatch.setattr(
            type(refused), "close", lambda log: _fail() if log is refused else Log.close(log), raising=False
        )
        with pytest.raises(errors.LogFailedError, match="full"):
            topic.close()
        monkeypatch.undo()
        assert topic.closed
        offsets = OffsetCheckpoint(str(path.parent / "recovery-point-offset-checkpoint")).read()
        assert offsets == {TopicPartition("orders", 1): 1}


def _fail() -> None:
    raise errors.LogFailedError("the disk is full")


class TestRead:
    def test_of_a_partition(self, path: Path) -> None:
        with Topic.open(path, 2) as topic:
            for number in range(6):
                topic.append(b"%d" % number, partition=number % 2)
            assert [record.value for record in topic.read(1)] == [b"1", b"3", b"5"]
            assert [record.value for record in topic.read(1, 1, 2)] == [b"3"]
            assert [record.value for record in topic.read(start={0: 2, 1: 1}, stop={0: 3})] == [b"4", b"3", b"5"]
            with pytest.raises(errors.UsageError, match="mapping"):
                topic.read(start=1)
            with pytest.raises(errors.UsageError, match="order"):
                topic.read(order="size")

    def test_merged_by_time(self, path: Path) -> None:
        """Offsets rise within each partition, also where its timestamps fall."""
        draw = random.Random(7)
        with Topic.open(path, 3) as topic:
            for _ in range(300):
                topic.append(b"x", partition=draw.randrange(3), timestamp_ms=NOW + draw.randrange(100))
            merged = list(topic.read(order="time"))
            plain = list(topic.read())
        latest = [-1] * 3
        keys = []
        for record in merged:
            latest[record.partition] = max(latest[record.partition], record.timestamp_ms)
            keys.append((latest[record.partition], record.partition, record.offset))
        assert keys == sorted(keys) and sorted(merged) == sorted(plain)

    def test_a_topic_with_settings(self, path: Path) -> None:
        with Topic.open(path, 2, config=LogConfig(segment_bytes=256)) as topic:
            for _ in range(10):
                topic.append(bytes(200), partition=0)
            assert len(topic.log(0).segments) == 10
        with pytest.raises(errors.UsageError, match="not replicated"):
            Topic.open(path, config=LogConfig(replicated=True))
