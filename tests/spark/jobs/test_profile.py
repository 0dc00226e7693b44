"""The job `profile` against pandas over the same flights."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import kreplog
from flights.source import TOPIC, events
from kreplog._native import batch
from kreplog.errors import UsageError
from kreplog_jobs import profile

pytestmark = pytest.mark.spark


def expected(flights: pd.DataFrame) -> pd.DataFrame:
    table = pd.DataFrame(events(flights), columns=["partition", "key", "value", "timestamp_ms"])
    table["offset"] = table.groupby("partition").cumcount()
    table["hour"] = table["timestamp_ms"] // 3_600_000
    table["key_size"], table["value_size"] = table["key"].map(len), table["value"].map(len)
    table["late_ms"] = table.groupby("partition")["timestamp_ms"].cummax() - table["timestamp_ms"]
    groups = table.groupby(["partition", "hour"])
    return groups.agg(
        records=("offset", "size"),
        key_bytes=("key_size", "sum"),
        value_bytes=("value_size", "sum"),
        keys=("key", "nunique"),
        first_offset=("offset", "min"),
        last_offset=("offset", "max"),
        late_ms=("late_ms", "max"),
    ).reset_index()


def test_tables_equal_those_of_pandas(spark: SparkSession, topic: Path, flights: pd.DataFrame, tmp_path: Path) -> None:
    profile.main(topic, tmp_path / "report", top_keys=3)
    found = pd.read_parquet(tmp_path / "report" / "profile.parquet")
    assert set(found["topic"]) == {TOPIC}
    found["hour"] = found["hour"].dt.as_unit("ms").astype("int64") // 3_600_000
    want = expected(flights)
    assert want["late_ms"].max() > 0, "flights are not in the order of their hours"
    pd.testing.assert_frame_equal(found[list(want.columns)], want, check_dtype=False)
    assert not found[["null_keys", "null_values"]].to_numpy().any()

    keys = pd.read_parquet(tmp_path / "report" / "keys.parquet")
    counts = flights["carrier"].value_counts().head(3)
    assert [(key.decode(), count) for key, count in zip(keys["key"], keys["records"], strict=True)] == list(
        counts.items()
    )
    producers = pd.read_parquet(tmp_path / "report" / "producers.parquet")
    assert set(producers["producer_id"]) == {-1}
    assert (
        producers.groupby("partition")["records"].sum().tolist() == want.groupby("partition")["records"].sum().tolist()
    )
    page = (tmp_path / "report" / "index.html").read_text()
    assert f"{len(flights):,} records in 4 partitions" in page
    assert (tmp_path / "report" / f"{TOPIC}.png").read_bytes().startswith(b"\x89PNG")


def test_a_topic_that_is_not_there_is_named(spark: SparkSession, topic: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no topic trains"):
        profile.main(topic, tmp_path / "report", subscribe="trains")


def test_producers_are_distinguished(spark: SparkSession, tmp_path: Path) -> None:
    hour_ms = 3_600_000
    with kreplog.Log.open(tmp_path / "t-0") as log:
        for sequence, (producer, hour, count) in enumerate([(7, 0, 2), (9, 0, 1), (7, 0, 3), (7, 1, 1)]):
            first = {0: 0, 1: 0, 2: 2, 3: 5}[sequence]
            times = [hour * hour_ms + 5] * count
            log.append_batches(
                batch.build(
                    [b"v"] * count, timestamps_ms=times, producer_id=producer, producer_epoch=0, base_sequence=first
                )
            )
    table = profile.producers_by_hour(spark, tmp_path, [("t", 0)]).to_pandas()
    assert table[["producer_id", "batches", "records"]].to_numpy().tolist() == [[7, 2, 5], [9, 1, 1], [7, 1, 1]]
    assert table["hour"].dt.hour.tolist() == [0, 0, 1]


def test_nothing_to_profile(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no committed records"):
        profile.main(tmp_path, tmp_path / "report")
