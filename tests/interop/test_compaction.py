"""A real Kafka and kreplog compact one partition in turns; each reads what the other has left."""

from __future__ import annotations

import pytest

from kreplog import Log, LogConfig, Record
from tests.integration.clusters import eventually
from tests.interop.clients import Message, create, records, send, served, undamaged
from tests.interop.dump import parse
from tests.interop.jvm import Broker, Kafka

pytestmark = pytest.mark.interop

KEYS = 20
CONFIG = LogConfig(
    cleanup_policy="compact",
    segment_bytes=8000,
    index_interval_bytes=500,
    delete_retention_ms=0,
    compression_type="lz4",
)


def keyed(rounds: range) -> list[Message]:
    """Every key once a round, now and then as a tombstone."""
    return [
        Message(1000 + number, b"key %d" % key, None if (number + key) % 7 == 0 else b"%d of %d " % (number, key) * 5)
        for number in rounds
        for key in range(KEYS)
    ]


def newest(found: list[Record]) -> dict[bytes | None, bytes | None]:
    """By key; without the tombstones, which go at their own time."""
    return {key: value for key, value in {record.key: record.value for record in found}.items() if value is not None}


def test_each_reads_what_the_other_has_compacted(kafka: Kafka, broker: Broker) -> None:
    broker.start()
    create(
        broker.bootstrap,
        "both",
        segment_bytes=8000,
        index_interval_bytes=500,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=0,
    )
    path, sent = broker.partition("both"), keyed(range(50))
    send(broker.bootstrap, "both", sent)
    expected = newest(records(sent))

    eventually(lambda: len(served(broker.bootstrap, "both")) < len(sent) / 2, "Kafka does not compact")
    assert newest(served(broker.bootstrap, "both")) == expected
    broker.stop()
    undamaged(path)

    with Log.open(path, CONFIG) as log:
        assert newest(list(log.read())) == expected
        for message in keyed(range(50, 60)):
            log.append(message.value, message.key, message.timestamp_ms)
        log.roll()
        report = log.compact(force=True)
        assert report is not None and report.records_dropped > 0
        found = list(log.read())
    assert newest(found) == newest(records(keyed(range(60)))) and len(found) < 3 * KEYS
    segments = sorted(path.glob("*.log"))
    dumped = parse(kafka.dump("--print-data-log", "--files", ",".join(map(str, segments))))
    assert sum(len(each.records) for each in dumped.values()) == len(found)

    broker.start()
    assert served(broker.bootstrap, "both") == found
    (offset,) = send(broker.bootstrap, "both", keyed(range(60, 61))[:1])
    assert offset == 60 * KEYS
    broker.stop()
