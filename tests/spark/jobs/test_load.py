"""The job `load`: files of each format into topics, by key, all rows or none."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kreplog
from flights.source import partition_of
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import UsageError
from kreplog.types import Codec
from kreplog_jobs import load
from kreplog_jobs.load import Format
from tests.client.brokers import make_topic, table
from tests.integration.clusters import eventually

pytestmark = pytest.mark.spark

COLUMNS = ["year", "carrier", "flight", "dep_delay", "dest"]


def records(path: Path, topic: str, partitions: int) -> dict[int, list[kreplog.Record]]:
    found = {}
    for partition in range(partitions):
        with kreplog.Log.open(path / f"{topic}-{partition}", read_only=True) as log:
            found[partition] = list(log.read())
    return found


@pytest.mark.parametrize("kind", list(Format))
def test_flights_by_carrier(spark: SparkSession, flights: pd.DataFrame, tmp_path: Path, kind: Format) -> None:
    sample = flights[COLUMNS].head(2000)
    file = tmp_path / f"flights.{kind}"
    if kind is Format.parquet:
        sample.to_parquet(file)
    elif kind is Format.csv:
        sample.to_csv(file, index=False)
    else:
        sample.to_json(file, orient="records", lines=True)
    load.main(str(file), str(tmp_path / "data"), "flights", key="carrier", partitions=4)
    found = records(tmp_path / "data", "flights", 4)
    for partition, loaded in found.items():
        assert {partition_of(record.key or b"", 4) for record in loaded} <= {partition}
        assert all(json.loads(record.value or b"")["carrier"].encode() == record.key for record in loaded)
    rows = [json.loads(record.value or b"") for loaded in found.values() for record in loaded]
    assert set(rows[0]) == set(COLUMNS)
    everything = pd.DataFrame(rows)[COLUMNS].sort_values(COLUMNS).reset_index(drop=True)
    read_back = pd.read_csv(file, dtype=str) if kind is Format.csv else sample
    expected = read_back.sort_values(COLUMNS).reset_index(drop=True)
    pd.testing.assert_frame_equal(everything, expected, check_dtype=False)
    assert everything["dep_delay"].isna().sum() > 0


def test_a_column_as_value_with_nulls(spark: SparkSession, tmp_path: Path) -> None:
    pd.DataFrame({"k": [1, None, 3], "v": [b"\xff", b"", None]}).to_parquet(tmp_path / "rows.parquet")
    load.main(str(tmp_path / "rows.parquet"), str(tmp_path / "data"), "t", key="k", value="v", compression=Codec.none)
    (loaded,) = records(tmp_path / "data", "t", 1).values()
    assert sorted((record.key or b"", record.value) for record in loaded) == [
        (b"", b""),
        (b"1.0", b"\xff"),
        (b"3.0", None),
    ]


def test_what_is_wrong_is_named_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="--key c: there is no such column; the files have a, b"):
        load.main(str(tmp_path / "rows.csv"), str(tmp_path / "data"), "t", key="c")
    with pytest.raises(UsageError, match="ends in none of parquet, csv, json"):
        load.main(str(tmp_path / "rows.txt"), str(tmp_path / "data"), "t")
    assert not (tmp_path / "data").exists()


def test_into_a_topic_of_brokers(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    """In a transaction a load that fails half-way leaves nothing that a reader of committed records sees."""
    made = make_topic(cluster, "loaded", 2, max_message_bytes="20000")
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    good.write_text("k,v\na,1\nb,2\n")
    bad.write_text("k,v\na,3\nb," + "x" * 30_000 + "\n")

    def values() -> list[bytes]:
        with made.consumer(isolation_level="read_committed") as consumer:
            ranges = {at: (0, end) for at, end in consumer.end_offsets(made.partitions).items()}
            return sorted(table(list(consumer.read_arrow(ranges)))["value"].to_pylist())

    load.main(str(good), cluster.bootstrap(), "loaded", key="k", value="v")
    assert values() == [b"1", b"2"]
    load.main(str(good), cluster.bootstrap(), "loaded", key="k", value="v", transactional_id="load")
    eventually(lambda: values() == [b"1", b"1", b"2", b"2"], lambda: str(values()))
    with pytest.raises(PySparkException, match="MESSAGE_TOO_LARGE"):
        load.main(
            *(str(bad), cluster.bootstrap(), "loaded"),
            key="k",
            value="v",
            transactional_id="load",
            compression=Codec.none,
        )
    assert values() == [b"1", b"1", b"2", b"2"]


def test_options_of_the_other_target_are_refused(tmp_path: Path) -> None:
    """Before Spark starts; brokers are no directory of that name."""
    with pytest.raises(UsageError, match="--partitions is for a directory: create t on the brokers first"):
        load.main("rows.csv", "127.0.0.1:1", "t", partitions=3)
    with pytest.raises(UsageError, match="--transactional-id is for brokers"):
        load.main("rows.csv", str(tmp_path / "data"), "t", transactional_id="load")
    assert not list(tmp_path.iterdir())
