"""Producer against real brokers: what is written, where, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kreplog.client import AppendedRange, ProduceError, Producer, UnknownTopicError
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import ErrorCode, UsageError
from tests.client.brokers import Topic, make_topic, read_all, table

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def rows(count: int, start: int = 0) -> pa.Table:
    return pa.table({"value": [b"%d" % number for number in range(start, start + count)]})


@pytest.mark.parametrize("codec", CODECS)
def test_rows_come_back_as_they_were_written(topic: Topic, codec: str) -> None:
    item = pa.struct([("key", pa.string()), ("value", pa.binary())])
    headers = [[{"key": "n", "value": b"%d" % number}] if number % 3 else None for number in range(2000)]
    data = pa.table(
        {
            "value": [None if number % 5 == 0 else b"value-%d" % number * 20 for number in range(2000)],
            "key": [None if number % 7 == 0 else b"key-%d" % number for number in range(2000)],
            "timestamp": pa.array(range(2000), pa.timestamp("ms", "UTC")),
            "headers": pa.array(headers, pa.list_(item)),
        }
    )
    with Producer(topic.cluster.bootstrap(), compression=codec, batch_bytes=10_000) as producer:
        appended = producer.append_arrow(topic.name, data, partition=1)
    assert appended == (AppendedRange(topic.partitions[1], 0, 2000, 2000),)
    with topic.consumer() as consumer:
        consumer.assign({topic.partitions[1]: 0})
        found = table(read_all(consumer, 2000))
    assert found["offset"].to_pylist() == list(range(2000))
    for column in ("value", "key", "headers", "timestamp"):
        assert found[column].to_pylist() == data[column].to_pylist(), column


def test_what_was_fetched_can_be_written_again(topic: Topic) -> None:
    topic.append([b"a", None, b"c"], keys=[b"1", b"2", None], headers=[(("h", b"x"),), (), ()])
    with topic.consumer() as consumer, Producer(topic.cluster.bootstrap()) as producer:
        consumer.assign({topic.partitions[0]: 0})
        (piece,) = read_all(consumer, 3)
        assert producer.append_arrow(topic.name, piece, partition=2)[0].records == 3
        consumer.assign({topic.partitions[2]: 0})
        (copy,) = read_all(consumer, 3)
    assert copy.to_arrow().equals(piece.to_arrow())


def test_many_batches_to_all_partitions_arrive_once_and_in_order(topic: Topic) -> None:
    keys = [b"%d" % (number % 100) for number in range(50_000)]
    data = rows(50_000).append_column("key", pa.array(keys))
    with Producer(topic.cluster.bootstrap(), batch_bytes=5000) as producer:
        appended = producer.append_arrow(topic.name, data.to_reader(max_chunksize=3000))
        assert sum(piece.records for piece in appended) == 50_000
        assert [(piece.partition, piece.first_offset) for piece in appended] == [(at, 0) for at in topic.partitions]
        again = producer.append_arrow(topic.name, data.slice(0, 10))
        ends = {piece.partition: piece.next_offset for piece in appended}
        assert all(piece.first_offset == ends[piece.partition] for piece in again)
    with topic.consumer() as consumer:
        consumer.assign(dict.fromkeys(topic.partitions, 0))
        found = table(read_all(consumer, 50_010)).slice(0)
    by_key: dict[bytes, list[int]] = {}
    for key, value in zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True):
        by_key.setdefault(key, []).append(int(value))
    for key, numbers in by_key.items():
        first = int(key)
        assert numbers == [*range(first, 50_000, 100), *([first] if first < 10 else [])]


def test_nothing_to_write_writes_nothing(topic: Topic) -> None:
    with Producer(topic.cluster.bootstrap()) as producer:
        assert producer.append_arrow(topic.name, rows(0)) == ()
        assert producer.append_arrow(topic.name, rows(0), partition=0) == ()


def test_what_a_broker_refuses_ends_the_producer(cluster: LocalCluster) -> None:
    topic = make_topic(cluster, "small-batches", 1, max_message_bytes="1000")
    with Producer(cluster.bootstrap()) as producer:
        with pytest.raises(ProduceError, match="small-batches-0: the leader refuses") as raised:
            producer.append_arrow(topic.name, rows(5000))
        assert raised.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert raised.value.partition == "small-batches-0"
        with pytest.raises(UsageError, match="has failed: make a new one"):
            producer.append_arrow(topic.name, rows(1))
    with Producer(cluster.bootstrap(), batch_bytes=1000) as producer:
        assert sum(piece.records for piece in producer.append_arrow(topic.name, rows(5000))) == 5000


def test_wrong_calls_leave_the_producer_as_it_was(topic: Topic) -> None:
    producer = Producer(topic.cluster.bootstrap(), delivery_timeout_s=1)
    with pytest.raises(UnknownTopicError):
        producer.append_arrow("never-made", rows(1))
    with pytest.raises(UnknownTopicError):
        producer.append_arrow(topic.name, rows(1), partition=99)
    with pytest.raises(UsageError, match="row 0: its partition"):
        producer.append_arrow(topic.name, pa.table({"partition": pa.array([7], pa.int32())}))
    with pytest.raises(UsageError, match="row 0: its timestamp"):
        producer.append_arrow(topic.name, pa.table({"timestamp": pa.array([-7], pa.int64())}))
    assert producer.append_arrow(topic.name, rows(3), partition=0)[0].first_offset == 0
    producer.close()
    producer.close()
    with pytest.raises(UsageError, match="is closed"):
        producer.append_arrow(topic.name, rows(1))
    for settings in ({"batch_bytes": 10}, {"compression": "best"}, {"delivery_timeout_s": 0}):
        with pytest.raises(UsageError):
            Producer("127.0.0.1:1", **settings)
