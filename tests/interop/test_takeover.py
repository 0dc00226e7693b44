"""kreplog and a real Kafka take turns at writing one partition, each with the other stopped; neither loses anything."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from kafka import KafkaProducer

from kreplog import Log, LogConfig, Record
from kreplog.errors import LogLockedError
from tests.interop.clients import (
    Message,
    consumer_of,
    create,
    found_by_kreplog,
    messages,
    records,
    send,
    send_by,
    served,
)
from tests.interop.dump import DumpedProducer, parse
from tests.interop.jvm import Broker, Kafka

pytestmark = pytest.mark.interop

SMALL = {"segment_bytes": 8000, "index_interval_bytes": 500}


def add(path: Path, numbers: Sequence[int], compression: str) -> list[Record]:
    """Open the log for writing, append in two ways, close it; return what it holds."""
    with Log.open(path, LogConfig(segment_bytes=8000, index_interval_bytes=500, compression_type=compression)) as log:
        before = list(log.read())
        sent = messages(numbers)
        new = records(sent, log.log_end_offset)
        half = len(sent) // 2
        for record in new[:half]:
            assert log.append(record.value, record.key, record.timestamp_ms, record.headers) == record.offset
        with log.appender(batch_bytes=2000) as out:
            for record in new[half:]:
                out.append(record.value, record.key, record.timestamp_ms, record.headers)
        assert list(log.read()) == before + new
        return before + new


def agree(kafka: Kafka, broker: Broker, topic: str, expected: list[Record]) -> None:
    """The running broker serves it, to both clients; it finds offsets by time in it; kreplog reads it beside it."""
    assert served(broker.bootstrap, topic) == expected
    assert found_by_kreplog(broker.partition(topic), len(expected)) == expected
    times = sorted({record.timestamp_ms for record in expected})
    with (
        Log.open(broker.partition(topic), read_only=True) as log,
        consumer_of(broker.bootstrap, topic) as (consumer, partition),
    ):
        for time in (times[0], *times[:: len(times) // 10], times[-1], times[-1] + 1):
            listed = consumer.offsets_for_times({partition: time})[partition]
            assert log.offset_for_timestamp(time) == (listed and listed.offset), time


@pytest.fixture(scope="module")
def begun(broker: Broker) -> list[Record]:
    """The topic "shared" as Kafka began it, and two more for other tests, since every start of Kafka takes seconds."""
    broker.start()
    create(broker.bootstrap, "shared", **SMALL)
    sent = messages(range(300))
    send(broker.bootstrap, "shared", sent, linger_ms=5)
    return records(sent)


def test_taking_turns(kafka: Kafka, broker: Broker, begun: list[Record]) -> None:
    path = broker.partition("shared")
    broker.start()
    with pytest.raises(LogLockedError, match="Kafka broker"):
        Log.open(path)
    broker.stop()
    expected = add(path, range(300, 500), "lz4")
    assert expected[:300] == begun

    broker.start()
    agree(kafka, broker, "shared", expected)
    sent = messages(range(500, 700))
    assert send(broker.bootstrap, "shared", sent, compression_type="gzip")[0] == 500
    expected += records(sent, 500)
    agree(kafka, broker, "shared", expected)

    broker.stop()
    found = add(path, range(700, 800), "zstd")
    assert found[:700] == expected
    expected = found
    assert len(list(path.glob("*.log"))) > 4

    broker.start()
    agree(kafka, broker, "shared", expected)
    sent = messages(range(800, 850))
    assert send(broker.bootstrap, "shared", sent)[0] == 800
    expected += records(sent, 800)
    agree(kafka, broker, "shared", expected)

    broker.kill()
    found = add(path, range(850, 950), "none")
    assert found[:850] == expected
    broker.start()
    agree(kafka, broker, "shared", found)
    assert "partition=shared-0" not in "".join(line for line in broker.words().splitlines() if "ERROR" in line)


def test_kafka_does_not_start_where_kreplog_writes(broker: Broker, begun: list[Record]) -> None:
    """Two logs of one data directory are open; closing one of them does not let the broker in."""
    broker.stop()
    with Log.open(broker.partition("shared")) as log:
        Log.open(broker.data / "another-0").close()
        words = broker.refuses_to_start()
        assert "Failed to acquire lock on file .lock" in words
        log.append(b"still ours")
        log.truncate_to(log.log_end_offset - 1)


def test_kafka_goes_on_with_a_log_that_kreplog_made(kafka: Kafka, broker: Broker) -> None:
    """Every codec, several segments and leader epochs; headers come out as they went in."""
    broker.start()
    create(broker.bootstrap, "adopted", **SMALL)
    broker.stop()
    path = broker.partition("adopted")
    original = path.joinpath("partition.metadata").read_bytes()
    for file in path.iterdir():
        file.unlink()
    path.joinpath("partition.metadata").write_bytes(original)
    expected: list[Record] = []
    for turn, codec in enumerate(("none", "gzip", "lz4", "zstd", "none")):
        expected = add(path, range(turn * 200, turn * 200 + 200), codec)
    broker.start()
    agree(kafka, broker, "adopted", expected)
    assert send(broker.bootstrap, "adopted", messages(range(10))) == list(range(1000, 1010))


def test_producers_and_transactions_outlive_turns(kafka: Kafka, broker: Broker) -> None:
    """What Kafka knows of idempotent producers is known to kreplog, and to Kafka again; so is what a transaction holds.

    First by the snapshot of a Kafka that was stopped, then, as it was killed, by the batches alone.
    """
    broker.start()
    for topic in ("sequences", "open", "ended"):
        create(broker.bootstrap, topic, **SMALL)
    now = time.time_ns() // 1_000_000  # either forgets a producer whose last records are a day old
    sent = messages(range(200), now)
    send(broker.bootstrap, "sequences", sent, linger_ms=5)
    transact(broker, "open", sent[:50], commit=False)
    transact(broker, "ended", sent[:50], commit=True)
    broker.stop()

    kafkas = producers_at(kafka, broker.partition("sequences"), 200)
    assert [entry.last_offset for entry in kafkas] == [199]
    expected = add(broker.partition("sequences"), range(300, 500), "none")
    add(broker.partition("open"), range(300, 500), "none")
    ours = producers_at(kafka, broker.partition("sequences"), 400)
    assert [(entry.producer_id, entry.epoch, entry.last_sequence, entry.last_offset) for entry in ours] == [
        (entry.producer_id, entry.epoch, entry.last_sequence, entry.last_offset) for entry in kafkas
    ]

    broker.start()
    agree(kafka, broker, "sequences", expected)
    assert last_stable_offset(broker, "open") == 0
    assert len(served(broker.bootstrap, "open")) == 250
    create(broker.bootstrap, "open-and-killed", **SMALL)
    transact(broker, "open-and-killed", sent[:50], commit=False)
    transact(broker, "ended", sent[:50], commit=True)
    found_by_kreplog(broker.partition("ended"), 102)  # the coordinator writes its marker after it has answered
    broker.kill()

    for topic in ("open", "open-and-killed", "ended"):
        add(broker.partition(topic), range(500, 700), "none")
    broker.start()
    assert last_stable_offset(broker, "open") == 0
    assert last_stable_offset(broker, "open-and-killed") == 0
    assert last_stable_offset(broker, "ended") >= 302  # a coordinator that hears no answer writes its marker again
    assert len(served(broker.bootstrap, "ended", isolation_level="read_committed")) == 300
    broker.stop()
    assert producers_at(kafka, broker.partition("sequences"), 400) == ours


def transact(broker: Broker, topic: str, sent: Sequence[Message], commit: bool) -> None:
    """By a producer that comes to its end there."""
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id=f"of-{topic}", transaction_timeout_ms=600_000
    )
    producer.init_transactions()
    producer.begin_transaction()
    send_by(producer, topic, sent)
    if commit:
        producer.commit_transaction()
        producer.close()
    else:
        producer.close(0)


def last_stable_offset(broker: Broker, topic: str) -> int:
    with consumer_of(broker.bootstrap, topic, isolation_level="read_committed") as (consumer, partition):
        return int(consumer.end_offsets([partition])[partition])


def producers_at(kafka: Kafka, path: Path, offset: int) -> list[DumpedProducer]:
    """The snapshot for `offset`; the newest entry of every producer."""
    snapshot = path / f"{offset:020d}.snapshot"
    (dumped,) = parse(kafka.dump("--files", str(snapshot))).values()
    return list({entry.producer_id: entry for entry in dumped.producers}.values())
