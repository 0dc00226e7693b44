"""Consumer against real brokers: metadata, offsets, fetches in sessions, ranges."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from kafka.errors import TopicAlreadyExistsError

from kreplog.client import Consumer, FetchTimeoutError, TopicRecreatedError, UnknownTopicError
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import ArgumentTypeError, OffsetOutOfRangeError, UsageError
from kreplog.types import TopicPartition
from tests.client.brokers import Topic, make_topic, read_all, table
from tests.integration import clusters

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def test_metadata_name_partitions_leaders_and_topic_ids(topic: Topic) -> None:
    with topic.consumer() as consumer:
        known = consumer.partitions(topic.name)
        assert topic.name in consumer.topics()
    assert tuple(known) == topic.partitions
    assert {partition.leader for partition in known.values()} == {0, 1, 2}
    assert len({partition.topic_id for partition in known.values()}) == 1
    assert all(len(partition.topic_id) == 22 and len(partition.replicas) == 3 for partition in known.values())


def test_offsets_are_listed_by_end_by_beginning_and_by_time(topic: Topic) -> None:
    first = topic.partitions[0]
    topic.append([b"a", b"b", b"c"], timestamps_ms=[1000, 2000, 3000])
    with topic.consumer() as consumer:
        assert consumer.beginning_offsets(topic.partitions) == dict.fromkeys(topic.partitions, 0)
        assert consumer.end_offsets(topic.partitions) == {at: 3 if at == first else 0 for at in topic.partitions}
        found = consumer.list_offsets(topic.partitions, 1500)
        at_1500 = found[first]
        assert at_1500 is not None and (at_1500.offset, at_1500.timestamp_ms) == (1, 2000)
        assert found[topic.partitions[1]] is None
        assert consumer.list_offsets([first], 3001) == {first: None}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_becomes_columns(topic: Topic, codec: str) -> None:
    values = [b"value-%d" % number * 20 for number in range(500)]
    headers = [(("name", b"%d" % number), ("empty", None)) if number % 2 else () for number in range(500)]
    keys = [None if number % 3 else b"key-%d" % number for number in range(500)]
    topic.append(values, keys=keys, headers=headers, timestamps_ms=list(range(500)), compression=codec)
    with topic.consumer(columns=("offset", "key", "value", "headers", "timestamp", "timestampType")) as consumer:
        consumer.assign({topic.partitions[0]: 0})
        rows = table(read_all(consumer, 500))
    assert rows["offset"].to_pylist() == list(range(500))
    assert rows["key"].to_pylist() == keys
    assert rows["value"].to_pylist() == values
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == list(range(500))
    assert set(rows["timestampType"].to_pylist()) == {0}
    assert rows["headers"].to_pylist() == [
        [{"key": name, "value": value} for name, value in pairs] or None for pairs in headers
    ]


def test_assigned_partitions_are_read_on_as_they_grow(topic: Topic) -> None:
    with topic.consumer() as consumer:
        consumer.assign(dict.fromkeys(topic.partitions, 0))
        assert consumer.fetch_arrow(0) is None
        for turn in range(5):
            for number in range(3):
                topic.append([b"%d-%d" % (turn, number)], number)
            pieces = read_all(consumer, 3)
            assert sorted(piece.partition for piece in pieces) == list(topic.partitions)
            assert {piece.next_offset for piece in pieces} == {turn + 1}
        assert consumer.positions == dict.fromkeys(topic.partitions, 5)


def test_a_start_inside_a_batch_and_pieces_smaller_than_a_response(topic: Topic) -> None:
    for _ in range(20):
        topic.append([b"x" * 100] * 50)
    with topic.consumer(piece_bytes=1) as consumer:
        consumer.assign({topic.partitions[0]: 75})
        pieces = read_all(consumer, 925)
    assert len(pieces) > 1
    assert table(pieces)["offset"].to_pylist() == list(range(75, 1000))
    assert [piece.next_offset for piece in pieces] == sorted({piece.next_offset for piece in pieces})


def test_ranges_are_clipped_at_both_ends_beside_what_is_assigned(topic: Topic) -> None:
    for number in range(3):
        for _ in range(3):
            topic.append([b"%d" % number] * 10, number)
    first, second, third = topic.partitions
    with topic.consumer() as consumer:
        consumer.assign({first: 0})
        ranges = {first: (5, 25), second: (0, 30), third: (29, 30)}
        pieces = list(consumer.read_arrow(ranges))
        for at, (start, stop) in ranges.items():
            rows = table([piece for piece in pieces if piece.partition == at])
            assert rows["offset"].to_pylist() == list(range(start, stop))
        assert list(consumer.read_arrow({first: (7, 7)})) == []
        assert consumer.positions == {first: 0}
        assert len(read_all(consumer, 30)) >= 1


def test_a_range_behind_what_is_committed_ends_with_an_error(topic: Topic) -> None:
    topic.append([b"a"])
    at = topic.partitions[0]
    with topic.consumer() as consumer:
        pieces = consumer.read_arrow({at: (0, 3)}, timeout_s=0.3)
        assert len(next(pieces)) == 1
        with pytest.raises(FetchTimeoutError, match="no record at offset 1") as raised:
            next(pieces)
    assert (raised.value.partition, raised.value.offset) == (str(at), 1)


def test_an_offset_out_of_range_fails_that_partition_alone(topic: Topic) -> None:
    topic.append([b"a"], 1)
    bad, good, _ = topic.partitions
    with topic.consumer() as consumer:
        consumer.assign({bad: 7, good: 0})
        with pytest.raises(OffsetOutOfRangeError, match="offset 7 is outside") as raised:
            for _ in range(20):
                consumer.fetch_arrow(5)
        assert (raised.value.partition, raised.value.offset) == (str(bad), 7)
        if consumer.positions[good] == 0:
            assert len(read_all(consumer, 1)) == 1
        topic.append([b"b"], 1)
        assert len(read_all(consumer, 1)) == 1


def test_unknown_topics_are_an_error_with_their_name(cluster: LocalCluster) -> None:
    at = TopicPartition("never-made", 0)
    with Consumer(cluster.bootstrap(), retry_timeout_s=0.3) as consumer:
        for call in (
            lambda: consumer.assign({at: 0}),
            lambda: consumer.end_offsets([at]),
            lambda: consumer.partitions("never-made"),
            lambda: next(consumer.read_arrow({at: (0, 1)})),
        ):
            with pytest.raises(UnknownTopicError, match="never-made-0"):
                call()


def test_a_topic_made_again_is_an_error_with_both_ids(cluster: LocalCluster) -> None:
    topic = make_topic(cluster, "made-again", 1)
    at = topic.partitions[0]
    topic.append([b"old"])
    with topic.consumer() as consumer:
        old = consumer.partitions(topic.name)[at].topic_id
        consumer.assign({at: 0})
        read_all(consumer, 1)
        with clusters.admin_of(cluster.bootstrap()) as admin:
            admin.delete_topics([topic.name])
        again = _make_again(cluster, topic.name)
        again.append([b"new", b"newer"])
        with pytest.raises(TopicRecreatedError, match=f"id {old} was deleted") as raised:
            for _ in range(100):
                assert consumer.fetch_arrow(5) is None, "a row of the new topic was taken for the old one's"
        new = consumer.partitions(topic.name)[at].topic_id
        assert (raised.value.topic_id, raised.value.new_topic_id) == (old, new)
        with pytest.raises(TopicRecreatedError):
            consumer.assign({at: 0}, topic_ids={topic.name: old})
        consumer.assign({at: 0}, topic_ids={topic.name: new})
        assert table(read_all(consumer, 2))["value"].to_pylist() == [b"new", b"newer"]


def _make_again(cluster: LocalCluster, name: str) -> Topic:
    """Once its deletion has ended."""
    made: list[Topic] = []

    def try_to_make() -> bool:
        with suppress(TopicAlreadyExistsError):
            made.append(make_topic(cluster, name, 1))
        return bool(made)

    clusters.eventually(try_to_make, f"{name} is not deleted")
    return made[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bootstrap": ""}, "write host:port"),
        ({"bootstrap": []}, "names no broker"),
        ({"bootstrap": "here:99999"}, "write host:port"),
        ({"columns": ["nothing"]}, "columns ="),
        ({"piece_bytes": 0}, "piece_bytes = 0"),
        ({"max_bytes": 1 << 40}, "max_bytes"),
        ({"request_timeout_s": 0}, "request_timeout_s"),
        ({"max_wait_ms": 40_000}, "max_wait_ms = 40000"),
    ],
)
def test_wrong_settings_are_refused_with_their_name(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Consumer(**{"bootstrap": "127.0.0.1:1", **settings})  # type: ignore[arg-type]


def test_wrong_calls_are_refused(topic: Topic) -> None:
    at = topic.partitions[0]
    consumer = topic.consumer()
    with pytest.raises(UsageError, match="nothing is assigned"):
        consumer.fetch_arrow(0)
    with pytest.raises(UsageError, match="offset -1"):
        consumer.assign({at: -1})
    with pytest.raises(ArgumentTypeError, match="an offset is an int"):
        consumer.assign({at: "0"})  # type: ignore[dict-item]
    with pytest.raises(ArgumentTypeError, match="a partition is a TopicPartition"):
        consumer.assign({5: 0})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="stop = 1 lies before start = 2"):
        consumer.read_arrow({at: (2, 1)})
    consumer.close()
    consumer.close()
    with pytest.raises(UsageError, match="is closed"):
        consumer.fetch_arrow(0)
