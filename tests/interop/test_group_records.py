"""Kafka's own classes write the bytes of records of groups that tests/wire compares with."""

from __future__ import annotations

from pathlib import Path

from tests.interop.jvm import NEWEST, Kafka, skipped_where_unavailable
from tests.wire.test_consumer_group_records import RECORDS, WITH_TAGS

PRINTER = Path(__file__).with_name("GroupRecords.java")


def test_kafka_writes_the_bytes_of_the_tests(tmp_path: Path) -> None:
    with skipped_where_unavailable():
        newest = Kafka(tmp_path, NEWEST)
    assert newest.run(PRINTER).splitlines() == [pair for _, pair in (*RECORDS, *WITH_TAGS)]
