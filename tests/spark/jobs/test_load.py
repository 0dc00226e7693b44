"""The job `load`: files of each format into topics, by key, all rows or none."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import kreplog
from flights.source import partition_of
from kreplog.errors import UsageError
from kreplog.types import Codec
from kreplog_jobs import load
from kreplog_jobs.load import Format

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
    load.main(str(file), tmp_path / "data", "flights", key="carrier", partitions=4)
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
    load.main(str(tmp_path / "rows.parquet"), tmp_path / "data", "t", key="k", value="v", compression=Codec.none)
    (loaded,) = records(tmp_path / "data", "t", 1).values()
    assert sorted((record.key or b"", record.value) for record in loaded) == [
        (b"", b""),
        (b"1.0", b"\xff"),
        (b"3.0", None),
    ]


def test_what_is_wrong_is_named_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="--key c: there is no such column; the files have a, b"):
        load.main(str(tmp_path / "rows.csv"), tmp_path / "data", "t", key="c")
    with pytest.raises(UsageError, match="ends in none of parquet, csv, json"):
        load.main(str(tmp_path / "rows.txt"), tmp_path / "data", "t")
    assert not (tmp_path / "data").exists()
