"""The job `compact`: the newest value of each key, tombstones, and keys in several partitions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import kreplog
from flights.source import TOPIC, events
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import InvalidTopicError, UsageError
from kreplog_jobs import compact
from kreplog_jobs.compact import NullKeys
from tests.client.brokers import make_topic, table

pytestmark = pytest.mark.spark


def keyed(directory: Path, *records: tuple[bytes | None, bytes | None], partition: int = 0) -> None:
    with kreplog.Log.open(directory / f"t-{partition}") as log:
        for key, value in records:
            log.append(value, key=key)


def rows(output: Path) -> list[tuple[bytes, bytes | None, int, int]]:
    table = pd.read_parquet(output).sort_values(["partition", "offset"])
    return [
        (row.key, None if pd.isna(row.value) else row.value, row.partition, row.offset) for row in table.itertuples()
    ]


def test_the_newest_flight_of_each_carrier(
    spark: SparkSession, topic: Path, flights: pd.DataFrame, tmp_path: Path
) -> None:
    compact.main(topic, TOPIC, tmp_path / "newest")
    newest = {event.key: event for event in events(flights)}
    found = pd.read_parquet(tmp_path / "newest")
    assert {row.key: (row.value, row.partition) for row in found.itertuples()} == {
        key: (event.value, event.partition) for key, event in newest.items()
    }


def test_a_tombstone_removes_its_key(spark: SparkSession, tmp_path: Path) -> None:
    keyed(tmp_path, (b"a", b"1"), (b"b", b"2"), (b"a", None), (b"c", b"3"), (b"c", b"4"), (b"d", None), (b"d", b"5"))
    keyed(tmp_path, (b"b", b"6"), partition=1)
    compact.main(tmp_path, "t", tmp_path / "newest")
    alive = [(b"b", b"2", 0, 1), (b"c", b"4", 0, 4), (b"d", b"5", 0, 6), (b"b", b"6", 1, 0)]
    assert rows(tmp_path / "newest") == alive
    compact.main(tmp_path, "t", tmp_path / "with tombstones", keep_tombstones=True)
    assert rows(tmp_path / "with tombstones") == sorted([*alive, (b"a", None, 0, 2)], key=lambda row: (row[2], row[3]))


def test_into_another_topic(spark: SparkSession, tmp_path: Path) -> None:
    keyed(tmp_path / "data", (b"a", b"1"), (b"b", b"2"), (b"a", None), (b"b", b"3"))
    compact.main(tmp_path / "data", "t", into=str(tmp_path / "compacted"), keep_tombstones=True)
    with kreplog.Log.open(tmp_path / "compacted" / "t-0", read_only=True) as log:
        assert sorted((record.key or b"", record.value) for record in log.read()) == [(b"a", None), (b"b", b"3")]
    with pytest.raises(UsageError, match=r"t in .* is what is read"):
        compact.main(tmp_path / "data", "t", into=str(tmp_path / "data"))
    with pytest.raises(UsageError, match="one of --output"):
        compact.main(tmp_path / "data", "t")
    with pytest.raises(InvalidTopicError):
        compact.main(tmp_path / "data", "t,u", tmp_path / "newest")


def test_into_a_topic_of_brokers(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    keyed(tmp_path, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    made = make_topic(cluster, "compacted", 2)
    compact.main(tmp_path, "t", into=cluster.bootstrap(), into_topic="compacted")
    with made.consumer() as consumer:
        found = table(
            list(consumer.read_arrow({at: (0, end) for at, end in consumer.end_offsets(made.partitions).items()}))
        )
    assert dict(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)) == {b"a": b"3", b"b": b"2"}
    assert len(found) == 2


def test_a_record_without_a_key_is_named(spark: SparkSession, tmp_path: Path) -> None:
    keyed(tmp_path, (b"a", b"1"), (None, b"2"))
    with pytest.raises(UsageError, match="t-0: the record at offset 1 has no key"):
        compact.main(tmp_path, "t", tmp_path / "newest")
    assert not (tmp_path / "newest").exists()
    compact.main(tmp_path, "t", tmp_path / "newest", null_keys=NullKeys.drop)
    assert rows(tmp_path / "newest") == [(b"a", b"1", 0, 0)]


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    command = [sys.executable, "-m", "kreplog_jobs.compact", str(tmp_path), "-t", "t", "-o", str(tmp_path / "there")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {tmp_path / 'there'} exists: give another --output, or delete it first\n"
