"""What the table of APIs says of Kafka is what the newest Kafka says itself."""

from __future__ import annotations

from pathlib import Path

from kreplog.wire.kafka_apis import KAFKA_4
from tests.interop.jvm import NEWEST, Kafka, skipped_where_unavailable

PRINTER = Path(__file__).with_name("Apis.java")


def test_the_table_of_apis_says_what_kafka_says(tmp_path: Path) -> None:
    with skipped_where_unavailable():
        newest = Kafka(tmp_path, NEWEST)
    printed = {}
    for line in newest.run(PRINTER).splitlines():
        key, name, first, last = line.split(" ")
        printed[int(key)] = (name, int(first), int(last))
    assert printed == dict(KAFKA_4)
