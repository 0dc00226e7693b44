"""A broker takes over a folder with cursors and work queues: it has them as committed offsets of consumer groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import NewTopic
from kafka.structs import OffsetAndMetadata

from kreplog import Topic, errors
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.topic import cursor_log
from tests.integration.clusters import admin_of, wait_for_topic

SETTINGS = ('"offsets.topic.num.partitions" = 5', '"group.initial.rebalance.delay.ms" = 0')


def test_a_broker_takes_over_and_gives_back(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "cluster", [0], first_port=0, settings=SETTINGS)
    path = cluster.home(0) / "data" / "orders"
    places = [TopicPartition("orders", number) for number in range(2)]
    try:
        cluster.start()
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics([NewTopic("orders", 2, 1)])
        wait_for_topic(cluster, "orders", 2)
        consumer = KafkaConsumer(group_id="other", bootstrap_servers=cluster.bootstrap())
        consumer.assign(places)
        consumer.commit({places[1]: OffsetAndMetadata(0, "", -1)})  # which makes __consumer_offsets
        consumer.close(autocommit=False)
        with Topic.open(path, read_only=True) as reader, pytest.raises(errors.LogLockedError, match="kreplog broker"):
            reader.cursor("billing")
        cluster.stop()

        with Topic.open(path) as topic, topic.cursor("billing") as cursor:
            for number in range(7):
                topic.append(b"%d" % number, partition=number % 2)
            list(cursor)
            cursor.commit()

        cluster.start()
        wait_for_topic(cluster, "orders", 2)
        consumer = KafkaConsumer(group_id="billing", bootstrap_servers=cluster.bootstrap())
        assert [consumer.committed(place) for place in places] == [4, 3]
        consumer.assign(places)
        consumer.seek_to_beginning()
        values = {next(consumer).value for _ in range(7)}
        assert values == {b"%d" % number for number in range(7)}, "what the topic has appended"
        consumer.commit({places[0]: OffsetAndMetadata(2, "", -1)})
        consumer.close(autocommit=False)
        cluster.stop()

        with Topic.open(path) as topic, topic.cursor("billing") as cursor:
            assert cursor.positions == {0: 2, 1: 3}
            assert [record.value for record in cursor] == [b"4", b"6"]
    finally:
        cluster.stop()


def test_a_broker_takes_over_a_work_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the committed offset, with what is done beyond it; members of the queue commit nothing while it runs, and
    go on when it has stopped."""
    monkeypatch.setattr(cursor_log, "LOCK_TIMEOUT_S", 0.0)
    cluster = LocalCluster.create(tmp_path / "cluster", [0], first_port=0, settings=SETTINGS)
    path = cluster.home(0) / "data" / "orders"
    place = TopicPartition("orders", 0)
    try:
        cluster.start()
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics([NewTopic("orders", 1, 1)])
        wait_for_topic(cluster, "orders", 1)
        consumer = KafkaConsumer(group_id="mail", bootstrap_servers=cluster.bootstrap())
        consumer.assign([place])
        consumer.commit({place: OffsetAndMetadata(0, "", -1)})  # which makes __consumer_offsets
        consumer.close(autocommit=False)
        cluster.stop()

        with Topic.open(path) as topic:
            topic.append_many([b"%d" % number for number in range(7)])
        with Topic.open(path, read_only=True) as reader, reader.work_queue("mail") as queue:
            records = queue.take(6, timeout=0)
            queue.ack(records[0], *records[3:])

            cluster.start()
            wait_for_topic(cluster, "orders", 1)
            with pytest.raises(errors.LogLockedError, match="kreplog broker"):
                queue.ack(records[1])
            with pytest.raises(errors.LogLockedError, match="kreplog broker"):
                queue.take(timeout=0)
            with (
                Topic.open(path, read_only=True) as other,
                other.work_queue("second") as second,
                pytest.raises(errors.LogLockedError, match="kreplog broker"),
            ):
                second.take(timeout=0)
            consumer = KafkaConsumer(group_id="mail", bootstrap_servers=cluster.bootstrap())
            committed = consumer.committed(place, metadata=True)
            assert (committed.offset, committed.metadata) == (1, "kreplog-queue/1:b2.3")
            consumer.close(autocommit=False)
            cluster.stop()

            queue.ack(records[1])
            (last,) = queue.take(timeout=0)
            assert (last.offset, last.delivery_count) == (6, 1), "it was not delivered by the call that was refused"
        with Topic.open(path) as topic, topic.work_queue("mail") as queue:
            again = queue.take(10, timeout=0)
            assert [(record.offset, record.delivery_count) for record in again] == [(2, 2), (6, 2)]
            queue.ack(*again)
            assert queue.committed == {0: 7}
    finally:
        cluster.stop()
