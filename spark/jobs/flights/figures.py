"""What Spark finds in the topic, held against pandas, as tables and as a chart."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Table

import pyspark_kreplog
from flights.source import PARTITIONS, TOPIC, check

EVENT_SCHEMA = "carrier string, hour int, arr_delay double"
MEAN_TOLERANCE = 1e-9


class Group(NamedTuple):
    """One row of a result: how many flights, and their mean arrival delay in minutes (None: none of them arrived)."""

    flights: int
    mean_delay: float | None


Groups = dict[str | int, Group]


def start_spark() -> SparkSession:
    return pyspark_kreplog.session(
        "flights demo",
        spark_log_level="ERROR",
        spark_sql_shuffle_partitions=PARTITIONS,
        spark_ui_enabled=False,
        spark_ui_showConsoleProgress=False,
    )


def flights_of_topic(spark: SparkSession, directory: Path) -> DataFrame:
    topic = spark.read.format("kreplog").option("path", str(directory)).option("subscribe", TOPIC)
    values = topic.schema("value binary").load()
    return values.select(sf.from_json(sf.col("value").cast("string"), EVENT_SCHEMA).alias("event")).select("event.*")


def grouped(flights: DataFrame, column: str) -> Groups:
    rows = flights.groupBy(column).agg(sf.count("*"), sf.avg("arr_delay")).orderBy(column).collect()
    return {name: Group(count, mean) for name, count, mean in rows}


def grouped_by_pandas(flights: pd.DataFrame, column: str) -> Groups:
    table = flights.groupby(column)["arr_delay"].agg(["size", "mean"])
    return {name: Group(size, None if math.isnan(mean) else mean) for name, size, mean in table.itertuples()}


def compare(column: str, found: Groups, expected: Groups) -> None:
    """Raises DemoError at the first group whose count differs, or whose mean differs by more than MEAN_TOLERANCE."""
    check(found.keys() == expected.keys(), f"{column}: Spark has groups {list(found)}, pandas {list(expected)}")
    for name, group in found.items():
        check(
            group.flights == expected[name].flights and _same_mean(group.mean_delay, expected[name].mean_delay),
            f"{column} {name}: Spark says {group}, pandas {expected[name]}",
        )


def _same_mean(mean: float | None, other: float | None) -> bool:
    if mean is None or other is None:
        return mean is other
    return math.isclose(mean, other, rel_tol=MEAN_TOLERANCE)


def print_groups(console: Console, column: str, groups: Groups) -> None:
    table = Table(column, title=f"Flights and mean arrival delay by {column}", title_justify="left")
    table.add_column("flights", justify="right")
    table.add_column("mean delay, minutes", justify="right")
    for name, group in groups.items():
        table.add_row(str(name), f"{group.flights:,}", _minutes(group.mean_delay))
    console.print(table)


def _minutes(mean: float | None) -> str:
    return "none arrived" if mean is None else f"{mean:.2f}"


def draw(by_carrier: Groups, by_hour: Groups, chart: Path) -> None:
    """Mean arrival delay by carrier (worst on top) and by scheduled hour of departure, as a PNG."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    bars = [
        (group.mean_delay, f"{name} ({group.flights:,})")
        for name, group in by_carrier.items()
        if group.mean_delay is not None
    ]
    bars.sort()
    left.barh([label for _, label in bars], [mean for mean, _ in bars], color="tab:blue")
    left.set_title("by carrier (flights)")
    left.set_xlabel("mean arrival delay, minutes")
    hours = [(name, group.mean_delay) for name, group in by_hour.items() if group.mean_delay is not None]
    right.bar([name for name, _ in hours], [mean for _, mean in hours], color="tab:orange")
    right.set_title("by hour of departure")
    right.set_xticks([name for name, _ in hours])
    right.set_xlabel("scheduled hour")
    right.set_ylabel("mean arrival delay, minutes")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{sum(group.flights for group in by_carrier.values()):,} flights out of New York, 2013")
    chart.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(chart, dpi=150)
