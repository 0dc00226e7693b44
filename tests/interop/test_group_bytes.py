"""Kafka's own classes write the bytes of records and messages of groups that tests/wire compares with."""

from __future__ import annotations

from pathlib import Path

from tests.interop.jvm import NEWEST, Kafka, skipped_where_unavailable
from tests.wire.test_consumer_group_records import RECORDS, WITH_TAGS
from tests.wire.test_consumer_protocol import REQUESTS, RESPONSES

HERE = Path(__file__).parent


def test_kafka_writes_the_bytes_of_the_tests(tmp_path: Path) -> None:
    with skipped_where_unavailable():
        newest = Kafka(tmp_path, NEWEST)
    assert newest.run(HERE / "GroupRecords.java").splitlines() == [pair for _, pair in (*RECORDS, *WITH_TAGS)]
    messages = newest.run(HERE / "GroupMessages.java").splitlines()
    assert sorted(messages) == sorted(printed for _, printed in (*REQUESTS, *RESPONSES))
