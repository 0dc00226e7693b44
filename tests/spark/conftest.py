"""One Spark session for the whole run: starting it costs more than most tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import GROUPS, running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parent.parent.parent


class Load(Protocol):
    def __call__(self, schema: str | None = None, **options: str) -> DataFrame: ...


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores, no UI. Workers find both packages by PYTHONPATH, as they would where these are installed."""
    from pyspark_kreplog import session

    startup = Path(__file__).parent / "startup"
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, [startup, ROOT / "spark", ROOT / "spark" / "jobs", ROOT]))
    made = session(
        "kreplog tests",
        "local[2]",
        spark_ui_enabled=False,
        spark_sql_warehouse_dir=str(tmp_path_factory.mktemp("warehouse")),
        spark_sql_session_timeZone="UTC",
        spark_sql_shuffle_partitions=2,
        spark_driver_memory="1g",
    )
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers without topics; some modules have one with topics of their own."""
    with running(tmp_path_factory.mktemp("cluster"), GROUPS) as made:
        yield made


@pytest.fixture
def load(spark: SparkSession, tmp_path: Path) -> Load:
    """load("offset bigint", endingOffsets=...): the topic "t" in the data directory tmp_path, or what options say."""

    def load(schema: str | None = None, **options: str) -> DataFrame:
        reader = spark.read.format("kreplog").option("path", str(tmp_path))
        if not {"subscribePattern", "assign"} & options.keys():
            reader.option("subscribe", "t")
        return (reader if schema is None else reader.schema(schema)).options(**options).load()

    return load
